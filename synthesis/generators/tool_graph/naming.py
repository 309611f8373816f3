"""What names of tools, fields and addresses say: the noun, the verb, and which field identifies a row."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Literal

import msgspec

from agentmill.synthesis.environments.toolbox.database import FUNCTIONS
from agentmill.synthesis.environments.toolbox.lint import is_name
from agentmill.synthesis.environments.toolbox.structure import SQL_WORDS
from agentmill.synthesis.environments.toolbox.toolbox import BUILT_IN
from agentmill.synthesis.generators.data_files import convert, read_table
from agentmill.synthesis.generators.pddl_procedural.themes import plural as regular_plural

Effect = Literal["read", "create", "change", "remove", "step"]
"""What a tool does; a ``step`` sets a status."""

MOST_LETTERS = 50
_RESERVED = "add alter commit constraint create drop exists foreign if isnull notnull primary transaction unique"
"""More words that SQLite takes for no name."""

_CAPITALS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_IDENTIFIER = re.compile(r"(?:(\w+)_)?(?:id|uuid|guid)")


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    verbs: dict[Effect, str]
    prepositions: str
    fillers: str
    prefixes: str
    irregular: dict[str, str]
    singular: str
    persons: str
    names: tuple[str, ...]
    things: tuple[str, ...]


class Words(msgspec.Struct, frozen=True):
    """The words of ``data/words.yaml``; ``verbs`` are their effects."""

    verbs: dict[str, Effect]
    prepositions: frozenset[str]
    fillers: frozenset[str]
    prefixes: frozenset[str]
    irregular: dict[str, str]
    singular: frozenset[str]
    persons: frozenset[str]
    names: tuple[str, ...]
    things: tuple[str, ...]


@cache
def words() -> Words:
    """The word lists. Raises ``UserError`` for a file that is malformed."""
    file = convert(read_table(__package__, "words.yaml"), _File, f"{__package__}/data/words.yaml")
    return Words(
        verbs={verb: effect for effect, verbs in file.verbs.items() for verb in verbs.split()},
        prepositions=frozenset(file.prepositions.split()),
        fillers=frozenset(file.fillers.split()),
        prefixes=frozenset(file.prefixes.split()),
        irregular=file.irregular,
        singular=frozenset(file.singular.split()),
        persons=frozenset(file.persons.split()),
        names=file.names,
        things=file.things,
    )


def snake(name: str) -> str:
    """A name in small letters, digits and single ``_``; empty if there is no Latin letter or digit in it."""
    plain = unicodedata.normalize("NFKD", _CAPITALS.sub("_", name)).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "_", plain.lower()).strip("_")[:MOST_LETTERS].rstrip("_")


def safe(name: str) -> str:
    """``snake``, as a toolbox takes it: no word of SQL, none of its own tools, no digit at the beginning."""
    found = snake(name) or "x"
    found = f"x_{found}" if found[0].isdigit() else found
    taken = not is_name(found) or found in {*SQL_WORDS, *FUNCTIONS, *_RESERVED.split()} or found in BUILT_IN
    return f"{found}_" if taken else found


def singular(noun: str) -> str:
    """A noun of several words joined by ``_``, its last word in the singular."""
    before, _, word = noun.rpartition("_")
    return f"{before}_{_singular(word)}" if before else _singular(word)


def _singular(word: str) -> str:
    if word in words().irregular:
        return words().irregular[word]
    if word in words().singular or not word.endswith("s") or word.endswith("ss") or len(word) < 4:
        return word
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    long = word.endswith(("sses", "xes", "ches", "shes")) or (word.endswith("uses") and not word.endswith("ouses"))
    return word[:-2] if long else word[:-1]


def plural(noun: str) -> str:
    """A noun of several words joined by ``_``, its last word in the plural."""
    before, _, word = noun.rpartition("_")
    regular = regular_plural(word) if len(word) > 1 else f"{word}s"
    found = next((each for each, one in words().irregular.items() if one == word), regular)
    return f"{before}_{found}" if before else found


def is_plural(noun: str) -> bool:
    """Whether a noun is written in the plural."""
    return singular(noun) != noun


def identified(name: str, noun: str) -> str | None:
    """What a field called ``name`` identifies: ``guest`` for ``guestId``, ``noun`` for ``id``; else ``None``."""
    found = _IDENTIFIER.fullmatch(snake(name))
    if found is None:
        return None
    return singular(found[1]) if found[1] else noun


def is_person(noun: str) -> bool:
    """Whether a row of that noun is called as people are."""
    return not words().persons.isdisjoint(noun.split("_"))
