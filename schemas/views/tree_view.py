"""The contract of a view that needs a whole search tree, and what such views share.

A family is all trajectories of a tree: branches, their parents, and the branches of these. Each holds its whole
history, so a tree is what their turns have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

import msgspec
from pydantic import Field

from agentmill.schemas.conditions import reaches
from agentmill.schemas.records.rows import Message, SftRow
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.views.annotations import Annotations, Criterion, score
from agentmill.schemas.views.conversation import is_copied
from agentmill.schemas.views.dialogue import Dialogue
from agentmill.schemas.views.view import Unused


class Relative(msgspec.Struct, frozen=True):
    """A trajectory of a family, and its annotations."""

    trajectory: Trajectory
    annotations: Annotations


Made = dict[str, list[SftRow] | Unused]
"""By trajectory id: its rows, none if it is a part of another's row, or why it is a part of none."""


class FamilyView(Protocol):
    """Pure functions with parameters, as ``View``. Observations and copied items never carry loss."""

    name: ClassVar[str]
    """What it is called in ``FAMILY_VIEWS``."""

    record: ClassVar[type[SftRow]]
    """The type of the rows."""

    def make_rows(self, family: Sequence[Relative]) -> Made:
        """What becomes of each of a family. Nothing depends on their order."""


class Turn(msgspec.Struct, frozen=True):
    """A message of the agent and all that answers it. ``own``: no branch copied it; ``step`` is its first action."""

    action: Message
    answers: tuple[Message, ...]
    own: bool
    step: int

    @property
    def messages(self) -> list[Message]:
        """The message and its answers."""
        return [self.action, *self.answers]

    def same(self, other: Turn) -> bool:
        """Whether the same was done and answered."""
        return self.messages == other.messages


class Line(msgspec.Struct, frozen=True):
    """A trajectory as turns. ``opening`` is what precedes the first one."""

    relative: Relative
    opening: list[Message]
    turns: list[Turn]
    score: float

    @property
    def name(self) -> str:
        """The id of the trajectory."""
        return self.relative.trajectory.trajectory_id

    def begins_as(self, other: Line) -> bool:
        """Whether both begin with the same prompt and tools."""
        return self.opening == other.opening and self.relative.trajectory.tools == other.relative.trajectory.tools


class Families(Dialogue):
    """Parameters of views of search trees."""

    record: ClassVar[type[SftRow]] = SftRow

    score: Criterion = Field(default="outcome", description="the score by which trajectories have reached the goal")
    threshold: float = Field(default=0.5, description="a run reached the goal if its score is this or more")

    def make_rows(self, family: Sequence[Relative]) -> Made:
        """What becomes of each of a family; runs are compared if they begin with the same prompt and tools."""
        made: Made = {}
        kin: list[list[Line]] = []
        # Members come in the order of shards and workers.
        for relative in sorted(family, key=lambda each: each.trajectory.trajectory_id):
            try:
                line = self._line(relative)
            except Unused as error:
                made[relative.trajectory.trajectory_id] = error
                continue
            group = next((each for each in kin if each[0].begins_as(line)), None)
            if group is None:
                kin.append([line])
            else:
                group.append(line)
        for group in kin:
            good = [line for line in group if reaches(line.score, self.threshold)]
            # The id decides between equals, so that the best one is the same in every run.
            good.sort(key=lambda line: (-line.score, len(line.turns), line.name))
            made.update(self.rows_of(good, [line for line in group if not reaches(line.score, self.threshold)]))
        return made

    def rows_of(self, good: Sequence[Line], bad: Sequence[Line]) -> Made:
        """What becomes of runs that begin alike: those that reached the goal, best first, and those that did not."""
        raise NotImplementedError

    def _line(self, relative: Relative) -> Line:
        """A run as turns. Raises ``Unused`` as ``dialogue``, and (``unscored``) if there is none or no score."""
        run = relative.trajectory
        found = score(self.score, run, relative.annotations)
        # One of `system_prompts` per task: runs of a family share their opening.
        dialogue = self.dialogue(msgspec.structs.replace(run, trajectory_id=run.task_id or ""))
        starts = [place for place, turn in enumerate(dialogue) if turn.step is not None]
        if found is None or not starts:
            raise Unused("unscored", f"no {self.score}, or the agent does nothing")
        turns = [
            Turn(
                dialogue[start].message,
                tuple(turn.message for turn in dialogue[start + 1 : end]),
                not is_copied(run.content, dialogue[start].items),
                dialogue[start].items[0],
            )
            for start, end in zip(starts, [*starts[1:], len(dialogue)], strict=True)
        ]
        return Line(relative, [turn.message for turn in dialogue[: starts[0]]], turns, found)


def shared(one: Sequence[Turn], other: Sequence[Turn]) -> int:
    """How many turns two runs have in common before they part."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if not left.same(right):
            break
        count += 1
    return count


def trained(message: Message) -> Message:
    """The message with loss."""
    return msgspec.structs.replace(message, train=True)


def going_back(text: str, before: Sequence[Message]) -> list[Message]:
    """The agent says that it goes back, with loss, and sees again what it saw there at the end of ``before``."""
    seen: list[str] = []
    for message in reversed(before):
        if message.role in ("assistant", "system"):
            break
        seen.insert(0, message.content or "")
    again = [Message(role="user", content="\n".join(seen))] if seen else []
    return [Message(role="assistant", content=text, train=True), *again]
