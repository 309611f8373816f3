"""Themes: the vocabulary in which an invented world is told, chosen by the words of an inspiration."""

from __future__ import annotations

import msgspec

PROPER_NOUNS: dict[str, tuple[str, ...]] = {
    "worker": ("anna", "ben", "carl", "dora", "emil", "fay"),
    "color": ("red", "blue", "green", "yellow", "white"),
    "level": ("empty", "low", "half", "high", "full"),
    "door": ("door1", "door2", "door3", "door4"),
    "key": ("key1", "key2", "key3", "key4"),
    "pocket": ("pocket1", "pocket2", "pocket3"),
    "plug": ("plug1", "plug2", "plug3"),
    "tank": ("tank1", "tank2", "tank3", "tank4"),
}
"""Names of objects that are the same in every theme; they take no article."""


class Chain(msgspec.Struct, frozen=True):
    """How things are worked on: ``states[k]`` becomes ``states[k + 1]`` by ``verbs[k]``."""

    states: tuple[str, ...]
    verbs: tuple[str, ...]


class Theme(msgspec.Struct, frozen=True):
    """A vocabulary. ``keywords`` are word stems; ``kinds`` names a role's class, ``names`` its objects, in order.

    ``inside`` is the preposition of its places ("in the kitchen", "at the dock").
    """

    name: str
    keywords: tuple[str, ...]
    inside: str
    kinds: dict[str, str]
    names: dict[str, tuple[str, ...]]
    chain: Chain

    def kind(self, role: str) -> str:
        """The class noun of a role; the role itself where the theme has no word of its own."""
        return self.kinds.get(role, role)

    def objects(self, role: str) -> tuple[str, ...]:
        """The names of the objects of a role; numbered class nouns where the theme lists none."""
        listed = self.names.get(role) or PROPER_NOUNS.get(role)
        return listed or tuple(f"{self.kind(role)}{number}" for number in range(1, 7))


def plural(noun: str) -> str:
    """The regular English plural."""
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"
