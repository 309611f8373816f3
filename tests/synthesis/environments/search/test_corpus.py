from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentmill.synthesis.environments.search.corpus import (
    PASSAGE_CHARACTERS,
    Document,
    check_unchanged,
    contents,
    corpus_digest,
    passages_of,
    read_documents,
)
from tests.errors import user_error
from tests.synthesis.environments.search.corpora import CRANES, OTTERS, write_jsonl


def test_a_folder_of_texts(tmp_path: Path) -> None:
    (tmp_path / "birds").mkdir()
    (tmp_path / "birds" / "cranes.md").write_text(
        "# The cranes\nThey fly over [the Tamsel](../rivers/tamsel.md#mouth)."
    )
    (tmp_path / "big_otter.txt").write_text("Otters swim.")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    assert list(read_documents(tmp_path)) == [
        Document("big_otter", "big otter", "Otters swim."),
        Document("birds/cranes", "The cranes", "They fly over the Tamsel.", ["rivers/tamsel"]),
    ]


def test_a_byte_order_mark_of_json_lines_is_no_text(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "corpus.jsonl", [OTTERS, CRANES])
    before = list(read_documents(path))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert list(read_documents(path)) == before


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "marked.txt").write_text("# The cranes\nThey fly.", encoding="utf-8-sig")
    assert list(read_documents(tmp_path)) == [Document("marked", "The cranes", "They fly.")]


@pytest.mark.parametrize("piece", ["[0, 1) ", "[", "[a](b", "[a](bcd"])
def test_brackets_that_are_never_closed_take_no_longer(piece: str, tmp_path: Path) -> None:
    """Each would be sought to the end of the file: a megabyte took minutes."""
    (tmp_path / "intervals.txt").write_text(piece * (1_000_000 // len(piece)))
    began = time.process_time()
    assert len(list(read_documents(tmp_path))) == 1
    assert time.process_time() - began < 10


def test_json_lines_and_parquet_hold_the_same_documents(tmp_path: Path) -> None:
    lines = write_jsonl(tmp_path / "corpus.jsonl", [OTTERS, CRANES])
    rows = [{"id": each.id, "title": each.title, "text": each.text, "year": 3} for each in (OTTERS, CRANES)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "corpus.parquet")
    assert list(read_documents(lines)) == list(read_documents(tmp_path / "corpus.parquet")) == [OTTERS, CRANES]


def test_ids_may_be_numbers_and_titles_missing(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"id": 7, "text": "Seven.", "links": [8]}\n\n{"id": 8, "text": " "}\n')
    assert list(read_documents(tmp_path / "corpus.jsonl")) == [Document("7", "7", "Seven.", ["8"])]


def test_the_digest_is_of_names_and_contents_not_of_the_place(tmp_path: Path) -> None:
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "otters.txt").write_text("Otters swim.")
    first = corpus_digest(tmp_path / "one")
    assert first == corpus_digest(tmp_path / "two")
    check_unchanged(tmp_path / "two", first)
    (tmp_path / "two" / "otters.txt").rename(tmp_path / "two" / "otter.txt")
    with user_error("file-changed", "two"):
        check_unchanged(tmp_path / "two", first)


def test_passages_are_bounded_and_lose_no_word() -> None:
    sentences = [f"Sentence number {number} is about the river Tamsel and its otters." for number in range(90)]
    document = Document("long", "Long", "\n\n".join(" ".join(sentences[place : place + 30]) for place in (0, 30, 60)))
    passages = passages_of(document)
    assert [passage.id for passage in passages] == [f"long#{number}" for number in range(1, len(passages) + 1)]
    assert len(passages) > 3
    assert all(len(passage.text) <= PASSAGE_CHARACTERS for passage in passages)
    assert " ".join(passage.text for passage in passages).split() == document.text.split()
    unbroken = passages_of(Document("x", "X", "x" * (2 * PASSAGE_CHARACTERS + 1)))
    assert [len(passage.text) for passage in unbroken] == [PASSAGE_CHARACTERS, PASSAGE_CHARACTERS, 1]


@pytest.mark.parametrize(
    ("name", "content", "code", "words"),
    [
        ("corpus.jsonl", b'{"id": "a", "text": "A."}\n{"id": "a", "text": "B."}\n', "record-twice", "'a'"),
        ("corpus.jsonl", b'{"id": "a"}\n', "line-malformed", "line 1"),
        ("corpus.jsonl", b'{"id": "a", "text": "\xff"}\n', "line-malformed", "line 1"),
        ("corpus.jsonl", b"\n", "no-records", "empty"),
        ("corpus.jsonl", b'{"id": "", "text": "A."}\n', "line-malformed", "expected 1 to 500"),
        ("corpus.parquet", b"no table", "not-readable", "corpus.parquet"),
        ("corpus.csv", b"id,text\n", "file-kind-unknown", ".csv"),
    ],
)
def test_files_that_are_no_corpus(name: str, content: bytes, code: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with user_error(code, words):
        list(read_documents(tmp_path / name))


@pytest.mark.parametrize("content", [b"\xff\xfe\x00otters", b"otters\x00"])
def test_a_file_that_is_no_text(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "otters.txt").write_bytes(content)
    with user_error("not-utf8", "otters.txt"):
        list(read_documents(tmp_path))


def test_folders_without_texts_and_missing_ones(tmp_path: Path) -> None:
    with user_error("no-file-matches", ".txt or .md"):
        corpus_digest(tmp_path)
    with user_error("no-such-file", "missing"):
        corpus_digest(tmp_path / "missing")
    (tmp_path / "blank.txt").write_text(" \n")
    with user_error("no-records", "empty"):
        list(read_documents(tmp_path))


def test_a_table_without_texts(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a"], "body": ["A."]}), tmp_path / "corpus.parquet")
    with user_error("column-missing", "`text`", "id, body"):
        list(read_documents(tmp_path / "corpus.parquet"))


def test_what_is_left_out_of_a_corpus_is_counted(tmp_path: Path) -> None:
    (tmp_path / "otters.txt").write_text("Otters swim.")
    (tmp_path / "blank.txt").write_text(" \n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    assert contents(tmp_path) == {"documents": 1, "documents_without_text": 1, "files_ignored": 1}
    lines = write_jsonl(tmp_path / "corpus.jsonl", [OTTERS, Document("blank", "Blank", "")])
    assert contents(lines) == {"documents": 1, "documents_without_text": 1, "files_ignored": 0}
