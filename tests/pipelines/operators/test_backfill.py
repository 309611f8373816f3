"""``backfill`` as a step: requests, counts, contrasts with branches, and thoughts in training rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.operators.annotations import check_names
from agentmill.pipelines.recipes.estimate import estimate
from agentmill.pipelines.serving.endpoints import Endpoint
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Counts
from agentmill.synthesis.rollouts.llm_calls import TRIES
from tests.builders import agent_message, instruction, seen, trajectory
from tests.errors import user_error
from tests.fake_openai import MODEL, FakeOpenAi, Reply, text
from tests.pipelines.engine.stages import rows_of, write_table
from tests.pipelines.operators.steps import job, model, run, stage
from tests.pipelines.recipes.test_plan import SAMPLE, WORLD, plan_of

THOUGHT = "It is not here, so I look further."
GIVEN = {"of": "runs", "writer": "wise"}


def walk(name: str, *moves: str, **fields: Any) -> Trajectory:
    content = [instruction("Bring the ball home.")]
    for turn, move in enumerate(moves, 1):
        copied = "copied" if turn < fields.get("branch_turn", 0) else None
        content += [
            agent_message(move, turn, context_operation=copied),
            seen(f"Seen after {move}.", turn, context_operation=copied),
        ]  # type: ignore[list-item]
    return trajectory(name, content=content, **fields)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_table(tmp_path / "runs", [[walk("a", "go north", "go east"), walk("b", "wait here")]], Trajectory)
    return tmp_path


def models(*roles: str) -> Any:
    return {role: model("openai", model=MODEL, endpoints=["http://x/v1"]) for role in roles or ("writer",)}


def endpoints(server: FakeOpenAi, *roles: str) -> dict[str, list[Endpoint]]:
    return {role: [Endpoint(base_url=server.url, model=MODEL)] for role in roles or ("writer",)}


def writes(body: Any) -> Reply:
    if "thought" not in str(body["response_format"]):
        return text(json.dumps({"reasons": "so", "verdict": "go east" not in str(body["messages"])}))
    return text("hm" if "wait here" in str(body["messages"]) else json.dumps({"thought": THOUGHT}))


def test_thoughts_are_written_counted_and_put_into_rows(runs: Path) -> None:
    with FakeOpenAi(writes) as server:
        step = job(runs, "backfill", "thoughts", models(), **GIVEN)
        manifest = step.run(endpoints(server))
    assert manifest.counts == Counts(read=2, used=2, dropped=0, written=2 + 3)
    assert (manifest.metrics["steps.written"], manifest.metrics["steps.unparsable"], manifest.metrics["labels"]) == (
        2,
        1,
        2,
    )
    assert stage("backfill", **GIVEN).notes(manifest) == ["warning: 1 of 3 steps have got no thought (unparsable 1)"]
    assert step.finished() is not None
    before = rows_of(runs / "runs")
    run(runs, "sft", "rows", **{"from": "runs", "labels": "thoughts/labels", "thoughts": "thought"})
    said = {row.trajectory_id: [each.content for each in row.messages if each.train] for row in rows_of(runs / "rows")}
    assert said == {"a": [f"{THOUGHT}\ngo north", f"{THOUGHT}\ngo east"], "b": ["wait here"]}
    assert rows_of(runs / "runs") == before, "the trajectories stay as they are"


def test_judges_and_their_answers(runs: Path) -> None:
    with FakeOpenAi(writes) as server:
        given = {**GIVEN, "judges": "strict"}
        manifest = job(runs, "backfill", "thoughts", models("writer", "judge1"), **given).run(
            endpoints(server, "writer", "judge1")
        )
    assert (manifest.metrics["steps.written"], manifest.metrics["steps.judged_ungrounded"]) == (1, 1)
    assert [(each.trajectory_id, each.item) for each in rows_of(runs / "thoughts" / "labels")] == [("a", 1)]


def test_first_turns_of_branches_are_weighed(runs: Path) -> None:
    branches = [
        walk("c", "go north", "go west", "go on", parent_id="a", branch_turn=2),
        walk("d", "go north", "go east", parent_id="a", branch_turn=2),
    ]
    write_table(runs / "tried", [branches], Trajectory)
    with FakeOpenAi(writes) as server:
        job(runs, "backfill", "thoughts", models(), **GIVEN, alternatives="tried").run(endpoints(server))
        asked = [str(body["messages"]) for body in server.requests if "messages" in body]
    weighed = [each for each in asked if "Instead of it" in each]
    assert len(weighed) == 1, "the branch that does the same is no alternative"
    assert "Seen after go west." in weighed[0]
    assert "go on" not in weighed[0], "of a branch the first turn is shown"


def test_branches_learn_the_thoughts_of_the_steps_that_they_copied(runs: Path) -> None:
    with FakeOpenAi(writes) as server:
        job(runs, "backfill", "thoughts", models(), **GIVEN).run(endpoints(server))
    write_table(runs / "tried", [[walk("c", "go north", "go on", parent_id="a", branch_turn=2)]], Trajectory)
    run(runs, "sft", "rows", **{"from": "tried", "labels": "thoughts/labels", "thoughts": "thought"})
    [row] = rows_of(runs / "rows")
    assistant = [(each.content, each.train) for each in row.messages if each.role == "assistant"]
    assert assistant == [(f"{THOUGHT}\ngo north", False), ("go on", True)]


def test_mistakes() -> None:
    reads = {"of": ["Trajectory"]}
    with user_error("missing-key", "writer"):
        stage("backfill", of="runs")
    with user_error("key-not-for-this", "which is the writer"):
        stage("backfill", **GIVEN, judges="wise").writes(reads)
    with user_error("wrong-record-type", "alternatives"):
        stage("backfill", **GIVEN, alternatives="x").writes({**reads, "alternatives": ["Task"]})
    with user_error("key-not-for-this", "`expert`"):
        stage("backfill", **GIVEN).check_models({"writer": model("expert").config})
    with user_error("needs-another-key", "labels"):
        stage("sft", **{"from": "x", "thoughts": "thought"}).writes({"from": ["Trajectory"]})
    with user_error("rule-broken", "thoughts_as"):
        stage("sft", **{"from": "x", "thoughts_as": "reasoning"})


def test_branches_of_other_trajectories_are_refused(runs: Path) -> None:
    write_table(runs / "tried", [[walk("c", "go on", parent_id="z", branch_turn=1)]], Trajectory)
    step = job(runs, "backfill", "thoughts", models(), **GIVEN, alternatives="tried")
    with user_error("branches-of-others", "alternatives"):
        step.parameters.check_inputs(step.inputs)


def test_alternatives_that_are_no_branches_are_refused_or_counted(runs: Path) -> None:
    children = [walk("c", "go on", parent_id="a"), walk("d", "go back", parent_id="b")]
    write_table(runs / "tried", [children], Trajectory)
    given = {**GIVEN, "alternatives": "tried"}
    step = job(runs, "backfill", "thoughts", models(), **given)
    with user_error("branches-of-others", "alternatives"):
        step.parameters.check_inputs(step.inputs)
    branch = walk("e", "go north", "go west", parent_id="a", branch_turn=2)
    write_table(runs / "tried", [[*children, branch]], Trajectory)
    with FakeOpenAi(writes) as server:
        manifest = job(runs, "backfill", "thoughts", models(), **given).run(endpoints(server))
    assert (manifest.metrics["alternatives"], manifest.metrics["alternatives_of_others"]) == (3, 2)
    assert "2 trajectories of `alternatives` belong to none" in stage("backfill", **given).notes(manifest)[-1]


def test_a_plan_bounds_what_writer_and_judges_are_asked(tmp_path: Path) -> None:
    writer = {"policy": "openai", "model": "m", "endpoints": ["http://x/v1"]}
    models = {"actor": {"policy": "vllm", "model": "bundled:smollm2-135m-instruct"}, "wise": writer, "strict": writer}
    sample = {**SAMPLE, "max_turns": 4}
    backfill = {"backfill": "thoughts", "of": "explored", "writer": "wise", "judges": ["strict"]}
    rows = {"sft": "rows", "of": "explored", "labels": "thoughts/labels", "thoughts": "thought"}
    found = estimate(plan_of(tmp_path, [*WORLD, sample, backfill, rows], models=models))
    [step] = [each for each in found.steps if each.name == "thoughts"]
    calls = {name: bounds.calls for name, bounds in step.models.items()}
    assert calls == dict.fromkeys(("wise", "strict"), 4 * 4 * TRIES), "four tasks, four turns"


def test_thoughts_under_another_name_are_refused() -> None:
    step = stage("sft", **{"from": "x", "labels": "thoughts/labels", "thoughts": "thoght"})
    with user_error("annotation-missing", "thoght", "Did you mean 'thought'?"):
        check_names(step, {"labels": [frozenset({"thought"})]})
