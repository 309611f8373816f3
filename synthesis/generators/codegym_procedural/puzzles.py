"""Problems of their own kinds: networks, mazes, searches, rows to be put in order, machines, locks, scales, orders."""

from __future__ import annotations

import random
from functools import cache

import msgspec

from agentmill.schemas.records.record import JsonObject
from agentmill.synthesis.environments.codegym.problem import Problem, ProblemTool
from agentmill.synthesis.generators.codegym_procedural.composition import (
    INTEGER,
    PACKAGE,
    Theme,
    cells,
    drawn,
    from_instance,
    looked_up,
    pairs,
    parts,
    problem_of,
)
from agentmill.synthesis.generators.data_files import convert, fill, read_table

Made = tuple[Problem, list[str]]
"""A problem, and the names of its parts."""


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A parameter of a problem: a wording and an expression."""

    text: str
    code: str


class View(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the ways of a network are seen. ``see`` are statements that fill the list ``ways`` from ``names``."""

    tools: tuple[ProblemTool, ...]
    code: str
    see: str
    draw: str = ""


class NetworkQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question about ``names`` and ``ways``; ``solve`` and ``check`` are two ways to its answer."""

    ask: str
    solve: str
    check: str
    extra: dict[str, str] = {}
    answer: JsonObject = msgspec.field(default_factory=lambda: dict(INTEGER))


class Sense(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a maze is felt; ``sensing`` defines ``sides()`` and ``go(way)`` for the oracle."""

    tools: tuple[ProblemTool, ...]
    code: str
    sensing: str


class Quest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is wanted in a maze. ``visit`` defines ``visit()``, what the oracle does in every cell, true where it is
    done; ``returns`` is what it answers in the end, if anything."""

    ask: str
    tool: ProblemTool
    code: str
    solution: str
    visit: str
    returns: str = ""


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row with an order that a search can use. ``solve`` looks at all ``items``; ``find`` asks ``at_least`` or
    ``fuller``, whichever ``probe`` names, which say what one or two things hold."""

    about: str
    ask: str
    probe: str
    items: str
    solve: str
    find: str
    extra: dict[str, str] = {}


class Probe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool that looks at a row. ``asking`` defines what a shape's ``find`` calls, ``seen`` the list ``row``."""

    tool: ProblemTool
    code: str
    asking: str
    seen: str = ""


class Move(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A way to change a row, and statements that bring the list ``row`` to ``goal`` by calls."""

    tool: ProblemTool
    code: str
    plan: str


@cache
def _variants(problem: str) -> dict[str, Variant]:
    return convert(read_table(PACKAGE, "variants.yaml")[problem], dict[str, Variant], f"{PACKAGE}/data/variants.yaml")


@cache
def _views() -> dict[str, View]:
    check = {"CHECK": cells("shared/networks")["check"]}
    views: dict[str, View] = parts("networks/views", View, ("draw", "see"))
    return {name: msgspec.structs.replace(view, code=fill(view.code, check)) for name, view in views.items()}


@cache
def _network_questions() -> dict[str, NetworkQuestion]:
    shared = cells("shared/networks")
    neighbours = {"BESIDE": shared["beside"]}
    common = {
        **neighbours,
        "STEPS": fill(shared["steps"], neighbours),
        "DIJKSTRA": fill(shared["dijkstra"], neighbours),
        "HOPS": fill(shared["floyd"], {"LENGTH": "1"}),
        "LENGTHS": fill(shared["floyd"], {"LENGTH": "length"}),
    }
    questions: dict[str, NetworkQuestion] = parts("networks/questions", NetworkQuestion, ("solve", "check"))
    return {
        name: msgspec.structs.replace(each, solve=fill(each.solve, common), check=fill(each.check, common))
        for name, each in questions.items()
    }


@cache
def _senses() -> dict[str, Sense]:
    return parts("mazes/senses", Sense)


@cache
def _quests() -> dict[str, Quest]:
    return parts("mazes/quests", Quest)


@cache
def _shapes() -> dict[str, Shape]:
    return parts("searches/shapes", Shape, ("solve", "find"))


@cache
def _probes() -> dict[str, Probe]:
    return parts("searches/probes", Probe, ("seen",))


@cache
def _moves() -> dict[str, Move]:
    return parts("searches/moves", Move, ("plan",))


def network(theme: Theme, chance: random.Random) -> Made:
    """A question about places and ways between them."""
    view_name, name = chance.choice(list(_views())), chance.choice(list(_network_questions()))
    view, question = _views()[view_name], _network_questions()[name]
    values = {
        "ASK": question.ask,
        "TOOLS": view.tools,
        "ANSWER": question.answer,
        "DRAW": view.draw,
        "EXTRA": drawn(question.extra),
        "GIVEN": pairs(from_instance(["names", *question.extra])),
        "VIEW": view.code,
        "LOOKED": looked_up("instance", ["names", "ways", *question.extra]),
        "SOLVE": question.solve,
        "KNOWN": looked_up("given", ["names", *question.extra]),
        "SEE": view.see,
        "CHECK": question.check,
    }
    return problem_of("network", values, theme), ["network", view_name, name]


def maze(theme: Theme, chance: random.Random) -> Made:
    """A maze that is seen from within only."""
    sense_name, quest_name = chance.choice(list(_senses())), chance.choice(list(_quests()))
    sense, quest = _senses()[sense_name], _quests()[quest_name]
    values = {
        "ASK": quest.ask,
        "TOOLS": [*sense.tools, quest.tool],
        "ANSWER": INTEGER if quest.returns else None,
        "SENSE": sense.code,
        "QUEST": quest.code,
        "SOLUTION": quest.solution,
        "SENSING": sense.sensing,
        "VISIT": quest.visit,
        "ANSWERED": quest.returns and f"return {quest.returns}",
    }
    return problem_of("maze", values, theme), ["maze", sense_name, quest_name]


def search(theme: Theme, chance: random.Random) -> Made:
    """Something to be found in an ordered row, with so few calls that not all of it can be seen."""
    name = chance.choice(list(_shapes()))
    shape = _shapes()[name]
    probe_name = chance.choice(["weighed", shape.probe])
    probe = _probes()[probe_name]
    values = {
        "ABOUT": shape.about,
        "ASK": shape.ask,
        "TOOL": probe.tool,
        "METERED": probe.tool.name,
        "ITEMS": shape.items,
        "EXTRA": "\n".join(f'state["{key}"] = {value}' for key, value in shape.extra.items()),
        "GIVEN": pairs({"count": 'len(instance["items"])', **from_instance(shape.extra)}),
        "CHECK": cells("shared/rows")["check"],
        "PROBE": probe.code,
        "LOOKED": looked_up("instance", ["items", *shape.extra]),
        "SOLVE": shape.solve,
        "KNOWN": looked_up("given", shape.extra),
        "ASKING": probe.asking,
        "FIND": shape.find,
    }
    return problem_of("search", values, theme), ["search", probe_name, name]


def arrangement(theme: Theme, chance: random.Random) -> Made:
    """A row to be put in an order; what counts is how it is in the end."""
    seen = [name for name, probe in _probes().items() if probe.seen]
    goals = _variants("arrangement")
    move_name, goal_name, probe_name = chance.choice(list(_moves())), chance.choice(list(goals)), chance.choice(seen)
    move, goal, probe = _moves()[move_name], goals[goal_name], _probes()[probe_name]
    values = {
        "ORDER": goal.text,
        "TOOL": probe.tool,
        "MOVING": move.tool,
        "GOAL": goal.code,
        "CHECK": cells("shared/rows")["check"],
        "PROBE": probe.code,
        "MOVE": move.code,
        "SEEN": probe.seen,
        "PLAN": move.plan,
    }
    return problem_of("arrangement", values, theme), ["arrangement", move_name, probe_name, goal_name]


def counter(theme: Theme, chance: random.Random) -> Made:
    """A number that is hidden at first, and buttons that change it; a goal is to be reached."""
    operations = _variants("counter")
    names = sorted(chance.sample(list(operations), 3))
    operation = cells("shared/machine")["operation"]
    values = {
        "TOOLS": [ProblemTool("show", "The number."), *(ProblemTool(name, operations[name].text) for name in names)],
        "AFTER": "{" + ", ".join(f"'{name}': {operations[name].code}" for name in names) + "}",
        "OPERATIONS": "".join(fill(operation, {"NAME": name, "CHANGED": operations[name].code}) for name in names),
    }
    return problem_of("counter", values, theme), ["counter", *names]


def lock(theme: Theme, chance: random.Random) -> Made:
    """A hidden word that is narrowed down by guesses."""
    name = chance.choice(list(_variants("lock")))
    letters = chance.choice((3, 4))
    feedback = _variants("lock")[name]
    values = {"LETTERS": letters, "TOLD": feedback.text, "FEEDBACK": feedback.code}
    return problem_of("lock", values, theme), ["lock", name, str(letters)]


def scales(theme: Theme, chance: random.Random) -> Made:
    """One thing that differs from the others, to be found with a pair of scales."""
    del chance
    return problem_of("scales", {}, theme), ["scales"]


def orders(theme: Theme, chance: random.Random) -> Made:
    """Orders to be served from a stock by a rule; what counts is what was done with each."""
    name = chance.choice(list(_variants("orders")))
    shortage = chance.choice(list(_variants("shortage")))
    ranking, taken = _variants("orders")[name], _variants("shortage")[shortage]
    values = {"RULE": taken.text, "ORDER": ranking.text, "RANKED": ranking.code, "TAKEN": taken.code}
    return problem_of("orders", values, theme), ["orders", name, shortage]
