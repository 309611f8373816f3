"""Faults of every kind come to steps of every kind that needs no model, and what does not survive them is reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from agentmill.pipelines.chaos.device import Device
from agentmill.pipelines.chaos.digests import differences, digests_of
from agentmill.pipelines.chaos.fault_run import Tried
from agentmill.pipelines.cli.chaos import Chaos, share, show
from agentmill.pipelines.cli.main import invoke
from agentmill.pipelines.engine.chunks import seed_table
from agentmill.schemas.config import dump_yaml, read_yaml
from agentmill.schemas.errors import UserError
from agentmill.schemas.tables import Table
from tests.builders import trajectory
from tests.errors import shows

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
SHARE = int(os.environ.get("AGENTMILL_FAULTS", "1"))
"""How many times as many faults are tried (``make soak`` asks for many)."""

ALONE = ["kill_launcher", "terminate", "interrupt", "pause", "corrupt", "fill_device"]
WITH_WORKERS = ["kill_worker", "wake_workers", "kill_group", "terminate_group", "cut_network"]
TWO = ["runner.name=multi_processing", "runner.workers=2"]


def line(folder: Path, steps: int = 10) -> Path:
    """The first ``steps`` of ``configs/line.yaml`` with inputs enough for them to be hit."""
    recipe = read_yaml(ROOT / "configs/line.yaml")
    recipe["steps"] = recipe["steps"][:steps]
    for step in recipe["steps"]:
        if step["operator"] in ("spec_env", "propose"):
            step["n"] = 4
        if step["operator"] in ("expert", "sample"):
            step["k"] = 4
    path = folder / "line.yaml"
    path.write_text(dump_yaml(recipe))
    return path


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("steps", "faults", "kinds", "runner"), [(10, 18, ALONE, []), (5, 8, WITH_WORKERS, TWO)], ids=["alone", "workers"]
)
def test_faults_in_every_step_are_survived(
    tmp_path: Path, steps: int, faults: int, kinds: list[str], runner: list[str]
) -> None:
    recipe, wanted = line(tmp_path, steps), faults * SHARE
    command = [
        sys.executable,
        "-P",
        "-c",
        "from agentmill.pipelines.cli.main import main; main()",
        "chaos",
        recipe.name,
    ]
    command += [*runner, "--faults", str(wanted), "--limit", "300", "--out", "out", "--json"]
    command += [word for kind in kinds for word in ("--fault", kind)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.stdout, done.stderr
    result = msgspec.json.decode(done.stdout, type=Chaos)
    broken = [each for each in result.tried if each.wrong]
    assert (done.returncode, broken) == (0, []), done.stderr
    assert len(result.tried) == result.held == wanted
    assert len({each.step for each in result.tried}) >= steps / 2
    # A table that is hit before its first file is written has nothing to corrupt.
    assert {each.fault for each in result.tried} >= set(kinds) - {"corrupt"}
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()} == {"tmp", "baseline"}


def test_what_is_not_survived_is_reported_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    same, other = {"rows": "baseline"}, {"rows": "other"}
    prints = iter([same, other, same, same])
    monkeypatch.setattr("agentmill.pipelines.chaos.experiment.digests_of", lambda folder: next(prints))
    arguments = ["chaos", str(line(tmp_path, 4)), "--faults", "1", "--fault", "pause", "--out", str(tmp_path / "out")]
    assert invoke(arguments) == 1
    told = capsys.readouterr()
    assert "run 1 did not end as the baseline: rows differs" in told.err
    assert "0 of 1 faults were survived" in told.out
    assert (tmp_path / "out/run-0001/summary.json").exists()
    assert json.loads((tmp_path / "out/faults.json").read_bytes())["tried"][0]["wrong"] == ["rows differs"]
    assert invoke([*arguments, "--faults", "2"]) == 1, "it goes on after the first run"
    told = capsys.readouterr()
    assert "run 2: pause" in told.err
    assert "run 1:" not in told.err
    assert "1 of 2 faults were survived" in told.out
    assert invoke([*arguments, "--seed", "1"]) == 2
    assert shows(capsys.readouterr().err, "made-differently", "seed: 0 -> 1")


def test_a_folder_with_other_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert invoke(["chaos", str(line(tmp_path)), "--out", str(tmp_path)]) == 2
    assert shows(capsys.readouterr().err, "output-exists", tmp_path)
    assert invoke(["chaos", str(line(tmp_path)), "--out", str(tmp_path / "notes.txt")]) == 2
    assert shows(capsys.readouterr().err, "not-a-folder", "--out", tmp_path / "notes.txt")


def test_a_recipe_that_does_not_fails_without_faults_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("no record\n")
    step = {"operator": "normalize", "format": "openai", "data": [str(rows)], "dataset": "d", "licence": "MIT"}
    recipe = tmp_path / "r.yaml"
    recipe.write_text(dump_yaml({"name": "r", "steps": [{**step, "as": "read"}]}))
    assert invoke(["chaos", str(recipe), "--out", str(tmp_path / "out"), "--fault", "kill_launcher"]) == 2
    told = capsys.readouterr().err
    assert "the recipe fails without faults: exit code 1" in told


def test_the_table_counts_faults_by_kind_and_operator(capsys: pytest.CaptureFixture[str]) -> None:
    def tried(fault: str, operator: str, *wrong: str) -> Tried:
        return Tried(run=1, fault=fault, step=operator, operator=operator, exit=0, wrong=list(wrong))

    found = [tried("pause", "sample"), tried("pause", "sample", "rows differ"), tried("corrupt", "expert")]
    assert share(found, "pause", "sample") == "1/2"
    assert share(found, "corrupt", "sample") == "-"
    show(Chaos(recipe="r.yaml", held=2, tried=found, untried={"cut_network": "ip not found"}))
    out = capsys.readouterr().out
    assert "2 of 3 faults were survived" in out
    assert "not tried: cut_network: ip not found" in out


def test_digests_differ_in_rows_and_files_and_not_in_times(tmp_path: Path) -> None:
    run = trajectory()
    slower = msgspec.structs.replace(run, usage=msgspec.structs.replace(run.usage, seconds=99.0))
    other = msgspec.structs.replace(run, task_id="another")
    prints = {}
    for name, row in {"one": run, "slower": slower, "other": other}.items():
        seed_table(tmp_path / name / "table", [row])
        prints[name] = digests_of(tmp_path / name)
    assert Table.open(tmp_path / "one/table").digest != Table.open(tmp_path / "slower/table").digest
    assert differences(prints["one"], prints["slower"]) == []
    assert differences(prints["one"], prints["other"]) == ["table/manifest.json differs"]
    (tmp_path / "slower/table/data/left-0123456789ab").write_text("")
    (tmp_path / "slower/table/data/part-00000.parquet").rename(tmp_path / "elsewhere")
    assert differences(prints["one"], {**digests_of(tmp_path / "other"), "x": "there"})[0] == "x is left over"


def test_a_device_of_its_own_can_be_filled_and_its_network_cut(tmp_path: Path) -> None:
    try:
        with Device(tmp_path / "device", 8) as device:
            with device.filled(), pytest.raises(OSError, match="No space left"):
                (device.outside / "file").write_bytes(bytes(2**20))
            (device.outside / "file").write_bytes(b"x")
            shown = [*device.inside, "cat", str(tmp_path / "device/file")]
            assert subprocess.run(shown, capture_output=True, check=True).stdout == b"x"
            up = [*device.inside, "ip", "link", "show", "lo"]
            with device.cut():
                assert b"state DOWN" in subprocess.run(up, capture_output=True, check=True).stdout
            assert b"LOOPBACK,UP" in subprocess.run(up, capture_output=True, check=True).stdout
    except UserError as error:
        pytest.skip(str(error).splitlines()[0])
    assert not (tmp_path / "device/file").exists()
