"""``pick``: of the trajectories of each task the first, the best, the shortest or the cheapest; the rows stay.

With ``sample`` and any scorer before it this is best-of-n, with ``where: success`` rejection sampling of one per task.
``by: vote`` is self-consistency (Wang et al., arXiv:2203.11171): those with the most frequent answer of their task,
where ``score`` may weigh the votes. ``by: random`` with ``like`` is the random control of any selector.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec
from pydantic import Field, model_validator

from agentmill.pipelines.engine import stop
from agentmill.pipelines.engine.operation import AnyOperation, Result, Unit
from agentmill.pipelines.operators.operator import Inputs, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.random_control import ALL, RandomControl, check_like, control_notes, stratum_of
from agentmill.pipelines.operators.selection import FilterParameters, SelectionOperation, TrajectoryFilter, kept_notes
from agentmill.pipelines.operators.trajectory_index import TrajectoryIndex
from agentmill.schemas.conditions import ROUNDING
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import random_key
from agentmill.schemas.record_kinds import ANNOTATION_ROLES, RECORD_KINDS
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Action, Trajectory
from agentmill.schemas.records.verdict import Selection
from agentmill.schemas.views.annotations import Annotations, Criterion, score
from agentmill.schemas.views.view import Unused
from agentmill.synthesis.verifiers.action_pattern import ActionPattern
from agentmill.synthesis.verifiers.answer_match import answer_key, answer_of

By = Literal["first", "best", "shortest", "cheapest", "vote", "random"]
Ties = Literal["drop", "first"]

VOTING = ("answer", "ties")
"""The parameters that only ``by: vote`` has."""

RANDOM = ("like", "per", "seed")
"""The parameters that only ``by: random`` has."""


class Pick(FilterParameters):
    """A selection per trajectory: kept are the first k of each task in some order, of those that are chosen at all.

    With ``like`` as many are kept as another table keeps, of tasks, too.
    """

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "curate"
    table_roles: ClassVar[Sequence[str]] = ("of", *ANNOTATION_ROLES, "like")

    of: TableNames = Field(description="tables of trajectories; with like, also of tasks")
    by: By = Field(
        default="best",
        description="by score, turns, completion tokens, the first, the most frequent answer; then by attempt; random",
    )
    k: int = Field(default=1, ge=1, description="how many stay per task")
    score: Criterion = Field(
        default="outcome",
        description="the best by this: passed:NAME is success, verdict:NAME a score (progress); with vote, its weight",
    )
    answer: ActionPattern | None = Field(
        default=None, description="of vote: the action that answers, as {tool: submit}; by default the agent's last one"
    )
    ties: Ties = Field(default="drop", description="of vote: what happens where several answers are the most frequent")
    like: TableNames | None = Field(
        default=None, description="of random: tables of selections; of all that they list, as many as they keep"
    )
    per: str = Field(
        default=ALL, description="of like: as many in all, or of each value of a field, such as environment_id"
    )
    seed: int | None = Field(
        default=None, ge=0, lt=2**63, description="of random: by default derived from that of the run"
    )
    name: str = Field(default="pick", description="what the selection is called")

    @model_validator(mode="after")
    def _a_score_for_the_best(self) -> Pick:
        if self.by not in ("best", "vote") and "score" in self.model_fields_set:
            raise ValueError(
                f"`score: {self.score}` decides which is best; `by: {self.by}` asks no score, so leave it out"
            )
        for by, names, why in (("vote", VOTING, "compares no answers"), ("random", RANDOM, "draws nothing")):
            given = next((name for name in names if name in self.model_fields_set), None)
            if self.by != by and given is not None:
                raise ValueError(f"`{given}` goes with `by: {by}`; `by: {self.by}` {why}, so leave it out")
        if self.like and "k" in self.model_fields_set:
            raise ValueError(f"`like` decides how many are kept, and `k: {self.k}` would, too; give one of them")
        if not self.like and "per" in self.model_fields_set:
            raise ValueError(f"`per: {self.per}` needs `like`; without it `k` of each task are kept")
        return self

    @property
    def weighs_votes(self) -> bool:
        """Whether a score weighs the votes; its default does not."""
        return self.by == "vote" and "score" in self.model_fields_set

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Selections, of trajectories, or with ``like`` of tasks."""
        if not self.like:
            expect(reads, "of", "Trajectory")
        self.check_filter_needs(reads)
        if not self.like:
            return "Selection"
        of = expect(reads, "of", "Trajectory", "Task")
        if self.per != ALL:
            stratum = stratum_of(self.per)
            stratum.check(RECORD_KINDS[of].type)
            if stratum.role is not None:
                raise UserError(
                    f"`per: {self.per}` is a field of another table; expected one of the {of} itself, or `{ALL}`",
                    ErrorCode.KEY_NOT_FOR_THIS,
                )
        if of == "Trajectory":
            expect(reads, "like", "Selection", "TaskSelection")
            return "Selection"
        annotated = next((role for role in ANNOTATION_ROLES if role != "selections" and role in reads), None)
        if annotated is not None:
            raise UserError(
                f"`{annotated}` are of trajectories, and `of` holds tasks; leave them out", ErrorCode.KEY_NOT_FOR_THIS
            )
        for role in ("like", *(["selections"] if "selections" in reads else [])):
            expect(reads, role, "TaskSelection")
        return "TaskSelection"

    def annotations(self) -> Sequence[str]:
        """Its selections."""
        return [self.name]

    def check_inputs(self, inputs: Inputs) -> None:
        """Raises ``UserError`` for tables in ``like`` that hold no selections, or such of other records."""
        check_like(tables_of(inputs, "like"), tables_of(inputs, "of"))

    def notes(self, manifest: Manifest) -> list[str]:
        """A warning where nothing is kept, too; of a control, how it differs from the selection."""
        return [*super().notes(manifest), *kept_notes(manifest), *(control_notes(manifest) if self.like else [])]

    def provenance_config(self, context: StepContext) -> JsonObject:
        """As ``FilterParameters.provenance_config``, without the parameters that nothing here asks."""
        config = {**super().provenance_config(context), "seed": self._seed(context)}
        # Tables that were made before there was a vote are found again; a vote without weights asks no score.
        unused = {*(VOTING if self.by != "vote" else () if self.weighs_votes else ("score",))}
        unused |= {*(RANDOM if self.by != "random" else () if self.like else ("per",))}
        return {name: value for name, value in config.items() if name not in unused}

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The selections."""
        of, like, seed = tables_of(inputs, "of"), tables_of(inputs, "like"), self._seed(context)
        if like:
            return RandomControl(self.name, like, of, self.choice(inputs), self.per, seed)
        return Picking(self, self.choice(inputs), TrajectoryIndex(of), seed)

    def _seed(self, context: StepContext) -> int:
        return context.seed if self.seed is None else self.seed


class Candidate(msgspec.Struct, frozen=True):
    """A trajectory that may be picked: the lowest ``key`` is, unless it is unknown; ``score`` is what decides.

    In a vote ``score`` is the weight, and ``answer`` equal for equal answers, ``None`` without one.
    """

    trajectory_id: str
    key: float | None
    score: float | None
    attempt: int
    answer: str | None = None


class Picking(SelectionOperation):
    """One selection per trajectory. Every worker reads through the tables once and ranks all of them."""

    def __init__(self, parameters: Pick, choice: TrajectoryFilter, contents: TrajectoryIndex, seed: int) -> None:
        super().__init__("pick")
        self._parameters = parameters
        self._seed = seed
        self._choice = choice
        self._contents = contents
        self._selections: dict[str, Selection] = {}

    def open(self) -> None:
        """Rank the trajectories of each task. Raises ``UserError`` for tables that cannot be read."""
        self._choice.load()
        self._selections = {}
        tasks: dict[str, list[Candidate]] = defaultdict(list)
        for trajectory in self._contents.scan():
            # Reading through the tables may take minutes, in which nothing else notices an interrupt.
            stop.check()
            try:
                annotations = self._choice.annotations(trajectory.trajectory_id)
            except Unused as error:
                self._select(trajectory.trajectory_id, error.reason, None)
                continue
            tasks[trajectory.task_id or trajectory.trajectory_id].append(self._candidate(trajectory, annotations))
        for candidates in tasks.values():
            if self._parameters.by == "vote":
                for each, reason, share in count_votes(candidates, self._parameters.k, self._parameters.ties):
                    self._select(each.trajectory_id, reason, share)
                continue
            for rank, each in enumerate(ranked(candidates)):
                reason = None if rank < self._parameters.k else f"not_{self._parameters.by}"
                self._select(each.trajectory_id, "unscored" if each.key is None else reason, each.score)

    def process(self, record: Trajectory, unit: Unit) -> Iterable[Result]:
        """The selection of a trajectory."""
        selection, measures = self._selections[record.trajectory_id], self._choice.measures(record.trajectory_id)
        return [Result(input_id=unit[0], outputs=[selection], measures=measures)]

    def _candidate(self, trajectory: Trajectory, annotations: Annotations) -> Candidate:
        name, by = trajectory.trajectory_id, self._parameters.by
        if by == "vote":
            return self._voter(trajectory, annotations)
        if by == "random":
            return Candidate(name, float(random_key(name, self._seed)), None, 0)
        if by == "best":
            found = score(self._parameters.score, trajectory, annotations)
            return Candidate(name, None if found is None else -found, found, trajectory.attempt)
        scores: dict[str, float | None] = {
            "first": 0.0,
            "shortest": float(turns(trajectory)),
            "cheapest": trajectory.usage.completion_tokens,
        }
        return Candidate(name, scores[by], None if by == "first" else scores[by], trajectory.attempt)

    def _voter(self, trajectory: Trajectory, annotations: Annotations) -> Candidate:
        """Raises ``UserError`` for a weight below 0: sums of votes would shrink by it."""
        weight = score(self._parameters.score, trajectory, annotations) if self._parameters.weighs_votes else 1.0
        if weight is not None and weight < 0:
            raise UserError(
                f"pick: `score: {self._parameters.score}` of trajectory {trajectory.trajectory_id} is {weight:g}\n"
                "votes are weighed by scores of 0 or more; name such a score, or leave it out",
                ErrorCode.NUMBER_OUT_OF_RANGE,
            )
        text = answer_of(trajectory.content, self._parameters.answer)[1]
        key = None if weight is None else 0.0
        return Candidate(trajectory.trajectory_id, key, weight, trajectory.attempt, answer_key(text or ""))

    def _select(self, trajectory_id: str, reason: str | None, score: float | None) -> None:
        self._selections[trajectory_id] = Selection(
            trajectory_id=trajectory_id, name=self._parameters.name, kept=reason is None, reason=reason, score=score
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_selections": {}}


def ranked(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The one to be picked first, and so on; whatever their order, and those of which nothing is known last."""
    return sorted(candidates, key=lambda each: (each.key is None, each.key or 0.0, each.attempt, each.trajectory_id))


def count_votes(
    candidates: Sequence[Candidate], k: int, ties: Ties
) -> Iterator[tuple[Candidate, str | None, float | None]]:
    """Each candidate of a task, why it is not kept, and the share of the votes that its answer has.

    The share is of the votes of those that have an answer and a known weight; 0 where all weights are 0. Of those with
    the winning answer the first ``k`` attempts are kept.
    """
    voters = [each for each in ranked(candidates) if each.answer is not None and each.key is not None]
    weights: dict[str | None, list[float]] = defaultdict(list)
    for each in voters:
        weights[each.answer].append(each.score or 0.0)
    # Exact sums, so that the order of the attempts decides nothing.
    votes = {answer: math.fsum(given) for answer, given in weights.items()}
    total = math.fsum(votes.values())
    # Scores such as 0.1 + 0.2 and 0.3 are equal but for rounding; answers are in the order of their first attempt.
    most = max(votes.values(), default=0.0) - ROUNDING * total
    leading = [answer for answer, n in votes.items() if n >= most]
    winner = leading[0] if len(leading) == 1 or (leading and ties == "first") else None
    kept = {each.trajectory_id for each in [each for each in voters if each.answer == winner][:k]}
    for each in candidates:
        if each.answer is None or each.key is None:
            yield each, "no_answer" if each.answer is None else "unscored", None
            continue
        if each.answer == winner:
            reason = None if each.trajectory_id in kept else "not_first"
        else:
            reason = "tie" if winner is None and each.answer in leading else "outvoted"
        yield each, reason, votes[each.answer] / total if total else 0.0


def turns(trajectory: Trajectory) -> int:
    """How often the agent acted, in what it copied, too."""
    return len({item.turn for item in trajectory.content if isinstance(item, Action) and item.turn > 0})
