"""``agentmill view``: writes a folder, says where it is, and serves it until it is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from agentmill.pipelines.engine.chunks import seed_table
from tests.builders import trajectory, verdict
from tests.errors import shows
from tests.pipelines.cli.tables import agentmill


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one trajectory with a verdict."""
    seed_table(tmp_path / "run/explored", [trajectory()])
    seed_table(tmp_path / "run/verdicts", [verdict()])
    return tmp_path / "run"


def test_a_view_is_written_once_and_its_place_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert agentmill("view", run, "--no-serve") == 0
    said = capsys.readouterr()
    assert said.out == f"{run / 'view/index.html'}\n"
    assert said.err == "trajectories 1, pairs 0, trees 0, of tables 2\n"
    assert (run / "view/data/runs-00000.js").is_file()
    assert agentmill("view", run, "--no-serve") == 0
    assert "nothing to do, the view is up to date" in capsys.readouterr().err


def test_the_view_of_a_table_lies_beside_it(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert agentmill("view", run / "explored", "--no-serve") == 0
    assert capsys.readouterr().out == f"{run / 'explored-view/index.html'}\n"
    monkeypatch.chdir(run / "verdicts/../explored")
    assert agentmill("view", ".", "--no-serve") == 0
    assert "up to date" in capsys.readouterr().err
    assert sorted(path.name for path in (run / "explored").iterdir()) == ["data", "manifest.json"]


def test_a_view_goes_into_the_folder_one_is_in(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert agentmill("view", run, "--out", ".", "--no-serve") == 0
    assert capsys.readouterr().out == "index.html\n"
    assert (tmp_path / "here/data/runs-00000.js").is_file()


def test_a_damaged_manifest_is_named_and_no_table_left_out(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "verdicts/manifest.json").write_text("{")
    assert agentmill("view", run, "--no-serve") == 2
    assert shows(capsys.readouterr().err, "damaged-file", "verdicts/manifest.json")


def test_a_table_that_has_no_list_is_a_mistake_of_the_user(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert agentmill("view", run / "verdicts", "--no-serve") == 2
    assert shows(capsys.readouterr().err, "wrong-record-type", run)
    assert not (run / "verdicts/view").exists()


def test_it_serves_until_it_is_interrupted(run: Path, tmp_path: Path) -> None:
    code = "import sys; from agentmill.pipelines.cli.main import main; main()"
    command = [sys.executable, "-c", code, "view", str(run), "--out", str(tmp_path / "shown")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{tmp_path / 'shown/index.html'}\n"
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert b"<title>agentmill view</title>" in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
