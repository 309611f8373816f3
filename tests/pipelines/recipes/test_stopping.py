"""When a loop ends early, and its best round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.recipes.stopping import Decision, Until, decide
from agentmill.schemas.config import validate
from tests.errors import user_error

NAMED = {"models": ["base", "tuned"], "inputs": {}}
"""What else than the splits ``evaluation.json`` has."""


def rounds(folder: Path, values: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Folders of rounds with evaluations: of each round the splits, of which the values are those of two models."""
    folders = [folder / f"round-{number:02d}" for number in range(1, 6)]
    for place, splits in zip(folders, values, strict=False):
        found = {
            split: {
                "base": {"success": 0.9},
                "tuned": {"success": value, "loop_rate": 1 - (value or 0)},
                "base_constrained": {"success": 0.95},
                "tuned_constrained": {"success": 1 - (value or 0)},
                "paired_difference": {},
            }
            for split, value in splits.items()
        }
        (place / "evaluation").mkdir(parents=True)
        (place / "evaluation/evaluation.json").write_bytes(msgspec.json.encode({**NAMED, "splits": found}))
    return folders


def until(**parameters: Any) -> Until:
    return validate(Until, {"metric": "evaluation.success", **parameters}, "until")


@pytest.mark.parametrize(
    ("values", "parameters", "best", "stops"),
    [
        ([], {}, None, False),
        ([0.2], {}, 1, False),
        ([0.2, 0.4, 0.4], {}, 2, False),
        ([0.2, 0.4, 0.3], {}, 2, True),
        ([0.2, 0.4, 0.38], {"falls": 0.02}, 2, False),
        ([0.2, 0.4, 0.37], {"falls": 0.02}, 2, True),
        ([0.4, 0.3], {"patience": 2}, 1, False),
        ([0.4, 0.3, 0.35], {"patience": 2}, 1, True),
        ([0.4, 0.3, 0.5, 0.1], {"patience": 2}, 3, False),
        ([0.2, 0.4, 0.3], {"metric": "loop/evaluation.loop_rate"}, 2, True),
    ],
)
def test_a_loop_ends_when_the_measure_falls_below_the_best_so_far(
    tmp_path: Path, values: list[float], parameters: dict[str, Any], best: int | None, stops: bool
) -> None:
    decision = decide(until(**parameters), rounds(tmp_path, [{"held_out": value} for value in values]))
    assert (decision.best, decision.stops) == (best, stops)


@pytest.mark.parametrize(
    ("values", "best", "stops"),
    [
        ([None, 0.8, 0.4], 2, True),
        ([0.2, None, 0.9, 0.3], 3, True),
        ([0.5, 0.9, None], 2, False),
        ([None], None, False),
    ],
)
def test_a_round_that_could_not_be_scored_does_not_count(
    tmp_path: Path, values: list[float | None], best: int | None, stops: bool
) -> None:
    decision = decide(until(), rounds(tmp_path, [{"a": value} for value in values]))
    assert (list(decision.values), decision.best, decision.stops) == (values, best, stops)


def test_rounds_after_the_end_do_not_count(tmp_path: Path) -> None:
    decision = decide(until(), rounds(tmp_path, [{"a": 0.4}, {"a": 0.1}, {"a": 0.9}]))
    assert (decision.values, decision.best) == ([0.4, 0.1], 1)


def test_the_mean_over_splits_or_one_of_them_of_the_last_model_or_another(tmp_path: Path) -> None:
    folders = rounds(tmp_path, [{"a": 0.2, "b": 0.6}])
    assert decide(until(), folders).values == [pytest.approx(0.4)]
    assert decide(until(split="b"), folders).values == [0.6]
    assert decide(until(split="b", model="base"), folders).values == [0.9]


@pytest.mark.parametrize("parameters", [{"split": "c"}, {"model": "other"}])
def test_an_evaluation_of_other_splits_or_models_counts_as_not_made(tmp_path: Path, parameters: dict[str, str]) -> None:
    decision = decide(until(**parameters), rounds(tmp_path, [{"a": 0.2}, {"a": 0.1}]))
    assert decision == Decision([], None, False)


def test_a_damaged_evaluation_is_refused(tmp_path: Path) -> None:
    folders = rounds(tmp_path, [{"a": 0.2}])
    (folders[0] / "evaluation/evaluation.json").write_text("{")
    with user_error("damaged-file", "evaluation.json"):
        decide(until(), folders)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metric": "evaluation.succes"}, ("rule-broken", "succes", "success")),
        ({"metric": "success"}, ("invalid-value", "metric")),
        ({"falls": -0.1}, ("invalid-value", "falls")),
        ({"patience": 0}, ("invalid-value", "patience")),
        ({"drops": 1}, ("unknown-key", "drops")),
    ],
)
def test_mistakes(given: dict[str, Any], message: tuple[str, ...]) -> None:
    with user_error(*message):
        until(**given)
