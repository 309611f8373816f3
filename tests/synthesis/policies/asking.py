"""Asking a model policy for one turn, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from agentmill.schemas.records.trajectory import AnyItem, TextObservation, Tool
from agentmill.synthesis.policies import make_policy
from agentmill.synthesis.policies.policy import Conversation, Policy, PolicyError, PolicySettings, Turn
from agentmill.synthesis.policies.rate_limit import Limits
from tests.fake_openai import FakeOpenAi, Reply

START = (
    TextObservation(content="Count to 3.", source="user"),
    TextObservation(content="The number is 0.", source="environment"),
)
PATIENT = Limits(patience_s=20.0)
ADD = Tool(name="add", description="Add.", parameters={"type": "object"}, strict=True)


def conversation(*more: AnyItem, tools: Sequence[Tool] = (), **fields: Any) -> Conversation:
    given = {"episode_id": "episode", "seed": 11, **fields}
    return Conversation(system_prompt="Count.", content=(*START, *more), tools=list(tools), **given)


def policy_for(*servers: FakeOpenAi | str, policy: str = "openai", **fields: Any) -> Policy:
    endpoints = [server if isinstance(server, str) else server.url for server in servers]
    given = {"turn_timeout_s": 10.0, "patience_s": 0.0, "max_retries": 0, "name": "counter", **fields}
    given.setdefault("limits", Limits(patience_s=0.0))
    return make_policy(PolicySettings(policy=policy, model="fake", endpoints=endpoints, **given))


async def turn_of(replies: Sequence[Reply], asked: Conversation | None = None, **fields: Any) -> Turn:
    with FakeOpenAi(replies) as server:
        policy = policy_for(server, **fields)
        try:
            return await policy.act(asked or conversation())
        finally:
            await policy.close()


async def failure_of(replies: Sequence[Reply], **fields: Any) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        await turn_of(replies, **fields)
    return caught.value
