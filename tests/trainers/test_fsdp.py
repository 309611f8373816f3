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
import pyarrow.parquet as pq
import pytest
import torch

from agentmill.pipelines.serving.endpoints import free_ports
from agentmill.schemas.config import dump_yaml
from agentmill.trainers.dpo import main as dpo_main
from agentmill.trainers.kto import main as kto_main
from agentmill.trainers.reward import main as reward_main
from agentmill.trainers.sft import main
from tests.trainers.scoring import scored_rows
from tests.trainers.tables import pair, rows, unpaired_rows, write_table

pytestmark = pytest.mark.slow

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parents[2]


def launch_by_hand(kind: str, module: str, *arguments: str) -> None:
    """Run a module in two processes, ``fsdp`` or ``ddp``, by the command of accelerate."""
    command = ["-m", "accelerate.commands.launch"]
    command += ["--config_file", str(ROOT / f"configs/accelerate/{kind}_cpu.yaml"), "--main_process_port", "0"]
    run(*command, "-m", module, *arguments)


def run(*arguments: str) -> None:
    """Run Python with these arguments to its end."""
    command = [sys.executable, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as started:
        try:
            _, said = started.communicate(timeout=270)
        except subprocess.TimeoutExpired:
            # Each process says where it stands before it dies.
            for process in (*psutil.Process(started.pid).children(recursive=True), started):
                process.send_signal(signal.SIGABRT)
            _, said = started.communicate()
    assert started.returncode == 0, said


def test_two_processes_learn_what_one_does(config: Path, tmp_path: Path) -> None:
    others = f"validation_rows={write_table(tmp_path / 'others', rows(7))}"
    # Bf16 would round a step of two processes otherwise than one of a single process.
    steps = ["precision=fp32", "max_steps=6"]
    two = [*steps, "batch_size=2", "launch={config: fsdp_cpu}", "save_steps=3", others]
    run("-m", "agentmill.trainers.sft", "--config", str(config), *two, "validation={every: 2, keep: best}")
    shared = json.loads((tmp_path / "tuned" / "training.json").read_bytes())
    assert shared["processes"] == 2
    assert shared["rows_per_step"] == 4

    alone = tmp_path / "alone"
    # Two processes take as many rows each, so the longest of seven is left out.
    short = sorted(rows(7), key=lambda row: len(str(row.messages)))[:6]
    fewer = f"validation_rows={write_table(tmp_path / 'fewer', short)}"
    one = [*steps, "batch_size=4", fewer, "validation={every: 2}", f"output={alone}"]
    assert main(["--config", str(config), *one]) == 0
    expected = json.loads((alone / "training.json").read_bytes())
    for key in ("loss", "grad_norm", "accuracy", "tokens"):
        both = [[point[key] for point in record["loss_curve"]] for record in (shared, expected)]
        assert both[0] == pytest.approx(both[1], rel=1e-3), key
    assert shared["parameters"] == expected["parameters"]
    for key in ("step", "loss", "accuracy"):
        both = [[point[key] for point in record["validation"]["curve"]] for record in (shared, expected)]
        assert both[0] == pytest.approx(both[1], rel=1e-3), key
    assert shared["validation"]["kept_step"] == shared["validation"]["best_step"] == 6
    seen = [pq.read_table(folder / "rows_seen.parquet").to_pydict() for folder in (tmp_path / "tuned", alone)]
    assert seen[0] == seen[1]


PAIRS = [pair(f"p{number}", number % 3, 1.0 + number % 2) for number in range(8)]


JUDGES: dict[str, tuple[Callable[..., int], list[Any], str, dict[str, Any]]] = {
    "fsdp/dpo": (dpo_main, PAIRS, "chosen_change", {}),
    "fsdp/kto": (kto_main, unpaired_rows(8), "chosen_change", {}),
    "fsdp/reward": (reward_main, PAIRS, "margin", {}),
    "ddp/dpo": (dpo_main, PAIRS, "chosen_change", {"lora": {"rank": 4}}),
    "ddp/reward": (reward_main, scored_rows(8), "error", {}),
}


@pytest.fixture(scope="module")
def shared(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of each judge, trained in two processes; those of a kind by one launch."""
    folder = tmp_path_factory.mktemp("shared")
    for name, (_, examples, _, options) in JUDGES.items():
        (folder / name).mkdir(parents=True)
        settings = {
            "rows": str(write_table(folder / name / "rows", examples, type(examples[0]))),
            "model": str(model),
            "output": str(folder / name / "tuned"),
            "max_steps": 3,
            "batch_size": 2,
            "learning_rate": 3e-4,
            "precision": "fp32",
            **options,
        }
        (folder / f"{name}.yaml").write_text(dump_yaml(settings))
    for kind in ("fsdp", "ddp"):
        configs = sorted(folder.glob(f"{kind}/*.yaml"))
        meeting = [f"{config}:{port}" for config, port in zip(configs, free_ports(len(configs)), strict=True)]
        launch_by_hand(kind, "tests.trainers.several_trainings", *meeting)
    return folder


@pytest.mark.parametrize("name", JUDGES)
def test_two_processes_judge_as_one_does(name: str, shared: Path, tmp_path: Path) -> None:
    train, _, key, _ = JUDGES[name]
    alone = tmp_path / "alone"
    assert train(["--config", str(shared / f"{name}.yaml"), "batch_size=4", f"output={alone}"]) == 0
    records = [json.loads((each / "training.json").read_bytes()) for each in (shared / name / "tuned", alone)]
    assert [record["processes"] for record in records] == [2, 1]
    assert records[0]["estimate"]["steps"] == 3
    for number in ("loss", "grad_norm", "tokens", "loss_tokens", key):
        both = [[point[number] for point in each["loss_curve"]] for each in records]
        assert both[0] == pytest.approx(both[1], rel=2e-2, abs=1e-4), number
