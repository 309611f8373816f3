"""Themes: the vocabularies in which invented environments are written, chosen by the words of an inspiration."""

from __future__ import annotations

from functools import cache

import msgspec

from agentmill.synthesis.generators.data_files import convert, read_named, read_table

PACKAGE = __package__


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
        listed = self.names.get(role) or proper_nouns().get(role)
        return listed or tuple(f"{self.kind(role)}{number}" for number in range(1, 7))


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A theme as the data has it: lists as words with spaces."""

    name: str
    keywords: str
    inside: str
    states: str
    verbs: str
    kinds: dict[str, str]
    names: dict[str, str]


@cache
def themes() -> tuple[Theme, ...]:
    """The themes that environments are written in."""
    return tuple(
        Theme(
            name=entry.name,
            keywords=tuple(entry.keywords.split()),
            inside=entry.inside,
            kinds=entry.kinds,
            names={role: tuple(words.split()) for role, words in entry.names.items()},
            chain=Chain(tuple(entry.states.split()), tuple(entry.verbs.split())),
        )
        for entry in read_named(PACKAGE, "themes.yaml", _Entry)
    )


@cache
def proper_nouns() -> dict[str, tuple[str, ...]]:
    """Names of objects that are the same in every theme, by role; they take no article."""
    listed = convert(read_table(PACKAGE, "proper_nouns.yaml"), dict[str, str], f"{PACKAGE}/data/proper_nouns.yaml")
    return {role: tuple(words.split()) for role, words in listed.items()}


def plural(noun: str) -> str:
    """The regular English plural."""
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"
