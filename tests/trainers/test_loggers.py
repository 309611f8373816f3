"""The curves of a training for TensorBoard, and for packages with the interface of wandb."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from agentmill.schemas import extras
from agentmill.schemas.tables import Table
from agentmill.trainers.command import SftSettings
from agentmill.trainers.dpo import main as dpo_main
from agentmill.trainers.kto import main as kto_main
from agentmill.trainers.loggers import RunCurves
from agentmill.trainers.model_card import shown_settings
from agentmill.trainers.reward import main as reward_main
from agentmill.trainers.run_dir import TrainingSetup, WorkFolder
from agentmill.trainers.sft import main
from tests.errors import user_error
from tests.trainers.tables import rows, write_table
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
    assert train(["--config", str(config), "max_steps=3", "report_to=[tensorboard]"]) == 0
    points = curve(config.parent / "tuned")
    assert [step for step, _ in losses(events)] == [1, 2, 3]
    assert [loss for _, loss in losses(events)] == pytest.approx([point["loss"] for point in points], rel=1e-5)
    assert len(list(events.iterdir())) == 1


def test_a_step_that_is_made_again_counts_once(config: Path, tmp_path: Path) -> None:
    options = ["max_steps=12", "report_to=[tensorboard]", "save_steps=5"]
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


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_without_the_package(
    name: str, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    assert main(["--config", str(config), f"report_to=[{name}]"]) == 2
    assert f"pip install 'agentmill[{name}]'" in capsys.readouterr().err


class FakeTracker(ModuleType):
    """A package with the part of wandb's interface that trackio has too."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        self.options: dict[str, Any] = {}
        self.points: list[tuple[int, dict[str, float]]] = []
        self.finished = 0

    def init(self, **options: Any) -> FakeTracker:
        if self.options:
            raise RuntimeError("already runs")
        self.options = options
        return self

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.points.append((step, metrics))

    def finish(self) -> None:
        self.finished += 1


def test_runs_get_the_points_of_both_curves_and_no_path(
    config: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trackers = {name: FakeTracker(name) for name in ("wandb", "trackio")}
    for name, tracker in trackers.items():
        monkeypatch.setitem(sys.modules, name, tracker)
    table = f"validation_rows={write_table(tmp_path / 'others', rows(5))}"
    template = tmp_path / "turns.jinja"
    shutil.copy(model / "chat_template.jinja", template)
    given = ["max_steps=2", "report_to=[wandb, trackio, wandb]", "recipe=eto", table, "validation={every: 2}"]
    given += [f"chat_template={template}"]
    assert main(["--config", str(config), *given]) == 0
    record = json.loads((tmp_path / "tuned" / "training.json").read_bytes())
    for name, tracker in trackers.items():
        losses = [(step, point["train/loss"]) for step, point in tracker.points if "train/loss" in point]
        assert losses == [(point["step"], point["loss"]) for point in record["loss_curve"]]
        assert tracker.points[0][1]["train/loss_tokens"] == record["loss_curve"][0]["loss_tokens"]
        assert "train/accuracy" in tracker.points[0][1]
        (validated,) = [(step, point) for step, point in tracker.points if "eval/loss" in point]
        (measured,) = record["validation"]["curve"]
        assert (validated[0], validated[1]["eval/loss"]) == (2, measured["loss"])
        assert (tracker.options["project"], tracker.options["name"], tracker.finished) == ("eto", "tuned", 1)
        assert tracker.options["config"]["learning_rate"] == 2e-3
        assert tracker.options["config"]["rows_digest"] == record["rows_digest"]
        assert tracker.options["config"]["chat_template"] == "turns.jinja"
        assert str(tmp_path) not in str(tracker.options)
        assert ("id" in tracker.options) == (name == "wandb")
    assert str(template) not in (tmp_path / "tuned" / "README.md").read_text()


def test_settings_are_shown_without_folders() -> None:
    launch = {"processes": 2, "config": "/home/ada/cluster.yaml"}
    found = shown_settings({"chat_template": "training", "rows": "/home/ada/rows", "launch": launch, "seed": 0})
    assert found == {"chat_template": "training", "launch": {"processes": 2, "config": "cluster.yaml"}, "seed": 0}
    assert launch["config"] == "/home/ada/cluster.yaml"


def test_a_tracker_that_does_not_start_is_a_mistake_to_correct(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tracker = FakeTracker("wandb")
    # Its second start fails.
    tracker.options = {"project": "another"}
    monkeypatch.setitem(sys.modules, "wandb", tracker)
    settings = SftSettings(rows="r", model="m", output="o")
    identity = {"trainer": "sft", "rows_digest": "a", "base_revision": "b"}
    setup = TrainingSetup(Table.__new__(Table), tmp_path, WorkFolder(tmp_path / "o", identity), None, 16)
    curves = RunCurves("wandb", settings, setup)
    curves.on_train_begin(None, SimpleNamespace(is_world_process_zero=False), None)
    with user_error("logger-refuses", "wandb does not start a run", "already runs", "WANDB_MODE=offline"):
        curves.on_train_begin(None, SimpleNamespace(is_world_process_zero=True), None)
