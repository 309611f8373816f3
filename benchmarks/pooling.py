"""Pool the evaluations of the same recipe under several seeds: effects with intervals, over all environments together.

An effect is the success of a model minus that of the control on the same tasks. The statistics are those of
``agentmill.pipelines.evaluation``. Environments and tasks of different seeds are different ones, whatever their ids.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import stdev

import msgspec

from agentmill.pipelines.evaluation import (
    BY,
    Episode,
    Measures,
    PairedDifference,
    episodes_of,
    measure,
    paired_difference,
)
from agentmill.pipelines.operators.evaluate import CONSTRAINED, Evaluate, begun_episodes, measures_of_groups
from agentmill.pipelines.operators.task_groups import TaskGroups
from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.plan import make_plan
from agentmill.pipelines.recipes.run_folder import RECIPE
from agentmill.pipelines.recipes.step import Step
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.tables import Table
from agentmill.synthesis.generators.wrapping import OPERATOR as WRAPPED

ACROSS = {"wording": ("plain", "renamed")}
"""Recipes in which one model is compared with itself: the evaluation that is the control, and the other one."""


class Run(msgspec.Struct, frozen=True):
    """A run of a recipe under a seed, in ``folder``, or what was kept of it in ``file``."""

    seed: int
    name: str
    folder: Path
    finished: bool = True
    file: Path | None = None


class Evaluation(msgspec.Struct, kw_only=True):
    """The episodes of an ``evaluate`` step under all seeds: split, then label, then episodes.

    ``models`` are those of the step, in its order; ``begun`` counts the episodes that were started. ``groups`` has
    (field, value) by task, of the fields in ``by``.
    """

    recipe: str
    name: str
    models: list[str]
    episodes: dict[str, dict[str, list[Episode]]]
    begun: dict[str, dict[str, int]]
    by: list[str] = []
    groups: dict[str, list[tuple[str, str]]] = {}


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a finished run, so that it can be pooled without its tables; ``recipe`` as in an attempt."""

    seed: int
    name: str
    recipe: str
    evaluations: list[Evaluation]


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """A model against a control on one split, by the tasks that both have; ``unpaired`` counts those of one side only.

    ``by_seed`` has the difference under each seed, and ``spread`` is their standard deviation; ``None`` for a single
    seed.
    """

    recipe: str
    evaluation: str
    split: str
    control: str
    treatment: str
    control_success: float
    treatment_success: float
    difference: PairedDifference
    by_seed: dict[str, float]
    spread: float | None
    unpaired: int


def pool(kept: Iterable[Kept]) -> list[Evaluation]:
    """The evaluations of finished runs, those of several seeds together."""
    found: dict[tuple[str, str], Evaluation] = {}
    for run in kept:
        for evaluation in run.evaluations:
            add(found, evaluation)
    return list(found.values())


def evaluations_of(run: Run) -> list[Evaluation]:
    """The evaluations of a finished run, read from its tables. Raises ``UserError`` where one is not there."""
    steps = make_plan(read_recipe(run.folder / RECIPE, ())).steps
    return [evaluation_of(each, each.parameters, run) for each in steps if isinstance(each.parameters, Evaluate)]


def add(found: dict[tuple[str, str], Evaluation], more: Evaluation) -> None:
    """Put the episodes of one more seed to those of the others."""
    known = found.setdefault((more.recipe, more.name), more)
    if known is more:
        return
    for split, labels in more.episodes.items():
        for label, episodes in labels.items():
            known.episodes.setdefault(split, {}).setdefault(label, []).extend(episodes)
            begun = known.begun.setdefault(split, {})
            begun[label] = begun.get(label, 0) + more.begun[split][label]
    known.groups |= more.groups


def evaluation_of(step: Step, evaluate: Evaluate, run: Run) -> Evaluation:
    """The episodes of one run of an evaluation."""
    inputs = {role: [Table.open(each.folder) for each in outputs] for role, outputs in step.inputs.items()}
    paired = step.name in ACROSS.get(run.name, ())[1:]
    originals = dict(original_tasks(inputs["tasks"])) if paired else {}
    episodes: dict[str, dict[str, list[Episode]]] = defaultdict(dict)
    begun: dict[str, dict[str, int]] = defaultdict(dict)
    for play in evaluate.runs():
        folder = step.folder / play.split / play.label
        trajectories, verdicts = Table.open(folder / "trajectories"), Table.open(folder / "verdicts")
        own = episodes_of(trajectories.rows(), verdicts.rows())
        episodes[play.split][play.label] = [of_seed(each, run.seed, originals) for each in own]
        begun[play.split][play.label] = begun_episodes(trajectories)
    groups: dict[str, list[tuple[str, str]]] = {}
    if evaluate.by:
        found = TaskGroups(evaluate.by, inputs, "tasks", "evaluate")
        found.load()
        named = {f"{run.seed}/{originals.get(task, task)}": values for task, values in found.of.items()}
        played = {each.task_id for labels in episodes.values() for own in labels.values() for each in own}
        groups = {task: named[task] for task in sorted(played) if task in named}
    return Evaluation(
        recipe=run.name,
        name=step.name,
        models=[*evaluate.models],
        episodes=dict(episodes),
        begun=dict(begun),
        by=evaluate.by,
        groups=groups,
    )


def original_tasks(tables: Sequence[Table]) -> Iterator[tuple[str, str]]:
    """Tasks in wrapped environments, each with the one that it was made from."""
    for task in (task for table in tables for task in table.rows()):
        if task.lineage is not None and task.lineage.operator == WRAPPED:
            yield task.task_id, task.lineage.parents[0]


def of_seed(episode: Episode, seed: int, originals: Mapping[str, str]) -> Episode:
    """The episode with ids that no other seed has."""
    task = originals.get(episode.task_id, episode.task_id)
    return msgspec.structs.replace(episode, task_id=f"{seed}/{task}", environment_id=f"{seed}/{episode.environment_id}")


def effects(evaluations: Sequence[Evaluation]) -> list[Effect]:
    """Each model against the first one of its evaluation, and the comparisons of ``ACROSS``."""
    found: list[Effect] = []
    for each in evaluations:
        for label in each.models[1:]:
            sides = ((each, each.models[0]), (each, label))
            found += [effect for mode in ("", CONSTRAINED) for effect in compared(*sides, mode)]
    known = {(each.recipe, each.name): each for each in evaluations}
    for recipe, (control, treatment) in ACROSS.items():
        if (recipe, control) in known and (recipe, treatment) in known:
            first, second = known[recipe, control], known[recipe, treatment]
            found += compared((first, first.models[-1]), (second, second.models[-1]), "")
    return found


def compared(control: tuple[Evaluation, str], treatment: tuple[Evaluation, str], mode: str) -> Iterator[Effect]:
    """The effect on each split on which both models played in this ``mode``: a suffix of their labels."""
    (first, base), (second, model) = control, treatment
    for split in first.episodes:
        before = first.episodes[split].get(base + mode)
        after = second.episodes.get(split, {}).get(model + mode)
        sides = [{each.task_id for each in episodes or ()} for episodes in (before, after)]
        shared = sides[0] & sides[1]
        before, after = ([each for each in episodes or () if each.task_id in shared] for episodes in (before, after))
        difference = paired_difference(before, after)
        if difference is None:
            continue
        by_seed = {seed: found.value for seed, found in differences_by_seed(before, after)}
        apart = first.name != second.name
        yield Effect(
            recipe=first.recipe,
            evaluation=second.name,
            split=split,
            control=f"{base}{mode}{f' ({first.name})' if apart else ''}",
            treatment=f"{model}{mode}{f' ({second.name})' if apart else ''}",
            control_success=success(before),
            treatment_success=success(after),
            difference=difference,
            by_seed=by_seed,
            spread=stdev(by_seed.values()) if len(by_seed) > 1 else None,
            unpaired=len(sides[0] ^ sides[1]),
        )


def differences_by_seed(before: Sequence[Episode], after: Sequence[Episode]) -> Iterator[tuple[str, PairedDifference]]:
    """The difference under each seed."""
    sides: dict[str, tuple[list[Episode], list[Episode]]] = defaultdict(lambda: ([], []))
    for place, episodes in enumerate((before, after)):
        for episode in episodes:
            sides[episode.task_id.partition("/")[0]][place].append(episode)
    for seed, (base, tuned) in sorted(sides.items(), key=lambda each: int(each[0])):
        if (found := paired_difference(base, tuned)) is not None:
            yield seed, found


def success(episodes: Sequence[Episode]) -> float:
    """The share of tasks that were solved."""
    found = measure(episodes).success
    assert found is not None  # there are episodes
    return found


def measures(evaluation: Evaluation) -> JsonObject:
    """Split, then model, then its measures under all seeds, with those of groups of tasks under ``by``."""
    results: JsonObject = {}
    for split, labels in evaluation.episodes.items():
        results[split] = {}
        for label, episodes in labels.items():
            unscored = evaluation.begun[split][label] - len(episodes)
            found: Measures = msgspec.structs.replace(measure(episodes), unscored=unscored)
            results[split][label] = msgspec.to_builtins(found)
            if evaluation.by:
                results[split][label][BY] = measures_of_groups(episodes, evaluation.by, evaluation.groups)
    return results
