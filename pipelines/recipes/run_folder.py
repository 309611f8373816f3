"""The folder of a run as its recipe sees it: whether a run may write there, and the command that goes on with one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agentmill.pipelines.processes.identity import LOCK
from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.parts import is_made
from agentmill.pipelines.recipes.plan import Plan, make_plan
from agentmill.pipelines.recipes.summary import Summary
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError

RECIPE = "recipe.yaml"
SUMMARY = "summary.json"


def check_run_dir(plan: Plan, replace: bool = False) -> None:
    """See that a run would not write over what no run has left in its folder, or what another recipe has left.

    Raises ``UserError``. With ``replace`` another recipe may take over the folder.
    """
    run_dir = plan.run_dir
    check_is_folder(run_dir)
    own = [run_dir / name for name in (RECIPE, SUMMARY) if (run_dir / name).exists()]
    if own and not is_run(run_dir):
        names = " and ".join(each.name for each in own)
        raise UserError(
            f"run_dir {run_dir} has a {names} that no run has written, and a run would write over it\n"
            "move it to another folder, or give another run_dir=…",
            ErrorCode.OUTPUT_NOT_OURS,
        )
    other = None if replace else other_recipe(plan)
    if other is not None:
        raise UserError(
            f"run_dir {run_dir} holds a run of the recipe {other}, and this recipe is {plan.recipe.name}\n"
            "give another run_dir=…, or --replace to have it take over the folder",
            ErrorCode.OUTPUT_EXISTS,
        )


def is_run(folder: Path) -> bool:
    """Whether a recipe was run in ``folder``; of a copy that lacks hidden files its tables or its summary tell."""
    if (folder / LOCK).exists():
        return True
    before = plan_before(folder)
    return (before is not None and any(map(is_made, before.steps))) or has_summary(folder)


def has_summary(folder: Path) -> bool:
    """Whether ``folder`` has the summary of a run."""
    try:
        msgspec.json.decode((folder / SUMMARY).read_bytes(), type=Summary)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def check_is_folder(run_dir: Path, option: str = "run_dir") -> None:
    """Raises ``UserError`` where the folder of a run cannot be made, since a file is at its place or above it."""
    there = next(each for each in (run_dir, *run_dir.absolute().parents) if each.exists())
    if not there.is_dir():
        raise UserError(
            f"{option} {run_dir}: {there} is a file, expected a folder; give another one with {option}"
            f"{'=…' if option == 'run_dir' else ' …'}",
            ErrorCode.NOT_A_FOLDER,
        )


def other_recipe(plan: Plan) -> str | None:
    """The name of another recipe that has run in the folder, and has made tables of steps that ``plan`` lacks."""
    try:
        name = read_recipe(plan.run_dir / RECIPE, []).name
    except UserError:
        return None
    # The plan of a recipe may read all of its raw data, so it is made only where the name is another.
    before = plan_before(plan.run_dir) if name != plan.recipe.name else None
    known = {step.name for step in plan.steps}
    lost = before is not None and any(step.name not in known and is_made(step) for step in before.steps)
    return name if lost else None


def plan_before(run_dir: Path) -> Plan | None:
    """The plan by which a run directory was made so far; ``None`` where its recipe cannot be read."""
    try:
        # The folder may have been moved since the recipe was written.
        return make_plan(read_recipe(run_dir / RECIPE, [f"run_dir={json.dumps(str(run_dir))}"]))
    except UserError:
        return None


def is_moved(run: Path) -> bool:
    """Whether the recipe of the run in the folder ``run`` names another one. Raises ``UserError`` if it is damaged."""
    return read_recipe(run / RECIPE, []).folder.resolve() != run.resolve()


def check_not_moved(recipe: Path, overrides: Sequence[str]) -> None:
    """Raises ``UserError`` for the recipe of a run that was moved or copied, unless ``run_dir`` is given."""
    run = recipe.parent
    is_given = any(each.startswith("run_dir=") for each in overrides)
    if is_given or recipe.name != RECIPE or not (run / LOCK).exists() or not is_moved(run):
        return
    named, here = read_recipe(recipe, []).run_dir, run.resolve()
    started = started_in(here, named)
    where = "is another folder" if started is None else f"counts from {started}"
    advice = f"give run_dir={here} to go on with it" + ("" if started is None else f", or run it from {started}")
    raise UserError(
        f"{recipe} is that of the run in {here}, and the run_dir that it names, {named}, {where}\n{advice}",
        ErrorCode.NEEDS_ANOTHER_KEY,
    )


def started_in(run: Path, run_dir: str) -> Path | None:
    """The folder from which ``run_dir`` leads to ``run``, if it is relative and ``run`` still ends with it."""
    ending, folder = Path(run_dir).expanduser(), run.absolute().parts
    if ending.is_absolute() or folder[-len(ending.parts) :] != ending.parts:
        return None
    return Path(*folder[: -len(ending.parts)])


def resume_command(run: Path, *options: str) -> str:
    """The command that goes on with the run in the folder ``run``, also where that was moved."""
    try:
        place = [f"run_dir={run}"] if is_moved(run) else []
    except UserError:
        place = []
    return shlex.join(["agentmill", "run", str(run / RECIPE), *place, *options])
