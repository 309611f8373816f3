"""``constrain: admissible`` where a family lists no actions: refused before anything is asked of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipelines.plan import make_plan
from pipelines.recipe import read_recipe
from schemas.config import dump_yaml
from schemas.errors import UserError
from schemas.tables import Counts, Table
from schemas.task import EnvironmentSpec, Task
from synthesis.environments.interpreter.environment import InterpreterEnvironment
from tests.pipelines.engine.stages import write_table
from tests.pipelines.stages.steps import model, run, stage

MESSAGE = "only admissible actions are to be chosen, and family interpreter lists none"
SAMPLE = {"operator": "sample", "policy": "p", "tasks": "tasks", "environments": "environments", "as": "explored"}
EVALUATE = {
    "operator": "evaluate",
    "models": {"m": "p"},
    "splits": ["train"],
    "constrained": ["m"],
    **{name: SAMPLE[name] for name in ("tasks", "environments")},
}


def planned(folder: Path, acting: dict[str, Any], *before: dict[str, Any], **data: str) -> None:
    """Plan a recipe with one step that acts."""
    recipe = {
        "name": "r",
        "run_dir": str(folder / "run"),
        "models": {"p": {"policy": "scripted", "turns": ["look"]}},
        **({"data": data} if data else {}),
        "steps": [*before, acting],
    }
    (folder / "r.yaml").write_text(dump_yaml(recipe))
    make_plan(read_recipe(folder / "r.yaml", []))


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    spec, task = InterpreterEnvironment.examples()[0]
    write_table(tmp_path / "tasks", [[task]], Task)
    write_table(tmp_path / "environments", [[spec]], EnvironmentSpec)
    return tmp_path


@pytest.mark.parametrize("acting", [{**SAMPLE, "constrain": "admissible"}, EVALUATE])
def test_a_family_made_by_the_recipe_is_refused_while_planning(tmp_path: Path, acting: dict[str, Any]) -> None:
    def before(family: str) -> list[dict[str, Any]]:
        return [
            {"operator": "spec_env", "family": family, "as": "proposed"},
            {"operator": "admit", "of": "proposed", "as": "environments"},
            {"operator": "propose", "of": "environments", "as": "tasks"},
        ]

    with pytest.raises(UserError, match=MESSAGE):
        planned(tmp_path, acting, *before("interpreter"))
    planned(tmp_path, acting, *before("pddl"))


def test_a_table_of_such_a_family_is_refused_while_planning(tables: Path) -> None:
    data = {name: str(tables / name) for name in ("tasks", "environments")}
    with pytest.raises(UserError, match=MESSAGE):
        planned(tables, {**SAMPLE, "constrain": "admissible"}, **data)
    planned(tables, SAMPLE, **data)


def test_tables_are_examined_as_soon_as_they_are_there(tables: Path) -> None:
    sample = stage("sample", policy="p", tasks="tasks", environments="environments", constrain="admissible")
    with pytest.raises(UserError, match=MESSAGE):
        sample.examine({"environments": [Table.open(tables / "environments")]})


def test_a_task_without_actions_to_choose_is_dropped_before_the_model_is_asked(tables: Path) -> None:
    actor = {"actor": model("scripted", turns=["look"])}
    on = {"tasks": "tasks", "environments": "environments"}
    manifest = run(tables, "sample", "explored", actor, policy="p", constrain="admissible", **on)
    assert manifest.counts == Counts(read=1, used=0, dropped=1, written=0)
    assert manifest.reasons == {"no_admissible_actions": 1}
