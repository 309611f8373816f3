"""OpenAI records that cannot be read: each has a reason of one word and a detail of one line."""

from __future__ import annotations

import pytest

from agentmill.schemas.format import FormatError, Origin
from agentmill.schemas.formats.openai import OpenAi


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
