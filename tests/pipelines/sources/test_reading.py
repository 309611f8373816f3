"""Raw files cut into parts: nothing lost, nothing twice, the same for any size of part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentmill.pipelines.sources import reading
from agentmill.pipelines.sources.files import find, not_read
from agentmill.pipelines.sources.planning import GroupBy, plan_parts
from agentmill.pipelines.sources.reading import RawRecord, read_part
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.raw_input import RawSlice
from tests.errors import user_error

ROWS = [{"id": f"r{number}", "text": "é" * number} for number in range(40)]


def write(folder: Path, kind: str, rows: list[Any], name: str = "rows") -> Path:
    path = folder / f"{name}.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)
    elif kind == "json":
        path.write_text(json.dumps(rows))
    elif kind == "csv":
        path.write_text("".join(f"{','.join(map(str, row))}\n" for row in (rows[0], *(row.values() for row in rows))))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path, part_bytes: int, group_by: GroupBy | None = None) -> list[RawRecord]:
    parts = plan_parts(tuple(find([str(path)])), part_bytes, group_by)
    assert len({part.part_id for part in parts}) == len(parts)
    records = [list(read_part(part)) for part in parts]
    assert [len(each) for each in records] == [part.records for part in parts]
    return [record for each in records for record in each]


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
@pytest.mark.parametrize("part_bytes", [1, 300, 10**9])
def test_every_row_is_read_once_and_in_order(tmp_path: Path, kind: str, part_bytes: int) -> None:
    records = read(write(tmp_path, kind, ROWS), part_bytes)
    assert [json.loads(record.data) for record in records] == ROWS
    assert [record.row for record in records] == list(range(40))


@pytest.mark.parametrize("part_bytes", [1, 10**6])
def test_rows_of_csv_are_objects_of_texts(tmp_path: Path, part_bytes: int) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b'\xef\xbb\xbfid,text\r\n007,"two\nlines, ""quoted"""\r\n\r\n8\r\n9,x\r\n')
    records = read(path, part_bytes)
    assert [json.loads(record.data) for record in records] == [
        {"id": "007", "text": 'two\nlines, "quoted"'},
        {"id": "8"},
        {"id": "9", "text": "x"},
    ]
    assert [record.fault for record in records] == ["", "1 cells under a header of 2", ""]
    write(tmp_path, "jsonl", ROWS)
    assert len(read(tmp_path, part_bytes)) == len(ROWS)  # that of the folder is not read
    path.write_bytes(b'a,b\n1,"2')
    with user_error("damaged-file", "rows.csv"):
        plan_parts(tuple(find([str(path)])), part_bytes)


def test_a_cell_of_csv_may_be_long(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"id,text\n1,{'x' * 200_000}\n")
    (record,) = read(path, 10**6)
    assert len(json.loads(record.data)["text"]) == 200_000


def test_two_columns_of_csv_with_one_name_make_a_row_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,text,text\n1,a,b\n")
    (record,) = read(path, 10**6)
    assert record.fault == "column 'text' cannot be read (it is there twice)"
    path.write_text("id,,\n1,,\n2,,x\n3,y,x\n")
    assert [bool(record.fault) for record in read(path, 10**6)] == [False, False, True]


def test_rows_are_numbered_over_all_files_and_a_part_may_span_several(tmp_path: Path) -> None:
    for number in range(5):
        write(tmp_path, "jsonl", ROWS[number : number + 1], f"file{number}")
    parts = plan_parts(tuple(find([str(tmp_path)])), 10**6)
    assert [record.row for part in parts for record in read_part(part)] == [0, 1, 2, 3, 4]
    assert len(parts) == 1


@pytest.mark.parametrize("part_bytes", [1, 10**6])
def test_equal_records_are_told_apart_by_how_many_came_before(tmp_path: Path, part_bytes: int) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n{"a": 1}\n\n{"a": 1}')
    records = read(path, part_bytes)
    assert [record.data for record in records] == [b'{"a": 1}', b'{"a": 2}', b'{"a": 1}', b"", b'{"a": 1}']
    assert [record.occurrence for record in records] == [0, 0, 1, 0, 2]


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
@pytest.mark.parametrize("part_bytes", [1, 10**6])
def test_rows_of_one_run_are_one_record_wherever_they_stand(tmp_path: Path, kind: str, part_bytes: int) -> None:
    steps = [{"run": {"n": number % 3}, "step": 9 - number // 3} for number in range(9)]
    records = read(write(tmp_path, kind, steps), part_bytes, GroupBy(("run.n",), "step"))
    told = [[(row["run"]["n"], row["step"]) for row in json.loads(record.data)] for record in records]
    assert told == [[(n, step) for step in (7, 8, 9)] for n in range(3)]


@pytest.mark.parametrize(("kind", "pass_over_a_file"), [("csv", "_csv_rows"), ("parquet", "encoded_rows")])
def test_rows_of_a_run_that_lie_apart_are_read_in_one_pass(
    tmp_path: Path, kind: str, pass_over_a_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        write(tmp_path, kind, [{"run": number % 4, "step": f"{name}{number:02}"} for number in range(28)], name)
    (part,) = plan_parts(tuple(find([f"{tmp_path}/*.{kind}"])), 10**6, GroupBy(("run",)))
    reading._row_group.cache_clear()
    original, passes = getattr(reading, pass_over_a_file), []
    monkeypatch.setattr(reading, pass_over_a_file, lambda what: passes.append(what) or original(what))
    records = [json.loads(record.data) for record in read_part(part)]
    assert [[row["step"] for row in record] for record in records] == [
        [f"{name}{number:02}" for name in ("a", "b") for number in range(run, 28, 4)] for run in range(4)
    ]
    assert len(passes) == {"csv": 2, "parquet": 8}[kind]  # files, and row groups of them


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
def test_rows_next_to_each_other_are_read_at_one_go(tmp_path: Path, kind: str) -> None:
    steps = [{"run": number // 4, "step": number} for number in range(16)]
    for name in ("a", "b"):
        write(tmp_path, kind, [{**step, "run": f"{name}{step['run']}"} for step in steps], name)
    (part,) = plan_parts(tuple(find([str(tmp_path)])), 10**6, GroupBy(("run",), "step"))
    assert [(piece.row, piece.rows) for piece in part.slices] == [(0, 16), (16, 16)]
    assert [len(json.loads(record.data)) for record in read_part(part)] == [4] * 8


def test_a_row_without_the_key_is_a_record_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b'{"run": 1}\n{"run": null}\nbroken\n{"run": 1}\nbroken\n')
    records = read(path, 10**6, GroupBy(("run",)))
    assert [record.data for record in records] == [
        b'[{"run": 1},{"run": 1}]',
        b'[{"run": null}]',
        b"[broken]",
        b"[broken]",
    ]
    assert [record.occurrence for record in records] == [0, 0, 0, 1]


def test_white_space_and_a_byte_order_mark_around_a_row_of_a_group_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"run": 1}\n{"run": 1} \n{"x": 1}\n{"x": 1} \n{"x": 1}\r')
    records = read(path, 10**6, GroupBy(("run",)))
    assert [record.data for record in records] == [b'[{"run": 1},{"run": 1}]', *[b'[{"x": 1}]'] * 3]
    assert [record.occurrence for record in records] == [0, 0, 1, 2]


def test_ids_of_parts_do_not_depend_on_the_place_of_the_files(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    ids = []
    for folder in folders:
        folder.mkdir()
        ids.append([part.part_id for part in plan_parts(tuple(find([str(write(folder, "jsonl", ROWS))])), 300)])
    assert ids[0] == ids[1]
    changed = plan_parts(tuple(find([str(write(folders[1], "jsonl", [*ROWS[:-1], {**ROWS[-1], "id": "s39"}]))])), 300)
    assert [part.part_id for part in changed][:-1] == ids[0][:-1]
    assert changed[-1].part_id != ids[0][-1]


def test_a_list_may_be_one_record(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path, "json", ROWS[:2], name)
    parts = plan_parts(tuple(find([str(tmp_path)], whole=True)), 10**6)
    records = [record for part in parts for record in read_part(part)]
    assert [json.loads(record.data) for record in records] == [ROWS[:2]] * 2
    assert [(record.row, record.occurrence) for record in records] == [(0, 0), (1, 1)]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b'{"a": 1}\n{"a": 2}\n', [b'{"a": 1}', b'{"a": 2}']),
        (b'{"a": 1}\n{"a"', [b'{"a": 1}', b'{"a"']),
        (b'{"a": 1}\n\n', [b'{"a": 1}\n\n']),
        (b'{\n"a": 1}\n', [b'{\n"a": 1}\n']),
        (b'\n{"a": 1}\n{"a": 2}\n', [b"", b'{"a": 1}', b'{"a": 2}']),
        (b'{bad\n{"a": 1}\n{"a": 2}\n', [b"{bad", b'{"a": 1}', b'{"a": 2}']),
        (b'{"a":\n{"b": 1}}\n', [b'{"a":\n{"b": 1}}\n']),
    ],
)
def test_a_json_file_whose_first_line_is_a_record_is_json_lines(
    tmp_path: Path, data: bytes, lines: list[bytes]
) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(data)
    assert [record.data for record in read(path, 10**6)] == lines


def test_a_document_that_is_no_json_is_one_record(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(b'[{"a')
    assert [record.data for record in read(path, 10**6)] == [b'[{"a']


@pytest.mark.parametrize(
    ("data", "records"),
    [
        (b'[{"a": 1}, {"a": [2, 3]}, {"a', [b'{"a": 1}', b'{"a": [2, 3]}', b'{"a']),
        (b'[{"a": 1},\n', [b'{"a": 1}', b",\n"]),
        (b'[{"a": 1}, {"a": 2}', [b'{"a": 1}', b'{"a": 2}']),
    ],
)
def test_of_a_list_that_breaks_off_every_element_is_a_record(tmp_path: Path, data: bytes, records: list[bytes]) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(data)
    assert [record.data for record in read(path, 10**6)] == records


def test_a_file_of_one_object_on_one_line_goes_with_json_lines(tmp_path: Path) -> None:
    write(tmp_path, "jsonl", ROWS[:2], "a")
    (tmp_path / "b.json").write_text('{"id": "one"}\n')
    assert [file.kind for file in find([str(tmp_path)])] == ["jsonl", "jsonl"]
    (tmp_path / "c.json").write_text('{\n"id": "one"}\n')
    with user_error("kinds-mixed", "json, such as", "c.json", "jsonl, such as", "a.jsonl"):
        find([str(tmp_path)])


def test_a_link_to_nothing_is_no_file_that_may_be_left_out(tmp_path: Path) -> None:
    write(tmp_path, "jsonl", ROWS[:2], "a")
    (tmp_path / "b.jsonl").symlink_to("/nowhere/b")
    for pattern in (tmp_path, tmp_path / "*.jsonl", tmp_path / "b.jsonl"):
        with user_error("file-missing", "b.jsonl is a link to /nowhere/b"):
            find([str(pattern)])


def test_folders_that_a_pattern_matches_are_named(tmp_path: Path) -> None:
    write(tmp_path, "jsonl", ROWS[:2], "a")
    (tmp_path / "b.jsonl").mkdir()
    assert not_read([f"{tmp_path}/*.jsonl"]) == {f"{tmp_path}/*.jsonl": [f"{tmp_path}/b.jsonl/"]}


def test_the_parts_of_a_csv_file_are_read_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = plan_parts(tuple(find([str(write(tmp_path, "csv", ROWS))])), 1)
    original, passes = reading._csv_rows, []
    monkeypatch.setattr(reading, "_csv_rows", lambda path: passes.append(path) or original(path))
    forward = [record.row for part in parts for record in read_part(part)]
    assert (forward, len(passes)) == (list(range(40)), 1)
    assert [record.row for part in reversed(parts) for record in read_part(part)] == forward[::-1]
    (tmp_path / "bad.csv").write_text('id,text\n1,a\n2,"b')
    bad = RawSlice(path=str(tmp_path / "bad.csv"), start=0, stop=2, row=0, rows=2)
    for _ in range(2):
        with user_error("damaged-file", "bad.csv"):
            list(reading.rows_in(bad, "csv", None))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("nothing.jsonl", ("no file matches", "Did you mean 'nothings.jsonl'")),
        ("data.pkl", ("pickle", "JSON lines")),
        ("data.txt", ("ends in .txt", ".parquet")),
        ("data.jsonl.gz", ("ends in .gz", "not compressed")),
        ("damaged.parquet", ("cannot be read as Parquet",)),
        ("*s.*", ("several kinds",)),
    ],
)
def test_files_that_cannot_be_read_are_told(tmp_path: Path, given: str, words: tuple[str, ...]) -> None:
    for name in ("nothings.jsonl", "things.json", "data.pkl", "data.txt", "data.jsonl.gz", "damaged.parquet"):
        (tmp_path / name).write_bytes(b"x\n")
    with pytest.raises(UserError) as error:
        plan_parts(tuple(find([str(tmp_path / given)])), 10**6)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_folder_of_tables_alone_is_answered_with_how_to_name_them(tmp_path: Path) -> None:
    with user_error("no-file-matches", f"{tmp_path} has no file that is read from a folder (.json, ", "/**/*.jsonl"):
        find([str(tmp_path)])
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with user_error("no-file-matches", f"name a CSV file itself, such as {tmp_path}/*.csv"):
        find([str(tmp_path)])
    assert [file.kind for file in find([f"{tmp_path}/*.csv"])] == ["csv"]


def test_a_file_that_shrank_since_the_plan_is_told(tmp_path: Path) -> None:
    path = write(tmp_path, "jsonl", ROWS)
    (part,) = plan_parts(tuple(find([str(path)])), 10**6)
    whole = path.read_bytes()
    for left in (b"{}\n", whole[:-5], b""):
        path.write_bytes(left)
        records = read_part(part)
        with user_error("file-changed"):
            _ = [next(records) for _ in range(part.records)]


@pytest.mark.parametrize("kind", ["json", "parquet"])
@pytest.mark.parametrize("group_by", [None, GroupBy(("id",))])
def test_a_file_with_fewer_rows_than_the_plan_is_told(tmp_path: Path, kind: str, group_by: GroupBy | None) -> None:
    path = write(tmp_path, kind, ROWS)
    (part,) = plan_parts(tuple(find([str(path)])), 10**6, group_by)
    write(tmp_path, kind, ROWS[:30])
    with user_error("file-changed"):
        list(read_part(part))
