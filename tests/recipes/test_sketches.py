"""Every sketch is planned without an error, and is what its name says: this is all that a sketch promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentmill.pipelines.recipes.estimate import estimate
from agentmill.pipelines.recipes.grammar import output_name, read_recipe
from agentmill.pipelines.recipes.plan import make_plan
from agentmill.pipelines.recipes.shipped import sketch_files
from agentmill.pipelines.recipes.short_forms import every_step

ENDS = {"evaluate", "audit_judge", "diagnose", "multi_agent", "memory", "tree_search", "judge", "check_rubric", "pick"}
"""Operators that a sketch may end with, apart from trainings and views: what they make is the result."""


@pytest.mark.parametrize("name", sketch_files())
def test_every_sketch_is_short_and_is_planned(name: str, files_of_users: Path) -> None:
    file = sketch_files()[name]
    recipe = read_recipe(file, ())
    assert recipe.name == name
    assert recipe.paper is not None
    assert recipe.paper.differs
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 60
    assert estimate(make_plan(recipe)).steps
    assert files_of_users.is_dir()


@pytest.mark.parametrize("name", sketch_files())
def test_nothing_of_a_sketch_is_left_unused(name: str) -> None:
    recipe = read_recipe(sketch_files()[name], ())
    steps = [step for step in every_step(recipe.steps) if step["operator"] not in ("iterate", "fork")]
    given = [{key: value for key, value in step.items() if key not in ("as", "operator")} for step in steps]
    named = set(re.findall(r"[\w-]+", str([*map(list, map(dict.values, given))])))
    unused = [step for step in steps if output_name(step) not in named and not is_result(step)]
    assert [output_name(step) for step in unused] == []
    assert [model for model in recipe.models if model not in named] == []


def is_result(step: dict[str, object]) -> bool:
    """Whether a sketch is about what the step makes: a trained model, rows, a measurement."""
    operator = str(step["operator"])
    return operator.startswith("train_") or operator in ENDS or operator in ("text", "scorer_rows", "select_diverse")
