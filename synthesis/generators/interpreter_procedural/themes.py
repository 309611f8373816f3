"""What tables are about: words for rows, fields with options, and fields of numbers."""

from __future__ import annotations

from typing import NamedTuple


class Theme(NamedTuple):
    """``words`` in an inspiration text speak for it; ``other``: the second table, its key, its field, its options."""

    words: str
    table: str
    row: str
    options: dict[str, tuple[str, ...]]
    ranges: dict[str, tuple[int, int]]
    other: tuple[str, str, str, tuple[str, ...]]


THEMES = (
    Theme(
        "shop store sale sell order customer price market buy product",
        "sales",
        "sale",
        {
            "region": ("north", "south", "east", "west"),
            "product": ("lamp", "chair", "desk", "shelf", "rug"),
            "payment": ("card", "cash", "invoice"),
        },
        {"price": (5, 90), "units": (1, 12), "discount": (0, 9)},
        ("stores", "store", "city", ("Lisbon", "Oslo", "Turin")),
    ),
    Theme(
        "hospital patient doctor nurse drug ward health clinic medicine",
        "visits",
        "visit",
        {
            "ward": ("cardiology", "surgery", "paediatrics"),
            "urgency": ("low", "medium", "high"),
            "insurance": ("public", "private"),
        },
        {"age": (1, 95), "days": (1, 20), "cost": (40, 900)},
        ("doctors", "doctor", "shift", ("day", "night")),
    ),
    Theme(
        "ship harbour port cargo sea boat container freight truck transport",
        "shipments",
        "shipment",
        {
            "cargo": ("grain", "steel", "fruit", "timber"),
            "status": ("waiting", "loaded", "cleared"),
            "lane": ("inner", "outer"),
        },
        {"tons": (2, 80), "crates": (1, 40), "delay": (0, 14)},
        ("ships", "ship", "flag", ("Malta", "Japan", "Chile", "Norway")),
    ),
    Theme(
        "school student teacher class course exam university lesson learn",
        "results",
        "result",
        {
            "subject": ("algebra", "biology", "history", "music"),
            "grade": ("ninth", "tenth", "eleventh"),
            "term": ("spring", "autumn"),
        },
        {"points": (10, 100), "hours": (1, 30), "absences": (0, 9)},
        ("classes", "class", "building", ("old", "new", "annex")),
    ),
    Theme(
        "weather river sensor station rain temperature forest farm field soil",
        "readings",
        "reading",
        {
            "quantity": ("rain", "wind", "frost"),
            "quality": ("checked", "raw", "repaired"),
            "season": ("spring", "summer", "autumn", "winter"),
        },
        {"level": (1, 60), "minutes": (5, 120), "errors": (0, 7)},
        ("stations", "station", "valley", ("upper", "lower", "middle")),
    ),
    Theme(
        "library book reader author loan archive museum paper",
        "loans",
        "loan",
        {
            "genre": ("novel", "atlas", "poetry", "manual"),
            "reader": ("child", "adult", "senior"),
            "desk": ("front", "online"),
        },
        {"pages": (40, 800), "weeks": (1, 12), "fee": (0, 15)},
        ("branches", "branch", "district", ("centre", "hill", "river")),
    ),
)
