"""Mazes that are seen from within only."""

from __future__ import annotations

import random
from typing import NamedTuple

from agentmill.synthesis.environments.codegym.problem import Problem, ProblemTool
from agentmill.synthesis.generators.codegym_procedural.draft import INTEGER, Made, indented, told_in
from agentmill.synthesis.generators.codegym_procedural.themes import Theme

_WAY = {"direction": {"type": "string", "enum": ["north", "east", "south", "west"]}}

_MAZE = """
def draw(chance, size):
    high, wide = 2 + size // 5, 2 + (size + 2) // 5
    cells = [[row, column] for row in range(high) for column in range(wide)]
    here = chance.choice(cells)
    joined, seen = [], [here]
    while len(seen) < len(cells):
        one = chance.choice(seen)
        near = [cell for cell in cells if abs(cell[0] - one[0]) + abs(cell[1] - one[1]) == 1 and cell not in seen]
        if near:
            two = chance.choice(near)
            seen.append(two)
            joined.append(sorted([one, two]))
    exit_ = chance.choice([cell for cell in cells if cell != here])
    return {"at": here, "joined": joined, "exit": exit_, "coins": chance.sample(cells, size // 3 + 1)}
def given(instance):
    return {}
"""
_STEP = """
_MOVES = {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}
def _beside(state, direction):
    row, column = state["at"]
    cell = [row + _MOVES[direction][0], column + _MOVES[direction][1]]
    return cell if sorted([state["at"], cell]) in state["joined"] else None
"""
_GO = """
def go(state, direction):
    cell = _beside(state, direction)
    if cell is None:
        raise Refused("There is a wall.")
    state["at"] = cell
    return "you went on"
"""
_BUMP = """
def go(state, direction):
    cell = _beside(state, direction)
    state["at"] = cell or state["at"]
    return "there is a wall" if cell is None else "you went on"
"""
_SENSES = {
    "looking": (
        (
            ProblemTool("open_sides", "The directions that are open from here."),
            ProblemTool("go", "Goes one cell in a direction.", _WAY),
        ),
        _STEP + _GO + "def open_sides(state):\n    return [way for way in sorted(_MOVES) if _beside(state, way)]\n",
        'def sides():\n    return call("open_sides")\ndef go(way):\n    call("go", direction=way)\n    return True\n',
    ),
    "feeling": (
        (ProblemTool("go", "Goes one cell in a direction, if there is no wall; says what happened.", _WAY),),
        _STEP + _BUMP,
        'def sides():\n    return ["east", "north", "south", "west"]\n'
        'def go(way):\n    return call("go", direction=way) == "you went on"\n',
    ),
}
_EXPLORE = """
moves = {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}
back = {"north": "south", "south": "north", "east": "west", "west": "east"}
seen = {(0, 0)}
def explore(row, column):
    if visit():
        return True
    for way in sides():
        cell = row + moves[way][0], column + moves[way][1]
        if cell not in seen and go(way):
            seen.add(cell)
            if explore(*cell):
                return True
            go(back[way])
    return False
explore(0, 0)
"""


class Quest(NamedTuple):
    """What is wanted in a maze: a tool with its code, the body of ``solve``, ``visit()`` as the oracle does it in every
    cell, true where it is done, and what it answers in the end, if anything."""

    ask: str
    tool: ProblemTool
    code: str
    solve: str
    visit: str
    answer: str = ""


_QUESTS = {
    "exit": Quest(
        "Stand on the cell of the exit, and say that it is done.",
        ProblemTool("at_exit", "Whether this cell is the exit."),
        'def at_exit(state):\n    return state["at"] == state["exit"]\ndef outcome(state):\n    return state["at"]\n',
        'return instance["exit"]',
        'def visit():\n    return call("at_exit")\n',
    ),
    "coins": Quest(
        "Pick up all coins of the maze, and say that it is done. A cell holds one at most.",
        ProblemTool("pick_up", "Picks up the coin of this cell; says whether there was one."),
        'def pick_up(state):\n    there = state["at"] in state["coins"]\n    if there:\n'
        '        state["coins"].remove(state["at"])\n    return there\n'
        'def outcome(state):\n    return state["coins"]\n',
        "return []",
        'def visit():\n    call("pick_up")\n',
    ),
    "cells": Quest(
        "How many cells have a coin?",
        ProblemTool("is_coin", "Whether there is a coin on this cell."),
        'def is_coin(state):\n    return state["at"] in state["coins"]\n',
        'return len(instance["coins"])',
        'found = []\ndef visit():\n    found.append(call("is_coin"))\n',
        "return sum(found)",
    ),
}


def maze(theme: Theme, chance: random.Random) -> Made:
    """A maze that is seen from within only."""
    sense_name = chance.choice(list(_SENSES))
    quest_name = chance.choice(list(_QUESTS))
    tools, code, sensing = _SENSES[sense_name]
    quest = _QUESTS[quest_name]
    oracle = f"{sensing}{quest.visit}{_EXPLORE}{quest.answer}"
    problem = Problem(
        about=f"{theme.about} You are in a maze of square cells. North is up.",
        question=quest.ask,
        tools=(*tools, quest.tool),
        instances=_MAZE,
        code=code + quest.code,
        solution=f"def solve(instance):\n{indented(quest.solve)}\n",
        oracle=f"def oracle(call, given):\n{indented(oracle)}\n",
        answer=INTEGER if quest.answer else None,
    )
    return told_in(problem, theme), ["maze", sense_name, quest_name]
