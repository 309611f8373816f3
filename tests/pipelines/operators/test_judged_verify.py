"""Verification by models: requests, tables, budgets, faults of servers, and mistakes in a recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.operators.operator import Operator
from agentmill.pipelines.serving.endpoints import Endpoint
from agentmill.schemas.errors import LimitReached
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Counts
from tests.builders import tool_trajectory, trajectory
from tests.errors import user_error
from tests.fake_openai import MODEL, FakeOpenAi, Reply, status, text
from tests.pipelines.engine.stages import dropped_of, rows_of, write_table
from tests.pipelines.operators.steps import job, model, stage

GIVEN = {"of": "runs", "judges": "wise", "criteria": "The ball is in the box."}
READS = {"of": ["Trajectory"]}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_table(tmp_path / "runs", [[trajectory("t1"), tool_trajectory("t2")]], Trajectory)
    return tmp_path


def judge(**fields: Any) -> Any:
    return {"judge1": model("openai", model=MODEL, endpoints=["http://x/v1"], **fields)}


def endpoints(server: FakeOpenAi) -> dict[str, list[Endpoint]]:
    return {"judge1": [Endpoint(base_url=server.url, model=MODEL)]}


def approves(body: Any) -> Reply:
    return text(json.dumps({"reasons": "so", "verdict": "put ball" in str(body["messages"])}))


def test_trajectories_are_judged_by_a_served_model(runs: Path) -> None:
    with FakeOpenAi(approves) as server:
        step = job(runs, "judge", "verdicts", judge(), **GIVEN)
        manifest = step.run(endpoints(server))
        requests = [each for each in server.requests if "messages" in each]
    assert manifest.counts == Counts(read=2, used=2, dropped=0, written=2)
    assert {verdict.trajectory_id: verdict.passed for verdict in rows_of(runs / "verdicts")} == {
        "t1": True,
        "t2": False,
    }
    assert manifest.metrics["passed"] == 1
    assert manifest.metrics["prompt_tokens"] > 0
    assert len(requests) == 2
    for body in requests:
        assert (body["temperature"], body["max_tokens"]) == (0.0, 1024)
        assert body["response_format"]["json_schema"]["schema"]["required"] == ["reasons", "verdict"]
    assert {"criteria", "seed", "models"} <= manifest.config.keys()
    assert "judges" not in manifest.config
    assert step.finished() is not None


@pytest.mark.parametrize("form", [None, {"type": "json_object"}])
def test_a_server_that_takes_no_schema_is_asked_in_words(runs: Path, form: Any) -> None:
    def refuses(body: Any) -> Reply:
        taken = body.get("response_format") == form
        return approves(body) if taken else status(400, message="This response_format type is unavailable")

    with FakeOpenAi(refuses) as server:
        asking = judge(sampling={"response_format": form})
        manifest = job(runs, "judge", "verdicts", asking, **GIVEN).run(endpoints(server))
        bodies = [each for each in server.requests if "messages" in each]
    assert manifest.metrics["scored"] == 2
    assert all(("response_format" in body) == (form is not None) for body in bodies)
    assert all('"required":["reasons","verdict"]' in body["messages"][0]["content"] for body in bodies)
    with FakeOpenAi(refuses) as server, pytest.raises(LimitReached, match="response_format: null"):
        job(runs, "judge", "others", judge(), **GIVEN).run(endpoints(server))


def test_what_a_judge_cannot_answer_is_reported_and_what_a_server_refuses_dropped(runs: Path) -> None:
    def half(body: Any) -> Reply:
        # Refused is one conversation alone: what is asked to find out whether all are refused gets an answer.
        other = "Where is the ball" not in str(body["messages"])
        return text("hm") if other else status(400, message="no such thing")

    with FakeOpenAi(half) as server:
        manifest = job(runs, "judge", "verdicts", judge(), **GIVEN).run(endpoints(server))
    assert manifest.counts == Counts(read=2, used=1, dropped=1, written=1)
    assert manifest.metrics["unscored.unparsable"] == 1
    assert stage("judge", **GIVEN).notes(manifest) == ["warning: of 1 verdicts 1 are unscored (unparsable 1)"]
    [letter] = dropped_of(runs / "verdicts")
    assert (letter.input_id, letter.blamed, letter.reason) == ("t2", "policy", "refused")


def test_what_a_dropped_trajectory_cost_is_counted(runs: Path) -> None:
    def fails_at_the_second_order(body: Any) -> Reply:
        swapped = "Criteria:" not in body["messages"][0]["content"] and "Where is the ball" in str(body["messages"])
        return status(400, message="no such thing") if swapped else approves(body)

    with FakeOpenAi(fails_at_the_second_order) as server:
        manifest = job(runs, "judge", "verdicts", judge(), **GIVEN, swap=True).run(endpoints(server))
    assert manifest.counts == Counts(read=2, used=1, dropped=1, written=1)
    assert 0 < manifest.metrics["lost_prompt_tokens"] < manifest.metrics["prompt_tokens"], "one answer of three"


def test_a_rubric_of_rules_needs_no_model(runs: Path) -> None:
    rubric = [{"id": "looks", "rule": {"at_least": 1, "of": {"tool": "look"}}}]
    manifest = job(runs, "check_rubric", "verdicts", of="runs", rubric=rubric).run()
    assert manifest.metrics == {"scored": 2, "passed": 1, "failed.looks": 1}


WORDS = [{"id": "polite", "text": "It is polite."}]
RULES = [{"id": "looks", "rule": {"legal": True}}]


@pytest.mark.parametrize(
    ("operator", "given", "message"),
    [
        ("judge", {"criteria": "x"}, ("needs-another-key", "`judges` is missing")),
        ("check_rubric", {"rubric": WORDS}, ("needs-another-key", "`judges` is missing")),
        ("check_rubric", {"rubric": RULES, "judges": "a"}, ("key-not-for-this", "`judges` is given")),
        ("judge", {"criteria": "x", "judges": ["a", "a"]}, ("rule-broken", "names a model twice: a, a")),
        ("judge", {"criteria": "x", "judges": "a", "rounds": 2}, ("key-not-for-this", "`rounds: 2`", "name more")),
        ("judge", {"judges": "a"}, ("missing-key", "criteria")),
        ("judge", {"criteria": "x", "judge": "a"}, ("unknown-key", "'judge'", "judges")),
    ],
)
def test_judges_that_are_missing_or_too_many(operator: str, given: dict[str, Any], message: tuple[str, ...]) -> None:
    with user_error(*message):
        step: Operator = stage(operator, of="runs", **given)
        step.writes(READS)


def test_a_planner_cannot_judge() -> None:
    with user_error("key-not-for-this", "cannot judge"):
        stage("judge", **GIVEN).check_models({"judge1": model("expert").config})


def test_an_expert_that_errs_stands_in_for_a_judge_and_a_warning_says_so(runs: Path) -> None:
    step = job(runs, "judge", "verdicts", {"judge1": model("expert", mistakes=0.3)}, **GIVEN)
    step.parameters.check_models({"judge1": model("expert", mistakes=0.3).config})
    manifest = step.run()
    assert manifest.metrics["scored"] == 2
    assert {verdict.judge for verdict in rows_of(runs / "verdicts")} == {"judge:expert"}
    assert step.parameters.notes(manifest) == [
        "warning: an expert that errs stands in for judge1: its answers are drawn, and say nothing"
    ]


def test_judges_have_roles_in_the_order_of_the_recipe() -> None:
    step = stage("judge", **{**GIVEN, "judges": ["b", "a"]})
    assert step.policies() == {"judge1": "b", "judge2": "a"}
    assert step.annotations() == ["judge"]
