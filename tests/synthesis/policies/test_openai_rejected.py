"""A server that refuses a request: this conversation alone, or every one with these parameters."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentmill.schemas.records.trajectory import TextObservation
from agentmill.synthesis.policies.policy import ContextOverflow, PolicyError, Rejected
from tests import fake_openai as fake
from tests.fake_openai import FakeOpenAi, Reply
from tests.synthesis.policies.asking import ADD, conversation, policy_for

WORDS = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."


def unlucky() -> TextObservation:
    return TextObservation(content="unlucky", source="environment", turn=1)


@pytest.mark.parametrize("code", [400, 403, 422])
async def test_server_that_refuses_every_request_ends_the_stage_in_its_own_words(code: int) -> None:
    with FakeOpenAi([fake.status(code, message=WORDS)]) as server:
        policy = policy_for(server, entry="teacher", sampling={"max_tokens": 5, "top_p": 0.5})
        with pytest.raises(Rejected) as caught:
            await policy.act(conversation(tools=[ADD]))
        await policy.close()
    assert str(caught.value).startswith(f"refused: teacher at {server.url} refuses every request: HTTP {code}: ")
    assert WORDS in str(caught.value)
    asked, probe = server.requests
    assert {name: probe[name] for name in ("max_tokens", "top_p")} == {"max_tokens": 5, "top_p": 0.5}
    assert [tool["function"]["name"] for tool in (*asked["tools"], *probe["tools"])] == ["add", "nothing"]


async def test_conversation_that_alone_is_refused_is_told_apart() -> None:
    def refuse(body: dict[str, Any]) -> Reply:
        return fake.status(400, message="filtered") if body["messages"][-1]["content"] == "unlucky" else fake.text("a")

    with FakeOpenAi(refuse) as server:
        policy = policy_for(server)
        for _ in range(2):
            with pytest.raises(PolicyError, match="filtered") as caught:
                await policy.act(conversation(unlucky()))
            assert type(caught.value) is PolicyError
        await policy.act(conversation())
        await policy.close()


async def test_server_that_begins_to_refuse_every_request_is_noticed() -> None:
    with FakeOpenAi([fake.text("add 1"), fake.status(400, message=WORDS)]) as server:
        policy = policy_for(server)
        await policy.act(conversation())
        with pytest.raises(Rejected, match="max_completion_tokens"):
            await policy.act(conversation())
        await policy.close()


async def test_server_is_examined_once_for_all_that_it_refused_before() -> None:
    with FakeOpenAi([fake.status(400, message=WORDS)]) as server:
        policy = policy_for(server)
        asked = [policy.act(conversation(episode_id=str(number))) for number in range(8)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        await policy.close()
    assert [type(each) for each in found] == [Rejected] * 8
    assert len(server.requests) == 8 + 1


async def test_limit_of_answers_above_the_context_is_refused_for_every_conversation() -> None:
    with FakeOpenAi([fake.overflow(128)]) as server:
        policy = policy_for(server, sampling={"max_tokens": 5000})
        with pytest.raises(Rejected, match="maximum context length is 128 tokens"):
            await policy.act(conversation())
        await policy.close()
    assert [body["max_tokens"] for body in server.requests] == [5000, 5000]


async def test_conversation_that_is_too_long_is_examined_once_at_most() -> None:
    def refuse(body: dict[str, Any]) -> Reply:
        return fake.overflow() if body["messages"][-1]["content"] == "unlucky" else fake.text("a")

    with FakeOpenAi(refuse) as server:
        policy = policy_for(server)
        for _ in range(3):
            with pytest.raises(ContextOverflow):
                await policy.act(conversation(unlucky()))
        await policy.close()
    assert len(server.requests) == 3 + 1


async def test_server_without_tools_refuses_every_request_with_tools() -> None:
    def refuse(body: dict[str, Any]) -> Reply:
        return fake.status(400, message="no tool choice") if "tools" in body else fake.text("a")

    with FakeOpenAi(refuse) as server:
        policy = policy_for(server)
        await policy.act(conversation())
        with pytest.raises(Rejected, match="no tool choice"):
            await policy.act(conversation(tools=[ADD]))
        await policy.close()


async def test_probe_of_a_busy_provider_names_the_limit_as_the_model_wants_it() -> None:
    """A request of too many tokens for a minute is told apart, though the server does not know ``max_tokens``."""

    def refuse(body: dict[str, Any]) -> Reply:
        if "max_tokens" in body:
            return fake.status(400, message=WORDS)
        return fake.status(429) if len(body["messages"]) > 1 else fake.text("a")

    with FakeOpenAi(refuse) as server:
        policy = policy_for(server, sampling={"max_completion_tokens": 50})
        with pytest.raises(PolicyError, match="HTTP 429") as caught:
            await policy.act(conversation())
        await policy.close()
    assert type(caught.value) is PolicyError
    assert server.requests[-1]["max_completion_tokens"] == 1
