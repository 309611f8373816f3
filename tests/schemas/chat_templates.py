"""Chat templates at work: small ones of our own, and the real ones that TRL ships."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agentmill.schemas.templates.rendering import Render

CHATML = """
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' + message.content }}
{%- for call in message.tool_calls or [] %}{{- '<call>' + call.function | tojson + '</call>' }}{% endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}
"""


def chatml() -> Render:
    """ChatML without any peculiarity: a line feed after each end of turn."""
    return render(CHATML)


def render(source: str) -> Render:
    """A template text as a function, with what ``transformers`` gives to templates."""

    def fail(message: str) -> NoReturn:
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json()
    environment.globals |= {"raise_exception": fail, "bos_token": "<s>", "eos_token": "</s>"}
    template = environment.from_string(source)

    def run(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, add_generation_prompt: bool) -> str:
        return template.render(messages=messages, tools=tools, add_generation_prompt=add_generation_prompt)

    return run


def real(name: str) -> Render:
    """A template that TRL ships; the test is skipped where TRL is not installed."""
    found = importlib.util.find_spec("trl")
    if found is None or found.origin is None:
        pytest.skip("TRL, which ships chat templates, is not installed")
    return render((Path(found.origin).parent / "chat_templates" / f"{name}.jinja").read_text())


def _to_json() -> Callable[..., str]:
    return lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
