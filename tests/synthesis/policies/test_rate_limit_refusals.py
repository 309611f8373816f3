"""A provider that refuses for now costs time; one that refuses all for too long, or the key, ends more than a turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from agentmill.schemas.records.trajectory import MessageAction, TextObservation
from agentmill.synthesis.policies import http_client as client
from agentmill.synthesis.policies.http_client import pause_s
from agentmill.synthesis.policies.policy import ContextOverflow, Denied, Policy, PolicyError, Turn
from agentmill.synthesis.policies.rate_limit import Limits
from tests import fake_openai as fake
from tests.errors import user_error
from tests.fake_openai import FakeOpenAi, Reply
from tests.synthesis.policies.asking import PATIENT, conversation, policy_for, turn_of


@pytest.mark.parametrize("refusal", [fake.status(429), fake.status(503, {"retry-after": "3600"})])
async def test_who_refuses_all_for_too_long_is_no_fault_of_the_episode(refusal: Reply) -> None:
    started = time.monotonic()
    with pytest.raises(Denied, match=r"v1 refuses for now \(HTTP (429|503)") as caught:
        await turn_of([refusal], limits=Limits(patience_s=1.0))
    assert time.monotonic() - started < 5
    assert caught.value.retry_after_s in (None, 3600)


async def test_who_refuses_one_request_alone_is_told_apart() -> None:
    """As one with more tokens than a provider allows in a minute; another one is answered."""

    def refuse_long(body: dict[str, Any]) -> Reply:
        return fake.status(429, message="too large") if len(body["messages"]) > 1 else fake.text("Hello")

    with FakeOpenAi(refuse_long) as server:
        policy = policy_for(server, limits=Limits(patience_s=0.6))
        with pytest.raises(PolicyError, match="too large") as caught:
            await policy.act(conversation())
        await policy.close()
    assert not isinstance(caught.value, Denied)
    assert caught.value.reason == "rate_limited"
    assert [len(request["messages"]) for request in server.requests] == [2, 2, 1]


async def test_what_is_refused_for_good_is_not_waited_for_beside_an_endpoint_that_is_busy() -> None:
    def refuse_long(body: dict[str, Any]) -> Reply:
        return fake.text("Hello") if body["messages"][-1]["content"] == "Hi" else fake.overflow(128)

    with FakeOpenAi([fake.status(429)]) as busy, FakeOpenAi(refuse_long) as other:
        policy = policy_for(busy, other, limits=Limits(patience_s=60.0))
        async with asyncio.timeout(20):
            for number in range(4):
                with pytest.raises(ContextOverflow):
                    await policy.act(conversation(episode_id=str(number)))
        await policy.close()
    assert busy.requests, "some of them asked there first"


async def test_whoever_asks_is_held_back_while_the_provider_wants_to_be_left_alone() -> None:
    at: list[float] = []

    def refuse_once(body: dict[str, Any]) -> Reply:
        at.append(time.monotonic())
        return fake.status(429, {"retry-after": "0.8"}) if len(at) == 1 else fake.text("add 1")

    with FakeOpenAi(refuse_once) as server:
        policy = policy_for(server, limits=PATIENT)
        first = asyncio.create_task(policy.act(conversation()))
        while not at:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        await asyncio.gather(first, *(policy.act(conversation(episode_id=str(number))) for number in range(4)))
        await policy.close()
    assert len(at) == 6
    assert min(at[1:]) - at[0] >= 0.79


async def unlucky_turn(refuse: Callable[[], Reply], limits: Limits) -> Turn:
    """A turn that ``refuse`` answers, while the turns of another episode go on and are answered."""

    def unfair(body: dict[str, Any]) -> Reply:
        return refuse() if body["messages"][-1]["content"] == "unlucky" else fake.text("add 1")

    async def go_on(policy: Policy) -> None:
        while True:
            await policy.act(conversation(episode_id="lucky"))
            await asyncio.sleep(0.02)

    with FakeOpenAi(unfair) as server:
        policy = policy_for(server, limits=limits)
        others = asyncio.create_task(go_on(policy))
        unlucky = TextObservation(content="unlucky", source="environment", turn=1)
        try:
            return await policy.act(conversation(MessageAction(content="add 1", turn=1), unlucky))
        finally:
            others.cancel()
            await asyncio.gather(others, return_exceptions=True)
            await policy.close()


async def test_a_turn_that_is_refused_for_a_while_is_asked_again_beside_others() -> None:
    refused = {"count": 0}

    def refuse() -> Reply:
        refused["count"] += 1
        return fake.status(429) if refused["count"] <= 3 else fake.text("add 2")

    turn = await unlucky_turn(refuse, Limits(patience_s=4.0))
    assert turn.actions == [MessageAction(content="add 2")]


@pytest.mark.parametrize("code", [401, 402, 404])
async def test_a_refusal_of_the_key_or_the_model_is_for_the_user(code: int) -> None:
    with user_error("endpoint-refuses", "/v1", code):
        await turn_of([fake.status(code)])


async def test_patience_is_one_for_all_who_queue() -> None:
    """Six turns, one at a time: the five that come after the first find its patience used up."""
    with FakeOpenAi([fake.status(429)]) as server:
        policy = policy_for(server, limits=Limits(patience_s=1.5, max_concurrent=1))
        began = time.monotonic()
        asked = (policy.act(conversation(episode_id=str(number))) for number in range(6))
        ended = await asyncio.gather(*asked, return_exceptions=True)
        await policy.close()
    assert [type(each) for each in ended] == [Denied] * 6
    assert time.monotonic() - began < 1.5 + 2


async def test_an_answer_begins_patience_anew() -> None:
    replies = [fake.status(429), fake.text("add 1"), fake.status(429), fake.text("add 2")]
    with FakeOpenAi(replies) as server:
        policy = policy_for(server, limits=Limits(patience_s=0.8))
        for _ in range(2):
            await policy.act(conversation())
            await asyncio.sleep(0.5)
        await policy.close()
    assert len(server.requests) == 4


async def test_a_spent_quota_is_no_fault_of_the_request_though_shorter_ones_pass() -> None:
    def quota(body: dict[str, Any]) -> Reply:
        return fake.status(429, {"retry-after": "700"}) if len(body["messages"]) > 1 else fake.text("Hello")

    with FakeOpenAi(quota) as server:
        policy = policy_for(server, limits=Limits(patience_s=600))
        with pytest.raises(Denied, match="it asks for 700 s"):
            await policy.act(conversation())
        await policy.close()
    assert len(server.requests) == 1, "it wants to be left alone"


async def test_a_probe_that_is_refused_as_wrong_says_nothing() -> None:
    def deny(body: dict[str, Any]) -> Reply:
        return fake.status(429 if len(body["messages"]) > 1 else 400)

    with FakeOpenAi(deny) as server:
        policy = policy_for(server, limits=Limits(patience_s=0.6))
        with pytest.raises(Denied):
            await policy.act(conversation())
        await policy.close()


async def test_a_turn_that_alone_is_refused_is_not_waited_for_longer_than_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No pause alone is longer than patience."""
    monkeypatch.setattr(client, "LONGEST_PAUSE_S", 0.2)

    async with asyncio.timeout(10):
        with pytest.raises(PolicyError, match="too large") as caught:
            await unlucky_turn(lambda: fake.status(429, message="too large"), Limits(patience_s=1.0))
    assert (type(caught.value), caught.value.reason) == (PolicyError, "rate_limited")


def test_pauses_do_not_grow_beyond_all_bounds() -> None:
    assert 6.0 <= pause_s(None, 100_000) <= 8.0
