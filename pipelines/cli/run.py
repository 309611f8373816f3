"""``agentmill run RECIPE``."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import sys
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import click
import msgspec

from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.parts import Part
from agentmill.pipelines.recipes.plan import Plan, make_plan
from agentmill.pipelines.recipes.precheck import check_dry
from agentmill.pipelines.recipes.preview import preview as in_small
from agentmill.pipelines.recipes.run_folder import SUMMARY, check_not_moved, check_run_dir
from agentmill.pipelines.recipes.runner import RETRY_ABOVE, RunResult, run_plan
from agentmill.pipelines.recipes.seeds import SEED_COLUMNS, SeedsResult, over_seeds, seed_overrides, seed_rows
from agentmill.pipelines.recipes.summary import (
    MEASURE_COLUMNS,
    SELECTION_COLUMNS,
    counted,
    evaluation_lines,
    measure_rows,
    next_commands,
    note_lines,
    selection_rows,
    spending_of,
    stage_columns,
    stage_rows,
    total_rows,
)
from agentmill.pipelines.terminal.console import answer, answers, example, log, say, table
from agentmill.pipelines.terminal.progress import progress_for
from agentmill.schemas.errors import UserError

OVERRIDES = click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1)
REPLACE = click.option("--replace", is_flag=True, help="Make anew what was made with other parameters.")
RETRIES = {None: RETRY_ABOVE, True: 0.0, False: None}
RETRY = click.option(
    "--retry-dropped/--no-retry-dropped",
    default=None,
    help="Leave a step unfinished if any of its inputs was dropped for a temporary fault of a model server; the same"
    f" command then tries these again. By default only if they are more than {100 * RETRY_ABOVE:.0f} %."
    " --no-retry-dropped goes on without them.",
)


PREVIEW = click.option(
    "--preview",
    metavar="N",
    type=click.IntRange(min=2),
    help="Run the recipe in small, with N environments, tasks and inputs, into RUN-preview.",
)
F = TypeVar("F", bound=Callable[..., Any])


def part_options(command: F) -> F:
    """Give a command the options that choose a part of a recipe; it gets them as ``part``."""

    @functools.wraps(command)
    def with_part(
        *args: Any, only: Literal["data"] | None, until: str | None, skip: tuple[str, ...], **others: Any
    ) -> Any:
        names = tuple(name.strip() for name in ",".join(skip).split(",") if name.strip())
        return command(*args, part=Part(only=only, until=until, skip=names), **others)

    only = "Leave out trainings, evaluations, and what depends on trained models."
    skip = "Leave out these steps; their tables are read if there. May be given again."
    options = (
        click.option("--only", type=click.Choice(["data"]), help=only),
        click.option("--until", metavar="STEP", help="Leave out all steps after this one."),
        click.option("--skip", metavar="STEP[,STEP]", multiple=True, help=skip),
    )
    for option in reversed(options):
        with_part = option(with_part)
    return cast(F, with_part)


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that a run would take: ``reads`` are the outputs and entries of ``data`` that it works on."""

    name: str
    operator: str
    reads: list[str]


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--dry-run`` tells of a recipe: all the steps of a run into ``run_dir``, in their order.

    ``missing`` is what this machine lacks for them; ``unchecked`` is what only a run asks, over the network;
    ``left_out`` are steps that would not be run, with reasons. ``run_dirs`` has the folder of each seed, where there
    are several.
    """

    name: str
    seed: int
    run_dir: str
    steps: list[PlannedStep]
    missing: list[str] = []
    unchecked: list[str] = []
    left_out: dict[str, str] = {}
    run_dirs: dict[int, str] = {}


@click.command(
    epilog=example(
        "agentmill run configs/quickstart.yaml --dry-run",
        "agentmill run configs/quickstart.yaml seed=1 run_dir=runs/seed-1",
        "agentmill run configs/quickstart.yaml --seeds 3",
        "agentmill run eto --only data models.actor='{policy: expert, mistakes: 0.3}'",
    )
)
@click.argument("recipe", metavar="RECIPE", type=click.Path(path_type=Path))
@OVERRIDES
@REPLACE
@RETRY
@part_options
@PREVIEW
@click.option(
    "--seeds",
    metavar="N",
    type=click.IntRange(min=2),
    help="Run it N times with seeds from its own on, into RUN/seed-SEED, and compare the evaluations over them.",
)
@click.option("--dry-run", is_flag=True, help="Check the recipe and list its steps; start nothing.")
@answers(RunResult, Planned, SeedsResult)
def run(
    recipe: Path,
    overrides: tuple[str, ...],
    replace: bool,
    retry_dropped: bool | None,
    part: Part,
    preview: int | None,
    seeds: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run a recipe: a list of steps in one YAML file, or one of agentmill list recipes by its name.

    What is finished is skipped, so the same command goes on after an interrupt. KEY=VALUE changes the recipe:
    seed=1, run_dir=runs/other, steps.3.n=4 or, by the name of a step's output, steps.proposed_tasks.n=4.
    """
    check_not_moved(recipe, overrides)
    runs = [list(overrides)] if seeds is None else seed_overrides(recipe, overrides, seeds)
    reads = [read_recipe(recipe, each) for each in runs]
    plans = [make_plan(read if preview is None else in_small(read, preview, dry=dry_run), part) for read in reads]
    # Before the first of several runs, and not when its turn comes.
    for plan in plans:
        check_run_dir(plan, replace)
    if dry_run:
        run_dirs = {} if seeds is None else {plan.recipe.seed: str(plan.run_dir) for plan in plans}
        answer(msgspec.structs.replace(planned(plans[0]), run_dirs=run_dirs), show_plan, as_json)
        return
    results = [carried_out(plan, replace, retry_dropped) for plan in plans]
    if seeds is None:
        answer(results[0], show_finish, as_json)
    else:
        answer(over_seeds([each.summary for each in results]), show_seeds, as_json)


def carried_out(plan: Plan, replace: bool, retry_dropped: bool | None) -> RunResult:
    """Run a plan. Whatever ends it before its time, what it has cost by then is printed."""
    before = spending_of(plan.run_dir)
    try:
        return run_plan(plan, progress_for(sys.stderr), replace, RETRIES[retry_dropped])
    except BaseException:
        # What ended the run is to be shown, also where the ledger cannot be read any more.
        with contextlib.suppress(UserError, sqlite3.Error):
            if (spent := spending_of(plan.run_dir)) != before:
                log(f"so far {spent}")
        raise


def planned(plan: Plan) -> Planned:
    """What is printed of a plan. Raises ``UserError`` for models that are not there."""
    found = check_dry(plan)
    steps = [
        PlannedStep(
            name=step.name,
            operator=step.context.operator,
            reads=sorted({each.name for each in chain(*step.inputs.values())}),
        )
        for step in plan.steps
        if step.name not in plan.left_out
    ]
    return Planned(
        name=plan.recipe.name,
        seed=plan.recipe.seed,
        run_dir=str(plan.run_dir),
        steps=steps,
        missing=found.missing,
        unchecked=found.unchecked,
        left_out=plan.left_out,
    )


def show_plan(plan: Planned) -> None:
    """Print the steps of a plan."""
    rows = [[step.name, step.operator, ", ".join(step.reads) or "-"] for step in plan.steps]
    table(f"{plan.name}: {len(rows)} steps, into {plan.run_dir}", ["step", "operator", "reads"], rows)
    say_left_out(plan.left_out)
    if plan.run_dirs:
        say(f"the same for {counted(len(plan.run_dirs), 'seed')}: {', '.join(plan.run_dirs.values())}")
    for line in plan.missing:
        log(f"warning: this machine cannot run it: {line}")
    for line in plan.unchecked:
        log(f"not checked: {line}")


def show_finish(finish: RunResult) -> None:
    """Print what a run made, where it lies, and what to try next."""
    summary = finish.summary
    if not finish.made and finish.left_out:
        log(f"nothing to do: the {len(summary.stages)} steps that were asked for were done before")
    elif not finish.made:
        log(f"nothing to do: all {len(summary.stages)} steps of {summary.name} were done before")
    table(f"{summary.name} (seed {summary.seed})", stage_columns(summary), [*stage_rows(summary), *total_rows(summary)])
    if selections := selection_rows(summary):
        say()
        table("selections", SELECTION_COLUMNS, selections)
    for line in [*note_lines(summary), *summary.spending_notes]:
        say(line)
    if summary.evaluation:
        say()
        table("evaluation", MEASURE_COLUMNS, measure_rows(summary))
        for line in evaluation_lines(summary):
            say(line)
    say_left_out(finish.left_out)
    say()
    show_where(finish)


def show_seeds(result: SeedsResult) -> None:
    """Print the evaluations of runs with several seeds."""
    table(f"{result.name}: success over {len(result.run_dirs)} seeds", SEED_COLUMNS, seed_rows(result))
    if not result.measures:
        say("none of the runs has an evaluation to compare")
    for line in result.warnings:
        say(line)
    for seed, run_dir in result.run_dirs.items():
        say(f"seed {seed}: {run_dir}")


def say_left_out(left_out: Mapping[str, str]) -> None:
    """Print the steps that are not run, those of one reason together."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        say(f"left out ({reason}): {', '.join(names)}")


def show_where(finish: RunResult) -> None:
    """Print where things lie, and the next commands."""
    summary = finish.summary
    where = f"Everything is in {summary.run_dir}; tables in {summary.run_dir}/STEP/data/*.parquet"
    commands = next_commands(summary, again=not finish.left_out)
    next_ = " What to try next:" if commands else ""
    if finish.rest is None:
        say(f"{where},")
        say(f"{'the' if finish.left_out else 'this'} summary in {summary.run_dir}/{SUMMARY}.{next_}")
    else:
        say(f"{where}.")
        say(f"The run is not finished; the rest: {finish.rest}.{next_}")
    for command in commands:
        say(f"  {command}")
