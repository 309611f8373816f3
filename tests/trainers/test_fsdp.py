"""Two CPU processes, that share a model between them or have one each, learn what one learns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from agentmill.trainers.dpo import main as dpo_main
from agentmill.trainers.kto import main as kto_main
from agentmill.trainers.reward import main as reward_main
from agentmill.trainers.sft import main
from tests.trainers.scoring import scored_rows
from tests.trainers.tables import pair, unpaired_rows, write_table

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parents[2]


def launch(trainer: str, config: Path, *overrides: str, kind: str = "fsdp") -> None:
    """Train in two processes, ``fsdp`` or ``ddp``."""
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--config_file", str(ROOT / f"configs/accelerate/{kind}_cpu.yaml"), "--main_process_port", "0"]
    command += ["-m", f"agentmill.trainers.{trainer}", "--config", str(config), *overrides]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as run:
        try:
            _, said = run.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            # Each process says where it stands before it dies.
            for process in (*psutil.Process(run.pid).children(recursive=True), run):
                process.send_signal(signal.SIGABRT)
            _, said = run.communicate()
    assert run.returncode == 0, said


def test_two_processes_learn_what_one_does(config: Path, tmp_path: Path) -> None:
    launch("sft", config, "batch_size=2", "max_steps=6", "save_steps=3")
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


PAIRS = [pair(f"p{number}", number % 3, 1.0 + number % 2) for number in range(8)]


@pytest.mark.parametrize(
    ("kind", "trainer", "alone", "rows", "key", "options"),
    [
        ("fsdp", "dpo", dpo_main, PAIRS, "chosen_change", []),
        ("fsdp", "kto", kto_main, unpaired_rows(8), "chosen_change", []),
        ("fsdp", "reward", reward_main, PAIRS, "margin", []),
        ("ddp", "dpo", dpo_main, PAIRS, "chosen_change", ["lora={rank: 4}"]),
        ("ddp", "reward", reward_main, scored_rows(8), "error", []),
    ],
)
def test_two_processes_judge_as_one_does(
    kind: str,
    trainer: str,
    alone: Callable[..., int],
    rows: list[Any],
    key: str,
    options: list[str],
    config: Path,
    tmp_path: Path,
) -> None:
    table = write_table(tmp_path / "judged", rows, type(rows[0]))
    given = [f"rows={table}", "max_steps=3", "precision=fp32", "learning_rate=3e-4", *options]
    launch(trainer, config, *given, "batch_size=2", kind=kind)
    assert alone(["--config", str(config), *given, "batch_size=4", f"output={tmp_path / 'alone'}"]) == 0
    records = [json.loads((tmp_path / name / "training.json").read_bytes()) for name in ("tuned", "alone")]
    assert [record["processes"] for record in records] == [2, 1]
    for name in ("loss", "grad_norm", "tokens", "loss_tokens", key):
        both = [[point[name] for point in each["loss_curve"]] for each in records]
        assert both[0] == pytest.approx(both[1], rel=2e-2, abs=1e-4), name
