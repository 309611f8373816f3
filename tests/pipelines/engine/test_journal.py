"""What is journalled comes back as it was; what was dropped, or cannot be read, is done again."""

from __future__ import annotations

import math
import multiprocessing
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from agentmill.pipelines.engine.journal import Journal, ended, renew
from agentmill.pipelines.engine.operation import Result
from agentmill.pipelines.engine.progress import progress_snapshot
from agentmill.schemas.records.trajectory import Outcome, Trajectory
from agentmill.schemas.records.verdict import Dropped, Node
from tests.builders import tool_trajectory, trajectory


def used(name: str, *outputs: Trajectory) -> Result:
    return Result(input_id=name, outputs=list(outputs))


def lost(name: str) -> Result:
    return Result(input_id=name, dropped=Dropped(input_id=name, stage="s", reason="timeout", blamed="policy"))


def test_round_trip(tmp_path: Path) -> None:
    results = [
        used("a", trajectory("a", extra={"ключ": [1, None, 0.1 + 0.2, "𝄞\u0000"]})),
        used("b", tool_trajectory("b")),
    ]
    journal = Journal(tmp_path / "work" / "journal.sqlite", Trajectory)
    journal.write(("a", "b"), results)
    journal.write(("c",), [lost("c")])
    journal.write(("d",), [])
    journal.close()
    again = Journal(tmp_path / "work" / "journal.sqlite", Trajectory)
    assert again.read(["a", "b", "c", "d", "e"]) == {"a": results[0], "b": results[1]}
    assert again.read([]) == {}
    again.close()
    assert ended(tmp_path / "work" / "journal.sqlite") == 2, "what was dropped is tried again"


@pytest.mark.parametrize("name", ["try#2", "what?", "50%25", "a b"])
def test_a_journal_is_found_whatever_its_folder_is_called(name: str, tmp_path: Path) -> None:
    path = tmp_path / name / "journal.sqlite"
    journal = Journal(path, Trajectory)
    journal.write(("a",), [used("a")])
    journal.close()
    assert ended(path) == progress_snapshot(path, 0).ended == 1
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_many_ids_at_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite", Trajectory)
    names = [f"t{i}" for i in range(1201)]
    for name in names:
        journal.write((name,), [used(name, trajectory(name))])
    assert set(journal.read(names)) == set(names)
    journal.close()


def test_what_cannot_be_decoded_counts_as_not_ended(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite", Trajectory)
    journal.write(("a", "b"), [used("a", trajectory("a")), used("b", trajectory("b"))])
    with sqlite3.connect(tmp_path / "journal.sqlite") as database:
        database.execute("UPDATE ended SET outputs = '[{' WHERE input_id = 'a'")
    database.close()
    assert set(journal.read(["a", "b"])) == {"b"}
    journal.close()


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_would_come_back_as_something_else_is_done_again(odd: float, tmp_path: Path) -> None:
    """For a table it is unrepresentable, so a stage that is broken off must not end with another table."""
    journal = Journal(tmp_path / "journal.sqlite", Trajectory, ["nodes"])
    rewarded = used("a", trajectory("a", outcome=Outcome(reward=odd)))
    noded = msgspec.structs.replace(
        used("c"), sides={"nodes": [Node(node_id="n", tree_id="c", parent_id=None, trajectory_id=None, turn=1, q=odd)]}
    )
    journal.write(("a", "b", "c"), [rewarded, used("b", trajectory("b", extra={"x": [odd]})), noded])
    journal.write(("d",), [used("d", trajectory("d", outcome=Outcome(reward=2.0**70)))])
    assert set(journal.read(["a", "b", "c", "d"])) == {"d"}
    journal.close()


def test_results_are_given_up_once_their_shard_is_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite", Trajectory)
    journal.write(("a", "b"), [used("a", trajectory("a")), used("b", trajectory("b"))])
    journal.release(["a", "z"])
    assert set(journal.read(["a", "b"])) == {"b"}
    assert ended(tmp_path / "journal.sqlite") == 2
    journal.close()


def test_what_was_dropped_has_ended_for_good_once_its_shard_is_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    journal = Journal(path, Trajectory)
    journal.write(("a", "b"), [used("a", trajectory("a")), lost("b")])
    for name in "cd":
        journal.write((name,), [lost(name)])
    journal.release(["a", "b"])
    journal.close()
    assert (ended(path), progress_snapshot(path, 0.0).ended) == (2, 4)
    renew(path, ["d"])
    assert ended(path) == progress_snapshot(path, 0.0).ended == 3
    again = Journal(path, Trajectory)
    again.write(("c",), [used("c", trajectory("c"))])
    assert set(again.read(["a", "b", "c", "d"])) == {"c"}
    again.close()
    assert ended(path) == 4


def test_no_journal_has_no_entries(tmp_path: Path) -> None:
    assert ended(tmp_path / "none.sqlite") == 0
    (tmp_path / "text.sqlite").write_text("no database at all, but long enough to be looked at" * 20)
    assert ended(tmp_path / "text.sqlite") == 0


def write_some(path: Path, worker: int) -> None:
    journal = Journal(path, Trajectory)
    for i in range(50):
        name = f"{worker}-{i}"
        journal.write((name,), [used(name, trajectory(name))])
    journal.close()


def test_workers_share_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=write_some, args=(path, worker)) for worker in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert ended(path) == 100


def test_a_journal_survives_a_kill_while_it_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.sqlite"
    journal = Journal(path, Trajectory)
    journal.write(("a",), [used("a", trajectory("a"))])

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            renew(path)
    assert not path.exists()
    path.with_name("journal.sqlite-wal").write_bytes(b"a log of the old journal")
    journal.close()
    renew(path)
    again = Journal(path, Trajectory)
    assert again.read(["a"]) == {"a": used("a", trajectory("a"))}
    again.close()


CLOSED_BY_ANOTHER = """
import sys, threading
from pathlib import Path
import sqlite3
import subprocess
import sys
from agentmill.pipelines.engine.journal import Journal
from agentmill.pipelines.engine.operation import Result
from agentmill.schemas.records.task import Task

for number in range(60):
    journal, began = Journal(Path(sys.argv[1]) / f"{number}.sqlite", Task), threading.Event()

    def use():
        try:
            while True:
                ids = [str(each) for each in range(50)]
                journal.write(ids, [Result(input_id=each, outputs=[]) for each in ids], {"a": 1.0})
                journal.read(ids)
                began.set()
        except sqlite3.ProgrammingError as error:
            assert "closed" in str(error)

    thread = threading.Thread(target=use)
    thread.start()
    began.wait()
    journal.close()
    thread.join()
print("all closed")
"""


def test_a_journal_is_closed_while_another_thread_uses_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLOSED_BY_ANOTHER, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "all closed\n", "")
