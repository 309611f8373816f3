"""A training that is killed goes on as if it had not been."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from agentmill.trainers.sft import main

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parents[2]


def kill_after_checkpoint(config: Path, mark: Path, *overrides: str, trainer: str = "sft") -> None:
    """Start a training and SIGKILL it once the checkpoint is complete."""
    command = [sys.executable, "-m", f"agentmill.trainers.{trainer}", "--config", str(config), *overrides]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 300
    try:
        while not mark.exists():
            assert process.poll() is None, process.stderr and process.stderr.read().decode()
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def curve(folder: Path) -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = json.loads((folder / "training.json").read_bytes())["loss_curve"]
    return points


@pytest.mark.parametrize(
    "options",
    [
        ["max_steps=40", "lora={rank: 4, dropout: 0.1}", "gradient_accumulation=2"],
        ["max_steps=40", "packing=true", "max_length=256", "batch_size=2"],
    ],
)
def test_the_loss_curve_is_that_of_an_unbroken_training(options: list[str], config: Path, tmp_path: Path) -> None:
    work = tmp_path / ".tuned.work"
    kill_after_checkpoint(config, work / "checkpoint-6" / "complete", *options)
    assert not (tmp_path / "tuned").exists()
    reached = max(int(mark.parent.name.rpartition("-")[2]) for mark in work.glob("checkpoint-*/complete"))
    assert 6 <= reached < 40
    (work / "checkpoint-99").mkdir()

    assert main(["--config", str(config), *options]) == 0
    assert main(["--config", str(config), *options, f"output={tmp_path / 'unbroken'}"]) == 0
    broken, unbroken = curve(tmp_path / "tuned"), curve(tmp_path / "unbroken")
    assert [point["step"] for point in broken] == list(range(1, 41))
    for key in ("loss", "grad_norm", "learning_rate", "tokens", "accuracy"):
        assert [point[key] for point in broken] == pytest.approx([point[key] for point in unbroken], rel=1e-3)
    assert not work.exists()


def test_checkpoints_of_other_settings_or_another_model_are_refused(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / ".tuned.work"
    (work / "checkpoint-4").mkdir(parents=True)
    (work / "checkpoint-4" / "complete").touch()
    (work / "identity.json").write_text(json.dumps({"base_revision": "another"}))
    assert main(["--config", str(config)]) == 2
    said = capsys.readouterr().err
    assert "comes from another training (base_revision: another -> " in said
    assert "Choose another `output`, or delete" in said
    assert main(["--config", str(config), "resume=false", "max_steps=1"]) == 0
