"""A small corpus of invented articles that comes with the package, and two questions about it."""

from __future__ import annotations

from pathlib import Path

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction
from agentmill.synthesis.environments.search.corpus import corpus_digest
from agentmill.synthesis.environments.search.sources import source_of

ARTICLES = Path(__file__).with_name("data") / "articles.jsonl"
"""``invented_articles(40)`` as JSON lines."""


def examples() -> list[tuple[EnvironmentSpec, Task]]:
    """The environment with a task of one passage, and with one of two, both of which must have been seen."""
    source = source_of(ARTICLES, corpus_digest(ARTICLES))
    found = []
    for name, (instruction, goal, gold) in _TASKS.items():
        spec = EnvironmentSpec(
            environment_id=f"search-{name}", family="search", name="invented articles", source=source, split="train"
        )
        task = Task(
            task_id=f"search-{name}-task",
            environment_id=spec.environment_id,
            instruction=instruction,
            goal=goal,
            gold=gold,
            max_turns=12,
            split="train",
        )
        found.append((spec, task))
    return found


def solution(queries: list[tuple[str, str]], answer: str) -> list[AnyAction]:
    """A gold solution: search and open each of ``queries`` (words, passage), then answer."""
    calls: list[AnyAction] = []
    for words, passage in queries:
        calls += [
            ApiAction(function="search", kwargs={"query": words}),
            ApiAction(function="open", kwargs={"id": passage}),
        ]
    return [*calls, ApiAction(function="answer", kwargs={"text": answer})]


_TASKS: dict[str, tuple[str, dict[str, object], list[AnyAction]]] = {
    "fact": (
        "In which year was the town hall of Gardawick built?",
        {"answer": "1807"},
        solution([("Gardawick town hall", "gardawick")], "1807"),
    ),
    "hops": (
        "On which river is the town where Holphas Osnadal was born, and how many kilometres has that river?",
        {"answer": ["Nortomis", "469"], "every": True, "seen": ["corvewick", "nortomis"]},
        solution(
            [
                ("Holphas Osnadal born", "holphas-osnadal"),
                ("Corvewick town", "corvewick"),
                ("Nortomis river kilometres", "nortomis"),
            ],
            "Nortomis; 469",
        ),
    ),
}
