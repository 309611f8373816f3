"""A level of BabyAI (arXiv:1810.08272) as the package ``minigrid`` has it, with what we read of it in types."""

from __future__ import annotations

import os
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from agentmill.schemas.extras import require
from agentmill.schemas.records.record import JsonObject
from agentmill.synthesis.environments.environment import EnvError

LEFT, RIGHT, FORWARD, PICK_UP, DROP, TOGGLE, DONE = range(7)
"""The game's own actions. ``DONE`` changes nothing, and lets the game look again whether the mission is met."""

MOST_PLACED = 2_000
"""Things that are placed, in all drafts of a map together, before it is given up; maps that can be drawn take fewer."""

Cell = tuple[int, int]
"""Column and row, from the upper left."""

AHEAD: tuple[Cell, ...] = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""The cell in front, relative to the agent, by its direction; a turn to the right is the next one."""


class Thing(Protocol):
    """What may be in a cell: ``wall``, ``door``, ``key``, ``ball`` or ``box``. Doors alone open and are locked."""

    type: str
    color: str
    is_open: bool
    is_locked: bool


class Grid(Protocol):
    """The map."""

    width: int
    height: int

    def get(self, i: int, j: int) -> Thing | None:
        """What is in a column and row."""

    def encode(self) -> npt.NDArray[np.uint8]:
        """All of it as numbers, with the states of doors."""


class Game(Protocol):
    """A live level, without gymnasium's wrappers."""

    mission: str
    grid: Grid
    agent_pos: Any
    agent_dir: int
    agent_view_size: int
    carrying: Thing | None
    step_count: int
    max_steps: int
    instrs: Any

    def reset(self, *, seed: int) -> object:
        """Draw map and mission."""

    def place_obj(self, *where: Any, **options: Any) -> Any:
        """Put a thing, or the agent, on a random free cell."""

    def step(self, action: int) -> tuple[Any, Any, bool, bool, Any]:
        """Observation, reward, whether it ended, whether it was cut short, and more."""

    def gen_obs_grid(self) -> tuple[Grid, npt.NDArray[np.bool_]]:
        """The part of the map before the agent, turned so that it looks up, and which cells of it are seen."""


def make_game(level: str, options: JsonObject) -> Game:
    """The level of a gymnasium id. Raises ``EnvError`` for one that cannot be made, ``UserError`` without minigrid."""
    # It is pygame's, which greets on standard output, where workers answer.
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    # By name: a missing gymnasium, which comes with it, would ask for another extra.
    require("envs-babyai")
    import gymnasium
    import minigrid  # noqa: F401  registers the levels
    from minigrid.envs.babyai.core import roomgrid_level

    # The package prints each draft of a mission that it rejects; this is a name in that one module.
    vars(roomgrid_level)["print"] = _nothing
    try:
        # The wrappers count steps and check the order of calls, which restoring a state would confuse.
        game = cast(Game, gymnasium.make(level, **options).unwrapped)
    except (gymnasium.error.Error, TypeError, ValueError, AssertionError) as error:
        raise EnvError(f"minigrid cannot make {level!r} with {options}: {error}") from error
    if not hasattr(game, "gen_mission"):
        raise EnvError(f"{level!r} is no level of BabyAI; they are called BabyAI-…")
    return game


class Placing:
    """The ``place_obj`` of a game, which gives up: in a room that is too full the package would try for ever."""

    def __init__(self, game: Game) -> None:
        self._place = game.place_obj
        self._left = MOST_PLACED

    def __call__(self, *where: Any, **options: Any) -> Any:
        """As ``Game.place_obj``. Raises ``EnvError``."""
        self._left -= 1
        if self._left < 0:
            raise EnvError("no map can be drawn: there are too many things for rooms of this size")
        return self._place(*where, **options)


def draw_map(game: Game, seed: int) -> None:
    """Draw map and mission of ``seed``. Raises ``EnvError`` where the things do not fit into the rooms, and for options
    that the level cannot be drawn with.
    """
    try:
        game.place_obj = Placing(game)  # type: ignore[method-assign]
        game.reset(seed=seed)
    except (TypeError, ValueError) as error:
        raise EnvError(f"no map can be drawn: {type(error).__name__}: {error}; correct the options") from error
    finally:
        del game.place_obj


def _nothing(*words: object) -> None:
    del words


def position(game: Game) -> Cell:
    """Where the agent is, as plain numbers."""
    return int(game.agent_pos[0]), int(game.agent_pos[1])


def before(game: Game) -> Cell:
    """The cell in front of the agent."""
    column, row = position(game)
    across, down = AHEAD[game.agent_dir]
    return column + across, row + down


def is_free(thing: Thing | None) -> bool:
    """Whether the agent can stand there: on an empty cell or in an open door."""
    return thing is None or (thing.type == "door" and thing.is_open)


def parts(instruction: Any) -> list[Any]:
    """The two instructions that a compound one is made of; none of a simple one."""
    return [getattr(instruction, name) for name in ("instr_a", "instr_b") if hasattr(instruction, name)]


def progress(instruction: Any) -> list[Any]:
    """What the mission's checker remembers: which parts are done, and what was carried one action ago."""
    carried = getattr(instruction, "preCarrying", None)
    found: list[Any] = [str(getattr(instruction, name, None)) for name in ("a_done", "b_done")]
    found.append(None if carried is None else [carried.type, carried.color])
    return [*found, *map(progress, parts(instruction))]
