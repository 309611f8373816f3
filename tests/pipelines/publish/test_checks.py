"""What is looked at before anything is published."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.publish.bundle import Bundle, Published
from agentmill.pipelines.publish.checks import (
    Allowed,
    counts,
    decontamination,
    in_files,
    leaks,
    local_paths,
    personal,
    secrets,
    texts_of,
)
from agentmill.pipelines.publish.layout import configs, split_name, splits
from agentmill.pipelines.publish.scan import Scan, scan
from agentmill.schemas.records.manifest import Counts, write_manifest
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.verdict import Dropped
from agentmill.schemas.tables import Table
from tests.builders import agent_message, called, seen, task, tool_trajectory, trajectory, verdict
from tests.errors import user_error

TOKEN = "hf_" + "aBcD" * 9


def surveyed(folder: Path, *rows: Record) -> Scan:
    return scan(seed_table(folder, list(rows)), folder.name)


def emptied(folder: Path) -> Scan:
    """That of a table whose stage used all it read and wrote nothing."""
    table = seed_table(folder, [run("a", "x")])
    counts = Counts(read=1, used=1, dropped=0, written=0)
    write_manifest(folder, msgspec.structs.replace(table.manifest, files=[], counts=counts))
    return scan(Table.open(folder), folder.name)


def add_letters(table: Table, inputs: dict[str, Any]) -> None:
    """Let the stage that wrote ``table`` have dropped these ``inputs``, by id, as well."""
    letters = [
        Dropped(input_id=name, stage="s", reason="r", blamed="input", input=each) for name, each in inputs.items()
    ]
    written = seed_table(table.folder.parent / "letters", letters)
    (table.folder / "dropped").mkdir()
    written.shards()[0].rename(table.folder / "dropped/part-00000.parquet")
    dropped = len(letters)
    counts = Counts(read=1 + dropped, used=1, dropped=dropped, written=1)
    changes = {"counts": counts, "reasons": {"r": dropped}}
    manifest = msgspec.structs.replace(table.manifest, dropped_files=written.manifest.files, **changes)
    write_manifest(table.folder, manifest)


def run(name: str, text: str, **fields: Any) -> Any:
    return trajectory(name, content=[seen(text), agent_message("go")], **{"task_id": f"task of {name}", **fields})


def test_rows_that_say_the_same_are_counted_whatever_their_ids(tmp_path: Path) -> None:
    rows = [run("a", "x"), run("b", "x"), run("c", "y"), run("d", "x", split="test", task_id="other")]
    found = surveyed(tmp_path / "runs", *rows)
    assert (found.rows, found.repeated, found.splits) == (4, 2, {"train": 3, "test": 1})
    assert found.characters == 4 * len("x" + "go")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([seen("a"), seen("b")], [seen("b"), seen("a")]),
        ([seen("ab"), seen("c")], [seen("a"), seen("bc")]),
        ([agent_message("a")], [seen("a")]),
        ([called("f", x="1")], [called("f", x="2")]),
    ],
)
def test_order_and_place_of_texts_matter(tmp_path: Path, one: list[Any], other: list[Any]) -> None:
    assert surveyed(tmp_path / "runs", trajectory("a", content=one), trajectory("b", content=other)).repeated == 0


def test_ids_of_calls_do_not(tmp_path: Path) -> None:
    one, other = ([called("f", call_id=f"call{n}"), seen("x", tool_call_id=f"call{n}")] for n in (1, 2))
    assert surveyed(tmp_path / "runs", trajectory("a", content=one), trajectory("b", content=other)).repeated == 1


@given(st.lists(st.text(max_size=3), min_size=1, max_size=6))
def test_repeats_are_those_of_python(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    rows = [trajectory(f"t{index}", content=[seen(word), seen("z")]) for index, word in enumerate(words)]
    found = surveyed(tmp_path_factory.mktemp("runs") / "t", *rows)
    assert found.repeated == len(words) - len(set(words))


def test_secrets_are_told_by_row_and_never_shown(tmp_path: Path) -> None:
    rows = [run("clean", "x"), run("leaky", f"token {TOKEN}"), tool_trajectory("call", content=[called("f", x=TOKEN)])]
    found = surveyed(tmp_path / "runs", *rows).findings
    check = secrets(found, Allowed())
    assert check.level == "refused"
    assert "huggingface_token in 2 rows of runs (leaky, call)" in check.detail
    assert TOKEN not in check.detail
    assert secrets(found, Allowed(secrets=True)).level == "note"
    assert secrets([], Allowed()).level == "passed"


def test_secrets_at_the_start_of_a_line_are_found_in_calls_and_in_dead_letters(tmp_path: Path) -> None:
    text = f"cat > .netrc <<E\n{TOKEN}\nE"
    table = seed_table(tmp_path / "rows", [tool_trajectory("call", content=[called("f", x=text)])])
    inputs = {"plain": {"text": text}, "raw": {"raw": msgspec.json.encode({"text": text}).decode()}}
    add_letters(table, inputs)
    found = secrets(scan(Table.open(table.folder), "rows").findings, Allowed())
    assert found.items == [
        "huggingface_token in 1 row of rows (call)",
        "huggingface_token in 2 rows of rows/dropped (plain, raw)",
    ]


def test_personal_data_is_told_and_refused_where_that_is_asked_for(tmp_path: Path) -> None:
    found = surveyed(tmp_path / "runs", *(run(f"t{n}", f"mail jane{n}@company.org") for n in range(8))).findings
    check = personal(found, Allowed())
    assert (check.level, check.detail) == ("note", "email_address in 8 rows of runs (t0, t1, t2, t3, t4 and 3 more)")
    assert personal(found, Allowed(personal=False)).level == "refused"


def test_secrets_and_local_paths_in_what_lies_beside_the_rows_are_found(tmp_path: Path) -> None:
    table = seed_table(tmp_path / "rows", [run("a", "x")])
    config = {"endpoint": f"https://host/?token={TOKEN}", "rows": "/home/jane/rows"}
    write_manifest(table.folder, msgspec.structs.replace(table.manifest, config=config))
    (tmp_path / "recipe.yaml").write_text("run_dir: /home/jane/runs/x\nmodels: {a: {endpoints: [http://h:1/v1]}}\n")
    found = in_files(texts_of(Bundle(tables=[Published("rows", table)], run=tmp_path, origins=[], unknown={})))
    assert secrets(found, Allowed()).items == ["huggingface_token in rows/manifest.json"]
    paths = local_paths(found)
    assert (paths.level, paths.items) == ("note", ["local_path in recipe.yaml", "local_path in rows/manifest.json"])
    assert "jane" not in paths.detail
    assert local_paths(in_files({"recipe.yaml": "run_dir: runs/x\n"})).level == "passed"


def test_a_dead_letter_that_says_where_its_input_lies_is_told(tmp_path: Path) -> None:
    table = seed_table(tmp_path / "rows", [run("a", "x")])
    add_letters(table, {"large": {"shard": "/home/jane/a.parquet", "row": 1}, "small": {"text": "/bin/sh"}})
    found = scan(Table.open(table.folder), "rows").findings
    assert local_paths(found).items == ["local_path in 1 row of rows/dropped (large)"]


def test_nothing_is_not_published(tmp_path: Path) -> None:
    some, none = surveyed(tmp_path / "some", run("a", "abc")), emptied(tmp_path / "none")
    assert counts({"some": some}).detail == "1 rows, 5 characters of content, 0 stored token ids"
    assert (counts({"none": none}).level, counts({"none": none}).items) == ("refused", ["none"])
    both = counts({"some": some, "none": none})
    assert (both.level, both.items) == ("note", ["none"])
    assert splits("none", none) == {}


def test_a_file_that_is_not_what_the_manifest_tells_is_refused(tmp_path: Path) -> None:
    table = seed_table(tmp_path / "runs", [run("a", "x")])
    (path,) = table.shards()
    other = seed_table(tmp_path / "other", [run("b", "y")])
    path.write_bytes(other.shards()[0].read_bytes().ljust(path.stat().st_size, b"\0")[: path.stat().st_size])
    with user_error("manifest-mismatch"):
        scan(Table.open(tmp_path / "runs"), "runs")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([task("t"), task("t", split="held_out_tasks")], "task_id t in held_out_tasks, train"),
        ([task("a"), task("b", split="held_out_environments", instruction="x")], "environment_id env1 in"),
        ([task("a"), task("b", split="held_out_tasks")], "1 texts that are in several splits"),
    ],
)
def test_what_stands_in_two_splits_leaks(tmp_path: Path, rows: list[Any], expected: str) -> None:
    found = [surveyed(tmp_path / f"tasks{index}", row) for index, row in enumerate(rows)]
    together = surveyed(tmp_path / "tasks", *rows)
    check = leaks([together], Allowed())
    assert check.level == "refused"
    assert expected in check.detail
    assert leaks([together], Allowed(leaks=True)).level == "note"
    if "texts" not in expected:
        assert expected in leaks(found, Allowed()).detail


def test_what_stands_in_one_does_not(tmp_path: Path) -> None:
    rows = [task("a"), task("b", split="held_out_tasks", instruction="y"), task("c", split=None, instruction="z")]
    check = leaks([surveyed(tmp_path / "tasks", *rows)], Allowed())
    assert check.level == "passed"
    compared = "2 texts, 2 ids of tasks and 1 of environments compared"
    assert check.detail == f"nothing is in two of the splits held_out_tasks, train: {compared}"


def test_equal_texts_of_two_tables_in_different_splits_leak(tmp_path: Path) -> None:
    nobody: dict[str, Any] = {"task_id": None, "environment_id": None}
    one = surveyed(tmp_path / "one", run("a", "x", **nobody), run("b", "y", **nobody))
    other = surveyed(tmp_path / "other", run("c", "x", split="test", **nobody))
    assert leaks([one], Allowed()).detail == "there is one split only, train"
    check = leaks([one, other], Allowed())
    assert (check.level, check.items) == ("refused", ["1 texts that are in several splits"])


def test_the_check_of_splits_says_what_it_had_to_go_by(tmp_path: Path) -> None:
    nobody: dict[str, Any] = {"task_id": None, "environment_id": None}
    rows = [run("a", "x", **nobody), run("b", "y", split="test", **nobody)]
    told = "2 texts, 0 ids of tasks and 0 of environments compared"
    assert leaks([surveyed(tmp_path / "rows", *rows)], Allowed()).detail.endswith(told)
    assert leaks([surveyed(tmp_path / "verdicts", verdict())], Allowed()).detail == "no row has a split"


def of_files(folder: Path, *splits: str | None) -> Scan:
    """That of a table with one file for each of ``splits``, as a stage with several chunks writes it."""
    files = []
    table = seed_table(folder, [task("0")])
    for number, split in enumerate(splits):
        one = seed_table(folder.parent / f"{folder.name}-{number}", [task(f"{number}", split=split)])
        name = f"part-{number:05d}.parquet"
        one.shards()[0].rename(folder / "data" / name)
        files.append(msgspec.structs.replace(one.manifest.files[0], name=name))
    counts = Counts(read=len(files), used=len(files), dropped=0, written=len(files))
    write_manifest(folder, msgspec.structs.replace(table.manifest, files=files, counts=counts))
    return scan(Table.open(folder), folder.name)


def test_files_are_told_apart_by_split_where_each_holds_one(tmp_path: Path) -> None:
    assert splits("tasks", of_files(tmp_path / "one", "train", "train")) == {"train": "tasks/data/*.parquet"}
    mixed = surveyed(tmp_path / "mixed", task("a"), task("b", split="test"))
    assert splits("tasks", mixed) == {
        "test": "tasks/splits/test/*.parquet",
        "train": "tasks/splits/train/*.parquet",
    }
    assert splits("tasks", of_files(tmp_path / "two", "train", "held_out_tasks")) == {
        "held_out_tasks": ["tasks/data/part-00001.parquet"],
        "train": ["tasks/data/part-00000.parquet"],
    }


def test_no_file_is_lost_where_two_splits_are_spelt_as_one(tmp_path: Path) -> None:
    assert splits("tasks", of_files(tmp_path / "tasks", "a-b", "a b", None)) == {
        "a_b": ["tasks/data/part-00000.parquet", "tasks/data/part-00001.parquet"],
        "unsplit": ["tasks/data/part-00002.parquet"],
    }


def test_rows_that_tell_no_split_are_not_said_to_be_for_training(tmp_path: Path) -> None:
    assert splits("verdicts", surveyed(tmp_path / "verdicts", verdict())) == {"unsplit": "verdicts/data/*.parquet"}


@given(st.text(max_size=5))
def test_datasets_takes_the_names_of_splits(value: str) -> None:
    from datasets.naming import _split_re

    name = split_name(value)
    assert re.match(_split_re, name)
    assert name.lower() != "all"


def test_two_tables_are_not_one_configuration(tmp_path: Path) -> None:
    table = seed_table(tmp_path / "runs", [run("a", "x")])
    tables, surveys = [Published("a/b", table), Published("a.b", table)], {}
    with user_error("name-taken", "a/b", "a.b"):
        configs(tables, surveys)


def test_decontamination_says_what_was_left_out(tmp_path: Path) -> None:
    table = seed_table(tmp_path / "clean", [run("a", "x")])
    assert decontamination([table]).level == "note"
    metrics = {"contaminated.actions": 2, "contaminated.task": 1, "kept": 7}
    manifest = msgspec.structs.replace(table.manifest, operator="decontaminate", metrics=metrics)
    write_manifest(table.folder, manifest)
    check = decontamination([Table.open(table.folder)])
    assert check.level == "passed"
    assert check.items == [f"{manifest.table}: 3 of {manifest.counts.read} rows left out"]
