from __future__ import annotations

from pathlib import Path

import pytest

from agentmill.schemas.records.task import EnvironmentSpec
from agentmill.synthesis.environments.search.corpus import corpus_digest, read_documents
from agentmill.synthesis.environments.search.invented import invented_articles
from agentmill.synthesis.environments.search.sources import (
    corpus_path,
    invented_corpora,
    is_invented,
    read_source,
    source_of,
)
from tests.errors import user_error


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTMILL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def spec(source: str) -> EnvironmentSpec:
    return EnvironmentSpec(environment_id="e", family="search", name="e", source=source)


def test_invented_articles_are_written_when_they_are_first_read(cache: Path) -> None:
    path = corpus_path("invented:30/2")
    assert cache in path.parents
    assert list(read_documents(path)) == invented_articles(30, 2)
    digest = corpus_digest(path)
    found = read_source(spec(source_of("invented:30/2", digest)))
    assert (found.path, found.digest) == (str(path), digest)
    assert [file.name for file in path.parent.iterdir()] == [path.name], "nothing else is left"


def test_articles_of_another_version_are_written_anew(cache: Path) -> None:
    path = cache / "corpora/invented-20-1.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("{}\n")
    assert list(read_documents(corpus_path("invented:20/1"))) == invented_articles(20, 1)


def test_other_names_are_paths() -> None:
    for name in ("articles.jsonl", "invented:20", "invented:19/1", "invented:10001/1", "invented:20/0", "./invented"):
        assert not is_invented(name)
        assert corpus_path(name) == Path(name)
    source = source_of("./a.jsonl", "d")
    assert read_source(spec(source)).path == "./a.jsonl"
    with pytest.raises(ValueError, match="names no corpus"):
        read_source(spec("articles.jsonl"))


def test_several_corpora_of_invented_articles_are_numbered() -> None:
    assert invented_corpora("invented:200", 3) == ["invented:200/1", "invented:200/2", "invented:200/3"]
    for name in ("invented:19", "invented:10001", "invented:", "invented:20/1", "invented:2.5"):
        with pytest.raises(ValueError, match=r"from 20 to 10,000"):
            invented_corpora(name, 2)


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AGENTMILL_CACHE", str(tmp_path / "file"))
    with user_error("not-writable", "invented:20/1", "AGENTMILL_CACHE"):
        corpus_path("invented:20/1")
