"""Beginnings that are taken out of the rendering of the whole are those that the template renders."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import pytest

from agentmill.schemas.chat import to_template
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.rows import Message, MessageCall
from agentmill.schemas.templates.prefix_texts import NotAppendOnly, PrefixTexts, Render, TemplateError
from agentmill.schemas.templates.renderer import template_renderer
from agentmill.schemas.templates.rendering import ChatTemplate, Rendered, texts
from tests.schemas.chat_templates import CHATML

TOOLS = [{"type": "function", "function": {"name": "look", "description": "look", "parameters": {"type": "object"}}}]
TRL_TEMPLATES = (
    *("cohere2", "deepseekv3", "gemma3", "gemma4", "glm4moe", "gptoss", "lfm2", "llama3_1", "nemotron_3_nano", "phi3"),
    *("qwen2_5", "qwen3", "qwen3_5_think", "qwen3_instruct_2507"),
)


class Counted:
    """A template that counts the characters it renders."""

    def __init__(self, source: str) -> None:
        variables = {"bos_token": "<s>", "eos_token": "</s>"}
        self._render = template_renderer(lambda _tools: source, lambda: variables)
        self.characters = 0

    def __call__(self, messages: list[JsonObject], tools: list[JsonObject] | None, prompt: bool) -> str:
        text = self._render(messages, tools, prompt)
        self.characters += len(text)
        return text


def shipped(name: str) -> str:
    file = files("trl") / "chat_templates" / f"{name}.jinja"
    if not file.is_file():
        pytest.skip(f"TRL ships no {name}")
    return file.read_text(encoding="utf-8")


def talk(turns: int, reasoning: Sequence[int] = (), tools: bool = False) -> list[Message]:
    """A system prompt, a question, and turns with what they led to: a result of a call, or words of the user."""
    messages = [Message(role="system", content="Act."), Message(role="user", content="Move the box.")]
    for turn in range(turns):
        said: dict[str, Any] = {"train": True, "reasoning_content": f"so {turn}" if turn in reasoning else None}
        if tools:
            call = MessageCall(name="look", arguments=f'{{"at":{turn}}}', id=f"call{turn:05}")
            messages.append(Message(role="assistant", content=f"look {turn}", tool_calls=[call], **said))
            messages.append(Message(role="tool", content=f"a key {turn}", tool_call_id=call.id, name="look"))
        else:
            messages.append(Message(role="assistant", content=f"push {turn}", **said))
            messages.append(Message(role="user", content=f"At {turn}."))
    return [*messages, Message(role="assistant", content="done", train=True)]


def split(messages: Sequence[Message], tools: Any, render: Render, derives: bool) -> list[Rendered] | str:
    """The texts of a conversation, or why there are none."""
    prefixes = PrefixTexts(to_template(messages), tools, render)
    prefixes.derives = derives
    try:
        return texts(messages, tools, ChatTemplate(render), prefixes)
    except (TemplateError, ValueError) as error:
        return str(error)


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("reasoning", [(), (0, 1, 2, 3, 4, 5, 6, 7, 8), (5,)])
@pytest.mark.parametrize("name", TRL_TEMPLATES)
def test_the_texts_are_those_of_separate_renderings(name: str, reasoning: Sequence[int], tools: bool) -> None:
    render, messages = Counted(shipped(name)), talk(9, reasoning, tools)
    functions = TOOLS if tools else None
    assert split(messages, functions, render, True) == split(messages, functions, render, False)
    plain = to_template(messages)
    prefixes = PrefixTexts(plain, functions, render)
    for count in range(1, len(messages) + 1):
        for prompt in (False, True):
            try:
                expected = render(plain[:count], functions, prompt)
            except TemplateError:
                with pytest.raises(TemplateError):
                    prefixes.retried(lambda: prefixes.text(count, prompt))  # noqa: B023
                continue
            assert prefixes.retried(lambda: prefixes.text(count, prompt)) == expected  # noqa: B023


@pytest.mark.parametrize(
    ("name", "tools"), [("qwen2_5", False), ("qwen2_5", True), ("llama3_1", False), ("qwen3", True), (None, False)]
)
def test_beginnings_cost_little_more_than_the_whole(name: str | None, tools: bool) -> None:
    render, messages = Counted(CHATML if name is None else shipped(name)), talk(200, tools=tools)
    plain, functions = to_template(messages), TOOLS if tools else None
    whole = len(render(plain, functions, False))
    render.characters = 0
    prefixes = PrefixTexts(plain, functions, render)
    (rendered,) = texts(messages, functions, ChatTemplate(render), prefixes)
    assert prefixes.derives
    assert rendered.verbatim
    assert render.characters < 3.5 * whole


def test_a_template_that_changes_the_past_is_found_out() -> None:
    source = (
        "{% for message in messages %}[{{ message.role }}] "
        "{{ message.content if loop.last or message.role != 'assistant' else '…' }}\n"
        "{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
    )
    plain = to_template(talk(3))
    prefixes = PrefixTexts(plain, None, Counted(source))
    with pytest.raises(NotAppendOnly):
        prefixes.text(3, False)
    assert not prefixes.derives
    assert prefixes.text(3, False) == "[system] Act.\n[user] Move the box.\n[assistant] push 0\n"


def test_what_differs_late_is_found_at_the_eighth_of_its_kind() -> None:
    """The texts that were taken before are dropped."""
    source = (
        "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}{{ '<a>' if messages | length < 15 else '<b>' }}{% endif %}"
    )
    plain, render = to_template(talk(20)), Counted(source)
    prefixes = PrefixTexts(plain, None, render)
    asked = range(2, 40, 2)
    found = prefixes.retried(lambda: [prefixes.text(count, True) for count in asked])
    assert found == [render(plain[:count], None, True) for count in asked]
    assert not prefixes.derives


def test_a_render_that_does_not_say_where_messages_start_is_asked_each_time() -> None:
    asked: list[int] = []

    def render(messages: list[JsonObject], _tools: Any, prompt: bool) -> str:
        asked.append(len(messages))
        return "".join(str(each["content"]) for each in messages) + ("<" if prompt else "")

    prefixes = PrefixTexts(to_template(talk(3)), None, render)
    assert [prefixes.text(count, True)[-1] for count in (2, 4, 2)] == ["<"] * 3
    assert asked.count(2) == asked.count(4) == 1


def test_a_refusal_is_remembered() -> None:
    source = (
        "{% for message in messages %}{{ message.content }}{% endfor %}"
        "{% if messages[-1].role == 'user' and not add_generation_prompt %}{{ raise_exception('no') }}{% endif %}"
    )
    prefixes = PrefixTexts(to_template(talk(2)), None, Counted(source))
    for _ in range(2):
        with pytest.raises(TemplateError, match="no"):
            prefixes.retried(lambda: prefixes.text(2, False))
