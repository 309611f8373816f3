"""How fast a provider is asked, seen from its side."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import msgspec
import pytest

from agentmill.synthesis.policies import make_policies, make_policy
from agentmill.synthesis.policies.policy import ContextOverflow, Conversation, Policy, PolicySettings
from agentmill.synthesis.policies.rate_limit import Debt, Gate, Limits
from tests import fake_openai as fake
from tests.fake_openai import FakeOpenAi, Reply


class Clock:
    """Answers, and notes when it was asked and how many requests were in hand then."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = itertools.chain(replies, itertools.repeat(fake.text("a")))
        self.at: list[float] = []

    def __call__(self, body: dict[str, Any]) -> Reply:
        self.at.append(time.monotonic())
        return next(self.replies)


async def turns(policy: Policy, count: int) -> None:
    asked = [
        Conversation(episode_id=str(number), system_prompt="s", content=(), tools=[], seed=0) for number in range(count)
    ]
    await asyncio.gather(*(policy.act(each) for each in asked))
    await policy.close()


def settings(server: FakeOpenAi, **fields: Any) -> PolicySettings:
    limits = Limits(**fields.pop("limits", {}))
    return PolicySettings(policy="openai", model="fake", endpoints=[server.url], limits=limits, **fields)


async def test_requests_are_spread_over_the_minute() -> None:
    """The k-th comes no sooner than k tenths of a second after the first may start."""
    clock = Clock()
    with FakeOpenAi(clock) as server:
        began = time.monotonic()
        await turns(make_policy(settings(server, limits={"requests_per_minute": 600})), 6)
    early = [number for number, at in enumerate(sorted(clock.at)) if at - began < number / 10]
    assert (len(clock.at), early) == (6, [])
    assert clock.at[-1] - began < 3


async def test_what_the_client_repeats_is_a_request_too() -> None:
    """Three requests are refused and repeated: the fourth episode waits for six requests, not for three."""
    passing = fake.status(429, {"retry-after-ms": "1"})
    clock = Clock(passing, passing, passing)
    with FakeOpenAi(clock) as server:
        await turns(make_policy(settings(server, limits={"requests_per_minute": 600})), 4)
    assert len(clock.at) == 7
    assert clock.at[-1] - clock.at[0] >= 0.5


async def test_tokens_are_paced_by_what_the_server_counted() -> None:
    """The server counts 27 tokens a turn, of which 6,000 a minute are allowed: 0.27 s a turn, whatever was expected."""
    clock = Clock()
    with FakeOpenAi(clock) as server:
        policy = make_policy(settings(server, limits={"tokens_per_minute": 6_000}, sampling={"max_tokens": 8}))
        spent = (await policy.act(Conversation(episode_id="e", system_prompt="s", content=(), tools=[], seed=0))).usage
        await turns(policy, 3)
    tokens = (spent.prompt_tokens or 0) + (spent.completion_tokens or 0)
    assert tokens == 27
    assert clock.at[3] - clock.at[0] >= 3 * tokens / 100 - 0.05


async def test_no_more_are_in_flight_than_allowed() -> None:
    with FakeOpenAi([fake.text("a", hang_s=0.1)]) as server:
        began = time.monotonic()
        await turns(make_policy(settings(server, limits={"max_concurrent": 2})), 6)
        assert 0.3 <= time.monotonic() - began < 3


async def test_roles_of_one_model_share_its_limits_and_differ_in_sampling() -> None:
    one = Conversation(episode_id="e", system_prompt="s", content=(), tools=[], seed=0)
    with FakeOpenAi([fake.text("a", hang_s=0.1)]) as server, FakeOpenAi([fake.text("a", hang_s=0.1)]) as other:
        asked = settings(server, limits={"max_concurrent": 1}, sampling={"temperature": 0.5})
        roles = {
            "actor": asked,
            "critic": msgspec.structs.replace(asked, sampling={"temperature": 0.0}),
            "teacher": msgspec.structs.replace(asked, endpoints=[other.url]),
        }
        policies = make_policies(roles)
        began = time.monotonic()
        await asyncio.gather(*(policies[role].act(one) for role in ("actor", "critic", "actor", "critic")))
        assert 0.4 <= time.monotonic() - began < 3
        assert sorted(request["temperature"] for request in server.requests) == [0.0, 0.0, 0.5, 0.5]
        async with asyncio.timeout(3):
            await asyncio.gather(*(policies[role].act(one) for role in ("actor", "teacher")))
        assert (len(server.requests), len(other.requests)) == (5, 1)
        for policy in policies.values():
            await policy.close()


async def test_waiting_for_the_limit_is_not_part_of_a_turns_time() -> None:
    with FakeOpenAi([fake.text("a")]) as server:
        await turns(make_policy(settings(server, limits={"requests_per_minute": 120}, turn_timeout_s=0.4)), 4)
    assert len(server.requests) == 4


async def test_first_come_first_served_and_who_gives_up_owes_nothing() -> None:
    gate, order = Gate(Limits(requests_per_minute=120)), []

    async def enter(name: str) -> None:
        async with gate.entered(0):
            order.append(name)

    waiting = [asyncio.create_task(enter(name)) for name in "abcd"]
    await asyncio.sleep(0.02)
    waiting[1].cancel()
    began = time.monotonic()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert order == ["a", "c", "d"]
    assert time.monotonic() - began < 1.4, "three who waited for the one that gave up would take 1.5 s"


async def test_what_was_paid_too_much_is_no_credit() -> None:
    debt = Debt(600)
    debt.add(-100)
    await debt.paid()
    debt.add(1)
    began = time.monotonic()
    await debt.paid()
    assert time.monotonic() - began >= 0.09


async def test_who_waits_starts_when_less_is_owed() -> None:
    """For an estimate of ten minutes, of which the server counts a tenth of a second, and two who wait."""
    debt = Debt(600)
    debt.add(6_000)
    began = time.monotonic()
    waiting = [asyncio.create_task(debt.paid()) for _ in range(2)]
    await asyncio.sleep(0.02)
    debt.add(-5_990)
    await asyncio.sleep(0.02)
    assert not any(each.done() for each in waiting), "something is owed still"
    debt.add(-9)
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting)
    assert time.monotonic() - began >= 0.09


async def test_an_estimate_that_was_too_high_holds_nobody_back() -> None:
    """Each of five is reckoned at 4,000 tokens, and 60,000 a minute are allowed: 16 s by the estimates alone."""
    with FakeOpenAi([fake.text("a")]) as server:
        limits = {"tokens_per_minute": 60_000}
        async with asyncio.timeout(8):
            await turns(make_policy(settings(server, limits=limits, sampling={"max_tokens": 4_000})), 5)
    assert len(server.requests) == 5


async def test_what_is_refused_counts_no_tokens() -> None:
    """A request of 4,000 tokens would hold up the next for four seconds."""
    with FakeOpenAi([fake.text("a"), fake.overflow(), fake.text("b")]) as server:
        limits = {"tokens_per_minute": 60_000}
        policy = make_policy(settings(server, limits=limits, sampling={"max_tokens": 4_000}))
        asked = Conversation(episode_id="e", system_prompt="s", content=(), tools=[], seed=0)
        await policy.act(asked)
        began = time.monotonic()
        with pytest.raises(ContextOverflow):
            await policy.act(asked)
        await policy.act(asked)
        assert time.monotonic() - began < 2.0
        await policy.close()


@pytest.mark.parametrize(
    ("workers", "share"),
    [
        (1, Limits(requests_per_minute=60, tokens_per_minute=1000, max_concurrent=3)),
        (2, Limits(requests_per_minute=30, tokens_per_minute=500, max_concurrent=1)),
        (4, Limits(requests_per_minute=15, tokens_per_minute=250, max_concurrent=1)),
    ],
)
def test_workers_share_what_is_allowed(workers: int, share: Limits) -> None:
    assert Limits(requests_per_minute=60, tokens_per_minute=1000, max_concurrent=3).share(workers) == share
    assert Limits().share(workers) == Limits()
