"""A full-text index over the passages of a corpus, ranked by BM25 (Robertson and Zaragoza, 2009).

It is built once on a machine and kept on disk under the digest of the corpus, from where it is mapped into memory. It
belongs to the digest: results do not change with the files, nor with the process that built it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import msgspec
import tantivy

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.models import cache_folder
from agentmill.synthesis.environments.search.corpus import (
    Passage,
    check_unchanged,
    id_twice,
    passages_of,
    read_documents,
)

FORMAT = 1
"""Counts up whenever the same corpus would be indexed otherwise, so that an older index is not taken for it."""
HEAP_BYTES = 128 * 2**20
"""Memory of a build, whatever the size of the corpus."""
MOST_TERMS = 64
"""Of a query; further words are ignored, since a query may be a whole page."""
SNIPPET_CHARACTERS = 200
SPARE_HITS = 50
TITLE_WEIGHT = 2.0
"""A passage whose title has the word counts for more."""
_ANALYZER = "passage"


class Hit(msgspec.Struct, frozen=True):
    """One result: the passage's id and title, and the part of its text that meets the query."""

    id: str
    title: str
    snippet: str


class Found(msgspec.Struct, frozen=True):
    """A passage as it is opened; ``parts`` is the number of passages of its document."""

    id: str
    title: str
    text: str
    document: str
    number: int
    parts: int


class PassageIndex:
    """The passages of one corpus. Made by ``open_index``."""

    def __init__(self, folder: Path) -> None:
        self._index = tantivy.Index.open(str(folder))
        self._analyzer = _analyzer()
        self._index.register_tokenizer(_ANALYZER, self._analyzer)
        self._schema = self._index.schema
        self._searcher = self._index.searcher()

    def __len__(self) -> int:
        return self._searcher.num_docs

    def search(self, query: str, k: int) -> list[Hit]:
        """The ``k`` best passages; of equally good ones those that come first in the corpus. None without a match."""
        asked = self._query(query)
        if asked is None:
            return []
        # Segments have no order of their own, so more are taken and the equal ones among them are ordered here.
        hits = self._searcher.search(asked, k + SPARE_HITS, count=False).hits
        found = [(-float(score), self._searcher.doc(address)) for score, address in hits]
        found.sort(key=lambda each: (each[0], each[1]["place"][0]))
        snippets = tantivy.SnippetGenerator.create(self._searcher, asked, self._schema, "text")
        snippets.set_max_num_chars(SNIPPET_CHARACTERS)
        results = []
        for _, document in found[:k]:
            text = document["text"][0]
            # Empty where only the title meets the query.
            part = snippets.snippet_from_doc(document).fragment() or text[:SNIPPET_CHARACTERS]
            results.append(Hit(document["id"][0], document["title"][0], " ".join(part.split())))
        return results

    def open(self, name: str) -> Found | None:
        """The passage of that id, or the first of the document of that id; ``None`` for an unknown id."""
        for field in ("id", "document"):
            query = tantivy.Query.term_query(self._schema, field, name)
            hits = self._searcher.search(query, 1, count=False, order_by_field="place", order=tantivy.Order.Asc).hits
            if hits:
                held = self._searcher.doc(hits[0][1])
                return Found(**{name: held[name][0] for name in Found.__struct_fields__})
        return None

    def terms(self, text: str) -> list[str]:
        """The words of a text as the index compares them, each once."""
        return list(dict.fromkeys(self._analyzer.analyze(text)))

    def _query(self, text: str) -> tantivy.Query | None:
        words = self.terms(text)[:MOST_TERMS]
        weights = {"text": 1.0, "title": TITLE_WEIGHT}
        parts = [
            tantivy.Query.boost_query(tantivy.Query.term_query(self._schema, field, word), weight)
            for word in words
            for field, weight in weights.items()
        ]
        return tantivy.Query.boolean_query([(tantivy.Occur.Should, part) for part in parts]) if parts else None


@lru_cache(maxsize=8)
def open_index(path: str, corpus: str) -> PassageIndex:
    """The index of the corpus at ``path`` with the digest ``corpus``, built if this machine has none.

    Raises ``UserError`` for a corpus that is missing, changed or malformed, and for a cache that cannot be written.
    """
    check_unchanged(Path(path), corpus)
    folder = cache_folder("corpora") / f"{corpus}-{FORMAT}"
    try:
        if folder.exists():
            try:
                return PassageIndex(folder)
            except ValueError:  # damaged, as after a full disk
                shutil.rmtree(folder, ignore_errors=True)
        _build(Path(path), folder)
        return PassageIndex(folder)
    except OSError as error:
        raise UserError(
            f"the index of the corpus {path} cannot be kept in {folder.parent} ({error.strerror or error})\n"
            "set AGENTMILL_CACHE to a folder that can be written",
            ErrorCode.NOT_WRITABLE,
        ) from error


def _build(path: Path, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Another process may build the same: whoever is first renames its own, so that an index is whole or not there.
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _write(path, building)
        try:
            building.replace(folder)
        except OSError:
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _write(path: Path, folder: Path) -> None:
    schema = _schema()
    index = tantivy.Index(schema, path=str(folder))
    index.register_tokenizer(_ANALYZER, _analyzer())
    # One thread, so that passages are written in the order of the corpus.
    writer = index.writer(heap_size=HEAP_BYTES, num_threads=1)
    try:
        for place, (passage, number, parts) in enumerate(_every_passage(path)):
            fields = {"id": passage.id, "title": passage.title, "text": passage.text, "document": passage.document}
            numbers = {"number": number, "parts": parts, "place": place}
            writer.add_document(tantivy.Document.from_dict({**fields, **numbers}, schema))
        writer.commit()
    finally:
        # Its threads write into the folder until they end, also when the folder is to be removed.
        writer.wait_merging_threads()


def _every_passage(path: Path) -> Iterator[tuple[Passage, int, int]]:
    """Each passage with its number in its document, and how many that has. Raises ``UserError``."""
    ids = set[int]()
    for document in read_documents(path):
        passages = passages_of(document)
        for number, passage in enumerate(passages, 1):
            # The second passage of the document ``a`` has the id that a document ``a#2`` would have.
            if hash(passage.id) in ids:
                raise id_twice(path, passage.id)
            ids.add(hash(passage.id))
            yield passage, number, len(passages)


def _schema() -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    for name in ("title", "text"):
        builder.add_text_field(name, stored=True, tokenizer_name=_ANALYZER)
    for name in ("id", "document"):
        builder.add_text_field(name, stored=True, tokenizer_name="raw", index_option="basic")
    for name in ("number", "parts", "place"):
        builder.add_unsigned_field(name, stored=True, fast=True)
    return builder.build()


def _analyzer() -> tantivy.TextAnalyzer:
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    for step in (tantivy.Filter.remove_long(40), tantivy.Filter.lowercase(), tantivy.Filter.stemmer("english")):
        builder = builder.filter(step)
    return builder.build()
