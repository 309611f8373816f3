"""ADP records that cannot be read: each has a reason of one word and a detail of one line."""

from __future__ import annotations

import pickle

import pytest

from agentmill.schemas.format import FormatError, Origin
from agentmill.schemas.formats.adp.format import Adp

ORIGIN = Origin("demo")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "blank"),
        (b" \r\n", "blank"),
        (b'{"id": "i", "content": [', "invalid_json"),
        (b'{"id": "\\ud800", "content": []}', "invalid_json"),
        (b'{"id": NaN, "content": []}', "invalid_json"),
        (b'{"id": "\xff", "content": []}', "invalid_json"),
        (b"[]", "not_an_object"),
        (b"null", "not_an_object"),
        (b'{"id": "i"}', "invalid"),
        (b'{"id": 5, "content": []}', "invalid"),
        (b'{"id": "i", "content": null}', "invalid"),
        (b'{"id": "i", "content": [], "details": []}', "invalid"),
        (b'{"id": "i", "content": [null]}', "unknown_class"),
        (b'{"id": "i", "content": [{"class_": "thought", "content": "x"}]}', "unknown_class"),
        (b'{"id": "i", "content": [{"class_": "message_action", "content": null}]}', "invalid"),
        (b'{"id": "i", "content": [{"class_": "api_action", "function": "f", "kwargs": [1]}]}', "invalid"),
        (b'{"id": "i", "content": [{"class_": "text_observation", "content": "x", "source": "tool"}]}', "invalid"),
        (b'{"id": "i", "content": [], "schema_version": "1.6.0"}', "unknown_version"),
        (b'{"id": "i", "content": [], "schema_version": "2.0.0"}', "unknown_version"),
        (b'{"id": "i", "content": [], "schema_version": 1}', "unknown_version"),
    ],
)
def test_bad_records_have_a_reason(text: bytes, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        Adp().read(text, ORIGIN)
    assert caught.value.reason == reason
    assert "\n" not in caught.value.detail


def test_a_byte_order_mark_and_an_empty_run_are_no_mistakes() -> None:
    assert Adp().read(b'\xef\xbb\xbf{"id": "i", "content": []}', ORIGIN).trajectory.content == []


def test_the_error_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(FormatError("blank", "the record is empty")))
    assert (error.reason, error.detail, str(error)) == ("blank", "the record is empty", "blank: the record is empty")
