"""Chains of attempts that break off: what was lived until then stays."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Action, Usage
from agentmill.schemas.tables import Counts
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.policies.policy import Conversation, PolicyError, Turn
from tests.hanging import hanging
from tests.pipelines.engine.stages import rows_of, write_table
from tests.pipelines.operators.steps import model, run, stage
from tests.ruin_environment import SPEC, Gambler, RuinEnvironment, registered, ruin_task

ON = {"tasks": "tasks", "environments": "environments"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Path]:
    """Four tasks of gambler's ruin."""
    write_table(tmp_path / "tasks", [[ruin_task(start, 5) for start in (1, 2, 3, 4)]], Task)
    write_table(tmp_path / "environments", [[SPEC]], EnvironmentSpec)
    with registered():
        yield tmp_path


@pytest.mark.parametrize("fails_in", [2, 3])
@pytest.mark.parametrize(
    ("error", "reason"),
    [(PolicyError("timeout", "late"), "timeout"), (EnvError("it rains in"), "world_error"), (None, "world_timeout")],
)
def test_attempts_that_were_made_stay_whatever_breaks_in_a_later_one(
    world: Path, fails_in: int, error: Exception | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an error the world hangs."""
    monkeypatch.setattr(RuinEnvironment, "blocking", error is None, raising=False)
    act, step, reset = Gambler.act, RuinEnvironment.step, RuinEnvironment.reset
    worlds: defaultdict[str, int] = defaultdict(int)

    async def acting(policy: Gambler, conversation: Conversation) -> Turn:
        told = any(f"Attempt {fails_in - 1}:" in str(getattr(item, "content", "")) for item in conversation.content)
        if told and isinstance(error, PolicyError):
            raise error
        return await act(policy, conversation)

    def starting(ruin: RuinEnvironment, task: Task, seed: int) -> Any:
        worlds[task.task_id] += 1
        return reset(ruin, task, seed)

    def breaking(ruin: RuinEnvironment, action: Any) -> Any:
        if worlds[ruin.task.task_id] == fails_in and isinstance(error, EnvError):
            raise error
        if worlds[ruin.task.task_id] == fails_in:
            hang()
        return step(ruin, action)

    monkeypatch.setattr(Gambler, "act", acting)
    monkeypatch.setattr(RuinEnvironment, "reset", starting)
    monkeypatch.setattr(RuinEnvironment, "step", breaking if reason != "timeout" else step)
    actor = {"actor": model("gambler", turns=["0.0"])}
    with hanging() as hang:
        manifest = run(world, "revise", "tried", actor, policy="p", attempts=3, **ON)
    assert manifest.counts == Counts(read=4, used=4, dropped=0, written=4 * (fails_in - 1))
    rows = sorted(rows_of(world / "tried"), key=attrgetter("attempt"))
    assert [row.extra.get("stopped") for row in rows] == [None] * 4 * (fails_in - 2) + [reason] * 4
    assert {row.outcome.status for row in rows} == {"failure"}
    assert manifest.metrics[f"stopped.{reason}"] == 4
    assert f"4 chains of attempts were ended by a failure ({reason} 4)" in str(
        stage("revise", policy="p", attempts=3, **ON).notes(manifest)
    )


def test_what_an_attempt_costs_that_breaks_is_lost_and_counted(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    act = Gambler.act
    asked: Counter[str] = Counter()

    async def acting(policy: Gambler, conversation: Conversation) -> Turn:
        second = any("Attempt 1:" in str(getattr(item, "content", "")) for item in conversation.content)
        asked["second" if second else "first"] += 1
        if second and any(isinstance(item, Action) for item in conversation.content):
            raise PolicyError("timeout", "late")
        turn = await act(policy, conversation)
        return msgspec.structs.replace(turn, usage=Usage(prompt_tokens=10, completion_tokens=1, cost_usd=0.5))

    monkeypatch.setattr(Gambler, "act", acting)
    manifest = run(world, "revise", "tried", {"actor": model("gambler", turns=["0.0"])}, policy="p", attempts=2, **ON)
    lost = manifest.metrics["stopped.timeout"]
    assert lost > 0
    assert manifest.metrics["lost_prompt_tokens"] == 10 * lost
    assert manifest.metrics["lost_cost_usd"] == 0.5 * lost
    assert manifest.metrics["prompt_tokens"] == 10 * (asked["first"] + asked["second"] - 2 * lost)


@pytest.mark.parametrize("fails", ["begin", "end"])
def test_worlds_that_cannot_be_made_or_closed_cost_no_attempt_that_was_made(
    world: Path, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third world of each chain, which raises as containers do."""
    made = RuinEnvironment.__init__
    count = {"worlds": 0}

    def beginning(ruin: RuinEnvironment, spec: EnvironmentSpec = SPEC) -> None:
        made(ruin, spec)
        count["worlds"] += 1
        if fails == "begin" and count["worlds"] % 3 == 0:
            raise RuntimeError("there is no container")

    def ending(ruin: RuinEnvironment) -> None:
        if fails == "end" and count["worlds"] % 3 == 0:
            raise OSError("the container is gone")

    monkeypatch.setattr(RuinEnvironment, "__init__", beginning)
    monkeypatch.setattr(RuinEnvironment, "close", ending)
    actor = {"actor": model("gambler", turns=["0.0"])}
    manifest = run(world, "revise", "tried", actor, policy="p", attempts=4, window=1, **ON)
    assert manifest.counts == Counts(read=4, used=4, dropped=0, written=8)
    rows = sorted(rows_of(world / "tried"), key=attrgetter("attempt"))
    assert [row.extra.get("stopped") for row in rows] == [None] * 4 + ["world_error"] * 4
