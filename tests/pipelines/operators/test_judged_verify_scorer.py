"""The step ``scorer``: requests, tables, what follows from scores, and mistakes in a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer

from agentmill.pipelines.serving.endpoints import Endpoint
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.served_model import ServedModel
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Counts
from tests.builders import agent_message, instruction, seen, trajectory
from tests.decision_environment import SPEC, decision_task, registered
from tests.errors import user_error
from tests.fake_openai import MODEL, FakeOpenAi, Reply, overflow, raw, score, status
from tests.model import tiny_model
from tests.pipelines.engine.stages import dropped_of, rows_of, write_table
from tests.pipelines.operators.steps import StepRun, job, model, run, stage

GIVEN = {"of": "runs", "scorer": "judging", "tokenizer": str(tiny_model())}
READS = {"of": ["Trajectory"]}
WORDS = Tokenizer.from_file(str(tiny_model() / "tokenizer.json"))


def scorer() -> dict[str, ServedModel]:
    return {"scorer": model("vllm", model=MODEL, endpoints=["http://x/v1"])}


def text_of(body: dict[str, Any]) -> str:
    return str(WORDS.decode(body["input"][0], skip_special_tokens=False))


def counts_keys(body: dict[str, Any]) -> Reply:
    """The score of a conversation is how often it speaks of a key."""
    return score(float(text_of(body).count("key")))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    def walk(name: str, *texts: str) -> Trajectory:
        steps = [each for n, text in enumerate(texts, 1) for each in (agent_message(text, n), seen("ok", n))]
        return trajectory(name, content=[instruction("Go."), *steps], attempt=int(name[-1]))

    write_table(
        tmp_path / "runs", [[walk("t0", "door", "key"), walk("t1", "key", "key key"), walk("t2", "door")]], Trajectory
    )
    return tmp_path


@pytest.fixture
def server() -> Iterator[FakeOpenAi]:
    with FakeOpenAi(counts_keys) as server:
        yield server


def made(step: StepRun, server: FakeOpenAi) -> Any:
    return step.run({"scorer": [Endpoint(base_url=server.url, model=MODEL)]})


def test_trajectories_are_scored_and_the_best_is_picked(runs: Path, server: FakeOpenAi) -> None:
    step = job(runs, "scorer", "scores", scorer(), **GIVEN, pass_at=1)
    manifest = made(step, server)
    assert manifest.counts == Counts(read=3, used=3, dropped=0, written=3)
    verdicts = {each.trajectory_id: each for each in rows_of(runs / "scores")}
    assert {name: (each.score, each.passed) for name, each in verdicts.items()} == {
        "t0": (1.0, True),
        "t1": (3.0, True),
        "t2": (0.0, False),
    }
    assert verdicts["t0"].judge == f"scorer:{MODEL}"
    assert manifest.metrics["passed"] == 2
    assert manifest.metrics["prompt_tokens"] == sum(len(body["input"][0]) for body in server.requests)
    assert set(server.posted) == {"/classify"}
    assert manifest.config["models"]["scorer"]["name"] == MODEL
    assert "sampling" not in manifest.config["models"]["scorer"]
    assert step.finished() is not None
    run(runs, "pick", "best", of="runs", by="best", score="verdict:scorer", verdicts="scores")
    assert [each.trajectory_id for each in rows_of(runs / "best") if each.kept] == ["t1"]
    run(runs, "filter", "good", of="runs", verdicts="scores", where=[{"verdict": "scorer", "at_least": 1}])
    assert sorted(each.trajectory_id for each in rows_of(runs / "good") if each.kept) == ["t0", "t1"]
    scores = [{"score": "verdict:scorer", "from": 0, "to": 4}]
    run(runs, "combine", "joined", of="runs", verdicts="scores", scores=scores)
    assert {each.trajectory_id: each.score for each in rows_of(runs / "joined")} == {"t0": 0.25, "t1": 0.75, "t2": 0.0}
    run(runs, "trajectory_pairs", "pairs", **{"from": "runs"}, verdicts="scores", score="verdict:scorer")
    assert {(pair.chosen_id, pair.rejected_id) for pair in rows_of(runs / "pairs")} == {
        ("t1", "t0"),
        ("t1", "t2"),
    }, "all that t2 does is the beginning of t0"


@pytest.fixture
def chooser() -> Iterator[dict[str, ServedModel]]:
    with registered():
        yield {"actor": model("chooser", turns=["ab"])}


def test_best_of_n_is_sample_and_scorer_and_pick(tmp_path: Path, chooser: dict[str, ServedModel]) -> None:
    tree = {"a": 0.0, "b": 1.0}
    write_table(tmp_path / "environments", [[SPEC]], EnvironmentSpec)
    write_table(tmp_path / "tasks", [[decision_task(tree, task_id=f"k{n}") for n in range(3)]], Task)
    on = {"policy": "actor", "tasks": "tasks", "environments": "environments"}
    run(tmp_path, "sample", "explored", chooser, **on, k=8)
    with FakeOpenAi(lambda body: score(2.5 if "assistant\nb" in text_of(body) else -2.5)) as prefers_b:
        made(job(tmp_path, "scorer", "scores", scorer(), **{**GIVEN, "of": "explored"}), prefers_b)
    run(tmp_path, "pick", "best", of="explored", by="best", score="verdict:scorer", verdicts="scores")
    explored = {each.trajectory_id: each for each in rows_of(tmp_path / "explored")}
    best = [explored[each.trajectory_id] for each in rows_of(tmp_path / "best") if each.kept]
    assert len({each.task_id for each in best}) == len(best) == 3
    assert {each.content[2].content for each in best} == {"b"}
    assert {each.content[2].content for each in explored.values()} == {"a", "b"}


def test_each_step_has_a_score(runs: Path, server: FakeOpenAi) -> None:
    made(job(runs, "scorer", "scores", scorer(), **GIVEN, rows="step", whole="mean"), server)
    rows = rows_of(runs / "scores")
    assert {(each.trajectory_id, each.item): each.score for each in rows} == {
        ("t0", None): 0.5,
        ("t0", 1): 0.0,
        ("t0", 3): 1.0,
        ("t1", None): 2.0,
        ("t1", 1): 1.0,
        ("t1", 3): 3.0,
        ("t2", None): 0.0,
        ("t2", 1): 0.0,
    }


def test_what_has_no_score_is_reported_and_what_is_refused_dropped(runs: Path) -> None:
    def some(body: dict[str, Any]) -> Reply:
        text = text_of(body)
        if text.count("key") == 3:
            return overflow()
        return raw(b"high") if "key" in text else score(1.0)

    with FakeOpenAi(some) as junk:
        step = job(runs, "scorer", "scores", scorer(), **GIVEN)
        manifest = made(step, junk)
    reasons = {each.trajectory_id: each.reason for each in rows_of(runs / "scores")}
    assert reasons == {"t0": "malformed", "t1": "too_long", "t2": None}
    assert step.parameters.notes(manifest) == ["warning: of 3 verdicts 2 are unscored (malformed 1, too_long 1)"]
    with FakeOpenAi(lambda body: status(400) if "key" in text_of(body) else score(1.0)) as refusing:
        manifest = made(job(runs, "scorer", "more", scorer(), **GIVEN), refusing)
    assert manifest.counts == Counts(read=3, used=1, dropped=2, written=1)
    assert {(each.reason, each.blamed) for each in dropped_of(runs / "more")} == {("refused", "policy")}


def test_a_server_that_writes_ends_the_step(runs: Path) -> None:
    refused = user_error("endpoint-refuses", "404", "vllm serve FOLDER --runner pooling")
    with FakeOpenAi([status(404, message="Not Found")]) as writing, refused:
        made(job(runs, "scorer", "scores", scorer(), **GIVEN), writing)


def test_a_reward_model_of_ours_brings_its_tokenizer() -> None:
    managed = ServedModel.of(ModelConfig(policy="vllm", model=str(tiny_model()), sampling={"temperature": 0.5}))
    settings = managed.scorer_settings()
    assert (settings.tokenizer, settings.sampling, settings.revision) == (str(tiny_model()), {}, managed.revision)
    assert managed.scorer_settings("elsewhere").tokenizer == "elsewhere"
    assert managed.settings({}).tokenizer is None


MANAGED = {"policy": "vllm", "model": str(tiny_model())}
REMOTE = {"policy": "vllm", "model": "m", "endpoints": ["http://x/v1"]}


def test_the_tokenizer_is_known_or_given() -> None:
    step = stage("scorer", of="runs", scorer="judging")
    step.check_models({"scorer": ModelConfig(**MANAGED)})
    with user_error("needs-another-key", "`tokenizer` is missing"):
        step.check_models({"scorer": ModelConfig(**REMOTE)})
    given = stage("scorer", **GIVEN)
    given.check_models({"scorer": ModelConfig(**REMOTE)})
    with user_error("key-not-for-this", "`tokenizer`"):
        given.check_models({"scorer": ModelConfig(**MANAGED)})


@pytest.mark.parametrize(
    ("parameters", "code", "named"),
    [
        ({"scorer": None}, "missing-key", "scorer"),
        ({"judges": "wise"}, "unknown-key", "judges"),
        ({"temperature": 0.5}, "unknown-key", "temperature"),
        ({"whole": "min"}, "rule-broken", "rows: step"),
        ({"pass_at": "high"}, "invalid-value", "pass_at"),
    ],
)
def test_mistakes_are_explained(parameters: dict[str, Any], code: str, named: str) -> None:
    given = {
        name: value for name, value in {"of": "runs", "scorer": "judging", **parameters}.items() if value is not None
    }
    with user_error(code, named):
        stage("scorer", **given)


def test_a_tree_search_asks_its_scorer(tmp_path: Path, chooser: dict[str, ServedModel]) -> None:
    tree = {"a": {"a": 0.1, "b": 0.2}, "b": {"a": 0.9, "b": 0.3}}
    write_table(tmp_path / "environments", [[SPEC]], EnvironmentSpec)
    write_table(tmp_path / "tasks", [[decision_task(tree)]], Task)
    on = {"policy": "actor", "tasks": "tasks", "environments": "environments", "branching": 8, "method": "beam"}
    models = {**chooser, **scorer()}
    with FakeOpenAi(lambda body: score(text_of(body).count("assistant\nb") - 0.5)) as prefers_b:
        step = job(
            tmp_path,
            "tree_search",
            "trees",
            models,
            **on,
            value="scorer",
            scorer="judging",
            tokenizer=GIVEN["tokenizer"],
        )
        manifest = made(step, prefers_b)
    assert manifest.metrics["tree_scorer_calls"] == len(prefers_b.requests) == 2
    nodes = rows_of(tmp_path / "trees" / "nodes")
    estimates = sorted(round(each.extra["estimate"], 3) for each in nodes if each.turn == 1)
    assert estimates == [0.378, 0.622], "the logistic function of -0.5 and 0.5"
    assert {each.content[2].content for each in rows_of(tmp_path / "trees")} == {"b"}
    assert "sampling" not in manifest.config["models"]["scorer"]
    found = {"tree_unscored_nodes": 2, "tree_clipped_scores": 1, "nodes": 9}
    assert step.parameters.notes(msgspec.structs.replace(manifest, metrics=found)) == [
        "warning: the scorer gave no score that can be used for 2 of 9 states",
        "warning: 1 scores lie outside of `score_from` and `score_to`",
    ]
    assert step.parameters.notes(manifest) == []
    for wrong in ({"value": "scorer"}, {"scorer": "judging"}, {"tokenizer": "x"}):
        with user_error("rule-broken", "scorer"):
            stage("tree_search", **on, **wrong)


def test_an_expert_that_errs_stands_in_for_a_scorer_and_a_warning_says_so(runs: Path) -> None:
    models = {"scorer": model("expert", mistakes=0.3)}
    step = job(runs, "scorer", "scores", models, of="runs", scorer="judging", pass_at=0.5)
    step.parameters.check_models({"scorer": models["scorer"].config})
    manifest = step.run()
    found = {each.trajectory_id: each for each in rows_of(runs / "scores")}
    assert len({each.score for each in found.values()}) == 3
    assert all(0 <= each.score <= 1 and each.passed == (each.score >= 0.5) for each in found.values())
    assert step.parameters.notes(manifest) == [
        "warning: an expert that errs stands in for scorer: its answers are drawn, and say nothing"
    ]
    run(runs, "scorer", "again", models, of="runs", scorer="judging")
    assert {each.trajectory_id: each.score for each in rows_of(runs / "again")} == {
        name: each.score for name, each in found.items()
    }
