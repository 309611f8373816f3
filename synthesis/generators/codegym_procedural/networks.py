"""Networks and trees: places, ways between them, and questions about how they hang together."""

from __future__ import annotations

import random
from typing import NamedTuple

from agentmill.schemas.records.record import JsonObject
from agentmill.synthesis.environments.codegym.problem import Problem, ProblemTool
from agentmill.synthesis.generators.codegym_procedural.draft import INTEGER, STRING, STRINGS, Made, indented, told_in
from agentmill.synthesis.generators.codegym_procedural.themes import Theme

_NAME = {"name": STRING}
_TWO = {"first": STRING, "second": STRING}

_DRAW = """
    n = min(size, 7) + 1
    names = [f"{letter}{chance.randint(1, 9)}" for letter in chance.sample("ABCDEFGHKLMN", n)]
    pairs = [(one, two) for two in range(n) for one in range(two)]
    chosen = sorted(chance.sample(pairs, min(len(pairs), chance.randint(n // 2, n + 1))))
    state = {"names": names, "ways": [[names[one], names[two], chance.randint(1, 9)] for one, two in chosen]}
"""
_FIND = """
def _check(state, *names):
    for name in names:
        if name not in state["names"]:
            raise Refused(f"There is no stop {name}.")
"""


class View(NamedTuple):
    """How ways are seen. ``see`` are statements that fill the list ``ways`` from ``names``, with their lengths."""

    tools: tuple[ProblemTool, ...]
    code: str
    see: str
    about: str = ""
    draw: str = ""


VIEWS = {
    "neighbours": View(
        (ProblemTool("ways_from", "The ways from a stop: where each leads, and its length.", _NAME),),
        """
def ways_from(state, name):
    _check(state, name)
    return [[two if one == name else one, length] for one, two, length in state["ways"] if name in (one, two)]
""",
        'for name in names:\n    ways += [[name, other, length] for other, length in call("ways_from", name=name) '
        "if name < other]\n",
    ),
    "pairs": View(
        (ProblemTool("way_between", "The length of the way between two stops; null if there is none.", _TWO),),
        """
def way_between(state, first, second):
    _check(state, first, second)
    return next((length for *ends, length in state["ways"] if {first, second} == set(ends)), None)
""",
        "for place, first in enumerate(names):\n    for second in names[:place]:\n"
        '        length = call("way_between", first=first, second=second)\n'
        "        ways += [[first, second, length]] if length is not None else []\n",
    ),
    "register": View(
        (
            ProblemTool("count_ways", "How many ways there are."),
            ProblemTool("way", "A way, numbered from 0: both ends.", {"number": INTEGER}),
            ProblemTool("length_of", "The length of a way.", {"number": INTEGER}),
        ),
        """
def count_ways(state):
    return len(state["ways"])
def way(state, number):
    if not 0 <= number < len(state["ways"]):
        raise Refused(f"There is no way {number}.")
    return state["ways"][number][:2]
def length_of(state, number):
    way(state, number)
    return state["ways"][number][2]
""",
        'for number in range(call("count_ways")):\n'
        '    ways.append([*call("way", number=number), call("length_of", number=number)])\n',
    ),
    "degrees": View(
        (
            ProblemTool("degree", "How many ways a stop has.", _NAME),
            ProblemTool(
                "follow", "Where a way of a stop leads, numbered from 0, and its length.", {**_NAME, "number": INTEGER}
            ),
        ),
        """
def _ways(state, name):
    _check(state, name)
    return [[two if one == name else one, length] for one, two, length in state["ways"] if name in (one, two)]
def degree(state, name):
    return len(_ways(state, name))
def follow(state, name, number):
    if not 0 <= number < degree(state, name):
        raise Refused(f"{name} has no way {number}.")
    return _ways(state, name)[number]
""",
        'for name in names:\n    for number in range(call("degree", name=name)):\n'
        '        other, length = call("follow", name=name, number=number)\n'
        "        ways += [[name, other, length]] if name < other else []\n",
    ),
    "keys": View(
        (
            ProblemTool("visit", "Goes to a stop, from anywhere.", _NAME),
            ProblemTool("look_around", "The stops that a way leads to from here."),
            ProblemTool("measure", "The length of the way from here to a stop next to it.", _NAME),
        ),
        """
def visit(state, name):
    _check(state, name)
    state["at"] = name
    return f"you are at {name}"
def _ways(state):
    if state["at"] is None:
        raise Refused("You are nowhere yet. Visit a stop.")
    here = state["at"]
    return {(two if one == here else one): length for one, two, length in state["ways"] if here in (one, two)}
def look_around(state):
    return sorted(_ways(state))
def measure(state, name):
    if name not in _ways(state):
        raise Refused(f"No way leads from here to {name}.")
    return _ways(state)[name]
""",
        'for name in names:\n    call("visit", name=name)\n    for other in call("look_around"):\n'
        '        if name < other:\n            ways.append([name, other, call("measure", name=other)])\n',
        draw='    state["at"] = None\n',
    ),
}


class Asked(NamedTuple):
    """A question about ``names`` and ``ways``; ``solve`` and ``check`` are two ways to its answer."""

    ask: str
    solve: str
    check: str
    extra: dict[str, str] = {}
    answer: JsonObject = INTEGER


_BESIDE = """
beside = {name: {} for name in names}
for one, two, length in ways:
    beside[one][two] = beside[two][one] = length
"""
_STEPS = (
    _BESIDE
    + """
def steps(start):
    found, ring = {start: 0}, [start]
    while ring:
        ring = sorted({other for name in ring for other in beside[name]} - set(found))
        found.update({name: max(found.values()) + 1 for name in ring})
    return found
"""
)
_FLOYD = """
far = {(one, two): 0 if one == two else 999 for one in names for two in names}
for one, two, length in ways:
    far[one, two] = far[two, one] = LENGTH
for via in names:
    for one in names:
        for two in names:
            far[one, two] = min(far[one, two], far[one, via] + far[via, two])
"""
_HOPS, _LENGTHS = _FLOYD.replace("LENGTH", "1"), _FLOYD.replace("LENGTH", "length")
_DIJKSTRA = (
    _BESIDE
    + """
def lengths(start):
    done, open_ = {}, {start: 0}
    while open_:
        name = min(open_, key=lambda each: (open_[each], each))
        done[name] = open_.pop(name)
        for other, length in beside[name].items():
            if other not in done:
                open_[other] = min(open_.get(other, 999), done[name] + length)
    return done
"""
)
_START = {"start": "chance.choice(names)"}
_ENDS = {**_START, "end": "chance.choice([name for name in names if name != start])"}
QUESTIONS = {
    "steps": Asked(
        "Over how many ways at least do you go from $start to $end? It is -1 if you cannot.",
        _STEPS + "return steps(start).get(end, -1)",
        _HOPS + "return far[start, end] if far[start, end] < 999 else -1",
        _ENDS,
    ),
    "length": Asked(
        "How long is the shortest way from $start to $end, over other stops if need be? It is -1 if there is none.",
        _DIJKSTRA + "return lengths(start).get(end, -1)",
        _LENGTHS + "return far[start, end] if far[start, end] < 999 else -1",
        _ENDS,
    ),
    "reach": Asked(
        "How many other stops can be reached from $start, over others if need be?",
        _STEPS + "return len(steps(start)) - 1",
        _HOPS + "return sum(far[start, name] < 999 for name in names) - 1",
        _START,
    ),
    "within": Asked(
        "How many other stops are no further than $budget from $start, by the lengths of the ways?",
        _DIJKSTRA + "return sum(length <= budget for length in lengths(start).values()) - 1",
        _LENGTHS + "return sum(far[start, name] <= budget for name in names if name != start)",
        {**_START, "budget": "chance.randint(5, 12)"},
    ),
    "farthest": Asked(
        "Of the stops that can be reached from $start, how far is the one that is farthest by lengths?",
        _DIJKSTRA + "return max(lengths(start).values())",
        _LENGTHS + "return max(far[start, name] for name in names if far[start, name] < 999)",
        _START,
    ),
    "largest_part": Asked(
        "How many stops does the largest part have, if those that can be reached from each other are one part?",
        _STEPS + "return max(len(steps(name)) for name in names)",
        _HOPS + "return max(sum(far[one, two] < 999 for two in names) for one in names)",
    ),
    "busiest": Asked(
        "Which stop has the most ways? Of several take the first in the alphabet.",
        _BESIDE + "return min(names, key=lambda name: (-len(beside[name]), name))",
        "ends = [name for way in ways for name in way[:2]]\nmost = max(ends.count(name) for name in names)\n"
        "return sorted(name for name in names if ends.count(name) == most)[0]",
        answer=STRING,
    ),
    "spanning": Asked(
        "Ways may be given up as long as all stops that can be reached from each other still can. How long are the "
        "ways that are kept together at least?",
        "part, total = {name: name for name in names}, 0\n"
        "for one, two, length in sorted(ways, key=lambda way: way[2]):\n"
        "    old, new = part[one], part[two]\n    if old != new:\n        total += length\n"
        "        part = {name: new if each == old else each for name, each in part.items()}\nreturn total",
        _BESIDE + "left, total = set(names), 0\nwhile left:\n    tree = {min(left)}\n    while True:\n"
        "        cuts = [(length, other) for name in tree "
        "for other, length in beside[name].items() if other not in tree]\n"
        "        if not cuts:\n            break\n        total += min(cuts)[0]\n        tree.add(min(cuts)[1])\n"
        "    left -= tree\nreturn total",
    ),
    "dead_ends": Asked(
        "List the stops with exactly one way, in alphabetical order.",
        _BESIDE + "return sorted(name for name in names if len(beside[name]) == 1)",
        "ends = [name for way in ways for name in way[:2]]\n"
        "return [name for name in sorted(names) if ends.count(name) == 1]",
        answer=STRINGS,
    ),
    "bridges": Asked(
        "How many ways are there without which some stop could no longer be reached from some other?",
        "def parts(kept):\n    part = {name: name for name in names}\n    for one, two, _ in kept:\n"
        "        old, new = part[one], part[two]\n        part = {name: new if each == old else each "
        "for name, each in part.items()}\n    return len(set(part.values()))\n"
        "return sum(parts([way for way in ways if way != gone]) > parts(ways) for gone in ways)",
        _BESIDE + "def reaches(one, two):\n    found, waiting = {one}, [one]\n    while waiting:\n"
        "        name = waiting.pop()\n        for other in beside[name]:\n"
        "            if other not in found and {name, other} != {one, two}:\n                found.add(other)\n"
        "                waiting.append(other)\n    return two in found\n"
        "return sum(not reaches(one, two) for one, two, _ in ways)",
    ),
}


def network(theme: Theme, chance: random.Random) -> Made:
    """A question about places and ways between them."""
    view_name, name = chance.choice(list(VIEWS)), chance.choice(list(QUESTIONS))
    view, asked = VIEWS[view_name], QUESTIONS[name]
    extra = "".join(f'    {key} = state["{key}"] = {value}\n' for key, value in asked.extra.items())
    given = ", ".join(f'"{key}": instance["{key}"]' for key in ("names", *asked.extra))
    looked = "\n".join(f'{key} = instance["{key}"]' for key in ("names", "ways", *asked.extra))
    known = "\n".join(f'{key} = given["{key}"]' for key in ("names", *asked.extra))
    problem = Problem(
        about=f"{theme.about} You plan ways between stops; they can be gone in both directions.",
        question=f"There are these stops: $names. {asked.ask}",
        tools=view.tools,
        instances=f"def draw(chance, size):{_DRAW}{view.draw}{extra}    return state\n"
        f"def given(instance):\n    return {{{given}}}\n",
        code=(_FIND if "_check" in view.code else "") + view.code,
        solution=f"def solve(instance):\n{indented(looked)}\n{indented(asked.solve)}\n",
        oracle=f"def oracle(call, given):\n{indented(known)}\n    ways = []\n{indented(view.see)}\n"
        f"{indented(asked.check)}\n",
        answer=asked.answer,
    )
    return told_in(problem, theme), ["network", view_name, name]
