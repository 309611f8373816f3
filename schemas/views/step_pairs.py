"""The ``step_pairs`` view: two ways to go on from the same point, as in IPR (arXiv:2406.11176)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from schemas.conditions import Condition
from schemas.ids import digest
from schemas.rows import PreferenceRow
from schemas.trajectory import Trajectory
from schemas.views.evidence import Evidence
from schemas.views.pair_view import Preferences, Side, side
from schemas.views.pairing import Candidate, Pair, Rules
from schemas.views.sameness import done, said_before
from schemas.views.score import Criterion, score
from schemas.views.turns import Said, is_copied
from schemas.views.view import Unused


class StepPairs(Preferences):
    """Steps of one task that follow the same messages but do something else, the better one against the worse.

    Siblings in a tree, samples that part, an expert's step and the agent's own, an original and its fixed version are
    all such steps. Only steps that were not copied from a parent are compared; the parent has them.
    """

    name: ClassVar[str] = "step_pairs"

    score: Criterion | None = Field(
        default="outcome",
        description="what tells the better step: reward and value of the step, a verdict on it or else on its run, "
        "the outcome of its run; null: only prefer tells",
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

    def candidates(self, trajectory: Trajectory, evidence: Evidence) -> list[Candidate]:
        """The agent's own steps. Raises ``Unused`` if there are none."""
        told, content = self.told(trajectory), trajectory.content
        before = said_before(self.tools_column(trajectory), [said.message for said in told])
        found: list[Candidate] = []
        after = ""
        for said, prefix in zip(reversed(told), reversed(before[:-1]), strict=True):
            if said.step is None:
                continue
            deed = done(content, said.items)
            after = digest(deed, after)
            if is_copied(content, said.items):
                continue
            text = deed if self.unit == "action" else after
            found.append(self._candidate(trajectory, evidence, said.step, prefix, (deed, text)))
        if not found:
            raise Unused("no_step", "the agent does nothing of its own")
        return found[::-1]

    def make_row(self, pair: Pair, chosen: Trajectory, rejected: Trajectory) -> PreferenceRow:
        """The row of a pair."""
        prompt, better = self._side(chosen, pair.chosen.item)
        _, worse = self._side(rejected, pair.rejected.item)
        messages = [said.message for said in prompt]
        return self._row(pair, chosen, messages, better, worse)

    def _candidate(
        self, trajectory: Trajectory, evidence: Evidence, item: int, prefix: str, deeds: tuple[str, str]
    ) -> Candidate:
        group = digest(trajectory.task_id, trajectory.environment_id, prefix)
        deed, text = deeds
        return Candidate(
            trajectory_id=trajectory.trajectory_id,
            item=item,
            group=group,
            opening=group,
            score=self._score(trajectory, evidence, item),
            preferred=self._preferred(trajectory, evidence, item),
            actions=(deed,),
            with_loss=(1,),
            text=text,
        )

    def _score(self, trajectory: Trajectory, evidence: Evidence, item: int) -> float | None:
        if self.score is None:
            return None
        found = score(self.score, trajectory, evidence, item)
        if found is None and self.score.startswith(("verdict:", "passed:")):
            return score(self.score, trajectory, evidence)
        return found

    def _preferred(self, trajectory: Trajectory, evidence: Evidence, item: int) -> bool:
        if self.prefer is None:
            return False
        return self.prefer.holds(trajectory, evidence, item) or self.prefer.holds(trajectory, evidence)

    def _side(self, trajectory: Trajectory, item: int | None) -> tuple[list[Said], Side]:
        told = self.told(trajectory)
        place = next(place for place, said in enumerate(told) if said.step is not None and said.step == item)
        end = place + 1 if self.unit == "action" else len(told)
        return told[:place], side(trajectory, told, slice(place, end), item)
