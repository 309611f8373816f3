"""Preference rows written as pairs of a foreign format."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentmill.schemas.format import FormatError, Origin
from agentmill.schemas.formats.llamafactory import LlamaFactory
from agentmill.schemas.formats.pairs import PairFormat, side_of
from agentmill.schemas.formats.preference import row_pair, write_row
from agentmill.schemas.formats.sharegpt.format import ShareGpt
from agentmill.schemas.formats.trl import Trl
from agentmill.schemas.records.rows import Message, MessageCall, PreferenceRow
from agentmill.schemas.records.trajectory import ApiAction

TOOL = {"type": "function", "function": {"name": "move", "parameters": {"type": "object", "properties": {}}}}
PROMPT = [Message(role="system", content="Act."), Message(role="user", content="Go on.")]


def answer(content: str | None = None, **fields: Any) -> Message:
    return Message(role="assistant", content=content, train=True, **fields)


def row(chosen: list[Message], rejected: list[Message], **fields: Any) -> PreferenceRow:
    told = {"row_id": "r1", "view": "v", "view_parameters": {}, "chosen_id": "a", "rejected_id": "b"}
    return PreferenceRow(**{**told, "prompt": PROMPT, "chosen": chosen, "rejected": rejected, **fields})


def test_a_row_is_written_as_each_format_has_pairs() -> None:
    given = row([answer("Yes.")], [answer("No.")])
    assert write_row(given, ShareGpt()).document == {
        "conversations": [{"from": "system", "value": "Act."}, {"from": "human", "value": "Go on."}],
        "chosen": {"from": "gpt", "value": "Yes."},
        "rejected": {"from": "gpt", "value": "No."},
    }
    assert write_row(given, Trl()).document == {
        "prompt": [{"role": "system", "content": "Act."}, {"role": "user", "content": "Go on."}],
        "chosen": [{"role": "assistant", "content": "Yes."}],
        "rejected": [{"role": "assistant", "content": "No."}],
    }
    document = write_row(given, LlamaFactory()).document
    assert [[each["role"] for each in document[f"{side}_messages"]] for side in ("chosen", "rejected")] == [
        ["system", "user", "assistant"]
    ] * 2


@pytest.mark.parametrize("writer", [ShareGpt(), Trl(), LlamaFactory()])
def test_calls_results_thoughts_and_tools_come_back(writer: PairFormat) -> None:
    calls = [MessageCall(name="move", arguments='{"x": [1, 2]}', id="c1")]
    result = Message(role="tool", content="done", tool_call_id="c1")
    better = [answer("Well.", reasoning_content="Hm."), Message(role="user", content="So?"), answer(tool_calls=calls)]
    given = row([*better, result, answer("Yes.")], [answer("No.")], tools=json.dumps([TOOL]))
    back = writer.read(json.dumps(write_row(given, writer).document).encode(), Origin(""))
    (call,) = [item for item in back.trajectory.content if isinstance(item, ApiAction)]
    assert (call.function, call.kwargs) == ("move", {"x": [1, 2]})
    answers = [getattr(item, "content", None) for item in back.trajectory.content]
    assert answers == ["Go on.", "Well.", "So?", None, "done", "Yes."]
    assert [tool.name for tool in back.trajectory.tools] == ["move"]
    assert [getattr(item, "content", None) for item in back.others[0].content] == ["Go on.", "No."]
    assert (side_of(back.trajectory), side_of(back.others[0])) == ("chosen", "rejected")


def test_what_formats_have_no_place_for_is_counted() -> None:
    copied = Message(role="assistant", content="As before.")
    given = row([copied, answer("Yes.")], [copied, answer("No.")], weight=0.5, task_id="t", split="train")
    names = ("row_id", "view", "view_parameters", "chosen_id", "rejected_id", "weight", "task_id", "split")
    losses = {name: n for name, n in write_row(given, Trl()).losses.items() if n}
    assert losses == dict.fromkeys([*names, "chosen.train", "rejected.train"], 1)


def test_two_equal_sides_are_refused() -> None:
    with pytest.raises(FormatError, match="tied_pair"):
        write_row(row([answer("Yes.")], [answer("Yes.")]), ShareGpt())


def test_the_runs_of_a_row_say_nothing_else() -> None:
    pair = row_pair(row([answer("Yes.")], [answer("No.")]))
    assert [run.extra for run in pair] == [{}, {}]
    assert [run.system_prompt for run in pair] == ["Act.", "Act."]
