"""Chat templates that models come with, and what each makes a model say for a message, written down by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import msgspec
from tokenizers import Tokenizer

from agentmill.schemas.records.rows import Message
from tests.model import TEMPLATE

SPECIAL = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
ADDED = ["<tool_call>", "</tool_call>", "<think>", "</think>"]


class TemplateCase(msgspec.Struct, frozen=True):
    """A chat template and its way to write a turn, up to and with the ``end``; ``None``: it cannot say that.

    ``reasoning``, ``parallel`` and ``beside``: it can tell hidden reasoning, several calls at once, and words beside a
    call. ``rewrites``: it shows earlier turns otherwise than when they were said.
    """

    template: str
    says: Callable[[Message], str | None]
    end: str = "<|im_end|>"
    reasoning: bool = False
    parallel: bool = True
    beside: bool = True
    rewrites: bool = False

    def tokenizer(self, plain: Any) -> Any:
        """A copy of a tokenizer with this template and its special tokens."""
        own = Tokenizer.from_str(plain.backend_tokenizer.to_str())
        copy = type(plain)(tokenizer_object=own, eos_token="<|im_end|>", pad_token="<|endoftext|>")
        copy.add_special_tokens({"bos_token": SPECIAL[0], "additional_special_tokens": SPECIAL[1:]})
        copy.add_tokens(ADDED)
        copy.chat_template = self.template
        return copy


def shipped(name: str) -> str:
    """A template that TRL ships."""
    return (files("trl") / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


def _tiny(message: Message) -> str | None:
    if (message.reasoning_content or "").strip():
        return None
    calls = _calls(message, '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>')
    return None if calls is None else (message.content or "") + "".join(calls) + "<|im_end|>"


def _qwen2_5(message: Message) -> str | None:
    if (message.reasoning_content or "").strip():
        return None
    return _qwen(message, message.content or "")


def _qwen3(message: Message) -> str | None:
    told = _qwen(message, (message.content or "").lstrip("\n"))
    return None if told is None else f"<think>\n{(message.reasoning_content or '').strip(chr(10))}\n</think>\n\n{told}"


def _qwen(message: Message, content: str) -> str | None:
    calls = _calls(message, '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>')
    if calls is None:
        return None
    gap = "\n" if message.content and calls else ""
    return content + gap + "\n".join(calls) + "<|im_end|>"


def _llama(message: Message) -> str | None:
    calls = _calls(message, '{{"name": "{}", "parameters": {}}}')
    content = (message.content or "").strip()
    if calls is None or len(calls) > 1 or (calls and content) or (message.reasoning_content or "").strip():
        return None
    return (calls[0] if calls else content) + "<|eot_id|>"


def _calls(message: Message, form: str) -> list[str] | None:
    """The calls in a template's form; ``None`` where arguments are no JSON object."""
    values = []
    for call in message.tool_calls:
        try:
            values.append(json.loads(call.arguments))
        except ValueError:
            return None
    if not all(isinstance(value, dict) for value in values):
        return None
    texts = [json.dumps(value, ensure_ascii=False) for value in values]
    return [form.format(call.name, text) for call, text in zip(message.tool_calls, texts, strict=True)]


TEMPLATE_CASES = {
    "tiny": lambda: TemplateCase(TEMPLATE, _tiny),
    "qwen2_5": lambda: TemplateCase(shipped("qwen2_5"), _qwen2_5),
    "qwen3_instruct_2507": lambda: TemplateCase(shipped("qwen3_instruct_2507"), _qwen2_5),
    "qwen3": lambda: TemplateCase(shipped("qwen3"), _qwen3, reasoning=True, rewrites=True),
    "llama3_1": lambda: TemplateCase(shipped("llama3_1"), _llama, "<|eot_id|>", parallel=False, beside=False),
    "llama3_2": lambda: TemplateCase(shipped("llama3_2"), _llama, "<|eot_id|>", parallel=False, beside=False),
}
"""By the names that TRL has for them; ``qwen2_5`` is also that of the bundled model."""
