"""``audit_judge``: the verdicts of a judge against reference verdicts or human labels of the same trajectories.

The result is ``calibration.json`` in the folder of the step. It depends on the tables and the parameters alone.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import msgspec
import polars as pl
from pydantic import Field

from agentmill.pipelines.calibration import (
    METHOD,
    Calibration,
    JudgedBy,
    agreement,
    confusion_of,
    false_negative_rate,
    false_positive_rate,
    judged_by,
    judges_in,
    kappa,
    kappa_text,
)
from agentmill.pipelines.operators.bounds import Bounds, Rows
from agentmill.pipelines.operators.lookup import Shards
from agentmill.pipelines.operators.operator import Inputs, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.run_context import RunContext
from agentmill.pipelines.operators.task_step import StepResult, TaskStep
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.conditions import AnnotationNeed
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.records.manifest import write_atomically
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Label, Verdict
from agentmill.schemas.tables import Counts, Table, read_columns

RESULT = "calibration.json"
OF, REFERENCE, TRAJECTORIES = "of", "reference", "trajectories"
FEW_PAIRS = 30
"""Fewer pairs than these come with a warning: their intervals are wide."""

LOW_KAPPA = 0.4
"""A kappa below comes with a warning; up to there J. Landis and G. Koch (Biometrics 33, 1977) call agreement fair."""

ASKED = re.compile(r"(?:judge|jury):(.+)")
SCHEME = "bundled:"


class Need(AnnotationNeed, frozen=True):
    """A name that is asked for in the tables of ``tables``, which is no role of annotations."""

    tables: str

    @property
    def role(self) -> str:
        """The role of the tables that may hold it."""
        return self.tables


class Decision(NamedTuple):
    """What a verdict or a label says of a trajectory. ``detail`` is why it neither passed nor failed; of a label, its
    value."""

    passed: bool | None
    detail: str = ""


class AuditJudge(TaskStep):
    """Agreement, Cohen's kappa and the error rates of a judge against reference verdicts or human labels."""

    result: ClassVar[str] = RESULT
    primary: ClassVar[str] = OF
    verb: ClassVar[str | None] = "verify"
    table_roles: ClassVar[Sequence[str]] = (OF, REFERENCE, TRAJECTORIES)

    of: TableNames = Field(description="tables with the verdicts of the judge")
    verdict: str | None = Field(
        None, description="the verdict to audit; by default the only one on whole trajectories in these tables"
    )
    reference: TableNames = Field(description="tables of verdicts, or of labels, that are taken for right")
    reference_name: str | None = Field(
        None, description="the verdict or label to compare with; by default the only one on whole trajectories there"
    )
    positive: list[str] | None = Field(
        None, min_length=1, description="the values of the label that count as passed; all others count as failed"
    )
    trajectories: TableNames | None = Field(
        None, description="tables of the trajectories, for a warning where one model family wrote and judged them"
    )

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """A calibration, which is no table."""
        expect(reads, OF, "Verdict")
        labels = expect(reads, REFERENCE, "Verdict", "Label") == "Label"
        if labels and self.positive is None:
            raise UserError(
                "`reference` holds labels, and `positive` is not given\n"
                "name the values that count as passed, for example positive: [correct]",
                ErrorCode.NEEDS_ANOTHER_KEY,
            )
        if self.positive is not None and not labels:
            raise UserError(
                "`positive` is for labels, and `reference` holds verdicts, which say themselves whether they passed; "
                "leave it out",
                ErrorCode.KEY_NOT_FOR_THIS,
            )
        if self.trajectories:
            expect(reads, TRAJECTORIES, "Trajectory")
        return "Calibration"

    def bounds(self, rows: Mapping[str, Rows], models: Mapping[str, ModelConfig]) -> Bounds:
        """As ``Operator.bounds``: it writes no rows."""
        del models
        return Bounds(reads=rows[OF].n, rows=Rows(n=0))

    def annotation_needs(self) -> Iterator[AnnotationNeed]:
        """The names that are given, in the tables of their roles."""
        kind = "verdict" if self.positive is None else "label"
        if self.verdict is not None:
            yield Need("verdict", "verdict", self.verdict, OF)
        if self.reference_name is not None:
            yield Need("reference_name", kind, self.reference_name, REFERENCE)

    def check_inputs(self, inputs: Inputs) -> None:
        """Both names have annotations of whole trajectories. Raises ``UserError``."""
        self.names(inputs)

    def names(self, inputs: Inputs) -> tuple[str, str]:
        """The names that are compared. Raises ``UserError`` for one that is not there, or of several none is given."""
        judged = one_name(inputs, OF, self.verdict, "verdict")
        return judged, one_name(inputs, REFERENCE, self.reference_name, "reference_name")

    def run(
        self, inputs: Inputs, models: Mapping[str, ModelConfig], context: StepContext, run: RunContext
    ) -> StepResult:
        """Compare, or find it compared."""
        del models
        file = context.folder / RESULT
        found: Calibration | None = None
        # One that is damaged is made again: all that is in it comes from the tables.
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
            found = msgspec.json.decode(file.read_bytes(), type=Calibration)
        made_from = (digests(inputs), self.provenance_config(context), METHOD)
        if found is not None and (found.inputs, found.config, found.method) == made_from:
            run.print_line(f"{context.name}: already done")
        else:
            run.verify(inputs)
            run.begin()
            found = self.calibrate(inputs, context)
            text = msgspec.json.format(msgspec.json.encode(found), indent=2)
            write_atomically(file, text + b"\n", context.folder)
        # It takes seconds, and with the time in it two equal audits would differ.
        return StepResult(counts=found.counts, reasons=found.reasons, seconds=0.0, notes=found.lines)

    def calibrate(self, inputs: Inputs, context: StepContext) -> Calibration:
        """The calibration of these tables. Raises ``UserError`` for tables that hold different verdicts on one
        trajectory, and for labels that have none of the values of ``positive``."""
        name, reference_name = self.names(inputs)
        judged = decisions(tables_of(inputs, OF), name)
        references = decisions(tables_of(inputs, REFERENCE), reference_name, self.positive)
        pairs, reasons = joined(judged, references)
        table = confusion_of(pairs.values())
        found = Calibration(
            name=name,
            reference_name=reference_name,
            n=table.n,
            agreement=agreement(table),
            kappa=kappa(table),
            confusion=table,
            false_positive_rate=false_positive_rate(table),
            false_negative_rate=false_negative_rate(table),
            judged_by=judged_by(judges_in(tables_of(inputs, OF), pairs.keys()).get(name, {})),
            counts=Counts(read=len(judged), used=table.n, dropped=reasons.total(), written=0),
            reasons=dict(sorted(reasons.items())),
            unjudged=len(references.keys() - judged.keys()),
            notes=[],
            config=self.provenance_config(context),
            inputs=digests(inputs),
        )
        families = shared_families(found.judged_by, generators(tables_of(inputs, TRAJECTORIES), pairs.keys()))
        return msgspec.structs.replace(found, notes=[*warnings(found), *self._unused_values(references), *families])

    def _unused_values(self, references: Mapping[str, Decision]) -> list[str]:
        """A warning for values of ``positive`` that no label has: one may be misspelt."""
        values = {each.detail for each in references.values()}
        absent = [value for value in self.positive or () if value not in values]
        return [
            f"warning: no label has the value {value!r} of `positive`.{near_match(value, values)}" for value in absent
        ]


def digests(inputs: Inputs) -> dict[str, list[str]]:
    """The digests of the tables by role."""
    return {role: [table.digest for table in tables] for role, tables in inputs.items()}


def one_name(inputs: Inputs, role: str, given: str | None, key: str) -> str:
    """The name ``given``, or else the only one of the annotations of whole trajectories. Raises ``UserError``."""
    tables = tables_of(inputs, role)
    names: set[str] = set()
    for table in tables:
        for path in table.shards():
            frame = pl.DataFrame(pl.from_arrow(read_columns(path, table.record_type, ["name", "item"])))
            names.update(frame.filter(pl.col("item").is_null()).get_column("name").unique().to_list())
    if given is not None and given not in names:
        there = ", ".join(sorted(names)) or "none"
        raise UserError(
            f"`{key}` asks for {given!r}, which no table of `{role}` holds of a whole trajectory\n"
            f"names there: {there}.{near_match(given, names)}",
            ErrorCode.ANNOTATION_MISSING,
        )
    if given is not None:
        return given
    # A part (NAME/PART) is a verdict on what NAME checks apart.
    whole = sorted(each for each in names if each.partition("/")[0] not in names - {each})
    if not whole:
        raise UserError(
            f"the tables of `{role}` say nothing of a whole trajectory; name tables that do", ErrorCode.NO_RECORDS
        )
    if len(whole) > 1:
        raise UserError(
            f"the tables of `{role}` hold {', '.join(whole)}; expected one name\ngive the one that is meant: {key}: …",
            ErrorCode.SEVERAL_MATCH,
        )
    return whole[0]


def decisions(tables: Sequence[Table], name: str, positive: Sequence[str] | None = None) -> dict[str, Decision]:
    """What the verdicts, or with ``positive`` the labels, of this name say of whole trajectories, by trajectory id.

    Raises ``UserError`` where two differ, and for labels without any of the values ``positive``.
    """
    known: dict[str, Verdict | Label] = {}
    record_type: type[Verdict | Label] = Verdict if positive is None else Label
    shards = Shards(tables, record_type, ["item", "passed"] if positive is None else ["item"])
    for each in shards:
        if each.item is None and each.name == name:
            shards.put(known, each.trajectory_id, each, f"{name!r} of trajectory {each.trajectory_id}")
    values = {each.value for each in known.values() if isinstance(each, Label)}
    if positive is not None and values.isdisjoint(positive):
        raise UserError(
            f"no label {name!r} has a value of `positive` ({', '.join(positive)})\n"
            f"values there: {', '.join(sorted(values))}.{near_match(positive[0], values)}",
            ErrorCode.ANNOTATION_MISSING,
        )
    return {key: decision(each, positive or ()) for key, each in known.items()}


def decision(record: Verdict | Label, positive: Sequence[str]) -> Decision:
    """Passed or failed, or why neither."""
    if isinstance(record, Label):
        return Decision(record.value in positive, record.value)
    if record.status != "scored":
        return Decision(None, "error" if record.status == "error" else "unscored")
    return Decision(record.passed, "" if record.passed is not None else "without_passed")


def joined(
    judged: Mapping[str, Decision], references: Mapping[str, Decision]
) -> tuple[dict[str, tuple[bool, bool]], Counter[str]]:
    """(reference, judge) by trajectory id, and why other verdicts of the judge have no pair."""
    pairs: dict[str, tuple[bool, bool]] = {}
    reasons: Counter[str] = Counter()
    for trajectory_id, judge in judged.items():
        reference = references.get(trajectory_id)
        if judge.passed is None:
            reasons[f"judge_{judge.detail}"] += 1
        elif reference is None:
            reasons["no_reference"] += 1
        elif reference.passed is None:
            reasons[f"reference_{reference.detail}"] += 1
        else:
            pairs[trajectory_id] = (reference.passed, judge.passed)
    return pairs, reasons


def warnings(found: Calibration) -> list[str]:
    """What limits a calibration."""
    lines = []
    if not found.n:
        why = ", ".join(f"{reason} {n:,}" for reason, n in found.reasons.items()) or "there are no verdicts"
        lines.append(f"warning: no pair to compare ({why}); name tables of verdicts on the same trajectories")
    elif found.n < FEW_PAIRS:
        lines.append(f"warning: only {found.n} pairs, so the intervals are wide; compare {FEW_PAIRS} or more")
    if found.kappa.value is not None and found.kappa.value < LOW_KAPPA:
        lines.append(f"warning: kappa is {kappa_text(found.kappa)}, and below {LOW_KAPPA}; do not rely on this judge")
    if found.kappa.note and found.n:
        lines.append(f"warning: {found.kappa.note}")
    if len(found.judged_by) > 1:
        lines.append(f"warning: {len(found.judged_by)} judges or prompts are measured together; audit each by itself")
    if found.unjudged:
        lines.append(f"{found.unjudged:,} trajectories have a reference and no verdict of the judge")
    return lines


def generators(tables: Sequence[Table], trajectories: Collection[str]) -> set[str]:
    """The models that wrote these trajectories. Raises ``UserError`` for a shard that cannot be read."""
    names: set[str] = set()
    for path in (path for table in tables for path in table.shards()):
        frame = pl.DataFrame(pl.from_arrow(read_columns(path, Trajectory, ["trajectory_id", "generation"])))
        mine = frame.filter(pl.col("trajectory_id").is_in(list(trajectories)))
        names.update(mine.get_column("generation").struct.field("model").drop_nulls().unique().to_list())
    return names


def shared_families(judges: Sequence[JudgedBy], writers: set[str]) -> list[str]:
    """A warning for each family that both judged and wrote the trajectories: models prefer text of their own kind."""
    asked = {model: family(model) for each in judges for model in judge_models(each.judge)}
    wrote = {model: family(model) for model in writers}
    return [
        f"warning: {', '.join(sorted(model for model in asked if asked[model] == shared))} judged what "
        f"{', '.join(sorted(model for model in wrote if wrote[model] == shared))} wrote, and both are of the family "
        f"{shared}; judges prefer text of their own family"
        for shared in sorted(set(asked.values()) & set(wrote.values()) - {""})
    ]


def judge_models(judge: str) -> list[str]:
    """The models in ``judge:MODEL@REVISION`` or ``jury:A@R,B@R``; none for a verifier that asks no model."""
    found = ASKED.fullmatch(judge)
    return [] if found is None else [each.rpartition("@")[0] or each for each in found[1].split(",")]


def family(model: str) -> str:
    """The leading letters of a model's own name, in lower case; empty for a name that begins otherwise.

    ``Qwen/Qwen2.5-7B`` is of the family ``qwen``, ``bundled:smollm2-135m-instruct`` of ``smollm``.
    """
    own = model.removeprefix(SCHEME).rstrip("/").rpartition("/")[2]
    letters = re.match(r"[a-z]+", own.lower())
    return letters[0] if letters else ""
