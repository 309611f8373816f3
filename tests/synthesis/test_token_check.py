"""Stored tokens against stored text, with a tokenizer of whole words and single letters."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from agentmill.schemas.records.trajectory import AnyItem, MessageAction, TurnTokens
from agentmill.schemas.records.verdict import Verdict
from agentmill.synthesis.policies.completion import token_delta
from agentmill.synthesis.token_check import Codec, check_tokens
from tests.builders import agent_message, instruction, seen, trajectory

WORDS = ["go", "left", "right", "<end>"]
LETTERS = sorted({*"".join(WORDS), " "})
VOCABULARY = [*WORDS, *LETTERS]


def encode(text: str) -> list[int]:
    ids = []
    while text:
        token = next(each for each in VOCABULARY if text.startswith(each))
        ids.append(VOCABULARY.index(token))
        text = text[len(token) :]
    return ids


def decode(ids: Sequence[int]) -> str:
    return "".join(VOCABULARY[each] for each in ids)


def letters(text: str) -> list[int]:
    """The same text, letter by letter."""
    return [VOCABULARY.index(each) for each in text]


CODEC = Codec(encode=lambda text, before: encode(text), decode=decode)


def run(*turns: list[int], texts: Sequence[str] = (), **changes: Any) -> Verdict:
    """The verdict on a run that sampled these tokens, and says what they say unless ``texts`` does."""
    content: list[AnyItem] = [instruction("go")]
    prompt = encode("go")
    for number, (sampled, text) in enumerate(itertools.zip_longest(turns, texts), 1):
        tokens = token_delta(content, prompt, sampled, [-0.1] * len(sampled), "stop")
        words = decode(sampled).removesuffix("<end>") if text is None else text
        content += [agent_message(words, number, tokens=msgspec.structs.replace(tokens, **changes)), seen("ok", number)]
        prompt = [*prompt, *sampled, *encode("right")]
    return check_tokens(trajectory(content=content), CODEC)


def test_a_run_whose_tokens_are_those_of_its_text() -> None:
    verdict = run(encode("go left<end>"), encode("go right<end>"))
    assert (verdict.status, verdict.score, verdict.passed, verdict.reason) == ("scored", 1.0, True, None)
    assert verdict.evidence == {"turns": 2, "drifted": 0, "tokens": 8, "segments": 1, "breaks": 0}


def test_drift_is_counted_and_the_first_one_is_named() -> None:
    verdict = run(encode("left<end>"), [*letters("right"), *encode("<end>")], letters("go"))
    assert (verdict.score, verdict.passed, verdict.reason) == (pytest.approx(1 / 3), True, "drifted")
    assert verdict.evidence["first_drifted_item"] == 3
    assert (verdict.evidence["turns"], verdict.evidence["drifted"]) == (3, 2)


def test_tokens_of_another_text_do_not_pass() -> None:
    verdict = run(encode("go left<end>"), texts=["go right"])
    assert (verdict.passed, verdict.reason, verdict.score) == (False, "other_text", 1.0)


@pytest.mark.parametrize(
    ("changes", "reason"), [({"logprobs": [-1.0]}, "logprobs"), ({"segment_start": False}, "no_segment")]
)
def test_damaged_tokens_do_not_pass(changes: dict[str, Any], reason: str) -> None:
    verdict = run(encode("go left"), **changes)
    assert (verdict.passed, verdict.reason) == (False, reason)


def test_a_segment_that_begins_for_no_reason_is_a_break() -> None:
    own = agent_message("left", 1, tokens=TurnTokens(encode("go"), encode("left"), [], True))
    retold = agent_message("right", 2, tokens=TurnTokens(encode("go "), encode("right"), [], True))
    mark = seen("(left out)", 1, context_operation="condense")
    for between, breaks in (([], 1), ([mark], 0)):
        content = [instruction("go"), own, seen("ok", 1), *between, retold]
        assert check_tokens(trajectory(content=content), CODEC).evidence["breaks"] == breaks


def test_nothing_is_said_of_a_run_without_tokens() -> None:
    content = [item for item in trajectory().content if not isinstance(item, MessageAction)]
    verdict = check_tokens(trajectory(content=[*content, agent_message("go", 1)]), CODEC)
    assert (verdict.status, verdict.reason, verdict.passed) == ("unscored", "no_tokens", None)
