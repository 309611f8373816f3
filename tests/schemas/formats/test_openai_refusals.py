"""OpenAI records that cannot be read: each has a reason of one word and a detail of one line."""

from __future__ import annotations

import re

import pytest

from agentmill.schemas.format import FormatError, Origin
from agentmill.schemas.formats.llamafactory import LlamaFactory
from agentmill.schemas.formats.openai import OpenAi


@pytest.mark.parametrize("reader", [OpenAi, LlamaFactory])
@pytest.mark.parametrize(
    ("raw", "held"),
    [
        (
            b'{"id": 1, "conversations": []}',
            "the record has 'id', 'conversations'; format sharegpt reads 'conversations'",
        ),
        (b'{"prompt": "x", "completion": "y"}', "the record has 'prompt', 'completion'; format trl reads 'prompt'"),
        (b'{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1, "h": 1, "i": 1}', "'g', 'h', …"),
        (b"{}", "the record has no field"),
    ],
)
def test_a_record_of_another_format_is_named(reader: type[OpenAi | LlamaFactory], raw: bytes, held: str) -> None:
    with pytest.raises(FormatError) as caught:
        reader().read(raw, Origin("demo"))
    assert caught.value.reason == "invalid"
    assert re.match(r"format (openai|llamafactory) expects 'messages'; the record has ", caught.value.detail)
    assert caught.value.detail.endswith(held)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "blank"),
        (b'{"messages": [{"role": "user", "content": "cut', "invalid_json"),
        (b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', "invalid_json"),
        (b'{"messages": [{"role": "user", "content": "\\udc00"}]}', "invalid_json"),
        (b'{"messages": [], "reward": NaN}', "invalid_json"),
        (b'{"messages": null}', "invalid"),
        (b'{"messages": "[{"}', "invalid"),
        (b'{"messages": ["x"]}', "invalid"),
        (b'{"messages": [{"role": "user", "content": 3}]}', "invalid"),
        (b'{"messages": [{"role": "user", "content": "x", "name": 3}]}', "invalid"),
        (b'{"messages": [{"role": "tool", "content": "x", "tool_call_id": 3}]}', "invalid"),
        (b'{"messages": [{"content": "x"}]}', "unknown_role"),
        (b'{"messages": [{"role": "oracle", "content": "x"}]}', "unknown_role"),
        (b'{"messages": [{"role": ["user"], "content": "x"}]}', "unknown_role"),
        (b'{"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}', "unknown_part"),
        (
            b'{"messages": [{"role": "assistant", "content": [{"type": "image_url", "image_url": "x"}]}]}',
            "unknown_part",
        ),
        (b'{"messages": [{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]}]}', "unknown_call"),
        (b'{"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": null}}]}]}', "unknown_call"),
        (b'{"messages": [{"role": "assistant", "tool_calls": {"x": 1}}]}', "invalid"),
    ],
)
def test_what_cannot_be_read_has_a_reason(raw: bytes, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        OpenAi().read(raw, Origin("demo"))
    assert caught.value.reason == reason
    assert "\n" not in caught.value.detail
