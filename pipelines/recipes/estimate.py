"""What a recipe may take at most: inputs, episodes, calls of models, tokens and dollars of each step, and the sums.

Nothing is started: operators declare their bounds (``Operator.bounds``), which follow one another from the first step
to the last. Tables of ``data`` are counted. What cannot be known is ``None``, and so is what follows from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import msgspec
import pyarrow.compute as pc

from agentmill.pipelines.engine.run import refuse_empty
from agentmill.pipelines.operators.bounds import Asked, Bounds, Most, Rows, sum_asked, total, union
from agentmill.pipelines.recipes.grammar import ROUND_NAME
from agentmill.pipelines.recipes.hub_models import uncached
from agentmill.pipelines.recipes.parts import folders_of
from agentmill.pipelines.recipes.plan import Plan
from agentmill.pipelines.recipes.step import Step
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.manifest import MANIFEST_NAME
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Table, read_columns

SPLIT_BY = {each.__name__: each for each in (EnvironmentSpec, Task, Trajectory)}
"""The records that have a split."""


class ModelBounds(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of one entry of ``models``, at most; ``cost_usd`` is ``None`` without prices, too.

    ``policy`` is how it is asked; a model without requests (``expert``, ``scripted``) is not among them.
    """

    calls: Most
    prompt_tokens: Most
    completion_tokens: Most
    cost_usd: float | None


class StepBounds(msgspec.Struct, frozen=True, kw_only=True):
    """A step, or with ``rounds`` above 1 the same step of so many rounds together.

    ``inputs`` and ``rows`` are what it reads and writes, ``how`` is what its episodes are the product of.
    """

    name: str
    operator: str
    rounds: int
    inputs: Most
    rows: Most
    episodes: Most
    how: str
    models: dict[str, ModelBounds]


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Upper bounds of a run of a recipe: by step, by model, and in sum. ``notes`` say which loops multiply what.

    ``left_out`` are the steps that would not be run, with reasons.
    """

    name: str
    seed: int
    run_dir: str
    steps: list[StepBounds]
    episodes: Most
    models: dict[str, ModelBounds]
    calls: Most
    prompt_tokens: Most
    completion_tokens: Most
    cost_usd: float | None
    notes: list[str]
    left_out: dict[str, str]


def estimate(plan: Plan, enough: bool = False) -> Estimate:
    """The upper bounds of ``plan``.

    Raises ``UserError`` for a table of ``data`` that cannot be read, and for a step that has nothing to work on, with
    ``enough`` also for one that asks for more rows than there can be.
    """
    known = {folder: rows_in(Table.open(folder)) for folder in plan.data.values()}
    bounds: dict[str, Bounds] = {}
    steps = [step for step in plan.steps if step.name not in plan.left_out]
    # What is left out was made before, where something reads it.
    for step in (step for step in plan.steps if step.name in plan.left_out):
        made = (folder for folder in folders_of(step) if (folder / MANIFEST_NAME).exists())
        known.update({folder: rows_in(Table.open(folder)) for folder in made})
    there = frozenset(known)
    for step in steps:
        inputs = {
            role: union(known.get(each.folder, Rows()) for each in outputs) for role, outputs in step.inputs.items()
        }
        primary = step.inputs.get(step.parameters.primary, [])
        if primary and all(each.folder in there and not known[each.folder].n for each in primary):
            refuse_empty([Table.open(each.folder) for each in primary], step.where)
        try:
            if enough:
                step.parameters.check_rows(inputs)
            found = bounds[step.name] = step.parameters.bounds(inputs, step.models)
        except UserError as error:
            raise UserError(f"{step.where}: {error}", error.code) from error
        known[step.folder] = found.rows
        known.update({step.folder / side: rows for side, rows in found.sides.items()})
    return summed(plan, steps, bounds)


def summed(plan: Plan, steps: Sequence[Step], bounds: Mapping[str, Bounds]) -> Estimate:
    """The bounds of all steps as they are shown; rounds of a loop together."""
    configs = {entry_of(model): model for step in steps for model in step.models.values()}
    groups: dict[str, list[Step]] = {}
    for step in steps:
        groups.setdefault(without_round(step.name), []).append(step)
    lines = [line_of(name, group, bounds, configs) for name, group in groups.items()]
    models = by_model([asked for step in steps for asked in asked_by(step, bounds[step.name])], configs)
    costs = [each.cost_usd for each in models.values()]
    return Estimate(
        name=plan.recipe.name,
        seed=plan.recipe.seed,
        run_dir=str(plan.run_dir),
        steps=lines,
        episodes=total(line.episodes for line in lines),
        models=models,
        calls=total(each.calls for each in models.values()),
        prompt_tokens=total(each.prompt_tokens for each in models.values()),
        completion_tokens=total(each.completion_tokens for each in models.values()),
        cost_usd=None if None in costs else float(sum(each for each in costs if each is not None)),
        notes=[*loop_notes(steps, bounds), *unknown_notes(lines, models, configs), *download_notes(plan)],
        left_out=plan.left_out,
    )


def line_of(
    name: str, group: Sequence[Step], bounds: Mapping[str, Bounds], configs: Mapping[str, ModelConfig]
) -> StepBounds:
    """One line for a step, or for that of all rounds."""
    found = [bounds[step.name] for step in group]
    asked = [each for step in group for each in asked_by(step, bounds[step.name])]
    return StepBounds(
        name=name,
        operator=group[0].context.operator,
        rounds=len(group),
        inputs=total(each.reads for each in found),
        rows=total(each.rows.n for each in found),
        episodes=total(each.episodes for each in found),
        how=how(found, len(group)),
        models=by_model(asked, configs),
    )


def how(found: Sequence[Bounds], rounds: int) -> str:
    """The factors of the first of some steps, such as ``96 tasks × 2 attempts × 16 turns``, and the rounds."""
    parts = [
        f"{'?' if n is None else f'{n:,}'} {name}"
        for place, (name, n) in enumerate(found[0].factors.items())
        if place == 0 or n != 1
    ]
    return " × ".join([*parts, *([f"{rounds} rounds"] if rounds > 1 and parts else [])])


def asked_by(step: Step, bounds: Bounds) -> list[tuple[str, Asked]]:
    """What a step asks, by the entries of ``models``."""
    return [(entry_of(step.models[role]), asked) for role, asked in bounds.asked.items()]


def entry_of(model: ModelConfig) -> str:
    """What a model is called in the recipe and in the ledger of a run."""
    return model.entry or model.display_name or model.policy


def by_model(asked: Iterable[tuple[str, Asked]], configs: Mapping[str, ModelConfig]) -> dict[str, ModelBounds]:
    """The sums by model, with what they cost; a ``budget`` bounds these, too."""
    ordered = sorted(asked, key=lambda each: each[0])
    found: dict[str, ModelBounds] = {}
    for name, group in groupby(ordered, key=lambda each: each[0]):
        whole = sum_asked(each for _, each in group)
        found[name] = ModelBounds(
            calls=whole.calls,
            prompt_tokens=whole.prompt_tokens,
            completion_tokens=whole.completion_tokens,
            cost_usd=cost_of(whole, configs[name]),
        )
    return found


def cost_of(asked: Asked, config: ModelConfig) -> float | None:
    """US dollars by the prices of a model, no more than its budget; ``None`` if either is not known."""
    budget = None if config.budget is None else config.budget.usd
    if config.prices is None or asked.prompt_tokens is None or asked.completion_tokens is None:
        return budget
    dear = max(config.prices.input, config.prices.cached_input or 0.0)
    cost = (asked.prompt_tokens * dear + asked.completion_tokens * config.prices.output) / 1e6
    return cost if budget is None else min(cost, budget)


def without_round(name: str) -> str:
    """The name of a step in all rounds of a loop: ``loop/round-02/explored`` is ``loop/*/explored``."""
    return "/".join("*" if ROUND_NAME.fullmatch(part) else part for part in name.split("/"))


def loop_notes(steps: Sequence[Step], bounds: Mapping[str, Bounds]) -> list[str]:
    """What each loop makes of the episodes."""
    of_step: dict[tuple[str, str], list[Step]] = {}
    for step in (step for step in steps if step.context.round):
        loop, *_, inner = re.split(rf"/?{ROUND_NAME.pattern}/", step.name)
        of_step.setdefault((loop, inner), []).append(step)
    # Two loops may have no name; one with more rounds is another one.
    loops: dict[tuple[str, int], list[Step]] = {}
    for (loop, _), turns in of_step.items():
        loops.setdefault((loop, len(turns)), []).extend(turns)
    notes = []
    everything = total(bounds[step.name].episodes for step in steps)
    for (name, rounds), inside in loops.items():
        episodes = total(bounds[step.name].episodes for step in inside)
        called = f"the loop {name!r}" if name else "the loop"
        of = f"{shown(episodes)} of {shown(everything)} episodes"
        notes.append(f"{called} runs {len(inside) // rounds} steps up to {rounds} times: {of}")
    return notes


def unknown_notes(
    lines: Sequence[StepBounds], models: Mapping[str, ModelBounds], configs: Mapping[str, ModelConfig]
) -> list[str]:
    """Where numbers begin to be unknown, and what would make them known."""
    first = next((line for line in lines if line.rows is None and line.inputs is None), None)
    notes = [] if first is None else [f"{first.name}: how many rows it reads is not known before it is run"]
    for name, each in models.items():
        if each.calls is not None and each.prompt_tokens is None and configs[name].endpoints:
            notes.append(f"{name}: its prompts are not bounded; give models.{name}.context_window, in tokens")
        if each.calls is None:
            notes.append(f"{name}: the number of calls is not known; max_turns in the steps that ask it may bound it")
        if configs[name].budget is not None:
            notes.append(f"{name}: its budget ends the run before it is exceeded")
        elif configs[name].prices is None:
            notes.append(f"{name}: no `prices`, so no dollars")
    return notes


def download_notes(plan: Plan) -> list[str]:
    """Which models a run would download."""
    return [f"{model} would be downloaded from the Hub; the run says its size before" for model in uncached(plan)]


def shown(number: Most) -> str:
    """A number for people."""
    return "unknown" if number is None else f"{number:,}"


def rows_in(table: Table) -> Rows:
    """The rows of a table that is there: how many, of which splits, and how long their episodes may be."""
    n, record = table.manifest.counts.written, SPLIT_BY.get(table.manifest.record)
    if record is None:
        return Rows(n=n)
    splits: dict[str | None, int] = {}
    turns: Most = 0 if record is Task else None
    for shard in table.shards():
        columns = ["split", *(["max_turns"] if record is Task else [])]
        found = read_columns(Path(shard), record, columns)
        for each in pc.value_counts(found.column("split")).to_pylist():
            splits[each["values"]] = splits.get(each["values"], 0) + each["counts"]
        if record is Task and found.num_rows:
            turns = max(turns or 0, pc.max(found.column("max_turns")).as_py())
    return Rows(n=n, splits=splits, turns=turns)
