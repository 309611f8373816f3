"""Rows as tokens on disk: each file is made once, by whichever process has it, and what is read is what was encoded."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import psutil
import pyarrow as pa
import pytest

from agentmill.schemas.records.rows import SftRow
from agentmill.schemas.tables import Table, read_shard
from agentmill.trainers import token_shards
from agentmill.trainers.token_shards import LENGTH, MASK, TOKENS, Columns, FileMaker, TokenShards
from tests.errors import user_error
from tests.pipelines.engine.stages import write_table
from tests.trainers.tables import turns

SIZES = (300, 2, 600)
"""Rows of each file: some record batches, and less than one."""


class Counted(msgspec.Struct):
    """What is counted in a file."""

    rows: int


class Numbered:
    """An example that is as long as its number."""

    types: ClassVar[Columns] = {"ids": TOKENS, "mask": MASK, "weight": pa.float64()}

    def __init__(self, number: int) -> None:
        self.ids = np.arange(number, dtype=np.int32)

    def __len__(self) -> int:
        return len(self.ids)

    def columns(self) -> dict[str, Any]:
        return {"ids": self.ids, "mask": self.ids % 2 == 0, "weight": len(self) / 4}


@dataclass(frozen=True)
class NumberMaker(FileMaker[Numbered, Counted]):
    """Makes an example of the number in the id of each row, and notes each file that it makes in a folder."""

    types: Columns
    notes: Path
    fails: str = ""
    counts: ClassVar[type[Any]] = Counted

    def make(self, path: Path, keep: Callable[[Sequence[Numbered]], None]) -> Counted:
        rows = read_shard(path, SftRow)
        for row in rows:
            keep([Numbered(int(row.row_id))])
        if path.name == self.fails:
            raise ValueError(path)
        self.notes.mkdir(exist_ok=True)
        (self.notes / f"{path.name} {os.getpid()} {len(list(self.notes.iterdir()))}").touch()
        return Counted(len(rows))

    def made(self) -> Counter[str]:
        return Counter(each.name.split()[0] for each in self.notes.glob("*"))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    first = [sum(SIZES[:place]) for place in range(len(SIZES))]
    shards = [[turns(1, str(start + n)) for n in range(size)] for start, size in zip(first, SIZES, strict=True)]
    return write_table(tmp_path_factory.mktemp("numbers") / "rows", shards, SftRow)


def shards_of(table: Table, folder: Path, identity: str = "one", fails: str = "") -> TokenShards[Numbered, Counted]:
    maker = NumberMaker(Numbered.types, folder / "notes", fails)
    return TokenShards(folder / "tokens", table, maker, {"rows": identity})


def made(shards: TokenShards[Any, Any]) -> Counter[str]:
    assert isinstance(shards.maker, NumberMaker)
    return shards.maker.made()


def test_examples_come_back_in_the_order_of_their_rows(table: Table, tmp_path: Path) -> None:
    shards = shards_of(table, tmp_path)
    assert [each.rows for each in shards.make()] == list(SIZES)
    found = shards.open()
    assert found.data.column(LENGTH).to_pylist() == list(range(sum(SIZES)))
    assert found[5] == {"ids": [0, 1, 2, 3, 4], "mask": [True, False] * 2 + [True], "weight": 1.25, LENGTH: 5}
    # 4 bytes and a bit for each token, and some for each row.
    tokens, size = sum(range(sum(SIZES))), sum(file.stat().st_size for file in (tmp_path / "tokens").glob("*.arrow"))
    assert size < 4.2 * tokens + 40 * sum(SIZES)


def test_what_is_there_is_not_made_again(table: Table, tmp_path: Path) -> None:
    shards_of(table, tmp_path).make()
    again = shards_of(table, tmp_path)
    assert [each.rows for each in again.make()] == list(SIZES)
    assert made(again) == {"part-00000.parquet": 1, "part-00001.parquet": 1, "part-00002.parquet": 1}


def test_a_killed_training_goes_on_with_the_files_that_are_whole(table: Table, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="part-00002"):
        shards_of(table, tmp_path, fails="part-00002.parquet").make()
    shards = shards_of(table, tmp_path)
    shards.make()
    assert made(shards) == {"part-00000.parquet": 1, "part-00001.parquet": 1, "part-00002.parquet": 1}
    assert shards.open()["weight"][:] == [number / 4 for number in range(sum(SIZES))]


@pytest.mark.parametrize("name", ["00001.arrow", "00001.json"])
@pytest.mark.parametrize("content", [None, b"", 0.5])
def test_a_damaged_file_is_made_anew(table: Table, tmp_path: Path, name: str, content: bytes | float | None) -> None:
    shards_of(table, tmp_path).make()
    file = tmp_path / "tokens" / name
    whole = file.read_bytes()
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content if isinstance(content, bytes) else whole[: int(content * len(whole))])
    again = shards_of(table, tmp_path)
    assert [each.rows for each in again.make()] == list(SIZES)
    assert made(again) == {"part-00000.parquet": 1, "part-00001.parquet": 2, "part-00002.parquet": 1}
    assert file.read_bytes() == whole
    assert again.open()["weight"][:] == [number / 4 for number in range(sum(SIZES))]


def test_a_damaged_file_of_another_process_is_waited_for(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards_of(table, tmp_path).make()
    file = tmp_path / "tokens" / "00000.arrow"
    whole, waits = file.read_bytes(), list[float]()
    file.write_bytes(whole[:-100])

    def made_anew(seconds: float) -> None:
        waits.append(seconds)
        file.write_bytes(whole)

    monkeypatch.setattr(time, "sleep", made_anew)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    second = shards_of(table, tmp_path)
    second.make()
    assert len(waits) == 1
    assert made(second)["part-00000.parquet"] == 1
    assert len(second.open()) == sum(SIZES)


def test_what_was_made_otherwise_is_removed(table: Table, tmp_path: Path) -> None:
    shards_of(table, tmp_path).make()
    other = shards_of(table, tmp_path, identity="two")
    other.make()
    assert set(made(other).values()) == {2}


def test_several_processes_of_this_one_make_the_same(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards_of(table, tmp_path / "alone").make()
    monkeypatch.setattr(token_shards, "PARALLEL", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    shards = shards_of(table, tmp_path)
    assert [each.rows for each in shards.make()] == list(SIZES)
    processes = {each.name.split()[1] for each in (tmp_path / "notes").iterdir()}
    assert str(os.getpid()) not in processes
    for file in (tmp_path / "alone/tokens").glob("*.arrow"):
        assert (tmp_path / "tokens" / file.name).read_bytes() == file.read_bytes()


RANK = """
import sys
from pathlib import Path
from agentmill.schemas.tables import Table
from tests.trainers.test_token_shards import shards_of
shards = shards_of(Table.open(sys.argv[1]), Path(sys.argv[2]))
print([each.rows for each in shards.make()], len(shards.open()))
"""


def test_the_processes_of_a_training_share_the_work(table: Table, tmp_path: Path) -> None:
    """The second begins first, and must wait for the folder; what is in it from another training is not read."""
    shards_of(table, tmp_path, identity="other").make()
    notes = tmp_path / "notes"
    for each in notes.iterdir():
        each.unlink()
    command = [sys.executable, "-c", RANK, str(table.folder), str(tmp_path)]
    ranks = [
        subprocess.Popen(
            command, env={**os.environ, "RANK": rank, "WORLD_SIZE": "2"}, stdout=subprocess.PIPE, text=True
        )
        for rank in ("1", "0")
    ]
    printed = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert printed == [f"{list(SIZES)} {sum(SIZES)}\n"] * 2
    by_process: dict[str, list[str]] = {}
    for each in notes.iterdir():
        name, process, _ = each.name.split()
        by_process.setdefault(process, []).append(name)
    assert sorted(sorted(names) for names in by_process.values()) == [
        ["part-00000.parquet", "part-00002.parquet"],
        ["part-00001.parquet"],
    ]


LIMITED = """
import resource, sys
from pathlib import Path
from agentmill.schemas.tables import Table
from tests.trainers.test_token_shards import shards_of
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
shards = shards_of(Table.open(sys.argv[1]), Path(sys.argv[2]))
shards.make()
print(len(shards.open()))
"""


def test_a_table_of_more_files_than_may_be_open_by_default(tmp_path: Path) -> None:
    shards = [[turns(1, str(number))] for number in range(100)]
    table = write_table(tmp_path / "rows", shards, SftRow)
    command = [sys.executable, "-c", LIMITED, str(table.folder), str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout == "100\n"


@dataclass(frozen=True)
class SlowMaker(NumberMaker):
    """Makes no file before a test has an end."""

    def make(self, path: Path, keep: Callable[[Sequence[Numbered]], None]) -> Counted:
        counted = super().make(path, keep)
        time.sleep(600)
        return counted


SLOW = """
import os, sys
from pathlib import Path
from agentmill.schemas.tables import Table
from agentmill.trainers import token_shards
from tests.trainers.test_token_shards import Numbered, SlowMaker
token_shards.PARALLEL = 1
os.sched_getaffinity = lambda _: {0, 1}
maker = SlowMaker(Numbered.types, Path(sys.argv[2]) / "notes", "")
token_shards.TokenShards(Path(sys.argv[2]) / "tokens", Table.open(sys.argv[1]), maker, {}).make()
"""


def test_processes_that_make_tokens_die_with_their_training(table: Table, tmp_path: Path) -> None:
    training = subprocess.Popen([sys.executable, "-c", SLOW, str(table.folder), str(tmp_path)])
    try:
        deadline = time.monotonic() + 100
        while len(list((tmp_path / "notes").glob("*"))) < 2:
            assert training.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        workers = psutil.Process(training.pid).children(recursive=True)
        assert len(workers) >= 2
    finally:
        training.kill()
        training.wait()
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive


def test_a_process_does_not_wait_for_ever_for_the_first_one(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(token_shards, "LONG_S", 0.3)
    with user_error("made-differently", "tokens.json", "0.3 s", "run the same command again"):
        shards_of(table, tmp_path / "tokens").make()
