"""The ``search_trace`` view: a search tree told as one run that tries, goes back and tries again until it succeeds.

After Stream of Search (arXiv:2404.03683) and the exploratory learning of ExACT (arXiv:2410.02052). It is told as a
depth-first search that takes the branch of the goal last, wherever the tree branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from schemas.rows import Message, SftRow
from schemas.views.family import Families, Line, Made, going_back, shared, trained
from schemas.views.sft_rows import sft_rows
from schemas.views.view import Unused


class SearchTrace(Families):
    """One row per search tree with a success and a dead end. Loss on each step once, and on going back."""

    name: ClassVar[str] = "search_trace"

    loss: Literal["all", "path"] = Field(
        default="all", description="all steps, or those that lead to the goal; going back always carries loss"
    )
    backtrack: str = Field(
        default="This leads nowhere. I go back to turn {turn}.",
        min_length=1,
        description="what the agent says when it goes back; {turn} is the number of turns that stay",
    )

    def rows_of(self, good: Sequence[Line], bad: Sequence[Line]) -> Made:
        """One row, of the best success; the dead ends are a part of it."""
        if not good:
            return {line.name: Unused("no_success", "no run of its tree reached the goal") for line in bad}
        best, *others = good
        made: Made = {line.name: Unused("other_success", "another run of its tree did as well") for line in others}
        dead_ends = []
        for line in bad:
            if shared(line.turns, best.turns) < min(len(line.turns), len(best.turns)):
                dead_ends.append(line)
                made[line.name] = []
            else:
                made[line.name] = Unused("no_dead_end", "it leaves the way to the goal nowhere")
        made[best.name] = self._rows(best, dead_ends) if dead_ends else Unused("no_dead_end", "nothing else was tried")
        return made

    def _rows(self, best: Line, dead_ends: Sequence[Line]) -> list[SftRow]:
        run = best.relative.trajectory
        messages = [*best.opening, *self._told([*dead_ends, best], 0, best.opening, best)]
        return sft_rows(self, run, messages, self.tools_column(run), "trajectory")

    def _told(self, lines: Sequence[Line], depth: int, before: Sequence[Message], best: Line) -> list[Message]:
        """The search from turn ``depth`` on, through runs that share all before it; the last one is told last."""
        messages: list[Message] = []
        while ways := branches(lines, depth):
            for way in ways[:-1]:
                turn = way[-1].turns[depth]
                messages += self._step(way, depth, best) + self._told(way, depth + 1, turn.messages, best)
                messages += going_back(self.backtrack.replace("{turn}", str(depth)), before)
            lines = ways[-1]
            messages += self._step(lines, depth, best)
            before = lines[-1].turns[depth].messages
            depth += 1
        return messages

    def _step(self, way: Sequence[Line], depth: int, best: Line) -> list[Message]:
        """A turn that these runs share, with loss if it is to be learnt."""
        turn = way[-1].turns[depth]
        own = any(line.turns[depth].own for line in way)
        learnt = own and (self.loss == "all" or way[-1] is best)
        return [trained(turn.action) if learnt else turn.action, *turn.answers]


def branches(lines: Sequence[Line], depth: int) -> list[list[Line]]:
    """Runs that have a turn ``depth``, by what they do in it; the branch of the last run is last."""
    found: list[list[Line]] = []
    for line in reversed(lines):
        if depth >= len(line.turns):
            continue
        branch = next((each for each in found if each[0].turns[depth].same(line.turns[depth])), None)
        if branch is None:
            found.append([line])
        else:
            branch.append(line)
    return [branch[::-1] for branch in reversed(found)]
