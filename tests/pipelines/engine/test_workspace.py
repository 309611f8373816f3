"""What a user has put where a table is to be written is never removed, nor written over."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentmill.pipelines.engine import attempts
from agentmill.pipelines.engine.provenance import check_ours
from agentmill.pipelines.engine.run import run_stage
from agentmill.schemas.tables import Table, remove
from tests.errors import user_error
from tests.pipelines.engine.operations import Shout
from tests.pipelines.engine.stages import order, rows_of, task, write_table


@pytest.fixture
def tasks(tmp_path: Path) -> Table:
    return write_table(tmp_path / "tasks", [[task(i) for i in range(4)]])


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    return path


@pytest.mark.parametrize(
    "name",
    [
        "data/raw.jsonl",
        "data/part-00000.parquet",
        "dropped/part-00000.parquet",
        "data/deep/part-00000.parquet",
        "trees/data/x.parquet",
        "notes.txt",
    ],
)
@pytest.mark.parametrize("replace", [False, True])
def test_a_folder_of_the_user_with_the_name_of_a_table_is_refused(
    tasks: Table, tmp_path: Path, name: str, replace: bool
) -> None:
    mine = put(tmp_path / "out" / name)
    with user_error("output-not-ours") as error:
        run_stage(order(Shout(), tasks, tmp_path / "out", replace=replace))
    assert name in str(error.value)
    assert len(str(error.value).splitlines()) == 2
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == [mine]


@pytest.mark.parametrize("name", ["data/mine.jsonl", "data/part-1.parquet.bak", "mine/data/part-00000.parquet"])
def test_a_table_with_a_file_of_the_user_is_not_replaced(tasks: Table, tmp_path: Path, name: str) -> None:
    run_stage(order(Shout(), tasks, tmp_path / "out", config={"n": 1}))
    mine = put(tmp_path / "out" / name)
    with user_error("output-not-ours"):
        run_stage(order(Shout(), tasks, tmp_path / "out", config={"n": 2}, replace=True))
    assert mine.read_text() == "mine"
    assert len(rows_of(tmp_path / "out")) == 4
    mine.unlink()
    assert run_stage(order(Shout(), tasks, tmp_path / "out", config={"n": 2}, replace=True)).config == {"n": 2}


@pytest.mark.parametrize("name", ["", "data", "data/part-00000.parquet"])
def test_links_are_not_followed(tasks: Table, tmp_path: Path, name: str) -> None:
    theirs = put(tmp_path / "theirs/part-00000.parquet")
    link = tmp_path / "out" / name if name else tmp_path / "out"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(theirs if name.endswith("parquet") else theirs.parent)
    for replace in (False, True):
        with user_error("output-not-ours"):
            run_stage(order(Shout(), tasks, tmp_path / "out", replace=replace))
    assert theirs.read_text() == "mine"


def test_what_a_kill_left_of_a_table_is_ours(tasks: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "out"
    run_stage(order(Shout(), tasks, folder, config={"n": 1}))
    removed: list[str] = []

    def killed(path: Path, ignore_errors: bool = False) -> None:
        removed.append(path.name)
        raise SystemExit

    monkeypatch.setattr("agentmill.pipelines.engine.attempts.shutil.rmtree", killed)
    with pytest.raises(SystemExit):
        attempts.clear(folder)
    monkeypatch.undo()
    assert removed == ["data"]
    assert not (folder / "manifest.json").exists()
    check_ours(folder)
    assert run_stage(order(Shout(), tasks, folder, config={"n": 2})).counts.used == 4


def test_an_empty_folder_and_what_is_only_begun_are_ours(tmp_path: Path) -> None:
    (tmp_path / "empty/data").mkdir(parents=True)
    check_ours(tmp_path / "empty")
    check_ours(tmp_path / "missing")
    put(tmp_path / "begun/.seeds/manifest.json")
    check_ours(tmp_path / "begun")
    with user_error("not-a-folder", "file"):
        check_ours(put(tmp_path / "file"))


def test_a_folder_is_removed_only_if_it_is_ours(tmp_path: Path) -> None:
    mine = put(tmp_path / "model/weights")
    with user_error("output-not-ours", "model"):
        remove(tmp_path / "model", "model", lambda names: "record.json" in names)
    (tmp_path / "link").symlink_to(tmp_path / "model")
    with user_error("output-not-ours", "model"):
        remove(tmp_path / "link", "model", lambda names: True)
    assert mine.read_text() == "mine"
    put(tmp_path / "model/record.json")
    remove(tmp_path / "model", "model", lambda names: "record.json" in names)
    remove(tmp_path / "model", "model", lambda names: False)
    assert not mine.parent.exists()
