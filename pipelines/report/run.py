"""A run as it lies on the disk: what each of its steps has made so far, whether or not it came to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from pipelines.evaluation import Measures, PairedDifference
from pipelines.line import RECIPE, SUMMARY
from pipelines.recipe import Recipe, read_recipe
from pipelines.report.steps import Planned, planned
from pipelines.stages.evaluate import DIFFERENCE, RESULT, sum_counts, sum_reasons
from pipelines.stages.training import RECORD, Report
from pipelines.summary import StageSummary, Summary
from pipelines.view.sources import Source, found, is_table
from schemas.errors import UserError
from schemas.record import JsonObject
from schemas.tables import Manifest, Table

State = Literal["done", "begun", "not begun"]
T = TypeVar("T")


class Trained(Report, frozen=True):
    """What we read of the record of a training; ``tokens`` and ``loss_tokens`` count what it saw, and had loss on."""

    steps: int | None = None
    tokens: int | None = None
    loss_tokens: int | None = None
    first_loss: float | None = None
    last_loss: float | None = None


class Difference(PairedDifference, frozen=True, kw_only=True):
    """The difference of two models, with their names."""

    model: str
    reference: str


class Comparison(msgspec.Struct, frozen=True):
    """The file of an evaluation: split, then model, then its measures; ``inputs`` are digests of its tables."""

    inputs: dict[str, list[str]]
    splits: dict[str, JsonObject]


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """A step and what it has made: its tables, those of its sides, a training, a comparison of models.

    ``summary`` is there once it is done.
    """

    step: Planned
    state: State
    tables: list[Source]
    summary: StageSummary | None = None
    trained: Trained | None = None
    comparison: Comparison | None = None

    @property
    def name(self) -> str:
        """Its name in the run."""
        return self.step.name

    @property
    def manifests(self) -> list[Manifest]:
        """The manifests of its tables."""
        return [each.table.manifest for each in self.tables]


class Run(msgspec.Struct, frozen=True):
    """A run: its folder, its recipe and its stages in the order they run; ``ended``: it has left its summary."""

    folder: Path
    recipe: Recipe
    stages: list[Stage]
    ended: bool

    @property
    def finished(self) -> bool:
        """Whether all of it is there."""
        return self.ended and all(stage.state == "done" for stage in self.stages)

    @property
    def tables(self) -> list[Source]:
        """The tables of all stages."""
        return [table for stage in self.stages for table in stage.tables]

    def summary(self, evaluation: Mapping[str, JsonObject] | None = None) -> Summary:
        """What is done, as ``agentmill run`` sums it up, with this evaluation."""
        stages = {stage.name: stage.summary for stage in self.stages if stage.summary is not None}
        name, seed, folder = self.recipe.name, self.recipe.seed, str(self.folder)
        return Summary(name=name, seed=seed, run_dir=folder, stages=stages, evaluation=dict(evaluation or {}))


def read_run(folder: Path) -> Run:
    """The run in ``folder``. Raises ``UserError`` if there is none, or if a file of it is damaged."""
    refuse_other(folder)
    recipe = read_recipe(folder / RECIPE, [])
    ended = (folder / SUMMARY).exists() and bool(decoded(folder / SUMMARY, Summary))
    tables = found(folder)
    return Run(folder, recipe, [stage_at(folder, step, tables) for step in planned(recipe)], ended)


def refuse_other(folder: Path) -> None:
    """Raises ``UserError`` unless ``folder`` is that of a run."""
    table = next((each for each in (folder, folder.parent) if is_table(each)), None)
    if table is not None:
        raise UserError(f"{folder} is a table or a part of one, no run; look at it with: agentmill inspect {table}")
    if not (folder / RECIPE).is_file():
        lack = "is no folder" if not folder.is_dir() else f"holds no {RECIPE}"
        raise UserError(f"{folder} {lack}; expected what agentmill run has made, such as runs/quickstart")


def stage_at(run: Path, step: Planned, tables: Sequence[Source]) -> Stage:
    """What the run in the folder ``run`` has of a step."""
    folder = run / step.name
    own = [each for each in tables if each.name == step.name or each.name.startswith(f"{step.name}/")]
    if is_table(folder):
        manifest = Table.open(folder).manifest
        summary = StageSummary.of(
            manifest.counts,
            operator=step.operator,
            seconds=manifest.seconds,
            where=str(folder),
            record=manifest.record,
            reasons=manifest.reasons,
        )
        return Stage(step=step, state="done", tables=own, summary=summary)
    if (folder / RECORD).is_file():
        trained = decoded(folder / RECORD, Trained)
        summary = StageSummary.of(
            trained.counts,
            operator=step.operator,
            seconds=trained.seconds,
            where=str(folder),
            reasons=trained.reasons,
        )
        return Stage(step=step, state="done", tables=own, summary=summary, trained=trained)
    if (folder / RESULT).is_file():
        return evaluation_at(folder, step, own)
    begun = own or (folder.is_dir() and any(folder.iterdir())) or folder.with_name(f".{folder.name}.work").exists()
    return Stage(step=step, state="begun" if begun else "not begun", tables=own)


def evaluation_at(folder: Path, step: Planned, tables: list[Source]) -> Stage:
    """An evaluation; one whose tables are not those that it compared is being made anew."""
    comparison = decoded(folder / RESULT, Comparison)
    check_measures(folder / RESULT, comparison)
    at = {each.name.removeprefix(f"{step.name}/"): each.table for each in tables}
    for pair, digests in comparison.inputs.items():
        parts = [at.get(f"{pair}/{part}") for part in ("trajectories", "verdicts")]
        if [part and part.digest for part in parts] != digests:
            return Stage(step=step, state="begun", tables=tables)
    played = [each.table.manifest for each in tables if each.record == "Trajectory"]
    summary = StageSummary.of(
        sum_counts(played),
        operator=step.operator,
        seconds=sum(each.table.manifest.seconds for each in tables),
        where=str(folder),
        reasons=sum_reasons(played),
    )
    return Stage(step=step, state="done", tables=tables, summary=summary, comparison=comparison)


def check_measures(path: Path, comparison: Comparison) -> None:
    """Raises ``UserError`` unless all that was measured is there."""
    try:
        for models in comparison.splits.values():
            for model, measures in models.items():
                msgspec.convert(measures, Difference if model == DIFFERENCE else Measures)
    except msgspec.ValidationError as error:
        raise damaged(path, error) from error


def decoded(path: Path, content: type[T]) -> T:
    """A JSON file of a run. Raises ``UserError`` if it is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=content)
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> UserError:
    """What to say of a file that cannot be read."""
    return UserError(f"{path} is damaged ({error}); remove it and run the recipe again, which makes it anew")
