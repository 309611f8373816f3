"""What turns cost, and when a budget is spent."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentmill.schemas.config import validate
from agentmill.schemas.records.trajectory import Usage
from agentmill.synthesis.policies import make_policy
from agentmill.synthesis.policies.completion import completed
from agentmill.synthesis.policies.cost import Budget, Prices, Spending, StepSpending, read_ledger
from agentmill.synthesis.policies.policy import Conversation, OverBudget, PolicyError, PolicySettings, Turn, exhausted
from tests import fake_openai as fake
from tests.errors import user_error
from tests.fake_openai import FakeOpenAi, Reply

PRICES = Prices(input=2.0, output=10.0, cached_input=0.5)


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        (Usage(prompt_tokens=1_000_000, completion_tokens=100_000), 3.0),
        (Usage(prompt_tokens=1_000_000, cached_tokens=400_000, completion_tokens=0), 1.4),
        (Usage(), 0.0),
    ],
)
def test_a_turn_costs_what_its_tokens_do(usage: Usage, cost: float) -> None:
    assert PRICES.cost_usd(usage) == pytest.approx(cost)


def test_cached_tokens_are_as_dear_as_others_unless_said() -> None:
    usage = Usage(prompt_tokens=1_000_000, cached_tokens=400_000)
    assert Prices(input=2.0, output=10.0).cost_usd(usage) == pytest.approx(2.0)


def test_processes_share_a_ledger_which_outlives_them(tmp_path: Path) -> None:
    ledger, budget = str(tmp_path / "spending.sqlite"), Budget(tokens=100)
    one, other = Spending("m", budget, ledger), Spending("m", budget, ledger)
    one.add(Usage(prompt_tokens=60), 0.0)
    assert one.exhausted() is None
    one.close()
    one.close()
    other.add(Usage(prompt_tokens=39), 0.0)
    assert other.exhausted() is None
    other.add(Usage(prompt_tokens=1), 0.0)
    assert other.exhausted() == "the budget of m is spent: 100 of 100 tokens"
    other.close()
    again = Spending("m", budget, ledger)
    assert again.exhausted() == "the budget of m is spent: 100 of 100 tokens"
    assert Spending("m", Budget(tokens=101), ledger).exhausted() is None
    assert Spending("n", budget, ledger).exhausted() is None
    again.close()


def test_dollars_are_counted_without_a_ledger_too() -> None:
    spending = Spending("m", Budget(usd=0.5), None)
    for _ in range(5):
        assert spending.exhausted() is None
        spending.add(Usage(prompt_tokens=1000), 0.1)
    assert spending.exhausted() == "the budget of m is spent: 0.50 of 0.50 USD"


async def test_budget_is_looked_at_before_every_request_with_those_in_flight_reserved() -> None:
    """Of forty requests at once, each of which may use up the budget, one is sent."""
    with FakeOpenAi([fake.text("add 1", hang_s=0.05)]) as server:
        dear = Prices(input=0, output=1_000)
        settings = PolicySettings(
            policy="openai",
            model="m",
            endpoints=[server.url],
            prices=dear,
            budget=Budget(usd=0.002),
            sampling={"max_tokens": 50},
        )
        policy = make_policy(settings)
        asked = [
            policy.act(Conversation(episode_id=str(n), system_prompt="s", content=(), tools=[], seed=n))
            for n in range(40)
        ]
        ended = await asyncio.gather(*asked, return_exceptions=True)
        await policy.close()
    assert len(server.requests) == 1
    assert [type(each) for each in ended].count(OverBudget) == 39
    assert exhausted([policy]) == "the budget of m is spent: 0.008 of 0.002 USD"


async def test_those_that_wait_do_not_all_look_at_the_ledger_whenever_one_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request fits at a time; all looking each time would be 528 writes for 32 of them."""
    looks, look = [], Spending._sync
    monkeypatch.setattr(Spending, "_sync", lambda self: (looks.append(1), look(self)))
    spending = Spending("m", Budget(tokens=1_000), str(tmp_path / "spending.sqlite"))
    order: list[int] = []

    async def ask(number: int) -> str | None:
        refused = await spending.reserve(600, 0.0)
        if refused is None:
            order.append(number)
            await asyncio.sleep(0)
            spending.release(600, 0.0)
        return refused

    assert await asyncio.gather(*map(ask, range(32))) == [None] * 32
    spending.close()
    assert order == list(range(32))
    assert len(looks) < 100


async def test_what_is_in_flight_in_other_processes_is_reserved_too(tmp_path: Path) -> None:
    """Four workers with a budget of fifty requests, each of which costs what it was estimated at."""
    ledger, budget = str(tmp_path / "spending.sqlite"), Budget(tokens=50_000)
    workers = [Spending("m", budget, ledger) for _ in range(4)]
    other = Spending("n", budget, ledger)
    assert await other.reserve(50_000, 0.0) is None
    spent = 0

    async def ask(worker: Spending) -> None:
        nonlocal spent
        if await worker.reserve(1_000, 0.0) is not None:
            return
        await asyncio.sleep(0.02)
        worker.add(Usage(prompt_tokens=1_000), 0.0)
        spent += 1_000
        worker.release(1_000, 0.0)

    await asyncio.gather(*(ask(worker) for worker in workers for _ in range(60)))
    # Each worker may go on with one request while anything is left.
    assert 50_000 <= spent <= 50_000 + 3 * 1_000
    for worker in (*workers, other):
        worker.close()
    with closing(sqlite3.connect(ledger)) as connection:
        assert connection.execute("SELECT count(*) FROM in_flight").fetchone() == (0,)


async def test_what_a_killed_process_had_in_flight_holds_up_nobody(tmp_path: Path) -> None:
    ledger, budget = str(tmp_path / "spending.sqlite"), Budget(tokens=1_000)
    program = (
        "import asyncio, os, sys\n"
        "from agentmill.synthesis.policies.cost import Budget, Spending\n"
        "spending = Spending('m', Budget(tokens=1_000), sys.argv[1])\n"
        "asyncio.run(spending.reserve(900, 0.0))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program, ledger], check=False, timeout=60)
    with closing(sqlite3.connect(ledger)) as connection:
        assert connection.execute("SELECT tokens FROM in_flight").fetchall() == [(900,)]
    spending = Spending("m", budget, ledger)
    assert await spending.reserve(400, 0.0) is None
    assert await asyncio.wait_for(spending.reserve(600, 0.0), 0.5) is None
    spending.close()


async def test_an_earlier_process_with_our_number_holds_up_nobody(tmp_path: Path) -> None:
    """As in a container that was started again."""
    ledger = str(tmp_path / "spending.sqlite")
    spending = Spending("m", Budget(tokens=1_000), ledger)
    with closing(sqlite3.connect(ledger)) as connection, connection:
        connection.execute("INSERT INTO in_flight VALUES (?, 'm', 900, 0.0)", (f"{os.getpid()}/0",))
    assert await spending.reserve(400, 0.0) is None
    assert await asyncio.wait_for(spending.reserve(600, 0.0), 0.5) is None
    spending.close()


async def test_one_that_stops_waiting_holds_up_nobody() -> None:
    spending = Spending("m", Budget(tokens=1_000), None)
    assert await spending.reserve(600, 0.0) is None
    first, second = (asyncio.ensure_future(spending.reserve(600, 0.0)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    spending.release(600, 0.0)
    assert await second is None


async def test_requests_wait_for_those_in_flight_and_use_the_whole_budget() -> None:
    """What may be answered is reckoned at 50 tokens, and is 8: the budget ends by what is counted, not reserved."""
    with FakeOpenAi([fake.text("add 1", hang_s=0.02)]) as server:
        budget = Budget(tokens=36 * 4)
        policy = make_policy(PolicySettings(policy="openai", model="m", endpoints=[server.url], budget=budget))
        asked = [
            policy.act(Conversation(episode_id=str(n), system_prompt="Count.", content=(), tools=[], seed=n))
            for n in range(10)
        ]
        ended = await asyncio.gather(*asked, return_exceptions=True)
        await policy.close()
    assert sum(isinstance(each, Turn) for each in ended) == 4
    assert len(server.requests) == 4


@pytest.mark.parametrize(("reply", "fields"), [(fake.cut(), {"max_retries": 8}), (fake.raw(b"{}"), {})])
async def test_repeated_request_looks_at_the_budget_again(reply: Reply, fields: dict[str, Any]) -> None:
    with FakeOpenAi([reply]) as server:
        settings = PolicySettings(
            policy="openai", model="m", endpoints=[server.url], budget=Budget(tokens=1), patience_s=60.0, **fields
        )
        policy = make_policy(settings)
        with pytest.raises(OverBudget):
            await policy.act(Conversation(episode_id="e", system_prompt="s", content=(), tools=[], seed=0))
        await policy.close()
    assert len(server.requests) == 1


def test_ledger_says_what_each_step_has_spent(tmp_path: Path) -> None:
    ledger = tmp_path / "spending.sqlite"
    assert read_ledger(ledger) == []
    for step, usd in (("a", 0.5), ("b", None), ("a", 0.25)):
        spending = Spending("m", None, str(ledger), step)
        spending.add(Usage(prompt_tokens=10, completion_tokens=2), usd, estimated=step == "b")
        spending.close()
    assert read_ledger(ledger) == [
        StepSpending("m", "a", 20, 4, 0.75, 2, 0),
        StepSpending("m", "b", 10, 2, None, 1, 1),
    ]


def test_a_damaged_ledger_is_named(tmp_path: Path) -> None:
    ledger = tmp_path / "spending.sqlite"
    ledger.write_bytes(b"no database" * 100)
    with user_error("damaged-file", ledger, "remove it"):
        read_ledger(ledger)


def test_usage_that_is_half_counted_is_completed_by_the_estimate() -> None:
    expected = Usage(prompt_tokens=30, completion_tokens=50)
    assert completed(Usage(completion_tokens=4), expected) == (Usage(prompt_tokens=30, completion_tokens=4), True)
    assert completed(Usage(prompt_tokens=3, completion_tokens=0), expected)[1] is False
    assert completed(Usage(), expected) == (expected, True)


@pytest.mark.parametrize("given", [{}, {"tokens": 1, "usd": 1}])
def test_a_budget_is_tokens_or_dollars(given: dict[str, Any]) -> None:
    with user_error("rule-broken", "tokens", "usd"):
        validate(Budget, given, "budget")


async def test_a_policy_reports_costs_and_counts_what_came_to_nothing() -> None:
    asked = Conversation(episode_id="e", system_prompt="Count.", content=(), tools=[], seed=0)
    with FakeOpenAi([fake.text("add 1"), fake.raw(b"{"), fake.raw(b"{"), fake.raw(b"{")]) as server:
        settings = PolicySettings(
            policy="openai", model="fake", endpoints=[server.url], prices=PRICES, budget=Budget(tokens=800)
        )
        policy = make_policy(settings)
        turn = await policy.act(asked)
        usage = turn.usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (28, 8)
        assert usage.cost_usd == pytest.approx((28 * 2 + 8 * 10) / 1e6)
        assert exhausted([policy]) is None
        with pytest.raises(PolicyError, match="malformed"):
            await policy.act(asked)
        assert exhausted([make_policy(PolicySettings(policy="expert")), policy]) is not None
        await policy.close()
        await policy.close()


@pytest.mark.parametrize(
    ("reply", "fields", "requests"),
    [
        (fake.cut(), {"max_retries": 1}, 2),
        (fake.hang(), {"turn_timeout_s": 0.2}, 1),
        (fake.raw(b"{}"), {}, 3),
        (fake.status(400), {}, 0),
        (fake.status(500, {"retry-after-ms": "1"}), {"max_retries": 1}, 0),
    ],
)
async def test_requests_without_a_usable_answer_are_spent_at_what_they_may_cost(
    reply: Reply, fields: dict[str, Any], requests: int
) -> None:
    """Each is reckoned at 11 tokens of prompt and the 50 that it may answer, each at its own price."""
    asked = Conversation(episode_id="e", system_prompt="Count.", content=(), tools=[], seed=0)
    dear = Prices(input=1_000_000, output=100_000_000)
    tokens, usd = 61 * requests, 5_011 * requests
    given = {"prices": dear, "patience_s": 0.0, "sampling": {"max_tokens": 50}, **fields}
    with FakeOpenAi([reply]) as server:
        policies = [
            make_policy(PolicySettings(policy="openai", model="m", endpoints=[server.url], budget=budget, **given))
            for budget in (Budget(tokens=tokens or 1), Budget(usd=usd or 1))
        ]
        for policy in policies:
            with pytest.raises(PolicyError):
                await policy.act(asked)
    said = [exhausted([policy]) for policy in policies]
    for policy in policies:
        await policy.close()
    if not requests:
        assert said == [None, None]
        return
    assert said == [
        f"the budget of m is spent: {tokens:,} of {tokens:,} tokens",
        f"the budget of m is spent: {usd:,.2f} of {usd:,.2f} USD",
    ]
