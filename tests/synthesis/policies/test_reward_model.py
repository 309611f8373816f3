"""A reward model behind a server: what it is sent, what its answers may be, and what a conversation is made of."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentmill.schemas.chat import to_template
from agentmill.schemas.records.rows import Message
from agentmill.synthesis.policies import make_policies, make_policy
from agentmill.synthesis.policies.policy import ContextOverflow, Conversation, PolicyError, PolicySettings, Rejected
from agentmill.synthesis.policies.reward_model import RewardModel, Shown, read_score, scorer_of, trained_on
from agentmill.synthesis.rollouts.call_budget import Budget, BudgetSpent, metered_policy
from tests.builders import agent_message, instruction, seen, trajectory
from tests.errors import user_error
from tests.fake_openai import MODEL, FakeOpenAi, Reply, overflow, raw, score, status
from tests.model import tiny_model

QUESTION = [Message(role="user", content="Open the box."), Message(role="assistant", content="open box")]


@asynccontextmanager
async def served(
    *replies: Reply | Callable[[dict[str, Any]], Reply], **settings: Any
) -> AsyncIterator[tuple[RewardModel, FakeOpenAi]]:
    with FakeOpenAi(replies[0] if callable(replies[0]) else replies) as server:
        given = {
            "policy": "vllm",
            "model": MODEL,
            "endpoints": [server.url],
            "tokenizer": str(tiny_model()),
            "patience_s": 0,
        }
        policy = make_policy(PolicySettings(**{**given, **settings}))
        assert isinstance(policy, RewardModel)
        try:
            yield policy, server
        finally:
            await policy.close()


def ids_of(messages: list[Message]) -> list[int]:
    from tokenizers import Tokenizer

    text = "<|im_start|>system\n<|im_end|>\n"
    text += "".join(f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in to_template(messages))
    return list(Tokenizer.from_file(str(tiny_model() / "tokenizer.json")).encode(text, add_special_tokens=False).ids)


async def test_tokens_are_sent_and_the_raw_score_is_asked_for() -> None:
    async with served(score(-3.25)) as (model, server):
        found = await model.score("e1", QUESTION, None)
    assert server.posted == ["/classify"]
    assert server.requests == [{"model": MODEL, "input": [ids_of(QUESTION)], "use_activation": False}]
    assert (found.value, found.tokens, found.usage.prompt_tokens) == (
        -3.25,
        len(ids_of(QUESTION)),
        len(ids_of(QUESTION)),
    )


async def test_the_rendering_tells_conversations_apart() -> None:
    async with served(score(1)) as (model, _):
        one, same, other = [await model.score("e1", each, None) for each in (QUESTION, QUESTION, QUESTION[:1])]
    assert one.rendering == same.rendering != other.rendering


@pytest.mark.parametrize(
    ("reply", "reason", "detail"),
    [
        (raw(b"<html>"), "malformed", "no score"),
        (raw(b'{"data": [{"probs": ["high"]}]}'), "malformed", "no score"),
        (raw(b'{"data": [{"probs": [NaN]}]}'), "malformed", "no score"),
        (raw(b'{"data": []}'), "malformed", "0 scores, expected one"),
        (score(0.1, 0.2, 0.7), "malformed", "3 scores, expected one"),
        (status(500), "server_error", "500"),
        (Reply(body=b'{"data": []}', cut=True), "disconnected", "ClientPayloadError"),
    ],
)
async def test_what_is_no_score_has_a_reason(reply: Reply, reason: str, detail: str) -> None:
    async with served(reply, max_retries=0) as (model, _):
        with pytest.raises(PolicyError, match=detail) as caught:
            await model.score("e1", QUESTION, None)
    assert caught.value.reason == reason


async def test_a_server_that_refuses_all_is_not_taken_for_a_full_context() -> None:
    async with served(lambda body: overflow() if len(body["input"][0]) > 1 else score(1)) as (model, server):
        with pytest.raises(ContextOverflow, match="maximum context length"):
            await model.score("e1", QUESTION, None)
    assert [len(body["input"][0]) for body in server.requests] == [len(ids_of(QUESTION)), 1], (
        "asked with one token, too"
    )
    async with served(overflow()) as (model, _):
        with pytest.raises(Rejected, match="refuses every request"):
            await model.score("e1", QUESTION, None)


async def test_an_answer_that_cannot_be_read_is_asked_for_again() -> None:
    async with served(raw(b"{}"), raw(b"[]"), score(0.5)) as (model, server):
        assert (await model.score("e1", QUESTION, None)).value == 0.5
    assert len(server.requests) == 3


async def test_a_server_that_only_writes_is_no_scorer() -> None:
    async with served(status(404, message="Not Found")) as (model, _):
        with user_error("endpoint-refuses", "HTTP 404", "--runner pooling"):
            await model.score("e1", QUESTION, None)


@pytest.mark.parametrize("value", ["1e999", "-1e999"])
def test_scores_are_finite(value: str) -> None:
    with pytest.raises(PolicyError, match="malformed"):
        read_score(f'{{"data": [{{"probs": [{value}]}}]}}'.encode(), [1], 0.0)


async def test_a_conversation_that_the_template_cannot_show() -> None:
    async with served(score(1)) as (model, server):
        with pytest.raises(PolicyError, match="is given no message") as caught:
            await model.score("e1", [], None)
    assert (caught.value.reason, server.requests) == ("template", [])


async def test_it_writes_nothing() -> None:
    async with served(score(1)) as (model, _):
        with pytest.raises(PolicyError, match="scores text and writes none"):
            await model.act(Conversation(episode_id="e", system_prompt="", content=(), tools=[], seed=1))


async def test_a_budget_counts_scores() -> None:
    async with served(score(1)) as (model, _):
        budget = Budget(1, None)
        metered = scorer_of(metered_policy(model, "scorer", budget))
        assert metered.shown is model.shown
        await metered.score("e1", QUESTION, None)
        with pytest.raises(BudgetSpent):
            await metered.score("e1", QUESTION, None)
    assert budget.costs()["scorer_calls"] == 1
    assert budget.costs()["prompt_tokens"] == len(ids_of(QUESTION))


def test_a_policy_that_writes_is_no_scorer() -> None:
    policies = make_policies({"actor": PolicySettings(policy="scripted", turns=["go"])})
    with pytest.raises(PolicyError, match="no_scorer"):
        scorer_of(metered_policy(policies["actor"], "actor", Budget(None, None)))


def trained(folder: Path, *views: tuple[str, dict[str, Any]]) -> Path:
    (folder / "training.json").write_text(json.dumps({"views": views}))
    return folder


PAIRS = ("trajectory_pairs", {"score": "outcome"})
ROWS = ("scorer_rows", {"rows": "step", "tool_format": "hermes"})


def ends(shown: Shown) -> str:
    walk = trajectory(content=[instruction(), agent_message("go", 1), seen("gone", 1)])
    return str(shown.conversation(walk)[-1].message.content)


@pytest.mark.parametrize(
    ("views", "tool_format", "end"),
    [((), "native", "gone"), ((PAIRS, ("step_pairs", {})), "native", "go"), ((ROWS, ROWS), "hermes", "gone")],
)
def test_trajectories_are_shown_as_the_rows_of_the_training(
    views: tuple[Any, ...], tool_format: str, end: str, tmp_path: Path
) -> None:
    shown = trained_on(trained(tmp_path, *views) if views else tmp_path)
    assert (shown.dialogue.tool_format, ends(shown)) == (tool_format, end)


def test_what_has_no_turn_is_shown_whole(tmp_path: Path) -> None:
    start = trajectory(content=[instruction("Go.")], system_prompt=None)
    assert [turn.message.content for turn in trained_on(trained(tmp_path, PAIRS)).conversation(start)] == ["Go."]


@pytest.mark.parametrize("views", [(PAIRS, ROWS), (ROWS, ("scorer_rows", {"rows": "step"}))])
def test_rows_of_several_kinds_cannot_be_followed(views: tuple[Any, ...], tmp_path: Path) -> None:
    with user_error("model-of-wrong-kind", str(tmp_path), "tool_format"):
        trained_on(trained(tmp_path, *views))


def test_a_folder_without_a_template_scores_no_conversation(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((tiny_model() / "tokenizer.json").read_bytes())
    make: Callable[[Path], object] = lambda folder: make_policy(  # noqa: E731
        PolicySettings(policy="vllm", model=MODEL, endpoints=["http://127.0.0.1:1/v1"], tokenizer=str(folder))
    )
    with user_error("model-without-template", str(tmp_path)):
        make(tmp_path)
    with user_error("tokenizer-missing", "nowhere"):
        make(tmp_path / "nowhere")
