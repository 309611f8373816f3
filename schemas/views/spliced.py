"""The ``spliced`` view: a failed attempt, the insight that it failed, and the good way on from where it went astray.

The revision trajectories of Agent-R (arXiv:2501.11425). Of the successes in the search tree of a failed run, the one
that parts from it last is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from schemas.conditions import Condition
from schemas.rows import SftRow
from schemas.views.family import Families, Line, Made, going_back, shared, trained
from schemas.views.sft_rows import sft_rows
from schemas.views.view import Unused


class Spliced(Families):
    """One row per failed run that has a success beside it. Loss on the revision and on the good way on."""

    name: ClassVar[str] = "spliced"

    error: Condition | None = Field(
        default=None, description="the failed attempt is shown up to its first step that fulfils this; null: to its end"
    )
    revision: str = Field(
        default="That was a mistake. I go back to where I was and try something else.",
        min_length=1,
        description="what the agent says between the failed attempt and the good one",
    )

    def rows_of(self, good: Sequence[Line], bad: Sequence[Line]) -> Made:
        """One row for each failed run; a success is used if it corrects one."""
        made: Made = {line.name: Unused("no_partner", "it corrects no failed run of its tree") for line in good}
        for line in bad:
            partner = _partner(line, good)
            if partner is None:
                made[line.name] = Unused("no_partner", "no success of its tree goes another way")
                continue
            try:
                made[line.name] = self._rows(line, partner)
                made[partner.name] = []
            except Unused as error:
                made[line.name] = error
        return made

    def _rows(self, bad: Line, good: Line) -> list[SftRow]:
        common = shared(bad.turns, good.turns)
        failed = bad.turns[common : self._end(bad, common)]
        before = [*bad.opening, *(message for turn in bad.turns[:common] for message in turn.messages)]
        messages = [*before, *(message for turn in failed for message in turn.messages)]
        messages += going_back(self.revision, before)
        for turn in good.turns[common:]:
            messages += [trained(turn.action) if turn.own else turn.action, *turn.answers]
        run = bad.relative.trajectory
        return sft_rows(self, run, messages, self.tools_column(run), "trajectory")

    def _end(self, line: Line, common: int) -> int:
        """How many turns of the failed run are shown. Raises ``Unused`` if none after the common ones is an error."""
        if self.error is None:
            return len(line.turns)
        run, evidence = line.relative.trajectory, line.relative.evidence
        for number, turn in enumerate(line.turns[common:], common + 1):
            if self.error.holds(run, evidence, turn.step):
                return number
        raise Unused("no_error", f"after the runs part no step fulfils {self.error}")


def _partner(bad: Line, good: Sequence[Line]) -> Line | None:
    """The success that parts last from a failed run, if both go on after that; of several the first."""
    ways = [(shared(bad.turns, line.turns), line) for line in good]
    ways = [(common, line) for common, line in ways if common < min(len(bad.turns), len(line.turns))]
    return max(ways, key=lambda way: way[0])[1] if ways else None
