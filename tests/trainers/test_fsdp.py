"""Two CPU processes that share a model between them learn what one learns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trainers.sft import main

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parents[2]


def test_two_processes_learn_what_one_does(config: Path, tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "accelerate.commands.launch"]
    launch += ["--config_file", str(ROOT / "configs/accelerate/fsdp_cpu.yaml"), "--main_process_port", "0"]
    command = [*launch, "-m", "trainers.sft", "--config", str(config), "batch_size=2", "max_steps=6", "save_steps=3"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    shared = json.loads((tmp_path / "tuned" / "training.json").read_bytes())
    assert shared["processes"] == 2
    assert shared["rows_per_step"] == 4

    alone = tmp_path / "alone"
    assert main(["--config", str(config), "batch_size=4", "max_steps=6", f"output={alone}"]) == 0
    expected = json.loads((alone / "training.json").read_bytes())
    for key in ("loss", "grad_norm", "accuracy", "tokens"):
        both = [[point[key] for point in record["loss_curve"]] for record in (shared, expected)]
        assert both[0] == pytest.approx(both[1], rel=2e-2), key
    assert shared["parameters"] == expected["parameters"]
