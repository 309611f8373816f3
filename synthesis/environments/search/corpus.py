"""A corpus on disk: documents of a folder of texts, of JSON lines or of a Parquet table, cut into passages.

A document has an ``id``, a ``title``, a ``text`` and may name others in ``links``. In a folder each ``.txt`` and
``.md`` file is one: its id is its path without the suffix, its title a heading in its first line, or its name.
Everything here streams: one document, or a batch of a table, and hashes of the ids are in memory.
"""

from __future__ import annotations

import codecs
import posixpath
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import digest, file_sha256

TEXTS = (".txt", ".md")
TABLES = (".jsonl", ".parquet")
PASSAGE_CHARACTERS = 1_200
"""Most characters of a passage; a longer document is cut between paragraphs or sentences where it can be."""
MOST_CHARACTERS = 20_000_000
"""Of one document, or one line of JSON."""
BATCH_ROWS = 256
MOST_ID_CHARACTERS = 500

SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-ZÀ-Þ0-9])")
# No part runs over the next bracket, nor is tried shorter: what is never closed would be sought to the end each time.
_MARKDOWN_LINK = re.compile(r"\[([^\[\]]++)\]\(([^()\s#]++)[^()]*+\)")
_HEADING = re.compile(r"#{1,6}\s+(.+)")


class Document(msgspec.Struct, frozen=True):
    """One document; ``links`` are ids of others."""

    id: str
    title: str
    text: str
    links: list[str] = []


class Passage(msgspec.Struct, frozen=True):
    """A part of a document; ``id`` is that of its document, with ``#NUMBER`` where there are several."""

    id: str
    title: str
    text: str
    document: str
    links: list[str] = []


class _Row(msgspec.Struct):
    """A line of JSON or a row of a table; further keys are ignored."""

    id: str | int
    text: str
    title: str | None = None
    links: list[str | int] | None = None


def corpus_digest(path: Path) -> str:
    """Equal for corpora with the same files by the same names. Raises ``UserError`` as ``corpus_files``."""
    files = corpus_files(path)
    try:
        named = [(file.relative_to(path).as_posix() if path.is_dir() else file.suffix) for file in files]
        return digest("corpus", [[name, file_sha256(file)] for name, file in zip(named, files, strict=True)])
    except OSError as error:
        raise _unreadable(path, error) from None


def check_unchanged(path: Path, expected: str) -> None:
    """Raises ``UserError`` for a corpus that is missing, or other than the one with the digest ``expected``."""
    if corpus_digest(path) != expected:
        raise UserError(
            f"the corpus {path} has changed since environments were made of it\n"
            "put the old files back, or make the environments and their tasks again",
            ErrorCode.FILE_CHANGED,
        )


def corpus_files(path: Path) -> list[Path]:
    """The files of a corpus in a fixed order. Raises ``UserError`` where there are none, or of other kinds."""
    if not path.exists():
        raise UserError(
            f"there is no corpus {path}\nname a folder of .txt or .md files, a .jsonl or a .parquet file",
            ErrorCode.NO_SUCH_FILE,
        )
    if path.is_file():
        if path.suffix not in TABLES:
            raise UserError(
                f"the corpus {path} is a {path.suffix or 'nameless'} file; expected {' or '.join(TABLES)}\n"
                "put .txt and .md files into a folder and name the folder",
                ErrorCode.FILE_KIND_UNKNOWN,
            )
        return [path]
    files = sorted(file for file in path.rglob("*") if file.suffix in TEXTS and file.is_file())
    if not files:
        raise UserError(
            f"the corpus {path} is a folder without {' or '.join(TEXTS)} files\n"
            "name another folder, or a .jsonl or .parquet file",
            ErrorCode.NO_FILE_MATCHES,
        )
    return files


def read_documents(path: Path) -> Generator[Document, None, None]:
    """Every document that holds text, in a fixed order.

    Raises ``UserError`` for files that cannot be read as text, an id that two documents have, and a corpus without
    text.
    """
    read = used = 0
    for document in _every_document(path):
        read += 1
        if document.text.strip():
            used += 1
            yield document
    if not used:
        raise UserError(
            f"the corpus {path} is empty: none of its {read:,} documents holds text\nname another corpus",
            ErrorCode.NO_RECORDS,
        )


def contents(path: Path) -> dict[str, int]:
    """How many documents are used, how many have no text, and how many files of a folder are of other kinds.

    Raises ``UserError`` as ``read_documents``.
    """
    used = sum(1 for _ in read_documents(path))
    empty = sum(not document.text.strip() for document in _every_document(path))
    files = sum(file.is_file() for file in path.rglob("*")) - len(corpus_files(path)) if path.is_dir() else 0
    return {"documents": used, "documents_without_text": empty, "files_ignored": files}


def _every_document(path: Path) -> Iterator[Document]:
    """Raises ``UserError`` for an id that two documents have."""
    if path.is_dir():
        found: Iterator[Document] = (_from_file(file, path) for file in corpus_files(path))
    else:
        corpus_files(path)  # of a kind that is read
        found = _from_jsonl(path) if path.suffix == ".jsonl" else _from_parquet(path)
    # Hashes and not ids: an id may be long.
    seen: set[int] = set()
    for document in found:
        if hash(document.id) in seen:
            raise id_twice(path, document.id)
        seen.add(hash(document.id))
        yield document


def id_twice(path: Path, name: str) -> UserError:
    """The error for an id that two documents or passages have."""
    return UserError(f"the corpus {path} has the id {name!r} twice\nrename one of the two", ErrorCode.RECORD_TWICE)


def passages_of(document: Document) -> list[Passage]:
    """The passages of a document in their order, none longer than ``PASSAGE_CHARACTERS``."""
    pieces: list[str] = []
    for paragraph in re.split(r"\n\s*\n", document.text.strip()):
        for piece in _cut(" ".join(paragraph.split())):
            if pieces and len(pieces[-1]) + len(piece) < PASSAGE_CHARACTERS:
                pieces[-1] += f"\n{piece}"
            elif piece:
                pieces.append(piece)
    names = [document.id] if len(pieces) == 1 else [f"{document.id}#{number}" for number in range(1, len(pieces) + 1)]
    return [
        Passage(name, document.title, text, document.id, document.links)
        for name, text in zip(names, pieces, strict=True)
    ]


def _cut(paragraph: str) -> Iterator[str]:
    if len(paragraph) <= PASSAGE_CHARACTERS:
        yield paragraph
        return
    piece = ""
    for sentence in SENTENCE_END.split(paragraph):
        if piece and len(piece) + len(sentence) >= PASSAGE_CHARACTERS:
            yield piece
            piece = ""
        piece = f"{piece} {sentence}".strip()
        while len(piece) > PASSAGE_CHARACTERS:
            yield piece[:PASSAGE_CHARACTERS]
            piece = piece[PASSAGE_CHARACTERS:]
    if piece:
        yield piece


def _from_file(file: Path, root: Path) -> Document:
    try:
        if file.stat().st_size > MOST_CHARACTERS:
            raise UserError(
                f"{file} has more than {MOST_CHARACTERS:,} bytes, the most of one document\ncut it into several files",
                ErrorCode.FILE_TOO_LARGE,
            )
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise _not_text(file) from None
    except OSError as error:
        raise _unreadable(file, error) from None
    if "\0" in text:
        raise _not_text(file)
    name = file.relative_to(root).with_suffix("").as_posix()
    first, _, rest = text.strip().partition("\n")
    heading = _HEADING.fullmatch(first.strip())
    title = heading[1].strip() if heading else file.stem.replace("_", " ")
    body = rest if heading else text
    folder = posixpath.dirname(name)
    links = [posixpath.normpath(posixpath.join(folder, target)) for _, target in _MARKDOWN_LINK.findall(body)]
    # A link shows as its words, which is what a reader sees.
    return Document(name, title, _MARKDOWN_LINK.sub(r"\1", body), [re.sub(r"\.(md|txt)$", "", each) for each in links])


def _from_jsonl(path: Path) -> Iterator[Document]:
    decoder = msgspec.json.Decoder(_Row)
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MOST_CHARACTERS + 1):
                number += 1
                # Spreadsheets and editors of Windows write one at the start of a file.
                line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if line.strip():
                    yield _document(decoder.decode, line, f"{path}, line {number}")
    except OSError as error:
        raise _unreadable(path, error) from None


def _from_parquet(path: Path) -> Iterator[Document]:
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            missing = sorted({"id", "text"} - {*names})
            if missing:
                raise UserError(
                    f"{path} has no column `{missing[0]}`; its columns are {', '.join(names)}\n"
                    "a corpus has the columns `id` and `text`, and may have `title` and `links`",
                    ErrorCode.COLUMN_MISSING,
                )
            columns = [name for name in _Row.__struct_fields__ if name in names]
            number = 0
            for batch in file.iter_batches(BATCH_ROWS, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield _document(lambda given: msgspec.convert(given, _Row), row, f"{path}, row {number}")
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from None


def _document(read: Any, given: Any, where: str) -> Document:
    try:
        row: _Row = read(given)
        # Lone surrogates are no text, and neither the index nor a table could hold them.
        "".join([str(row.id), row.text, row.title or ""]).encode()
    except (msgspec.DecodeError, UnicodeError) as error:
        raise UserError(
            f"{where}: no document of a corpus ({error})\n"
            'expected an object with `id` and `text`, such as {"id": "otters", "title": "Otters", "text": "…"}',
            ErrorCode.LINE_MALFORMED,
        ) from None
    name = str(row.id)
    if not 0 < len(name.strip()) <= MOST_ID_CHARACTERS:
        raise UserError(
            f"{where}: the id {name[:40]!r} has {len(name):,} characters; expected 1 to {MOST_ID_CHARACTERS}\n"
            "give the document a shorter id, and its name as `title`",
            ErrorCode.LINE_MALFORMED,
        )
    return Document(name, " ".join((row.title or name).split()), row.text, [str(link) for link in row.links or ()])


def _not_text(file: Path) -> UserError:
    return UserError(f"{file} is no UTF-8 text\nremove it from the corpus, or convert it", ErrorCode.NOT_UTF8)


def _unreadable(path: Path, error: Exception) -> UserError:
    reason = str(error).partition("\n")[0]
    return UserError(f"the corpus {path} cannot be read ({reason:.120})\nname another file", ErrorCode.NOT_READABLE)
