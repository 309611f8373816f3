"""What carries loss, token by token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from agentmill.schemas.records.rows import Message, MessageCall, SftRow
from agentmill.schemas.templates.prefix_texts import PrefixTexts
from agentmill.trainers.mask_test import check_roles, check_texts, count_by_role
from agentmill.trainers.tokenization import IGNORED, Encoded, RowError, encode, encode_texts, turn_ranges
from tests.errors import user_error
from tests.trainers.tables import answered, assistant, row, rows, system, tool_row, turns, user
from tests.trainers.template_families import shipped


def loss_texts(encoded: Encoded, tokenizer: Any) -> list[str]:
    """The decoded stretches of loss."""
    here = encoded.labels != IGNORED
    cuts = np.flatnonzero(np.diff(here.astype(int))) + 1
    stretches = np.split(encoded.labels, cuts)
    return [tokenizer.decode(part.tolist()) for part in stretches if part[0] != IGNORED]


def test_loss_is_what_the_assistant_says_and_the_end_of_its_turn(tokenizer: Any) -> None:
    messages = [system(), user("Go."), assistant("open the door"), user("It is open."), assistant("move to the room")]
    encoded = encode(row(messages), tokenizer)
    assert loss_texts(encoded, tokenizer) == ["open the door<|im_end|>", "move to the room<|im_end|>"]


def test_loss_covers_calls_but_no_results(tokenizer: Any) -> None:
    encoded = encode(tool_row(), tokenizer)
    call = '<tool_call>\n{"name": "look", "arguments": {"where": "box"}}\n</tool_call><|im_end|>'
    assert loss_texts(encoded, tokenizer) == [call, "In the box.<|im_end|>"]
    counts = count_by_role([encoded])
    assert {role: count["loss"] for role, count in counts.items()} == {
        "system": 0,
        "user": 0,
        "assistant": encoded.loss_tokens,
        "tool": 0,
    }
    assert counts["tool"]["tokens"] >= len(tokenizer.encode("a key"))


def test_untrained_turns_carry_none_and_weights_are_kept(tokenizer: Any) -> None:
    messages = [user("Go."), assistant("fly", train=False), user("No."), assistant("walk", weight=0.25)]
    encoded = encode(row(messages), tokenizer)
    assert loss_texts(encoded, tokenizer) == ["walk<|im_end|>"]
    assert set(encoded.weights[encoded.labels != IGNORED]) == {0.25}
    assert set(encoded.weights[encoded.labels == IGNORED]) == {0.0}


def test_what_precedes_a_turn_is_what_the_model_is_asked_with(tokenizer: Any) -> None:
    """The ids up to a trained turn are those of the prompt that a server would make for it."""
    encoded = encode(turns(2), tokenizer)
    first = int(np.flatnonzero(encoded.labels != IGNORED)[0])
    prompt = tokenizer.apply_chat_template(
        [{"role": "system", "content": "Act by commands."}, {"role": "user", "content": "Move the box to the door."}],
        add_generation_prompt=True,
        return_dict=False,
    )
    assert encoded.input_ids[:first].tolist() == prompt


def test_roles_are_found_without_the_segments(tokenizer: Any) -> None:
    encoded = encode(tool_row(), tokenizer)
    texts = [tokenizer.decode(encoded.input_ids[encoded.messages == index]) for index in range(5)]
    assert texts[0].startswith("<|im_start|>system\nUse tools.")
    assert '"name": "look"' in texts[0]
    assert texts[1] == "<|im_start|>user\nWhere is the key?<|im_end|>\n"
    assert texts[3] == "<|im_start|>user\n<tool_response>\na key\n</tool_response><|im_end|>\n"
    assert texts[4].startswith("<|im_start|>assistant\nIn the box.<|im_end|>")


def test_blocks_keep_a_call_with_its_result(tokenizer: Any) -> None:
    encoded = encode(tool_row(), tokenizer)
    texts = [tokenizer.decode(encoded.input_ids[start:end]) for start, end in turn_ranges(encoded)]
    assert len(texts) == 3
    assert texts[0].endswith("Where is the key?<|im_end|>\n")
    assert texts[1].startswith("<|im_start|>assistant")
    assert texts[1].endswith("a key\n</tool_response><|im_end|>\n")


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([user("Go."), assistant("fly", train=False)], "no_loss"),
        ([msgspec.structs.replace(user("Go."), train=True), assistant("fly")], "loss_outside_assistant"),
        ([msgspec.structs.replace(answered("x"), train=True)], "loss_outside_assistant"),
    ],
)
def test_rows_without_a_use_say_why(messages: list[Any], reason: str, tokenizer: Any) -> None:
    with pytest.raises(RowError) as caught:
        encode(row(messages), tokenizer)
    assert caught.value.reason == reason


def test_a_template_that_shows_the_past_otherwise_is_refused(model: Path, tokenizer: Any) -> None:
    other = type(tokenizer).from_pretrained(model)
    other.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content if loop.last or"
        " message.role != 'assistant' else '…' }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    with pytest.raises(RowError, match="otherwise than at generation") as caught:
        encode(turns(2), other)
    assert caught.value.reason == "template"


def looks(place: int, train: bool = True, reasoning: str | None = None) -> list[Message]:
    """A call and its result."""
    call = MessageCall(name="look", arguments=f'{{"at":{place}}}', id=f"call{place:05}")
    answer = Message(role="assistant", content="x", reasoning_content=reasoning, tool_calls=[call], train=train)
    return [answer, Message(role="tool", content=f"room {place}", tool_call_id=call.id, name="look")]


def test_reasoning_that_is_dropped_later_is_in_the_prompts_that_show_it(
    model: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where messages end shows that the template rewrites them: none of the turns before it is of that kind."""
    other = type(tokenizer).from_pretrained(model)
    other.chat_template = shipped("glm4moe_training")
    messages = [system(), user("Where?"), *(message for place in range(4) for message in looks(place))]
    messages += [*looks(4, train=False, reasoning="a hidden thought"), *looks(5)]
    messages += [assistant("There.", train=False), user("Thanks."), assistant("Bye.")]
    found = encode_texts("r1", messages, None, other)
    (prompt,) = [sequence for shown, sequence in found if shown[12:13] and shown[12].train]
    assert "a hidden thought" in other.decode(prompt.input_ids)
    monkeypatch.setattr(PrefixTexts, "derives", False)
    expected = encode_texts("r1", messages, None, other)
    assert [each.input_ids.tolist() for _, each in found] == [each.input_ids.tolist() for _, each in expected]
    assert [each.labels.tolist() for _, each in found] == [each.labels.tolist() for _, each in expected]


class TestSelfTest:
    def test_passes_and_decodes(self, tokenizer: Any) -> None:
        pairs = [(each.messages, encode(each, tokenizer)) for each in rows(6)]
        texts = check_texts(pairs, tokenizer)
        assert len(texts) == sum(message.train for messages, _ in pairs for message in messages)
        assert all(text.endswith("<|im_end|>") for text in texts)

    def test_sees_loss_outside_the_assistant(self, tokenizer: Any) -> None:
        encoded = encode(turns(2), tokenizer)
        counts = count_by_role([replace(encoded, labels=encoded.input_ids)])
        with user_error("mask-wrong"):
            check_roles(counts)

    def test_sees_a_mask_that_is_too_short(self, tokenizer: Any) -> None:
        each: SftRow = turns(1)
        encoded = encode(each, tokenizer)
        labels = encoded.labels.copy()
        labels[np.flatnonzero(labels != IGNORED)[:2]] = IGNORED
        with user_error("mask-wrong", "0"):
            check_texts([(each.messages, replace(encoded, labels=labels))], tokenizer)
