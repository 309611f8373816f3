"""What holds for every registered format, and for real records where they lie beside the project."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from agentmill.schemas.arrow.convert import from_arrow, to_arrow
from agentmill.schemas.format import Decoded, FormatError, Origin
from agentmill.schemas.formats import FORMATS, READ_ONLY
from agentmill.schemas.formats.adp.format import Adp
from agentmill.schemas.records.trajectory import ApiAction, CodeAction, TextObservation, Trajectory
from agentmill.schemas.registry import Registry
from tests.builders import tool_trajectory, trajectory
from tests.schemas.formats.adp_rules import broken
from tests.schemas.formats.log_records import BROWSED, RECORDS
from tests.schemas.formats.sound_records import sound_records

AS_SAID = {"sharegpt": {"order": "as_said"}}
formats = pytest.mark.parametrize("name", FORMATS)


writers = pytest.mark.parametrize("name", [name for name in FORMATS if name not in READ_ONLY])


def a_record(name: str) -> bytes:
    """A record of the format."""
    return msgspec.json.encode(
        RECORDS[name] if name in READ_ONLY else FORMATS.load(name)().write(trajectory()).document
    )


@writers
def test_a_format_writes_and_reads_what_it_can_say(name: str) -> None:
    format_ = FORMATS.load(name)(**AS_SAID.get(name, {}))
    for run in (trajectory(), tool_trajectory()):
        document, losses = format_.write(run)
        assert all(count > 0 for count in losses.values())
        back, lost, *_ = format_.read(msgspec.json.encode(document), Origin("demo"))
        assert not lost
        assert len(back.content) == len(run.content)
        assert [type(item) for item in back.content] == [type(item) for item in run.content]
        assert format_.write(back).document == document


@formats
def test_a_format_gives_the_same_for_the_same(name: str) -> None:
    format_ = FORMATS.load(name)()
    raw = a_record(name)
    assert format_.read(raw, Origin("demo")) == format_.read(raw, Origin("demo"))
    ids = {format_.read(raw, Origin("demo", occurrence=n)).trajectory.trajectory_id for n in range(3)}
    assert len(ids) == 3


@formats
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" \n",
        b"{",
        b"[]",
        b'"text"',
        b"{}",
        b"\xff",
        b'{"x": NaN}',
        b'{"x": "\\ud800"}',
        b"\x80\x04.",
        b"[" * 9999,
    ],
)
def test_a_format_refuses_garbage_with_a_reason(name: str, raw: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        FORMATS.load(name)().read(raw, Origin("demo"))
    assert caught.value.reason.isidentifier()


@pytest.mark.parametrize("name", sorted(READ_ONLY - BROWSED))
def test_a_log_is_read_whole(name: str) -> None:
    raw = a_record(name)
    found = FORMATS.load(name)().read(b"\xef\xbb\xbf" + raw, Origin("demo"))
    run = found.trajectory
    assert not found.losses
    assert not found.remarks
    assert run.system_prompt == "Use tools."
    assert [type(item) for item in run.content][:3] == [TextObservation, type(run.content[1]), TextObservation]
    assert isinstance(run.content[1], ApiAction | CodeAction)
    assert run.content[1].tool_call_id == run.content[2].tool_call_id is not None
    assert [item.turn for item in run.content[:4]] == [0, 1, 1, 2][: len(run.content)]
    for each in (run, *found.others):
        assert from_arrow(to_arrow([each], Trajectory), Trajectory) == [each]


def test_formats_are_a_registry() -> None:
    assert isinstance(FORMATS, Registry)
    assert FORMATS.load("adp") is Adp
    assert set(RECORDS) == READ_ONLY < set(FORMATS)


@pytest.fixture(scope="module")
def samples() -> list[bytes]:
    root = os.environ.get("AGENTMILL_SAMPLES")
    if not root or not Path(root).is_dir():
        pytest.skip("AGENTMILL_SAMPLES names no folder of sample records")
    files = sorted(Path(root).glob("adp/*/std.jsonl"))
    return [line for file in files for line in file.read_bytes().splitlines()]


def test_real_records_round_trip_exactly(samples: list[bytes]) -> None:
    adp = Adp(version="1")
    for raw in samples:
        found, losses, *_ = adp.read(raw, Origin("sample"))
        assert not losses
        document, lost = adp.write(found)
        assert document == msgspec.json.decode(raw)
        assert not lost
        assert from_arrow(to_arrow([found], Trajectory), Trajectory) == [found]


def test_real_records_become_valid_1_5(samples: list[bytes]) -> None:
    for raw in samples:
        document, lost = Adp().write(Adp().read(raw, Origin("sample")).trajectory)
        assert broken(document, "1.5") == []
        assert not lost


@formats
def test_reading_leaves_a_decoded_record_as_it_is(name: str) -> None:
    reader = FORMATS.load(name)()
    for record in sound_records(name):
        raw = msgspec.json.encode(record)
        value = msgspec.json.decode(raw)
        read = reader.read(Decoded(raw, value), Origin("d"))
        assert value == msgspec.json.decode(raw)
        assert read == reader.read(raw, Origin("d"))
