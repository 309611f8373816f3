"""The ``reflection`` view: the agent's turns that put right what went wrong before them.

Revision trajectories, in which a failed attempt stays in the context and only the correction is learnt, as in Agent-R
(arXiv:2501.11425), STeCa (arXiv:2502.14276) and AgentRefine (arXiv:2501.01702). The failed turns may be the run's own
or copied from the run that it revises.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec
from pydantic import Field

from agentmill.schemas.conditions import Condition
from agentmill.schemas.records.rows import Message, SftRow
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.views.annotations import Annotations
from agentmill.schemas.views.conversation import own_places, went_wrong
from agentmill.schemas.views.dialogue import Dialogue
from agentmill.schemas.views.sft import Per, sft_rows
from agentmill.schemas.views.token_ids import with_tokens, without_cut_off
from agentmill.schemas.views.tree_view import Families, Line, Made, going_back, shared, trained
from agentmill.schemas.views.view import Unused


class Reflection(Dialogue):
    """Loss on turns that met no error and follow one that did; error turns themselves never carry loss."""

    name: ClassVar[str] = "reflection"
    record: ClassVar[type[SftRow]] = SftRow

    rows: Per = Field(default="step", description="one row per trajectory, or per turn that puts an error right")

    def make_rows(self, trajectory: Trajectory, annotations: Annotations) -> list[SftRow]:
        """The rows of one trajectory. Raises ``Unused`` if no error was put right."""
        del annotations
        content = trajectory.content
        dialogue = self.dialogue(trajectory)
        turns = [place for place, turn in enumerate(dialogue) if turn.step is not None]
        wrong = {place: went_wrong(content, dialogue[place].items) for place in turns}
        after_error = {later for earlier, later in itertools.pairwise(turns) if wrong[earlier]}
        right = {place for place in own_places(dialogue, content) if place in after_error and not wrong[place]}
        if not right:
            raise Unused("no_correction", "no turn puts right what went wrong before it")
        messages = [msgspec.structs.replace(turn.message, train=place in right) for place, turn in enumerate(dialogue)]
        messages = without_cut_off(messages, dialogue, trajectory)
        rows = sft_rows(self, trajectory, messages, self.tools_column(trajectory), self.rows)
        return with_tokens(rows, dialogue, trajectory)


class Spliced(Families):
    """One row per failed trajectory whose tree has a success. Loss on the revision and on the good way on."""

    name: ClassVar[str] = "spliced"

    error: Condition | None = Field(
        default=None, description="the failed attempt is shown up to its first step that fulfils this; null: to its end"
    )
    revision: str = Field(
        default="That was a mistake. I go back to where I was and try something else.",
        min_length=1,
        description="the agent's message between the failed attempt and the good one",
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
                made[line.name] = self._rows(line, partner, [*good, *bad])
                made[partner.name] = []
            except Unused as error:
                made[line.name] = error
        return made

    def _rows(self, bad: Line, good: Line, lines: Sequence[Line]) -> list[SftRow]:
        common = shared(bad.turns, good.turns)
        failed = bad.turns[common : self._end(bad, common)]
        before = [*bad.opening, *(message for turn in bad.turns[:common] for message in turn.messages)]
        messages = [*before, *(message for turn in failed for message in turn.messages)]
        messages += going_back(self.revision, before)
        for depth, turn in enumerate(good.turns[common:], common):
            # A success may have copied its first good turns from another failed run.
            own = any(line.turns[depth].own for line in lines if shared(line.turns, good.turns) > depth)
            messages += [trained(turn.action) if own else turn.action, *turn.answers]
        run = bad.relative.trajectory
        return sft_rows(self, run, messages, self.tools_column(run), "trajectory")

    def _end(self, line: Line, common: int) -> int:
        """How many turns of the failed run are shown. Raises ``Unused`` if none after the common ones is an error."""
        if self.error is None:
            return len(line.turns)
        run, annotations = line.relative.trajectory, line.relative.annotations
        for number, turn in enumerate(line.turns[common:], common + 1):
            if self.error.holds(run, annotations, turn.step):
                return number
        raise Unused("no_error", f"after the runs part no step fulfils {self.error}")


def _partner(bad: Line, good: Sequence[Line]) -> Line | None:
    """The success that parts last from a failed run, if both go on after that; of several the first."""
    ways = [(shared(bad.turns, line.turns), line) for line in good]
    ways = [(common, line) for common, line in ways if common < min(len(bad.turns), len(line.turns))]
    return max(ways, key=lambda way: way[0])[1] if ways else None


class SearchTrace(Families):
    """One row per search tree with a success and a dead end. Loss on each step once, and on going back."""

    name: ClassVar[str] = "search_trace"

    loss: Literal["all", "path"] = Field(
        default="all", description="all steps, or those that lead to the goal; going back always carries loss"
    )
    backtrack: str = Field(
        default="This leads nowhere. I go back to turn {turn}.",
        min_length=1,
        description="the agent's message when it goes back; {turn} is the number of turns that are kept",
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
        messages = [*best.opening, *self._walk([*dead_ends, best], 0, best.opening, best)]
        return sft_rows(self, run, messages, self.tools_column(run), "trajectory")

    def _walk(self, lines: Sequence[Line], depth: int, before: Sequence[Message], best: Line) -> list[Message]:
        """The search from turn ``depth`` on, through runs that share all before it; the last one comes last."""
        messages: list[Message] = []
        while ways := branches(lines, depth):
            for way in ways[:-1]:
                turn = way[-1].turns[depth]
                messages += self._step(way, depth, best) + self._walk(way, depth + 1, turn.messages, best)
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
    # From the last line on: its branch is found first, and comes last when the order is turned around.
    for line in reversed(lines):
        if depth >= len(line.turns):
            continue
        branch = next((each for each in found if each[0].turns[depth].same(line.turns[depth])), None)
        if branch is None:
            found.append([line])
        else:
            branch.append(line)
    return [branch[::-1] for branch in reversed(found)]
