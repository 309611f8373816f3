"""``split``: what stays together, how shares are met, and what two splits have in common."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agentmill.schemas.records.task import EnvironmentSpec, Lineage, Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Selection
from agentmill.schemas.tables import Counts, Manifest
from tests.builders import agent_message, called, instruction, spec, task, trajectory
from tests.errors import user_error
from tests.pipelines.engine.stages import rows_of, write_table
from tests.pipelines.operators.steps import job, run

HALVES = {"train": 0.5, "test": 0.5}


def lone(number: int, attempts: int = 2, environments: int = 10, words: str = "") -> list[Trajectory]:
    """Attempts at a task whose instruction is like no other."""
    chance = random.Random(number)
    asked = words or " ".join("".join(chance.choices("abcdefgh", k=5)) for _ in range(20))
    fields: dict[str, Any] = {"task_id": f"t{number}", "environment_id": f"e{number % environments}"}
    content = [instruction(asked), agent_message("done")]
    return [trajectory(f"{number}-{attempt}", content=content, **fields) for attempt in range(attempts)]


def write(folder: Path, rows: list[Trajectory]) -> None:
    write_table(folder / "runs", [rows], Trajectory)


def made(folder: Path, name: str = "splits", **parameters: Any) -> Manifest:
    return run(folder, "split", name, **{"of": "runs", **parameters})


def labels(folder: Path, name: str = "splits") -> dict[str, str]:
    """The split of each trajectory."""
    return {row.trajectory_id: row.value for row in rows_of(folder / name / "labels")}


def kept(folder: Path, name: str = "splits") -> set[str]:
    return {row.trajectory_id for row in rows_of(folder / name) if row.kept}


def test_branches_without_a_task_stay_with_their_tree(tmp_path: Path) -> None:
    def tree(number: int, task_id: str | None) -> list[Trajectory]:
        root, *rest = lone(number, attempts=5)
        parents = [root.trajectory_id, root.trajectory_id, f"{number}-1", "not-among-them"]
        branches = [replace(row, parent_id=parent, task_id=None) for row, parent in zip(rest, parents, strict=True)]
        return [replace(root, task_id=task_id), *branches]

    write(tmp_path, [row for number in range(30) for row in tree(number, f"t{number}" if number % 2 else None)])
    made(tmp_path, shares=HALVES, leaks="off")
    found = labels(tmp_path)
    assert all(len({found[f"{number}-{place}"] for place in range(4)}) == 1 for number in range(30))
    assert len({found[f"{number}-4"] for number in range(30)}) == 1, "branches of one parent that is not there"
    reasons = {row.trajectory_id: row.reason for row in rows_of(tmp_path / "splits" / "labels")}
    assert (reasons["1-2"], reasons["2-2"], reasons["2-4"]) == ("tree t1", "tree 2-0", "tree 0-4")


def test_a_task_is_in_one_split(tmp_path: Path) -> None:
    write(tmp_path, [row for number in range(50) for row in lone(number)])
    shares = {"train": 0.8, "dev": 0.1, "test": 0.1}
    manifest = made(tmp_path, shares=shares)
    assert manifest.counts == Counts(read=100, used=100, dropped=0, written=100)
    found = labels(tmp_path)
    assert Counter(found.values()) == {"train": 80, "dev": 10, "test": 10}
    assert all(found[f"{number}-0"] == found[f"{number}-1"] for number in range(50))
    assert kept(tmp_path) == {name for name, split in found.items() if split == "train"}
    reasons = Counter(row.reason for row in rows_of(tmp_path / "splits") if not row.kept)
    assert reasons == {"split: dev": 10, "split: test": 10}
    made(tmp_path, "other", shares=shares, keep="test")
    assert labels(tmp_path, "other") == found
    assert kept(tmp_path, "other") == {name for name, split in found.items() if split == "test"}
    made(tmp_path, "seed", shares=shares, seed=1)
    assert labels(tmp_path, "seed") != found


def test_other_groups(tmp_path: Path) -> None:
    write(tmp_path, [row for number in range(40) for row in lone(number)])
    tasks = [task(f"t{n}", environment_id=f"e{n % 10}", skills=["walk", "ab"[n % 2], "cd"[n // 20]]) for n in range(40)]
    write_table(tmp_path / "tasks", [tasks], Task)
    specs = [spec(f"e{number}", family=["pddl", "codegym"][number % 2]) for number in range(10)]
    write_table(tmp_path / "environments", [specs], EnvironmentSpec)
    groups = {
        "environment": ({}, lambda number: number % 10),
        "family": ({"environments": "environments"}, lambda number: number % 2),
        "template": ({"tasks": "tasks"}, lambda number: (number % 2, number // 20)),
    }
    for by, (tables, group) in groups.items():
        made(tmp_path, by, by=by, shares=HALVES, **tables)
        found = labels(tmp_path, by)
        assert Counter(found.values()) == {"train": 40, "test": 40}
        splits = {(group(number), found[f"{number}-{attempt}"]) for number in range(40) for attempt in range(2)}
        assert len(splits) == len({group(number) for number in range(40)})


def test_copies_of_an_environment_stay_with_it(tmp_path: Path) -> None:
    """Of ten environments each is there again under other words, and one of these once more."""
    made_of = {f"e{number}": f"e{number - 10}" for number in range(10, 20)} | {"e20": "e10"}
    rows = [row for number in range(21) for row in lone(number, attempts=1, environments=21)]
    write(tmp_path, rows)
    specs = [
        spec(f"e{number}", lineage=Lineage(operator="spec_env", parents=["the same inspiration"]))
        if f"e{number}" not in made_of
        else spec(f"e{number}", lineage=Lineage(operator="wrap_env", parents=[made_of[f"e{number}"]]))
        for number in range(21)
    ]
    write_table(tmp_path / "environments", [specs], EnvironmentSpec)
    given: dict[str, Any] = {"by": "environment", "shares": HALVES}
    manifest = made(tmp_path, environments="environments", **given)
    found = labels(tmp_path)
    splits = {number: found[f"{number}-0"] for number in range(21)}
    assert all(splits[number] == splits[number - 10] for number in range(10, 20))
    assert splits[20] == splits[0]
    assert set(splits.values()) == {"train", "test"}
    assert "leaks.environment" not in manifest.metrics
    # By task they are not together, and that is counted.
    made(tmp_path, "apart", **given)
    apart = labels(tmp_path, "apart")
    assert any(apart[f"{number}-0"] != apart[f"{number - 10}-0"] for number in range(10, 20))


def test_a_template_without_tasks_is_the_instruction_without_names(tmp_path: Path) -> None:
    def named(name: str, verb: str) -> Trajectory:
        content = [instruction(f"Please {verb} the door of {name} now."), called(verb, door=name)]
        return trajectory(f"{verb}-{name}", content=content, task_id=None)

    names = ["Ann", "bob", "Room 7"]
    write(tmp_path, [named(name, verb) for name in names for verb in ("open", "shut")])
    made(tmp_path, by="template", shares=HALVES)
    found = labels(tmp_path)
    assert {len({found[f"{verb}-{name}"] for name in names}) for verb in ("open", "shut")} == {1}


def test_attempts_at_one_instruction_have_one_template(tmp_path: Path) -> None:
    def attempt(number: int, kind: str, task_id: str | None) -> Trajectory:
        names = {"done": ("ball", f"room {number}"), "other": ("ball", "moon"), "early": ()}[kind]
        acts = [called("move", **dict(zip(("what", "where"), names, strict=True)))] if names else [called("look")]
        content = [instruction(f"Move the ball to room {number}, {'please ' * number}now."), *acts]
        return trajectory(f"{number}-{kind}", content=content, task_id=task_id)

    for name, task_id in (("tasks", "t{}"), ("texts", None)):
        rows = [
            attempt(number, kind, task_id and task_id.format(number))
            for number in range(8)
            for kind in ("done", "other", "early")
        ]
        write(tmp_path / name, rows)
        made(tmp_path / name, by="template", shares=HALVES)
        found = labels(tmp_path / name)
        assert {len({found[f"{number}-{kind}"] for kind in ("done", "other", "early")}) for number in range(8)} == {1}


def test_attempts_at_one_instruction_are_of_one_template_whatever_they_act_on(tmp_path: Path) -> None:
    def attempt(name: str, verb: str, target: str, task_id: str | None) -> Trajectory:
        content = [instruction(f"please {verb} the lamp near the sofa"), called("use", thing=target)]
        return trajectory(name, content=content, task_id=task_id)

    targets = ("lamp", "sofa", "please", "the sofa")
    rows = [attempt(f"{verb}-{each}", verb, each, verb) for verb in ("dim", "fix") for each in targets]
    rows += [attempt(f"untitled-{each}", "move", each, None) for each in targets]
    rows += [attempt("reworded-1", "sell", "lamp", "sell"), attempt("reworded-2", "give away", "sofa", "sell")]
    rows += [trajectory(f"silent-{n}", content=[called("use", thing=n)], task_id="silent") for n in range(3)]
    write(tmp_path, rows)
    made(tmp_path, by="template", shares=HALVES)
    groups = {row.trajectory_id: row.reason for row in rows_of(tmp_path / "splits" / "labels")}
    of_prefix = {name.partition("-")[0]: reason for name, reason in groups.items()}
    assert {name: of_prefix[name.partition("-")[0]] for name in groups} == groups
    assert len(set(groups.values())) == 5


def test_a_variant_goes_with_its_task(tmp_path: Path) -> None:
    write(tmp_path, [row for number in range(20) for row in lone(number, attempts=1)])
    tasks = [
        task("t0"),
        *(task(f"t{n}", lineage=Lineage(operator="evolve", parents=[f"t{n - 1}"])) for n in range(1, 8)),
    ]
    write_table(tmp_path / "tasks", [tasks], Task)
    made(tmp_path, tasks="tasks", shares={"train": 0.6, "test": 0.4})
    assert len({labels(tmp_path)[f"{number}-0"] for number in range(8)}) == 1
    made(tmp_path, "without", shares={"train": 0.6, "test": 0.4})
    assert len({labels(tmp_path, "without")[f"{number}-0"] for number in range(8)}) == 2


def made_from(task_id: str, *parents: str, operator: str = "evolve") -> Task:
    return task(task_id, lineage=Lineage(operator=operator, parents=list(parents)))


@pytest.mark.parametrize(
    ("tasks", "groups"),
    [
        # The task that they were made from is not in the table.
        ([made_from(f"t{n}", "elsewhere") for n in range(8)], 1),
        # What is composed of two tasks makes them one group.
        ([*(task(f"t{n}") for n in range(7)), made_from("t7", *(f"t{n}" for n in range(7)), operator="compose")], 1),
        # Of the examples that an author was shown, the first counts.
        ([*(task(f"t{n}") for n in range(7)), made_from("t7", *(f"t{n}" for n in range(7)), operator="propose")], 2),
        ([made_from("t0", "t1"), made_from("t1", "t0"), *(made_from(f"t{n}", f"t{n - 1}") for n in range(2, 8))], 1),
    ],
)
def test_tasks_that_were_made_from_one_another(tasks: list[Task], groups: int, tmp_path: Path) -> None:
    write(tmp_path, [row for number in range(20) for row in lone(number, attempts=1)])
    random.Random(0).shuffle(tasks)
    write_table(tmp_path / "tasks", [tasks], Task)
    made(tmp_path, tasks="tasks", shares={"train": 0.6, "test": 0.4})
    found = labels(tmp_path)
    assert len({found[f"{number}-0"] for number in range(8)}) == groups
    if groups > 1:
        assert found["7-0"] == found["0-0"]


def test_what_is_not_chosen_is_in_no_split(tmp_path: Path) -> None:
    write(tmp_path, [row for number in range(10) for row in lone(number, attempts=1)])
    chosen = [Selection(trajectory_id=f"{number}-0", name="f", kept=number < 4) for number in range(10)]
    write_table(tmp_path / "chosen", [chosen], Selection)
    manifest = made(tmp_path, selections="chosen", shares=HALVES)
    assert Counter(labels(tmp_path).values()) == {"train": 2, "test": 2}
    assert manifest.metrics["left_out.not_selected"] == 6
    assert manifest.metrics["kept"] == 2


def test_leaks_between_splits(tmp_path: Path) -> None:
    asked = " ".join(f"word{number}" for number in range(30))
    rows = [row for number in range(10) for row in lone(number, attempts=1, environments=2)]
    write(tmp_path, [*rows, *(lone(number, 1, words=f"{asked} {number}")[0] for number in range(20, 30))])
    manifest = made(tmp_path, shares=HALVES)
    found = labels(tmp_path)
    train = [name for name, split in found.items() if split == "train"]
    near = {name for name in train if int(name[:-2]) >= 20}
    assert 0 < len(near) < 10
    assert manifest.metrics["leaks.instruction"] == len(near)
    assert manifest.metrics["leaks.environment"] > 0
    assert "leaks.task" not in manifest.metrics
    assert kept(tmp_path) == set(train)
    step = job(tmp_path, "split", "dropped", of="runs", shares=HALVES, leaks="drop")
    noted = "\n".join(step.parameters.notes(step.run()))
    assert f"share with other splits: instruction {len(near)}; they are left out" in noted
    alike = manifest.metrics["leaks.environment"]
    assert f"{alike:.0f} trajectories of train are in environments of other splits, for which none is left" in noted
    assert kept(tmp_path, "dropped") == set(train) - near
    reasons = [row.reason for row in rows_of(tmp_path / "dropped") if row.trajectory_id in near]
    assert all(reason.startswith("leaks: test/") and ", instruction 0." in reason for reason in reasons)
    assert "leaks.environment" not in made(tmp_path, "off", shares=HALVES, leaks="off").metrics


def test_a_group_that_is_too_large(tmp_path: Path) -> None:
    write(tmp_path, [row for number in range(4) for row in lone(number, attempts=[30, 5, 3, 2][number])])
    step = job(tmp_path, "split", "splits", of="runs", shares={"train": 0.5, "test": 0.5})
    assert "train has 75% instead of 50%" in step.parameters.notes(step.run())[-1]


def test_a_split_that_would_be_empty(tmp_path: Path) -> None:
    write(tmp_path, [row for number in range(2) for row in lone(number, attempts=9)])
    made(tmp_path, shares={"train": 0.99, "test": 0.01})
    assert set(labels(tmp_path).values()) == {"train", "test"}
    with user_error("split-empty", "test", "2 groups"):
        made(tmp_path, "three", shares={"train": 0.5, "dev": 0.3, "test": 0.2})


def test_trajectories_without_a_task(tmp_path: Path) -> None:
    write(tmp_path, [trajectory(f"t{number}", task_id=None) for number in range(10)])
    step = job(tmp_path, "split", "splits", of="runs", leaks="off")
    assert "10 trajectories have no known task" in step.parameters.notes(step.run())[-1]


def test_order_does_not_matter(tmp_path: Path) -> None:
    rows = [row for number in range(30) for row in lone(number, attempts=1 + number % 3)]
    found = []
    for number in range(3):
        mixed = random.Random(number).sample(rows, len(rows))
        write_table(tmp_path / str(number) / "runs", [mixed[: 5 + number], mixed[5 + number :]], Trajectory)
        made(tmp_path / str(number), leaks="drop")
        found.append(labels(tmp_path / str(number)))
    assert found[0] == found[1] == found[2]
    assert job(tmp_path / "0", "split", "splits", of="runs", leaks="drop").finished() is not None


@pytest.mark.parametrize(
    ("parameters", "code", "words"),
    [
        ({"shares": {"train": 0.5, "test": 0.4}}, "rule-broken", "add up to 0.9"),
        ({"shares": {"train": 1.0}}, "invalid-value", "shares"),
        ({"keep": "tset"}, "rule-broken", "Did you mean 'test'?"),
        ({"by": "family"}, "needs-another-key", "`environments`"),
        ({"environments": "runs"}, "rule-broken", "`by: task`"),
    ],
)
def test_parameters_that_do_not_go_together(parameters: dict[str, Any], code: str, words: str, tmp_path: Path) -> None:
    write(tmp_path, lone(1))
    with user_error(code, words):
        job(tmp_path, "split", "splits", **{"of": "runs", **parameters})
