"""Tasks from executed chains of calls: they are chains, are admitted and solved, and a model may write the requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.operators.bounds import Rows
from agentmill.pipelines.operators.call_first import CallFirst
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import ApiAction
from agentmill.schemas.tables import Counts, Manifest
from agentmill.synthesis.environments.toolbox.examples import LIBRARY
from agentmill.synthesis.generators.toolbox_tasks.call_chains import CallChains
from tests.errors import user_error
from tests.pipelines.engine.stages import dropped_of, rows_of, write_table
from tests.pipelines.operators.steps import SEED, job, model, run, stage
from tests.synthesis.environments.examples import WAREHOUSE_SPEC
from tests.synthesis.environments.toolbox.boxes import LIBRARY_SPEC

WRITES = {tool.name for tool in LIBRARY.tools if tool.writes}


def make(folder: Path, name: str, models: dict[str, Any] | None = None, **parameters: Any) -> list[Task]:
    if not (folder / "environments").exists():
        write_table(folder / "environments", [[LIBRARY_SPEC]], EnvironmentSpec)
    run(folder, "call_first", name, models, of="environments", **parameters)
    return [row for row in rows_of(folder / name) if isinstance(row, Task)]


def calls_of(task: Task) -> list[ApiAction]:
    *calls, last = [each for each in task.gold or [] if isinstance(each, ApiAction)]
    assert last.function == "finish"
    return calls


def changes(task: Task) -> bool:
    return any(call.function in WRITES for call in calls_of(task))


def test_tasks_are_different_admitted_and_solved_by_the_expert(tmp_path: Path) -> None:
    tasks = make(tmp_path, "tasks", n=8, held_out=0.25)
    assert len({task.structure_digest for task in tasks}) == len({task.task_id for task in tasks}) == 8
    assert {task.lineage.operator for task in tasks if task.lineage} == {"call_first"}
    assert sorted(str(task.split) for task in tasks) == ["held_out_tasks"] * 2 + ["train"] * 6
    admitted = run(tmp_path, "admit", "admitted", of="tasks", environments="environments")
    assert admitted.counts == Counts(read=8, used=8, dropped=0, written=8)
    run(tmp_path, "expert", "played", {"actor": model()}, policy="p", tasks="admitted", environments="environments")
    assert [row.outcome.status for row in rows_of(tmp_path / "played")] == ["success"] * 8


def test_length_and_the_share_that_changes_something_have_their_effect(tmp_path: Path) -> None:
    short = make(tmp_path, "short", n=4, length=[1, 1])
    assert {len(calls_of(task)) for task in short} == {1}
    assert sum(map(changes, short)) == 2
    longer = make(tmp_path, "longer", n=4, length=[2, 3], changing=1)
    assert {len(calls_of(task)) for task in longer} <= {2, 3}
    assert all(map(changes, longer))
    reading = make(tmp_path, "reading", n=4, length=[2, 3], changing=0)
    assert not any(map(changes, reading))
    assert all(task.goal["answers"] for task in reading)
    assert {task.task_id for task in make(tmp_path, "other", n=4, seed=SEED + 1)}.isdisjoint(
        task.task_id for task in make(tmp_path, "same", n=4)
    )


def test_what_cannot_be_made_is_refused_with_the_number_there_is(tmp_path: Path) -> None:
    write_table(tmp_path / "environments", [[LIBRARY_SPEC]], EnvironmentSpec)
    step = job(tmp_path, "call_first", "tasks", of="environments", n=12, length=[4, 4], changing=1)
    manifest = step.run()
    made = manifest.counts.written
    assert 0 < made < 12
    assert manifest.reasons == {"too_few_tasks": 12 - made}
    letter = dropped_of(tmp_path / "tasks")[0]
    assert f"has {made} different chains of 4 to 4 calls that change something, and 12 are wanted" in letter.detail
    (note,) = step.parameters.notes(manifest)
    assert note.startswith(f"warning: {12 - made} tasks cannot be made: some environments have too few")


def library_task(n: int = 1, **changed: Any) -> Task:
    """The first task by rules that a model is given to write anew."""
    found = CallChains(changed.get("length", (3, 3))).proposals(LIBRARY_SPEC, n, changed.get("changing", 1.0), SEED)
    task = next(found)
    assert isinstance(task, Task)
    return task


def translated(folder: Path, *turns: str, **parameters: Any) -> Manifest:
    write_table(folder / "environments", [[LIBRARY_SPEC]], EnvironmentSpec)
    writer = {"generator": model("scripted", turns=list(turns))}
    given = {"length": [3, 3], "changing": 1, "seed": SEED, **parameters}
    return run(folder, "call_first", "tasks", writer, of="environments", backend="llm", policy="w", n=1, **given)


def request(words: str) -> str:
    return json.dumps({"request": words})


def in_other_words(task: Task) -> str:
    """The request of rules, in another order of words: all that only the user knows is in it."""
    return f"Could you do this for me? {task.instruction}"


def test_a_model_writes_the_request_from_the_calls(tmp_path: Path) -> None:
    by_rules = library_task()
    words = in_other_words(by_rules)
    assert translated(tmp_path, f"Sure: {request(words)}").counts.written == 1
    (task,) = rows_of(tmp_path / "tasks")
    assert (task.instruction, task.gold, task.goal) == (words, by_rules.gold, by_rules.goal)
    assert (task.lineage.notes["backend"], task.lineage.notes["repairs"]) == ("llm", 0)
    assert task.lineage.notes["wording"] == by_rules.instruction
    assert task.initial_state == {"request": {"template": words}}
    assert task.task_id != by_rules.task_id
    assert run(tmp_path, "admit", "admitted", of="tasks", environments="environments").counts.written == 1
    run(tmp_path, "wrap_env", "hard_environments", of="environments", faults=0.5)
    assert run(tmp_path, "wrap_env", "hard", of="tasks", environments="hard_environments").counts.written == 1


def faulty() -> dict[str, tuple[str, str]]:
    by_rules = library_task()
    words = in_other_words(by_rules)
    (slot, *_) = by_rules.initial_state["request"]["slots"].values()
    key = str(calls_of(by_rules)[-1].kwargs["loan_id" if "loan_id" in calls_of(by_rules)[-1].kwargs else "member_id"])
    return {
        "no object": (words, "there is no JSON object"),
        "another key": (json.dumps({"text": words}), "unknown field `text`"),
        "empty": (request(" "), "the request is empty"),
        "a value that only the user knows": (request(words.replace(slot["text"], "them")), "does not say"),
        "a key that is to be found": (request(f"{words} That is number {key}."), "which a call is to find"),
    }


@pytest.mark.parametrize("fault", faulty())
def test_a_faulty_request_goes_back_with_the_reason(fault: str, tmp_path: Path) -> None:
    text, reason = faulty()[fault]
    assert translated(tmp_path, text, request(in_other_words(library_task()))).counts.written == 1
    assert rows_of(tmp_path / "tasks")[0].lineage.notes["repairs"] == 1
    again = tmp_path / "again"
    again.mkdir()
    assert translated(again, text, repairs=0).reasons == {"unrepaired": 1}
    (letter,) = dropped_of(again / "tasks")
    assert reason in letter.detail


def test_a_request_that_tells_the_answer_of_a_chain_that_only_reads_is_refused(tmp_path: Path) -> None:
    reading = {"length": (2, 2), "changing": 0.0}
    task = library_task(**reading)
    answer = task.goal["answers"][0]["value"]
    told = request(f"{task.instruction} I guess it is {answer}.")
    given = {"length": [2, 2], "changing": 0}
    assert translated(tmp_path, told, repairs=0, **given).reasons == {"unrepaired": 1}
    assert "away" in dropped_of(tmp_path / "tasks")[0].detail
    again = tmp_path / "again"
    again.mkdir()
    assert translated(again, told, request(task.instruction), **given).counts.written == 1


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"length": [0, 2]}, "is no range"),
        ({"length": [3, 2]}, "is no range"),
        ({"backend": "llm"}, "needs `policy`"),
        ({"policy": "p"}, "needs `policy`"),
        ({"repairs": 2}, "goes with `backend: llm`"),
    ],
)
def test_parameters_that_do_not_go_together(parameters: dict[str, Any], words: str) -> None:
    with user_error("rule-broken", words):
        stage("call_first", of="environments", **parameters)


def test_other_families_are_refused_before_the_step(tmp_path: Path) -> None:
    seed_table(tmp_path / "planning", [WAREHOUSE_SPEC])
    step = job(tmp_path, "call_first", "tasks", of="planning")
    with user_error("key-not-for-this", "family pddl", "`propose`"):
        step.parameters.check_inputs(step.inputs)


def test_an_environment_that_cannot_be_used_is_dropped_with_the_reason(tmp_path: Path) -> None:
    broken = EnvironmentSpec(environment_id="b", family="toolbox", name="b", source="{}")
    write_table(tmp_path / "environments", [[broken]], EnvironmentSpec)
    assert run(tmp_path, "call_first", "tasks", of="environments", n=3).reasons == {"broken_environment": 3}


def test_bounds_hold_the_tasks_and_the_requests_to_a_model() -> None:
    step = stage("call_first", of="environments", n=10, length=[1, 3], held_out=0.1)
    assert isinstance(step, CallFirst)
    rows = step.bounds({"of": Rows(n=2, splits={"train": 1, "held_out": 1})}, {}).rows
    assert (rows.n, rows.plan, rows.turns) == (20, 4, 14)
    assert rows.splits == {"train": 9, "held_out_tasks": 1, "held_out_environments": 10}
