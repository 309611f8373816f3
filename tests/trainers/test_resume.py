"""A training that is killed goes on as if it had not been."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from agentmill.trainers.requirements import choose_precision
from agentmill.trainers.run_dir import WorkFolder
from agentmill.trainers.sft import main

pytestmark = pytest.mark.slow

torch.set_num_threads(1)
# TRL takes longer to import than such a training: one process does it, and forks the trainings that are killed.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["torch", "trl.trainer.sft_trainer", "trl.trainer.dpo_trainer", "trl.trainer.reward_trainer"]
)


def kill_after_checkpoint(config: Path, mark: Path, *overrides: str, trainer: str = "sft") -> None:
    """Start a training and SIGKILL it at whatever moment it is once the checkpoint is complete."""
    process = FORKS.Process(target=train, args=(trainer, ["--config", str(config), *overrides]))
    process.start()
    deadline = time.monotonic() + 300
    try:
        while not mark.exists():
            assert process.is_alive(), process.exitcode
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.kill()
        process.join()


def kill_at_checkpoint(config: Path, step: int, *overrides: str, trainer: str = "sft") -> None:
    """Train in a process that gets SIGKILL when the checkpoint of ``step`` is written and not marked complete yet.

    So the training always goes on from the checkpoint before that, however fast or busy the machine is, and needs no
    steps that only give time to kill it.
    """
    process = FORKS.Process(target=train, args=(trainer, ["--config", str(config), *overrides], step))
    process.start()
    process.join(600)
    code = process.exitcode
    process.kill()
    assert code == -signal.SIGKILL


def train(trainer: str, argv: list[str], last_step: int | None = None) -> None:
    """What the forked processes do."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    mark_complete = WorkFolder.mark_complete

    def mark_or_die(workspace: WorkFolder, step: int) -> None:
        if step == last_step:
            os.kill(os.getpid(), signal.SIGKILL)
        mark_complete(workspace, step)

    WorkFolder.mark_complete = mark_or_die  # type: ignore[method-assign]
    sys.exit(importlib.import_module(f"agentmill.trainers.{trainer}").main(argv))


def checkpoints(work: Path) -> list[int]:
    """The steps of the complete checkpoints."""
    return sorted(int(mark.parent.name.rpartition("-")[2]) for mark in work.glob("checkpoint-*/complete"))


def curve(folder: Path) -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = json.loads((folder / "training.json").read_bytes())["loss_curve"]
    return points


def test_a_training_that_is_killed_at_any_moment_ends_as_an_unbroken_one(config: Path, tmp_path: Path) -> None:
    work, options = (
        tmp_path / ".tuned.work",
        ["max_steps=30", "lora={rank: 4, dropout: 0.1}", "gradient_accumulation=2"],
    )
    kill_after_checkpoint(config, work / "checkpoint-6" / "complete", *options)
    assert not (tmp_path / "tuned").exists()
    assert 6 <= checkpoints(work)[-1] < 30
    (work / "checkpoint-99").mkdir()
    assert_goes_on_as_unbroken(config, *options)
    assert not work.exists()


def test_packs_of_a_training_that_is_killed_are_those_of_an_unbroken_one(config: Path, tmp_path: Path) -> None:
    work, options = tmp_path / ".tuned.work", ["max_steps=12", "packing=true", "max_length=256", "batch_size=2"]
    kill_at_checkpoint(config, 10, *options)
    assert not (tmp_path / "tuned").exists()
    assert checkpoints(work)[-1] == 8
    assert (work / "checkpoint-10").is_dir()
    assert_goes_on_as_unbroken(config, *options)


def test_how_often_it_is_saved_may_be_changed_between_two_attempts(config: Path, tmp_path: Path) -> None:
    work, options = tmp_path / ".tuned.work", ["max_steps=10", "save_steps=4"]
    kill_at_checkpoint(config, 8, *options)
    assert checkpoints(work) == [4]
    kill_at_checkpoint(config, 6, *options, "save_steps=1")
    assert checkpoints(work)[-1] == 5


def assert_goes_on_as_unbroken(config: Path, *options: str) -> None:
    """Finish the training, and compare its loss curve with that of one that was not killed."""
    folder = config.parent
    assert main(["--config", str(config), *options]) == 0
    assert main(["--config", str(config), *options, f"output={folder / 'unbroken'}"]) == 0
    broken, unbroken = curve(folder / "tuned"), curve(folder / "unbroken")
    assert [point["step"] for point in broken] == list(range(1, len(unbroken) + 1))
    for key in ("loss", "grad_norm", "learning_rate", "tokens", "accuracy"):
        assert [point[key] for point in broken] == pytest.approx([point[key] for point in unbroken], rel=1e-3)


def test_what_a_training_computes_in_is_part_of_what_it_is(config: Path, tmp_path: Path) -> None:
    kill_at_checkpoint(config, 4, "max_steps=6")
    found = json.loads((tmp_path / ".tuned.work" / "identity.json").read_bytes())
    assert found["precision"] == choose_precision("auto")


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
