"""Whether a text holds the parts of an assistant message."""

from __future__ import annotations

import pytest

from agentmill.schemas.records.rows import Message, MessageCall
from agentmill.schemas.templates.message_parts import (
    after_content,
    check_arguments,
    marked_message,
    missing_marked_part,
    missing_part,
    reasoning_and_content,
    with_reasoning_apart,
)
from agentmill.schemas.templates.prefix_texts import TemplateError


def message(content: str = "", reasoning: str | None = None, arguments: str | None = None) -> Message:
    calls = [MessageCall(name="look", arguments=arguments, id="call00001")] if arguments is not None else []
    return Message(role="assistant", content=content, reasoning_content=reasoning, tool_calls=calls, train=True)


def test_reasoning_may_be_written_at_the_beginning_of_the_content() -> None:
    assert reasoning_and_content(message("<think>\nhm\n</think>\n\ngo")) == ("hm", "go")
    assert reasoning_and_content(message(" go ", " hm ")) == ("hm", "go")
    assert with_reasoning_apart(message("<think>\nhm\n</think>\n\ngo")) == message("go", "hm")
    for other in (message("go"), message("<think></think>go"), message("<think>a</think>b", "hm")):
        assert with_reasoning_apart(other) == other
    # Both are given, so that what looks like reasoning is content.
    assert reasoning_and_content(message("<think>a</think>b", "hm")) == ("hm", "<think>a</think>b")


def test_the_first_part_that_a_text_lacks() -> None:
    whole = message("go", "hm", "{}")
    assert missing_part(whole, "hm go look") is None
    assert missing_part(whole, "go look") == "hm"
    assert missing_part(whole, "hm go") == "look"
    assert missing_part(whole, "hm GO look") == "go"
    assert missing_part(whole, "hm GO look", str.upper) is None


def test_a_part_that_is_shown_by_chance_is_missing() -> None:
    written = message("go", "go on")
    marked = marked_message(written)
    shown = f"Do go. {marked.reasoning_content}"
    assert missing_part(written, shown) is None
    assert missing_marked_part(written, marked, shown) == "go"
    assert missing_marked_part(written, marked, f"{shown}{marked.content}") is None


def test_marks_of_reasoning_within_the_content_and_of_calls() -> None:
    written = message("<think>hm</think>go", arguments="{}")
    marked = marked_message(written, "1_")
    assert missing_marked_part(written, marked, f"{marked.content} {marked.tool_calls[0].name}") is None
    assert str(marked.content).startswith("<think>mark_1_thought_hm_")
    assert missing_marked_part(written, marked, f"{marked.content} look") == "look"


def test_what_comes_after_the_content() -> None:
    assert after_content(message("go"), "<think></think>go <end>\n") == "<end>"
    assert after_content(message("go"), "go\n") == ""


@pytest.mark.parametrize("arguments", ["[1]", "{", '"x"'])
def test_arguments_that_are_no_object_are_shown_by_no_template(arguments: str) -> None:
    with pytest.raises(TemplateError, match="arguments of 'look' in assistant message 3 are no JSON object"):
        check_arguments(message(arguments=arguments), 3)
    check_arguments(message(arguments="{}"), 3)
