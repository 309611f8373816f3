"""Episodes in worlds that block: off the event loop, in threads, given up where a call hangs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from agentmill.schemas.records.rows import Message
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import AnyAction, AnyObservation, MessageAction, Trajectory
from agentmill.schemas.views.dialogue import Dialogue
from agentmill.synthesis.environments.environment import Check, EnvError, Transition
from agentmill.synthesis.policies import make_policy
from agentmill.synthesis.policies.policy import Conversation, Policy, PolicyError, PolicySettings, Turn
from agentmill.synthesis.policies.reward_model import Score, Scorer, Shown, scorer_of
from agentmill.synthesis.policies.scripted import ScriptedPolicy
from agentmill.synthesis.rollouts import blocking_env as apart
from agentmill.synthesis.rollouts.blocking_env import EnvTimeout, Listen, Pool, gathered, run_blocking
from agentmill.synthesis.rollouts.call_budget import Budget, metered_policy
from agentmill.synthesis.rollouts.strategy import Exploration
from agentmill.synthesis.strategies.sample import Sample
from tests.counter_environment import SPEC, CounterEnvironment, counting_task

PATIENCE_S = 1.0


class SlowEnvironment(CounterEnvironment):
    """Takes ``seconds`` for each step; notes the threads that called it."""

    seconds = 0.05
    released = threading.Event()

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[str] = {threading.current_thread().name}

    def step(self, action: AnyAction) -> Transition:
        self.threads.add(threading.current_thread().name)
        time.sleep(self.seconds)
        return super().step(action)

    def check(self) -> Check:
        self.threads.add(threading.current_thread().name)
        return super().check()


class HangingEnvironment(CounterEnvironment):
    """Does not come back from ``where`` until it is released."""

    def __init__(self, where: str, released: threading.Event) -> None:
        super().__init__()
        self._where = where
        self._released = released

    def reset(self, task: Task, seed: int) -> AnyObservation:
        self._hang("reset")
        return super().reset(task, seed)

    def step(self, action: AnyAction) -> Transition:
        self._hang("step")
        return super().step(action)

    def check(self) -> Check:
        self._hang("check")
        return super().check()

    def _hang(self, where: str) -> None:
        if where == self._where:
            self._released.wait(60)


class Model(ScriptedPolicy):
    """A script with a name, as a model has one: it acts on the loop of the test, and notes that."""

    def __init__(self, *turns: str) -> None:
        super().__init__(PolicySettings(policy="scripted", name="model", turns=list(turns)))
        self.loop = asyncio.get_running_loop()
        self.environments: list[object] = []

    async def act(self, conversation: Conversation) -> Turn:
        assert asyncio.get_running_loop() is self.loop
        self.environments.append(conversation.environment)
        await asyncio.sleep(0.01)
        return await super().act(conversation)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    monkeypatch.setattr(apart, "POOL", Pool(8))
    return apart.POOL


def exploration(policy: Policy, make: Callable[[], CounterEnvironment], seed: int = 0) -> Exploration:
    return Exploration(task=counting_task(), spec=SPEC, make_environment=make, policies={"actor": policy}, seed=seed)


async def lived(explored: Exploration, blocking: bool = True, **parameters: Any) -> Trajectory:
    def explore(given: Exploration) -> AsyncIterator[Trajectory]:
        strategy = Sample(**parameters)
        return strategy.explore(given, *strategy.planned(given))

    [trajectory] = await gathered(explore, explored, blocking, PATIENCE_S)
    return trajectory


async def longest_stall(stop: asyncio.Event) -> float:
    """The longest time for which the loop did nothing."""
    longest, before = 0.0, time.monotonic()
    while not stop.is_set():
        await asyncio.sleep(0.005)
        now = time.monotonic()
        longest, before = max(longest, now - before), now
    return longest


async def test_the_episode_is_the_same_and_its_world_is_called_from_one_thread(pool: Pool) -> None:
    worlds: list[SlowEnvironment] = []

    def make() -> SlowEnvironment:
        worlds.append(SlowEnvironment())
        return worlds[-1]

    policy = Model("add 2", "jump", "add 1")
    apart_from_us = await lived(exploration(policy, make))
    among_us = await lived(exploration(policy, make), blocking=False)
    assert apart_from_us == among_us
    assert apart_from_us.outcome.status == "success"
    assert worlds[0].threads == {"world"}
    assert worlds[1].threads == {threading.current_thread().name}
    assert [world.closed for world in worlds] == [1, 1]
    assert policy.environments[:3] == [None] * 3


async def test_a_world_that_blocks_does_not_stall_the_loop(pool: Pool) -> None:
    class Slower(SlowEnvironment):
        seconds = 0.3

    over = asyncio.Event()
    stall = asyncio.create_task(longest_stall(over))
    began = time.monotonic()
    policy = Model("add 2", "add 1")
    await asyncio.gather(*(lived(exploration(policy, Slower, seed)) for seed in range(8)))
    seconds = time.monotonic() - began
    over.set()
    assert await stall < Slower.seconds, "one step held up all others"
    assert seconds < 8 * 2 * Slower.seconds, "they waited for each other"


async def test_the_expert_goes_along(pool: Pool) -> None:
    trajectory = await lived(exploration(make_policy(PolicySettings(policy="expert")), SlowEnvironment))
    assert [item.content for item in trajectory.content if isinstance(item, MessageAction)] == ["add 2", "add 1"]


async def test_who_breaks_is_named_as_ever(pool: Pool) -> None:
    with pytest.raises(PolicyError, match="script_ended"):
        await lived(exploration(Model("add 1"), SlowEnvironment))
    broken = Exploration(
        task=counting_task(break_at=1),
        spec=SPEC,
        make_environment=SlowEnvironment,
        policies={"actor": Model("a")},
        seed=0,
    )
    with pytest.raises(EnvError, match="the gears are stuck"):
        await lived(broken)
    assert pool.abandoned == 0


@pytest.mark.parametrize("where", ["reset", "step", "check"])
async def test_a_call_that_hangs_ends_the_episode_and_not_the_others(pool: Pool, where: str) -> None:
    released = threading.Event()
    worlds: list[HangingEnvironment] = []

    def make() -> HangingEnvironment:
        worlds.append(HangingEnvironment(where, released))
        return worlds[-1]

    policy = Model("add 2", "add 1")
    began = time.monotonic()
    hanging = asyncio.create_task(lived(exploration(policy, make)))
    well = await lived(exploration(policy, SlowEnvironment))
    assert well.outcome.status == "success"
    with pytest.raises(EnvTimeout, match=r"has not come back from a call for 1 s") as caught:
        await hanging
    assert caught.value.reason == "world_timeout"
    assert PATIENCE_S <= time.monotonic() - began < 10
    assert pool.abandoned == 1
    assert worlds[0].closed == 0, "it is not touched while the call runs"
    released.set()
    while pool.abandoned or not worlds[0].closed:
        await asyncio.sleep(0.01)
    assert worlds[0].closed == 1


async def test_many_calls_in_a_row_are_not_one_that_hangs(pool: Pool) -> None:
    """A replay, or a search that restores its states, leaves its loop no pause between the calls."""

    async def replay(listen: Listen) -> int:
        world: Any = listen(SlowEnvironment())
        world.reset(counting_task(9), 0)
        for _ in range(8):
            world.step(MessageAction(content="add 1"))
        return int(world.number)

    began = time.monotonic()
    assert await run_blocking(replay, patience_s=0.2) == 8
    assert time.monotonic() - began > 2 * 0.2


async def test_the_time_of_an_episode_ends_it_as_ever(pool: Pool) -> None:
    class Slow(Model):
        async def act(self, conversation: Conversation) -> Turn:
            await asyncio.sleep(60)
            raise AssertionError

    trajectory = await lived(exploration(Slow("add 1"), SlowEnvironment), episode_timeout_s=0.1)
    assert (trajectory.outcome.truncated, trajectory.outcome.reason) == (True, "episode_timeout")


async def test_what_is_cancelled_ends_and_closes_its_world(pool: Pool) -> None:
    worlds: list[SlowEnvironment] = []

    def make() -> SlowEnvironment:
        worlds.append(SlowEnvironment())
        return worlds[-1]

    class Slow(Model):
        async def act(self, conversation: Conversation) -> Turn:
            await asyncio.sleep(60)
            raise AssertionError

    task = asyncio.create_task(lived(exploration(Slow("add 1"), make)))
    async with asyncio.timeout(30):
        while not worlds:
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while pool.abandoned or not worlds[0].closed:
        await asyncio.sleep(0.01)


async def test_a_reward_model_scores_from_another_loop() -> None:
    """It is still known as one, also by the budget that counts its calls."""

    class RewardModel(Model):
        shown = Shown(Dialogue())

        async def score(self, episode_id: str, messages: Sequence[Message], functions: str | None) -> Score:
            assert asyncio.get_running_loop() is self.loop
            return Score(value=float(len(messages)), tokens=1, rendering=f"{episode_id} {functions}")

    policies = apart.remote({"scorer": RewardModel(), "actor": Model()})
    assert [isinstance(policy, Scorer) for policy in policies.values()] == [True, False]

    def score_in_a_loop_of_its_own() -> Score:
        scorer = scorer_of(metered_policy(policies["scorer"], "scorer", Budget(None, None)))
        return asyncio.run(scorer.score("e", [], None))

    assert await asyncio.to_thread(score_in_a_loop_of_its_own) == Score(value=0.0, tokens=1, rendering="e None")
