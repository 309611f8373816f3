"""Corpora for tests, and an index cache of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.synthesis.environments.search.corpus import Document, corpus_digest
from agentmill.synthesis.environments.search.environment import SearchEnvironment
from agentmill.synthesis.environments.search.invented import invented_articles
from agentmill.synthesis.environments.search.sources import source_of

OTTERS = Document("otters", "Otters", "Otters live by the river Tamsel. They eat fish.")
CRANES = Document("cranes", "Cranes", "Cranes were first counted in 1931. A crane eats fish and frogs.")


def write_jsonl(path: Path, documents: Sequence[Document]) -> Path:
    """A corpus as JSON lines."""
    path.write_bytes(b"".join(msgspec.json.encode(document) + b"\n" for document in documents))
    return path


def invented(folder: Path, n: int = 120, seed: int = 0) -> Path:
    """A corpus of invented articles."""
    return write_jsonl(folder / f"invented-{n}-{seed}.jsonl", invented_articles(n, seed))


def spec_of(path: Path, name: str = "corpus") -> EnvironmentSpec:
    """The environment over a corpus."""
    return EnvironmentSpec(
        environment_id=name, family="search", name=name, source=source_of(path, corpus_digest(path)), split="train"
    )


def started(path: Path, **goal: object) -> SearchEnvironment:
    """An environment that is reset to a task with this goal."""
    environment = SearchEnvironment(spec_of(path))
    environment.reset(Task("task", "corpus", "What?", goal=goal or {"answer": "1931"}), 0)
    return environment
