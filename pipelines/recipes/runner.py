"""Running a plan: one step after the other, each of which is skipped if what it makes is there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from agentmill.pipelines.engine.progress import StageProgress
from agentmill.pipelines.operators.annotations import Names, check_counts, check_names, names_in
from agentmill.pipelines.operators.evaluate import Evaluate
from agentmill.pipelines.operators.operator import Inputs
from agentmill.pipelines.operators.run_context import RunContext
from agentmill.pipelines.operators.selection import selection_counts
from agentmill.pipelines.operators.task_step import TaskStep
from agentmill.pipelines.processes.identity import locked
from agentmill.pipelines.recipes.grammar import Recipe
from agentmill.pipelines.recipes.hub_models import uncached, with_hub_models
from agentmill.pipelines.recipes.parts import folders_of, is_made
from agentmill.pipelines.recipes.plan import REVISIONS, Plan, make_plan
from agentmill.pipelines.recipes.precheck import check_run
from agentmill.pipelines.recipes.run_folder import RECIPE, SUMMARY, check_run_dir, plan_before, resume_command
from agentmill.pipelines.recipes.short_forms import every_step
from agentmill.pipelines.recipes.step import Step
from agentmill.pipelines.recipes.summary import StageSummary, Summary, by_split, with_spending
from agentmill.pipelines.serving.model_folders import log_line
from agentmill.pipelines.serving.server_process import reap_strays
from agentmill.pipelines.tables.dropped import refuse_few, refuse_few_counted, unused_notes
from agentmill.schemas.config import dump_yaml
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.manifest import write_atomically
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.tables import Counts, Table

RETRY_ABOVE = 0.05
"""The share of inputs dropped for what may pass, such as a provider that hangs, above which a step is unfinished."""


class RunResult(msgspec.Struct, frozen=True):
    """How a run ended: its summary, and how many tables and models it made that were not there before.

    ``left_out`` are steps of the recipe that it was not to run, with reasons, and ``rest`` is how they are made;
    ``None`` where the run is finished.
    """

    summary: Summary
    made: int
    left_out: dict[str, str] = {}
    rest: str | None = None


def run_plan(
    plan: Plan, progress: StageProgress, replace: bool = False, retry_above: float | None = RETRY_ABOVE
) -> RunResult:
    """Run what is not done yet, and write ``recipe.yaml`` and, at the end, ``summary.json`` into the run directory.

    From the moment when something is made until all is done there is no summary, and the recipe is that of ``plan``.
    A run of a part of the recipe writes none.
    ``revisions.json`` lies with them if it reads from elsewhere.

    A step that dropped a larger share of its inputs than ``retry_above`` for what may pass is unfinished.

    All that the unfinished steps need is looked at before any of them starts
    (``agentmill.pipelines.recipes.precheck``).

    Raises ``UserError`` and the errors of stages, servers and trainings. Whatever ends it, servers are stopped, what
    is finished stays, and the same call goes on from there.
    """
    plan = checked(plan, replace)
    with locked(plan.run_dir):
        reap_strays(plan.run_dir)
        recipe, text = plan.run_dir / RECIPE, dump_yaml(resolved(plan.recipe)).encode()
        # An earlier recipe describes the tables that are there, until one of them is made anew.
        if not recipe.exists():
            save(recipe, text)

        def changes() -> None:
            save(recipe, text)
            (plan.run_dir / SUMMARY).unlink(missing_ok=True)

        # Before the first step, so that a killed run goes on with what it began with.
        if plan.revisions:
            save(plan.run_dir / REVISIONS, msgspec.json.format(msgspec.json.encode(plan.revisions), indent=2) + b"\n")
        recipe_name, runner = plan.recipe.name, plan.recipe.runner
        with RunContext(recipe_name, plan.run_dir, runner, progress, replace, changes, retry_above) as context:
            steps = RecipeRunner(plan, context)
            steps.check_inputs()
            while (step := steps.next_step()) is not None:
                steps.run(step)
        if plan.left_out:
            # The recipe of the run stays if nothing was made: what was left out may have been made by that one.
            return RunResult(steps.summary(), context.made, plan.left_out, rest_of(plan, text))
        save(recipe, text)
        # Last: a run with a summary counts as finished.
        save(plan.run_dir / SUMMARY, msgspec.json.format(msgspec.json.encode(steps.summary()), indent=2) + b"\n")
        return RunResult(steps.summary(), context.made)


def checked(plan: Plan, replace: bool) -> Plan:
    """``plan`` with the models that it needs from the Hub, once all can be run. Raises ``UserError``."""
    check_run_dir(plan, replace)
    before = steps_before(plan.run_dir) if replace else None
    check_run(plan, before)
    # After the cheap checks, since a model may be many gigabytes; before the first step, which may be hours from the
    # first that needs it.
    downloads, fetched = uncached(plan), with_hub_models(plan, log_line)
    if downloads or fetched is not plan:
        # What is in the folders of the models can be looked at now.
        check_run(fetched, before)
    return fetched


def rest_of(plan: Plan, recipe: bytes) -> str | None:
    """How the steps are made that ``plan`` leaves out of a ``recipe``; ``None`` where all of the run was made."""
    run_dir = plan.run_dir
    try:
        make_plan(plan.recipe)
    except UserError as error:
        # Such as one with an expert in the place of a model that is trained.
        return f"a recipe that can be run whole ({str(error).splitlines()[0]})"
    # Where nothing was made, what lies there may be another recipe, and its summary.
    if (run_dir / RECIPE).read_bytes() != recipe:
        return "the same command without --only, --until and --skip"
    return None if (run_dir / SUMMARY).exists() else resume_command(run_dir)


def steps_before(run_dir: Path) -> dict[str, Step]:
    """The steps by which a run directory was made so far, by name; none where its recipe cannot be read."""
    plan = plan_before(run_dir)
    return {} if plan is None else {step.name: step for step in plan.steps}


class RecipeRunner:
    """Runs the steps of a plan, one after the other."""

    def __init__(self, plan: Plan, context: RunContext) -> None:
        self._plan = plan
        self._context = context
        self._stages: dict[str, StageSummary] = {}
        self._evaluations: dict[str, dict[str, JsonObject]] = {}
        self._there = set(plan.data.values())
        self._there.update(folder for step in plan.steps if is_skipped(step, plan) for folder in folders_of(step))
        self._waiting = self._steps()
        self._may_end_early = any(step.get("until") for step in every_step(plan.recipe.steps))

    def _steps(self) -> list[Step]:
        """The steps that are still to be run."""
        return [
            step for step in self._plan.steps if step.name not in self._stages and step.name not in self._plan.left_out
        ]

    def next_step(self) -> Step | None:
        """The first step that was not run; ``None`` at the end."""
        return next(iter(self._steps()), None)

    def run(self, step: Step) -> None:
        """Run a step, or find it done. Raises the errors of ``run_plan``."""
        self._make(step)
        # An evaluation may end a loop with `until`, and which steps follow depends on it.
        if isinstance(step.parameters, Evaluate) and self._may_end_early:
            self._plan_again()
        self._there.update(folders_of(step))
        self.check_inputs()

    def _plan_again(self) -> None:
        """Go on by the plan that the evaluations so far give. Prints which rounds are left out, or taken in again."""
        before, plan = self._plan, make_plan(self._plan.recipe, self._plan.part)
        # Also where the steps are the same: `@best` may be another model.
        self._plan = plan
        self._waiting = self._steps()
        names, others = [[step.name for step in each.steps] for each in (before, plan)]
        gone = sorted({name.rpartition("/")[0] for name in set(names) - set(others)})
        more = sorted({name.rpartition("/")[0] for name in set(others) - set(names)})
        for each in plan.undecided:
            if each not in before.undecided:
                self._context.print_line(f"warning: {each} is not known, so `until` does not count this round")
        if gone:
            self._context.print_line(f"{', '.join(gone)}: not needed, since `until` has ended the loop")
        if more:
            self._context.print_line(f"{', '.join(more)}: needed after all, since `until` has not ended the loop")

    def check_inputs(self) -> None:
        """Let every step look at its tables once all of them are there. Raises ``UserError``."""
        ready = [step for step in self._waiting if self._there.issuperset(inputs_of(step))]
        self._waiting = [step for step in self._waiting if step not in ready]
        for step in ready:
            try:
                inputs = opened(step)
                check_names(step.parameters, held_names(step, inputs))
                check_counts(step.parameters, inputs)
                step.parameters.check_inputs(inputs)
            except UserError as error:
                raise UserError(f"{step.where}: {error}", error.code) from error

    def _make(self, step: Step) -> None:
        inputs = opened(step)
        if isinstance(step.parameters, TaskStep):
            result = step.parameters.run(inputs, step.models, step.context, self._context)
            refuse_few_counted(step.name, step.folder, result.counts, result.reasons, step.min_used)
            if result.evaluation:
                self._evaluations[step.name] = result.evaluation
            self._note(step, result.counts, result.reasons, seconds=result.seconds, notes=result.notes)
            return
        manifest = self._context.make(step.parameters, inputs, step.models, step.context, step.min_used)
        refuse_few(step.name, Table(step.folder, manifest), step.min_used)
        notes = [*step.parameters.notes(manifest), *unused_notes(manifest)]
        about = {"seconds": manifest.seconds, "record": manifest.record, **selection_counts(manifest)}
        self._note(step, manifest.counts, manifest.reasons, notes=notes, **about)

    def _note(self, step: Step, counts: Counts, reasons: Mapping[str, int], **about: Any) -> None:
        self._stages[step.name] = StageSummary.of(
            counts, operator=step.context.operator, where=str(step.folder), reasons=dict(reasons), **about
        )

    def summary(self) -> Summary:
        """What the steps so far have made."""
        recipe = self._plan.recipe
        made = Summary(
            name=recipe.name,
            seed=recipe.seed,
            run_dir=str(self._plan.run_dir),
            stages=self._stages,
            evaluation=by_split(self._evaluations),
        )
        return with_spending(made)


def held_names(step: Step, inputs: Inputs) -> dict[str, list[Names]]:
    """The names of the annotations that a step reads, by role; where no step declares them, those in the tables."""
    return {
        role: [
            output.names if output.names is not None else names_in(table)
            for output, table in zip(step.inputs[role], tables, strict=True)
        ]
        for role, tables in inputs.items()
    }


def is_skipped(step: Step, plan: Plan) -> bool:
    """Whether a step is left out whose table was made before, so that others can read it."""
    return step.name in plan.left_out and is_made(step)


def inputs_of(step: Step) -> set[Path]:
    """The folders of the tables that a step reads."""
    return {output.folder for outputs in step.inputs.values() for output in outputs}


def opened(step: Step) -> Inputs:
    """The tables that a step reads, by role."""
    return {role: [Table.open(output.folder) for output in outputs] for role, outputs in step.inputs.items()}


def resolved(recipe: Recipe) -> JsonObject:
    """The recipe with overrides and its run directory: it makes the same run in the same working directory.

    Paths stay as they were written, since a published run has its recipe with it.
    """
    settled = {"name", "run_dir", "seed", "runner"}
    given = recipe.model_dump(mode="json", by_alias=True, exclude_unset=True)
    whole = {**recipe.model_dump(mode="json", include=settled), **given}
    # In the author's order; what was filled in comes after the name.
    filled = [key for key in whole if key not in recipe.order]
    order = [*recipe.order[:1], *filled, *recipe.order[1:]] if recipe.order else list(whole)
    return {key: whole[key] for key in order}


def save(path: Path, content: bytes) -> None:
    """Write a small file whole."""
    write_atomically(path, content, path.parent)
