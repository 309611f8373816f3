"""Rollouts against servers that die, that are several, and that differ by role; and in worlds that block."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from agentmill.pipelines.engine import progress as utilisation
from agentmill.pipelines.engine.run import run_stage
from agentmill.pipelines.operators.lookup import Lookup
from agentmill.pipelines.operators.rollout_operation import Actors, Rollout, SideTables
from agentmill.pipelines.serving.endpoints import Endpoint, free_ports
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.served_model import ServedModel
from agentmill.pipelines.serving.server_config import ServerConfig
from agentmill.pipelines.serving.server_process import ServerPlan, ServerRecords
from agentmill.pipelines.serving.servers import run_servers
from agentmill.pipelines.terminal.progress import LineProgress
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction, Trajectory
from agentmill.schemas.tables import Counts, Table
from agentmill.synthesis.environments import ENVIRONMENTS
from agentmill.synthesis.environments.environment import Transition
from agentmill.synthesis.environments.pddl.environment import PddlEnvironment
from agentmill.synthesis.policies.policy import Conversation, PolicySettings
from agentmill.synthesis.rollouts.strategy import Exploration
from agentmill.synthesis.strategies.sample import Sample
from tests.fake_openai import MODEL, FakeOpenAi, text
from tests.hanging import hanging
from tests.pipelines.engine.stages import dropped_of, ended_in, order, rows_of, write_table
from tests.pipelines.operators.steps import job, model, run

ON = {"tasks": "tasks", "environments": "environments"}
ROOT = Path(__file__).parents[3]


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """One environment with 20 tasks."""
    (spec, task), _ = PddlEnvironment.examples()
    tasks = [msgspec.structs.replace(task, task_id=f"task-{number:02d}") for number in range(20)]
    write_table(tmp_path / "tasks", [tasks], Task)
    write_table(tmp_path / "environments", [[spec]], EnvironmentSpec)
    return tmp_path


def test_a_server_that_dies_costs_time_and_no_episode(world: Path) -> None:
    """Killed after 20 and after 100 of 200 episodes, started again by its watch."""
    [port] = free_ports(1)
    command = [sys.executable, "-m", "tests.fake_openai", "--port", str(port), "--answer", "look"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    plan = ServerPlan(command=command, environment=environment, port=port, model=MODEL, log=world / "server.log")
    records, leaders = ServerRecords(world), []

    def kill_twice() -> None:
        for count in (20, 100):
            while ended_in(world / "explored") < count:
                time.sleep(0.02)
            [record] = records.read()
            leaders.append(int(record.leader.split(":")[1]))
            os.killpg(leaders[-1], signal.SIGKILL)

    with run_servers([plan], records, 30, restarts=3) as endpoints:
        config = ModelConfig(policy="openai", model=MODEL, endpoints=[endpoints[0].base_url])
        actor = {"actor": ServedModel(config=config, endpoints=endpoints)}
        killer = threading.Thread(target=kill_twice)
        killer.start()
        parameters = {"k": 10, "max_turns": 8, "max_invalid": None, "window": 4}
        manifest = run(world, "sample", "explored", actor, policy="actor", **parameters, **ON)
        killer.join()
    assert len(set(leaders)) == 2
    assert manifest.counts == Counts(read=200, used=200, dropped=0, written=200)
    assert manifest.metrics["turns"] == 1600


def test_episodes_are_dealt_among_endpoints(world: Path) -> None:
    with FakeOpenAi([text("look", hang_s=0.01)]) as one, FakeOpenAi([text("look", hang_s=0.01)]) as other:
        endpoints = [Endpoint(base_url=server.url, model=MODEL) for server in (one, other)]
        config = ModelConfig(policy="openai", model=MODEL, endpoints=[one.url, other.url])
        actor = {"actor": ServedModel(config=config, endpoints=endpoints)}
        run(world, "sample", "explored", actor, policy="actor", max_turns=3, max_invalid=None, window=6, **ON)
        shares = [len(one.requests), len(other.requests)]
    assert sum(shares) == 60
    assert all(share % 3 == 0 for share in shares), "an episode stays at its endpoint"
    assert min(shares) >= 18


@pytest.mark.parametrize(
    ("limits", "servers", "window"),
    [
        ({}, 1, 64),
        ({}, 8, 512),
        ({"max_concurrent": 8}, 1, 16),
        ({"max_concurrent": 300}, 2, 600),
        ({"requests_per_minute": 60}, 1, 15),
        ({"requests_per_minute": 1, "max_concurrent": 8}, 1, 1),
    ],
)
def test_as_many_episodes_are_in_flight_as_the_endpoints_and_limits_let_live(
    world: Path, limits: dict[str, int], servers: int, window: int
) -> None:
    endpoints = [f"http://127.0.0.1:{port}/v1" for port in range(1, servers + 1)]
    asked = model("openai", model="m", endpoints=endpoints, limits=limits)
    step = job(world, "sample", "s", {"actor": asked}, policy="asked", **ON)
    assert step.parameters.operation(step.inputs, step.context).window == window


def test_the_utilisation_of_our_servers_is_in_the_manifest(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utilisation, "POLL_S", 0.0)
    with FakeOpenAi([text("look", hang_s=0.3)]) as server:
        config = ModelConfig(policy="vllm", model="fake", server=ServerConfig(max_num_seqs=8))
        endpoints = [Endpoint(base_url=server.url, model=MODEL)]
        step = job(
            world,
            "sample",
            "explored",
            {"actor": ServedModel(config=config)},
            policy="actor",
            max_turns=2,
            window=4,
            **ON,
        )
        stream = io.StringIO()
        manifest = step.run({"actor": endpoints}, LineProgress(stream))
    assert 0.3 < manifest.metrics["server_utilisation"] <= 0.5, "4 of 8 slots, most of the time"
    assert manifest.counts.written == 20


class Advised(Sample):
    """An episode of ``sample``, before which another role is asked for advice."""

    async def explore(self, exploration: Exploration, piece: str) -> AsyncIterator[Trajectory]:
        async for trajectory in super().explore(exploration, piece):
            asked = Conversation(
                episode_id=trajectory.trajectory_id, system_prompt="Advise.", content=(), tools=[], seed=0
            )
            await exploration.policies["critic"].act(asked)
            yield trajectory


def test_roles_have_servers_of_their_own(world: Path) -> None:
    with FakeOpenAi([text("look")]) as actor, FakeOpenAi([text("well")]) as critic:
        policies = {
            role: PolicySettings(policy="openai", model=role, endpoints=[server.url])
            for role, server in (("actor", actor), ("critic", critic))
        }
        actors = Actors(policies=policies, split=None, share=1.0, seed=0, round=0)
        worlds = SideTables(environments=Lookup([Table.open(world / "environments")], EnvironmentSpec))
        operation = Rollout("advised", Advised(max_turns=2, max_invalid=None), worlds, actors, window=4)
        run_stage(order(operation, Table.open(world / "tasks"), world / "advised"))
    assert Counter(body["model"] for body in actor.requests) == {"actor": 40}
    assert Counter(body["model"] for body in critic.requests) == {"critic": 20}


class Sleepy(PddlEnvironment):
    """A world that waits, and hangs where an action says so."""

    blocking: ClassVar[bool] = True
    threads: ClassVar[set[str]] = set()
    hang: ClassVar[Callable[[], None]]

    def step(self, action: AnyAction) -> Transition:
        self.threads.add(threading.current_thread().name)
        if getattr(action, "content", "") == "hang":
            type(self).hang()
        time.sleep(0.02)
        return super().step(action)


def test_worlds_that_block_are_lived_in_threads_and_one_that_hangs_is_dropped(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENVIRONMENTS._entries, "pddl", f"{__name__}:Sleepy")
    said = iter(["look"] * 10 + ["hang"] + ["look"] * 1000)
    with FakeOpenAi(lambda _: text(next(said))) as server, hanging() as hang:
        monkeypatch.setattr(Sleepy, "hang", staticmethod(hang), raising=False)
        config = ModelConfig(policy="openai", model=MODEL, endpoints=[server.url])
        actor = {"actor": ServedModel(config=config, endpoints=[Endpoint(base_url=server.url, model=MODEL)])}
        parameters = {"max_turns": 3, "max_invalid": None, "window": 8}
        manifest = run(world, "sample", "explored", actor, policy="actor", **parameters, **ON)
    assert manifest.counts == Counts(read=20, used=19, dropped=1, written=19)
    assert manifest.reasons == {"world_timeout": 1}
    [letter] = dropped_of(world / "explored")
    assert (letter.blamed, letter.reason) == ("environment", "world_timeout")
    assert Sleepy.threads == {"world"}
    assert {row.outcome.reason for row in rows_of(world / "explored")} == {"max_turns"}
