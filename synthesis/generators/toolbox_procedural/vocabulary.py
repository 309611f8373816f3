"""Themes of invented databases: what parties, things, places and records are called, and how a record's life goes."""

from __future__ import annotations

import msgspec

# fmt: off
FIRST_NAMES = (
    "Ada", "Bela", "Carla", "David", "Edda", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Karim", "Lena", "Marta",
    "Nils", "Olga", "Paul", "Quinn", "Rosa", "Samir", "Tilda", "Uwe", "Vera", "Wanda", "Yusuf", "Zoe",
)
LAST_NAMES = (
    "Abel", "Berg", "Costa", "Duran", "Evers", "Falk", "Gomez", "Haas", "Ivanov", "Jansen", "Kraus", "Lopez",
    "Meyer", "Novak", "Olsen", "Petit", "Rossi", "Sato", "Tamm", "Urban", "Vidal", "Weber", "Young", "Zeman",
)
CITIES = (
    "Lisbon", "Oslo", "Graz", "Porto", "Ghent", "Turku", "Bergen", "Leeds", "Cadiz", "Brno", "Lyon", "Bari",
)
# fmt: on


class Theme(msgspec.Struct, frozen=True):
    """A vocabulary. ``life`` are the states of a record in order, the last one its cancelled state; ``verbs`` lead
    from each to the next, the last one from the first to the cancelled one."""

    name: str
    keywords: str
    about: str
    party: str
    thing: str
    place: str
    staff: str
    record: str
    life: tuple[str, ...]
    verbs: tuple[str, ...]
    kind: str
    kinds: tuple[str, ...]
    tiers: tuple[str, ...]
    amount: str
    stock: str
    note: str
    things: tuple[str, ...]
    places: tuple[str, ...]


def _theme(**fields: str) -> Theme:
    """A theme whose lists are written with commas."""
    lists = {"life", "verbs", "kinds", "tiers", "things", "places"}
    split = {name: tuple(map(str.strip, text.split(","))) if name in lists else text for name, text in fields.items()}
    return Theme(**split)  # type: ignore[arg-type]


THEMES = (
    _theme(
        name="retail",
        keywords="shop store buy sell order product customer market price trade deliver parcel",
        about="You work for the service desk of a web shop.",
        party="customer",
        thing="product",
        place="warehouse",
        staff="clerk",
        record="order",
        life="pending, packed, shipped, cancelled",
        verbs="pack, ship, cancel",
        kind="category",
        kinds="kitchen, garden, office, toys",
        tiers="basic, silver, gold",
        amount="price",
        stock="stock",
        note="remark",
        things="Oak Tray, Steel Kettle, Rake, Desk Lamp, Puzzle Box, "
        "Wool Rug, Clay Pot, Paper Fan, Tin Whistle, Hose Reel",
        places="North Hall, River Depot, Hill Store, Old Mill",
    ),
    _theme(
        name="library",
        keywords="library book read archive letter author story translate text learn",
        about="You work at the desk of a town library.",
        party="member",
        thing="book",
        place="branch",
        staff="librarian",
        record="loan",
        life="reserved, lent, returned, withdrawn",
        verbs="lend, return, withdraw",
        kind="genre",
        kinds="novel, travel, history, poetry",
        tiers="child, adult, senior",
        amount="fee",
        stock="copies",
        note="comment",
        things="River Stones, The Long Winter, Maps of Salt, Green Doors, A Quiet Coast, Nine Bridges, Small Fires, "
        "The Glass Orchard, Paper Moons, Northbound",
        places="Central, Harbour, Westgate, Hillside",
    ),
    _theme(
        name="clinic",
        keywords="health medicine nurse patient ward doctor hospital drug disease body sleep",
        about="You work at the reception of a clinic.",
        party="patient",
        thing="treatment",
        place="ward",
        staff="doctor",
        record="appointment",
        life="requested, confirmed, completed, cancelled",
        verbs="confirm, complete, cancel",
        kind="department",
        kinds="dental, heart, skin, eyes",
        tiers="public, private, emergency",
        amount="charge",
        stock="slots",
        note="finding",
        things="Eye Test, Skin Scan, Root Canal, Heart Check, Blood Panel, Allergy Test, Vaccination, Stitches, X-Ray",
        places="Ward A, Ward B, Day Clinic, Night Clinic",
    ),
    _theme(
        name="travel",
        keywords="travel trip flight plane road map tour station hotel guest visit route",
        about="You work for a travel agency.",
        party="traveller",
        thing="trip",
        place="terminal",
        staff="guide",
        record="booking",
        life="held, paid, travelled, cancelled",
        verbs="pay, close, cancel",
        kind="style",
        kinds="beach, city, hiking, rail",
        tiers="standard, plus, premium",
        amount="fare",
        stock="seats",
        note="wish",
        things="Coast Loop, Alpine Week, Island Hop, Old Towns, Night Train, "
        "Desert Ride, Lake Tour, Wine Route, Fjord Line",
        places="East Pier, Main Station, Airfield, South Gate",
    ),
    _theme(
        name="bank",
        keywords="bank money loan account economy business finance tax contract invest",
        about="You work for the back office of a bank.",
        party="client",
        thing="plan",
        place="office",
        staff="adviser",
        record="contract",
        life="drafted, signed, settled, void",
        verbs="sign, settle, void",
        kind="purpose",
        kinds="saving, housing, study, business",
        tiers="private, premier, business",
        amount="rate",
        stock="quota",
        note="memo",
        things="Home Plan, Study Plan, Green Fund, Start Fund, Rainy Day, "
        "Car Plan, Roof Plan, Bridge Loan, Gold Reserve",
        places="Main Office, Port Office, Market Office, Park Office",
    ),
    _theme(
        name="depot",
        keywords="warehouse freight truck cargo crate ship dock harbour load transport box",
        about="You plan the work of a freight depot.",
        party="shipper",
        thing="carrier",
        place="dock",
        staff="driver",
        record="shipment",
        life="announced, loaded, delivered, refused",
        verbs="load, deliver, refuse",
        kind="handling",
        kinds="dry, cooled, fragile, bulk",
        tiers="regular, express, contract",
        amount="weight",
        stock="spaces",
        note="incident",
        things="Euro Pallet, Half Pallet, Cold Box, Glass Rack, Grain Bin, Drum Set, Cable Reel, Tube Frame",
        places="Dock North, Dock South, Rail Yard, Quay",
    ),
    _theme(
        name="school",
        keywords="school class child teach student course lesson exam university study team",
        about="You work in the office of an evening school.",
        party="student",
        thing="course",
        place="campus",
        staff="teacher",
        record="enrolment",
        life="applied, accepted, passed, dropped",
        verbs="accept, pass, drop",
        kind="subject",
        kinds="languages, crafts, science, music",
        tiers="first year, second year, guest",
        amount="credits",
        stock="places",
        note="report",
        things="Spanish One, Pottery, Field Botany, Choir, Wood Joints, "
        "Star Charts, Italian Two, Piano Basics, Soil Science",
        places="Town Campus, Lake Campus, Garden House, Annex",
    ),
    _theme(
        name="fleet",
        keywords="car drive vehicle engine mechanic repair robot battery bike motor machine",
        about="You dispatch the vehicles of a rental fleet.",
        party="renter",
        thing="vehicle",
        place="garage",
        staff="mechanic",
        record="rental",
        life="requested, running, closed, rejected",
        verbs="start, close, reject",
        kind="drive",
        kinds="electric, diesel, hybrid, petrol",
        tiers="single, family, company",
        amount="tariff",
        stock="units",
        note="damage",
        things="City Mini, Cargo Van, Camper, Open Jeep, Long Estate, Micro Bus, Flat Truck, Twin Scooter",
        places="Hill Garage, Bay Garage, Ring Garage, Park Garage",
    ),
    _theme(
        name="events",
        keywords="music concert theatre stage festival ticket party orchestra game sport show art",
        about="You run the ticket office of a theatre.",
        party="guest",
        thing="show",
        place="hall",
        staff="usher",
        record="ticket",
        life="held, sold, used, released",
        verbs="sell, admit, release",
        kind="format",
        kinds="play, dance, film, concert",
        tiers="single, subscriber, patron",
        amount="price",
        stock="seats",
        note="message",
        things="Glass Rain, Two Kings, Swan Yard, Late Jazz, Red Lantern, Silent Film Night, Harp and Drum, Moon Opera",
        places="Great Hall, Studio, Garden Stage, Cellar",
    ),
    _theme(
        name="helpdesk",
        keywords="computer network software device support bug switch data problem code internet",
        about="You work for the help desk of a company.",
        party="employee",
        thing="service",
        place="site",
        staff="technician",
        record="ticket",
        life="open, assigned, solved, rejected",
        verbs="assign, solve, reject",
        kind="area",
        kinds="network, hardware, accounts, printing",
        tiers="normal, urgent, executive",
        amount="effort",
        stock="capacity",
        note="update",
        things="Mail, Wireless, Laptop Exchange, Badge Access, Printer Pool, File Share, Phone Line, Video Room",
        places="Tower, Plant, Lab, Remote Hub",
    ),
    _theme(
        name="farm",
        keywords="farm garden water soil harvest plant vegetable animal greenhouse food kitchen cook meal restaurant",
        about="You keep the books of a farm cooperative.",
        party="grower",
        thing="crop",
        place="field",
        staff="picker",
        record="harvest",
        life="planned, picked, delivered, lost",
        verbs="pick, deliver, write_off",
        kind="season",
        kinds="spring, summer, autumn, winter",
        tiers="small, medium, large",
        amount="yield",
        stock="crates",
        note="observation",
        things="Carrots, Red Beets, Kale, Plums, Barley, Pumpkins, Leeks, Cherries, Peas, Rye",
        places="Upper Field, Creek Field, Glasshouse, Long Acre",
    ),
    _theme(
        name="housing",
        keywords="house room rent city building door key village home neighbour construction lift",
        about="You work for a housing association.",
        party="tenant",
        thing="flat",
        place="building",
        staff="caretaker",
        record="lease",
        life="offered, signed, ended, declined",
        verbs="sign, end, decline",
        kind="comfort",
        kinds="simple, renovated, new, shared",
        tiers="student, family, retired",
        amount="rent",
        stock="vacancies",
        note="complaint",
        things="Studio, Two Rooms, Three Rooms, Loft, Garden Flat, Corner Flat, Attic, Maisonette",
        places="Birch House, Mill Court, Station Row, Park Side",
    ),
)
