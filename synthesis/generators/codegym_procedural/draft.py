"""Parts of coding problems over a row of hidden things, and how they become one problem.

A problem is a way to get at the things (``Access``), a way to see what one of them holds (``Reading``) and a question
about all (``Question``). Each part brings its tools, its share of the input, and what the oracle does with it; the
reference solution is the question's own and does not look at how things were reached. In all texts and names the words
``NOUN`` and ``NOUNS`` stand for what the theme says.
"""

from __future__ import annotations

import textwrap

import msgspec

from agentmill.schemas.records.record import JsonObject
from agentmill.synthesis.environments.codegym.problem import Problem, ProblemTool
from agentmill.synthesis.generators.codegym_procedural.themes import Theme

INTEGER: JsonObject = {"type": "integer"}
STRING: JsonObject = {"type": "string"}
STRINGS: JsonObject = {"type": "array", "items": STRING}
INTEGERS: JsonObject = {"type": "array", "items": INTEGER}


Made = tuple[Problem, list[str]]
"""A problem, and the names of its parts."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """``draw`` are statements over ``state``, ``items`` and ``chance``, ``given`` what of the input is told, in
    the words of ``told``."""

    name: str
    about: str = ""
    tools: tuple[ProblemTool, ...] = ()
    draw: str = ""
    given: dict[str, str] = {}
    told: str = ""
    code: str = ""
    oracle: str = ""


class Access(Part, frozen=True, kw_only=True):
    """``where`` are the parameters that say which thing is meant. ``code`` defines ``_place(state, ...)``, its number,
    and ``oracle`` the generator ``_places(call, given)`` of arguments that lead to each thing in turn."""

    where: dict[str, JsonObject] = {}
    ordered: bool = True


class Reading(Part, frozen=True, kw_only=True):
    """``oracle`` defines ``_read(call, given, where)``, what a thing holds. ``fits`` are the kinds of things.

    In ``code``, ``WHERE`` stands for the parameters of the access behind ``state``, ``PASSED`` for their names.
    """

    fits: tuple[str, ...] = ("numbers", "records", "texts")
    ordered: bool = False
    tools_where: tuple[tuple[str, str, dict[str, JsonObject]], ...] = ()
    """Tools that take what the access takes, as (name, description, further parameters)."""
    fold: str = ""
    """What the oracle makes of all ``items`` that were read."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """``items`` is an expression over ``chance`` and ``size``; ``solve`` and ``check`` are two ways to the answer, as
    bodies of functions of ``items`` and of the names of ``extra`` (drawn after the items, and told)."""

    name: str
    ask: str
    items: str
    solve: str
    check: str
    kind: str = "numbers"
    fields: tuple[str, ...] = ()
    extra: dict[str, str] = {}
    answer: JsonObject = msgspec.field(default_factory=lambda: dict(INTEGER))
    ordered: bool = False


def compose(access: Access, reading: Reading, question: Question, theme: Theme) -> Problem:
    """The problem that three parts make, told in a theme."""
    asked = {name: f'instance["{name}"]' for name in question.extra}
    given = ", ".join(f'"{name}": {value}' for name, value in {**access.given, **reading.given, **asked}.items())
    extra = "\n".join(f'{name} = state["{name}"] = {value}' for name, value in question.extra.items())
    draw = "\n".join(["items = " + question.items, 'state = {"items": items}', access.draw, reading.draw, extra])
    names = ", ".join(["items", *question.extra])
    looked = "\n".join(f'{name} = instance["{name}"]' for name in ["items", *question.extra])
    told = ", ".join(["items", *(f'given["{name}"]' for name in question.extra)])
    parameters = "".join(f", {name}" for name in access.where)
    code = f"{access.code}\n{reading.code}".replace(", WHERE", parameters).replace(", PASSED", parameters)
    oracle = (
        f"{access.oracle}\n{reading.oracle}\ndef _answer({names}):\n{indented(question.check)}\n"
        "def oracle(call, given):\n"
        "    items = [_read(call, given, where) for where in _places(call, given)]\n"
        f"    {reading.fold or 'pass'}\n"
        f"    return _answer({told})\n"
    )
    reading_tools = tuple(
        ProblemTool(name, description, {**access.where, **further})
        for name, description, further in reading.tools_where
    )
    fields = f" Each has {', '.join(question.fields)}, told in this order." if question.fields else ""
    problem = Problem(
        about=f"{theme.about} {access.about} {reading.about}{fields}".strip(),
        question=" ".join(filter(None, [access.told, reading.told, question.ask])),
        tools=(*access.tools, *reading_tools, *reading.tools),
        instances=f"def draw(chance, size):\n{indented(draw)}\n    return state\n"
        f"def given(instance):\n    return {{{given}}}\n",
        code=code.strip() + "\n",
        solution=f"def solve(instance):\n{indented(looked)}\n{indented(question.solve)}\n",
        oracle=oracle.strip() + "\n",
        answer=question.answer,
    )
    return told_in(problem, theme)


def told_in(problem: Problem, theme: Theme) -> Problem:
    """A problem in the words of a theme."""
    text = msgspec.json.encode(problem).decode()
    for word, said in (("NOUNS", theme.nouns), ("NOUN", theme.noun)):
        text = text.replace(word, said)
    return msgspec.json.decode(text, type=Problem)


def indented(code: str) -> str:
    """Code as it stands in a function."""
    return textwrap.indent(code.strip("\n"), "    ")
