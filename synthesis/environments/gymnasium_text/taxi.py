"""The taxi: fetch a passenger and bring it to its destination."""

from __future__ import annotations

from schemas.record import JsonObject
from synthesis.environments.environment import Check
from synthesis.environments.gymnasium_text.describer import Game, Tabular

_STANDS = ("Red", "Green", "Yellow", "Blue")
_ABOARD = 4
_PICK_UP, _DROP_OFF = 4, 5


class Taxi(Tabular):
    """``Taxi-v4``. A move into a wall and a pick-up or drop-off in vain are legal, as in the game, and cost reward."""

    commands = ("south", "north", "east", "west", "pick up", "drop off")

    def rules(self, game: Game, commands: tuple[str, ...]) -> str:
        """Stands, walls and what is random."""
        stands = ", ".join(f"{name} ({row}, {column})" for name, (row, column) in zip(_STANDS, game.locs, strict=True))
        rain = " It rains: the taxi may slide sideways." if super().by_chance(game) else ""
        fickle = " The passenger may choose another destination on the way." if game.fickle_passenger else ""
        return (
            "You drive a taxi on a 5 by 5 grid: fetch the passenger and drop it off at its destination. Stands (row, "
            f"column): {stands}. Walls: {_walls(game)}.{rain}{fickle} Commands: {', '.join(commands)}."
        )

    def start(self, game: Game) -> str:
        """Where the taxi and the passenger are, and where the passenger wants to go."""
        _, _, passenger, destination = game.decode(int(game.s))
        where = "is in the taxi" if passenger == _ABOARD else f"waits at {_STANDS[passenger]}"
        return f"{_position(game)} The passenger {where} and wants to go to {_STANDS[destination]}."

    def change(self, game: Game, before: JsonObject, action: int, reward: float) -> str:  # noqa: ARG002
        """What is new."""
        old, new = game.decode(before["s"]), game.decode(int(game.s))
        if action in (_PICK_UP, _DROP_OFF):
            if old[2] == new[2]:
                return "There is nobody to pick up here." if action == _PICK_UP else "You cannot drop off anybody here."
            if new[2] == _ABOARD:
                return "The passenger is in the taxi."
            place = "the destination" if new[2] == new[3] else _STANDS[new[2]]
            return f"The passenger is at {place}."
        changed = f" The passenger now wants to go to {_STANDS[new[3]]}." if old[3] != new[3] else ""
        return (_position(game) if old[:2] != new[:2] else "A wall: the taxi did not move.") + changed

    def check(self, game: Game, over: bool, reward: float) -> Check:  # noqa: ARG002
        """Won when the passenger was dropped off at its destination; half of it is to have it aboard."""
        _, _, passenger, destination = game.decode(int(game.s))
        won = passenger == destination
        score = 1.0 if won else 0.5 if passenger == _ABOARD else 0.0
        return Check(passed=won, score=score, evidence={"aboard": passenger == _ABOARD})

    def save(self, game: Game) -> JsonObject:
        """``s``, and whether the passenger will still change its mind."""
        return {**super().save(game), "fickle_step": bool(game.fickle_step)}

    def load(self, game: Game, state: JsonObject) -> None:
        """Raises ``ValueError`` for a number that is no state."""
        super().load(game, state)
        game.fickle_step = bool(state.get("fickle_step", False))

    def by_chance(self, game: Game) -> bool:
        """In rain, and with a fickle passenger."""
        return bool(game.fickle_passenger) or super().by_chance(game)


def _position(game: Game) -> str:
    row, column, _, _ = game.decode(int(game.s))
    return f"The taxi is at row {row}, column {column}."


def _walls(game: Game) -> str:
    """Walls stand between neighbouring columns; read from the game's drawing."""
    walls = []
    for column in range(4):
        rows = [str(row) for row in range(5) if game.desc[row + 1, 2 * column + 2] == b"|"]
        if rows:
            walls.append(f"between columns {column} and {column + 1} in rows {', '.join(rows)}")
    return "; ".join(walls)
