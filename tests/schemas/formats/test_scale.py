"""Records far larger than usual are read in time that grows with them, not with their square."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from agentmill.schemas.format import Origin, Read
from agentmill.schemas.formats import FORMATS

TURNS = 50_000
SECONDS = 60.0
"""Many times what it takes, and far less than a square of the turns, so that a busy machine is told from a square."""
LARGE = "x" * 5_000_000


def openai(turns: int, seen: str) -> Any:
    """Calls without ids, and their results."""
    call = {"type": "function", "function": {"name": "look", "arguments": '{"where": "floor"}'}}
    pair = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": seen}]
    return {"messages": [{"role": "user", "content": "Go."}, *(pair * turns)]}


def sharegpt(turns: int, seen: str) -> Any:
    """Calls and observations."""
    call = {"from": "function_call", "value": '{"name": "look", "arguments": {"where": "floor"}}'}
    return {
        "conversations": [{"from": "human", "value": "Go."}, *([call, {"from": "observation", "value": seen}] * turns)]
    }


def swe_agent(turns: int, seen: str) -> Any:
    """Every turn both in the history and as a step, and one step more: they are aligned by what they say."""
    replies = [f"Look {number}.\n```\nls {number}\n```" for number in range(turns)]
    commands = [f"ls {number}" for number in range(turns)]
    steps = [
        {"response": reply, "action": command, "thought": reply, "observation": seen}
        for reply, command in zip(replies, commands, strict=True)
    ]
    history = [{"role": "system", "content": "S"}, {"role": "user", "content": "Go."}]
    for reply, command in zip(replies, commands, strict=True):
        history += [
            {"role": "assistant", "content": reply, "action": command, "thought": reply},
            {"role": "user", "content": f"{seen}\n$"},
        ]
    return {"history": history, "trajectory": [*steps, {"response": "Bye.", "action": "", "observation": ""}]}


RECORDS = {"openai": openai, "sharegpt": sharegpt, "swe_agent": swe_agent}


def read(name: str, document: Any) -> Read:
    """What the format's reader makes of ``document``; fails if it takes long."""
    raw = msgspec.json.encode(document)
    reader = FORMATS.load(name)()
    start = time.monotonic()
    found: Read = reader.read(raw, Origin("large"))
    assert time.monotonic() - start < SECONDS
    return found


@pytest.mark.parametrize("name", RECORDS)
def test_many_turns(name: str) -> None:
    run = read(name, RECORDS[name](TURNS, "a ball")).trajectory
    calls = [item for item in run.content if item.turn and item.tool_call_id is not None]
    assert max(item.turn for item in run.content) >= TURNS
    assert len(calls) == 2 * TURNS


@pytest.mark.parametrize("name", RECORDS)
def test_a_large_observation(name: str) -> None:
    content: list[Any] = read(name, RECORDS[name](1, LARGE)).trajectory.content
    assert max(len(item.content) for item in content if hasattr(item, "content")) >= len(LARGE)


def test_many_calls_of_one_id() -> None:
    events = [
        {"kind": "ActionEvent", "tool_name": "look", "tool_call_id": "c", "action": {}},
        {"kind": "ObservationEvent", "tool_name": "look", "tool_call_id": "c", "observation": {"content": "a ball"}},
    ]
    found = read("openhands", events * TURNS)
    assert found.remarks["repeated_call_id"] == TURNS - 1
    assert found.remarks["orphan_result"] == found.remarks["duplicate_result"] == 0
