"""A table gives each record, turn and call the fields of all others, null: what is read is the same as without them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentmill.schemas.format import Origin, Reader
from agentmill.schemas.formats.adp.format import Adp
from agentmill.schemas.formats.atif.format import Atif
from agentmill.schemas.formats.llamafactory import LlamaFactory
from agentmill.schemas.formats.openai import OpenAi
from agentmill.schemas.formats.openhands.format import OpenHands
from agentmill.schemas.formats.otel.format import Otel
from agentmill.schemas.formats.sharegpt.format import ShareGpt
from agentmill.schemas.formats.xlam import XLam
from agentmill.schemas.records.trajectory import Trajectory

ASKED = {"role": "user", "content": "Do it."}
CALLING = {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f"}}]}
FUNCTIONS = [{"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}]
EVENTS = [
    {"source": "user", "action": "message", "args": {"content": "Do it."}},
    {"id": 1, "source": "agent", "action": "run", "args": {"command": "ls"}},
    {"id": 2, "source": "agent", "observation": "run", "content": "a.py", "cause": 1},
    {"id": 3, "source": "agent", "action": "browse", "args": {"url": "a"}},
]
REJECTED = [
    {"id": "1", "kind": "ActionEvent", "source": "agent", "action": {"kind": "A"}, "tool_name": "f"},
    {"id": "2", "kind": "UserRejectObservation", "source": "environment", "rejection_reason": "No, dangerous."},
]
STEPS = [
    {"step_id": 1, "source": "user", "message": "Do it."},
    {"step_id": 2, "source": "agent", "message": "", "tool_calls": [{"tool_call_id": "a", "function_name": "f"}]},
]


def spans(result: dict[str, Any]) -> dict[str, Any]:
    asked = {"role": "user", "parts": [{"type": "text", "content": "Do it."}]}
    called = {"role": "assistant", "parts": [{"type": "tool_call", "id": "1", "name": "f", "arguments": {}}]}
    answered = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "1", **result}]}
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": [asked, called, answered]}
    return {"spans": [{"span_id": "s", "attributes": attributes}]}


def filled(value: Any) -> Any:
    """``value``, in which each object of a list has the fields of all others of it."""
    if isinstance(value, dict):
        return {name: filled(each) for name, each in value.items()}
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        return value
    names = dict.fromkeys(name for each in value for name in each)
    inner = dict.fromkeys(name for each in value for name in each.get("args") or ())
    found = [{name: filled(each.get(name)) for name in names} for each in value]
    return [{**each, "args": {**dict.fromkeys(inner), **each["args"]}} if each.get("args") else each for each in found]


def read(reader: Reader, record: Any) -> Trajectory:
    return reader.read(msgspec.json.encode(record), Origin("demo")).trajectory


@pytest.mark.parametrize(
    ("reader", "record", "nulls"),
    [
        (OpenHands(), {"history": EVENTS}, {"history": filled(EVENTS)}),
        (OpenHands(), {"history": EVENTS}, {"history": [{**each, "kind": None} for each in EVENTS]}),
        (OpenHands(), {"history": EVENTS, "resolved": True}, {"history": EVENTS, "resolved": 1.0}),
        (
            OpenHands(),
            {"history": EVENTS, "report": {"resolved": True}},
            {"history": EVENTS, "resolved": None, "report": {"resolved": True}},
        ),
        (OpenHands(), {"events": REJECTED}, {"events": [{**each, "error": None} for each in REJECTED]}),
        (Otel(), spans({"result": "found"}), spans({"response": None, "result": "found"})),
        (
            ShareGpt(),
            {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
            {
                "conversations": [
                    {"from": "human", "value": "a", "role": None, "content": None},
                    {"from": "gpt", "value": "b", "role": None, "content": None},
                ]
            },
        ),
        (
            ShareGpt(),
            {"messages": [ASKED, {"role": "assistant", "content": "b"}]},
            {
                "conversations": [],
                "messages": [
                    {**ASKED, "from": None, "value": None},
                    {"role": "assistant", "content": "b", "from": None, "value": None},
                ],
            },
        ),
        (Adp(), {"id": "a", "content": []}, {"id": "a", "content": [], "schema_version": None}),
        (
            LlamaFactory(),
            {"messages": [{"role": "user", "content": [{"type": "text", "value": "a"}]}]},
            {"messages": [{"role": "user", "content": [{"type": "text", "value": "a"}], "tool_calls": None}]},
        ),
        (
            XLam(),
            {"messages": [ASKED], "output_message": {"role": "assistant", "content": "b"}},
            {"conversation": None, "messages": [ASKED], "output_message": {"role": "assistant", "content": "b"}},
        ),
        (
            OpenAi(),
            {"messages": [ASKED, CALLING]},
            {"messages": [ASKED, {**CALLING, "tool_calls": [{**CALLING["tool_calls"][0], "type": None}]}]},
        ),
        (
            OpenAi(),
            {"messages": [ASKED, CALLING], "functions": FUNCTIONS},
            {"messages": [ASKED, CALLING], "functions": FUNCTIONS, "tools": None},
        ),
        (
            OpenAi(),
            {"messages": [ASKED, CALLING], "functions": FUNCTIONS},
            {"messages": [ASKED, CALLING], "functions": FUNCTIONS, "tools": []},
        ),
        (
            Atif(),
            {"schema_version": "ATIF-v1.4", "session_id": "s", "agent": {"name": "a", "version": "1"}, "steps": STEPS},
            {
                "schema_version": "ATIF-v1.4",
                "session_id": "s",
                "agent": {"name": "a", "version": "1"},
                "steps": [STEPS[0], {**STEPS[1], "tool_calls": [{**STEPS[1]["tool_calls"][0], "arguments": None}]}],
            },
        ),
    ],
)
def test_nulls_are_as_if_they_were_absent(reader: Reader, record: Any, nulls: Any) -> None:
    wanted, found = read(reader, record), read(reader, nulls)
    assert (found.content, found.tools, found.outcome) == (wanted.content, wanted.tools, wanted.outcome)
    assert wanted.content or isinstance(reader, Adp)
