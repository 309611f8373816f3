"""``branch``: new episodes that start from turns of earlier trajectories.

Alternatives to an expert's steps (Early Experience, arXiv:2510.08558; StepAgent, arXiv:2411.03817), resuming from where
a run failed (EEF, arXiv:2504.13145), Monte-Carlo continuations (IPR, arXiv:2406.11176; AgentPRM, arXiv:2502.10325) and
counterfactual replay (AgenTracer, arXiv:2509.03312) are parameters of it.

A branch point is the turn that is done anew: the state before it is reached by replaying the recorded actions in the
recorded environment, and compared with the states recorded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec
from pydantic import Field, model_validator

from agentmill.schemas.annotation_names import LabelName
from agentmill.schemas.chat import is_mark
from agentmill.schemas.conditions import Condition
from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Action, AnyAction, AnyItem, ApiAction, MessageAction, Trajectory
from agentmill.schemas.views.annotations import NOTHING, Annotations
from agentmill.schemas.views.pairing import done
from agentmill.synthesis.policies.cost import Spending
from agentmill.synthesis.policies.policy import Conversation, Policy, PolicyError, Turn
from agentmill.synthesis.rollouts.episode import Episode, EpisodePlan, begin, run_episode
from agentmill.synthesis.rollouts.llm_calls import identity_of
from agentmill.synthesis.rollouts.parameters import EpisodeParameters
from agentmill.synthesis.rollouts.scaffold import Frame
from agentmill.synthesis.rollouts.step import acts, replay
from agentmill.synthesis.rollouts.strategy import Exploration

DEPTH = "depth"
"""What ends a branch of one turn."""

TEACHER = "teacher"
GIVEN = "given"

EditName = Literal["replace", "insert", "remove"]
EDIT = "edit"
"""The entry of ``extra`` that names the edit of a branch, unless it is ``replace``."""


class Branch(EpisodeParameters):
    """``k`` branches from each of some turns of a trajectory.

    ``turns``: ``all``, the ``last``, the ``first_error`` (the first one that met an error), ``after_branch`` (of a
    branch, the turn after the one it began with: what that one is worth, as in IPR), or with ``n`` ``even`` (the n
    turns that follow each ``floor(turns / (n + 1))``, as in EEF) and ``every`` (turn 1 and every n-th after it).
    ``depth: 1`` is one turn, ``end`` goes on to the end of the episode. A policy with the role ``teacher`` takes the
    turn at the branch point in the actor's place; so does ``given``, the value of a label of that step, where a table
    says what should have been done: a command, or with tools ``{"name": ..., "arguments": ...}``. Only turns with such
    a label are branched from. ``then: recorded`` carries out the recorded actions after that turn; where the episode
    ended with that turn nothing is recorded, and the actor goes on. ``distinct`` needs the earlier branches of the same
    turn in ``Exploration.earlier``, behind the parent.

    ``edits`` are the counterfactuals of a turn before the recorded ones follow: the new turn in its place, the new turn
    before it, or neither. They undo a wrong, a missing and a needless turn.
    """

    turns: Literal["all", "even", "every", "first_error", "last", "after_branch"] = Field(
        default="all", description="the turns to branch from, which are done anew"
    )
    n: int | None = Field(default=None, ge=1, description="how many turns for even, the distance for every")
    k: int = Field(default=1, ge=1, description="branches per turn")
    error: Condition | None = Field(
        default=None, description="what makes a step the first_error; null: that it met one in the environment"
    )
    given: LabelName | None = Field(
        default=None,
        min_length=1,
        description="the label of steps with the action to take instead of the recorded one",
    )
    distinct: bool = Field(
        default=False,
        description="drop a branch whose first turn does what was recorded there, or what another branch did there",
    )
    depth: Literal[1, "end"] = Field(default="end", description="one turn, or on to the end of the episode")
    then: Literal["actor", "recorded"] = Field(
        default="actor", description="who takes the turns after the first: the actor, or what was recorded is repeated"
    )
    edits: list[EditName] = Field(
        default=["replace"],
        min_length=1,
        description="of then: recorded: the new turn replaces the recorded one, is inserted before it, "
        "or the recorded one is removed; a branch for each",
    )

    @model_validator(mode="after")
    def _what_fits(self) -> Branch:
        if (self.turns in ("even", "every")) != (self.n is not None):
            raise ValueError("`n` goes with `turns: even` (how many) and `turns: every` (the distance)")
        if self.error is not None and self.turns != "first_error":
            raise ValueError("`error` goes with `turns: first_error`")
        if self._differs("scaffold"):
            raise ValueError("`scaffold` is that of the trajectory that is branched from; leave it out")
        if self.then == "recorded" and self.depth == 1:
            raise ValueError("`then: recorded` needs `depth: end`, since it goes on after the first turn")
        return self

    @model_validator(mode="after")
    def _edits_of_a_record(self) -> Branch:
        if len(set(self.edits)) < len(self.edits):
            raise ValueError(f"`edits` names one twice: {', '.join(self.edits)}")
        if self.edits != ["replace"] and (self.then != "recorded" or self.k > 1):
            raise ValueError("`edits` goes with `then: recorded` and `k: 1`: one branch for each edit of a turn")
        if self.edits == ["remove"] and self.turns == "last":
            raise ValueError("`edits: [remove]` removes no last turn, since nothing follows it; give other `turns`")
        return self

    @property
    def together(self) -> int:
        """How many planned branches in a row must differ from each other."""
        return self.k if self.distinct else 1

    def count(self, start: Task | Trajectory) -> int:
        """The branches of a trajectory, as far as it tells itself where they begin."""
        if not isinstance(start, Trajectory):
            return 0
        filtered = self.error is not None or self.given is not None
        return self.k if filtered else sum(1 for turn in self.points(start) for _ in self._attempts(start, turn))

    def points(self, trajectory: Trajectory, annotations: Annotations = NOTHING) -> list[int]:
        """The turns that are done anew, in order; none for a trajectory that has none of this kind, or is not ours."""
        # Runs of other programs name no environment that could be replayed.
        if trajectory.generation is None:
            return []
        steps = first_actions(trajectory.content)
        turns = [turn for turn in self._turns(trajectory, annotations, steps) if self._edits(trajectory, turn)]
        if self.given is None:
            return turns
        return [turn for turn in turns if turn in steps and annotations.label(self.given, steps[turn]) is not None]

    def _turns(self, trajectory: Trajectory, annotations: Annotations, steps: Mapping[int, int]) -> list[int]:
        turns = sorted(steps)
        if self.turns == "last":
            return turns[-1:]
        if self.turns == "after_branch":
            following = (trajectory.branch_turn or 0) + 1
            goes_on = following in steps or trajectory.outcome.reason == DEPTH
            return [following] if trajectory.branch_turn is not None and goes_on else []
        if self.turns == "first_error":
            return [turn for turn in turns if self._failed(trajectory, annotations, steps[turn])][:1]
        if self.turns == "all" or self.n is None:
            return turns
        if self.turns == "every":
            return turns[:: self.n]
        distance = max(1, len(turns) // (self.n + 1))
        return turns[distance::distance][: self.n]

    def _failed(self, trajectory: Trajectory, annotations: Annotations, step: int) -> bool:
        if self.error is not None:
            return self.error.holds(trajectory, annotations, step)
        turn = trajectory.content[step].turn
        return any(item.error for item in trajectory.content[step:] if item.turn == turn)

    def planned(self, exploration: Exploration) -> list[str]:
        """The ids of the branches. They do not depend on ``k`` nor on the other turns."""
        return list(exploration.plans_of(lambda: self._plans(exploration)))

    async def explore(self, exploration: Exploration, trajectory_id: str) -> AsyncIterator[Trajectory]:
        """Yield the branch with this id.

        Raises as ``play_branch``, and with ``distinct`` ``PolicyError`` (``equals_recorded``, ``equals_sibling``).
        """
        plan = exploration.plans_of(lambda: self._plans(exploration))[trajectory_id]
        yield await play_branch(self, exploration, plan, lambda episode: self._play(episode, exploration))

    async def _play(self, episode: Episode, exploration: Exploration) -> str | None:
        if episode.turn >= episode.plan.max_turns:
            return "max_turns"
        parent, turn = exploration.earlier[0], episode.turn + 1
        recorded, edit = recorded_turns(parent), episode.plan.extra.get(EDIT, "replace")
        following = [number for number in sorted(recorded) if number > turn]
        if edit == "remove":
            limit = episode.execute(Turn(actions=recorded[following.pop(0)]))
        else:
            limit = await episode.take_turn(self._first(exploration, parent, turn))
        if edit == "insert":
            following.insert(0, turn)
        if self.distinct:
            demand_new(episode, parent, exploration.earlier[1:])
        if limit is not None or episode.terminated:
            return limit
        if self.depth == 1:
            return DEPTH
        goes_on = not following and edit == "replace" and parent.outcome.terminated
        if self.then == "actor" or goes_on:
            return await episode.play()
        return follow(episode, [recorded[number] for number in following])

    def _first(self, exploration: Exploration, parent: Trajectory, turn: int) -> Policy | None:
        """Who takes the first turn, if it is not the actor."""
        teacher = exploration.policies.get(TEACHER)
        if self.given is not None:
            label = exploration.annotations.label(self.given, first_actions(parent.content)[turn])
            return Given(label.value if label is not None else "")
        return None if teacher is None else Teaching(teacher)

    def _plans(self, exploration: Exploration) -> Iterator[EpisodePlan]:
        parent = exploration.earlier[0]
        for turn in self.points(parent, exploration.annotations):
            first = self._first(exploration, parent, turn)
            identity = f"{self.depth}:{self.then}:{first and identity_of(first, exploration.entries.get(TEACHER))}"
            for edit, attempt in self._attempts(parent, turn):
                extra: JsonObject = {} if edit == "replace" else {EDIT: edit}
                known = f"{identity}:{edit}" if extra else identity
                plan = self.plan(exploration, "branch", known, attempt=attempt, parent=parent, branch_turn=turn)
                limit = plan.max_turns
                if self.then == "recorded":
                    limit = self.limit(plan, last_turn(parent) + (edit == "insert"))
                yield msgspec.structs.replace(plan, extra=extra, max_turns=limit)

    def _attempts(self, parent: Trajectory, turn: int) -> Iterator[tuple[EditName, int]]:
        """The branches from a turn."""
        for edit in self._edits(parent, turn):
            yield from ((edit, attempt) for attempt in range(self.k))

    def _edits(self, parent: Trajectory, turn: int) -> list[EditName]:
        """The edits of a turn. The last one is not removed: nothing would be left of the branch."""
        return [edit for edit in self.edits if edit != "remove" or turn < last_turn(parent)]


class Teaching:
    """A policy in the place of another. Its turns bear its role, and no tokens: those of a run are of one model."""

    def __init__(self, policy: Policy) -> None:
        self.name, self.model, self.revision = policy.name, policy.model, policy.revision
        self.sampling: JsonObject = policy.sampling
        self.spending = policy.spending
        self._policy = policy

    async def act(self, conversation: Conversation) -> Turn:
        """The other policy's turn."""
        turn = await self._policy.act(conversation)
        actions = [msgspec.structs.replace(action, agent=TEACHER, tokens=None) for action in turn.actions]
        return msgspec.structs.replace(turn, actions=actions)

    async def close(self) -> None:
        """The other policy is closed by who made it."""


class Given:
    """Takes one turn that is written down."""

    def __init__(self, text: str) -> None:
        self.name = GIVEN
        self.model: str | None = None
        self.revision: str | None = digest(text)
        self.sampling: JsonObject = {}
        self.spending: Spending | None = None
        self._text = text

    async def act(self, conversation: Conversation) -> Turn:
        """The turn. Raises ``PolicyError`` (``malformed``) for a call that is none."""
        if not conversation.tools:
            return Turn(actions=[MessageAction(content=self._text, agent=GIVEN)])
        try:
            call = msgspec.json.decode(self._text, type=_Call)
        except (msgspec.DecodeError, RecursionError) as error:
            raise PolicyError("malformed", f"the given action {self._text!r} is no call: {error}") from error
        return Turn(actions=[ApiAction(function=call.name, kwargs=call.arguments, agent=GIVEN)])

    async def close(self) -> None:
        """Nothing is held."""


class _Call(msgspec.Struct):
    name: str
    arguments: JsonObject = {}


def first_actions(content: Sequence[AnyItem]) -> dict[int, int]:
    """Where the first action of each turn stands: the item that tables of labels name the step by."""
    # Reversed, so that the first action of a turn is the one that stays.
    return {item.turn: place for place, item in reversed(list(enumerate(content))) if acts(item) and item.turn > 0}


def demand_new(episode: Episode, parent: Trajectory, siblings: Sequence[Trajectory]) -> None:
    """Raises ``PolicyError`` where the first turn of a branch does what was done in its place before.

    What was spent on it is counted as that of a dropped input; it is found out before anything follows the turn.
    """
    turn = episode.plan.branch_turn or 0
    deed = deed_of(episode.content, turn)
    for trajectory in (parent, *siblings):
        if deed == deed_of(trajectory.content, turn):
            reason = "equals_recorded" if trajectory is parent else "equals_sibling"
            raise PolicyError(reason, f"turn {turn} does what trajectory {trajectory.trajectory_id} does there")


def last_turn(trajectory: Trajectory) -> int:
    """The number of the last turn of a trajectory, 0 for one without any."""
    return max(first_actions(trajectory.content), default=0)


def deed_of(content: Sequence[AnyItem], turn: int) -> str:
    """Digest of what the actions of a turn do, whatever the words around them."""
    return done(content, [place for place, item in enumerate(content) if acts(item) and item.turn == turn])


def history(trajectory: Trajectory, turn: int) -> list[AnyItem]:
    """What precedes a turn, as a branch holds it: marked as copied, so that it carries no loss."""
    content = trajectory.content
    # A mark has the number of the last turn that it replaces, and precedes this one.
    end = next((place for place, item in enumerate(content) if item.turn == turn and not is_mark(item)), len(content))
    return [
        item if is_mark(item) else msgspec.structs.replace(item, context_operation="copied")
        for item in trajectory.content[:end]
    ]


def recorded_turns(parent: Trajectory) -> dict[int, list[AnyAction]]:
    """The actions of each turn, to be done once more: they carry no loss there."""
    recorded: dict[int, list[AnyAction]] = {}
    for item in parent.content:
        if isinstance(item, Action) and acts(item) and item.turn > 0:
            # Without tokens: they were sampled after another past.
            copy = msgspec.structs.replace(item, context_operation="copied", tokens=None)
            recorded.setdefault(item.turn, []).append(copy)
    return recorded


def follow(episode: Episode, turns: Sequence[list[AnyAction]]) -> str | None:
    """Take recorded turns, as far as they go. Returns what cut the episode short, ``None`` if it ended."""
    for actions in turns:
        if episode.turn >= episode.plan.max_turns:
            return "max_turns"
        limit = episode.execute(Turn(actions=actions))
        if limit is not None or episode.terminated:
            return limit
    return "recording_ended"


async def play_branch(
    parameters: EpisodeParameters,
    exploration: Exploration,
    plan: EpisodePlan,
    play: Callable[[Episode], Awaitable[str | None]],
) -> Trajectory:
    """The branch of ``plan``, from the state before its first own turn; ``play`` takes its turns.

    Raises ``ReplayDiverged`` where the recorded actions do not lead there, ``PolicyError`` (``history_too_long``) where
    they alone are as many turns as an episode may have, and what ``play`` raises.
    """
    parent = exploration.earlier[0]
    # A parent that was played under this limit and reached it is none of these: its branch fails as it did.
    if (plan.branch_turn or 0) > plan.max_turns and last_turn(parent) > plan.max_turns:
        detail = f"turn {plan.branch_turn} is beyond max_turns {plan.max_turns}; give the step the limit of the parents"
        raise PolicyError("history_too_long", detail)
    before = history(parent, plan.branch_turn or 0)
    environment = exploration.make_environment()
    try:
        begin(plan, environment)
        replay(environment, before)
        # The parent's own: the copied turns were made under this prompt.
        given = Frame(system_prompt=parent.system_prompt or "", tools=parent.tools)
        episode = parameters.episode(plan, environment, exploration, before, given)
        return await run_episode(episode, play(episode))
    finally:
        environment.close()
