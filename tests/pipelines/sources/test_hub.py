"""Data sets on the Hub are found as `datasets` finds them, and their files are read as if they lay here."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentmill.pipelines.sources.files import find
from agentmill.pipelines.sources.hub import Address, parse
from agentmill.pipelines.sources.planning import GroupBy, plan_parts
from agentmill.pipelines.sources.reading import read_part
from tests.errors import user_error
from tests.fake_hub import FakeHub, child

ROWS = [{"id": f"r{number % 30}", "text": "é" * (number % 30)} for number in range(40)]
CARD = b"""---
configs:
- config_name: long
  data_files:
  - {split: train, path: data/*.jsonl}
  - {split: test, path: more/test.jsonl}
- config_name: short
  data_files: more/test.jsonl
---
"""
FIND = """
import json, sys
from agentmill.pipelines.sources import hub
from agentmill.pipelines.sources.files import find
from agentmill.schemas.errors import UserError

for data, config, split in json.loads(sys.argv[1]):
    try:
        found = [file.path for file in find([data], False, hub.Selection(config, split))]
    except UserError as error:
        found = str(error)
    print(json.dumps(found))
"""
READ = """
import json, sys
from agentmill.pipelines.sources.files import find
from agentmill.pipelines.sources.planning import GroupBy, plan_parts
from agentmill.pipelines.sources.reading import read_part

for data, part_bytes, key in json.loads(sys.argv[1]):
    parts = plan_parts(tuple(find([data])), part_bytes, GroupBy((key,)) if key else None)
    records = [[record.data.decode(), record.row, record.occurrence] for part in parts for record in read_part(part)]
    print(json.dumps([[part.part_id for part in parts], records]))
"""


class World(NamedTuple):
    hub: FakeHub
    address: str
    home: Path

    def ask(self, code: str, asked: Any, **environment: str) -> list[Any]:
        done = child(
            [sys.executable, "-W", "error", "-c", code, json.dumps(asked)], self.address, self.home, **environment
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


def lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def files() -> dict[str, bytes]:
    parquet = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), parquet, row_group_size=7)
    return {"rows.jsonl": lines(*ROWS), "rows.json": json.dumps(ROWS).encode(), "rows.parquet": parquet.getvalue()}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    hub = FakeHub()
    data = {"data/b.jsonl": lines(ROWS[1]), "data/a.jsonl": lines(ROWS[0]), "more/test.jsonl": lines(ROWS[2])}
    hub.push("org/talks", {"README.md": CARD, **data})
    hub.push("org/plain", {"train.jsonl": lines(*ROWS)})
    hub.push("org/plain", {"train.jsonl": lines(*ROWS[:3])}, branch="v1")
    hub.push("org/kinds", files())
    hub.push("org/mixed", {"a/README.md": b"#", "a/.b.jsonl": lines({}), "a/c.JSONL": lines({}), "d/.e.jsonl": b"{}"})
    hub.push("org/table", {"train.txt": b"words"})
    hub.push("org/code", {"code.py": b"raise SystemExit(7)", "README.md": b"no data"})
    hub.push("org/closed", {"train.jsonl": lines(*ROWS)})
    hub.gated.add("org/closed")
    with hub.served() as address:
        yield World(hub, address, tmp_path_factory.mktemp("home"))


def test_the_parts_of_an_address() -> None:
    assert parse("hf://datasets/org/name") == parse("hf://org/name") == Address("org/name", None, "")
    assert parse("hf://org/name@v1.0/data/*.jsonl") == Address("org/name", "v1.0", "data/*.jsonl")
    assert parse("hf://org/na.me@refs/convert/parquet/x/y") == Address("org/na.me", "refs/convert/parquet", "x/y")
    assert str(parse("hf://org/name@v1/data/")) == "hf://datasets/org/name@v1/data"
    assert parse(f"hf://org/name@{'0a' * 20}").pinned
    for text in ("hf://name", "hf://datasets/name", "hf://spaces/org/name", "hf://org/name@"):
        with user_error("hub-address-malformed", "hf://datasets/ORG/NAME"):
            parse(text)


def test_files_are_those_of_a_configuration_and_split_or_of_a_path_at_one_commit(world: World) -> None:
    branches = world.hub.branches
    talks, plain, old = branches["org/talks"]["main"], branches["org/plain"]["main"], branches["org/plain"]["v1"]
    mixed = branches["org/mixed"]["main"]
    asked = {
        ("hf://datasets/org/talks", "long", "train"): [f"talks@{talks}/data/a.jsonl", f"talks@{talks}/data/b.jsonl"],
        ("hf://org/talks", "short", None): [f"talks@{talks}/more/test.jsonl"],
        ("hf://org/talks/data", None, None): [f"talks@{talks}/data/a.jsonl", f"talks@{talks}/data/b.jsonl"],
        ("hf://org/talks/*/t*.jsonl", None, None): [f"talks@{talks}/more/test.jsonl"],
        ("hf://org/mixed/a", None, None): [f"mixed@{mixed}/a/c.JSONL"],
        ("hf://org/plain", None, None): [f"plain@{plain}/train.jsonl"],
        ("hf://org/plain@v1", None, "train"): [f"plain@{old}/train.jsonl"],
        (f"hf://org/plain@{old}/train.jsonl", None, None): [f"plain@{old}/train.jsonl"],
    }
    expected = [[f"hf://datasets/org/{each}" for each in found] for found in asked.values()]
    assert world.ask(FIND, list(asked)) == expected


def test_what_is_not_there_or_not_to_be_read_is_told(world: World) -> None:
    told = {
        ("hf://org/talks", None, None): ("several configurations", "config: (long, short)"),
        ("hf://org/talks", "lang", None): ("no configuration 'lang'", "Did you mean 'long'?"),
        ("hf://org/talks", "long", None): ("several splits", "split: (test, train)"),
        ("hf://org/talks", "long", "trian"): ("no split 'trian'", "Did you mean 'train'?"),
        ("hf://org/plain", "odd", None): ("no configuration 'odd'",),
        ("hf://org/talks/data/c.jsonl", None, None): ("no file matches", "Did you mean 'data/", "It has README.md"),
        ("hf://org/mixed/d", None, None): ("no file matches", "It has a/.b.jsonl"),
        ("hf://org/mixed/d/*", None, None): ("no file matches",),
        ("hf://org/nothing", None, None): ("no data set hf://datasets/org/nothing", "HF_TOKEN"),
        ("hf://org/plain@v2", None, None): ("@v2: there is no such revision", "a tag or a commit"),
        ("hf://org/closed", None, None): ("gated",),
        ("hf://org/table", None, None): ("ends in .txt", "expected one of .jsonl"),
        ("hf://org/code", None, None): ("scripts are no longer supported",),
    }
    for (given, words), said in zip(told.items(), world.ask(FIND, list(told)), strict=True):
        assert isinstance(said, str), given
        assert all(word in said for word in words), said


def test_a_hub_that_is_not_to_be_reached_is_told(world: World) -> None:
    asked = [("hf://org/plain", None, None)]
    (offline,) = world.ask(FIND, asked, HF_HUB_OFFLINE="1")
    assert "while HF_HUB_OFFLINE is set" in offline
    (away,) = world.ask(FIND, asked, HF_ENDPOINT="http://127.0.0.1:9")
    assert "the Hub cannot be reached" in away


def test_rows_and_parts_are_those_of_the_same_files_here(world: World, tmp_path: Path) -> None:
    asked, expected = [], []
    for name, data in files().items():
        (tmp_path / name).write_bytes(data)
        for part_bytes, key in ((300, None), (10**9, None), (300, "id")):
            asked.append([f"hf://org/kinds/{name}", part_bytes, key])
            parts = plan_parts(tuple(find([str(tmp_path / name)])), part_bytes, GroupBy((key,)) if key else None)
            records = [[each.data.decode(), each.row, each.occurrence] for part in parts for each in read_part(part)]
            expected.append([[part.part_id for part in parts], records])
    assert world.ask(READ, asked) == expected
    assert {len(records) for _, records in expected} == {30, 40}


def test_threads_of_arrow_get_no_file_of_the_hub(world: World) -> None:
    """One that is the last to let go of a file of Python's, as the interpreter ends, aborts the process."""
    data = io.BytesIO()
    pq.write_table(pa.table({f"c{number}": range(40) for number in range(8)}), data, row_group_size=7)
    world.hub.push("org/wide", {"rows.parquet": data.getvalue()})
    code = """
import json, os, sys
from agentmill.pipelines.sources import hub
from agentmill.pipelines.sources.reading import rows_of

path = json.loads(sys.argv[1])
hub.size(path)
before = set(os.listdir("/proc/self/task"))
rows = len(list(rows_of(path, "parquet")))
print(json.dumps([rows, len(set(os.listdir("/proc/self/task")) - before)]))
"""
    path = f"hf://datasets/org/wide@{world.hub.branches['org/wide']['main']}/rows.parquet"
    assert world.ask(code, path) == [[40, 0]]


def test_a_worker_transfers_its_part_and_little_more(world: World) -> None:
    row = {"text": "x" * 999_000}
    world.hub.push("org/large", {"train.jsonl": lines(*([row] * 40))})
    code = """
import json, sys
from agentmill.pipelines.sources.reading import opened, rows_in
from agentmill.schemas.records.raw_input import RawSlice

path, size = json.loads(sys.argv[1])
piece = RawSlice(path=path, start=20 * size, stop=21 * size, row=20, rows=1)
with opened(path) as file:
    print(json.dumps([len(row.data) for row in rows_in(piece, "jsonl", file)]))
"""
    path = f"hf://datasets/org/large@{world.hub.branches['org/large']['main']}/train.jsonl"
    before, size = world.hub.sent_bytes, len(lines(row))
    assert world.ask(code, [path, size]) == [[size - 1]]
    assert world.hub.sent_bytes - before < 10 * size
