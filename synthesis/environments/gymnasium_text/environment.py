"""Gymnasium's toy games as text: an adapter that keeps the games' own dynamics and rewards.

``spec.source`` is the gymnasium id (``Taxi-v4``); ``spec.parameters`` are ``describer`` (a name in ``DESCRIBERS``),
``kwargs`` for ``gymnasium.make``, and ``commands``, other names for the actions in the order of their numbers.
``task.initial_state["state"]`` is the state to start from as the describer saves it; without it the seed draws one.
All actions are legal until the game is over. The game is used without wrappers, so there is no time limit but ours.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np

from agentmill.schemas.errors import UserError
from agentmill.schemas.extras import missing_modules_explained
from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, MessageAction, TextObservation, Tool
from agentmill.synthesis.environments.environment import Check, EnvError, Transition, refusal, tidy
from agentmill.synthesis.environments.gymnasium_text.examples import EXAMPLES
from agentmill.synthesis.environments.gymnasium_text.games import DESCRIBERS, Describer, Game

Table = dict[int, dict[int, list[tuple[float, int, float, bool]]]]
"""State and action to outcomes (probability, next state, reward, whether the game ends), as gymnasium's ``P``."""


def solve(table: Table, discount: float = 0.99, tolerance: float = 1e-10) -> tuple[list[float], list[int]]:
    """The optimal value and action of every state, by value iteration (Bellman, "Dynamic programming", 1957).

    Values are within ``tolerance`` times ``discount / (1 - discount)``. Among equally good actions the first is taken;
    the discount makes shorter ways better.
    """
    probability, successor, reward, going_on = _arrays(table)
    values: np.ndarray[Any, np.dtype[np.float64]] = np.zeros(len(table))
    while True:
        action_values = (probability * (reward + discount * going_on * values[successor])).sum(axis=2)
        improved = action_values.max(axis=1)
        converged = np.abs(improved - values).max() < tolerance
        values = improved
        if converged:
            # Values that differ by rounding only count as equal, or the best action would depend on the processor.
            best = action_values >= action_values.max(axis=1, keepdims=True) - 1e-8
            return values.tolist(), best.argmax(axis=1).tolist()


def _arrays(table: Table) -> tuple[np.ndarray[Any, Any], ...]:
    """(state, action, outcome) arrays of probabilities, next states, rewards and whether the game goes on."""
    width = max(len(outcomes) for actions in table.values() for outcomes in actions.values())
    shape = (len(table), len(table[0]), width)
    probability, reward, going_on = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    successor = np.zeros(shape, dtype=np.int64)
    for state, actions in table.items():
        for action, outcomes in actions.items():
            for place, (chance, after, gain, ends) in enumerate(outcomes):
                probability[state, action, place] = chance
                successor[state, action, place] = after
                reward[state, action, place] = gain
                going_on[state, action, place] = 0.0 if ends else 1.0
    return probability, successor, reward, going_on


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of ``spec.parameters``."""

    describer: str
    kwargs: JsonObject = {}
    commands: tuple[str, ...] | None = None


class GymnasiumEnvironment:
    """Toy games of Gymnasium as text, with their own dynamics and rewards.

    Raises ``EnvError`` for a game that cannot be made.
    """

    extra = "envs-gymnasium"

    def __init__(self, spec: EnvironmentSpec) -> None:
        self.spec = spec
        try:
            given = msgspec.convert(spec.parameters, Parameters)
            self._describer: Describer = DESCRIBERS.load(given.describer)()
        except (msgspec.ValidationError, UserError) as error:
            raise EnvError(f"environment {spec.environment_id}: {error}") from error
        self._game = _make(spec, given.kwargs)
        self._commands = given.commands or self._describer.commands
        self._functions = tuple(tidy(command).lower().replace(" ", "_") for command in self._commands)
        count = len(self._describer.commands)
        if not len(self._commands) == len(set(self._functions)) == count:
            raise EnvError(f"environment {spec.environment_id}: commands must be {count} different names")
        schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
        self.tools = [
            Tool(name=name, description=command, parameters=schema)
            for name, command in zip(self._functions, self._commands, strict=True)
        ]
        self.rules = self._describer.rules(self._game, self._commands)
        self._by_chance = self._describer.by_chance(self._game)
        self._policy: list[int] | None = None
        self._ready = self._over = False
        self._reward = 0.0

    def reset(self, task: Task, seed: int) -> TextObservation:
        """Start from the task's state, or from one that the seed draws."""
        self._game.reset(seed=seed)
        state = task.initial_state.get("state")
        # After the reset, which also seeds the generator of the game.
        if state is not None:
            try:
                self._describer.load(self._game, state)
            except (KeyError, TypeError, ValueError) as error:
                raise EnvError(f"task {task.task_id}: initial_state['state']: {error}") from error
        self._ready, self._over, self._reward = True, False, 0.0
        return TextObservation(content=self._describer.start(self._game), source="environment")

    def step(self, action: AnyAction) -> Transition:
        """One action of the game, with the game's reward."""
        self._demand_reset()
        number = self._number(action)
        if number is None or self._over:
            return self._refused()
        before = self._describer.save(self._game)
        _, reward, terminated, _, _ = self._game.step(number)
        self._over = bool(terminated)
        # Only the last reward says how a game ended.
        self._reward = float(reward) if terminated else 0.0
        content = self._describer.change(self._game, before, number, float(reward))
        observation = TextObservation(content=content, source="environment")
        return Transition(observation=observation, reward=float(reward), terminated=self._over)

    def state_digest(self) -> str:
        """Digest of the game's state, with that of the random generator where chance has a part in the game."""
        return digest(self._state())

    def snapshot(self) -> bytes:
        """JSON, the random generator included."""
        return json.dumps({**self._state(), "random": self._game.np_random.bit_generator.state}).encode()

    def restore(self, snapshot: bytes) -> None:
        """Raises ``EnvError`` for bytes that are no snapshot of this game."""
        self._demand_reset()
        try:
            saved = json.loads(snapshot)
            self._describer.load(self._game, saved["game"])
            self._game.np_random.bit_generator.state = saved["random"]
            self._over, self._reward = saved["over"], saved["reward"]
        except (KeyError, TypeError, ValueError) as error:
            raise EnvError(f"this is no snapshot of {self.spec.source}: {error}") from error

    def check(self) -> Check:
        """Whether the game is won, by the describer's rule: the games' own rewards do not say it alike."""
        self._demand_reset()
        return self._describer.check(self._game, self._over, self._reward)

    def admissible(self) -> list[ApiAction]:
        """Every action, until the game is over."""
        return [] if self._over else [ApiAction(function=name, kwargs={}) for name in self._functions]

    def command(self, action: ApiAction) -> str:
        """The action as text. Raises ``ValueError`` for a call that is none of an action."""
        number = self._number(action)
        if number is None:
            raise ValueError(f"no action {action.function!r} of {', '.join(self._functions)}")
        return self._commands[number]

    def expert(self) -> ApiAction | None:
        """The optimal action, where the game has a transition table; ``None`` otherwise and when the game is over."""
        self._demand_reset()
        # Not every game has a table, blackjack has none.
        if self._over or not hasattr(self._game, "P"):
            return None
        if self._policy is None:
            self._policy = solve(self._game.P)[1]
        return ApiAction(function=self._functions[self._policy[int(self._game.s)]], kwargs={})

    def close(self) -> None:
        """Close the game."""
        self._game.close()

    @staticmethod
    def examples() -> list[tuple[EnvironmentSpec, Task]]:
        """One instance of every describer."""
        return EXAMPLES

    def _demand_reset(self) -> None:
        if not self._ready:
            raise EnvError("the environment was not reset")

    def _number(self, action: AnyAction) -> int | None:
        if isinstance(action, ApiAction):
            name = action.function.lower()
            return self._functions.index(name) if name in self._functions and not action.kwargs else None
        if isinstance(action, MessageAction):
            names = [tidy(command).lower() for command in self._commands]
            text = tidy(action.content).lower()
            return names.index(text) if text in names else None
        return None

    def _refused(self) -> Transition:
        if self._over:
            content = "The game is over."
        else:
            content = f"That is no command here. Commands: {', '.join(self._commands)}."
        return refusal(content)

    def _state(self) -> JsonObject:
        self._demand_reset()
        state = {"game": self._describer.save(self._game), "over": self._over, "reward": self._reward}
        return {**state, "random": _spelled(self._game)} if self._by_chance else state


def _make(spec: EnvironmentSpec, kwargs: JsonObject) -> Game:
    with missing_modules_explained():
        import gymnasium
    if kwargs.get("map_name", "") is None and kwargs.get("desc") is None:
        raise EnvError(f"environment {spec.environment_id}: without map_name and desc each game would draw its own map")
    try:
        # The wrappers count steps and check the order of calls, which restoring a state would confuse.
        return gymnasium.make(spec.source, **kwargs).unwrapped
    except (gymnasium.error.Error, TypeError, ValueError, KeyError) as error:
        raise EnvError(f"environment {spec.environment_id}: gymnasium cannot make {spec.source!r}: {error}") from error


def _spelled(game: Game) -> str:
    """The generator's state as text, since its numbers are wider than those of canonical JSON."""
    return json.dumps(game.np_random.bit_generator.state, sort_keys=True)
