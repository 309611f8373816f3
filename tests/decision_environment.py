"""Decision trees whose values are known: a task holds the tree, its leaves are rewards.

``task.goal["tree"]`` maps commands to subtrees, and in the end to the reward of a leaf; a reward of 1 is a success.
``task.goal["hints"]`` gives the progress that the world shows at inner states, by path (``"ab"``), by default 0. The
``chooser`` picks among commands by the seed of its turn.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import (
    AnyAction,
    AnyObservation,
    ApiAction,
    MessageAction,
    TextObservation,
    Tool,
    TurnTokens,
)
from agentmill.synthesis.environments import ENVIRONMENTS
from agentmill.synthesis.environments.environment import Check, Transition
from agentmill.synthesis.policies import POLICIES
from agentmill.synthesis.policies.policy import Conversation, PolicyError, PolicySettings, Turn

SPEC = EnvironmentSpec(environment_id="decisions", family="decisions", name="decisions", source="")
Tree = dict[str, Any]


def decision_task(tree: Tree, hints: dict[str, float] | None = None, task_id: str = "decide", **fields: Any) -> Task:
    """Find the best leaf."""
    return Task(
        task_id=task_id,
        environment_id="decisions",
        instruction="Choose a letter at each step.",
        goal={"tree": tree, "hints": hints or {}},
        **{"max_turns": 12, "split": "train", **fields},
    )


def best_value(tree: Tree | float) -> float:
    """The value of a state if one chooses well: backward induction."""
    return max(map(best_value, tree.values())) if isinstance(tree, dict) else tree


def chance_value(tree: Tree | float) -> float:
    """The value of a state if one chooses by chance."""
    if not isinstance(tree, dict):
        return tree
    return sum(map(chance_value, tree.values())) / len(tree)


class DecisionEnvironment:
    """Implements ``Environment``."""

    def __init__(self, spec: EnvironmentSpec = SPEC) -> None:
        self.spec = spec
        self.tools = [Tool(name="choose", parameters={"type": "object", "properties": {"letter": {"type": "string"}}})]
        self.rules = "Write one of the letters that you see."
        self.task = decision_task({})
        self.path = ""
        self.steps = 0

    def reset(self, task: Task, seed: int) -> AnyObservation:
        self.task, self.path, self.steps = task, "", 0
        return self._seen()

    def step(self, action: AnyAction) -> Transition:
        self.steps += 1
        letter = action.content.strip() if isinstance(action, MessageAction) else ""
        here = self._here()
        if not isinstance(here, dict) or letter not in here:
            return Transition(observation=_text("Only the letters that you see are possible."), error=True)
        self.path += letter
        end = self._here()
        ended = not isinstance(end, dict)
        return Transition(observation=self._seen(), reward=end if ended else 0.0, terminated=ended)

    def state_digest(self) -> str:
        return f"at-{self.path}"

    def snapshot(self) -> bytes:
        return self.path.encode()

    def restore(self, snapshot: bytes) -> None:
        self.path = snapshot.decode()

    def check(self) -> Check:
        here = self._here()
        score = self.task.goal["hints"].get(self.path, 0.0) if isinstance(here, dict) else here
        return Check(passed=here == 1.0, score=score)

    def admissible(self) -> list[ApiAction]:
        here = self._here()
        return (
            [ApiAction(function="choose", kwargs={"letter": each}) for each in here] if isinstance(here, dict) else []
        )

    def command(self, action: ApiAction) -> str:
        return str(action.kwargs["letter"])

    def expert(self) -> ApiAction | None:
        here = self._here()
        if not isinstance(here, dict):
            return None
        return ApiAction(function="choose", kwargs={"letter": max(here, key=lambda each: best_value(here[each]))})

    def close(self) -> None:
        """Nothing is held."""

    def _here(self) -> Any:
        here: Any = self.task.goal["tree"]
        for letter in self.path:
            here = here[letter]
        return here

    def _seen(self) -> TextObservation:
        here = self._here()
        choices = " or ".join(here) if isinstance(here, dict) else "nothing"
        return _text(f"You are at [{self.path}] and may choose {choices}.")


class Chooser:
    """Picks one of ``letters`` by the seed of the turn, the first ``weight`` times as often as each other one.

    Its settings: ``turns`` are the letters and, if there is one, a path behind ``log:``. There it notes every call, and
    gives up where ``PATH.limit`` holds a number of calls that have been.
    """

    name = "chooser"
    model, revision, spending = None, None, None

    def __init__(self, settings: PolicySettings | None = None, letters: str = "ab", weight: int = 1) -> None:
        turns = settings.turns if settings else [letters]
        self.sampling: dict[str, Any] = {}
        self._letters, self._weight = turns[0], weight
        self._log = next((Path(turn.removeprefix("log:")) for turn in turns if turn.startswith("log:")), None)
        self.asked: list[tuple[str, str]] = []
        """(where, what it said) for every call."""

    async def act(self, conversation: Conversation) -> Turn:
        where = place(conversation)
        weights = [self._weight] + [1] * (len(self._letters) - 1)
        letter = random.Random(conversation.seed).choices(self._letters, weights)[0]
        self.asked.append((where, letter))
        if self._log is not None:
            note(self._log, conversation.episode_id)
        share = weights[self._letters.index(letter)] / sum(weights)
        tokens = TurnTokens(
            prompt_ids=[0], sampled_ids=[ord(letter)], logprobs=[math.log(share)], segment_start=where == ""
        )
        return Turn(actions=[MessageAction(content=letter, tokens=tokens)])

    async def close(self) -> None:
        """Nothing is held."""


class Appraiser:
    """A critic that knows what a state is worth: ten times the ``turns`` of its settings, by path (``ab=0.5``)."""

    name = "appraiser"
    model, revision, spending = None, None, None

    def __init__(self, settings: PolicySettings | None = None, **scores: float) -> None:
        given = dict(turn.split("=") for turn in settings.turns) if settings else {}
        self.sampling: dict[str, Any] = {}
        self._scores = {**{path: float(score) for path, score in given.items()}, **scores}
        self.asked: list[str] = []

    async def act(self, conversation: Conversation) -> Turn:
        where = place(conversation)
        self.asked.append(where)
        return Turn(actions=[MessageAction(content=f"Well.\nScore: {10 * self._scores.get(where or 'start', 0.0):g}")])

    async def close(self) -> None:
        """Nothing is held."""


def place(conversation: Conversation) -> str:
    """Where the agent is, from what it sees, or where a transcript ends."""
    text = "\n".join(str(getattr(item, "content", "")) for item in conversation.content)
    return text.rpartition("[")[2].partition("]")[0]


def note(log: Path, line: str) -> None:
    """Add a line to a file, unless it has as many as ``PATH.limit`` allows. Raises ``UserError``."""
    lines = log.read_text().splitlines() if log.exists() else []
    limit = log.with_suffix(".limit")
    if limit.exists() and len(lines) >= int(limit.read_text()):
        raise UserError("the lights went out", ErrorCode.NO_SPACE)
    with log.open("a") as file:
        file.write(f"{line}\n")


class Failing:
    """Gives no turn at a place that its settings name."""

    name = "failing"
    model, revision, spending = None, None, None

    def __init__(self, settings: PolicySettings) -> None:
        self.sampling: dict[str, Any] = {}
        self._where = settings.turns[0]
        self._chooser = Chooser()

    async def act(self, conversation: Conversation) -> Turn:
        if place(conversation) == self._where:
            raise PolicyError("timeout", "no answer in 3 s")
        return await self._chooser.act(conversation)

    async def close(self) -> None:
        """Nothing is held."""


@contextmanager
def registered() -> Iterator[None]:
    """The world and its policies by their names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENVIRONMENTS._entries, "decisions", "tests.decision_environment:DecisionEnvironment")
        for name in ("Chooser", "Appraiser", "Failing"):
            patch.setitem(POLICIES._entries, name.lower(), f"tests.decision_environment:{name}")
        yield


def _text(content: str) -> TextObservation:
    return TextObservation(content=content, source="environment")
