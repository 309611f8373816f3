"""``agentmill normalize`` from the Hub: the table of the same files here, at one revision for all of a run."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentmill.schemas.config import dump_yaml
from agentmill.schemas.tables import Counts, Table, read_manifest
from tests.errors import shows
from tests.fake_hub import FakeHub, child
from tests.pipelines.cli.tables import PROGRAM, agentmill

pytestmark = pytest.mark.slow

ADDRESS = "hf://datasets/org/talks"


def talks(n: int) -> bytes:
    said = [{"messages": [{"role": "user", "content": f"{number % 8}?"}]} for number in range(n)]
    return b"".join(json.dumps(each).encode() + b"\n" for each in said)


@pytest.fixture
def hub() -> Iterator[tuple[FakeHub, str]]:
    fake = FakeHub()
    fake.push("org/talks", {"train.jsonl": talks(10)})
    with fake.served() as address:
        yield fake, address


def recipe(folder: Path, name: str, data: str) -> Path:
    step = {"operator": "normalize", "data": [data], "dataset": "org/talks", "format": "openai", "as": "t"}
    path = folder / f"{name}.yaml"
    path.write_text(dump_yaml({"name": name, "run_dir": str(folder / name), "steps": [{**step, "part_mb": 0.0002}]}))
    return path


def normalize(
    folder: Path, name: str, address: str, *more: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    path = recipe(folder, name, ADDRESS)
    program = [str(PROGRAM), "normalize", "--config", str(path), *more]
    return child(program, address, folder / "home", **environment)


def rows(folder: Path) -> list[Any]:
    return list(Table.open(folder / "t").rows())


def test_a_run_reads_one_revision_and_what_lies_here_is_read_the_same(tmp_path: Path, hub: tuple[FakeHub, str]) -> None:
    fake, address = hub
    commit = fake.branches["org/talks"]["main"]
    first = normalize(tmp_path, "first", address)
    assert first.returncode == 0, first.stderr
    manifest = read_manifest(tmp_path / "first/t")
    assert manifest.config["data"] == [f"{ADDRESS}@{commit}"]
    assert (manifest.counts.read, manifest.counts.used, len(manifest.files)) == (10, 10, 3)
    assert json.loads((tmp_path / "first/revisions.json").read_bytes()) == {ADDRESS: commit}

    (tmp_path / "train.jsonl").write_bytes(talks(10))
    assert agentmill("normalize", "--config", recipe(tmp_path, "here", str(tmp_path / "train.jsonl"))) == 0
    assert rows(tmp_path / "here") == rows(tmp_path / "first")

    fake.push("org/talks", {"train.jsonl": talks(12)})
    shutil.rmtree(tmp_path / "first/t")
    again = normalize(tmp_path, "first", address)
    assert again.returncode == 0, again.stderr
    assert rows(tmp_path / "first") == rows(tmp_path / "here")
    newer = normalize(tmp_path, "newer", address, "runner={name: multi_processing, workers: 2}")
    assert newer.returncode == 0, newer.stderr
    assert rows(tmp_path / "newer")[:10] == rows(tmp_path / "here")
    assert len(rows(tmp_path / "newer")) == 12

    fake.requests.clear()
    offline = normalize(tmp_path, "first", address, HF_HUB_OFFLINE="1")
    assert offline.returncode == 0, offline.stderr
    assert "nothing to do" in offline.stderr
    assert not fake.requests


def test_a_hub_that_fails_ends_the_run_and_the_same_command_goes_on(tmp_path: Path, hub: tuple[FakeHub, str]) -> None:
    fake, address = hub
    fake.files_left = 2  # the planning, and the first of three parts
    failed = normalize(tmp_path, "run", address)
    assert failed.returncode == 2, failed.stderr
    assert shows(failed.stderr, "hub-refuses", "run the same command again")
    assert not (tmp_path / "run/t/manifest.json").exists()
    fake.files_left = None
    again = normalize(tmp_path, "run", address)
    assert again.returncode == 0, again.stderr
    assert read_manifest(tmp_path / "run/t").counts == Counts(read=10, used=10, dropped=0, written=10)


def test_a_plan_that_cannot_be_kept_is_told_and_the_run_goes_on(tmp_path: Path, hub: tuple[FakeHub, str]) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/agentmill").write_text("no folder")
    done = normalize(tmp_path, "run", hub[1])
    assert done.returncode == 0, done.stderr
    assert "the plan is not kept" in done.stderr
    assert len(rows(tmp_path / "run")) == 10


def test_mistakes_are_told_before_anything_starts(tmp_path: Path, hub: tuple[FakeHub, str]) -> None:
    wrong = normalize(tmp_path, "run", hub[1], "steps.0.split=test")
    assert wrong.returncode == 2
    assert shows(wrong.stderr, "unknown-name", "(normalize, steps.0): hf://datasets/org/talks@", "'test'", "train")
    assert not (tmp_path / "run").exists()
    here = child(
        [str(PROGRAM), "normalize", "--config", str(recipe(tmp_path, "here", "x.jsonl")), "steps.0.config=a"],
        "",
        tmp_path,
    )
    assert here.returncode == 2
    assert shows(here.stderr, "key-not-for-this", "config 'a'", "x.jsonl")
