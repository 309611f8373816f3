from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import ApiAction, MessageAction
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.environments.search.environment import MOST_RESULTS, Goal, SearchEnvironment, share_right
from agentmill.synthesis.environments.search.index import open_index
from tests.synthesis.environments.search.corpora import CRANES, OTTERS, invented, spec_of, started, write_jsonl


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMILL_CACHE", str(tmp_path / "cache"))
    open_index.cache_clear()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "corpus.jsonl", [OTTERS, CRANES])


def text_of(environment: SearchEnvironment, tool: str, **arguments: object) -> str:
    observation = environment.step(ApiAction(function=tool, kwargs=arguments)).observation
    return str(getattr(observation, "content", ""))


def test_searching_opening_and_answering(corpus: Path) -> None:
    environment = started(corpus)
    assert text_of(environment, "search", query="frogs").startswith("[cranes] Cranes: ")
    assert text_of(environment, "open", id="[otters]") == f"Otters\n{OTTERS.text}"
    ended = environment.step(MessageAction(content='answer(text="1931.")'))
    assert (ended.reward, ended.terminated) == (1.0, True)
    assert environment.step(MessageAction(content='open(id="otters")')).error


def test_passages_to_be_seen_are_progress_and_needed(corpus: Path) -> None:
    environment = started(corpus, answer="1931", seen=["cranes", "otters"])
    text_of(environment, "search", query="frogs")
    assert (environment.check().score, environment.check().passed) == (0.25, False)
    text_of(environment, "answer", text="1931")
    assert (environment.check().score, environment.check().passed) == (0.75, False)
    other = started(corpus, answer="1931", seen=["cranes", "otters"])
    text_of(other, "search", query="fish")
    text_of(other, "answer", text="1931")
    assert (other.check().score, other.check().passed) == (1.0, True)


@pytest.mark.parametrize(
    ("goal", "answer", "share"),
    [
        (Goal("The Tamsel"), "tamsel", 1.0),
        (Goal("Tamsel"), "the river Tamsel", 0.0),
        (Goal(["Tamsel", "Tamsel river"]), "tamsel river", 1.0),
        (Goal("12,400"), "12400", 1.0),
        (Goal(["Tamsel", "1931"], every=True), "1931; Tamsel", 1.0),
        (Goal(["Tamsel", "1931"], every=True), "Tamsel", 0.5),
        (Goal(["Tamsel", "1931"], every=True), "Tamsel; 1931; 1932; 1933", 0.5),
        (Goal(["Tamsel", "1931"], every=True), "", 0.0),
    ],
)
def test_answers_are_compared_as_answer_match_does(goal: Goal, answer: str, share: float) -> None:
    assert share_right(goal, answer) == share


@pytest.mark.parametrize("k", [0, -1, MOST_RESULTS + 1, 10**9, 1e30])
def test_a_k_out_of_range_is_refused_with_the_range(k: float, corpus: Path) -> None:
    refused = started(corpus).step(ApiAction(function="search", kwargs={"query": "fish", "k": k}))
    assert refused.error
    assert f"k is {int(k)}; a search shows 1 to {MOST_RESULTS} passages" in getattr(refused.observation, "content", "")


def test_k_bounds_the_results(tmp_path: Path) -> None:
    environment = started(invented(tmp_path, 60))
    assert len(text_of(environment, "search", query="town river").splitlines()) == 5
    assert len(text_of(environment, "search", query="town river", k=2).splitlines()) == 2
    assert len(text_of(environment, "search", query="town river", k=3.0).splitlines()) == 3
    assert len(text_of(environment, "search", query="town river", k=20).splitlines()) == 20


@pytest.mark.parametrize(
    "arguments",
    [
        {"query": 3},
        {"query": "fish", "k": "five"},
        {"query": "fish", "k": 2.5},
        {"q": "fish"},
        {"query": "f" * 3_000},
        {"query": "fi\0sh"},
        {"query": "\ud800"},
    ],
)
def test_unfit_arguments_are_refused(arguments: dict[str, object], corpus: Path) -> None:
    environment = started(corpus)
    before = environment.snapshot()
    assert environment.step(ApiAction(function="search", kwargs=arguments)).error
    assert environment.snapshot() == before


def test_an_unknown_passage_is_refused(corpus: Path) -> None:
    assert "no passage 'badgers'" in text_of(started(corpus), "open", id="badgers")


def test_the_expert_goes_on_after_other_actions(corpus: Path) -> None:
    gold = [
        ApiAction(function="search", kwargs={"query": "cranes"}),
        ApiAction(function="answer", kwargs={"text": "1931"}),
    ]
    environment = SearchEnvironment(spec_of(corpus))
    environment.reset(Task("task", "corpus", "When?", goal={"answer": "1931"}, gold=[*gold]), 0)
    environment.step(ApiAction(function="search", kwargs={"query": "otters"}))
    for action in gold:
        assert environment.expert() == action
        environment.step(action)
    assert environment.expert() is None
    assert environment.check().passed


def test_broken_environments_and_tasks_say_what_is_wrong(corpus: Path) -> None:
    spec = spec_of(corpus)
    with pytest.raises(EnvError, match="names no corpus"):
        SearchEnvironment(msgspec.structs.replace(spec, source="corpus.jsonl"))
    for goal in ({}, {"answer": ""}, {"answer": []}, {"answer": "x", "sen": []}):
        with pytest.raises(EnvError, match="task"):
            SearchEnvironment(spec).reset(Task("task", "corpus", "When?", goal=goal), 0)
    with pytest.raises(EnvError, match="another task"):
        started(corpus).restore(b'["other", {}]')
    with pytest.raises(EnvError, match="no snapshot"):
        started(corpus).restore(b"{")
    write_jsonl(corpus, [OTTERS])
    with pytest.raises(EnvError, match="has changed"):
        SearchEnvironment(msgspec.structs.replace(spec, source=spec.source.replace("corpus.jsonl", "./corpus.jsonl")))
    corpus.unlink()
    open_index.cache_clear()
    with pytest.raises(EnvError, match="there is no corpus"):
        SearchEnvironment(spec)
