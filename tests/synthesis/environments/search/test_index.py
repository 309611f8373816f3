from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from agentmill.schemas.models import cache_folder
from agentmill.synthesis.environments.search.corpus import Document, corpus_digest
from agentmill.synthesis.environments.search.index import SPARE_HITS, PassageIndex, open_index
from tests.errors import user_error
from tests.synthesis.environments.search.corpora import CRANES, OTTERS, invented, write_jsonl


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMILL_CACHE", str(tmp_path / "cache"))
    open_index.cache_clear()


def opened(path: Path) -> PassageIndex:
    return open_index(str(path), corpus_digest(path))


def test_better_passages_come_first_and_words_are_compared_by_their_stems(tmp_path: Path) -> None:
    index = opened(write_jsonl(tmp_path / "corpus.jsonl", [OTTERS, CRANES]))
    assert len(index) == 2
    assert [hit.id for hit in index.search("an OTTER eating", 5)] == ["otters", "cranes"]
    assert [hit.id for hit in index.search("frogs", 5)] == ["cranes"]
    assert "frogs" in index.search("frogs", 1)[0].snippet
    assert index.search("Xyzzy", 5) == index.search("?! \u2014", 5) == []


def test_operators_of_query_languages_are_words(tmp_path: Path) -> None:
    index = opened(write_jsonl(tmp_path / "corpus.jsonl", [OTTERS, CRANES]))
    assert [hit.id for hit in index.search('title:"frogs AND (', 5)] == ["cranes"]


def test_equal_passages_come_in_the_order_of_the_corpus(tmp_path: Path) -> None:
    equal = [Document(f"d{number:03}", "Same", "The same words.") for number in range(SPARE_HITS + 9)]
    index = opened(write_jsonl(tmp_path / "corpus.jsonl", equal))
    assert [hit.id for hit in index.search("words", 4)] == ["d000", "d001", "d002", "d003"]


def test_passages_and_documents_are_opened_by_id(tmp_path: Path) -> None:
    long = Document("long", "Long", "\n\n".join(f"Paragraph {n}. " + "word " * 150 for n in range(4)))
    index = opened(write_jsonl(tmp_path / "corpus.jsonl", [OTTERS, long]))
    otters, first, last = index.open("otters"), index.open("long"), index.open("long#4")
    assert otters is not None
    assert (otters.text, otters.parts) == (OTTERS.text, 1)
    assert first is not None
    assert (first.id, first.number, first.parts) == ("long#1", 1, 4)
    assert last is not None
    assert last.text.startswith("Paragraph 3.")
    assert index.open("lon") is None


def test_the_index_is_built_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = invented(tmp_path)
    first = opened(path).search("river", 9)
    open_index.cache_clear()
    monkeypatch.setattr("agentmill.synthesis.environments.search.index._build", lambda *_: pytest.fail("built again"))
    assert opened(path).search("river", 9) == first
    assert [each.name[0] for each in cache_folder("corpora").iterdir()] != ["."]


def test_a_damaged_index_is_built_again(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "corpus.jsonl", [OTTERS])
    opened(path)
    open_index.cache_clear()
    (folder,) = cache_folder("corpora").iterdir()
    (folder / "meta.json").write_text("{")
    assert [hit.id for hit in opened(path).search("otters", 1)] == ["otters"]


def test_processes_that_build_at_once_find_the_same(tmp_path: Path) -> None:
    path = invented(tmp_path)
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(_found, [str(path)] * 3))
    assert found[0] == found[1] == found[2]
    assert len(list(cache_folder("corpora").iterdir())) == 1


def _found(path: str) -> list[str]:
    return [hit.id for hit in opened(Path(path)).search("town river charter", 10)]


def test_a_changed_corpus_is_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "corpus.jsonl", [OTTERS])
    digest = corpus_digest(path)
    write_jsonl(path, [OTTERS, CRANES])
    with user_error("file-changed", "has changed"):
        open_index(str(path), digest)


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AGENTMILL_CACHE", str(tmp_path / "file"))
    with user_error("not-writable", "AGENTMILL_CACHE"):
        opened(write_jsonl(tmp_path / "corpus.jsonl", [OTTERS]))


def test_a_passage_with_the_id_of_another_document_is_refused(tmp_path: Path) -> None:
    long = Document("a", "Long", "\n\n".join("word " * 200 for _ in range(3)))
    with user_error("record-twice", "'a#2'"):
        opened(write_jsonl(tmp_path / "corpus.jsonl", [long, Document("a#2", "Other", "Something else.")]))
    assert list(cache_folder("corpora").iterdir()) == []
