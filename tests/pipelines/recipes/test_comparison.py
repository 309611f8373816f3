"""Two recipes side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentmill.pipelines.recipes.comparison import RecipeDifference, StepDifference, compared
from agentmill.pipelines.recipes.grammar import Recipe, read_recipe
from agentmill.schemas.config import dump_yaml

MAKE = {"spec_env": "environments", "n": 2}
PROPOSE = {"propose": "tasks", "of": "environments", "n": 4}


def recipe(folder: Path, name: str, *steps: dict[str, Any], **keys: Any) -> Recipe:
    path = folder / f"{name}.yaml"
    path.write_text(dump_yaml({"name": name, **keys, "steps": list(steps)}), encoding="utf-8")
    return read_recipe(path, ())


def test_equal_recipes_differ_in_nothing_whatever_they_are_called(tmp_path: Path) -> None:
    first = recipe(tmp_path, "a", MAKE, PROPOSE, paper={"title": "A"})
    long = [{"operator": "spec_env", "as": "environments", "n": 2}, {"operator": "propose", "as": "tasks"}]
    second = recipe(tmp_path, "b", long[0], {**long[1], "of": "environments", "n": 4})
    assert compared(first, second).is_empty


def test_steps_are_compared_by_name_also_in_loops_and_forks(tmp_path: Path) -> None:
    loop = {"iterate": "loop", "rounds": 2, "steps": [PROPOSE]}
    fork = {"operator": "fork", "routes": {"a": [PROPOSE], "b": [PROPOSE]}}
    more = {**PROPOSE, "n": 9}
    first = recipe(tmp_path, "a", MAKE, loop, fork, seed=1)
    others = [{**loop, "rounds": 3, "steps": [more]}, {"operator": "fork", "routes": {"a": [PROPOSE], "b": [more]}}]
    found = compared(first, recipe(tmp_path, "b", MAKE, *others, {"spec_env": "second", "n": 3}, seed=2))
    assert found == RecipeDifference(
        settings=["seed: 1 -> 2"],
        removed=[],
        added=["second"],
        moved=[],
        steps=[
            StepDifference(step="loop", changes=["rounds: 2 -> 3"]),
            StepDifference(step="loop/tasks", changes=["n: 4 -> 9"]),
            StepDifference(step="fork/b/tasks", changes=["n: 4 -> 9"]),
        ],
    )


def test_loops_without_a_name_are_told_apart_by_number(tmp_path: Path) -> None:
    loops = [
        {"operator": "iterate", "rounds": 2, "steps": [PROPOSE]},
        {"operator": "iterate", "rounds": 3, "steps": [{**PROPOSE, "propose": "others"}]},
    ]
    first = recipe(tmp_path, "a", MAKE, *loops)
    found = compared(first, recipe(tmp_path, "b", MAKE, {**loops[0], "rounds": 5}, loops[1]))
    assert found.steps == [StepDifference(step="iterate", changes=["rounds: 2 -> 5"])]
    found = compared(first, recipe(tmp_path, "c", MAKE, loops[0], {**loops[1], "rounds": 5}))
    assert found.steps == [StepDifference(step="iterate-2", changes=["rounds: 3 -> 5"])]


def test_steps_that_are_gone_or_in_another_order(tmp_path: Path) -> None:
    second = {"spec_env": "others", "n": 2}
    first = recipe(tmp_path, "a", MAKE, second, PROPOSE)
    found = compared(first, recipe(tmp_path, "b", second, MAKE))
    assert (found.removed, found.added, found.moved) == (["tasks"], [], ["others", "environments"])
