"""The ``trajectory_pairs`` view: a better and a worse run of one task, as in ETO (arXiv:2403.02502)."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from schemas.ids import digest
from schemas.rows import PreferenceRow
from schemas.trajectory import Trajectory
from schemas.views.evidence import Evidence
from schemas.views.pair_view import Preferences, side
from schemas.views.pairing import Candidate, Pair, Rules
from schemas.views.sameness import done, said_before
from schemas.views.score import Criterion, score
from schemas.views.turns import Said, own_places
from schemas.views.view import Unused

Cut = Annotated[str, StringConstraints(pattern=r"^chosen\+\d+$")]
"""``chosen+N``: at most N turns more than the chosen side has."""


class TrajectoryPairs(Preferences):
    """Whole runs of one task that begin with the same prompt, the better one against the worse.

    Without a task id, runs with the same prompt are runs of one task. The prompt is what precedes the first step; if
    one of the two is a branch, it is all that both have in common, since what was copied carries no loss.
    """

    name: ClassVar[str] = "trajectory_pairs"

    score: Criterion = Field(default="outcome", description="what tells the better run")
    min_chosen: float | None = Field(default=None, description="the better run must reach this score")
    cut_rejected: Cut | None = Field(
        default=None, description="chosen+N: the worse run keeps at most N turns more than the better one has"
    )
    max_pairs: int | None = Field(
        default=None, ge=1, description="most pairs of a task; the widest gaps, spread over all runs"
    )

    @property
    def rules(self) -> Rules:
        """What makes a pair."""
        turns_over = None if self.cut_rejected is None else int(self.cut_rejected.partition("+")[2])
        return Rules(min_gap=self.min_gap, min_chosen=self.min_chosen, max_pairs=self.max_pairs, turns_over=turns_over)

    def candidates(self, trajectory: Trajectory, evidence: Evidence) -> list[Candidate]:
        """The run. Raises ``Unused`` if the agent does nothing of its own in it."""
        told, content = self.told(trajectory), trajectory.content
        own = own_places(told, content)
        if not own:
            raise Unused("no_step", "the agent does nothing of its own")
        turns = turn_numbers(told, trajectory)
        deeds: dict[int, list[str]] = {}
        for place in range(own[-1] + 1):
            if told[place].step is not None:
                deeds.setdefault(turns[place], []).append(done(content, told[place].items))
        actions = tuple(itertools.accumulate(deeds.values(), lambda before, deed: digest(before, deed), initial=""))[1:]
        before = said_before(self.tools_column(trajectory), [said.message for said in told[: opening(told)]])[-1]
        return [
            Candidate(
                trajectory_id=trajectory.trajectory_id,
                group=before if trajectory.task_id is None else trajectory.task_id,
                opening=before,
                score=score(self.score, trajectory, evidence),
                actions=actions,
                with_loss=tuple(sorted({turns[place] for place in own})),
                text=digest(before, actions[-1]),
            )
        ]

    def make_row(self, pair: Pair, chosen: Trajectory, rejected: Trajectory) -> PreferenceRow:
        """The row of a pair."""
        better, worse = self.told(chosen), self.told(rejected)
        end = bisect_right(turn_numbers(worse, rejected), pair.last_turn)
        parting = parts_at(better, worse[:end])
        branches = any(item.context_operation == "copied" for run in (chosen, rejected) for item in run.content)
        start = parting if branches else opening(better)
        return self._row(
            pair,
            chosen,
            [said.message for said in better[:start]],
            side(chosen, better, slice(start, None), better[parting].step),
            side(rejected, worse, slice(start, end), worse[parting].step),
        )


def opening(told: Sequence[Said]) -> int:
    """How many messages precede the first step."""
    return next(place for place, said in enumerate(told) if said.step is not None)


def turn_numbers(told: Sequence[Said], trajectory: Trajectory) -> list[int]:
    """For each message the number of the agent's turn that it belongs to, from 1; 0 before the first."""
    numbers: list[int] = []
    number, turn = 0, None
    for said in told:
        if said.step is not None and trajectory.content[said.step].turn != turn:
            number, turn = number + 1, trajectory.content[said.step].turn
        numbers.append(number)
    return numbers


def parts_at(one: Sequence[Said], other: Sequence[Said]) -> int:
    """Where two runs with the same opening part: at a step of both that differs, or whose answers do."""
    parting = opening(one)
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left.step is not None and right.step is not None:
            parting = max(parting, place)
        if place >= parting and left.message != right.message:
            break
    return parting
