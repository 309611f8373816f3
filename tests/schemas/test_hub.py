"""Published tables are read as what their manifests say, and a manifest of somebody else reaches no other files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.schemas.hub import cached, fetched, parse, tables_in
from agentmill.schemas.tables import Table
from tests.builders import task, trajectory
from tests.errors import user_error
from tests.fake_hub import FakeHub, Files, direct, files_of

REPO = "org/small"
SHARD = "part-00000.parquet"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    fake = FakeHub()
    with fake.served() as address:
        direct(monkeypatch, address, tmp_path / "cache")
        yield fake


def files(folder: Path) -> Files:
    """A data set of two tables, one below a folder."""
    seed_table(folder / "tasks", [task("a"), task("b", instruction="y")])
    seed_table(folder / "explored", [trajectory()])
    return {**files_of(folder / "tasks", "tasks"), **files_of(folder / "explored", "round-01/explored")}


def test_a_table_is_downloaded_alone_and_only_once(hub: FakeHub, tmp_path: Path) -> None:
    commit = hub.push(REPO, {**files(tmp_path), "manifest.json": b"{}", "tasks/notes.txt": b"x"})
    address = f"hf://{REPO}@{commit}/tasks"
    assert cached(parse(address)) is None
    table = Table.open(address)
    assert [row.task_id for row in table.rows()] == ["a", "b"]
    assert sorted(path.name for path in table.folder.rglob("*.*")) == ["manifest.json", SHARD]
    asked = len(hub.requests)
    assert fetched(address) == table.folder == cached(parse(address)) == cached(parse(f"hf://{REPO}@{commit}"))
    assert len(hub.requests) == asked


def test_a_table_is_named_unless_there_is_one_only(hub: FakeHub, tmp_path: Path) -> None:
    held = files(tmp_path)
    hub.push(REPO, {**held, "manifest.json": b"{}"})
    with user_error("several-match", "round-01/explored"):
        fetched(f"hf://{REPO}")
    with user_error("table-missing", "tasks"):
        fetched(f"hf://{REPO}/task")
    hub.push(REPO, {"manifest.json": b"{}", **files_of(tmp_path / "tasks", "tasks")})
    assert fetched(f"hf://{REPO}").name == "tasks"
    hub.push(REPO, {"manifest.json": b"{}"})
    with user_error("table-missing"):
        fetched(f"hf://{REPO}")


@pytest.mark.parametrize("path", ["../tasks", "tasks/..", "./tasks", "a//tasks", "/tasks"])
def test_a_path_stays_in_its_data_set(path: str) -> None:
    with user_error("hub-address-malformed", "'.'", "'..'"):
        parse(f"hf://{REPO}/{path}")


def test_a_path_is_no_pattern(hub: FakeHub, tmp_path: Path) -> None:
    hub.push(REPO, files(tmp_path))
    with user_error("table-missing"):
        fetched(f"hf://{REPO}/t*")


def test_names_that_could_not_lie_in_a_data_set_are_none_of_tables() -> None:
    folders = ["a", ".", "b b", ".c", "d/e"]
    held = [f"{folder}/{path}" for folder in folders for path in ("manifest.json", f"data/{SHARD}", "x")]
    assert tables_in(held) == ["a", "d/e"]
    assert tables_in(["web/manifest.json", "web/index.html", "web/data/x.json", f"a/data/{SHARD}"]) == []


@pytest.mark.parametrize("name", ["../../secret.parquet", "/etc/secret.parquet", "..", "", "a/b.parquet", ".hidden"])
@pytest.mark.parametrize("kind", ["files", "dropped_files"])
def test_a_manifest_names_files_of_its_table_only(hub: FakeHub, tmp_path: Path, name: str, kind: str) -> None:
    held = files(tmp_path)
    hub.push(REPO, {**held, "tasks/manifest.json": changed(held["tasks/manifest.json"], kind, name=name)})
    with user_error("file-name-unsafe"):
        fetched(f"hf://{REPO}/tasks")
    manifest = tmp_path / "tasks/manifest.json"
    manifest.write_bytes(changed(manifest.read_bytes(), kind, name=name))
    with user_error("file-name-unsafe"):
        Table.open(tmp_path / "tasks")


def changed(manifest: bytes, kind: str, **values: Any) -> bytes:
    """A manifest whose file of a kind is told otherwise."""
    told = json.loads(manifest)
    told[kind] = [{**told["files"][0], **values}]
    return json.dumps(told).encode()


def test_a_file_is_the_one_that_the_manifest_tells_of(hub: FakeHub, tmp_path: Path) -> None:
    held = files(tmp_path)
    data = held[f"tasks/data/{SHARD}"]
    hub.push(REPO, {**held, f"tasks/data/{SHARD}": data[:-5] + b"?" + data[-4:]})
    with user_error("manifest-mismatch"):
        fetched(f"hf://{REPO}/tasks")
    hub.push(REPO, held)
    shard = fetched(f"hf://{REPO}/tasks") / f"data/{SHARD}"
    shard.resolve().write_bytes(data[:100])
    assert (fetched(f"hf://{REPO}/tasks") / f"data/{SHARD}").read_bytes() == data, "it is downloaded again"
    hub.push(REPO, {path: data for path, data in held.items() if SHARD not in path})
    with user_error("file-missing", SHARD):
        fetched(f"hf://{REPO}/tasks")
