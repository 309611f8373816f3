"""What a view is made of, and when it is made: columns, entries, repeats, and folders that are not ours."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.view import build as building
from agentmill.pipelines.view.build import FORMAT, PER_FILE, STAMP, STATIC, build
from agentmill.pipelines.view.js_shards import JsShards, Texts, TextSets, literal, shortened
from agentmill.pipelines.view.runs import title
from agentmill.schemas.records.verdict import Label
from agentmill.schemas.tables import write_manifest
from tests.builders import outcome, seen, trajectory, verdict
from tests.errors import user_error
from tests.pipelines.view.example_run import ATTACK, ATTACKS, HOSTILE_ID

CALL = re.compile(rb"agentmill\.(?:start\(|add\('(\w+)',(\d+),'(\w+)',)'(.*)'\);")


def value_of(escaped: bytes) -> Any:
    """The value of a JavaScript string of JSON, by the escapes that ``literal`` uses."""
    text = escaped.decode()
    plain = re.sub(r"\\(x3c|u2028|u2029|.)", lambda match: unescaped(match[1]), text)
    return json.loads(plain)


def unescaped(escape: str) -> str:
    return {"x3c": "<", "u2028": "\u2028", "u2029": "\u2029"}.get(escape, escape)


def entries(folder: Path, shelf: str) -> list[tuple[int, str, Any]]:
    """(place, kind, value) of all entries of a shelf."""
    lines = [line for file in sorted(folder.glob(f"data/{shelf}-*.js")) for line in file.read_bytes().splitlines()]
    matches = [CALL.fullmatch(line) for line in lines]
    assert all(matches)
    return [(int(match[2]), match[3].decode(), value_of(match[4])) for match in matches if match]


def index(folder: Path) -> Any:
    match = CALL.fullmatch((folder / "data/index.js").read_bytes().strip())
    assert match
    return value_of(match[4])


def facet(runs: Any, name: str) -> list[str | None]:
    values = runs["facets"][name]["values"]
    return [None if code < 0 else values[code] for code in runs["facets"][name]["codes"]]


def members(runs: Any, name: str) -> list[list[str]]:
    column = runs["sets"][name]
    return [[column["values"][each] for each in column["sets"][code]] for code in column["codes"]]


def test_the_index_holds_each_trajectory_once(folder: Path) -> None:
    runs = index(folder)["runs"]
    assert runs["ids"] == ["d1", "t2", HOSTILE_ID, "e0", "e1", "e2", "e3"]
    assert members(runs, "table")[0] == ["demonstrations", "kept"]
    assert facet(runs, "outcome") == ["success", "success", "success", "success", "failure", "success", "failure"]
    assert facet(runs, "environment")[:2] == ["boxes (pddl) env1", "tools (toolbox) env2"]
    assert facet(runs, "model") == ["expert", None, ATTACK, "tiny", "tiny", "tiny", "tiny"]
    assert facet(runs, "round")[3:] == ["0", "0", "1", "1"]
    assert members(runs, "verdict")[3:5] == [["check_outcome: passed"], ["check_outcome: failed"]]
    assert members(runs, "verdict")[2] == []
    assert members(runs, "label")[4] == ["critical: yes"]
    assert members(runs, "selection")[0] == ["sft: kept"]
    assert runs["numbers"]["turns"] == [2, 2, 1, 2, 2, 2, 2]
    assert runs["numbers"]["completion_tokens"] == [48, None, None, 48, 48, 48, 48]
    assert runs["tree"] == [-1, -1, -1, 0, 0, -1, -1]


def test_different_trajectories_with_one_id_are_all_shown(tmp_path: Path) -> None:
    """Tables of versions whose ids did not tell two models of one name apart."""
    run = tmp_path / "run"
    made = {
        "explored": trajectory("t1"),
        "kept": trajectory("t1"),
        "tried": trajectory("t1", outcome=outcome("failure")),
    }
    for name, row in made.items():
        table = seed_table(run / name, [row, trajectory(f"own-{name}")])
        judged = seed_table(run / f"{name}_verdicts", [verdict("t1", row.outcome.status == "success")])
        write_manifest(judged.folder, msgspec.structs.replace(judged.manifest, inputs={f"of/{name}": table.digest}))
    seed_table(run / "labels", [Label(trajectory_id="t1", name="seen", value="yes", labeller="judge")])
    seed_table(run / "later", [trajectory("child", parent_id="t1")])
    view, _ = build(run, tmp_path / "view")
    runs = index(tmp_path / "view")["runs"]
    names = ["t1", "own-explored", "own-kept", "child", "t1 (2: tried)", "own-tried"]
    assert (runs["ids"], view.trajectories) == (names, 6)
    assert [members(runs, "table")[row] for row in (0, 4)] == [["explored", "kept"], ["tried"]]
    assert [members(runs, "verdict")[row] for row in (0, 4)] == [["check_outcome: passed"], ["check_outcome: failed"]]
    assert [members(runs, "label")[row] for row in (0, 4)] == [["seen: yes"], ["seen: yes"]]
    assert runs["parent"][3] == 0
    records = {place: each for place, kind, each in entries(tmp_path / "view", "runs") if kind == "record"}
    assert [records[place]["trajectory_id"] for place in range(6)] == names


def test_records_and_what_is_said_of_them_lie_at_their_place(folder: Path) -> None:
    found = entries(folder, "runs")
    by_kind = {kind: [place for place, each, _ in found if each == kind] for kind in {each for _, each, _ in found}}
    assert by_kind["record"] == by_kind["marks"] == list(range(7))
    assert sorted(by_kind["verdict"]) == [0, 1, 2, 3, 4, 5, 6]
    assert by_kind["value"] == [4]
    assert by_kind["row"] == [0, 3, 3]
    hostile = next(value for place, kind, value in found if (place, kind) == (2, "record"))
    assert hostile["trajectory_id"] == HOSTILE_ID
    assert hostile["content"][0]["content"] == ATTACK
    assert hostile["content"][3]["kwargs"] == {"__proto__": {"hacked": 1}, "constructor": ATTACK, "big": 2**60 + 1}


def test_a_row_is_told_by_the_marks_of_its_messages(folder: Path) -> None:
    found = entries(folder, "runs")
    marks = next(value for place, kind, value in found if (place, kind) == (3, "marks"))
    rows = [value for place, kind, value in found if (place, kind) == (3, "row")]
    assert [items for _, items in marks] == [[2], [4]]
    assert [row["loss"] for row in rows] == [[[marks[0][0], 1.0]], [[marks[0][0], 0], [marks[1][0], 1.0]]]


def test_tokens_are_counted_unless_their_ids_are_asked_for(run: Path, folder: Path, tmp_path: Path) -> None:
    build(run, tmp_path / "all", token_ids=True)
    (short, long) = (
        next(value for place, kind, value in entries(each, "runs") if (place, kind) == (3, "record"))
        for each in (folder, tmp_path / "all")
    )
    counts = {"prompt_tokens": 4, "sampled_tokens": 2, "logprob": -1.0, "segment_start": True, "finish_reason": "stop"}
    assert short["content"][2]["tokens"] == counts
    assert long["content"][2]["tokens"] == {
        **counts,
        "prompt_ids": [1, 2, 3, 4],
        "sampled_ids": [5, 6],
        "logprobs": [-0.5, -0.5],
    }


def test_what_a_source_marked_as_not_to_be_trained_on_is_kept(tmp_path: Path) -> None:
    content = [msgspec.structs.replace(each, train=False) for each in trajectory().content]
    seed_table(tmp_path / "runs", [trajectory(content=content)])
    build(tmp_path, tmp_path / "out")
    ((_, _, record),) = entries(tmp_path / "out", "runs")
    assert [item.get("train") for item in record["content"]] == [False] * 6


def test_pairs_trees_and_tasks_have_shelves_of_their_own(folder: Path) -> None:
    whole = index(folder)
    assert [whole["pairs"][name] for name in ("ids", "chosen", "rejected")] == [["p1", "p2"], [0, 5], [4, 6]]
    nodes = [value["node_id"] for _, _, value in entries(folder, "trees")]
    assert nodes == ["n0", "n1", "n2", "n3", "n4", "n0", "n1"]
    assert {place: value["task_id"] for place, _, value in entries(folder, "tasks")} == {0: "task1", 1: "task2"}
    assert whole["files"] == {"runs": [0], "trees": [0], "tasks": [0], "pairs": [0]}


def test_places_are_spread_over_files(tmp_path: Path) -> None:
    rows = [trajectory(f"t{n:03d}") for n in range(PER_FILE["runs"] + 1)]
    seed_table(tmp_path / "runs", rows)
    seed_table(tmp_path / "verdicts", [verdict(row.trajectory_id) for row in reversed(rows)])
    build(tmp_path, tmp_path / "out")
    assert index(tmp_path / "out")["files"]["runs"] == [0, 1]
    last = (tmp_path / "out/data/runs-00001.js").read_bytes().splitlines()
    assert [line[: line.index(b",'{")] for line in last] == [
        b"agentmill.add('runs',100,'record'",
        b"agentmill.add('runs',100,'verdict'",
    ]


def test_a_view_is_made_again_only_if_something_changed(tmp_path: Path) -> None:
    seed_table(tmp_path / "runs", [trajectory()])
    first, made = build(tmp_path, tmp_path / "view")
    assert made
    assert build(tmp_path, tmp_path / "view") == (first, False)
    seed_table(tmp_path / "verdicts", [verdict()])
    second, made = build(tmp_path, tmp_path / "view")
    assert made
    assert second.digest != first.digest
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_copied_run_has_a_view_of_its_own_name(tmp_path: Path) -> None:
    seed_table(tmp_path / "one/runs", [trajectory()])
    build(tmp_path / "one", tmp_path / "one/view")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    _, made = build(tmp_path / "two", tmp_path / "two/view")
    assert made
    assert index(tmp_path / "two/view")["title"] == "two"


def test_a_run_whose_first_words_are_blank_is_listed_by_others_or_its_id(tmp_path: Path) -> None:
    blank = [seen(" \n"), seen("")]
    for content, expected in ((blank, None), ([*blank, seen("Go on.")], "Go on.")):
        asked = [msgspec.structs.replace(each, source="user") for each in content]
        assert title(trajectory(content=asked)) == expected


def test_of_a_table_its_rows_and_what_is_said_of_them_are_shown(run: Path, tmp_path: Path) -> None:
    view, _ = build(run / "explored", tmp_path / "view")
    assert (view.trajectories, view.pairs, view.trees) == (4, 2, 1)
    assert index(tmp_path / "view")["runs"]["ids"] == ["e0", "e1", "e2", "e3"]
    assert index(tmp_path / "view")["pairs"]["chosen"] == [-1, 2]
    view, _ = build(run / "pairs", tmp_path / "pairs")
    assert (view.trajectories, view.pairs) == (5, 2)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("verdicts", ("wrong-record-type", "Verdict", "Trajectory", "PreferenceRow")),
        ("nowhere", ("table-missing",)),
        ("verdicts/data", ("table-missing",)),
    ],
)
def test_what_cannot_be_shown_is_said(run: Path, tmp_path: Path, path: str, words: tuple[str, ...]) -> None:
    with user_error(*words):
        build(run / path, tmp_path / "view")


def test_a_folder_with_something_else_is_left_alone(run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with user_error("output-not-ours"):
        build(run, tmp_path)
    with user_error("not-a-folder"):
        build(run, tmp_path / "mine.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    "files",
    [
        {"view.json": b"{}", "mine.txt": b"mine"},
        {STAMP: b"", "mine.txt": b"mine"},
        {STAMP: b"{}", "index.html": b"mine"},
        {STAMP: b"\xff", "index.html": b"mine"},
        {"index.html": b"mine"},
    ],
)
def test_a_folder_that_only_looks_like_a_view_is_left_alone(run: Path, tmp_path: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with user_error("output-not-ours"):
        build(run, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_a_view_into_which_something_was_put_is_left_alone(tmp_path: Path) -> None:
    seed_table(tmp_path / "runs", [trajectory()])
    build(tmp_path, tmp_path / "view")
    (tmp_path / "view/mine.txt").write_text("mine")
    seed_table(tmp_path / "verdicts", [verdict()])
    with user_error("output-not-ours", "mine.txt"):
        build(tmp_path, tmp_path / "view")
    assert (tmp_path / "view/mine.txt").read_text() == "mine"


def test_a_view_that_cannot_be_replaced_stays_and_scratch_is_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed_table(tmp_path / "runs", [trajectory()])
    build(tmp_path, tmp_path / "view")
    before = (tmp_path / "view/data/index.js").read_bytes()
    seed_table(tmp_path / "verdicts", [verdict()])
    rename = Path.rename

    def refused(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError(16, "busy")
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", refused)
        with pytest.raises(OSError, match="busy"):
            build(tmp_path, tmp_path / "view")
    assert (tmp_path / "view/data/index.js").read_bytes() == before
    (tmp_path / ".view.agentmill-killed/new").mkdir(parents=True)
    (tmp_path / ".view.mine").mkdir()
    assert build(tmp_path, tmp_path / "view")[1]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == [".view.mine"]


def test_two_who_build_one_view_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed_table(tmp_path / "run/runs", [trajectory()])
    results: list[bool] = []
    second = threading.Thread(target=lambda: results.append(build(tmp_path / "run", tmp_path / "view")[1]))
    write = building.write

    def slow(*given: Any) -> building.View:
        second.start()
        # Longer than the other one takes to come to the same place.
        time.sleep(1)
        return write(*given)

    with monkeypatch.context() as patched:
        patched.setattr(building, "write", slow)
        assert build(tmp_path / "run", tmp_path / "view")[1]
    second.join()
    assert results == [False]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "view"]


@pytest.mark.parametrize("lost", ["data/runs-00000.js", "data/index.js", "js/dom.js"])
def test_a_view_that_lacks_a_file_is_made_again(tmp_path: Path, lost: str) -> None:
    seed_table(tmp_path / "runs", [trajectory()])
    build(tmp_path, tmp_path / "view")
    (tmp_path / "view" / lost).unlink()
    assert build(tmp_path, tmp_path / "view")[1]
    assert (tmp_path / "view" / lost).exists()
    assert not build(tmp_path, tmp_path / "view")[1]


def test_a_view_of_another_format_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed_table(tmp_path / "runs", [trajectory()])
    build(tmp_path, tmp_path / "view")
    monkeypatch.setattr("agentmill.pipelines.view.build.FORMAT", FORMAT + 1)
    assert build(tmp_path, tmp_path / "view")[1]


def test_the_folder_of_a_link_is_written_and_a_mount_point_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert build(run, tmp_path / "link")[1]
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real/index.html").is_file()
    with user_error("mount-point"):
        build(run, Path("/"))


def test_manifests_of_other_programs_are_no_tables(tmp_path: Path) -> None:
    seed_table(tmp_path / "run/data/runs", [trajectory()])
    for name, content in {"site": '{"name": "app"}', "list": "[]", "torn": "{", "dropped/x": '{"record": 1}'}.items():
        (tmp_path / "run" / name).mkdir(parents=True)
        (tmp_path / "run" / name / "manifest.json").write_text(content)
    (tmp_path / "run/manifest.json").write_text('{"icons": []}')
    view, _ = build(tmp_path / "run", tmp_path / "view")
    assert (view.trajectories, view.tables) == (1, 1)
    assert index(tmp_path / "view")["tables"] == [["data/runs", "Trajectory", 1]]
    seed_table(tmp_path / "run/data/deep/verdicts", [verdict()])
    assert build(tmp_path / "run/data/runs", tmp_path / "one")[0].tables == 1


def test_a_trajectory_without_items_is_shown(tmp_path: Path) -> None:
    seed_table(tmp_path / "runs", [trajectory(content=[])])
    build(tmp_path, tmp_path / "view")
    ((_, _, record),) = entries(tmp_path / "view", "runs")
    assert record["content"] == []


def test_a_damaged_shard_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    seed_table(tmp_path / "runs", [trajectory()])
    shard = tmp_path / "runs/data/part-00000.parquet"
    shard.write_bytes(shard.read_bytes()[:-8] + b"PAR0PAR0")
    with user_error("damaged-file", "part-00000.parquet"):
        build(tmp_path, tmp_path / "view")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


@pytest.mark.parametrize("attack", [*ATTACKS, ATTACK, HOSTILE_ID])
def test_a_text_is_one_string_of_a_script(attack: str) -> None:
    made = literal(json.dumps(attack, ensure_ascii=False).encode())
    assert b"<" not in made
    assert not {"\u2028", "\u2029", "\n"} & set(made.decode())
    assert re.fullmatch(rb"'(?:[^'\\]|\\.)*'", made)
    assert value_of(made[1:-1]) == attack


def test_a_shelf_appends_what_comes_later(tmp_path: Path) -> None:
    with JsShards(tmp_path, "runs", 2) as shelf:
        shelf.add(0, "record", b"1")
        shelf.flush()
        shelf.add(1, "record", b"2")
        shelf.add(2, "record", b"3")
    assert (tmp_path / "runs-00000.js").read_text().count("agentmill.add") == 2
    assert shelf.files == {0, 1}


def test_columns_hold_codes() -> None:
    texts, sets = Texts(), TextSets()
    assert [texts.append(each) for each in ("b", None, "b", "a")] == [0, -1, 0, 1]
    for row, value in ((2, "x"), (0, "y"), (2, "y")):
        sets.add(row, value)
    assert texts.encoded() == {"values": ["b", "a"], "codes": [0, -1, 0, 1]}
    assert sets.encoded(3) == {"values": ["x", "y"], "sets": [(), (1,), (0, 1)], "codes": [1, 0, 2]}
    assert shortened("a\n b" + "c" * 200) == "a b" + "c" * 96 + "…"


def test_pages_hold_no_script_of_their_own_and_name_no_other_host() -> None:
    page = (STATIC / "index.html").read_text()
    assert "script-src 'self'" in page
    assert not re.search(r"<script(?![^>]* src=)|\son\w+=|style=", page)
    scripts = {path.name: path.read_text() for path in STATIC.rglob("*.*")}
    assert not [name for name, text in scripts.items() if re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)]
    unsafe = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
    assert not [name for name, text in scripts.items() if re.search(unsafe, text)]
