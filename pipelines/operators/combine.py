"""``combine``: one verdict per trajectory from several verdicts, values and outcomes.

Scores are combined by their weighted mean, or by the least, the greatest or the product of them. A score with a veto
fails the whole where it is 0, whatever the others are. What nobody knows is never counted as 0 unless the recipe does
so by ``missing``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal

import msgspec
from pydantic import Field, model_validator

from agentmill.pipelines.engine.operation import AnyOperation, Blamed, Result, RowOperation, Unit
from agentmill.pipelines.operators.annotations import AnnotationIndex, check_annotation_needs, unasked_notes
from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext, TableNames, expect
from agentmill.pipelines.operators.verify import unscored_notes, verdict_measures
from agentmill.schemas.conditions import reaches
from agentmill.schemas.config import Config
from agentmill.schemas.record_kinds import ANNOTATION_ROLES
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Verdict
from agentmill.schemas.views.annotations import Annotations, Criterion, score

JUDGE = "combine"
ROLES = ("verdicts", "values")
"""The tables that scores may be of; outcomes and rewards are in the trajectories themselves."""

CLIPPED = "clipped."
"""Before a score: how many of its values lie outside of its range."""

Method = Literal["mean", "min", "max", "product"]


class WeightedScore(Config):
    """One score that is combined: where it comes from, its scale, and how much it counts."""

    score: Criterion = Field(
        description="outcome, reward, verdict:NAME (its score), passed:NAME (1 or 0) or value:NAME"
    )
    weight: float = Field(
        default=1.0, ge=0, description="in the mean; 0, with any method, for a score that is only a veto"
    )
    from_: float | None = Field(default=None, alias="from", description="the value that counts as 0; needs `to`")
    to: float | None = Field(default=None, description="the value that counts as 1; below `from`, less is better")
    missing: float | None = Field(
        default=None, description="what counts where the score is unknown; by default it is left out"
    )
    veto: bool = Field(default=False, description="the whole fails where this score, rescaled, is 0 or less")
    veto_below: float | None = Field(default=None, description="of a veto: the whole fails below this instead")

    @model_validator(mode="after")
    def _goes_together(self) -> WeightedScore:
        if (self.from_ is None) is not (self.to is None) or (self.from_ is not None and self.from_ == self.to):
            raise ValueError("a range has two ends that differ: `from` counts as 0, `to` as 1")
        if self.veto_below is not None and not self.veto:
            raise ValueError(f"`veto_below: {self.veto_below:g}` needs `veto: true`")
        if not self.weight and not self.veto:
            raise ValueError(f"`{self.score}` has the weight 0 and no veto, so it changes nothing; leave it out")
        return self

    def count(self, trajectory: Trajectory, annotations: Annotations) -> CountedScore:
        """This score of a trajectory, rescaled."""
        value = score(self.score, trajectory, annotations)
        return CountedScore(self, value, self.missing if value is None else self._rescaled(value))

    def clips(self, value: float) -> bool:
        """Whether a value lies outside of the range."""
        return self.from_ is not None and self.to is not None and not 0 <= self._position(value) <= 1

    def vetoes(self, counted: float) -> bool:
        """Whether the rescaled score fails the whole."""
        return counted <= 0 if self.veto_below is None else not reaches(counted, self.veto_below)

    def _rescaled(self, value: float) -> float:
        return value if self.from_ is None else min(1.0, max(0.0, self._position(value)))

    def _position(self, value: float) -> float:
        assert self.from_ is not None
        assert self.to is not None
        return (value - self.from_) / (self.to - self.from_)


class CountedScore(msgspec.Struct, frozen=True):
    """A score of one trajectory: ``value`` as found, ``None`` if unknown, and what is ``counted``, if anything is."""

    given: WeightedScore
    value: float | None
    counted: float | None

    def evidence(self) -> JsonObject:
        """As the verdict stores it."""
        clipped = self.value is not None and self.given.clips(self.value)
        return {
            "score": self.given.score,
            "value": self.value,
            "counted": self.counted,
            "weight": self.given.weight,
            **({"clipped": True} if clipped else {}),
        }


class Combine(Operator):
    """One verdict per trajectory from verdicts, values and outcomes: weighted, least, greatest or product; vetoes."""

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "verify"
    table_roles: ClassVar[Sequence[str]] = ("of", *ROLES)

    of: TableNames = Field(description="tables of trajectories")
    verdicts: TableNames | None = Field(default=None, description="tables of verdicts on them")
    values: TableNames | None = Field(default=None, description="tables of values of them")
    scores: list[WeightedScore] = Field(min_length=1, description="what is combined, each with its weight")
    method: Method = Field(default="mean", description="the weighted mean, the least, the greatest or the product")
    pass_at: float = Field(default=0.5, description="the combined score that passes, unless a veto fails the whole")
    name: str = Field(default="combine", min_length=1, description="the name of its verdicts")

    @model_validator(mode="after")
    def _scores_go_together(self) -> Combine:
        names = [each.score for each in self.scores]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"`scores` has {twice!r} twice; give it once, with its whole weight")
        # A weight of 0 keeps a score out of every method, so it is only a veto.
        weighted = next((each.score for each in self.scores if each.weight and "weight" in each.model_fields_set), None)
        if self.method != "mean" and weighted is not None:
            raise ValueError(f"`weight` of {weighted!r} counts in the mean; `method: {self.method}` has no weights")
        if not any(each.weight for each in self.scores):
            raise ValueError("all weights are 0, so no score is combined; give one a weight above 0")
        return self

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Verdicts, on trajectories. Raises ``UserError`` for tables of others, and for a role that is missing."""
        expect(reads, "of", "Trajectory")
        for role in ROLES:
            if role in reads:
                expect(reads, role, ANNOTATION_ROLES[role])
        check_annotation_needs(self, reads)
        return "Verdict"

    def annotations(self) -> Sequence[str]:
        """Its verdicts."""
        return [self.name]

    def notes(self, manifest: Manifest) -> list[str]:
        """Warnings for verdicts that say nothing, clipped values, and tables that nothing asks."""
        ranges = {f"{CLIPPED}{each.score}": each for each in self.scores}
        clipped = [
            f"warning: {manifest.metrics[name]:,.0f} of `{each.score}` lie outside of {each.from_:g} to {each.to:g}"
            " and count as the nearest end"
            for name, each in ranges.items()
            if manifest.metrics.get(name)
        ]
        return [*unasked_notes(self), *unscored_notes(manifest), *clipped]

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The verdicts."""
        del context
        return Combining(self, AnnotationIndex(inputs, ROLES))


class Combining(RowOperation[Trajectory, Verdict]):
    """One verdict per trajectory. Every worker loads the annotations once."""

    blamed: ClassVar[Blamed] = "verifier"
    chunk_rows: ClassVar[int] = 5_000

    def __init__(self, parameters: Combine, index: AnnotationIndex) -> None:
        super().__init__(JUDGE, Trajectory, Verdict)
        self._parameters = parameters
        self._index = index

    def open(self) -> None:
        """Load verdicts and values. Raises ``UserError`` for tables that cannot be read or contradict themselves."""
        self._index.load()

    def process(self, record: Trajectory, unit: Unit) -> Iterable[Result]:
        """The verdict on a trajectory."""
        annotations = self._index.of(record.trajectory_id)
        found = [each.count(record, annotations) for each in self._parameters.scores]
        blank = Verdict(trajectory_id=record.trajectory_id, name=self._parameters.name, status="unscored", judge=JUDGE)
        verdict = combine_scores(blank, found, self._parameters.method, self._parameters.pass_at)
        return [Result(input_id=unit[0], outputs=[verdict])]

    def measures(self, output: Verdict) -> Mapping[str, float]:
        """As ``verdict_measures``, with a count for each score that was clipped."""
        clipped = [each["score"] for each in output.evidence["scores"] if "clipped" in each]
        return {**verdict_measures(self._parameters.name, output), **{f"{CLIPPED}{name}": 1 for name in clipped}}


def combine_scores(verdict: Verdict, found: Sequence[CountedScore], method: Method, pass_at: float) -> Verdict:
    """``verdict`` with the score of all that is ``found``, which passes at ``pass_at`` unless a veto fails the whole.

    Unscored where no score with a weight is known (``nothing_known``; ``missing`` is no knowledge), and where a veto
    has neither a value nor ``missing`` (``veto_unknown``), even if another veto would fail the whole. A veto changes
    ``passed``, not the score.
    """
    evidence: JsonObject = {"scores": [each.evidence() for each in found]}
    vetoes = [(each.given, each.counted) for each in found if each.given.veto]
    if not any(each.value is not None and each.given.weight for each in found):
        return msgspec.structs.replace(verdict, reason="nothing_known", evidence=evidence)
    if any(counted is None for _, counted in vetoes):
        return msgspec.structs.replace(verdict, reason="veto_unknown", evidence=evidence)
    pairs = [(each.counted, each.given.weight) for each in found if each.counted is not None and each.given.weight]
    total = _total(pairs, method)
    vetoed = [given.score for given, counted in vetoes if counted is not None and given.vetoes(counted)]
    return msgspec.structs.replace(
        verdict,
        status="scored",
        score=total,
        passed=not vetoed and reaches(total, pass_at),
        evidence={**evidence, **({"vetoed": vetoed} if vetoed else {})},
    )


def _total(pairs: Sequence[tuple[float, float]], method: Method) -> float:
    """The scores of (score, weight), of which there is one at least, by ``method``; weights count in the mean."""
    if method == "mean":
        return math.fsum(value * weight for value, weight in pairs) / math.fsum(weight for _, weight in pairs)
    values = [value for value, _ in pairs]
    return min(values) if method == "min" else max(values) if method == "max" else math.prod(values)
