"""Damaged records: every reader reads them or refuses them with a reason, and what it reads can be stored.

``AGENTMILL_FUZZ`` says how many records per reader (``make soak`` asks for many), ``AGENTMILL_FUZZ_SEED`` which ones.
"""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from agentmill.schemas.arrow.check import TOO_DEEP
from agentmill.schemas.arrow.convert import RecordError, to_arrow
from agentmill.schemas.dialects import DIALECTS
from agentmill.schemas.format import FormatError, Origin, Reader
from agentmill.schemas.formats import FORMATS
from agentmill.schemas.records.trajectory import Trajectory
from tests.schemas.formats.sound_records import sound_records

COUNT = int(os.environ.get("AGENTMILL_FUZZ", "2000"))
SEED = os.environ.get("AGENTMILL_FUZZ_SEED", "0")
ODD: list[Any] = [
    *(None, True, False, 0, -1, 1e308, 2**70, -(2**63) - 1, 10**400, "", " ", "\x00", "\ud83d", "é" * 300),
    *([], {}, [[]], {"": None}, [None], [{}], {"id": []}, "²", "9" * 30),
    *("<function=f><parameter=a>", "<tool_call>{", "Action: f[", "```\n", '{"a": ', "NaN", "role", "assistant"),
]
"""Values in the place of others."""
DEBRIS = (b"", b"\xff", b"\x00", b'"', b"}", b"\\ud800", b"\xef\xbb\xbf")
"""Bytes in the place of others."""

TEXTS = {
    "react": "Thought: T\nAction: look\nAction Input: {}",
    "function_xml": "T\n<function=look>\n<parameter=a>1</parameter>\n</function>",
    "execute": "T <execute>ls</execute>",
    "fenced": "T\n```bash\nls\n```",
    "brackets": "T\nsearch[x]",
    "calls": 'T\nlook(a="1")',
    "webarena": "T\n```type [1] [x] [1]```",
    "hermes": 'T\n<tool_call>\n{"name": "look", "arguments": {"a": 1}}\n</tool_call>',
}


def places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """(container, key or index) of everything inside ``value``."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        found.append((value, key))
        places(value[key], found)
    return found


def damaged(document: Any, chance: random.Random) -> bytes:
    """The record with some values replaced, moved, doubled or removed, and at times some bytes broken."""
    broken = copy.deepcopy(document)
    for _ in range(chance.choice((1, 1, 2, 5))):
        inside = places(broken, [])
        if not inside:
            break
        (container, key), (other, place) = chance.choice(inside), chance.choice(inside)
        kind = chance.randrange(4)
        if kind == 0:
            container[key] = copy.deepcopy(chance.choice(ODD))
        elif kind == 1:
            container[key] = copy.deepcopy(other[place])
        elif kind == 2 and isinstance(container, list):
            container.insert(chance.randrange(len(container) + 1), copy.deepcopy(container[key]))
        else:
            del container[key]
    raw = bytearray(json.dumps(broken).encode())
    for _ in range(chance.choice((0, 0, 0, 1, 3))):
        at = chance.randrange(len(raw) or 1)
        raw[at : at + chance.choice((0, 1, 50))] = chance.choice(DEBRIS)
    return bytes(raw)


def damaged_text(text: str, chance: random.Random) -> str:
    """``text`` with some pieces of it removed, doubled, moved or replaced."""
    for _ in range(chance.choice((0, 1, 2, 5))):
        start, end = sorted((chance.randrange(len(text) + 1), chance.randrange(len(text) + 1)))
        piece = chance.choice(["", text[start:end] * 2, *(each for each in ODD if isinstance(each, str))])
        at = chance.choice((start, chance.randrange(len(text) + 1)))
        text = text[:at] + piece + text[chance.choice((at, max(at, end))) :]
    return text.encode(errors="replace").decode()


def outcomes(name: str, reader: Reader, damage: Callable[[], bytes], count: int = COUNT) -> int:
    """How many of ``count`` damaged records were read; fails unless all others were refused with a reason."""
    used = 0
    runs: list[tuple[bytes, Trajectory]] = []
    for number in range(count):
        raw = damage()
        try:
            found = reader.read(raw, Origin("fuzz"))
        except FormatError as error:
            refused_well = error.reason.isidentifier()
        except Exception as error:
            raise AssertionError(f"{name} on {raw!r}") from error
        else:
            refused_well = True
            used += 1
            runs += [(raw, run) for run in (found.trajectory, *found.others)]
        assert refused_well, raw
        if number % 500 == 499 or number == count - 1:
            store(runs)
            runs = []
    return used


def store(runs: list[tuple[bytes, Trajectory]]) -> None:
    """Fails on runs that no table can hold, but for their depth."""
    left = list(runs)
    while left:
        try:
            to_arrow([run for _, run in left], Trajectory)
            return
        except RecordError as error:
            raw, _ = left.pop(error.index)
            if error.detail != TOO_DEEP:
                raise AssertionError(raw) from error


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_record_is_read_or_refused(name: str) -> None:
    chance = random.Random(f"{name} {SEED}")
    sound = sound_records(name)
    used = outcomes(name, FORMATS.load(name)(), lambda: damaged(chance.choice(sound), chance))
    assert COUNT // 20 < used < COUNT - COUNT // 100


@pytest.mark.parametrize("name", FORMATS)
def test_a_deeply_nested_record_is_read_or_refused(name: str) -> None:
    chance = random.Random(f"{name} {SEED}")
    sound = sound_records(name)

    def nested() -> bytes:
        record = copy.deepcopy(chance.choice(sound))
        container, key = chance.choice(places(record, []))
        container[key] = "HERE"
        opening, closing = chance.choice((("[", "]"), ('{"properties":', "}")))
        depth = chance.choice((100, 400, 700, 900))
        return json.dumps(record).replace('"HERE"', f"{opening * depth}[]{closing * depth}").encode()

    assert outcomes(name, FORMATS.load(name)(), nested, COUNT // 10) > 0


@pytest.mark.parametrize("name", DIALECTS)
def test_damaged_text_in_a_dialect_is_read(name: str) -> None:
    chance = random.Random(f"{name} {SEED}")
    reader = FORMATS.load("openai")(dialect=name)
    calls = 0

    def damage() -> bytes:
        nonlocal calls
        text = damaged_text(TEXTS[name], chance)
        calls += bool(reader.chosen_dialect.read(text))
        messages = [("user", "Go."), ("assistant", text), ("user", "x")]
        return msgspec.json.encode({"messages": [{"role": role, "content": content} for role, content in messages]})

    assert outcomes(name, reader, damage) == COUNT
    assert COUNT // 4 < calls < COUNT
