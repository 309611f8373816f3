"""Which endpoint an episode asks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter

import pytest

from agentmill.pipelines.serving.endpoints import free_ports, is_healthy
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.trajectory import MessageAction
from agentmill.synthesis.policies import make_policy, routing
from agentmill.synthesis.policies.policy import Conversation, PolicyError, PolicySettings
from agentmill.synthesis.policies.routing import REMEMBERED, Router
from tests import fake_openai as fake
from tests.fake_openai import FakeOpenAi
from tests.synthesis.policies.asking import conversation, policy_for


def test_an_episode_begins_where_the_fewest_requests_are_in_flight_and_stays() -> None:
    router = Router(["a", "b", "c"])
    with router.busy("a"), router.busy("a"), router.busy("b"), router.busy("c"), router.busy("c"):
        assert router.route("first") == "b"
        with router.busy("b"), router.busy("b"):
            assert router.route("first") == "b"
            assert router.route("second") == "a"


def test_idle_endpoints_get_equal_shares() -> None:
    router = Router(["a", "b", "c"])
    assert Counter(router.route(f"episode-{number}") for number in range(30)) == {"a": 10, "b": 10, "c": 10}


def test_an_episode_moves_on_from_what_fails_and_stays_there() -> None:
    router = Router(["a", "b"])
    assert router.route("first") == "a"
    assert router.route("first", without=["a"]) == "b"
    assert router.route("first") == "b"


def test_a_server_that_refuses_at_once_is_no_magnet(monkeypatch: pytest.MonkeyPatch) -> None:
    router = Router(["dead", "alive"])
    router.failed("dead")
    with router.busy("alive"), router.busy("alive"):
        assert {router.route(f"episode-{number}") for number in range(5)} == {"alive"}
        monkeypatch.setattr(routing, "REST_S", 0.0)
        assert router.route("later") == "dead"


def test_an_episode_leaves_what_let_it_wait_and_answered_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    router = Router(["silent", "other"])
    assert [router.route("first"), router.route("second"), router.route("third")] == ["silent", "other", "silent"]
    router.timed_out("first", 0.0)
    assert [router.route("first"), router.route("third"), router.route("new")] == ["other"] * 3
    monkeypatch.setattr(routing, "REST_S", 0.0)
    assert router.route("tests it") == "silent"
    with router.busy("silent"), router.busy("other"), router.busy("other"):
        assert {router.route(f"episode-{number}") for number in range(5)} == {"other"}
    assert {router.route(f"later-{number}") for number in range(5)} == {"silent"}, "it has answered"


def test_a_long_answer_of_a_server_that_answers_others_moves_nobody() -> None:
    router = Router(["a", "b"])
    assert [router.route("first"), router.route("second")] == ["a", "b"]
    with router.busy("a"):
        """It answers another episode."""
    router.timed_out("first", 60.0)
    assert router.route("first") == "a"


def test_where_all_are_silent_an_episode_stays() -> None:
    router = Router(["a", "b"])
    homes = {name: router.route(name) for name in ("first", "second")}
    for name in homes:
        router.timed_out(name, 0.0)
    assert {name: router.route(name) for name in homes} == homes
    alone = Router(["a"])
    alone.route("first")
    alone.timed_out("first", 0.0)
    assert {alone.route("first"), alone.route("second")} == {"a"}


def test_memory_is_bounded_and_forgets_what_was_asked_about_the_longest_ago() -> None:
    router = Router(["a", "b"])
    home = router.route("kept")
    for number in range(REMEMBERED + 10):
        router.route(f"episode-{number}")
        router.route("kept")
    assert router.route("kept") == home
    assert len(router._homes) == REMEMBERED == sum(router._episodes.values())
    assert "episode-0" not in router._homes


async def test_a_slow_server_gets_fewer_episodes_than_a_fast_one() -> None:
    """One of 10 ms and one of 100 ms a turn: each has about as many requests in flight, so the fast one serves more."""
    with FakeOpenAi([fake.text("a", hang_s=0.01)]) as fast, FakeOpenAi([fake.text("b", hang_s=0.1)]) as slow:
        policy = make_policy(PolicySettings(policy="openai", model="fake", endpoints=[slow.url, fast.url]))
        free = asyncio.Semaphore(4)

        async def episode(number: int) -> None:
            async with free:
                for _ in range(2):
                    asked = Conversation(episode_id=str(number), system_prompt="", content=(), tools=[], seed=0)
                    await policy.act(asked)

        await asyncio.gather(*map(episode, range(40)))
        await policy.close()
    assert len(slow.requests) + len(fast.requests) == 80
    assert len(slow.requests) % 2 == 0, "an episode is served by one"
    assert len(fast.requests) > 1.5 * len(slow.requests) > 0


async def test_a_server_that_answers_nobody_costs_one_turn_of_an_episode() -> None:
    asked = Conversation(episode_id="e", system_prompt="", content=(), tools=[], seed=0)
    with FakeOpenAi([fake.text("a"), fake.hang()]) as silent, FakeOpenAi([fake.text("b")]) as other:
        urls = [silent.url, other.url]
        policy = make_policy(PolicySettings(policy="openai", model="fake", endpoints=urls, turn_timeout_s=2.0))
        assert (await policy.act(asked)).actions == [MessageAction(content="a")]
        with pytest.raises(PolicyError, match="timeout"):
            await policy.act(asked)
        for _ in range(2):
            assert (await policy.act(asked)).actions == [MessageAction(content="b")]
        await policy.close()
    assert len(silent.requests) == 2


async def test_a_server_that_dies_in_the_middle_costs_no_turn() -> None:
    [port] = free_ports(1)
    command = [sys.executable, "-m", "tests.fake_openai", "--port", str(port), "--answer", "b"]
    with FakeOpenAi([fake.text("a")]) as survivor, subprocess.Popen(command) as victim:
        try:
            url = f"http://127.0.0.1:{port}/v1"
            while not is_healthy(url):
                await asyncio.sleep(0.05)
            policy = make_policy(PolicySettings(policy="openai", model="fake", endpoints=[url, survivor.url]))
            asked = [
                Conversation(episode_id=str(number), system_prompt="", content=(), tools=[], seed=0)
                for number in range(6)
            ]
            first = [(await policy.act(each)).actions[0] for each in asked]
        finally:
            victim.kill()
        victim.wait()
        second = [(await policy.act(each)).actions[0] for each in asked]
        await policy.close()
    assert first == [MessageAction(content=said) for said in "bababa"]
    assert second == [MessageAction(content="a")] * 6


@pytest.mark.parametrize(("max_retries", "first"), [(0, 1), (8, 2)])
async def test_a_failing_server_is_asked_once_more_where_retries_are_allowed(max_retries: int, first: int) -> None:
    busy = fake.status(500, {"retry-after-ms": "1"})
    with FakeOpenAi([busy]) as failing, FakeOpenAi([fake.text("go")]) as answering:
        policy = policy_for(failing, answering, max_retries=max_retries)
        await policy.act(conversation())
        await policy.close()
    assert (len(failing.requests), len(answering.requests)) == (first, 1)


async def test_an_address_that_may_be_wrong_is_named() -> None:
    with FakeOpenAi([fake.status(404)]) as server:
        policy = policy_for(server.url.removesuffix("/v1"))
        with pytest.raises(UserError, match="refuses the address"):
            await policy.act(conversation())
        await policy.close()
