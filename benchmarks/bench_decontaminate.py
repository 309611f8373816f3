"""``decontaminate`` on planted leaks: how many are found, and how many other tasks are taken for one.

    PYTHONPATH=. .venv/bin/python benchmarks/bench_decontaminate.py [--environments 60] [--seeds 15 16]

Tasks of the families pddl, toolbox and codegym are synthesized and solved by their planners. A quarter of the
environments is the benchmark, the trajectories of the others are the data, and all thresholds are the defaults. A leak
is a trajectory of the benchmark's environments with other ids: as it is, with its instruction in other words
(``PARAPHRASES``), or with its names replaced in all texts and arguments, of every second one its numbers, too. Each
kind of leak is planted alone. The benchmark is a table of the tasks; of pddl, whose agent writes commands where the
gold solution has calls, it is also the table of trajectories.

Other tasks are the data. Those whose instruction is, word for word, one of the benchmark are leaks by the definition of
the test and counted apart, as ``equal``. Two shares are given: of all leaks, and of those that can be compared, whose
solution has three arguments, not only digits, or whose instruction has three labels. Records of published data sets
(``AGENTMILL_SAMPLES``) are compared with those of the other data sets, and their copies with themselves.

The tests were developed on the seeds 11, 12 and 13. The default seeds were not used, so theirs are the figures to
report.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from machine import describe

from agentmill.pipelines.canonical_form import labels_in
from agentmill.pipelines.duplicates import words_of
from agentmill.pipelines.leak_features import LEAST_VALUES
from agentmill.schemas.ids import digest
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import ApiAction, MessageAction, TextObservation, Trajectory
from agentmill.schemas.tables import Table
from tests.pipelines.engine.stages import write_table
from tests.pipelines.operators.steps import model, run

FAMILIES: dict[str, dict[str, Any]] = {
    "pddl": {"plan_length": [2, 8]},
    "toolbox": {"plan_length": [2, 8]},
    "codegym": {},
}
SCAFFOLDS = {"pddl": "text", "toolbox": "tools", "codegym": "tools"}
AGAINST = (("pddl", "trajectories"), ("pddl", "tasks"), ("toolbox", "tasks"), ("codegym", "tasks"))
"""What is measured: a family, and what the benchmark is given as."""
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

NEW_NAMES = re.findall(
    r"\w+",
    "Quillon Vandery Mosswick Tarnhelm Ostrava Brindle Keswyn Halloran Pemberly Zorah Ulvane Dracott Fenwyck Ysolde "
    "Corbray Naloris Grimsby Thalia Wexcombe Jarnac Okonjo Birkett Salvane Rudder Emberly Lanark Voss Quarrel Madder "
    "Tolliver Ashgrove Penrith Caldwell Norwick Estrel Hobbin Varley Umber Sorrel Dunmore Kettle Larkin Mallory Orrin",
)


def synthesize(folder: Path, family: str, environments: int, seed: int) -> None:
    """Tables of tasks and of the trajectories that solve them."""
    run(folder, "spec_env", "specs", family=family, backend="procedural", n=environments, seed=seed)
    run(folder, "admit", "environments", of="specs")
    run(folder, "propose", "proposed", of="environments", n=TASKS, seed=seed, **FAMILIES[family])
    run(folder, "admit", "tasks", of="proposed", environments="environments")
    expert = {"tasks": "tasks", "environments": "environments", "policy": "gold", "scaffold": SCAFFOLDS[family]}
    run(folder, "expert", "solved", {"actor": model()}, **expert)


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
    names = {
        value for kwargs in calls for value in kwargs.values() if isinstance(value, str) and len(value.split()) < 5
    }
    new = chance.sample(NEW_NAMES, len(NEW_NAMES))
    into = {}
    for place, name in enumerate(sorted(names, key=lambda name: (-len(name), name))):
        replaced = new[place % len(new)] + ("" if place < len(new) else str(place))
        into[name.lower()] = replaced if name[:1].isupper() else replaced.lower()
    wanted = [re.escape(name) for name in into if name and not name.isdigit()]
    pattern = re.compile(
        rf"(?<![\w])(?:{'|'.join([*wanted, *([r'[0-9]+'] if numbers else []), r'(?!)'])})(?![\w])", re.I
    )
    shift = chance.randrange(40, 400)

    def text(given: str) -> str:
        return pattern.sub(lambda found: into.get(found[0].lower()) or str(int(found[0]) + shift), given)

    return text


def planted(kind: str, trajectory: Trajectory, task: Task, number: int) -> Trajectory:
    """A leak of a kind."""
    if kind == "verbatim":
        return edited(trajectory, kind, str)
    if kind == "paraphrased":
        return edited(trajectory, kind, paraphrase, prompt_only=True)
    return edited(trajectory, kind, renaming(task, number % 2 == 1, random.Random(number)))


class Found(NamedTuple):
    """Leaks and how many are found, the same of those that can be compared, and how many others are found, or equal."""

    leaks: int = 0
    found: int = 0
    comparable: int = 0
    found_comparable: int = 0
    others: int = 0
    wrong: int = 0
    equal: int = 0

    def __add__(self, other: Found) -> Found:  # type: ignore[override]
        return Found(*map(sum, zip(self, other, strict=True)))

    def __str__(self) -> str:
        return (
            f"{self.found:>4} of {self.leaks:>4} ({self.found / self.leaks:6.1%}; of {self.comparable:>4} comparable "
            f"{self.found_comparable / max(1, self.comparable):6.1%})   {self.wrong:>3} of {self.others:>5} other "
            f"tasks ({self.wrong / self.others:.2%}; {self.equal} equal)"
        )


def measure(folder: Path, kind: str, given: str, seed: int) -> Found:
    """Plant leaks of a kind, run the step, and count."""
    solved = sorted(Table.open(folder / "solved").rows(), key=lambda each: each.trajectory_id)
    tasks = {each.task_id: each for each in Table.open(folder / "tasks").rows()}
    environments = sorted({each.environment_id for each in solved})
    held = set(random.Random(seed).sample(environments, round(HELD_OUT * len(environments))))
    bench = [each for each in solved if each.environment_id in held]
    data = [each for each in solved if each.environment_id not in held]
    leaks = [planted(kind, each, tasks[each.task_id], number) for number, each in enumerate(bench)]
    place = folder / f"{kind}-{given}"
    write_table(place / "runs", [data, leaks], Trajectory)
    held_tasks = [each for each in tasks.values() if each.environment_id in held]
    write_table(
        place / "bench",
        [bench if given == "trajectories" else held_tasks],
        Trajectory if given == "trajectories" else Task,
    )
    run(place, "decontaminate", "clean", of="runs", against="bench")
    out = {row.trajectory_id for row in Table.open(place / "clean").rows() if not row.kept}
    known = {asked(each) for each in bench}
    others = [each for each in data if asked(each) not in known]
    enough = [kind == "verbatim" or comparable(tasks[each.task_id]) for each in bench]
    found = [each.trajectory_id in out for each in leaks]
    return Found(
        leaks=len(leaks),
        found=sum(found),
        comparable=sum(enough),
        found_comparable=sum(each and other for each, other in zip(found, enough, strict=True)),
        others=len(others),
        wrong=sum(each.trajectory_id in out for each in others),
        equal=len(data) - len(others),
    )


def asked(trajectory: Trajectory) -> tuple[bytes, ...]:
    """The words of the instruction."""
    return tuple(words_of([trajectory.content[0].content]))  # type: ignore[union-attr, list-item]


def comparable(task: Task) -> bool:
    """Whether a solution or an instruction has enough that a leak of another kind is no coincidence."""
    calls = {
        (action.function, *map(str, action.kwargs.values()))
        for action in task.gold or []
        if isinstance(action, ApiAction)
    }
    values = [value for call in calls for value in call[1:]]
    if len(labels_in(task.instruction)) >= LEAST_VALUES and values:
        return True
    return len(values) >= LEAST_VALUES and any(len(value) > 1 or not value.isdigit() for value in values)


def published(folder: Path, samples: Path) -> list[str]:
    """False positives and verbatim leaks among records of published data sets."""
    sets = sorted(each.name for each in (samples / "adp").iterdir())
    for name in sets:
        run(folder, "normalize", name, data=[str(samples / "adp" / name / "std.jsonl")], dataset=name, format="adp")
    wrong = total = found = 0
    for name in sets:
        others = [each for each in sets if each != name]
        manifest = run(folder, "decontaminate", f"{name}-others", of=name, against=others)
        total += manifest.counts.read
        wrong += manifest.counts.read - int(manifest.metrics["kept"])
        copies = [edited(each, "verbatim", str) for each in Table.open(folder / name).rows()]
        write_table(folder / f"{name}-copies", [copies], Trajectory)
        manifest = run(folder, "decontaminate", f"{name}-own", of=f"{name}-copies", against=name)
        found += manifest.counts.read - int(manifest.metrics.get("kept", 0))
    return [
        f"published data sets: {found} of {total} copies found; {wrong} of {total} taken for one of another data set"
    ]


def main() -> int:
    """Measure, print, and tell by the exit status whether every bar is reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=int, default=60)
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[15, 16], help="of environments; bars are of all together"
    )
    given = parser.parse_args()
    print(describe())
    totals: dict[str, Found] = dict.fromkeys(BARS, Found())
    for seed in given.seeds:
        with tempfile.TemporaryDirectory() as place:
            for family in FAMILIES:
                (Path(place) / family).mkdir()
                synthesize(Path(place) / family, family, given.environments, seed)
            for family, against in AGAINST:
                for kind in BARS:
                    found = measure(Path(place) / family, kind, against, seed)
                    # Once for each family: pddl as the surface that its agent writes.
                    if (family, against) != ("pddl", "tasks"):
                        totals[kind] += found
                    print(f"{seed} {family:<8} against {against:<13} {kind:<12} {found}", flush=True)
    if samples := os.environ.get("AGENTMILL_SAMPLES"):
        with tempfile.TemporaryDirectory() as place:
            print("\n".join(published(Path(place), Path(samples))))
    reached = True
    for kind, bar in BARS.items():
        total = totals[kind]
        reached &= total.found_comparable >= bar * total.comparable and total.wrong <= FALSE_POSITIVES * total.others
        print(f"all         {kind:<34} {total}   bar {bar:.0%}, {FALSE_POSITIVES:.0%}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
