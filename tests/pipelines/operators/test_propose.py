"""From nothing to admitted tasks: splits stay apart, nothing is twice, and the same seed gives the same bytes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.operators.proposals import Numbers, Proposal
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.tables import Counts, Table
from agentmill.synthesis.generators.generator import TOO_FEW, GenerationError
from tests.builders import spec
from tests.builders import task as build_task
from tests.errors import user_error
from tests.pipelines.engine.stages import bytes_of, dropped_of, rows_of, write_table
from tests.pipelines.operators.steps import job, run, stage
from tests.pipelines.recipes.test_plan import plan_of

TABLES = ("proposed_environments", "environments", "proposed_tasks", "evolved_tasks", "tasks")


def synthesize(folder: Path) -> Path:
    run(folder, "spec_env", "proposed_environments", n=8, held_out=0.25)
    run(folder, "admit", "environments", of="proposed_environments")
    run(folder, "propose", "proposed_tasks", of="environments", n=4, held_out=0.25)
    run(folder, "evolve", "evolved_tasks", of="proposed_tasks", environments="environments", directions=["easier"])
    run(folder, "admit", "tasks", of=["proposed_tasks", "evolved_tasks"], environments="environments")
    return folder


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthesize(tmp_path_factory.mktemp("worlds"))


def test_environments_are_split_by_number(worlds: Path) -> None:
    proposed = rows_of(worlds / "proposed_environments")
    assert Counter(spec.split for spec in proposed) == {"train": 6, "held_out": 2}
    assert len({spec.structure_digest for spec in rows_of(worlds / "environments")}) == len(
        rows_of(worlds / "environments")
    )
    assert all(spec.admission.checks and spec.structure_digest for spec in rows_of(worlds / "environments"))


def test_the_order_of_its_tables_decides_where_tasks_are_held_out_or_duplicates_left_out(worlds: Path) -> None:
    names = ["proposed_environments", "environments"]
    inputs = {"of": [Table.open(worlds / name) for name in names]}
    for operator in ("propose", "call_first"):
        assert stage(operator, of=names, n=2, held_out=0.25).tables_config(inputs) == {"order": names}
        assert stage(operator, of=names, n=2).tables_config(inputs) == {}
    assert stage("admit", of=names).tables_config(inputs) == {"order": names}


def test_tasks_of_held_out_environments_are_never_trained_on(worlds: Path) -> None:
    split_of = {spec.environment_id: spec.split for spec in rows_of(worlds / "environments")}
    for task in rows_of(worlds / "tasks"):
        assert (split_of[task.environment_id] == "held_out") == (task.split == "held_out_environments")
    per_environment = Counter((task.environment_id, task.split) for task in rows_of(worlds / "proposed_tasks"))
    for environment_id, split in split_of.items():
        if split == "train":
            assert per_environment[environment_id, "held_out_tasks"] <= 1
            assert per_environment[environment_id, "train"] <= 3


@pytest.mark.parametrize(("n", "held_out", "expected"), [(6, 0.1, 2), (4, 0.25, 4), (1, 0.5, 2), (3, 0.9, 10)])
def test_held_out_tasks_are_a_share_of_all_tasks(n: int, held_out: float, expected: int, tmp_path: Path) -> None:
    specs = [spec(f"e{number}", split="train") for number in range(4)]
    write_table(tmp_path / "environments", [specs[:1], [spec("unseen", split="held_out"), *specs[1:]]], EnvironmentSpec)
    operation = job(tmp_path, "propose", "tasks", of="environments", n=n, held_out=held_out)
    proposal: Any = operation.parameters.operation(operation.inputs, operation.context)
    splits = Counter(proposal._numbers.split(each, number) for each in specs for number in range(n))
    assert splits == {"held_out_tasks": expected, "train": 4 * n - expected}
    assert proposal._numbers.split(spec("unseen", split="held_out"), 0) == "held_out_environments"
    operation.parameters.check_inputs(operation.inputs)


class Short:
    """Makes fewer tasks than are asked for."""

    async def propose(self, spec: EnvironmentSpec, n: int, seed: int) -> AsyncIterator[Task | GenerationError]:
        for number in range(n):
            made = number < 3
            yield build_task(f"{spec.environment_id}-{number}") if made else GenerationError(TOO_FEW, "it makes three")


def test_held_out_tasks_are_also_of_environments_with_fewer_than_n(tmp_path: Path) -> None:
    def splits(numbers: Numbers, n: int, environments: int) -> Counter[str | None]:
        proposal = Proposal(numbers, (1, 5))
        proposal._generators["counter"] = Short()
        found: Counter[str | None] = Counter()
        for each in (spec(f"e{number}", family="counter") for number in range(environments)):
            (unit,) = proposal.units(each)
            results = asyncio.run(proposal.process(each, unit))
            found.update(output.split for result in results for output in result.outputs)
        return found

    first = {f"e{number}": 4 * number for number in range(60)}
    few = splits(Numbers(n=4, held_out=0.25, seed=0, first=first), 4, 60)
    assert few.total() == 180
    assert 25 <= few["held_out_tasks"] <= 65
    assert splits(Numbers(n=4, held_out=0.0, seed=0, first={}), 4, 5) == {"train": 15}
    first = {f"e{number}": 3 * number for number in range(60)}
    assert splits(Numbers(n=3, held_out=0.5, seed=0, first=first), 3, 60) == {"train": 90, "held_out_tasks": 90}


def test_far_fewer_held_out_tasks_than_were_asked_for_are_told(worlds: Path) -> None:
    parameters: Any = stage("propose", of="environments", n=4, held_out=0.25)
    manifest = job(worlds, "propose", "proposed_tasks", of="environments", n=4, held_out=0.25).finished()
    assert manifest is not None
    rows = Counter(each.split for each in rows_of(worlds / "proposed_tasks"))
    assert {name: n for name, n in manifest.metrics.items() if name.startswith("tasks.")} == {
        f"tasks.{split}": n for split, n in rows.items()
    }
    assert not any("are held out" in note for note in parameters.notes(manifest))
    lost = msgspec.structs.replace(manifest, metrics={"tasks.train": 15})
    assert "warning: 0 of 15 tasks of train environments are held out, far less than held_out: 0.25" in str(
        parameters.notes(lost)
    )


def test_held_out_tasks_that_come_to_none_are_refused(tmp_path: Path) -> None:
    write_table(tmp_path / "environments", [[spec("e0"), spec("unseen", split="held_out")]], EnvironmentSpec)
    step = job(tmp_path, "propose", "tasks", of="environments", n=6, held_out=0.1)
    with user_error("share-sets-none-aside", "0.1", "6"):
        step.parameters.check_inputs(step.inputs)


def test_variants_have_the_split_of_their_parent(worlds: Path) -> None:
    parents = {task.task_id: task for task in rows_of(worlds / "proposed_tasks")}
    evolved = rows_of(worlds / "evolved_tasks")
    assert evolved
    for task in evolved:
        (parent_id,) = task.lineage.parents
        assert task.split == parents[parent_id].split
        assert len(task.gold) < len(parents[parent_id].gold)


def test_directions_must_be_those_of_a_family(worlds: Path, tmp_path: Path) -> None:
    step = job(worlds, "evolve", "fuzzy", of="tasks", environments="environments", directions=["other", "fuzz"])
    with user_error("key-not-for-this", "`directions: fuzz` is none of family pddl", "easier, harder, other"):
        step.parameters.check_inputs(step.inputs)
    environments = [{"spec_env": "environments", "family": "toolbox"}, {"propose": "tasks", "of": "environments"}]
    evolve = {"evolve": "more", "of": "tasks", "environments": "environments", "directions": ["inject"]}
    with user_error("key-not-for-this", "more (evolve", "`directions: inject` is none of family toolbox"):
        plan_of(tmp_path, [*environments, evolve])
    searched = msgspec.structs.replace(rows_of(worlds / "environments")[0], family="search")
    others = [each for each in rows_of(worlds / "environments") if each.environment_id != searched.environment_id]
    write_table(tmp_path / "environments", [[searched, *others]], EnvironmentSpec)
    tasks = [task for task in rows_of(worlds / "tasks") if task.environment_id == searched.environment_id]
    write_table(tmp_path / "tasks", [tasks])
    manifest = run(tmp_path, "evolve", "e", of="tasks", environments="environments", directions=["other"])
    assert manifest.reasons == {"family_not_varied": len(tasks)}


def test_no_structure_is_in_two_tasks(worlds: Path) -> None:
    tasks = rows_of(worlds / "tasks")
    assert len({task.structure_digest for task in tasks}) == len(tasks)
    assert all(task.gold and task.difficulty is not None and task.admission for task in tasks)


def test_inputs_are_counted_as_proposals(worlds: Path) -> None:
    environments = len(rows_of(worlds / "environments"))
    again = job(worlds, "propose", "proposed_tasks", of="environments", n=4, held_out=0.25).finished()
    assert again is not None
    assert again.counts.read == 4 * environments
    assert again.counts.written == again.counts.used == len(rows_of(worlds / "proposed_tasks"))


def test_a_held_out_twin_of_a_train_task_does_not_stay(worlds: Path, tmp_path: Path) -> None:
    original = next(task for task in rows_of(worlds / "proposed_tasks") if task.split == "train")
    fields = {name: getattr(original, name) for name in original.__struct_fields__}
    renamed = fields["initial_state"]["problem"].replace("(define (problem ", "(define (problem another-")
    twin = type(original)(
        **{**fields, "task_id": "twin", "split": "held_out_tasks", "initial_state": {"problem": renamed}}
    )
    write_table(tmp_path / "proposed", [[original, twin]])
    (tmp_path / "environments").symlink_to(worlds / "environments")
    manifest = run(tmp_path, "admit", "tasks", of="proposed", environments="environments")
    assert manifest.counts == Counts(read=2, used=1, dropped=1, written=1)
    (letter,) = dropped_of(tmp_path / "tasks")
    assert letter.reason == "near_duplicate"
    assert letter.detail == f"of {rows_of(tmp_path / 'tasks')[0].task_id}"


def test_a_task_without_its_environment_is_dropped(worlds: Path, tmp_path: Path) -> None:
    task = rows_of(worlds / "proposed_tasks")[0]
    stray = type(task)(**{**{n: getattr(task, n) for n in task.__struct_fields__}, "environment_id": "nowhere"})
    write_table(tmp_path / "proposed", [[stray]])
    (tmp_path / "environments").symlink_to(worlds / "environments")
    assert run(tmp_path, "admit", "tasks", of="proposed", environments="environments").reasons == {"world_error": 1}
    evolved = run(tmp_path, "evolve", "evolved", of="proposed", environments="environments", n=2)
    assert evolved.reasons == {"world_error": 4}


def test_the_same_seed_gives_the_same_bytes(worlds: Path, tmp_path: Path) -> None:
    synthesize(tmp_path)
    for name in TABLES:
        assert bytes_of(tmp_path / name) == bytes_of(worlds / name), name
