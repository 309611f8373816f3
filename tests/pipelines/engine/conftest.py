"""One process that forks runs of the line, and one undisturbed run, for all tests of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipelines.engine.line import Line, forking, make_input


@pytest.fixture(scope="package")
def line() -> Iterator[Line]:
    with forking() as process:
        yield process


@pytest.fixture(scope="package")
def undisturbed(line: Line, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    make_input(folder)
    line.start(folder)
    assert line.end() == 0, (folder / "errors.txt").read_text()
    return folder
