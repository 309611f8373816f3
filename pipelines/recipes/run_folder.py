"""The folder of a run as its recipe sees it: whether a run may write there, and the command that goes on with one."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from agentmill.pipelines.processes.identity import LOCK
from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.parts import is_made
from agentmill.pipelines.recipes.plan import Plan, make_plan
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError

RECIPE = "recipe.yaml"
SUMMARY = "summary.json"


def check_run_dir(plan: Plan, replace: bool = False) -> None:
    """See that a run would not write over what no run has left in its folder, or what another recipe has left.

    Raises ``UserError``. With ``replace`` another recipe may take over the folder.
    """
    check_is_folder(plan.run_dir)
    own = [name for name in (RECIPE, SUMMARY) if (plan.run_dir / name).exists()]
    if own and not (plan.run_dir / LOCK).exists():
        raise UserError(
            f"run_dir {plan.run_dir}: a run writes its {own[0]} there, and the one that is there was made by no run\n"
            f"move {plan.run_dir / own[0]} to another folder, or give another run_dir=…",
            ErrorCode.OUTPUT_NOT_OURS,
        )
    other = None if replace else other_recipe(plan)
    if other is not None:
        raise UserError(
            f"run_dir {plan.run_dir} holds a run of the recipe {other.recipe.name}, and this recipe is"
            f" {plan.recipe.name}\ngive another run_dir=…, or --replace to have it take over the folder",
            ErrorCode.OUTPUT_EXISTS,
        )


def check_is_folder(run_dir: Path) -> None:
    """Raises ``UserError`` where the folder of a run cannot be made, since a file is at its place or above it."""
    there = next(each for each in (run_dir, *run_dir.absolute().parents) if each.exists())
    if not there.is_dir():
        raise UserError(
            f"run_dir {run_dir}: {there} is a file, expected a folder; give another one with run_dir=…",
            ErrorCode.NOT_A_FOLDER,
        )


def other_recipe(plan: Plan) -> Plan | None:
    """The plan of a recipe of another name that has run in the folder, and made what ``plan`` does not know."""
    before = plan_before(plan.run_dir)
    if before is None or before.recipe.name == plan.recipe.name:
        return None
    known = {step.name for step in plan.steps}
    return before if any(step.name not in known and is_made(step) for step in before.steps) else None


def plan_before(run_dir: Path) -> Plan | None:
    """The plan by which a run directory was made so far; ``None`` where its recipe cannot be read."""
    try:
        # The folder may have been moved since the recipe was written.
        return make_plan(read_recipe(run_dir / RECIPE, [f"run_dir={run_dir}"]))
    except UserError:
        return None


def is_moved(run: Path) -> bool:
    """Whether the recipe of the run in the folder ``run`` names another one. Raises ``UserError`` if it is damaged."""
    return read_recipe(run / RECIPE, []).folder.resolve() != run.resolve()


def check_not_moved(recipe: Path, overrides: Sequence[str]) -> None:
    """Raises ``UserError`` for the recipe of a run that was moved or copied, unless it is told where to run."""
    run = recipe.parent
    is_given = any(each.startswith("run_dir=") for each in overrides)
    if is_given or recipe.name != RECIPE or not (run / LOCK).exists() or not is_moved(run):
        return
    named = read_recipe(recipe, []).run_dir
    raise UserError(
        f"{recipe} is that of the run in {run}, which was moved or copied: it names the run_dir {named}\n"
        f"give run_dir={run} to go on with the run where it is, or run_dir={named}",
        ErrorCode.NEEDS_ANOTHER_KEY,
    )


def resume_command(run: Path, *options: str) -> str:
    """The command that goes on with the run in the folder ``run``, also where that was moved."""
    try:
        place = [f"run_dir={run}"] if is_moved(run) else []
    except UserError:
        place = []
    return shlex.join(["agentmill", "run", str(run / RECIPE), *place, *options])
