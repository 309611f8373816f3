"""A run as it lies on the disk: what each of its steps has made so far, whether or not it came to its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from agentmill.pipelines.calibration import Calibration
from agentmill.pipelines.engine.operation import SIDES
from agentmill.pipelines.engine.provenance import Provenance
from agentmill.pipelines.evaluation import Measures, PairedDifference
from agentmill.pipelines.operators import audit_judge
from agentmill.pipelines.operators.evaluate import DIFFERENCE, RESULT, sum_counts, sum_reasons
from agentmill.pipelines.operators.selection import selection_counts
from agentmill.pipelines.operators.train import RECORD, TRAININGS, Report
from agentmill.pipelines.recipes.grammar import Recipe, read_recipe
from agentmill.pipelines.recipes.outline import Planned, planned
from agentmill.pipelines.recipes.run_folder import RECIPE, SUMMARY
from agentmill.pipelines.recipes.summary import StageSummary, Summary, with_spending
from agentmill.pipelines.view.sources import Source, found, is_table
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.manifest import MANIFEST_NAME, read_manifest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.tables import Manifest, Table

State = Literal["done", "begun", "not begun", "made from other inputs"]
STALE: Literal["made from other inputs"] = "made from other inputs"
"""Of what is complete, but not of this run: an earlier one left it, or what it reads is being made anew."""

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
    """A step and what it has made: its tables, those of its sides, a training, a comparison of models, a calibration.

    ``summary`` is there once it is done.
    """

    step: Planned
    state: State
    tables: list[Source]
    summary: StageSummary | None = None
    trained: Trained | None = None
    comparison: Comparison | None = None
    calibration: Calibration | None = None

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
        made = Summary(name=name, seed=seed, run_dir=folder, stages=stages, evaluation=dict(evaluation or {}))
        return with_spending(made)


def read_run(folder: Path) -> Run:
    """The run in ``folder``. Raises ``UserError`` if there is none, or if a file of it is damaged."""
    refuse_other(folder)
    recipe = read_recipe(folder / RECIPE, [])
    # Its presence is enough here; it is read so that a damaged one is an error.
    ended = (folder / SUMMARY).exists() and bool(decoded(folder / SUMMARY, Summary))
    return Run(folder, recipe, stages_at(folder, planned(recipe, folder)), ended)


def refuse_other(folder: Path) -> None:
    """Raises ``UserError`` unless ``folder`` is that of a run."""
    table = next((each for each in (folder, folder.parent) if is_table(each)), None)
    if table is not None:
        raise UserError(
            f"{folder} is a table or a part of one, no run; look at it with: agentmill inspect {table}",
            ErrorCode.NOT_A_RUN,
        )
    if not (folder / RECIPE).is_file():
        lack = "is no folder" if not folder.is_dir() else f"holds no {RECIPE}"
        raise UserError(
            f"{folder} {lack}; expected what agentmill run has made, such as runs/quickstart", ErrorCode.NOT_A_RUN
        )


def stages_at(run: Path, steps: Sequence[Planned]) -> list[Stage]:
    """What the run in the folder ``run`` has of its steps."""
    own = by_step(found(run), [step.name for step in steps])
    stages: dict[str, Stage] = {}
    for step in steps:
        stage = stage_at(run, step, own[step.name])
        stages[step.name] = compared(run, stage, [stages[name] for name in step.reads])
    return list(stages.values())


def by_step(tables: Iterable[Source], names: Sequence[str]) -> dict[str, list[Source]]:
    """The tables of each step: one is of the step with the longest of ``names`` that it is in, or of none."""
    own: dict[str, list[Source]] = {name: [] for name in names}
    for table in tables:
        parts = table.name.split("/")
        places = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
        owner = next((place for place in places if place in own), None)
        if owner is not None:
            own[owner].append(table)
    return own


def compared(run: Path, stage: Stage, read: Sequence[Stage]) -> Stage:
    """A stage without what was made from other tables than those that ``read`` and itself have now."""
    there = {each.table.digest for known in (stage, *read) for each in known.tables}
    there |= {Table.open(run / known.name).digest for known in read if (run / known.name / MANIFEST_NAME).is_file()}
    step, plan = stage.step, run / TRAININGS / stage.name / "plan.json"
    tables = [each for each in stage.tables if made_from(step, each.table.manifest.inputs, there)]
    if stage.state != "done":
        return msgspec.structs.replace(stage, tables=tables)
    inputs = decoded(plan, Provenance).inputs if stage.trained is not None and plan.is_file() else {}
    if stage.calibration is not None:
        inputs = {digest: digest for digests in stage.calibration.inputs.values() for digest in digests}
    complete = len(tables) == len(stage.tables) and made_from(step, inputs, there)
    if complete and all(each.state == "done" for each in read):
        return stage
    return Stage(step=step, state=STALE, tables=[])


def made_from(step: Planned, inputs: Mapping[str, str], there: Set[str]) -> bool:
    """Whether the digests of ``inputs`` can be those of the tables that are ``there``, and of tables from elsewhere.

    Where it is not known what a step reads, they can.
    """
    strange = sum(digest not in there for digest in inputs.values())
    return strange <= len(step.data) or not (step.reads or step.data)


def refuse_damaged(folder: Path, step: Planned) -> None:
    """Raises ``UserError`` if a manifest of a step is there and is none of ours: no step of a run leaves another."""
    places = [folder, *(folder / side for side in SIDES)]
    if step.operator == "evaluate":
        places += [path.parent for path in folder.glob(f"*/*/*/{MANIFEST_NAME}")]
    for place in places:
        if (place / MANIFEST_NAME).is_file() and not is_table(place):
            read_manifest(place)


def stage_at(run: Path, step: Planned, own: list[Source]) -> Stage:
    """What the run in the folder ``run`` has of a step, whose tables are ``own``."""
    folder = run / step.name
    refuse_damaged(folder, step)
    if is_table(folder):
        manifest = Table.open(folder).manifest
        summary = StageSummary.of(
            manifest.counts,
            operator=step.operator,
            seconds=manifest.seconds,
            where=str(folder),
            record=manifest.record,
            reasons=manifest.reasons,
            **selection_counts(manifest),
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
            notes=trained.notes,
        )
        return Stage(step=step, state="done", tables=own, summary=summary, trained=trained)
    if (folder / RESULT).is_file():
        return evaluation_at(folder, step, own)
    if (folder / audit_judge.RESULT).is_file():
        return calibration_at(folder, step, own)
    # A training writes into the hidden folder until its model is complete.
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


def calibration_at(folder: Path, step: Planned, tables: list[Source]) -> Stage:
    """A calibration of a judge."""
    calibration = decoded(folder / audit_judge.RESULT, Calibration)
    summary = StageSummary.of(
        calibration.counts,
        operator=step.operator,
        seconds=0.0,
        where=str(folder),
        reasons=calibration.reasons,
        notes=calibration.lines,
    )
    return Stage(step=step, state="done", tables=tables, summary=summary, calibration=calibration)


def check_measures(path: Path, comparison: Comparison) -> None:
    """Raises ``UserError`` unless all that was measured is there."""
    if not comparison.splits:
        raise damaged(path, ValueError("it compares nothing"))
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
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError, RecursionError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> UserError:
    """What to say of a file that cannot be read."""
    return UserError(
        f"{path} is damaged ({error}); remove it and run the recipe again, which makes it anew", ErrorCode.DAMAGED_FILE
    )
