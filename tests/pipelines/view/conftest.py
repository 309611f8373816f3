"""A view of a small run, and a browser; without one its tests are left out, or fail if one is required."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from agentmill.pipelines.view.build import build
from tests.pipelines.view.browser import NAMES, chromium, executable
from tests.pipelines.view.example_run import write_run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run; tests do not change it."""
    return write_run(tmp_path_factory.mktemp("view") / "run")


@pytest.fixture(scope="session")
def folder(run: Path) -> Path:
    """The folder of its view."""
    build(run, run.parent / "shown")
    return run.parent / "shown"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A running browser. ``AGENTMILL_REQUIRE_BROWSER`` makes a lack of one a failure."""
    path = executable()
    if path is None and os.environ.get("AGENTMILL_REQUIRE_BROWSER"):
        pytest.fail(f"a browser is required, and none of {', '.join(NAMES)} is on the path")
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on the path, and AGENTMILL_BROWSER names none")
    with chromium(path) as running:
        yield running
