"""Token deltas add up to the sequences that the model saw and sampled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmill.schemas.records.trajectory import AnyItem, ApiAction, MessageAction, TextObservation
from agentmill.synthesis.policies.completion import read_turn, token_delta, token_sequence
from agentmill.synthesis.policies.cost import read_ledger
from agentmill.synthesis.policies.policy import Denied, PolicyError
from tests import fake_openai as fake
from tests.fake_openai import FakeOpenAi
from tests.synthesis.policies.asking import conversation, policy_for

IDS = st.lists(st.integers(0, 5), max_size=6)


def acted(content: list[AnyItem], prompt: list[int], sampled: list[int], logprobs: list[float]) -> list[AnyItem]:
    tokens = token_delta(content, prompt, sampled, logprobs, "stop")
    seen = TextObservation(content="", source="environment")
    return [*content, MessageAction(content="", tokens=tokens), seen]


@given(st.lists(st.tuples(st.integers(0, 30), IDS, IDS), min_size=1, max_size=6))
def test_any_prompts_come_back_whole(turns: list[tuple[int, list[int], list[int]]]) -> None:
    """Each prompt keeps some of the sequence before it and adds to that; keeping less than all starts a segment."""
    content: list[AnyItem] = []
    sequence: list[int] = []
    for kept, grown, sampled in turns:
        prompt = sequence[:kept] + grown
        content = acted(content, prompt, sampled, [-1.0] * len(sampled))
        sequence = prompt + sampled
        assert token_sequence(content) == sequence


def test_an_extension_is_a_delta_and_anything_else_a_new_segment() -> None:
    content = acted([], [1, 2], [3, 4], [-0.1, -0.2])
    extended = token_delta(content, [1, 2, 3, 4, 5], [6], [-0.3], "stop")
    assert (extended.prompt_ids, extended.sampled_ids, extended.segment_start) == ([5], [6], False)
    retold = token_delta(content, [1, 2, 9, 5], [6], [-0.3], "length")
    assert (retold.prompt_ids, retold.segment_start, retold.finish_reason) == ([1, 2, 9, 5], True, "length")


def test_log_probabilities_that_do_not_match_are_left_out() -> None:
    assert token_delta([], [1], [2, 3], [-0.1], "stop").logprobs == []
    assert token_delta([], [1], [2, 3], [-0.1, -0.2], "stop").logprobs == [-0.1, -0.2]


def answered(content: str | None = "", **fields: Any) -> bytes:
    """An answer whose choice has these fields, too, after a long one that is of no use."""
    message = {"role": "assistant", "content": content, **fields.pop("message", {})}
    choice = {"message": message, "finish_reason": "stop", **fields}
    return json.dumps({"id": "x" * 300, "choices": [choice]}).encode()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"error": {"code": 502, "message": "upstream is gone"}}, "upstream is gone"),
        ({"finish_reason": "error", "error": "upstream is gone"}, "upstream is gone"),
        ({"finish_reason": "error", "error": None}, "xxx"),
        ({"finish_reason": "error"}, "xxx"),
    ],
)
def test_an_error_in_the_place_of_an_answer_is_no_turn(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(PolicyError, match=words) as caught:
        read_turn(answered(**fields), 0.0, conversation())
    assert caught.value.reason == "malformed"


@pytest.mark.parametrize("error", [None, False, "", {}, []])
def test_a_field_for_errors_that_holds_none_is_no_error(error: Any) -> None:
    assert read_turn(answered("look", error=error), 0.0, conversation()).actions == [MessageAction(content="look")]


def test_texts_in_parts_and_arguments_as_an_object_are_read() -> None:
    parts = [{"type": "thinking", "thinking": []}, {"type": "text", "text": "lo"}, {"type": "text", "text": "ok"}]
    assert read_turn(answered(message={"content": parts}), 0.0, conversation()).actions == [
        MessageAction(content="look")
    ]
    call = {"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}
    [action] = read_turn(answered(None, message={"tool_calls": [call]}), 0.0, conversation()).actions
    assert (action.function, action.kwargs) == ("f", {"a": 1})  # type: ignore[union-attr]


@pytest.mark.parametrize(("reason", "kept"), [(None, True), (151645, True), ("\nObservation:", False)])
def test_tokens_of_a_text_that_ended_an_answer_are_not_those_of_the_message(reason: Any, kept: bool) -> None:
    body = json.loads(answered("look", token_ids=[3, 4], stop_reason=reason))
    [action] = read_turn(json.dumps({**body, "prompt_token_ids": [1, 2]}), 0.0, conversation()).actions
    assert (action.tokens is not None) is kept


@pytest.mark.parametrize("code", [429, "429", 503])
def test_a_refusal_for_now_may_come_with_status_200(code: Any) -> None:
    with pytest.raises(Denied, match="Rate limit exceeded"):
        read_turn(json.dumps({"error": {"message": "Rate limit exceeded", "code": code}}), 0.0, conversation())
    with pytest.raises(PolicyError) as caught:
        read_turn(json.dumps({"error": {"message": "upstream", "code": 400}}), 0.0, conversation())
    assert caught.value.reason == "malformed"


async def test_who_reports_an_error_is_asked_again() -> None:
    failed = fake.raw(answered(finish_reason="error", error={"code": 502}))
    with FakeOpenAi([failed, failed, fake.text("look")]) as server:
        policy = policy_for(server)
        assert (await policy.act(conversation())).actions == [MessageAction(content="look")]
        await policy.close()
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("content", "refusal", "expected"),
    [(None, "I can't help.", "I can't help."), ("", "No.", "No."), ("Yes.", "No.", "Yes."), (None, None, "")],
)
def test_the_words_of_a_refusal_are_the_message(content: str | None, refusal: str | None, expected: str) -> None:
    body = answered(content, message={"refusal": refusal})
    assert read_turn(body, 0.0, conversation()).actions == [MessageAction(content=expected)]


@pytest.mark.parametrize(
    ("fields", "reasoning"),
    [
        ({"reasoning": [{"type": "text", "text": "Hm"}, {"text": "."}]}, "Hm."),
        ({"reasoning_content": {"content": "Hm."}}, "Hm."),
        ({"content": [{"type": "thinking", "thinking": [{"text": "Hm."}]}, {"type": "text", "text": "look"}]}, "Hm."),
        ({"refusal": False, "reasoning": None}, None),
        ({"reasoning": json.loads("[" * 400 + '"Hm."' + "]" * 400)}, None),
    ],
)
def test_side_fields_of_an_answer_may_have_any_form(fields: Any, reasoning: str | None) -> None:
    [action] = read_turn(answered("look", message=fields), 0.0, conversation()).actions
    assert action == MessageAction(content="look", reasoning_content=reasoning)


@pytest.mark.parametrize(
    "logprobs",
    [
        [-0.1],
        {"content": [{"logprob": None}]},
        {"content": [-0.1]},
        {"content": 5},
        {"content": [{"logprob": 10**400}]},
    ],
)
def test_log_probabilities_of_another_form_are_none(logprobs: Any) -> None:
    body = json.loads(answered("look", token_ids=[3], logprobs=logprobs))
    [action] = read_turn(json.dumps({**body, "prompt_token_ids": [1]}), 0.0, conversation()).actions
    assert action.tokens is not None
    assert (action.tokens.sampled_ids, action.tokens.logprobs) == ([3], [])


@pytest.mark.parametrize(("given", "raw"), [([], "[]"), (3, "3"), ("", None), (None, None)])
def test_arguments_that_are_no_object_are_those_of_the_call(given: Any, raw: str | None) -> None:
    call = {"id": 7, "function": {"name": "f", "arguments": given}}
    [action] = read_turn(answered(None, message={"tool_calls": [call]}), 0.0, conversation()).actions
    assert action == ApiAction(function="f", kwargs={}, raw_arguments=raw, tool_call_id="7")


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 2110}, (100, 2010)),
        ({"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}, (100, 10)),
        ({"prompt_tokens": 100, "completion_tokens": 10}, (100, 10)),
        ({"prompt_tokens": 10.0, "completion_tokens": "10", "prompt_tokens_details": []}, (10, None)),
    ],
)
def test_reasoning_that_only_the_total_holds_is_counted(usage: Any, counted: tuple[int, int | None]) -> None:
    body = json.dumps({**json.loads(answered("look")), "usage": usage})
    found = read_turn(body, 0.0, conversation()).usage
    assert (found.prompt_tokens, found.completion_tokens) == counted


@pytest.mark.parametrize("body", [{"choices": []}, {"choices": [{"message": {}, "finish_reason": "error"}]}])
def test_a_refusal_for_now_may_be_in_the_place_of_a_choice(body: Any) -> None:
    error = {"code": 429, "message": "slow down"}
    (body["choices"][0] if body["choices"] else body)["error"] = error
    with pytest.raises(Denied, match="slow down"):
        read_turn(json.dumps(body), 0.0, conversation())


async def test_an_answer_that_cannot_be_used_costs_what_it_says(tmp_path: Path) -> None:
    ledger = tmp_path / "spending.sqlite"
    counted = json.dumps({"choices": [], "usage": {"prompt_tokens": 700, "completion_tokens": 0}}).encode()
    with FakeOpenAi([fake.raw(counted), fake.raw(b"{}"), fake.text("look")]) as server:
        policy = policy_for(server, ledger=str(ledger), sampling={"max_tokens": 8000})
        await policy.act(conversation())
        await policy.close()
    [spent] = read_ledger(ledger)
    assert (spent.requests, spent.estimated) == (3, 1)
    assert 8000 < spent.completion_tokens < 8100, "what does not count costs what it may"
    assert spent.prompt_tokens > 700
