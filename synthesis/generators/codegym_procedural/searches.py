"""Searches in rows that have an order, and rows to be put in order, by looking or by comparing."""

from __future__ import annotations

import random
import textwrap
from typing import NamedTuple

from agentmill.synthesis.environments.codegym.problem import Problem, ProblemTool
from agentmill.synthesis.generators.codegym_procedural.draft import INTEGER, Made, indented, told_in
from agentmill.synthesis.generators.codegym_procedural.themes import Theme


class Shape(NamedTuple):
    """A row with an order that a search can use; ``solve`` looks at all ``items``, ``find`` asks ``at_least`` or
    ``fuller``, which say what one or two things hold."""

    name: str
    about: str
    ask: str
    items: str
    solve: str
    find: str
    asks: str


_FIRST = """
low, high = 0, count
while low < high:
    middle = (low + high) // 2
    if at_least(middle, bound):
        high = middle
    else:
        low = middle + 1
return low
"""
_SLOPE = """
low, high = 0, count - 1
while low < high:
    middle = (low + high) // 2
    if fuller({first}, {second}):
        high = middle
    else:
        low = middle + 1
return low
"""
_RISING = "From NOUN to NOUN they hold more or the same."
SHAPES = (
    Shape(
        "first",
        _RISING,
        "Which is the number of the first NOUN that holds at least $bound? It is $count if none does.",
        "sorted(chance.randint(1, 60) for _ in range(3 * size))",
        "return sum(item < bound for item in items)",
        _FIRST,
        "at_least",
    ),
    Shape(
        "equal",
        _RISING,
        "How many of the $count NOUNS hold exactly $bound?",
        "sorted(chance.choices(range(1, 4 + size), k=3 * size))",
        "return items.count(bound)",
        "def first(bound):\n" + textwrap.indent(_FIRST.strip(), "    ") + "\nreturn first(bound + 1) - first(bound)",
        "at_least",
    ),
    Shape(
        "nearest",
        _RISING,
        "How many of the $count NOUNS hold at most 5 more or less than $bound?",
        "sorted(chance.randint(1, 60) for _ in range(3 * size))",
        "return sum(abs(item - bound) <= 5 for item in items)",
        "def first(bound):\n"
        + textwrap.indent(_FIRST.strip(), "    ")
        + "\nreturn first(bound + 6) - first(bound - 5)",
        "at_least",
    ),
    Shape(
        "peak",
        "Up to one NOUN each holds more than the one before, and from there on less. No two hold the same.",
        "Which is the number of the fullest of the $count NOUNS?",
        "(lambda row, top: sorted(row[:top]) + sorted(row[top:], reverse=True))"
        "(chance.sample(range(1, 99), 3 * size), chance.randint(1, 3 * size - 1))",
        "return items.index(max(items))",
        _SLOPE.format(first="middle", second="middle + 1"),
        "fuller",
    ),
    Shape(
        "valley",
        "Up to one NOUN each holds less than the one before, and from there on more. No two hold the same.",
        "Which is the number of the emptiest of the $count NOUNS?",
        "(lambda row, low: sorted(row[:low], reverse=True) + sorted(row[low:]))"
        "(chance.sample(range(1, 99), 3 * size), chance.randint(1, 3 * size - 1))",
        "return items.index(min(items))",
        _SLOPE.format(first="middle + 1", second="middle"),
        "fuller",
    ),
    Shape(
        "turned",
        "They were in rising order, no two hold the same, and then some from the front were put to the end.",
        "How many of the $count NOUNS were put to the end? It is 0 if they are in rising order.",
        "(lambda row, cut: row[cut:] + row[:cut])"
        "(sorted(chance.sample(range(1, 99), 3 * size)), chance.randint(0, 3 * size - 1))",
        "return (len(items) - items.index(min(items))) % len(items)",
        _SLOPE.format(first="count - 1", second="middle").replace("return low", "return (count - low) % count"),
        "fuller",
    ),
)

_WEIGH = ProblemTool("weigh", "How much a NOUN holds.", {"number": INTEGER})
_BY_LOOKING = """
def at_least(number, bound):
    return call("weigh", number=number) >= bound
def fuller(first, second):
    return call("weigh", number=first) > call("weigh", number=second)
"""
_CHECK = """
def _check(state, *numbers):
    for number in numbers:
        if not 0 <= number < len(state["items"]):
            raise Refused(f"There is no NOUN {number}.")
"""
PROBES = {
    "weighed": (
        _WEIGH,
        'def weigh(state, number):\n    _check(state, number)\n    return state["items"][number]\n',
        _BY_LOOKING,
    ),
    "at_least": (
        ProblemTool("reaches", "Whether a NOUN holds at least a bound.", {"number": INTEGER, "bound": INTEGER}),
        'def reaches(state, number, bound):\n    _check(state, number)\n    return state["items"][number] >= bound\n',
        'def at_least(number, bound):\n    return call("reaches", number=number, bound=bound)\n',
    ),
    "fuller": (
        ProblemTool("fuller", "Whether a NOUN holds more than another.", {"first": INTEGER, "second": INTEGER}),
        "def fuller(state, first, second):\n    _check(state, first, second)\n"
        '    return state["items"][first] > state["items"][second]\n',
        'def fuller(first, second):\n    return call("fuller", first=first, second=second)\n',
    ),
}


def search(theme: Theme, chance: random.Random) -> Made:
    """Something to be found in an ordered row, with so few calls that not all of it can be seen."""
    shape = chance.choice(SHAPES)
    probe = chance.choice(["weighed", shape.asks])
    tool, code, asking = PROBES[probe]
    bound = shape.asks == "at_least"
    told = '{"count": len(instance["items"])' + (', "bound": instance["bound"]}' if bound else "}")
    drawn = f"    state = {{'items': {shape.items}}}\n"
    drawn += '    state["bound"] = chance.choice(state["items"])\n' if bound else ""
    names = 'items = instance["items"]\n' + ('bound = instance["bound"]\n' if bound else "")
    known = 'count = given["count"]\n' + ('bound = given["bound"]\n' if bound else "")
    problem = Problem(
        about=f"{theme.about} The NOUNS are numbered from 0. {shape.about}",
        question=shape.ask,
        tools=(tool,),
        instances=f"def draw(chance, size):\n{drawn}    return state\ndef given(instance):\n    return {told}\n",
        code=_CHECK + code,
        solution=f"def solve(instance):\n{indented(names + shape.solve)}\n",
        oracle=f"def oracle(call, given):\n{indented(known + asking + shape.find)}\n",
        answer=INTEGER,
        metered=(tool.name,),
    )
    return told_in(problem, theme), ["search", probe, shape.name]


class Move(NamedTuple):
    """A way to change a row: a tool with its code, and statements that bring the list ``row`` to ``goal`` by calls."""

    tool: ProblemTool
    code: str
    plan: str


MOVES = {
    "swap": Move(
        ProblemTool("swap", "Swaps two NOUNS.", {"first": INTEGER, "second": INTEGER}),
        "def swap(state, first, second):\n    _check(state, first, second)\n    row = state['items']\n"
        "    row[first], row[second] = row[second], row[first]\n    return 'swapped'\n",
        "for place in range(len(row)):\n    other = row.index(goal[place])\n    if other != place:\n"
        "        call('swap', first=place, second=other)\n        row[place], row[other] = row[other], row[place]\n",
    ),
    "neighbours": Move(
        ProblemTool("swap_with_next", "Swaps a NOUN with the one behind it.", {"number": INTEGER}),
        "def swap_with_next(state, number):\n    _check(state, number, number + 1)\n    row = state['items']\n"
        "    row[number], row[number + 1] = row[number + 1], row[number]\n    return 'swapped'\n",
        "for place in range(len(row)):\n    for other in range(row.index(goal[place]) - 1, place - 1, -1):\n"
        "        call('swap_with_next', number=other)\n"
        "        row[other], row[other + 1] = row[other + 1], row[other]\n",
    ),
    "flip": Move(
        ProblemTool("flip", "Turns the order of the first NOUNS around, as many as are said.", {"count": INTEGER}),
        "def flip(state, count):\n    if not 0 < count <= len(state['items']):\n"
        "        raise Refused('There are not so many NOUNS.')\n"
        "    state['items'][:count] = state['items'][:count][::-1]\n    return 'flipped'\n",
        "for place in range(len(row) - 1, 0, -1):\n    other = row.index(goal[place])\n    if other == place:\n"
        "        continue\n    for count in ([other + 1] if other else []) + [place + 1]:\n"
        "        call('flip', count=count)\n        row[:count] = row[:count][::-1]\n",
    ),
    "insert": Move(
        ProblemTool("move", "Takes out a NOUN and puts it back at a place.", {"number": INTEGER, "place": INTEGER}),
        "def move(state, number, place):\n    _check(state, number, place)\n"
        "    state['items'].insert(place, state['items'].pop(number))\n    return 'moved'\n",
        "for place in range(len(row)):\n    other = row.index(goal[place])\n    if other != place:\n"
        "        call('move', number=other, place=place)\n        row.insert(place, row.pop(other))\n",
    ),
    "rotate": Move(
        ProblemTool("to_the_end", "Takes out a NOUN and puts it at the end.", {"number": INTEGER}),
        "def to_the_end(state, number):\n    _check(state, number)\n"
        "    state['items'].append(state['items'].pop(number))\n    return 'moved'\n",
        "start = 0\nfor item in row:\n    start += start < len(goal) and item == goal[start]\n"
        "for item in goal[start:]:\n"
        "    call('to_the_end', number=row.index(item))\n    row.remove(item)\n    row.append(item)\n",
    ),
}
GOALS = {
    "rising": ("in order, the emptiest first", "sorted(items)"),
    "falling": ("in order, the fullest first", "sorted(items, reverse=True)"),
    "fullest_first": (
        "in order, the emptiest first, but the fullest before all others",
        "[max(items), *sorted(items)[:-1]]",
    ),
    "waves": (
        "so that the emptiest is first, then the fullest, then the second emptiest, the second fullest and so on",
        "[item for pair in zip(sorted(items), sorted(items)[::-1]) for item in pair][: len(items)]",
    ),
}
_SEEN = {
    "weighed": 'row = [call("weigh", number=number) for number in range(given["count"])]\n',
    "fuller": 'row = [0] * given["count"]\nfor second in range(given["count"]):\n    for first in range(second):\n'
    '        row[first if call("fuller", first=first, second=second) else second] += 1\n',
}


def arrangement(theme: Theme, chance: random.Random) -> Made:
    """A row to be put in an order; what counts is how it stands in the end."""
    move_name, goal_name, seen = chance.choice(list(MOVES)), chance.choice(list(GOALS)), chance.choice(list(_SEEN))
    move, (told, goal) = MOVES[move_name], GOALS[goal_name]
    tool, code, _ = PROBES[seen]
    drawn = (
        "    items = chance.sample(range(1, 99), size + 1)\n"
        f"    while items == {goal}:\n        chance.shuffle(items)\n    return {{'items': items}}\n"
    )
    oracle = f"{_SEEN[seen]}goal = (lambda items: {goal})(list(row))\n{move.plan}"
    problem = Problem(
        about=f"{theme.about} NOUNS stand in a row, numbered from 0 by their places. No two hold the same.",
        question=f"Bring the $count NOUNS {told}. Then say that it is done.",
        tools=(tool, move.tool),
        instances=f"def draw(chance, size):\n{drawn}"
        "def given(instance):\n    return {'count': len(instance['items'])}\n",
        code=f"{_CHECK}{code}{move.code}def outcome(state):\n    return state['items']\n",
        solution=f"def solve(instance):\n    items = instance['items']\n    return {goal}\n",
        oracle=f"def oracle(call, given):\n{indented(oracle)}\n",
    )
    return told_in(problem, theme), ["arrangement", move_name, seen, goal_name]
