"""The callbacks and the fields of TRL that settings of a validation ask for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainingArguments

from agentmill.schemas.monitoring import ValidationConfig
from agentmill.trainers.command import KtoSettings, SftSettings
from agentmill.trainers.monitors import StopOnDrift, StopWithoutImprovement
from agentmill.trainers.observers import early_stops, set_validation, why_ended
from tests.errors import user_error

PLACES = {"rows": "r", "model": "m", "output": "o"}


@pytest.mark.parametrize(
    ("config", "steps", "fields"),
    [
        (None, 100, ("no", None, False, 2)),
        (ValidationConfig(share=0.1), 101, ("steps", 11, False, 2)),
        (ValidationConfig(share=0.1), 3, ("steps", 1, False, 2)),
        (ValidationConfig(share=0.1, every=7, keep="best"), 101, ("steps", 7, True, 3)),
    ],
)
def test_validations_are_a_tenth_of_the_steps_apart_and_the_best_is_one_checkpoint_more(
    config: ValidationConfig | None, steps: int, fields: tuple[Any, ...]
) -> None:
    arguments = TrainingArguments(max_steps=steps, save_total_limit=2, use_cpu=True)
    set_validation(config, arguments)
    found = (arguments.eval_strategy, arguments.eval_steps, arguments.load_best_model_at_end)
    assert (*found, arguments.save_total_limit) == fields
    if arguments.load_best_model_at_end:
        assert (arguments.metric_for_best_model, arguments.greater_is_better) == ("loss", False)


def test_a_training_may_end_for_two_reasons() -> None:
    assert early_stops(SftSettings(**PLACES)) == []
    assert early_stops(SftSettings.model_validate({**PLACES, "validation": {"share": 0.1}})) == []
    both = {"stop_when": {"kl": 1.0}, "validation": {"share": 0.1, "patience": 2}}
    found = early_stops(KtoSettings.model_validate({**PLACES, **both}))
    assert [type(each) for each in found] == [StopOnDrift, StopWithoutImprovement]


def test_a_training_that_nothing_of_ours_ended_is_not_finished() -> None:
    made: Any = SimpleNamespace(state=SimpleNamespace(global_step=3))
    guard = StopWithoutImprovement(1, 0.0)
    with user_error("training-unfinished", "step 3 of 9", "run the same command again"):
        why_ended(made, [guard], 9)
    guard.reason = "at step 3: …"
    assert why_ended(made, [guard], 9) == "at step 3: …"
    assert why_ended(made, [guard], 3) is None
