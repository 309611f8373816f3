"""Segments: what is trained is exactly what a model would have generated, under real chat templates."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmill.schemas.chat import to_functions, to_messages, to_template
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.rows import Message
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.templates.rendering import Render, Segment, TemplateError, segments
from tests.builders import agent_message, called, instruction, seen, tool_trajectory, trajectory
from tests.schemas.chat_templates import chatml, real, render


def conversation(run: Trajectory, trained: set[int] | None = None) -> list[Message]:
    """The messages of a run; all assistant messages are trained, or those at the given places."""
    return [
        msgspec.structs.replace(message, train=message.role == "assistant" and (trained is None or index in trained))
        for index, message in enumerate(to_messages(run.system_prompt, run.content))
    ]


def tools_of(run: Trajectory) -> list[JsonObject] | None:
    return to_functions(run.tools) or None


def check(messages: list[Message], tools: list[JsonObject] | None, template: Render) -> list[Segment]:
    """The promises of ``segments``, whatever the template."""
    found = segments(messages, tools, template)
    plain = to_template(messages)
    assert "".join(segment.text for segment in found) == template(plain, tools, False)
    trained = [index for index, message in enumerate(messages) if message.train]
    places = [place for place, segment in enumerate(found) if segment.train]
    assert len(places) == len(trained)
    for index, place in zip(trained, places, strict=True):
        before = "".join(segment.text for segment in found[:place])
        assert before == template(plain[:index], tools, True)
    return found


def test_loss_covers_the_turn_and_its_end_and_nothing_after() -> None:
    assert check(conversation(trajectory()), None, chatml()) == [
        Segment(
            "<|im_start|>system\nAct by commands.<|im_end|>\n"
            "<|im_start|>user\nPut the ball into the box.\nYou are at home.<|im_end|>\n<|im_start|>assistant\n",
            False,
        ),
        Segment("fly to box<|im_end|>", True),
        Segment("\n<|im_start|>user\nYou cannot fly.<|im_end|>\n<|im_start|>assistant\n", False),
        Segment("put ball into box<|im_end|>", True),
        Segment("\n<|im_start|>user\nDone.<|im_end|>\n", False),
    ]


def test_untrained_turns_are_context_and_weights_are_kept() -> None:
    messages = conversation(trajectory(), trained={4})
    messages[4] = msgspec.structs.replace(messages[4], weight=0.5)
    found = check(messages, None, chatml())
    assert [(segment.train, segment.weight) for segment in found] == [(False, 1.0), (True, 0.5), (False, 1.0)]
    assert "fly to box<|im_end|>" in found[0].text


REAL = ["qwen2_5", "qwen3_instruct_2507", "qwen3_vl", "lfm2_v2", "gemma4_v5"]
REAL_TEXT = [*REAL, "llama3", "llama3_2", "gemma3", "cohere2"]


@pytest.mark.parametrize("name", REAL_TEXT)
def test_real_templates_render_a_text_episode(name: str) -> None:
    found = check(conversation(trajectory()), None, real(name))
    first, second = (segment.text for segment in found if segment.train)
    assert first.startswith("fly to box<")
    assert second.startswith("put ball into box<")
    assert first.removeprefix("fly to box") == second.removeprefix("put ball into box")
    assert not any("cannot fly" in segment.text for segment in found if segment.train)


@pytest.mark.parametrize("name", REAL)
def test_real_templates_render_tool_calls_and_mask_their_results(name: str) -> None:
    run = tool_trajectory()
    found = check(conversation(run), tools_of(run), real(name))
    first, second = (segment.text for segment in found if segment.train)
    assert first.count("look") == 2
    assert "floor" in first
    assert second.startswith("On the floor.<")
    assert "a ball" not in first + second


@given(st.lists(st.text("ab <|im_end|>\n🙂", min_size=1).filter(lambda text: text.strip()), min_size=1, max_size=4))
def test_any_text_of_an_agent_is_trained_as_it_stands(texts: list[str]) -> None:
    content = [instruction()]
    for turn, text in enumerate(texts, 1):
        content += [agent_message(text, turn), seen("ok", turn)]  # type: ignore[list-item]
    found = check(conversation(trajectory(content=content)), None, chatml())
    assert [segment.text for segment in found if segment.train] == [f"{text}<|im_end|>" for text in texts]


@pytest.mark.parametrize("name", ["qwen3", "nemotron_3_nano"])
def test_templates_that_rewrite_history_are_refused_but_for_the_last_turn(name: str) -> None:
    run = trajectory(
        content=[
            instruction(),
            agent_message("one", 1, reasoning_content="r1"),
            seen("x", 1),
            agent_message("two", 2, reasoning_content="r2"),
        ]
    )
    with pytest.raises(TemplateError, match=r"assistant message 2, .* otherwise than at generation; train with"):
        segments(conversation(run), None, real(name))
    found = check(conversation(run, trained={4}), None, real(name))
    assert [segment.text.endswith("two<|im_end|>") for segment in found if segment.train] == [True]


@pytest.mark.parametrize("name", ["llama3", "qwen2_5_vl", "lfm2"])
def test_templates_that_drop_tool_calls_are_refused(name: str) -> None:
    run = tool_trajectory()
    with pytest.raises(TemplateError, match="does not show 'look' of assistant message 2"):
        segments(conversation(run), tools_of(run), real(name))


def test_templates_that_drop_reasoning_are_refused() -> None:
    run = trajectory(content=[instruction(), agent_message("one", 1, reasoning_content="because")])
    with pytest.raises(TemplateError, match="does not show 'because' of assistant message 2"):
        segments(conversation(run), None, real("qwen2_5"))


def test_templates_without_an_end_of_turn_are_refused() -> None:
    template = render("{% for m in messages %}{{ '<' + m.role + '>' + m.content + ' ' }}{% endfor %}<assistant>")
    with pytest.raises(TemplateError):
        segments(conversation(trajectory()), None, template)
    with pytest.raises(TemplateError, match="closes assistant message 2 with nothing"):
        segments(conversation(trajectory()), None, real("glm4moe"))


def test_the_end_of_turn_may_be_named_where_more_follows_it() -> None:
    with pytest.raises(TemplateError):
        segments(conversation(trajectory()), None, real("phi3"))
    found = segments(conversation(trajectory()), None, real("phi3"), end_of_turn="<|end|>")
    assert [segment.text for segment in found if segment.train] == ["fly to box<|end|>", "put ball into box<|end|>"]
    with pytest.raises(TemplateError, match=r"does not close an assistant message with '<\|eot\|>'"):
        segments(conversation(trajectory()), None, chatml(), end_of_turn="<|eot|>")


def test_only_assistant_messages_may_carry_loss() -> None:
    messages = [Message(role="tool", content="x", train=True)]
    with pytest.raises(ValueError, match="message 0 is of role 'tool': only assistant messages carry loss"):
        segments(messages, None, chatml())


def test_a_conversation_without_loss_is_one_segment() -> None:
    run = trajectory(content=[instruction(), called("f"), seen("x", 1)])
    (segment,) = check(conversation(run, trained=set()), None, chatml())
    assert not segment.train
