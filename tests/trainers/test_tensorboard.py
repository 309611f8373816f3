"""The loss curve for TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from agentmill.schemas import extras
from agentmill.trainers.dpo import main as dpo_main
from agentmill.trainers.kto import main as kto_main
from agentmill.trainers.reward import main as reward_main
from agentmill.trainers.sft import main
from tests.trainers.test_resume import curve, kill_at_checkpoint

torch.set_num_threads(1)


def losses(events: Path) -> list[tuple[int, float]]:
    """Step and loss of every point."""
    found = EventAccumulator(str(events))
    found.Reload()
    return [(point.step, point.value) for point in found.Scalars("train/loss")]


@pytest.mark.parametrize(
    ("fixture", "train"),
    [("config", main), ("dpo_config", dpo_main), ("kto_config", kto_main), ("dpo_config", reward_main)],
    ids=["sft", "dpo", "kto", "reward"],
)
def test_events_hold_the_loss_curve(fixture: str, train: Callable[..., int], request: pytest.FixtureRequest) -> None:
    config: Path = request.getfixturevalue(fixture)
    events = config.parent / "tuned.tensorboard"
    events.mkdir()
    (events / "events.out.tfevents.0.of.a.training.that.was.given.up").touch()
    assert train(["--config", str(config), "max_steps=3", "tensorboard=true"]) == 0
    points = curve(config.parent / "tuned")
    assert [step for step, _ in losses(events)] == [1, 2, 3]
    assert [loss for _, loss in losses(events)] == pytest.approx([point["loss"] for point in points], rel=1e-5)
    assert len(list(events.iterdir())) == 1


def test_a_step_that_is_made_again_counts_once(config: Path, tmp_path: Path) -> None:
    options = ["max_steps=12", "tensorboard=true", "save_steps=5"]
    kill_at_checkpoint(config, 10, *options)
    events = tmp_path / "tuned.tensorboard"
    # TensorBoard takes the files in the order of the seconds in their names.
    time.sleep(1)
    # The training was killed after a step whose checkpoint is not complete.
    with SummaryWriter(str(events)) as writer:
        writer.add_scalar("train/loss", 99.0, 11)
    assert main(["--config", str(config), *options]) == 0
    assert len(list(events.iterdir())) == 3
    points = losses(events)
    assert [step for step, _ in points] == list(range(1, 13))
    assert [loss for _, loss in points] == pytest.approx([point["loss"] for point in curve(tmp_path / "tuned")])


def test_without_the_package(config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    assert main(["--config", str(config), "tensorboard=true"]) == 2
    assert "pip install 'agentmill[tensorboard]'" in capsys.readouterr().err
