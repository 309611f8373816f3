"""What turns cost, and when a budget is spent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.config import validate
from schemas.errors import UserError
from schemas.trajectory import Usage
from synthesis.policies import make_policy
from synthesis.policies.policy import Conversation, PolicyError, exhausted
from synthesis.policies.settings import PolicySettings
from synthesis.policies.spending import Budget, Prices, Spending
from tests import fake_openai as fake
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
    one.add(60, 0.0)
    assert one.exhausted() is None
    one.close()
    one.close()
    other.add(39, 0.0)
    assert other.exhausted() is None
    other.add(1, 0.0)
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
        spending.add(1000, 0.1)
    assert spending.exhausted() == "the budget of m is spent: 0.50 of 0.50 USD"


@pytest.mark.parametrize("given", [{}, {"tokens": 1, "usd": 1}])
def test_a_budget_is_tokens_or_dollars(given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="a budget is either `tokens` or `usd`"):
        validate(Budget, given, "budget")


async def test_a_policy_reports_costs_and_counts_what_came_to_nothing() -> None:
    asked = Conversation(episode_id="e", system_prompt="Count.", content=(), tools=[], seed=0)
    with FakeOpenAi([fake.text("add 1"), fake.raw(b"{"), fake.raw(b"{"), fake.raw(b"{")]) as server:
        settings = PolicySettings(
            policy="openai", model="fake", endpoints=[server.url], prices=PRICES, budget=Budget(tokens=500)
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
    given = {"prices": dear, "patience_s": 0.0, "sampling": {"max_tokens": 50}, **fields}
    with FakeOpenAi([reply]) as server:
        policies = [
            make_policy(PolicySettings(policy="openai", model="m", endpoints=[server.url], budget=budget, **given))
            for budget in (Budget(tokens=1), Budget(usd=0.01))
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
    tokens, usd = 61 * requests, 5_011 * requests
    assert said == [
        f"the budget of m is spent: {tokens:,} of 1 tokens",
        f"the budget of m is spent: {usd:,.2f} of 0.01 USD",
    ]
