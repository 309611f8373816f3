"""Where a training is, in lines: seldom in a log, often on a terminal, with the time left."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from agentmill.trainers import monitors
from agentmill.trainers.monitors import with_eta


@pytest.mark.parametrize(
    ("terminal", "lines"),
    [
        (False, ["reading rows: 15 of 30, 0:00:30 left"]),
        (True, [f"reading rows: {n} of 30, 0:00:{2 * (30 - n):02} left" for n in range(3, 30, 3)]),
    ],
)
def test_rows_that_take_long_are_told(
    terminal: bool, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(monitors.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)

    def rows() -> Iterator[int]:
        for number in range(30):
            yield number
            clock[0] += 2.0

    assert list(with_eta(rows(), 30, "reading rows")) == list(range(30))
    assert capsys.readouterr().err.splitlines() == lines
