"""Rollouts with a provider that refuses everybody: it costs time, and in the end the stage, but never an episode."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.engine import attempts
from agentmill.pipelines.serving.endpoints import Endpoint
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.served_model import ServedModel
from agentmill.schemas.errors import LimitReached
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.tables import Counts
from agentmill.synthesis.environments.pddl.environment import PddlEnvironment
from tests.fake_openai import MODEL, FakeOpenAi, InStep, Reply, status, text
from tests.pipelines.engine.stages import rows_of, write_table
from tests.pipelines.operators.steps import run

ROLLOUT = {"policy": "actor", "max_turns": 2, "window": 4, "tasks": "tasks", "environments": "environments"}
OPERATORS = {"sample": {}, "tree_search": {"iterations": 1, "branching": 2}}


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """Eight tasks."""
    (spec, task), _ = PddlEnvironment.examples()
    tasks = [msgspec.structs.replace(task, task_id=f"task-{number}") for number in range(8)]
    write_table(tmp_path / "tasks", [tasks], Task)
    write_table(tmp_path / "environments", [[spec]], EnvironmentSpec)
    return tmp_path


def actor(server: FakeOpenAi, **limits: Any) -> dict[str, ServedModel]:
    config = ModelConfig(policy="openai", model=MODEL, endpoints=[server.url], limits=limits)
    return {"actor": ServedModel(config=config, endpoints=[Endpoint(base_url=server.url, model=MODEL)])}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("limits", [{}, {"max_concurrent": 1}])
def test_the_time_of_an_episode_is_not_over_before_patience_is(
    world: Path, operator: str, limits: dict[str, int]
) -> None:
    with FakeOpenAi([status(429, message="quota")]) as server:
        models = actor(server, patience_s=2, **limits)
        began = time.monotonic()
        with pytest.raises(LimitReached, match=r"quota.*; the 0 inputs that have ended are kept"):
            run(world, operator, "explored", models, episode_timeout_s=0.5, **OPERATORS[operator], **ROLLOUT)
        assert time.monotonic() - began < 12
    assert not (world / "explored" / "manifest.json").exists()


@pytest.mark.parametrize("operator", OPERATORS)
def test_who_was_refused_for_longer_than_an_episode_may_take_goes_on(world: Path, operator: str) -> None:
    began = time.monotonic()

    def refuse(body: dict[str, Any]) -> Reply:
        return status(429) if time.monotonic() - began < 2 else text("look")

    with FakeOpenAi(refuse) as server:
        models = actor(server, patience_s=60)
        manifest = run(world, operator, "explored", models, episode_timeout_s=1.5, **OPERATORS[operator], **ROLLOUT)
    assert manifest.counts.used == 8
    assert {row.outcome.reason for row in rows_of(world / "explored")} == {"max_turns"}


def test_a_quota_that_is_spent_costs_no_episode_though_shorter_requests_pass(world: Path) -> None:
    def quota(body: dict[str, Any]) -> Reply:
        return status(429, {"retry-after": "700"}) if len(body["messages"]) > 1 else text("Hello")

    with FakeOpenAi(quota) as server, pytest.raises(LimitReached, match="it asks for 700 s"):
        run(world, "sample", "explored", actor(server), **ROLLOUT)


def test_what_halts_one_worker_halts_all(world: Path) -> None:
    """Another worker leaves word while the first four episodes are in flight, none of which has had an answer."""

    def halting(body: dict[str, Any]) -> Reply:
        if len(server.requests) == 4:
            workspace = attempts.current(world / "explored")
            assert workspace is not None
            workspace.halt("the other worker says so")
        return text("look")

    with InStep(halting, 4) as server:
        with pytest.raises(LimitReached, match="the other worker says so; the 4 inputs that have ended are kept"):
            run(world, "sample", "explored", actor(server), **ROLLOUT)
        assert len(server.requests) == 4 * 2
        server._script = [text("look")]
        assert run(world, "sample", "explored", actor(server), **ROLLOUT).counts == Counts(
            read=8, used=8, dropped=0, written=8
        )
