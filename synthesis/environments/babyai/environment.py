"""Levels of BabyAI (arXiv:1810.08272) as text: the game, its missions, rewards and limits are those of ``minigrid``.

``spec.source`` is the gymnasium id (``BabyAI-GoToLocal-v0``), ``spec.parameters["options"]`` are the level's own
(``room_size``, ``num_dists`` …); ``task.initial_state["seed"]`` draws map and mission. What is seen is written in words
(as in "BabyAI-Text", arXiv:2302.02662), and commands walk by themselves (``commands``). A mission is met when the game
rewards it. The game's own limit of actions truncates.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec

from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, MessageAction, TextObservation
from agentmill.synthesis.environments.babyai.commands import RULES, TOOLS, call_of, command_of, legal
from agentmill.synthesis.environments.babyai.examples import EXAMPLES
from agentmill.synthesis.environments.babyai.expert import Expert
from agentmill.synthesis.environments.babyai.game import (
    DONE,
    FORWARD,
    LEFT,
    Game,
    before,
    draw_map,
    is_free,
    make_game,
    position,
    progress,
)
from agentmill.synthesis.environments.babyai.sight import Sight
from agentmill.synthesis.environments.environment import Check, EnvError, Transition, refusal, tidy


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of ``spec.parameters``."""

    options: JsonObject = {}


class Start(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of ``task.initial_state``."""

    seed: Annotated[int, msgspec.Meta(ge=0)]


class BabyaiEnvironment:
    """Levels of BabyAI as text, with commands that walk by themselves, and an expert.

    Raises ``EnvError`` for a level that cannot be made.
    """

    extra = "envs-babyai"

    def __init__(self, spec: EnvironmentSpec) -> None:
        self.spec = spec
        self.tools = TOOLS
        self.rules = RULES
        try:
            self._options = msgspec.convert(spec.parameters, Parameters).options
        except msgspec.ValidationError as error:
            raise EnvError(f"environment {spec.environment_id}: {error}") from error
        self._game: Game = make_game(spec.source, self._options)
        self._sight: Sight | None = None
        self._seed = 0
        self._taken: list[int] = []
        """The game's actions so far: with the seed they are the whole state."""
        self._reward, self._over = 0.0, False

    def reset(self, task: Task, seed: int) -> TextObservation:  # noqa: ARG002 - part of the contract
        """Draw the task's map and mission. The seed of the call plays no part: a mission is of one map."""
        try:
            self._seed = msgspec.convert(task.initial_state, Start).seed
        except msgspec.ValidationError as error:
            raise EnvError(f"task {task.task_id}: initial_state: {error}") from error
        self._begin()
        return self._seen()

    def mission(self) -> str:
        """What the game wants, in its own words."""
        return str(self._game.mission)

    def step(self, action: AnyAction) -> Transition:
        """A command: the game's actions for it, one after the other, until the game ends."""
        sight = self._demand_reset()
        if self._over:
            return refusal("The episode is over.")
        call = self._call(action)
        options = list(legal(self._game, sight))
        chosen = next((actions for option, actions in options if option == call), None)
        if chosen is None:
            return refusal(self._why_not(call, [option for option, _ in options]))
        truncated = False
        for number in chosen:
            # The second step through a door may lead into what nobody has seen before.
            if number == FORWARD and not is_free(self._game.grid.get(*before(self._game))):
                break
            truncated = self._take(number)
            if self._over:
                break
        ended = self._over and not truncated
        return Transition(observation=self._seen(), reward=self._reward, terminated=ended, truncated=truncated)

    def state_digest(self) -> str:
        """Digest of the map, the agent, what it has seen, what the mission's checker knows, and the actions spent."""
        sight, game = self._demand_reset(), self._game
        agent = [*position(game), int(game.agent_dir), sight.name(game.carrying)]
        seen = [sorted(sight.cells), list(sight.names)]
        done = [progress(game.instrs), int(game.step_count), self._over, self._reward]
        return digest(game.grid.encode().tobytes().hex(), agent, seen, done)

    def snapshot(self) -> bytes:
        """JSON: the seed and the game's actions so far."""
        self._demand_reset()
        return json.dumps({"seed": self._seed, "actions": self._taken}).encode()

    def restore(self, snapshot: bytes) -> None:
        """Draw the level anew and take the actions again. Raises ``EnvError`` for bytes that are no snapshot."""
        self._demand_reset()
        try:
            saved: dict[str, Any] = json.loads(snapshot)
            seed, actions = int(saved["seed"]), [int(each) for each in saved["actions"]]
            if seed < 0 or not all(LEFT <= number <= DONE for number in actions):
                raise ValueError("no such seed or action")
        except (KeyError, TypeError, ValueError) as error:
            raise EnvError(f"this is no snapshot of {self.spec.source}: {error}") from error
        self._seed = seed
        self._begin()
        for number in actions:
            self._take(number)

    def check(self) -> Check:
        """Whether the game has rewarded the mission; there is no half of it."""
        self._demand_reset()
        passed = self._reward > 0
        return Check(passed=passed, score=float(passed), evidence={"actions": int(self._game.step_count)})

    def admissible(self) -> list[ApiAction]:
        """Every legal command, until the game is over."""
        sight = self._demand_reset()
        return [] if self._over else [option for option, _ in legal(self._game, sight)]

    def command(self, action: ApiAction) -> str:
        """The call as text."""
        return command_of(action)

    def expert(self) -> ApiAction | None:
        """The next command of a good plan (``expert``); ``None`` where none is known, and when the game is over."""
        sight = self._demand_reset()
        if self._over:
            return None
        return Expert(self._game, sight).advice()

    def close(self) -> None:
        """Nothing is held."""

    @staticmethod
    def examples() -> list[tuple[EnvironmentSpec, Task]]:
        """Missions to go, to pick up, to put, and to unlock."""
        return EXAMPLES

    def _demand_reset(self) -> Sight:
        if self._sight is None:
            raise EnvError("the environment was not reset")
        return self._sight

    def _begin(self) -> None:
        draw_map(self._game, self._seed)
        self._sight = Sight(self._game)
        self._taken, self._reward, self._over = [], 0.0, False

    def _take(self, number: int) -> bool:
        """One action of the game. Returns whether the game's limit cut it short."""
        _, reward, terminated, truncated, _ = self._game.step(number)
        self._taken.append(number)
        self._demand_reset().look()
        self._reward, self._over = float(reward), bool(terminated or truncated)
        return bool(truncated and not terminated)

    def _call(self, action: AnyAction) -> ApiAction | None:
        if isinstance(action, ApiAction):
            return ApiAction(function=action.function, kwargs=action.kwargs)
        if isinstance(action, MessageAction):
            return call_of(tidy(action.content), self._demand_reset().names)
        return None

    def _seen(self) -> TextObservation:
        ending = "" if not self._over else " The mission is done." if self._reward > 0 else " The episode is over."
        return TextObservation(content=self._demand_reset().describe() + ending, source="environment")

    def _why_not(self, call: ApiAction | None, options: list[ApiAction]) -> str:
        names = self._demand_reset().names
        name = None if call is None else call.kwargs.get("object")
        known = not isinstance(name, str) or name in names
        why = "You cannot do that now." if known else f"You have seen no {name}."
        return f"{why} You can: {', '.join(map(command_of, options))}."
