"""Gymnasium's toy games as text: an adapter that keeps the games' own dynamics and rewards.

``spec.source`` is the gymnasium id (``Taxi-v4``); ``spec.parameters`` are ``describer`` (a name in ``DESCRIBERS``),
``kwargs`` for ``gymnasium.make``, and ``commands``, other names for the actions in the order of their numbers.
``task.initial_state["state"]`` is the state to start from as the describer saves it; without it the seed draws one.
All actions are legal until the game is over. The game is used without wrappers, so there is no time limit but ours.
"""

from __future__ import annotations

import json

import msgspec

from schemas.errors import UserError
from schemas.extras import missing_modules_explained
from schemas.ids import digest
from schemas.record import JsonObject
from schemas.task import EnvironmentSpec, Task
from schemas.trajectory import AnyAction, ApiAction, MessageAction, TextObservation, Tool
from synthesis.environments.command import tidy
from synthesis.environments.environment import Check, Transition, WorldError, refusal
from synthesis.environments.gymnasium_text.describer import DESCRIBERS, Describer, Game
from synthesis.environments.gymnasium_text.examples import EXAMPLES
from synthesis.environments.gymnasium_text.value_iteration import solve


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of ``spec.parameters``."""

    describer: str
    kwargs: JsonObject = {}
    commands: tuple[str, ...] | None = None


class GymnasiumEnvironment:
    """Family ``gymnasium``. Raises ``WorldError`` for a game that cannot be made."""

    extra = "envs-gymnasium"

    def __init__(self, spec: EnvironmentSpec) -> None:
        self.spec = spec
        try:
            given = msgspec.convert(spec.parameters, Parameters)
            self._describer: Describer = DESCRIBERS.load(given.describer)()
        except (msgspec.ValidationError, UserError) as error:
            raise WorldError(f"environment {spec.environment_id}: {error}") from error
        self._game = _make(spec, given.kwargs)
        self._commands = given.commands or self._describer.commands
        if len(self._commands) != len(self._describer.commands) or len(set(map(tidy, self._commands))) < len(
            self._commands
        ):
            count = len(self._describer.commands)
            raise WorldError(f"environment {spec.environment_id}: commands must be {count} different names")
        self._functions = tuple(tidy(command).lower().replace(" ", "_") for command in self._commands)
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
        if state is not None:
            try:
                self._describer.load(self._game, state)
            except (KeyError, TypeError, ValueError) as error:
                raise WorldError(f"task {task.task_id}: initial_state['state']: {error}") from error
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
        """Raises ``WorldError`` for bytes that are no snapshot of this game."""
        self._demand_reset()
        try:
            saved = json.loads(snapshot)
            self._describer.load(self._game, saved["game"])
            self._game.np_random.bit_generator.state = saved["random"]
            self._over, self._reward = saved["over"], saved["reward"]
        except (KeyError, TypeError, ValueError) as error:
            raise WorldError(f"this is no snapshot of {self.spec.source}: {error}") from error

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
            raise WorldError("the environment was not reset")

    def _number(self, action: AnyAction) -> int | None:
        if isinstance(action, ApiAction):
            name = action.function.lower()
            return self._functions.index(name) if name in self._functions and not action.kwargs else None
        if isinstance(action, MessageAction):
            names = [tidy(command).lower() for command in self._commands]
            said = tidy(action.content).lower()
            return names.index(said) if said in names else None
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
    try:
        return gymnasium.make(spec.source, **kwargs).unwrapped
    except (gymnasium.error.Error, TypeError, ValueError, KeyError) as error:
        raise WorldError(
            f"environment {spec.environment_id}: gymnasium cannot make {spec.source!r}: {error}"
        ) from error


def _spelled(game: Game) -> str:
    """The generator's state as text, since its numbers are wider than those of canonical JSON."""
    return json.dumps(game.np_random.bit_generator.state, sort_keys=True)
