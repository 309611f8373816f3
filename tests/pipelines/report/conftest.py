"""A run, its report, and the browser of the tests of views."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentmill.pipelines.report.page import write_report
from tests.pipelines.report.example_run import write_run
from tests.pipelines.view.conftest import browser

__all__ = ["browser", "report", "run"]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run; tests do not change it."""
    return write_run(tmp_path_factory.mktemp("report") / "run")


@pytest.fixture(scope="session")
def report(run: Path) -> Path:
    """The file of its report."""
    write_report(run, run.parent / "report.html")
    return run.parent / "report.html"
