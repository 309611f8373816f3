"""Walks on a grid: FrozenLake and CliffWalking."""

from __future__ import annotations

from schemas.record import JsonObject
from synthesis.environments.environment import Check
from synthesis.environments.gymnasium_text.describer import Game, Tabular


class FrozenLake(Tabular):
    """``FrozenLake-v1`` and ``FrozenLake8x8-v1``. The map must be given (``map_name`` or ``desc``)."""

    commands = ("left", "down", "right", "up")

    def rules(self, game: Game, commands: tuple[str, ...]) -> str:
        """The lake, and whether it is slippery."""
        slippery = " The ice is slippery: you may slide sideways." if self.by_chance(game) else ""
        return (
            "You walk on a frozen lake to the goal. A hole ends the walk. Rows count from the top and columns from "
            f"the left, from 0.{slippery} Commands: {', '.join(commands)}."
        )

    def start(self, game: Game) -> str:
        """Where the walker, the goal and the holes are."""
        holes = ", ".join(f"({row}, {column})" for row, column in _cells(game, b"H"))
        row, column = _cells(game, b"G")[0]
        return f"You are at {_cell(game)}. The goal is at row {row}, column {column}. Holes at {holes or 'no place'}."

    def change(self, game: Game, before: JsonObject, action: int, reward: float) -> str:  # noqa: ARG002
        """Where the walker is now."""
        letter = game.desc.ravel()[game.s]
        if letter == b"G":
            return "You reached the goal."
        if letter == b"H":
            return f"You fell into the hole at {_cell(game)}."
        return f"You are {'still ' if game.s == before['s'] else ''}at {_cell(game)}."

    def check(self, game: Game, over: bool, reward: float) -> Check:  # noqa: ARG002
        """Won on the goal."""
        return _arrived(game, game.desc.ravel()[game.s] == b"G")


class CliffWalking(Tabular):
    """``CliffWalking-v1`` and ``CliffWalkingSlippery-v1``."""

    commands = ("up", "right", "down", "left")

    def rules(self, game: Game, commands: tuple[str, ...]) -> str:
        """The cliff, and whether it is slippery."""
        slippery = " The ground is slippery: you may slide sideways." if self.by_chance(game) else ""
        rows, columns = game.shape
        return (
            f"You walk on a grid of {rows} rows and {columns} columns; rows count from the top and columns from the "
            f"left, from 0. Row {rows - 1}, columns 1 to {columns - 2} are a cliff: who falls is back at the start."
            f"{slippery} Commands: {', '.join(commands)}."
        )

    def start(self, game: Game) -> str:
        """Where the walker and the goal are."""
        rows, columns = game.shape
        return f"You are at {_cell(game)}. The goal is at row {rows - 1}, column {columns - 1}."

    def change(self, game: Game, before: JsonObject, action: int, reward: float) -> str:  # noqa: ARG002
        """Where the walker is now."""
        if self._at_goal(game):
            return "You reached the goal."
        if reward < -1:
            return f"You fell off the cliff and are back at {_cell(game)}."
        return f"You are {'still ' if game.s == before['s'] else ''}at {_cell(game)}."

    def check(self, game: Game, over: bool, reward: float) -> Check:  # noqa: ARG002
        """Won on the goal, where the game gives the reward -1 as for every step."""
        return _arrived(game, self._at_goal(game))

    def _at_goal(self, game: Game) -> bool:
        rows, columns = game.shape
        return bool(game.s == rows * columns - 1)


def _columns(game: Game) -> int:
    return int(game.desc.shape[1] if hasattr(game, "desc") else game.shape[1])


def _cell(game: Game) -> str:
    row, column = divmod(int(game.s), _columns(game))
    return f"row {row}, column {column}"


def _cells(game: Game, letter: bytes) -> list[tuple[int, int]]:
    return [divmod(number, _columns(game)) for number, found in enumerate(game.desc.ravel()) if found == letter]


def _arrived(game: Game, won: bool) -> Check:
    return Check(passed=won, score=1.0 if won else 0.0, evidence={"position": _cell(game)})
