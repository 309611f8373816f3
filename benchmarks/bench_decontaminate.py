"""``decontaminate`` on planted leaks: how many are found, and how many different tasks are taken for one.

    PYTHONPATH=. .venv/bin/python benchmarks/bench_decontaminate.py [--environments 60] [--seed 11]

Tasks of the families pddl, toolbox and codegym are synthesized and solved by their planners. A quarter of the
environments are the benchmark, given as a table of tasks and, once more, as a table of trajectories; the trajectories
of the others are the data. A leak is a trajectory of a benchmark's task with another id of its task: as it is, with
the instruction in other words (rules below, which know nothing of the index), or with its names replaced throughout,
half of them with their numbers, too. Different tasks are the data themselves; those whose instruction is equal to one of
the benchmark are counted apart, since they are verbatim leaks by the definition of the test. All thresholds are the
defaults. Records of published data sets (``AGENTMILL_SAMPLES``) are the data once, with records of others as the
benchmark, and the benchmark once, as they are.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from machine import describe

from agentmill.pipelines.duplicates import words_of
from agentmill.schemas.ids import digest
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import ApiAction, MessageAction, TextObservation, Trajectory
from agentmill.schemas.tables import Table
from tests.pipelines.engine.stages import write_table
from tests.pipelines.operators.steps import model, run

FAMILIES = {"pddl": {"plan_length": [2, 8]}, "toolbox": {"plan_length": [2, 8]}, "codegym": {}}
SCAFFOLDS = {"pddl": "text", "toolbox": "tools", "codegym": "tools"}
TASKS = 8
HELD_OUT = 0.25
BARS = {"verbatim": 1.0, "paraphrased": 0.95, "renamed": 0.9}
FALSE_POSITIVES = 0.01

PARAPHRASES: Sequence[tuple[str, str]] = (
    # pddl
    (r"^Goal: (.*)\.$", r"What we want in the end: \1; see to it"),
    (r"(?:you are) in the (\w+)", r"your own place is the \1"),
    (r"the (\w+) is in the (\w+)", r"one finds, inside the \2, the \1"),
    (r"(\w+) is at the (\w+)", r"the \2 is where \1 ends up"),
    (r"(\w+) has the (\w+)", r"the \2 belongs to \1"),
    (r"you have the (\w+)", r"the \1 is with you"),
    (r"the (\w+) is on\b", r"one has switched the \1 on"),
    (r"(\w+) is (open|empty|half|full|high|low)\b", r"\2 is the state of \1"),
    (r" and ", r", moreover "),
    # toolbox
    (r"^Please tell me ", r"I would be glad to learn "),
    (r"^Please ", r"Could somebody "),
    (r"\. Then tell me ", r"; as soon as that is over, report back with "),
    (r"\. Then ", r"; as soon as that is over, "),
    (r"the (\w+) of the (\w+) (named|titled) ([\w' ]+?)(?=[.;(]| and| with| to| of|$)", r"\4's \1 (\4 being a \2)"),
    (r"\(the one with ([^)]*)\)", r"- mind that I mean just that of \1 -"),
    (r"\bthe (\w+) (named|titled) ", r"that \1 called "),
    (r" to the ", r" towards a given "),
    (r" with ", r", having "),
    (r" of the ", r" belonging to our "),
    # codegym
    (r"^There are these (\w+): (\[[^\]]*\])\. ", r"Given: \2, which are \1, "),
    (r"How many ", r"please count the "),
    (r"how far is the one that is farthest", r"find the greatest distance"),
    (r"What is ", r"find out "),
    (r"\bHow\b", r"in which way or number"),
    (r"\bif\b", r"provided that"),
    (r"\bthe\b(?= \w+ \w+ \w+ )", r"this"),
)
"""Patterns and what they become, in this order, which keep what is asked."""

NEW_NAMES = (
    "Quillon Vandery Mosswick Tarnhelm Ostrava Brindle Keswyn Halloran Pemberly Zorah Ulvane Dracott Fenwyck Ysolde "
    "Corbray Naloris Grimsby Thalia Wexcombe Jarnac Okonjo Birkett Salvane Rudder Emberly Lanark Voss Quarrel Madder "
    "Tolliver Ashgrove Penrith Caldwell Norwick Estrel Hobbin Varley Umber Sorrel Dunmore Kettle Larkin Mallory Orrin"
).split()


class Counts(NamedTuple):
    """Leaks that were found, of how many."""

    found: int
    of: int

    def __str__(self) -> str:
        return f"{self.found}/{self.of} ({self.found / max(1, self.of):.1%})"


def synthesize(folder: Path, family: str, environments: int, seed: int) -> None:
    """Tables of tasks and of the trajectories that solve them."""
    made: dict[str, Any] = {"as_": family}
    del made
    run(folder, "spec_env", "specs", family=family, backend="procedural", n=environments, seed=seed)
    run(folder, "admit", "environments", of="specs")
    run(folder, "propose", "proposed", of="environments", n=TASKS, seed=seed, **FAMILIES[family])
    run(folder, "admit", "tasks", of="proposed", environments="environments")
    expert = {"tasks": "tasks", "environments": "environments", "policy": "gold", "scaffold": SCAFFOLDS[family]}
    run(folder, "expert", "solved", {"policy": model()}, **expert)


def edited(trajectory: Trajectory, kind: str, text: Callable[[str], str], prompt_only: bool = False) -> Trajectory:
    """A copy with other ids, and every text changed by ``text``; with ``prompt_only`` the instruction alone."""

    def value(given: Any) -> Any:
        if isinstance(given, str):
            return text(given)
        if isinstance(given, int) and not isinstance(given, bool):
            changed = text(str(given))
            return int(changed) if changed.isdigit() else given
        if isinstance(given, dict):
            return {name: value(each) for name, each in given.items()}
        return [value(each) for each in given] if isinstance(given, list) else given

    content: list[Any] = []
    for item in trajectory.content:
        asked = isinstance(item, TextObservation) and item.source == "user"
        if prompt_only and not asked:
            content.append(item)
        elif isinstance(item, ApiAction):
            content.append(msgspec.structs.replace(item, kwargs=value(item.kwargs)))
        elif isinstance(item, MessageAction | TextObservation):
            content.append(msgspec.structs.replace(item, content=text(item.content)))
        else:
            content.append(item)
    name = digest(kind, trajectory.trajectory_id)
    return msgspec.structs.replace(trajectory, trajectory_id=name, task_id=f"{kind}-{name}", content=content)


def paraphrase(text: str) -> str:
    """The same request in other words."""
    for pattern, into in PARAPHRASES:
        text = re.sub(pattern, into, text)
    return text


def renaming(task: Task, numbers: bool, chance: random.Random) -> Callable[[str], str]:
    """What replaces each name of a task: the objects, titles and labels that its solution is about."""
    calls = [action.kwargs for action in task.gold or [] if isinstance(action, ApiAction)]
    names = {value for kwargs in calls for value in kwargs.values() if isinstance(value, str) and len(value.split()) < 5}
    new = chance.sample(NEW_NAMES, len(NEW_NAMES))
    into = {}
    for place, name in enumerate(sorted(names, key=lambda name: (-len(name), name))):
        replaced = new[place % len(new)] + ("" if place < len(new) else str(place))
        into[name.lower()] = replaced if name[:1].isupper() else replaced.lower()
    wanted = [re.escape(name) for name in into if name and not name.isdigit()]
    pattern = re.compile(rf"(?<![\w])(?:{'|'.join([*wanted, *([r'[0-9]+'] if numbers else []), r'(?!)'])})(?![\w])", re.I)
    shift = chance.randrange(40, 400)

    def text(given: str) -> str:
        return pattern.sub(lambda found: into.get(found[0].lower()) or str(int(found[0]) + shift), given)

    return text
