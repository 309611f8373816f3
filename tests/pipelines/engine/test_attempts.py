"""A worker of an attempt that is over can change nothing that is read, and what an attempt has done is taken over."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agentmill.pipelines.engine import attempts
from agentmill.pipelines.engine.chunks import Chunk, plan, read_chunk
from agentmill.pipelines.engine.journal import Journal, ended
from agentmill.pipelines.engine.operation import Result
from agentmill.pipelines.engine.run import run_stage
from agentmill.pipelines.engine.shard import Shard
from agentmill.pipelines.engine.stage_run import StageRun
from agentmill.pipelines.engine.workspace import Halt, Plan, Superseded, Workspace, create_note, read_note
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.verdict import Dropped
from agentmill.schemas.tables import Table
from tests.errors import user_error
from tests.pipelines.engine.operations import Shout
from tests.pipelines.engine.stages import bytes_of, order, rows_of, task, write_table


@pytest.fixture
def tasks(tmp_path: Path) -> Table:
    return write_table(tmp_path / "tasks", [[task(i) for i in range(25)]])


def begun(request: StageRun, chunks: list[Chunk]) -> Workspace:
    return attempts.begin(request.folder, Plan(provenance=request.provenance, chunks=len(chunks)))


def made(chunk: Chunk, suffix: str) -> Shard:
    """The shard of a worker that puts ``suffix`` behind every instruction."""
    shard = Shard(chunk, Shout())
    for record in read_chunk(chunk, Task):
        output = msgspec.structs.replace(record, instruction=record.instruction.upper() + suffix)
        shard.add([record.task_id], [Result(input_id=record.task_id, outputs=[output])])
    return shard


def test_a_worker_of_an_earlier_attempt_cannot_change_a_finished_table(tasks: Table, tmp_path: Path) -> None:
    chunks = plan([tasks], 10)
    late = begun(order(Shout(), tasks, tmp_path / "out", config={"discount": 0.9}), chunks)
    run_stage(order(Shout(), tasks, tmp_path / "out", config={"discount": 0.5}))
    before = bytes_of(tmp_path / "out")
    for chunk in chunks:
        with pytest.raises(Superseded):
            late.store("results", made(chunk, "!"), Task)
    with pytest.raises(Superseded):
        late.halt("late")
    assert bytes_of(tmp_path / "out") == before
    assert not any(row.instruction.endswith("!") for row in rows_of(tmp_path / "out"))


def test_a_worker_in_the_middle_of_writing_is_too_late_as_well(
    tasks: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked, and the other attempt begins and ends before it writes."""
    chunks = plan([tasks], 10)
    request = order(Shout(), tasks, tmp_path / "out", config={"discount": 0.5})
    late = begun(order(Shout(), tasks, tmp_path / "out"), chunks)
    shard = made(chunks[0], "!")
    results = Shard.result

    def slow(self: Shard, *given: object) -> object:
        monkeypatch.undo()
        run_stage(request)
        return results(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Shard, "result", slow)
    with pytest.raises(Superseded):
        late.store("results", shard, Task)
    assert not any(row.instruction.endswith("!") for row in rows_of(tmp_path / "out"))
    assert all(path.parts[-3] != "out" for path in (tmp_path / "out").rglob("*.tmp"))


def test_of_two_workers_with_one_chunk_the_first_counts(tasks: Table, tmp_path: Path) -> None:
    (chunk, *_) = chunks = plan([tasks], 10)
    workspace = begun(order(Shout(), tasks, tmp_path / "out"), chunks)
    first = workspace.store("results", made(chunk, "1"), Task)
    assert workspace.store("results", made(chunk, "2"), Task) == first
    assert [path.name for path in workspace.path.glob("00000-*")] == [first.place]
    workspace.publish([first])
    assert (tmp_path / "out/data/part-00000.parquet").samefile(workspace.path / first.place / "data/part-00000.parquet")


def test_what_an_equal_attempt_has_done_is_taken_over_and_what_is_damaged_is_done_again(
    tasks: Table, tmp_path: Path
) -> None:
    request = order(Shout(), tasks, tmp_path / "out")
    chunks = plan([tasks], 10)
    workspace = begun(request, chunks)
    whole, damaged = (workspace.store("results", made(chunk, "!"), Task) for chunk in chunks[:2])
    path = workspace.path / damaged.place / "data" / damaged.data.name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    again = begun(request, chunks)
    assert not workspace.path.exists()
    assert again.attempt != workspace.attempt
    assert again.finished("results") == {chunks[0].index}
    assert [each.name for each in again.path.glob("[0-9]*-*/")] == [whole.place]
    run_stage(request)
    assert [row.instruction.endswith("!") for row in rows_of(tmp_path / "out")] == [
        index < chunks[0].stop for index in range(25)
    ]
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["data", "manifest.json"]


def test_what_another_plan_has_done_is_removed(tasks: Table, tmp_path: Path) -> None:
    chunks = plan([tasks], 10)
    other = begun(order(Shout(), tasks, tmp_path / "out", config={"n": 1}), chunks)
    other.store("results", made(chunks[0], "!"), Task)
    workspace = begun(order(Shout(), tasks, tmp_path / "out", config={"n": 2}), chunks)
    assert workspace.finished("results") == set()
    assert list((tmp_path / "out/.work").iterdir()) == [workspace.path]


@pytest.mark.parametrize("where", ["results", "journal"])
def test_unfinished_work_that_was_made_differently_is_not_removed_unless_it_is_wished(
    where: str, tasks: Table, tmp_path: Path
) -> None:
    chunks = plan([tasks], 10)
    earlier = order(Shout(), tasks, tmp_path / "out", config={"n": 1})
    workspace = begun(earlier, chunks)
    changed = order(Shout(), tasks, tmp_path / "out", config={"n": 2})
    # Nothing is done yet, so nothing would be lost.
    attempts.refuse_other_work(changed.folder, changed.provenance, [])
    if where == "results":
        workspace.store("results", made(chunks[0], "!"), Task)
    else:
        with journal(workspace) as held:
            held.write(["task-0000"], [Result(input_id="task-0000", outputs=[task(0)])])
    done = len(read_chunk(chunks[0], Task)) if where == "results" else 1
    with user_error("made-differently", f"its {done} inputs", "n: 1 -> 2", "--replace"):
        run_stage(changed)
    assert workspace.path.exists()
    attempts.refuse_other_work(earlier.folder, earlier.provenance, [])
    run_stage(msgspec.structs.replace(changed, replace=True))
    assert len(rows_of(tmp_path / "out")) == 25


def test_unfinished_work_whose_plan_is_damaged_is_not_removed_without_a_word(tasks: Table, tmp_path: Path) -> None:
    request = order(Shout(), tasks, tmp_path / "out")
    chunks = plan([tasks], 10)
    workspace = begun(request, chunks)
    (workspace.path / "plan.json").write_bytes(b"")
    attempts.refuse_other_work(request.folder, request.provenance, [])
    workspace.store("results", made(chunks[0], "!"), Task)
    with user_error("journal-unreadable", "plan.json is damaged", f"its {chunks[0].stop} inputs", "--replace"):
        run_stage(request)
    run_stage(msgspec.structs.replace(request, replace=True))
    assert len(rows_of(tmp_path / "out")) == 25


def test_who_has_the_journal_of_an_earlier_attempt_open_writes_into_nothing(tasks: Table, tmp_path: Path) -> None:
    request = order(Shout(), tasks, tmp_path / "out")
    chunks = plan([tasks], 10)
    workspace = begun(request, chunks)
    with journal(workspace) as late:
        late.write(["task-0000"], [Result(input_id="task-0000", outputs=[task(0)])])
        again = begun(request, chunks)
        late.write(["task-0001"], [Result(input_id="task-0001", outputs=[task(1)])])
        assert ended(again.journal) == 1
    with journal(again) as held:
        assert held.read(["task-0000", "task-0001"]).keys() == {"task-0000"}


def test_inputs_that_a_finished_chunk_dropped_have_ended(tasks: Table, tmp_path: Path) -> None:
    chunks = plan([tasks], 10)
    request = order(Shout(), tasks, tmp_path / "out")
    workspace = begun(request, chunks)
    letters = {i: Dropped(input_id=f"task-{i:04d}", stage="shout", reason="timeout", blamed="policy") for i in (0, 20)}
    shard = Shard(chunks[0], Shout())
    with journal(workspace) as held:
        for row, record in enumerate(read_chunk(chunks[0], Task)):
            outputs = [] if row in letters else [record]
            result = Result(input_id=record.task_id, outputs=outputs, dropped=letters.get(row))
            held.write([record.task_id], [result])
            shard.add([record.task_id], [result], {})
        held.write(["task-0020"], [Result(input_id="task-0020", dropped=letters[20])])
    stored = workspace.store("results", shard, Task)
    assert stored.passing == 1
    assert ended(begun(request, chunks).journal) == stored.counts.read


def test_a_journal_that_was_only_begun_is_taken_over(tasks: Table, tmp_path: Path) -> None:
    """As where the device was full."""
    request = order(Shout(), tasks, tmp_path / "out")
    workspace = begun(request, plan([tasks], 10))
    with contextlib.closing(sqlite3.connect(workspace.journal)) as database:
        database.execute("CREATE TABLE ended (input_id TEXT PRIMARY KEY, outputs BLOB)")
    assert run_stage(request).counts.used == 25


def test_a_journal_that_cannot_be_read_is_an_error_that_says_what_to_do(tasks: Table, tmp_path: Path) -> None:
    request = order(Shout(), tasks, tmp_path / "out")
    workspace = begun(request, plan([tasks], 10))
    workspace.journal.write_bytes(b"SQLite format 3\0" + b"\0" * 200)
    with pytest.raises(Exception, match="cannot be taken over") as error:
        run_stage(request)
    assert len(str(error.value).splitlines()) == 2
    left = attempts.current(tmp_path / "out")
    assert left is not None
    left.journal.unlink()
    assert run_stage(request).counts.used == 25


def test_a_note_is_created_once_also_where_the_file_system_has_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    for name in ("linked", "copied"):
        note = tmp_path / name
        assert create_note(note, Halt(reason="first"))
        assert not create_note(note, Halt(reason="second"))
        assert read_note(note, Halt) == Halt(reason="first")
        monkeypatch.setattr("os.link", refuse)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copied", "linked"]


@contextlib.contextmanager
def journal(workspace: Workspace) -> Iterator[Journal]:
    held = Journal(workspace.journal, Task)
    try:
        yield held
    finally:
        with contextlib.suppress(sqlite3.Error):
            held.close()
