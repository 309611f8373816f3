"""Parts of coding problems over a row of hidden things, and how they become one problem.

A problem is a way to get at the things (``Access``), a way to see what one of them holds (``Reading``) and a question
about all (``Question``). Each part brings its tools, its share of the input, and what the oracle does with it; the
reference solution is the question's own and does not look at how things were reached. The parts are code templates
under ``data``; in all texts and names the words ``NOUN`` and ``NOUNS`` stand for what the theme says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import msgspec

from agentmill.schemas.records.record import JsonObject
from agentmill.synthesis.environments.codegym.problem import Problem, ProblemTool
from agentmill.synthesis.generators.data_files import body, convert, fill_all, read_folder, read_named, read_template

PACKAGE = __package__
INTEGER: JsonObject = {"type": "integer"}
COLLECTIONS = ("numbers", "rows", "records", "texts")
"""Folders of questions, by what the things hold; of ``rows`` the order matters."""


class Theme(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``noun`` and ``nouns`` name a thing and several, ``place`` where the agent is; ``keywords`` are word stems."""

    name: str
    keywords: str
    noun: str
    nouns: str
    place: str


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``draw`` are statements over ``state``, ``items`` and ``chance``; ``given`` maps what is shown of the input, in
    the words of ``told``, to expressions over ``instance``."""

    name: str
    about: str = ""
    tools: tuple[ProblemTool, ...] = ()
    draw: str = ""
    given: dict[str, str] = {}
    told: str = ""
    code: str
    oracle: str


class Access(Part, frozen=True, kw_only=True):
    """``where`` are the parameters that say which thing is meant. ``code`` defines ``_place(state, ...)``, its number,
    and ``oracle`` the generator ``_places(call, given)`` of arguments that lead to each thing in turn.

    Where things are ``named``, ``shared/names.py`` comes first. ``ordered``: they are reached in their order.
    """

    where: dict[str, JsonObject] = {}
    named: bool = False
    ordered: bool = True


class Reading(Part, frozen=True, kw_only=True):
    """``oracle`` defines ``_read(call, given, where)``, what a thing holds. ``fits`` are collections of questions.

    In ``code``, ``WHERE`` stands for the parameters of the access behind ``state``, ``PASSED`` for their names.
    ``tools_where`` take what the access takes, before their own parameters. ``fold`` is what the oracle makes of all
    ``items`` that were read. ``ordered``: it works only where things are reached in their order.
    """

    fits: tuple[str, ...] = COLLECTIONS
    ordered: bool = False
    tools_where: tuple[ProblemTool, ...] = ()
    fold: str = ""


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``items`` names a function of ``shared/items.py``; ``solve`` and ``check`` are two ways to the answer, as bodies
    of functions of ``items`` and of the names of ``extra`` (expressions, drawn after the items, and shown)."""

    name: str
    collection: str
    ask: str
    items: str
    solve: str
    check: str
    fields: tuple[str, ...] = ()
    extra: dict[str, str] = {}
    answer: JsonObject = msgspec.field(default_factory=lambda: dict(INTEGER))
    ordered: bool = False


class _Names(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What accesses to named things share."""

    where: dict[str, JsonObject]
    draw: str
    code: str


@cache
def themes() -> tuple[Theme, ...]:
    """What the things and places of problems are called."""
    return read_named(PACKAGE, "themes.yaml", Theme)


@cache
def accesses() -> tuple[Access, ...]:
    """Ways to get at hidden things one by one: by number, by name, along a chain, around a ring, off a pile …"""
    names = read_template(PACKAGE, "shared/names").as_type(_Names, ("draw",))
    found = []
    for name, template in read_folder(PACKAGE, "accesses").items():
        access = template.as_type(Access, ("draw",), name=name)
        draw = _set_apart(access.draw)
        if access.named:
            access = msgspec.structs.replace(access, where=names.where, code=f"{names.code}\n{access.code}")
            draw = f"{_set_apart(names.draw)}{draw}"
        found.append(msgspec.structs.replace(access, draw=draw))
    return tuple(found)


@cache
def readings() -> tuple[Reading, ...]:
    """Ways to see what a hidden thing holds: at a glance, field by field, in code, behind a lid, by bisection …"""
    found = [
        template.as_type(Reading, ("draw", "fold"), name=name)
        for name, template in read_folder(PACKAGE, "readings").items()
    ]
    return tuple(msgspec.structs.replace(reading, draw=_set_apart(reading.draw)) for reading in found)


@cache
def questions(collection: str) -> tuple[Question, ...]:
    """The questions of a collection, each with two ways to the answer."""
    return tuple(
        template.as_type(Question, ("solve", "check"), name=name, collection=collection)
        for name, template in read_folder(PACKAGE, f"questions/{collection}").items()
    )


def compose(access: Access, reading: Reading, question: Question, theme: Theme) -> Problem:
    """The problem that three parts make, in the words of a theme."""
    fields = f" Each has {', '.join(question.fields)}, told in this order." if question.fields else ""
    parameters = "".join(f", {name}" for name in access.where)
    reading_tools = (
        msgspec.structs.replace(tool, parameters={**access.where, **tool.parameters}) for tool in reading.tools_where
    )
    items = body(cells("shared/items")[question.items])
    values = {
        "ABOUT": f"{access.about} {reading.about}{fields}".rstrip(),
        "QUESTION": " ".join(filter(None, [access.told, reading.told, question.ask])),
        "TOOLS": [*access.tools, *reading_tools, *reading.tools],
        "ANSWER": question.answer,
        "ITEMS": f"items = {items.removeprefix('return ')}",
        "DRAWS": "\n".join([access.draw, reading.draw, drawn(question.extra)]),
        "GIVEN": pairs({**access.given, **reading.given, **from_instance(question.extra)}),
        "ACCESS": access.code,
        "READING": reading.code.replace(", WHERE", parameters).replace(", PASSED", parameters),
        "LOOKED": looked_up("instance", ["items", *question.extra]),
        "SOLVE": question.solve,
        "PLACES": access.oracle,
        "READ": reading.oracle,
        "NAMES": ", ".join(["items", *question.extra]),
        "CHECK": question.check,
        "FOLD": reading.fold or "pass",
        "TOLD": ", ".join(["items", *(f'given["{name}"]' for name in question.extra)]),
    }
    return problem_of("collection", values, theme)


def problem_of(name: str, values: Mapping[str, Any], theme: Theme) -> Problem:
    """The problem in the template ``problems/NAME``, its placeholders filled, in the words of a theme."""
    template = read_template(PACKAGE, f"problems/{name}")
    filled = fill_all({**template.head, **template.cells}, {"PLACE": theme.place, **values})
    text = msgspec.json.encode(convert(filled, Problem, template.origin)).decode()
    # The plural first, as it begins with the singular.
    for word, phrase in (("NOUNS", theme.nouns), ("NOUN", theme.noun)):
        text = text.replace(word, phrase)
    return msgspec.json.decode(text, type=Problem)


def drawn(extra: Mapping[str, str]) -> str:
    """Statements that draw what a question asks about."""
    return "\n".join(f'{name} = state["{name}"] = {value}' for name, value in extra.items())


def looked_up(source: str, names: Iterable[str]) -> str:
    """Statements that name what is in ``instance`` or ``given``."""
    return "\n".join(f'{name} = {source}["{name}"]' for name in names)


def from_instance(names: Iterable[str]) -> dict[str, str]:
    """Names with expressions for what an instance has under them."""
    return {name: f'instance["{name}"]' for name in names}


def pairs(expressions: Mapping[str, str]) -> str:
    """The inside of a dict display."""
    return ", ".join(f'"{name}": {value}' for name, value in expressions.items())


def cells(path: str) -> dict[str, str]:
    """The cells of a template that has nothing but code."""
    return read_template(PACKAGE, path).cells


def parts(folder: str, part_type: type[Any], bodies: tuple[str, ...] = ()) -> dict[str, Any]:
    """The templates of a folder as structs, by name."""
    return {name: each.as_type(part_type, bodies) for name, each in read_folder(PACKAGE, folder).items()}


def _set_apart(statements: str) -> str:
    """Statements of several lines between empty lines, one as it is."""
    statements = statements.rstrip("\n")
    return f"\n{statements}\n" if "\n" in statements else statements
