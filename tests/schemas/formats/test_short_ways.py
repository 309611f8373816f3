"""Short ways of reading what most records are: they find what the long ones find, which read everything."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentmill.schemas.dialects.function_xml import FunctionXml
from agentmill.schemas.format import Decoded, FormatError, Origin, Read
from agentmill.schemas.formats.sharegpt.format import ShareGpt
from agentmill.schemas.records.trajectory import ApiAction
from tests.schemas.formats.test_fuzz import TEXTS
from tests.schemas.records import texts

FORMATS = [ShareGpt(), *(ShareGpt(dialect=name) for name in ("react", "function_xml", "hermes"))]
TURNS = st.fixed_dictionaries(
    {
        "from": st.sampled_from(("human", "gpt", "human", "gpt", "user", "system", "observation", None)),
        "value": st.one_of(st.sampled_from((*TEXTS.values(), "<think>\na\n</think>\n\nb", None)), texts),
    },
    optional={"loss": st.sampled_from((None, True, False, 1, "no"))},
)
TAGS = (
    *("<function=f>", "<function=", "\n", " ", ">", "x", "Look.\n", "<tool_call>", "</tool_call>", "</function>"),
    *("<parameter=a>", "<parameter=b>", "</parameter>", "</parameter>\n<parameter=a>", "</parameter>\n</function>"),
    *("<function=f>\n<parameter=a>", "</parameter>\n<parameter=b>\n", "\n</parameter>\n</function>"),
)


def found(format_: ShareGpt, document: Any) -> Read | tuple[str, str]:
    """What is read, or why nothing is."""
    try:
        return format_.read(Decoded(b"the same", document), Origin("demo"))
    except FormatError as error:
        return error.reason, error.detail


def the_long_way(document: Any) -> Any:
    """The record with a null in each turn, which says nothing, but which only the long way reads."""
    turns = [{**turn, "other": None} if isinstance(turn, dict) else turn for turn in document["conversations"]]
    return {**document, "conversations": turns}


@pytest.mark.parametrize("format_", FORMATS)
@given(turns=st.lists(TURNS, max_size=6))
def test_turns_that_are_texts(format_: ShareGpt, turns: list[Any]) -> None:
    document = {"conversations": turns, "id": 1}
    assert found(format_, document) == found(format_, the_long_way(document))


def test_turns_of_samples() -> None:
    root = os.environ.get("AGENTMILL_SAMPLES")
    if not root:
        pytest.skip("AGENTMILL_SAMPLES names no folder of sample records")
    lines = [line for path in Path(root).glob("**/*.jsonl") for line in path.read_bytes().splitlines()]
    rows = [msgspec.json.decode(line) for line in lines if b'"conversations"' in line]
    rows = [row for row in rows if isinstance(row.get("conversations"), list)]
    assert len(rows) > 20
    for row in rows:
        assert all(found(format_, row) == found(format_, the_long_way(row)) for format_ in FORMATS)


@given(st.lists(st.sampled_from(TAGS), max_size=12).map("".join))
@example("<function=f>\n<parameter=a>x\nx</parameter>\n<parameter=b>\nx\n</parameter>\n</function>")
@example("<function=f>\n<parameter=a>\n</parameter>\n<parameter=b>\n\n\n</parameter>\n</function>")
def test_single_calls(text: str) -> None:
    dialect = FunctionXml()
    spoken, longer = dialect.read(text), dialect.read(f"{text} ")
    assert (spoken is None) == (longer is None)
    if spoken is not None and longer is not None and spoken.plainest is not None:
        assert spoken.actions == longer.actions
        assert longer.plainest is None
        assert (dialect.compose(spoken.actions) == text) == spoken.plainest


@pytest.mark.parametrize("description", [None, "I look.\n\nHere:"])
@pytest.mark.parametrize("value", ["", "01", "\n", "\n\n", "a\nb", "\na\n", "<parameter=b>", "</function>", "a > b"])
def test_what_is_composed_is_known_to_be_plain(description: str | None, value: str) -> None:
    action = ApiAction(function="f", kwargs={"b": "x", "a": value}, description=description)
    dialect = FunctionXml()
    spoken = dialect.read(dialect.compose([action]))
    assert spoken is not None
    assert (spoken.actions, spoken.plainest) == ([action], True)
