"""Small tables of training rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from agentmill.schemas.config import config_digest
from agentmill.schemas.records.record import SCHEMA_VERSION, Record
from agentmill.schemas.records.rows import Message, MessageCall, PreferenceRow, SftRow, UnpairedRow
from agentmill.schemas.tables import Counts, Manifest, write_manifest, write_shard

TOOLS = msgspec.json.encode(
    [{"type": "function", "function": {"name": "look", "description": "look", "parameters": {"type": "object"}}}]
).decode()


def system(text: str = "Act by commands.") -> Message:
    return Message(role="system", content=text)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(text: str | None = None, train: bool = True, weight: float = 1.0, call: str | None = None) -> Message:
    calls = [MessageCall(name="look", arguments=call, id="call00001")] if call else []
    return Message(role="assistant", content=text, tool_calls=calls, train=train, weight=weight)


def answered(text: str) -> Message:
    return Message(role="tool", content=text, tool_call_id="call00001", name="look")


def row(messages: Sequence[Message], row_id: str = "r1", tools: str | None = None) -> SftRow:
    parameters = {"rows": "trajectory"}
    return SftRow(
        row_id=row_id, trajectory_id="t1", view="sft", view_parameters=parameters, messages=list(messages), tools=tools
    )


def turns(number: int, row_id: str = "r1", words: int = 4) -> SftRow:
    """A system prompt, a task, and ``number`` commands with what they led to."""
    messages = [system(), user("Move the box to the door.")]
    for turn in range(number):
        messages += [assistant(f"move the box {turn} " + "push " * words), user(f"You are at {turn}.")]
    return row(messages[:-1], row_id)


def tool_row(row_id: str = "r2") -> SftRow:
    """A call, its result, and an answer."""
    messages = [
        system("Use tools."),
        user("Where is the key?"),
        assistant(call='{"where":"box"}'),
        answered("a key"),
        assistant("In the box."),
    ]
    return row(messages, row_id, TOOLS)


def rows(number: int = 24) -> list[SftRow]:
    return [turns(1 + index % 3, f"r{index:03d}", words=1 + index % 5) for index in range(number)]


def side(number: int, word: str) -> list[Message]:
    """A completion of ``number`` calls with what they answered, and a last word."""
    calls = [
        [assistant(call=f'{{"at":"{word} {turn}"}}'), answered(f"room {turn} of {word}")] for turn in range(number)
    ]
    return [*(message for call in calls for message in call), assistant(f"the {word} is here")]


def pair(row_id: str = "p1", turns: int = 1, weight: float = 1.0, **fields: object) -> PreferenceRow:
    """Two ways to look for a key; the better one is shorter."""
    given = {
        "prompt": [system(), user("Where is the key?")],
        "chosen": side(turns, "box"),
        "rejected": side(turns + 1, "door"),
    }
    return PreferenceRow(
        row_id=row_id,
        view="trajectory_pairs",
        view_parameters={"min_gap": 0.0},
        chosen_id="t1",
        rejected_id="t2",
        weight=weight,
        tools=TOOLS,
        **(given | fields),
    )


def pairs(number: int = 16) -> list[PreferenceRow]:
    return [pair(f"p{index:03d}", index % 3) for index in range(number)]


def unpaired(row_id: str, label: bool, turns: int = 1, weight: float = 1.0, **fields: object) -> UnpairedRow:
    """A search that found the key, or another thing."""
    given = {
        "prompt": [system(), user(f"Where is the key {row_id}?")],
        "completion": side(turns, "box" if label else "door"),
    }
    return UnpairedRow(
        row_id=row_id,
        trajectory_id="t1",
        view="unpaired",
        view_parameters={"by": "trajectory"},
        label=label,
        weight=weight,
        tools=TOOLS,
        **(given | fields),
    )


def unpaired_rows(number: int = 16) -> list[UnpairedRow]:
    return [unpaired(f"u{index:03d}", index % 2 == 0, index % 3) for index in range(number)]


def write_table(folder: Path, records: Sequence[Record], record_type: type[Record] = SftRow) -> Path:
    """A finished table of ``records``."""
    shard = write_shard(folder / "data" / "part-00000.parquet", records, record_type)
    number = len(records)
    write_manifest(
        folder,
        Manifest(
            table=folder.name,
            record=record_type.__name__,
            schema_version=SCHEMA_VERSION,
            operator="sft",
            config={},
            config_digest=config_digest({}),
            inputs={},
            counts=Counts(read=number, used=number, dropped=0, written=number),
            reasons={},
            files=[shard],
            dropped_files=[],
            seconds=0.0,
            created="2026-01-01T00:00:00Z",
            versions={},
        ),
    )
    return folder
