"""Where a training is, in lines: seldom in a log, often on a terminal, with the time left."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from agentmill.schemas.config import validate
from agentmill.schemas.monitoring import DriftLimits
from agentmill.schemas.training import DpoConfig, KtoConfig
from agentmill.trainers import monitors
from agentmill.trainers.monitors import StopOnDrift, limit_reached, with_eta
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


def test_limits_that_mean_nothing() -> None:
    with user_error("rule-broken", "sets no limit"):
        validate(KtoConfig, {"stop_when": {}}, "test")
    with user_error("rule-broken", "measured by KTO alone"):
        validate(DpoConfig, {"stop_when": {"kl": 1.0}}, "test")
    assert validate(KtoConfig, {"stop_when": {"kl": 1.0}}, "test").stop_when is not None


def test_points_of_a_validation_are_not_of_the_curve() -> None:
    points = [{"step": step, "loss": 1.0, "margin": 1.0} for step in range(1, 4)]
    curve = [each for point in points for each in (point, {"step": point["step"], "eval_loss": 1.0, "eval_margin": 9})]
    two = StopOnDrift(DriftLimits.model_validate({"margin": 0.5, "window": 2}))
    assert two.reason_to_stop(curve[:2]) is None, "one point is no window of two"
    assert two.reason_to_stop(curve) == "at step 3: margin is 1, above 0.5 (stop_when)"
