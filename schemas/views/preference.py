"""The ``step_pairs`` view: two ways to go on from the same point, as in IPR (arXiv:2406.11176)."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints, model_validator

from agentmill.schemas.conditions import Condition
from agentmill.schemas.ids import digest
from agentmill.schemas.records.rows import PreferenceRow
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.views.annotations import Annotations, Criterion, score
from agentmill.schemas.views.conversation import ConversationTurn, is_copied, own_places
from agentmill.schemas.views.pair_view import Preferences, Side, side
from agentmill.schemas.views.pairing import Candidate, Pair, Rules, done, prompt_texts
from agentmill.schemas.views.view import Unused


class StepPairs(Preferences):
    """Steps of one task that follow the same messages but do something else, the better one against the worse.

    Siblings in a tree, samples that part, an expert's step and the agent's own, an original and its fixed version are
    all such steps. Only steps that were not copied from a parent are compared; the parent has them.
    """

    name: ClassVar[str] = "step_pairs"

    score: Criterion | None = Field(
        default="outcome",
        description="what decides the better step: reward and value of the step, a verdict on it or else on its run, "
        "the outcome of its run; null: only prefer decides",
    )
    prefer: Condition | None = Field(
        default=None,
        description="a step whose run fulfils this, or which does itself, is better than one that does not, "
        "whatever the scores; with a min_gap above 0 its score must be higher by more than that",
    )
    unit: Literal["action", "suffix"] = Field(
        default="action", description="what a side holds: the step alone, or all that follows it in its run, too"
    )
    max_pairs: int | None = Field(
        default=None, ge=1, description="most pairs at one point; the widest gaps, spread over all steps"
    )

    @model_validator(mode="after")
    def _something_tells(self) -> StepPairs:
        if self.score is None and self.prefer is None:
            raise ValueError("`score` or `prefer` must tell which step is better")
        if self.score is None and self.min_gap > 0:
            raise ValueError("`min_gap` compares scores; name a `score`, or leave `min_gap` out")
        return self

    @property
    def rules(self) -> Rules:
        """What makes a pair."""
        return Rules(min_gap=self.min_gap, preferred_gap=self.min_gap or None, max_pairs=self.max_pairs)

    def candidates(self, trajectory: Trajectory, annotations: Annotations) -> list[Candidate]:
        """The agent's own steps. Raises ``Unused`` if there are none."""
        dialogue, content = self.dialogue(trajectory), trajectory.content
        before = prompt_texts(self.tools_column(trajectory), [turn.message for turn in dialogue])
        found: list[Candidate] = []
        after = ""
        # Backwards, as the digest of a suffix is made of that of the next step.
        for turn, prefix in zip(reversed(dialogue), reversed(before[:-1]), strict=True):
            if turn.step is None:
                continue
            deed = done(content, turn.items)
            after = digest(deed, after)
            if is_copied(content, turn.items):
                continue
            text = deed if self.unit == "action" else after
            found.append(self._candidate(trajectory, annotations, turn.step, prefix, (deed, text)))
        if not found:
            raise Unused("no_step", "the agent does nothing of its own")
        return found[::-1]

    def make_row(self, pair: Pair, chosen: Trajectory, rejected: Trajectory) -> PreferenceRow:
        """The row of a pair."""
        prompt, better = self._side(chosen, pair.chosen.item)
        _, worse = self._side(rejected, pair.rejected.item)
        messages = [turn.message for turn in prompt]
        return self._row(pair, chosen, messages, better, worse)

    def _candidate(
        self, trajectory: Trajectory, annotations: Annotations, item: int, prefix: str, deeds: tuple[str, str]
    ) -> Candidate:
        group = digest(trajectory.task_id, trajectory.environment_id, prefix)
        deed, text = deeds
        return Candidate(
            trajectory_id=trajectory.trajectory_id,
            item=item,
            group=group,
            opening=group,
            score=self._score(trajectory, annotations, item),
            preferred=self._preferred(trajectory, annotations, item),
            actions=(deed,),
            with_loss=(1,),
            text=text,
        )

    def _score(self, trajectory: Trajectory, annotations: Annotations, item: int) -> float | None:
        if self.score is None:
            return None
        found = score(self.score, trajectory, annotations, item)
        if found is None and self.score.startswith(("verdict:", "passed:")):
            return score(self.score, trajectory, annotations)
        return found

    def _preferred(self, trajectory: Trajectory, annotations: Annotations, item: int) -> bool:
        if self.prefer is None:
            return False
        return self.prefer.holds(trajectory, annotations, item) or self.prefer.holds(trajectory, annotations)

    def _side(self, trajectory: Trajectory, item: int | None) -> tuple[list[ConversationTurn], Side]:
        dialogue = self.dialogue(trajectory)
        place = next(place for place, turn in enumerate(dialogue) if turn.step is not None and turn.step == item)
        end = place + 1 if self.unit == "action" else len(dialogue)
        return dialogue[:place], side(trajectory, dialogue, slice(place, end), item)


Cut = Annotated[str, StringConstraints(pattern=r"^chosen\+\d+$")]
"""``chosen+N``: at most N turns more than the chosen side has."""


class TrajectoryPairs(Preferences):
    """Trajectories of one task that begin with the same prompt, the better one against the worse.

    Without a task id, runs with the same prompt are runs of one task. The prompt is what precedes the first step; if
    one of the two is a branch, it is all that both have in common, since what was copied carries no loss.
    """

    name: ClassVar[str] = "trajectory_pairs"

    score: Criterion = Field(default="outcome", description="what decides which trajectory is better")
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

    def candidates(self, trajectory: Trajectory, annotations: Annotations) -> list[Candidate]:
        """The run. Raises ``Unused`` if the agent does nothing of its own in it."""
        dialogue, content = self.dialogue(trajectory), trajectory.content
        own = own_places(dialogue, content)
        if not own:
            raise Unused("no_step", "the agent does nothing of its own")
        turns = turn_numbers(dialogue, trajectory)
        deeds: dict[int, list[str]] = {}
        for place in range(own[-1] + 1):
            if dialogue[place].step is not None:
                deeds.setdefault(turns[place], []).append(done(content, dialogue[place].items))
        actions = tuple(itertools.accumulate(deeds.values(), lambda before, deed: digest(before, deed), initial=""))[1:]
        before = prompt_texts(self.tools_column(trajectory), [turn.message for turn in dialogue[: opening(dialogue)]])[
            -1
        ]
        return [
            Candidate(
                trajectory_id=trajectory.trajectory_id,
                group=before if trajectory.task_id is None else trajectory.task_id,
                opening=before,
                score=score(self.score, trajectory, annotations),
                actions=actions,
                with_loss=tuple(sorted({turns[place] for place in own})),
                text=digest(before, actions[-1]),
            )
        ]

    def make_row(self, pair: Pair, chosen: Trajectory, rejected: Trajectory) -> PreferenceRow:
        """The row of a pair."""
        better, worse = self.dialogue(chosen), self.dialogue(rejected)
        end = bisect_right(turn_numbers(worse, rejected), pair.last_turn)
        parting = parts_at(better, worse[:end])
        branches = any(item.context_operation == "copied" for run in (chosen, rejected) for item in run.content)
        # What a branch copied carries no loss, so it belongs to the prompt.
        start = parting if branches else opening(better)
        return self._row(
            pair,
            chosen,
            [turn.message for turn in better[:start]],
            side(chosen, better, slice(start, None), better[parting].step),
            side(rejected, worse, slice(start, end), worse[parting].step),
        )


def opening(dialogue: Sequence[ConversationTurn]) -> int:
    """How many messages precede the first step."""
    return next(place for place, turn in enumerate(dialogue) if turn.step is not None)


def turn_numbers(dialogue: Sequence[ConversationTurn], trajectory: Trajectory) -> list[int]:
    """For each message the number of the agent's turn that it belongs to, from 1; 0 before the first."""
    numbers: list[int] = []
    number, last = 0, None
    for turn in dialogue:
        if turn.step is not None and trajectory.content[turn.step].turn != last:
            number, last = number + 1, trajectory.content[turn.step].turn
        numbers.append(number)
    return numbers


def parts_at(one: Sequence[ConversationTurn], other: Sequence[ConversationTurn]) -> int:
    """Where two runs with the same opening part: at a step of both that differs, or whose answers do."""
    parting = opening(one)
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left.step is not None and right.step is not None:
            parting = max(parting, place)
        if place >= parting and left.message != right.message:
            break
    return parting
