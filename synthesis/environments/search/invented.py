"""Articles about invented people and places, for tests and examples: facts, and titles that mention each other.

The same number and seed give the same articles. Every place lies on a river, every person was born in a place and
founded a society, so that questions of several hops can be asked.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from agentmill.schemas.ids import derive_seed
from agentmill.synthesis.environments.search.corpus import Document

_STARTS = ("Bra", "Cor", "Dun", "El", "Fen", "Gar", "Hol", "Ist", "Jor", "Kel", "Lun", "Mar", "Nor", "Os", "Pel", "Tor")
_MIDDLES = ("da", "ve", "li", "mo", "ru", "se", "to", "vi", "na", "gri", "lo", "pha")
_ENDS = {
    "place": ("burg", "holm", "mouth", "stead", "wick", "ford"),
    "river": ("ra", "ne", "lva", "mis", "dor"),
    "person": ("n", "s", "ric", "lia", "mund", "wyn"),
    "family": ("son", "sker", "vane", "dal", "quist", "mont"),
}
_CRAFTS = ("glassblower", "botanist", "cartographer", "clockmaker", "geologist", "weaver", "surveyor", "printer")
_GOODS = ("copper", "linen", "salt", "amber", "barley", "slate", "honey", "cork")
_MONTHS = ("January", "March", "April", "June", "August", "October", "December")


def invented_articles(n: int, seed: int = 0) -> list[Document]:
    """``n`` short articles: half about people, three in ten about places, the rest about rivers."""
    chance = random.Random(derive_seed("invented articles", seed))
    taken: set[str] = set()
    rivers = [_name("river", chance, taken) for _ in range(max(1, n // 5))]
    places = [_name("place", chance, taken) for _ in range(max(1, (3 * n) // 10))]
    n_people = max(0, n - len(rivers) - len(places))
    people = [f"{_name('person', chance, taken)} {_name('family', chance, taken)}" for _ in range(n_people)]
    articles = [_river(river, places, chance) for river in rivers]
    articles += [_place(place, rivers, chance) for place in places]
    articles += [_person(person, places, people, chance) for person in people]
    return [msgspec.structs.replace(each, id=each.title.lower().replace(" ", "-")) for each in articles[:n]]


def _name(kind: str, chance: random.Random, taken: set[str]) -> str:
    length = 1
    while True:
        parts = [chance.choice(_STARTS), *(chance.choice(_MIDDLES) for _ in range(length)), chance.choice(_ENDS[kind])]
        name = "".join(parts)
        if name not in taken:
            taken.add(name)
            return name
        length = min(4, length + 1)


def _river(name: str, places: Sequence[str], chance: random.Random) -> Document:
    mouth, colour = chance.choice(places), chance.choice(("brown", "green", "grey", "silver"))
    text = (
        f"{name} is a river of {chance.randint(40, 900)} kilometres. It reaches the sea near {mouth}. "
        f"A survey of {chance.randint(1700, 1990)} describes its water as {colour}. "
        f"The river has {chance.randint(3, 60)} bridges."
    )
    return Document("", name, text)


def _place(name: str, rivers: Sequence[str], chance: random.Random) -> Document:
    text = (
        f"{name} is a town on the {chance.choice(rivers)}. It was first named in a charter of "
        f"{chance.randint(900, 1600)}. The town has {chance.randint(1_000, 90_000):,} inhabitants and is known for its "
        f"{chance.choice(_GOODS)}.\n\nThe town hall of {name} was built in {chance.randint(1601, 1899)} and has "
        f"{chance.randint(12, 240)} windows."
    )
    return Document("", name, text)


def _person(name: str, places: Sequence[str], people: Sequence[str], chance: random.Random) -> Document:
    teacher = chance.choice([each for each in people if each != name] or ["nobody"])
    year, craft = chance.randint(1620, 1900), chance.choice(_CRAFTS)
    begun, left = year + chance.randint(20, 45), year + chance.randint(46, 70)
    text = (
        f"{name} was a {craft}, born in {chance.choice(places)} on {chance.randint(1, 28)} {chance.choice(_MONTHS)} "
        f"{year}. The {craft} learned the trade from {teacher}. A workshop followed in {begun}, which employed "
        f"{chance.randint(3, 80)} apprentices.\n\nIn {left} {name} left {chance.randint(100, 9_000):,} crowns to the "
        f"school of {chance.choice(places)}."
    )
    return Document("", name, text)
