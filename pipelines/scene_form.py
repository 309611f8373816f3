"""The state that a task begins in, in a form that a consistent renaming and another order do not change.

A scene is what an environment shows before the first action, or the initial state of a task. Each of its statements is
a fact about the names in it. A name that an instruction has is known by its place there. Every other one is known
by the facts it is in, and these by the other names in them: colour refinement, or the 1-dimensional Weisfeiler-Leman
algorithm (Weisfeiler and Leman 1968), with ``ROUNDS`` rounds.

Not every name is an argument of an action. A word is a name, too, if the rest of its statement is that of a statement
with a known name in its place: ``the salt is on the table`` makes ``acid`` one in ``the acid is on the table``.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from agentmill.pipelines.canonical_form import NAME, NAME_WORDS, hash_of, pieces_of

ROUNDS = 2
"""Rounds of refinement: how far from a name a fact may be that distinguishes it from others."""

MOST_FACTS = 200
"""Statements of a scene that are compared; what follows is not the state of a task."""

_STATEMENT = re.compile(r"[;\n()]|[.!?](?=\s|$)")

Fact = list[tuple[str, str]]
"""The words of a statement, each with what it replaces."""


class SceneForm(NamedTuple):
    """The facts of a scene as hashes, equal ones distinguished by their number, and how many names are in them."""

    facts: list[int]
    names: int


def scene_form(
    texts: Iterable[str], names: frozenset[tuple[str, ...]], asked: Mapping[str, int], keep_numbers: bool
) -> SceneForm:
    """The form of a scene. ``names`` are those of the actions, and ``asked`` the places of names in the instruction."""
    statements = [each for text in texts for each in _STATEMENT.split(text) if each.strip()]
    facts = [pieces_of(each, names, keep_numbers) for each in statements[:MOST_FACTS]]
    facts = _more_names([each for each in facts if each])
    colours: dict[str, int] = defaultdict(int, {name: place + 1 for name, place in asked.items()})
    for _ in range(ROUNDS):
        seen: dict[str, list[int]] = defaultdict(list)
        for fact in facts:
            form = hash_of(_coloured(fact, colours))
            for place, (word, name) in enumerate(fact):
                if word == NAME and name not in asked:
                    seen[name].append(hash_of((form, place)))
        colours.update({name: hash_of((colours[name], sorted(hashes))) for name, hashes in seen.items()})
    counts = Counter(hash_of(_coloured(fact, colours)) for fact in facts)
    numbered = [hash_of((form, number)) for form, count in counts.items() for number in range(count)]
    return SceneForm(sorted(numbered), sum(word == NAME for fact in facts for word, _ in fact))


def _coloured(fact: Fact, colours: Mapping[str, int]) -> list[str | int]:
    return [colours[name] if word == NAME else word for word, name in fact]


def _more_names(facts: Sequence[Fact]) -> list[Fact]:
    """Facts in which the words are names that have the place of one in a statement that is otherwise equal."""
    found, known, size = list(facts), set[str](), -1
    while len(known) > size:
        size = len(known)
        forms = {tuple(word for word, _ in fact) for fact in found}
        forms = {form for form in forms if NAME in form and set(form) != {NAME}}
        masks: dict[int, set[tuple[bool, ...]]] = defaultdict(set)
        for form in forms:
            masks[len(form)].add(tuple(word == NAME for word in form))
        for fact in found:
            for mask in masks[len(fact)]:
                pairs = list(zip(fact, mask, strict=True))
                if tuple(NAME if hide else word for (word, _), hide in pairs) in forms:
                    known |= {name for (word, name), hide in pairs if hide and word != NAME}
        found = [[(NAME if word in known else word, name) for word, name in fact] for fact in found]
    return found


def statements_of(value: Any, path: str = "") -> Iterator[str]:
    """A JSON value as statements: one for each innermost list or object, with its values as quoted names."""
    if isinstance(value, dict):
        flat = {key: each for key, each in value.items() if not isinstance(each, dict | list) and not _is_text(each)}
        if flat:
            yield " ".join([path, *(f"{key} {_quoted(flat[key])}" for key in sorted(flat))]).strip()
        for key in sorted(value.keys() - flat.keys()):
            yield from statements_of(value[key], f"{path} {key}".strip())
    elif isinstance(value, list):
        if value and not any(isinstance(each, dict | list) or _is_text(each) for each in value):
            yield " ".join([path, *map(_quoted, value)]).strip()
        else:
            for each in value:
                yield from statements_of(each, path)
    else:
        yield f"{path}\n{value}" if _is_text(value) else f"{path} {_quoted(value)}".strip()


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value.split()) > NAME_WORDS


def _quoted(value: Any) -> str:
    return '"' + re.sub(r'["\n;()]|[.!?](?=\s|$)', " ", value) + '"' if isinstance(value, str) else str(value)
