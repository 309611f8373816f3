"""What carries loss is, to the letter, what the view says: in every view, under real templates, for any text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentmill.schemas.chat import to_template
from agentmill.schemas.models import BUNDLED
from agentmill.schemas.records.rows import Message, PreferenceRow, SftRow, UnpairedRow
from agentmill.schemas.templates.rendering import TemplateError
from agentmill.schemas.views import FAMILY_VIEWS, PAIR_VIEWS, VIEWS
from agentmill.trainers.chat_template import renderer
from agentmill.trainers.mask_test import check_roles, check_texts, count_by_role
from agentmill.trainers.preference_data import encode_labelled, encode_pair
from agentmill.trainers.sft import sequences
from agentmill.trainers.tokenization import Encoded, RowError, encode
from tests.builders import agent_message, called, instruction, seen, tool, trajectory
from tests.trainers.sampled_runs import CASES, Row, families, rows_of
from tests.trainers.template_families import TEMPLATE_CASES, TemplateCase

pytestmark = pytest.mark.slow

LONG = 10**9


def conversations(row: Row) -> list[list[Message]]:
    if isinstance(row, SftRow):
        return [row.messages]
    if isinstance(row, PreferenceRow):
        return [[*row.prompt, *row.chosen], [*row.prompt, *row.rejected]]
    return [[*row.prompt, *row.completion]]


def encoded(row: Row, tokenizer: Any) -> list[tuple[Sequence[Message], Encoded]] | str:
    """The conversations of a row as trainers encode them, or the reason why they drop it."""
    try:
        if isinstance(row, SftRow):
            return sequences(row, tokenizer, "drop", LONG).whole
        if isinstance(row, PreferenceRow):
            return encode_pair(row, tokenizer, LONG).whole
        return encode_labelled(row, tokenizer, LONG).whole
    except RowError as error:
        return error.reason


def spoken(
    messages: Sequence[Message], tools: str | None, case_of_template: TemplateCase, tokenizer: Any, split: bool
) -> list[str] | None:
    """What is to carry loss of each message; ``None`` where the model would not come to say it so.

    With ``split`` a message may be trained after its own prompt only, otherwise the whole conversation shows it so.
    """
    render = renderer(tokenizer)
    functions = msgspec.json.decode(tools) if tools else None
    plain = to_template(messages)
    texts = []
    try:
        whole = render(plain, functions, False)
        for index, message in enumerate(messages):
            text = case_of_template.says(message) if message.train else ""
            shown = render(plain[: index + 1], functions, False) if split and text else whole
            if text is None or (text and not shown.startswith(render(plain[:index], functions, True) + text)):
                return None
            texts.append(text)
    except TemplateError:
        return None
    return texts


def loss_of(sequence: Encoded, tokenizer: Any) -> list[str]:
    """The decoded loss of each message."""
    places = [sequence.mask & (sequence.messages == index) for index in range(len(sequence.roles))]
    return [tokenizer.decode(sequence.labels[here].tolist()) for here in places]


def check(row: Row, case_of_template: TemplateCase, tokenizer: Any) -> bool:
    """The promises of a mask; whether the row can be trained."""
    split = isinstance(row, SftRow)
    expected = [spoken(messages, row.tools, case_of_template, tokenizer, split) for messages in conversations(row)]
    whole = encoded(row, tokenizer)
    if isinstance(row, PreferenceRow) and whole in ("same", "prefix"):
        return True
    if isinstance(whole, str):
        assert (whole, None in expected) == ("template", True)
        return False
    found = [loss_of(sequence, tokenizer) for _, sequence in whole]
    if split:
        # Each message has its loss in one of the sequences.
        found = [["".join(parts) for parts in zip_longest(*found, fillvalue="")]]
    assert found == expected
    check_roles(count_by_role([sequence for _, sequence in whole]))
    assert len(check_texts(whole, tokenizer)) == sum(each.train for messages, _ in whole for each in messages)
    return True


def test_every_view_with_loss_and_the_bundled_template_are_covered() -> None:
    tables = (VIEWS, PAIR_VIEWS, FAMILY_VIEWS)
    with_loss = {
        name for each in tables for name in each if each.load(name).record in (SftRow, PreferenceRow, UnpairedRow)
    }
    assert {name for name, _ in CASES} == with_loss
    assert {f"{name}.jinja" for name in TEMPLATE_CASES} >= {model.chat_template for model in BUNDLED.values()}


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", TEMPLATE_CASES)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_loss_is_what_the_view_says(name: str, case: tuple[str, Any], speakers: Any, data: st.DataObject) -> None:
    case_of_template, tokenizer = speakers[name]
    plain = data.draw(st.booleans())
    for row in rows_of(*case, data.draw(families(case_of_template, plain))):
        trained = check(row, case_of_template, tokenizer)
        ends = [[message.train for message in messages] for messages in conversations(row)]
        if plain and (
            isinstance(row, SftRow)
            or not case_of_template.rewrites
            or all(sum(each) == 1 and each[-1] for each in ends)
        ):
            assert trained


def run(*turns: Sequence[Any], **fields: Any) -> list[Any]:
    return [trajectory(content=[instruction(), *(item for turn in turns for item in turn)], **fields)]


THINKS = run(
    [agent_message("one", 1, reasoning_content="first this"), seen("ok", 1)],
    [agent_message("two", 2, reasoning_content="then that")],
)
TWO_CALLS = run(
    [called("look", 1, "call00100", where="box"), called("look", 1, "call00101", where="bed")],
    [seen("a", 1, tool_call_id="call00100"), seen("b", 1, tool_call_id="call00101"), agent_message("done", 2)],
    tools=[tool("look")],
)
THOUGHT = run(
    [
        msgspec.structs.replace(called("look", 1), description="I look."),
        seen("a", 1, tool_call_id="call00100"),
    ],
    tools=[tool("look")],
)
CHANCE = run([agent_message("I see a door.", 1, reasoning_content="a door")])
LETTER = run([agent_message("", 1, reasoning_content="d")])
CLOSES = run([agent_message("</think>", 1)])
BROKEN = run([msgspec.structs.replace(called("look", 1), kwargs={}, raw_arguments='{"a": ')], tools=[tool("look")])


@pytest.mark.parametrize(
    ("name", "runs", "whole", "steps"),
    [
        ("qwen3", THINKS, [True], [True, True]),
        ("qwen2_5", THINKS, [False], [False, False]),
        ("qwen2_5", CHANCE, [False], [False]),
        ("qwen2_5", LETTER, [False], [False]),
        ("qwen3", LETTER, [True], [True]),
        ("qwen2_5", CLOSES, [True], [True]),
        ("qwen3", CLOSES, [False], [False]),
        ("llama3_2", THINKS, [False], [False, False]),
        ("qwen3", TWO_CALLS, [True], [True, True]),
        ("qwen2_5", TWO_CALLS, [True], [True, True]),
        ("llama3_1", TWO_CALLS, [False], [False, False]),
        ("qwen3", THOUGHT, [True], [True]),
        ("llama3_2", THOUGHT, [False], [False]),
        ("qwen2_5", BROKEN, [False], [False]),
        ("qwen3", BROKEN, [False], [False]),
    ],
)
def test_what_a_template_cannot_show_as_it_was_said_is_refused(
    name: str, runs: list[Any], whole: list[bool], steps: list[bool], speakers: Any
) -> None:
    case_of_template, tokenizer = speakers[name]
    assert [check(row, case_of_template, tokenizer) for row in rows_of("sft", {}, runs)] == whole
    assert [check(row, case_of_template, tokenizer) for row in rows_of("sft", {"rows": "step"}, runs)] == steps


def test_steps_of_a_template_that_rewrites_history_train_each_turn_as_it_was_said(speakers: Any) -> None:
    case_of_template, tokenizer = speakers["qwen3"]
    rows = rows_of("sft", {"rows": "step"}, THINKS)
    texts = [loss_of(encode(row, tokenizer), tokenizer)[-1] for row in rows]
    assert texts == [
        "<think>\nfirst this\n</think>\n\none<|im_end|>",
        "<think>\nthen that\n</think>\n\ntwo<|im_end|>",
    ]
    assert case_of_template.rewrites
