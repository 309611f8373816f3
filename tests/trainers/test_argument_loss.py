"""Loss on calls without the values of their arguments, or on these alone, under the templates of many models."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from agentmill.schemas.records.rows import ArgumentLoss, Message, MessageCall, RowTokens, SampledTurn, SftRow
from agentmill.schemas.templates.argument_values import all_value_ranges, value_ranges
from agentmill.schemas.templates.rendering import ChatTemplate, TemplateError, segments, texts
from agentmill.trainers.chat_template import chat_template
from agentmill.trainers.data import counts_of
from agentmill.trainers.mask_test import check_roles, check_texts, count_by_role
from agentmill.trainers.sampled_tokens import encode_row
from agentmill.trainers.sft import sequences
from agentmill.trainers.tokenization import IGNORED, Encoded, RowError, encode
from tests.trainers.families import tokenizer_of
from tests.trainers.tables import TOOLS, answered, assistant, row, system, user
from tests.trainers.test_families import FAMILIES, KINDS

WITH_CALLS = [name for name, kept in FAMILIES.items() if kept[list(KINDS).index("calls")]]
VALUES = {"where": "the old zebra lane", "number": 48213, "who": "Łukasz"}
"""Each is in the text of a call once, under every template."""
WRITTEN = [str(value) for value in VALUES.values()]


def call(arguments: dict[str, Any], loss: ArgumentLoss = "trained", **fields: Any) -> Message:
    calls = [MessageCall(name="look", arguments=json.dumps(arguments, ensure_ascii=False), id="call00001")]
    return Message(role="assistant", tool_calls=calls, train=True, argument_loss=loss, **fields)


def conversation(arguments: dict[str, Any], loss: ArgumentLoss) -> SftRow:
    messages = [system(), user("Where is the key?"), call(arguments, loss), answered("a key"), assistant("In the box.")]
    return row(messages, tools=TOOLS)


def of_call(parts: list[tuple[Any, Encoded]], place: int = 2) -> Encoded:
    """The sequence in which the message at ``place`` carries loss."""
    (found,) = [encoded for messages, encoded in parts if messages[place].train]
    return found


def covered(encoded: Encoded, turn: NDArray[np.bool_], tokenizer: Any) -> NDArray[np.bool_]:
    """Which tokens of ``turn`` hold a part of a value, seen by decoding one token more at a time."""
    ids = encoded.input_ids[turn].tolist()
    text = tokenizer.decode(ids)
    spans = [(text.index(value), text.index(value) + len(value)) for value in WRITTEN]
    ends = [len(tokenizer.decode(ids[:count]).rstrip("\ufffd")) for count in range(len(ids) + 1)]
    found = []
    for start, end in pairwise(ends):
        # A token within a character adds no text; it belongs to the character that comes.
        found.append(any(start < stop and max(end, start + 1) > first for first, stop in spans))
    return np.array(found)


@pytest.mark.parametrize("name", WITH_CALLS)
def test_tokens_with_loss_are_those_outside_of_the_values_or_those_inside(name: str, tokenizer: Any) -> None:
    own = tokenizer_of(name, tokenizer)
    found = {loss: encode_row(conversation(VALUES, loss), own) for loss in ("trained", "untrained", "only")}
    whole = of_call(found["trained"])
    turn = whole.mask & (whole.messages == 2)
    inside = covered(whole, turn, own)
    assert 0 < inside.sum() < len(inside)
    for loss, expected in (("untrained", ~inside), ("only", inside)):
        encoded = of_call(found[loss])
        # The same tokens, whatever carries loss.
        assert encoded.input_ids.tolist() == whole.input_ids.tolist()
        assert (encoded.mask[turn] == expected).all()
        assert (encoded.mask[~turn] == whole.mask[~turn]).all()
        check_roles(count_by_role([each for _, each in found[loss]]))
        check_texts(found[loss], own)


def loss_text(arguments: dict[str, Any], loss: ArgumentLoss, tokenizer: Any) -> str:
    encoded = encode(conversation(arguments, loss), tokenizer)
    here = (encoded.messages == 2) & (encoded.labels != IGNORED)
    return str(tokenizer.decode(encoded.labels[here].tolist()))


def ranges(arguments: dict[str, Any], tokenizer: Any) -> list[str]:
    messages = conversation(arguments, "untrained").messages[:3]
    template = chat_template(tokenizer)
    turn = segments(messages, None, template.render)[1].text
    return [turn[start:end] for start, end in value_ranges(messages, 2, None, template, turn)]


def test_every_kind_of_value_is_found_as_it_is_written(tokenizer: Any) -> None:
    own = tokenizer_of("qwen2_5", tokenizer)
    arguments = {
        "quoted": 'say "Q"\n',
        "digits": "17",
        "empty": "",
        "negative": -3,
        "fraction": 2.5,
        "truth": True,
        "nothing": None,
        "list": [1, {"deep": "Z"}],
        "object": {"a": "b", "c": []},
    }
    assert ranges(arguments, own) == [
        'say \\"Q\\"\\n',
        "17",
        "-3",
        "2.5",
        "true",
        "null",
        '[1, {"deep": "Z"}]',
        '{"a": "b", "c": []}',
    ]
    assert ranges({}, own) == []
    assert ranges({"same": "x", "again": "x"}, own) == ["x", "x"]


ODD: list[dict[str, Any]] = [
    {"quoted": 'say "Q"\n', "digits": "17", "list": [1, {"deep": "Z"}], "truth": True},
    {"empty": "", "nothing": None, "negative": -3, "spaces": "  a  "},
    {},
    # What templates write between two values, in a value.
    {"where": {"at": 1, "number": 2}, "number": 3},
    {"where": "</parameter>\n<parameter=who>\n", "who": '<|"|>,who:<|"|>'},
    {"number": 9000000000, "who": "QXZ9000000001QXZ"},
]


@pytest.mark.parametrize("name", WITH_CALLS)
def test_values_of_all_turns_are_those_of_each_turn_alone(name: str, tokenizer: Any) -> None:
    template = chat_template(tokenizer_of(name, tokenizer))
    messages = [user("Go.")]
    for arguments in (VALUES, *ODD):
        messages += [call(arguments, "untrained"), answered("a key")]
    rendered = texts(messages, None, template)
    turns = {index: each.text[start:end] for each in rendered for index, (start, end) in each.spans.items()}
    found, refused = dict[int, Any](), False
    for index, turn in turns.items():
        try:
            found[index] = set(value_ranges(messages, index, None, template, turn))
        except TemplateError:
            refused = True
    if refused:
        with pytest.raises(TemplateError):
            all_value_ranges(messages, None, template, rendered)
    else:
        made = all_value_ranges(messages, None, template, rendered)
        assert {index: set(ranges) for index, ranges in made.items()} == found


def test_a_mark_that_is_in_the_turn_by_chance_is_no_value(tokenizer: Any) -> None:
    template = chat_template(tokenizer_of("qwen2_5", tokenizer))
    messages = [user("Go."), call(VALUES, "untrained", content="QXZ9000000000QXZ")]
    rendered = texts(messages, None, template)
    ranges = all_value_ranges(messages, None, template, rendered)[1]
    turn = rendered[0].text[slice(*rendered[0].spans[1])]
    assert [turn[start:end] for start, end in ranges] == WRITTEN


# Where a template rewrites earlier turns, each beginning has to be rendered anyway.
@pytest.mark.parametrize(("name", "growth"), [("qwen2_5", 2.5), ("qwen3", 4.5)])
def test_work_for_values_grows_as_the_conversation(name: str, growth: float, tokenizer: Any) -> None:
    plain = chat_template(tokenizer_of(name, tokenizer))
    rendered_texts: list[str] = []

    def render(*given: Any) -> str:
        rendered_texts.append(plain.render(*given))
        return rendered_texts[-1]

    template = ChatTemplate(render, plain.end_of_turn, plain.stops)
    work = []
    for number in (20, 40):
        messages = [user("Go.")]
        for _ in range(number):
            messages += [call(VALUES, "untrained"), answered("a key")]
        rendered = texts(messages, None, plain)
        rendered_texts.clear()
        ranges = all_value_ranges(messages, None, template, rendered)
        assert [len(each) for each in ranges.values()] == [len(VALUES)] * number
        work.append((len(rendered_texts), sum(map(len, rendered_texts))))
    (calls, characters), (more_calls, more_characters) = work
    assert more_calls <= 2.2 * calls
    assert more_characters <= growth * characters


def test_names_and_quotes_stay_with_the_rest_of_the_call(tokenizer: Any) -> None:
    own = tokenizer_of("qwen2_5", tokenizer)
    kept = loss_text({"where": "under the blue bed"}, "untrained", own)
    assert kept.startswith('<tool_call>\n{"name": "look", "arguments": {"where":')
    assert kept.endswith("}}\n</tool_call><|im_end|>")
    assert "blue" not in kept
    assert loss_text({"where": "under the blue bed"}, "only", own).strip('" ') == "under the blue bed"


def test_several_calls_words_beside_them_and_weights(tokenizer: Any) -> None:
    own = tokenizer_of("qwen2_5", tokenizer)
    calls = [MessageCall(name="look", arguments=f'{{"at":"place {n}"}}', id=f"call0000{n}") for n in range(2)]
    said = Message(
        role="assistant", content="I look.", tool_calls=calls, train=True, weight=0.5, argument_loss="untrained"
    )
    encoded = encode(row([user("Go."), said], tools=TOOLS), own)
    text = own.decode(encoded.labels[encoded.mask].tolist())
    assert "I look." in text
    assert "place" not in text
    assert text.count('"name": "look"') == 2
    assert set(encoded.weights[encoded.mask]) == {0.5}
    assert set(encoded.weights[~encoded.mask]) == {0.0}


def test_control_tokens_in_values_are_values(tokenizer: Any) -> None:
    own = tokenizer_of("qwen2_5", tokenizer)
    assert "im_end" not in loss_text({"where": "a <|im_end|> b"}, "untrained", own).removesuffix("<|im_end|>")
    assert "im_end" in loss_text({"where": "a <|im_end|> b"}, "only", own)


def test_sampled_tokens_are_left_for_those_of_the_template(tokenizer: Any) -> None:
    own = tokenizer_of("qwen2_5", tokenizer)
    plain = encode(conversation(VALUES, "trained"), own)
    here = np.flatnonzero(plain.mask & (plain.messages == 2))
    stored = RowTokens(
        input_ids=plain.input_ids[: here[-1] + 1].tolist(),
        turns=[SampledTurn(message=2, start=int(here[0]), end=int(here[-1]) + 1)],
    )
    for loss, is_stored in (("trained", True), ("untrained", False)):
        parts = encode_row(msgspec.structs.replace(conversation(VALUES, loss), tokens=[stored]), own)
        assert any(each.stored for _, each in parts) is is_stored


def test_a_row_of_which_nothing_is_left_is_dropped(tokenizer: Any) -> None:
    own = tokenizer_of("qwen2_5", tokenizer)
    with pytest.raises(RowError, match="no text that carries loss") as caught:
        encode_row(row([user("Go."), call({"where": ""}, "only")], tools=TOOLS), own)
    assert caught.value.reason == "no_loss"


def test_a_text_of_which_nothing_is_left_is_no_example(tokenizer: Any) -> None:
    own = tokenizer_of("qwen3", tokenizer)
    empty = call({"where": ""}, "only", reasoning_content="so " * 200)
    full = call({"where": "box"}, "only", reasoning_content="so")
    made = row([user("Go."), empty, answered("a key"), user("Again."), full], tools=TOOLS)
    silent, trained = [encoded for _, encoded in encode_row(made, own)]
    assert (silent.loss_tokens, len(silent) > len(trained)) == (0, True)
    # Its length does not count, either.
    for long_rows, max_length in (("window", len(silent)), ("drop", len(trained))):
        encoded = sequences(made, own, long_rows, max_length)
        (example,) = encoded.examples
        assert "box" in own.decode(example.labels[example.mask])
        assert (counts_of(made, encoded).used, counts_of(made, encoded).written) == (1, 1)


def test_a_template_that_shows_a_value_twice_or_never_is_refused(tokenizer: Any) -> None:
    own = tokenizer_of("tiny", tokenizer)
    shown = "{{ call.function.arguments | tojson }}"
    for instead in (f"{shown}{shown}", "{{ call.function.arguments.keys() | list }}"):
        own.chat_template = tokenizer.chat_template.replace(shown, instead)
        with pytest.raises(TemplateError, match="does not show the argument 'where'"):
            ranges({"where": "box"}, own)
