"""Where a training is, in lines: seldom in a log, often on a terminal, with the time left."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentmill.schemas.config import validate
from agentmill.schemas.monitoring import DriftLimits
from agentmill.schemas.training import DpoConfig, KtoConfig
from agentmill.trainers import monitors
from agentmill.trainers.monitors import EndWithoutNumbers, SaveBest, StopOnDrift, limit_reached, whole_points, with_eta
from tests.errors import user_error


@pytest.mark.parametrize(
    ("terminal", "lines"),
    [
        (False, ["reading rows: 15 of 30, 0:00:30 left"]),
        (True, [f"reading rows: {n} of 30, 0:00:{2 * (30 - n):02} left" for n in range(3, 30, 3)]),
    ],
)
def test_rows_that_take_long_are_told(
    terminal: bool, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(monitors.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)

    def rows() -> Iterator[int]:
        for number in range(30):
            yield number
            clock[0] += 2.0

    assert list(with_eta(rows(), 30, "reading rows")) == list(range(30))
    assert capsys.readouterr().err.splitlines() == lines


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"margin": 2.0}, None),
        ({"margin": 1.9}, "at step 4: margin is 2, above 1.9 (stop_when)"),
        ({"chosen_change": -0.4}, "at step 4: chosen_change is -0.5, below -0.4 (stop_when)"),
        ({"chosen_change": -0.5}, None),
        ({"entropy": 0.3}, "at step 4: entropy is 0.2, below 0.3 (stop_when)"),
        ({"kl": 0.1}, None),
        ({"margin": 0.1, "window": 5}, None),
        ({"margin": 3.5, "window": 1}, None),
        ({"margin": 2.9, "window": 1}, "at step 4: margin is 3, above 2.9 (stop_when)"),
    ],
)
def test_limits_are_of_means_over_the_last_points(limits: dict[str, float], reason: str | None) -> None:
    points = [
        {"step": step, "margin": float(step - 1), "chosen_change": -0.5, "entropy": 0.2, "kl": None}
        for step in range(1, 5)
    ]
    assert limit_reached(points, DriftLimits.model_validate({"window": 3, **limits})) == reason


def test_points_between_are_merged() -> None:
    """So a limit is reached at the same step however often a training is saved."""
    every = [{"step": step, "margin": float(step), "kl": None} for step in (10, 20, 30)]
    assert whole_points(every, 10, 9) == [{"step": step, "margin": float(step)} for step in (10, 20, 30)]
    assert whole_points(every, 10, 2) == [{"step": 20, "margin": 20.0}, {"step": 30, "margin": 30.0}]
    assert whole_points([], 10, 2) == []
    between = [
        *({"step": 4, "margin": 5.0, "entropy": 1.0}, {"step": 10, "margin": 10.0, "entropy": None}),
        *({"step": 15, "margin": 1.0}, {"step": 20, "margin": 3.0}, {"step": 25, "margin": 9.0}),
    ]
    assert whole_points(between, 10, 9) == [
        {"step": 10, "margin": pytest.approx(8.0), "entropy": 1.0},
        {"step": 20, "margin": pytest.approx(2.0)},
    ]
    assert whole_points(between, 10, 1) == [{"step": 20, "margin": pytest.approx(2.0)}]
    stop = StopOnDrift(DriftLimits(margin=4.0, window=2), log_steps=10)
    between = [{"loss": 1.0, **point} for point in between]
    assert stop.reason_to_stop(between) == "at step 20: margin is 5, above 4 (stop_when)"
    assert stop.reason_to_stop(between[:3]) is None


@pytest.mark.parametrize("point", [{"loss": math.nan}, {"loss": 0.5, "grad_norm": math.inf}])
def test_a_loss_that_is_no_number_ends_the_training(point: dict[str, float]) -> None:
    state = SimpleNamespace(global_step=3, max_steps=9)
    EndWithoutNumbers().on_log(None, state, None, logs={"loss": 0.5, "grad_norm": None})
    EndWithoutNumbers().on_log(None, state, None, logs={"eval_loss": math.nan})
    with user_error("training-diverged", "step 3 of 9", "lower learning_rate"):
        EndWithoutNumbers().on_log(None, state, None, logs=point)


def test_limits_that_mean_nothing() -> None:
    with user_error("rule-broken", "sets no limit"):
        validate(KtoConfig, {"stop_when": {}}, "test")
    with user_error("rule-broken", "measured by KTO alone"):
        validate(DpoConfig, {"stop_when": {"kl": 1.0}}, "test")
    assert validate(KtoConfig, {"stop_when": {"kl": 1.0}}, "test").stop_when is not None
    with user_error("rule-broken", "stop_when.kl", "the loss kto alone"):
        validate(KtoConfig, {"stop_when": {"kl": 1.0}, "loss_type": "apo_zero_unpaired"}, "test")


@pytest.mark.parametrize(
    "given",
    [{"seed": 2**32}, {"loss_weights": [0.0]}, {"loss_weights": [-1.0]}, {"lora": {"target_modules": []}}],
)
def test_settings_that_train_nothing_or_that_no_library_takes(given: dict[str, Any]) -> None:
    with user_error("invalid-value", next(iter(given))):
        validate(DpoConfig, given, "test")


def test_points_of_a_validation_are_not_of_the_curve() -> None:
    points = [{"step": step, "loss": 1.0, "margin": 1.0} for step in range(1, 4)]
    curve = [each for point in points for each in (point, {"step": point["step"], "eval_loss": 1.0, "eval_margin": 9})]
    two = StopOnDrift(DriftLimits.model_validate({"margin": 0.5, "window": 2}), 1)
    assert two.reason_to_stop(curve[:2]) is None, "one point is no window of two"
    assert two.reason_to_stop(curve) == "at step 3: margin is 1, above 0.5 (stop_when)"


def test_the_best_checkpoint_is_found_in_a_folder_that_was_moved(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-4").mkdir()
    arguments = SimpleNamespace(output_dir=str(tmp_path))
    state = SimpleNamespace(best_global_step=4, best_model_checkpoint="/before/checkpoint-4")
    SaveBest().on_train_begin(arguments, state, None)
    assert state.best_model_checkpoint == str(tmp_path / "checkpoint-4")
    gone = SimpleNamespace(best_global_step=8, best_model_checkpoint="/before/checkpoint-8")
    SaveBest().on_train_begin(arguments, gone, None)
    assert gone.best_model_checkpoint == "/before/checkpoint-8"
