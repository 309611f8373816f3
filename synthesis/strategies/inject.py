"""``inject``: new trajectories with exactly one wrong turn each, at a place and of a kind that are known.

From successes, so that labels of first errors are true by construction (AEGIS, arXiv:2509.14295).
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from typing import Literal

import msgspec
from pydantic import Field, model_validator

from agentmill.schemas.ids import derive_seed
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import AnyAction, Trajectory
from agentmill.schemas.views.annotations import NOTHING, Annotations
from agentmill.synthesis.policies.cost import Spending
from agentmill.synthesis.policies.policy import Conversation, PolicyError, Turn
from agentmill.synthesis.rollouts.episode import Episode, EpisodePlan
from agentmill.synthesis.rollouts.parameters import EpisodeParameters
from agentmill.synthesis.rollouts.strategy import Exploration
from agentmill.synthesis.strategies.branch import first_actions, follow, last_turn, play_branch, recorded_turns
from agentmill.synthesis.strategies.wrong_turns import ERROR_KINDS, ErrorKind, Moment, WrongTurn, draw

INJECTED = "injected"
"""The entry of ``extra`` with the error that was made, at which turn, and which kinds did not apply there."""


class Inject(EpisodeParameters):
    """``k`` trajectories from each one, with one wrong turn at an own turn that is drawn by the seed.

    Turns are drawn without replacement; beyond their number each is drawn again, for another error. ``then: recorded``
    goes on with the recorded turns and needs no model, ``then: actor`` with a policy. Invalid actions end no episode by
    default, since the recorded turns may be invalid after an error.
    """

    k: int = Field(default=1, ge=1, description="trajectories with an error for each one")
    errors: list[ErrorKind] = Field(
        default=list(ERROR_KINDS),
        min_length=1,
        description="the kinds of errors: another action, another value of an argument, the turn left out, the turn "
        "before repeated, or the episode ended too early",
    )
    then: Literal["actor", "recorded"] = Field(
        default="recorded", description="what follows the error: the recorded turns, or turns of the actor"
    )
    max_invalid: int | None = Field(
        default=None, ge=1, description="invalid actions in a row that end an episode; by default any number may come"
    )

    @model_validator(mode="after")
    def _what_fits(self) -> Inject:
        if len(set(self.errors)) < len(self.errors):
            raise ValueError(f"`errors` names one twice: {', '.join(self.errors)}")
        if self._differs("scaffold"):
            raise ValueError("`scaffold` is that of the trajectory that gets an error; leave it out")
        for name in ("constrain", "context"):
            if self.then == "recorded" and self._differs(name):
                raise ValueError(f"`{name}` goes with `then: actor`; recorded turns are repeated as they are")
        return self

    @property
    def together(self) -> int:
        """As ``Branch.together``: none has to be compared, since the draws of a turn differ."""
        return 1

    def points(self, trajectory: Trajectory, annotations: Annotations = NOTHING) -> list[int]:
        """The own turns of a trajectory; none of one that is not ours."""
        del annotations
        if trajectory.generation is None:
            return []
        first = first_actions(trajectory.content)
        return [turn for turn, place in sorted(first.items()) if not trajectory.content[place].context_operation]

    def count(self, start: Task | Trajectory) -> int:
        """``k``, if there is a turn."""
        return self.k if isinstance(start, Trajectory) and self.points(start) else 0

    def planned(self, exploration: Exploration) -> list[str]:
        """The ids of the trajectories. They do not depend on ``k``."""
        return list(exploration.plans_of(lambda: self._plans(exploration)))

    async def explore(self, exploration: Exploration, trajectory_id: str) -> AsyncIterator[Trajectory]:
        """Yield the trajectory with this id.

        Raises as ``play_branch``, and ``PolicyError`` (``no_error_applies``) where no kind has a further error there.
        """
        plan = exploration.plans_of(lambda: self._plans(exploration))[trajectory_id]
        made: dict[str, object] = {}

        async def play(episode: Episode) -> str | None:
            recorded = recorded_turns(exploration.earlier[0])
            wrong, skipped = self._draw(exploration, episode)
            made.update(kind=wrong.kind, turn=episode.turn + 1, skipped=skipped)
            limit = episode.execute(Turn(actions=_own(wrong)))
            if limit is not None or episode.terminated:
                return limit
            if self.then == "actor":
                return await episode.play()
            return follow(episode, [recorded[turn] for turn in sorted(recorded) if turn > wrong.after])

        found = await play_branch(self, exploration, plan, play)
        yield msgspec.structs.replace(found, extra={**found.extra, INJECTED: made})

    def _draw(self, exploration: Exploration, episode: Episode) -> tuple[WrongTurn, list[ErrorKind]]:
        parent, turn = exploration.earlier[0], episode.turn + 1
        moment = Moment(episode.environment, parent, recorded_turns(parent), turn)
        seed = derive_seed(exploration.seed, parent.trajectory_id, turn)
        wrong, skipped = draw(moment, self.errors, episode.plan.attempt // len(self.points(parent)), seed)
        if wrong is None:
            kinds = ", ".join(self.errors)
            raise PolicyError("no_error_applies", f"at turn {turn} there is no further error of the kinds {kinds}")
        return wrong, skipped

    def _plans(self, exploration: Exploration) -> Iterator[EpisodePlan]:
        parent = exploration.earlier[0]
        turns = self.points(parent)
        random.Random(derive_seed(exploration.seed, parent.trajectory_id)).shuffle(turns)
        identity = f"{self.then}:{','.join(sorted(self.errors))}"
        for attempt in range(self.k if turns else 0):
            turn = turns[attempt % len(turns)]
            plan = self.plan(exploration, "inject", identity, attempt=attempt, parent=parent, branch_turn=turn)
            # An error may be one turn more.
            limit = self.limit(plan, last_turn(parent) + 1) if self.then == "recorded" else plan.max_turns
            yield msgspec.structs.replace(plan, max_turns=limit)


def _own(wrong: WrongTurn) -> list[AnyAction]:
    """The actions of a wrong turn, which are no copies: only the error itself may be trained on, or left out."""
    return [msgspec.structs.replace(action, context_operation=None, tokens=None) for action in wrong.actions]


class Recorded:
    """The agent of episodes in which only recorded actions are taken, where no model is given."""

    def __init__(self) -> None:
        self.name = "recorded"
        self.model: str | None = None
        self.revision: str | None = None
        self.sampling: dict[str, object] = {}
        self.spending: Spending | None = None

    async def act(self, conversation: Conversation) -> Turn:
        """Raises ``PolicyError`` (``no_model``): it has no turns of its own."""
        del conversation
        raise PolicyError("no_model", "only recorded turns are taken here, and no model was given")

    async def close(self) -> None:
        """Nothing is held."""
