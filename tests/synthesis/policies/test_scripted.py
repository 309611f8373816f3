"""Policies without a model: scores of an expert that stands in for a reward model (acting: ``test_mistakes``)."""

from __future__ import annotations

from agentmill.schemas.records.rows import Message
from agentmill.synthesis.policies import make_policy
from agentmill.synthesis.policies.policy import PolicySettings
from agentmill.synthesis.policies.reward_model import scorer_of


def conversation(answer: str) -> list[Message]:
    return [Message(role="user", content="Go."), Message(role="assistant", content=answer)]


async def test_a_stand_in_draws_a_score_by_what_is_scored() -> None:
    scorer = scorer_of(make_policy(PolicySettings(policy="expert", sampling={"mistakes": 0.3})))
    scores = [await scorer.score("e", conversation(f"step {n}"), None) for n in range(200)]
    values = [each.value for each in scores]
    assert all(0 <= value <= 1 for value in values)
    assert 0.4 < sum(values) / len(values) < 0.6
    assert len({each.rendering for each in scores}) == len(set(values)) == 200
    assert await scorer.score("e", conversation("step 7"), None) == scores[7]
    assert (await scorer.score("other", conversation("step 7"), None)).value != scores[7].value
    assert (await scorer.score("e", conversation("step 7"), "[]")).value != scores[7].value
