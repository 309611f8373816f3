"""``agentmill report``: writes one file, says where it is, and how far the run is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.errors import shows
from tests.pipelines.cli.tables import agentmill
from tests.pipelines.report.example_run import STEPS, end, write_recipe, write_table


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one stage that has made nothing."""
    root = write_recipe(tmp_path / "run", STEPS[:1])
    write_table(root / "worlds", [])
    end(root)
    return root


def test_a_report_is_written_into_the_run_and_over_an_earlier_one(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert agentmill("report", run) == 0
        said = capsys.readouterr()
        assert (said.out, said.err) == (f"{run}/report.html\n", "1 of 1 steps are done\n")
    (run / "summary.json").unlink()
    assert agentmill("report", run, "--out", tmp_path / "new/it.html") == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == (f"{tmp_path}/new/it.html\n", "1 of 1 steps are done; the run is not finished\n")
    assert (tmp_path / "new/it.html").read_text().startswith("<!doctype html>")


def test_a_mistake_is_told_in_a_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert agentmill("report", run / "worlds") == 2
    assert shows(capsys.readouterr().err, "not-a-run", f"agentmill inspect {run}/worlds")
    (run / "summary.json").write_text("{")
    assert agentmill("report", run) == 2
    assert shows(capsys.readouterr().err, "damaged-file", f"{run}/summary.json")
