"""The model policies against a server that answers well, badly, late or not at all."""

from __future__ import annotations

import asyncio
import json
import time
from email.utils import formatdate
from typing import Any

import pytest

from agentmill.pipelines.serving.endpoints import free_ports
from agentmill.schemas.records.trajectory import ApiAction, MessageAction, TextObservation, TurnTokens
from agentmill.synthesis.policies import make_policy
from agentmill.synthesis.policies.policy import ContextOverflow, PolicyError, PolicySettings
from tests import fake_openai as fake
from tests.errors import user_error
from tests.fake_openai import FakeOpenAi, Reply
from tests.synthesis.policies.asking import ADD, PATIENT, conversation, failure_of, policy_for, turn_of


async def test_parameters_of_tools_are_sent_with_tools_only() -> None:
    sampling = {"temperature": 0.7, "tool_choice": "required", "parallel_tool_calls": False}
    with FakeOpenAi([fake.text("add 1"), fake.text("In words.")]) as server:
        policy = policy_for(server, sampling=sampling)
        await policy.act(conversation(tools=[ADD]))
        await policy.act(conversation())
        await policy.close()
    sent = [{name: request[name] for name in sampling if name in request} for request in server.requests]
    assert sent == [sampling, {"temperature": 0.7}]


async def test_the_request_holds_the_conversation_tools_and_sampling() -> None:
    with FakeOpenAi([fake.text("add 1")]) as server:
        policy = policy_for(server, sampling={"temperature": 0.7, "max_tokens": 9, "top_k": 5})
        turn = await policy.act(conversation(tools=[ADD]))
        await policy.close()
    [request] = server.requests
    assert request == {
        "model": "fake",
        "messages": [
            {"role": "system", "content": "Count."},
            {"role": "user", "content": "Count to 3.\nThe number is 0."},
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}, "strict": True},
            }
        ],
        "temperature": 0.7,
        "max_tokens": 9,
        "top_k": 5,
    }
    assert turn.actions == [MessageAction(content="add 1")]
    assert turn.finish_reason == "stop"
    assert turn.usage.prompt_tokens == 65
    assert turn.usage.seconds is not None
    assert policy.model == "counter"


async def test_tool_calls_become_calls_and_text_beside_them_a_thought() -> None:
    turn = await turn_of([fake.calls(("add", '{"amount": 2}'), ("add", ""), content="Two at once.")])
    assert turn.actions == [
        ApiAction(function="add", kwargs={"amount": 2}, tool_call_id="random-0", description="Two at once."),
        ApiAction(function="add", kwargs={}, tool_call_id="random-1"),
    ]
    assert turn.finish_reason == "tool_calls"


@pytest.mark.parametrize("arguments", ['{"amount": ', "[1, 2]", "two", '"{}"', "null"])
async def test_arguments_that_are_no_object_are_kept_as_text(arguments: str) -> None:
    turn = await turn_of([fake.calls(("add", arguments))])
    assert turn.actions == [
        ApiAction(function="add", kwargs={}, raw_arguments=arguments, tool_call_id="random-0"),
    ]


@pytest.mark.parametrize("content", ["", None])
async def test_an_empty_answer_is_the_models_own(content: str | None) -> None:
    turn = await turn_of([fake.text(content, finish_reason="length")])
    assert turn.actions == [MessageAction(content="")]
    assert turn.finish_reason == "length"


async def test_hidden_reasoning_is_kept_apart() -> None:
    body = b'{"choices": [{"message": {"content": "add 1", "reasoning": "one is missing"}, "finish_reason": "stop"}]}'
    turn = await turn_of([fake.raw(body)])
    assert turn.actions == [MessageAction(content="add 1", reasoning_content="one is missing")]
    assert turn.usage.prompt_tokens is None


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>busy</html>", b"{", b"[]", b'{"choices": []}', b'{"choices": [{}]}', b'{"choices": 5}', b"\xff"],
)
async def test_malformed_answers_are_asked_for_again_and_then_an_error(body: bytes) -> None:
    with FakeOpenAi([fake.raw(body)]) as server:
        policy = policy_for(server)
        with pytest.raises(PolicyError) as caught:
            await policy.act(conversation())
        await policy.close()
    assert caught.value.reason == "malformed"
    assert len(server.requests) == 3
    turn = await turn_of([fake.raw(body), fake.text("add 1")])
    assert turn.actions == [MessageAction(content="add 1")]


@pytest.mark.parametrize(
    "reply",
    [
        fake.status(429, {"retry-after-ms": "10"}),
        fake.status(500, {"retry-after-ms": "10"}),
        fake.status(503, {"retry-after-ms": "10"}),
        fake.cut(),
    ],
)
async def test_what_passes_is_tried_again(reply: Reply) -> None:
    turn = await turn_of([reply, fake.text("add 1")], max_retries=1, limits=PATIENT)
    assert turn.actions == [MessageAction(content="add 1")]


async def test_pauses_between_tries_grow_and_are_jittered() -> None:
    at: list[float] = []

    def refuse_twice(body: dict[str, Any]) -> Reply:
        at.append(time.monotonic())
        return fake.status(503) if len(at) < 3 else fake.text("add 1")

    with FakeOpenAi(refuse_twice) as server:
        policy = policy_for(server, limits=PATIENT)
        await policy.act(conversation())
        await policy.close()
    first, second = at[1] - at[0], at[2] - at[1]
    assert 0.37 <= first < 0.9
    assert 0.74 <= second < 1.6


async def test_retry_after_may_be_a_date() -> None:
    started = time.time()
    date = formatdate(started + 2, usegmt=True)
    await turn_of([fake.status(503, {"retry-after": date}), fake.text("add 1")], limits=PATIENT)
    assert 0.9 <= time.time() - started < 4


async def test_retry_after_is_respected() -> None:
    started = time.monotonic()
    await turn_of([fake.status(429, {"retry-after": "1.2"}), fake.text("add 1")], limits=PATIENT, turn_timeout_s=0.9)
    assert 1.2 <= time.monotonic() - started < 4, "longer than a turn may take"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (fake.status(429), "rate_limited"),
        (fake.status(500), "server_error"),
        (fake.status(400), "refused"),
        (fake.status(403), "refused"),
        (fake.status(503), "server_error"),
        (fake.cut(), "disconnected"),
    ],
)
async def test_what_stays_is_an_error_with_its_reason(reply: Reply, reason: str) -> None:
    assert (await failure_of([reply])).reason == reason


async def test_context_overflow_is_told_apart_from_other_refusals() -> None:
    error = await failure_of([fake.overflow(128), fake.text("a")])
    assert isinstance(error, ContextOverflow)
    assert "maximum context length is 128 tokens" in error.detail
    assert not isinstance(await failure_of([fake.status(400)]), ContextOverflow)


@pytest.mark.parametrize(
    "message",
    [
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048575).",
        "prompt is too long: 208310 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000",
        "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000",
        "`inputs` tokens + `max_new_tokens` must be <= 8192. Given: 8000 `inputs` tokens and 400 `max_new_tokens`",
        "Maximum Context Length exceeded",
        "Your request exceeded model token limit: 262144 (requested: 300000)",
        "This model's maximum prompt length is 131072 but the request contains 140000 tokens.",
        "Range of input length should be [1, 204800]",
    ],
)
async def test_context_overflow_is_told_by_the_words_of_each_server(message: str) -> None:
    error = await failure_of([fake.status(400, message=message), fake.text("a")])
    assert isinstance(error, ContextOverflow)


@pytest.mark.parametrize("body", ['{"error": {"message":  "quota gone"}}', '{"choices": [], "error": "quota gone"}'])
async def test_an_answer_that_is_no_completion_is_quoted(body: str) -> None:
    error = await failure_of([fake.raw(body.encode())])
    assert error.reason == "malformed"
    assert error.detail.endswith(f": {' '.join(body.split())}")


@pytest.mark.parametrize("code", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed_and_key_and_conversation_stay_here(code: int) -> None:
    with FakeOpenAi([fake.text("mine")]) as other:
        moved = fake.status(code, {"location": f"{other.url}/chat/completions"})
        with user_error("endpoint-redirects", f"{other.url}/chat/completions") as error:
            await turn_of([moved])
        assert other.requests == []
        assert len(str(error.value).splitlines()) == 2


async def test_an_answer_that_is_too_long_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentmill.synthesis.policies.http_client.MOST_BYTES", 2**20)
    with FakeOpenAi([fake.raw(b" " * 2**22)]) as server:
        policy = policy_for(server, max_retries=3)
        with pytest.raises(PolicyError, match="longer than 1 MiB") as error:
            await policy.act(conversation())
        await policy.close()
        assert error.value.reason == "oversized"
        assert len(server.requests) == 1


@pytest.mark.parametrize("count", [-1, 10**12])
async def test_a_count_of_tokens_that_cannot_be_is_none(count: int) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": count}}
    body = {"choices": [{"message": {"content": "look"}}], "usage": usage}
    turn = await turn_of([fake.raw(json.dumps(body).encode())])
    assert (turn.usage.prompt_tokens, turn.usage.completion_tokens, turn.usage.cached_tokens) == (None, 3, None)


async def test_a_server_that_hangs_costs_one_turn_and_no_more() -> None:
    started = time.monotonic()
    error = await failure_of([fake.hang()], turn_timeout_s=0.3, max_retries=5)
    assert error.reason == "timeout"
    assert time.monotonic() - started < 3


async def test_a_slow_server_is_waited_for() -> None:
    turn = await turn_of([fake.text("add 1", hang_s=0.4)])
    assert turn.usage.seconds is not None
    assert turn.usage.seconds >= 0.4


async def test_a_server_that_comes_back_is_waited_for() -> None:
    [port] = free_ports(1)
    policy = policy_for(f"http://127.0.0.1:{port}/v1", patience_s=20.0)
    waiting = asyncio.create_task(policy.act(conversation()))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    with FakeOpenAi([fake.text("add 1")], port=port):
        assert (await waiting).actions == [MessageAction(content="add 1")]
        await policy.close()


async def test_nobody_there_is_unreachable() -> None:
    policy = policy_for("http://127.0.0.1:9/v1")
    with pytest.raises(PolicyError) as caught:
        await policy.act(conversation())
    await policy.close()
    assert caught.value.reason == "unreachable"
    assert "http://127.0.0.1:9/v1" in caught.value.detail


async def test_an_episode_stays_at_one_endpoint_and_episodes_spread() -> None:
    with FakeOpenAi([fake.text("a")]) as one, FakeOpenAi([fake.text("b")]) as other:
        policy = policy_for(one, other)
        answers = []
        for episode in range(20):
            turns = [await policy.act(conversation(episode_id=f"episode-{episode}")) for _ in range(2)]
            answers.append([action.content for turn in turns for action in turn.actions])  # type: ignore[union-attr]
        await policy.close()
    assert all(first == second for first, second in answers)
    assert 5 <= answers.count(["a", "a"]) <= 15


@pytest.mark.parametrize("code", [None, 429, 500])
async def test_an_episode_moves_when_its_endpoint_is_gone_or_busy(code: int | None) -> None:
    busy = FakeOpenAi([fake.status(code or 200, {"retry-after-ms": "1"})])
    with busy, FakeOpenAi([fake.text("a")]) as server:
        policy = policy_for(busy if code else "http://127.0.0.1:9/v1", server, max_retries=4)
        for episode in range(8):
            turn = await policy.act(conversation(episode_id=f"episode-{episode}"))
            assert turn.actions == [MessageAction(content="a")]
        await policy.close()


async def test_the_key_comes_from_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTER_KEY", "secret-1")
    with FakeOpenAi([fake.text("a")]) as server:
        policy = policy_for(server, api_key_variable="COUNTER_KEY")
        await policy.act(conversation())
        await policy.close()
        await policy.close()
    assert server.keys == ["secret-1"]
    monkeypatch.delenv("COUNTER_KEY")
    with user_error("key-missing", "COUNTER_KEY", "api_key_variable"):
        policy_for("http://127.0.0.1:9/v1", api_key_variable="COUNTER_KEY")


async def test_a_proxy_is_not_used_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    assert (await turn_of([fake.text("add 1")])).actions == [MessageAction(content="add 1")]


async def test_vllm_sends_seed_and_choices_and_keeps_exact_tokens() -> None:
    with FakeOpenAi([fake.text("add 1"), fake.text("add 2")], with_tokens=True) as server:
        policy = policy_for(server, policy="vllm")
        first = await policy.act(conversation(choices=["add 1", "add 2"]))
        acted = first.actions[0]
        seen = TextObservation(content="The number is 1.", source="environment", turn=1)
        second = await policy.act(conversation(acted, seen))
        await policy.close()
    request = server.requests[0]
    assert (request["seed"], request["logprobs"], request["return_token_ids"]) == (11, True, True)
    assert request["structured_outputs"] == {"choice": ["add 1", "add 2"]}
    assert "structured_outputs" not in server.requests[1]
    prompt = "<system>Count.</><user>Count to 3.\nThe number is 0.</><assistant>"
    assert acted.tokens == TurnTokens(
        prompt_ids=[ord(letter) for letter in prompt],
        sampled_ids=[ord(letter) for letter in "add 1</>"],
        logprobs=[-0.5] * 8,
        segment_start=True,
        finish_reason="stop",
    )
    grown = second.actions[0].tokens
    assert grown is not None
    assert not grown.segment_start
    assert "".join(map(chr, grown.prompt_ids)) == "<user>The number is 1.</><assistant>"


async def test_the_plain_api_cannot_choose() -> None:
    with pytest.raises(PolicyError, match=r"unsupported: .*`vllm` can"):
        await turn_of([fake.text("a")], asked=conversation(choices=["a"]))


def test_a_model_policy_needs_a_model_and_an_address() -> None:
    with user_error("needs-another-key", "vllm", "model"):
        make_policy(PolicySettings(policy="vllm", model="x"))
    with user_error("unknown-name", "vlm", "vllm"):
        make_policy(PolicySettings(policy="vlm"))
