"""What a piece of work costs, and may cost at most: calls of policies and turns, counted before they happen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.rows import Message
from agentmill.schemas.records.trajectory import Usage
from agentmill.synthesis.policies.policy import Conversation, Policy, PolicyError, Turn
from agentmill.synthesis.policies.reward_model import Score, Scorer
from agentmill.synthesis.rollouts.llm_calls import total
from agentmill.synthesis.rollouts.strategy import Exploration


class BudgetSpent(PolicyError):
    """The next call or turn would be one too many: the search ends here, with what it has."""

    def __init__(self, what: str) -> None:
        super().__init__("budget_spent", f"no {what} are left")


class Budget:
    """At most ``calls`` of policies, whatever their role, and ``turns`` that are played; ``None`` is no limit."""

    def __init__(self, calls: int | None, turns: int | None) -> None:
        self.calls: Counter[str] = Counter()
        self.turns = 0
        self.usage = Usage()
        self.spent = False
        """Whether less was to be had than was wanted."""
        self._most_calls = calls
        self._most_turns = turns

    def calls_of(self, wanted: int) -> int:
        """As many of ``wanted`` calls as are left. Raises ``BudgetSpent`` if none is."""
        left = wanted if self._most_calls is None else min(wanted, self._most_calls - self.calls.total())
        self.spent |= left < wanted
        if left < 1:
            raise BudgetSpent("calls")
        return left

    def call(self, role: str) -> None:
        """Count a call that is about to be made. Raises ``BudgetSpent``."""
        self.calls_of(1)
        self.calls[role] += 1

    def turn(self) -> None:
        """Count a turn that is about to be played. Raises ``BudgetSpent``."""
        if self.turns == self._most_turns:
            self.spent = True
            raise BudgetSpent("turns")
        self.turns += 1

    def costs(self) -> JsonObject:
        """Calls by role, turns, tokens and US dollars until now."""
        return {
            **{f"{role}_calls": calls for role, calls in sorted(self.calls.items())},
            "turns": self.turns,
            **tokens_of(self.usage),
        }


def tokens_of(usage: Usage) -> dict[str, float]:
    """Tokens and US dollars; unreported values count as 0."""
    return {
        "prompt_tokens": usage.prompt_tokens or 0,
        "completion_tokens": usage.completion_tokens or 0,
        "cost_usd": usage.cost_usd or 0.0,
    }


def metered(exploration: Exploration, budget: Budget) -> Exploration:
    """``exploration`` with policies whose calls ``budget`` counts."""
    policies = {role: metered_policy(policy, role, budget) for role, policy in exploration.policies.items()}
    return msgspec.structs.replace(exploration, policies=policies)


class Metered:
    """A policy whose calls a budget counts."""

    def __init__(self, policy: Policy, role: str, budget: Budget) -> None:
        self.name, self.model, self.revision = policy.name, policy.model, policy.revision
        self.sampling = policy.sampling
        self.spending = policy.spending
        self._policy, self._role, self._budget = policy, role, budget

    async def act(self, conversation: Conversation) -> Turn:
        """The policy's turn. Raises ``BudgetSpent`` instead of asking once too often."""
        self._budget.call(self._role)
        turn = await self._policy.act(conversation)
        self._budget.usage = total(self._budget.usage, turn.usage)
        return turn

    async def close(self) -> None:
        """The policy is closed by who made it."""


class MeteredScorer(Metered):
    """A model that scores, whose calls a budget counts."""

    def __init__(self, scorer: Scorer, policy: Policy, role: str, budget: Budget) -> None:
        super().__init__(policy, role, budget)
        self.shown = scorer.shown
        self._scorer = scorer

    async def score(self, episode_id: str, messages: Sequence[Message], functions: str | None) -> Score:
        """As ``Scorer.score``. Raises ``BudgetSpent`` instead of asking once too often."""
        self._budget.call(self._role)
        score = await self._scorer.score(episode_id, messages, functions)
        self._budget.usage = total(self._budget.usage, score.usage)
        return score


def metered_policy(policy: Policy, role: str, budget: Budget) -> Metered:
    """A policy whose calls ``budget`` counts; one that scores still does."""
    return MeteredScorer(policy, policy, role, budget) if isinstance(policy, Scorer) else Metered(policy, role, budget)
