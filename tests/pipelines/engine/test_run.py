"""What a stage makes of its rows, what it says of them, and when it makes anything at all."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import polars
import pyarrow.parquet
import pytest

from agentmill.pipelines.engine import async_dofn, attempts, run
from agentmill.pipelines.engine.execute import StageFailed
from agentmill.pipelines.engine.provenance import changed, provenance
from agentmill.pipelines.engine.run import run_stage
from agentmill.pipelines.terminal.progress import summary
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.task import Task
from agentmill.schemas.tables import Counts, Table
from agentmill.synthesis.environments.environment import EnvError
from tests.errors import user_error
from tests.pipelines.engine.operations import FAULTS, Counted, Distinct, Explore, Shout
from tests.pipelines.engine.stages import bytes_of, dropped_of, order, rows_of, task, write_table


@pytest.fixture
def tasks(tmp_path: Path) -> Table:
    """Three shards; five of the 32 tasks cannot be used."""
    faults = {3: "world", 5: "bug", 6: "skip", 8: "unrepresentable", 11: "generation"}
    rows = [task(i, faults.get(i, "")) for i in range(32)]
    return write_table(tmp_path / "tasks", [rows[:25], [], rows[25:]])


def test_every_input_is_used_or_dropped_once(tasks: Table, tmp_path: Path) -> None:
    manifest = run_stage(order(Shout(), tasks, tmp_path / "out", config={"loud": True}))
    reasons = {"malformed": 1, "skipped": 1, "unexpected_error": 1, "unrepresentable": 1, "world_error": 1}
    assert manifest.counts == Counts(read=32, used=27, dropped=5, written=27)
    assert manifest.reasons == reasons
    assert manifest.metrics == {"letters": sum(len(row.instruction) for row in rows_of(tmp_path / "out"))}
    used = {row.task_id for row in rows_of(tmp_path / "out")}
    dropped = {letter.input_id for letter in dropped_of(tmp_path / "out")}
    assert used | dropped == {f"task-{i:04d}" for i in range(32)}
    assert not used & dropped
    assert all(row.instruction.isupper() for row in rows_of(tmp_path / "out"))
    assert summary(manifest).startswith("read 32, used 27, dropped 5 (")


def test_dead_letters_name_the_party_at_fault_and_hold_the_input(tasks: Table, tmp_path: Path) -> None:
    run_stage(order(Shout(), tasks, tmp_path / "out"))
    letters = {letter.reason: letter for letter in dropped_of(tmp_path / "out")}
    blamed = {reason: (letter.blamed, letter.detail) for reason, letter in letters.items()}
    assert blamed["world_error"] == ("environment", "the floor is lava")
    assert blamed["malformed"] == ("generator", "no PDDL")
    assert blamed["skipped"] == ("input", "")
    assert blamed["unrepresentable"][1].startswith("field goal.limit: nan")
    assert blamed["unexpected_error"][1].startswith("ZeroDivisionError: division by zero (in process, operations.py:")
    assert letters["malformed"].input["history"] == [{"attempt": 1}]
    assert letters["world_error"].input["instruction"] == "do thing 3"
    assert {letter.stage for letter in letters.values()} == {"shout"}


def test_an_operation_sees_the_records_of_a_chunk_before_it_works_on_them(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tasks", [[task(i) for i in range(7)], [task(7)]])
    run_stage(order(Counted(), table, tmp_path / "out"))
    assert [row.instruction for row in rows_of(tmp_path / "out")] == ["one of 3"] * 3 + ["one of 4"] * 4 + ["one of 1"]


def test_one_chunk_is_one_shard_sorted_by_id(tmp_path: Path) -> None:
    rows = [task(i) for i in (7, 3, 9, 1, 0, 8, 2, 4, 6, 5, 10, 12, 11)]
    table = write_table(tmp_path / "tasks", [rows])
    manifest = run_stage(order(Shout(), table, tmp_path / "out"))
    assert [file.rows for file in manifest.files] == [6, 7]
    shards = [
        pyarrow.parquet.read_table(path).column("task_id").to_pylist() for path in Table.open(tmp_path / "out").shards()
    ]
    assert shards == [sorted(shard) for shard in shards]
    assert sorted(shards[0] + shards[1]) == [f"task-{i:04d}" for i in range(13)]
    assert polars.scan_parquet(tmp_path / "out" / "data").collect().height == 13


def test_nothing_else_is_left_in_the_folder(tasks: Table, tmp_path: Path) -> None:
    run_stage(order(Distinct(), tasks, tmp_path / "out"))
    run_stage(order(Explore(), tasks, tmp_path / "explored"))
    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == ["data", "manifest.json"]
    assert sorted(entry.name for entry in (tmp_path / "explored").iterdir()) == ["data", "dropped", "manifest.json"]


def test_what_a_kill_after_the_manifest_left_behind_goes_with_the_next_run(tasks: Table, tmp_path: Path) -> None:
    run_stage(order(Shout(), tasks, tmp_path / "out"))
    for name in (".tmp/data-part-00000.parquet.x", ".work/journal.sqlite"):
        left = tmp_path / "out" / name
        left.parent.mkdir()
        left.write_text("left")
    run_stage(order(Shout(), tasks, tmp_path / "out"))
    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == ["data", "dropped", "manifest.json"]


def test_near_duplicates_lose_to_the_first_table_and_name_the_winner(tmp_path: Path) -> None:
    first = write_table(tmp_path / "first", [[task(50 + i, instruction=f"Do {i % 4}") for i in range(6)]])
    second = write_table(
        tmp_path / "second", [[task(i, instruction=f"do {i}") for i in range(12)], [task(90, instruction="")]]
    )
    request = order(Distinct(), first, tmp_path / "out")
    manifest = run_stage(
        type(request)(**{**{f: getattr(request, f) for f in request.__struct_fields__}, "primary": [first, second]})
    )
    assert manifest.counts == Counts(read=19, used=13, dropped=6, written=13)
    lost = {letter.input_id: letter.detail for letter in dropped_of(tmp_path / "out")}
    assert lost == {
        "task-0054": "of task-0050",
        "task-0055": "of task-0051",
        "task-0000": "of task-0050",
        "task-0001": "of task-0051",
        "task-0002": "of task-0052",
        "task-0003": "of task-0053",
    }
    assert {letter.reason for letter in dropped_of(tmp_path / "out")} == {"near_duplicate"}


def test_rollouts_count_episodes(tasks: Table, tmp_path: Path) -> None:
    manifest = run_stage(order(Explore(k=3), tasks, tmp_path / "out"))
    assert manifest.counts == Counts(read=96, used=87, dropped=9, written=87)
    assert manifest.metrics == {"success": 87.0}


def test_the_same_stage_is_not_run_twice(tasks: Table, tmp_path: Path) -> None:
    first = run_stage(order(Shout(), tasks, tmp_path / "out", config={"n": 8}))
    before = bytes_of(tmp_path / "out")
    log = tmp_path / "log"
    assert run_stage(order(Shout(), tasks, tmp_path / "out", config={"n": 8})) == first
    assert bytes_of(tmp_path / "out") == before
    assert not log.exists()


def test_a_changed_configuration_is_named_and_replaced_on_request(tasks: Table, tmp_path: Path) -> None:
    run_stage(order(Shout(), tasks, tmp_path / "out", config={"n": 8, "deep": {"k": 1}}))
    changed = order(Shout(), tasks, tmp_path / "out", config={"n": 12, "deep": {"k": 2}})
    with pytest.raises(UserError) as caught:
        run_stage(changed)
    first, second = str(caught.value).splitlines()
    assert first == f"{tmp_path / 'out'} was made differently: n: 8 -> 12; deep.k: 1 -> 2"
    assert "--replace" in second
    manifest = run_stage(order(Shout(), tasks, tmp_path / "out", config={"n": 12}, replace=True))
    assert manifest.config == {"n": 12}


def test_other_rows_under_the_same_name_are_another_input(tasks: Table, tmp_path: Path) -> None:
    run_stage(order(Shout(), tasks, tmp_path / "out"))
    other = write_table(tmp_path / "elsewhere" / "tasks", [[task(1)]])
    with user_error("made-differently", "of/tasks"):
        run_stage(order(Shout(), other, tmp_path / "out"))


def test_tables_of_one_name_are_the_same_input_in_another_order(tmp_path: Path) -> None:
    rounds = [write_table(tmp_path / name / "rows", [[task(i)]]) for i, name in enumerate(("first", "second"))]
    made_from, turned = (provenance("shout", {}, {"of": each}) for each in (rounds, rounds[::-1]))
    assert made_from != turned
    assert changed(made_from, turned) == []
    other = write_table(tmp_path / "third/rows", [[task(2)]])
    assert changed(made_from, provenance("shout", {}, {"of": [other, rounds[0]]})) == [
        "input of/rows: other rows",
        "input of/rows#1: other rows",
    ]
    assert changed(made_from, provenance("shout", {}, {"of": rounds[:1]})) == ["input of/rows#1: gone"]


def test_tables_that_are_called_like_numbered_ones_are_inputs_of_their_own(tmp_path: Path) -> None:
    places = ("a/rows", "b/rows", "a/rows-1", "a/rows-2")
    tables = [write_table(tmp_path / place, [[task(i)]]) for i, place in enumerate(places)]
    made_from = provenance("shout", {}, {"of": tables})
    assert [*made_from.inputs] == ["of/rows", "of/rows#1", "of/rows-1", "of/rows-2"]
    third, fourth = (
        write_table(tmp_path / "c" / table.folder.name, [[task(i)]]) for i, table in ((3, tables[2]), (2, tables[3]))
    )
    assert changed(made_from, provenance("shout", {}, {"of": [*tables[:2], third, fourth]})) == [
        "input of/rows-1: other rows",
        "input of/rows-2: other rows",
    ]


def test_a_manifest_of_an_earlier_version_numbers_tables_of_one_name_with_a_hyphen(tmp_path: Path) -> None:
    tables = [write_table(tmp_path / place, [[task(i)]]) for i, place in enumerate(("a/rows", "b/rows", "c/tasks-1"))]
    wanted = provenance("shout", {}, {"of": tables})
    one, two, three = (table.digest for table in tables)
    earlier = msgspec.structs.replace(wanted, inputs={"of/rows": one, "of/rows-1": two, "of/tasks-1": three})
    assert changed(earlier, wanted) == []


def test_a_moved_input_is_the_same_input(tasks: Table, tmp_path: Path) -> None:
    run_stage(order(Shout(), tasks, tmp_path / "out"))
    moved = tasks.folder.rename(tmp_path / "elsewhere")
    again = write_table(
        tmp_path / "x" / "tasks", [list(Table.open(moved).rows())[:25], [], list(Table.open(moved).rows())[25:]]
    )
    assert again.digest == Table.open(moved).digest
    run_stage(order(Shout(), again, tmp_path / "out"))


@pytest.mark.parametrize("becomes", ["made anew", "removed"])
def test_a_table_of_two_versions_of_its_input_is_not_finished(
    becomes: str, tasks: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remake() -> Exception:
        shutil.rmtree(tasks.folder)
        if becomes == "made anew":
            write_table(tasks.folder, [[task(i) for i in range(100, 125)], [task(1)]])
        return EnvError("the floor is lava")

    monkeypatch.setitem(FAULTS, "user", remake)
    last = write_table(tmp_path / "last", [[task(40, "user")]])
    request = order(Shout(), last, tmp_path / "out", inputs=[last, tasks])
    with user_error("file-changed", "step out", str(tasks.folder), becomes):
        run_stage(request)
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert not (tmp_path / "out" / "data").exists()


def test_a_program_that_exits_drops_its_input_and_does_not_end_the_run(
    tasks: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAULTS, "bug", lambda: SystemExit("bye"))
    assert run_stage(order(Shout(), tasks, tmp_path / "out")).counts.used == 27
    letters = {letter.reason: letter for letter in dropped_of(tmp_path / "out")}
    assert "SystemExit: bye" in letters["unexpected_error"].detail


def test_a_killed_stage_is_not_continued_with_its_tables_in_another_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = write_table(tmp_path / "one", [[task(i) for i in range(3)]])
    two = write_table(tmp_path / "two", [[task(i, "user" if i == 3 else "") for i in range(3, 8)]])
    made_from = provenance("shout", {}, {"of": [one, two]})
    request = msgspec.structs.replace(order(Shout(), one, tmp_path / "out"), provenance=made_from)
    with user_error("no-such-file"):
        run_stage(msgspec.structs.replace(request, primary=[one, two]))
    monkeypatch.delitem(FAULTS, "user")
    turned = msgspec.structs.replace(request, primary=[two, one])
    with user_error("made-differently", "its 3 inputs", "its input tables come in another order", "--replace"):
        run_stage(turned)
    run_stage(msgspec.structs.replace(turned, replace=True))
    assert [row.task_id for row in rows_of(tmp_path / "out")] == [f"task-{i:04d}" for i in (3, 4, 5, 6, 7, 0, 1, 2)]


def test_an_empty_input_is_refused_with_what_became_of_its_rows(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tasks", [[task(i, "world") for i in range(4)]])
    manifest = run_stage(order(Shout(), table, tmp_path / "out"))
    assert manifest.counts == Counts(read=4, used=0, dropped=4, written=0)
    with user_error("nothing-to-do", "4"):
        run_stage(order(Shout(), Table.open(tmp_path / "out"), tmp_path / "next"))
    assert not (tmp_path / "next").exists()


def test_struct_types_are_prepared_before_threads_read_records(
    tasks: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[str] = []
    monkeypatch.setattr(run, "prepare_struct_types", lambda: prepared.append("run"))
    monkeypatch.setattr(async_dofn, "prepare_struct_types", lambda: prepared.append("worker"))
    run_stage(order(Shout(), tasks, tmp_path / "out"))
    assert (prepared[0], set(prepared)) == ("run", {"run", "worker"})


def test_no_row_meant_for_the_stage(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tasks", [[task(1)]])
    with user_error("nothing-to-do", "out"):
        run_stage(order(Explore(k=0), table, tmp_path / "out"))


@pytest.mark.parametrize("runner", ["embedded", "bundle_retry"])
@pytest.mark.parametrize(
    ("fault", "expected"), [("twice", "a second or a foreign result"), ("silent", "no result for inputs")]
)
def test_a_broken_contract_fails_the_stage(fault: str, expected: str, runner: str, tmp_path: Path) -> None:
    table = write_table(tmp_path / "tasks", [[task(0), task(1, fault)]])
    with pytest.raises(StageFailed, match=expected):
        run_stage(order(Shout(), table, tmp_path / "out", runner={"name": runner}))
    left = attempts.current(tmp_path / "out")
    assert left is not None
    assert "EngineError" in (left.path / "failure.txt").read_text()
    with user_error("table-unfinished"):
        Table.open(tmp_path / "out")


@pytest.mark.parametrize("operation", [Shout(), Explore()])
@pytest.mark.parametrize("runner", ["embedded", "bundle_retry", "multi_threading"])
def test_a_mistake_of_the_user_passes_through_every_runner(operation: Any, runner: str, tmp_path: Path) -> None:
    table = write_table(tmp_path / "tasks", [[task(0), task(1, "user")]])
    with user_error("no-such-file"):
        run_stage(order(operation, table, tmp_path / "out", runner={"name": runner}))


def test_a_large_input_is_kept_as_a_reference(tmp_path: Path) -> None:
    large: Task = task(0, "world", instruction="x" * 70_000)
    table = write_table(tmp_path / "tasks", [[task(1), large]])
    run_stage(order(Shout(), table, tmp_path / "out"))
    (letter,) = dropped_of(tmp_path / "out")
    assert letter.input == {"shard": str(table.shards()[0]), "row": 1}


def test_a_damaged_input_is_named(tasks: Table, tmp_path: Path) -> None:
    shard = tasks.shards()[0]
    content = bytearray(shard.read_bytes())
    content[200:400] = bytes(200)
    shard.write_bytes(content)
    with user_error("damaged-file", "part-00000.parquet"):
        run_stage(order(Shout(), tasks, tmp_path / "out"))
