"""What puts a gymnasium game into words: the contract, and the part that games over a table of states share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.registry import Registry
from agentmill.synthesis.environments.environment import Check, EnvError

Game = Any
"""A live gymnasium environment without wrappers; the library is untyped here."""

DESCRIBERS: Registry[Callable[[], Describer]] = Registry(
    "describer",
    {
        "blackjack": "agentmill.synthesis.environments.gymnasium_text.games:Blackjack",
        "cliff_walking": "agentmill.synthesis.environments.gymnasium_text.games:CliffWalking",
        "frozen_lake": "agentmill.synthesis.environments.gymnasium_text.games:FrozenLake",
        "taxi": "agentmill.synthesis.environments.gymnasium_text.games:Taxi",
    },
)


class Describer(Protocol):
    """Holds no state: everything is read from the game. ``commands`` are in the order of the game's action numbers."""

    commands: tuple[str, ...]

    def rules(self, game: Game, commands: tuple[str, ...]) -> str:
        """What a newcomer must know; ``commands`` are the names that the actions bear here."""

    def start(self, game: Game) -> str:
        """What is seen at first."""

    def change(self, game: Game, before: JsonObject, action: int, reward: float) -> str:
        """What a step did; ``before`` is what ``save`` said before it."""

    def check(self, game: Game, over: bool, reward: float) -> Check:
        """Whether the game is won; ``reward`` is the last one if the game is over, else 0."""

    def save(self, game: Game) -> JsonObject:
        """The state as JSON, without the random generator."""

    def load(self, game: Game, state: JsonObject) -> None:
        """Put ``state`` in place. Raises ``ValueError`` or ``KeyError`` for what is none."""

    def by_chance(self, game: Game) -> bool:
        """Whether any step draws random numbers that matter."""


class Tabular:
    """Games whose state is one number ``s`` and whose steps are the table ``P``."""

    def save(self, game: Game) -> JsonObject:
        """``{"s": number}``."""
        return {"s": int(game.s)}

    def load(self, game: Game, state: JsonObject) -> None:
        """Raises ``ValueError`` for a number that is no state."""
        if state["s"] not in game.P:
            raise ValueError(f"state {state['s']!r} is not in 0 to {len(game.P) - 1}")
        game.s = state["s"]

    def by_chance(self, game: Game) -> bool:
        """Whether any action has several outcomes."""
        return any(len(outcomes) > 1 for actions in game.P.values() for outcomes in actions.values())


_HIT = 1


class Blackjack:
    """``Blackjack-v1``. The dealer's second card is part of the state, and not shown before the end."""

    commands = ("stick", "hit")

    def rules(self, game: Game, commands: tuple[str, ...]) -> str:  # noqa: ARG002
        """The game in short."""
        stick, hit = commands
        return (
            "You play blackjack: come closer to 21 than the dealer without going above it. Face cards count 10, an "
            "ace 1 or 11. The dealer draws up to 17. Cards are drawn with replacement. "
            f"Commands: {hit} (take a card), {stick} (take no more)."
        )

    def start(self, game: Game) -> str:
        """The player's cards and the dealer's open card."""
        return f"Your cards: {_cards(game.player)}. {_sum(game)} The dealer shows {_cards(game.dealer[:1])}."

    def change(self, game: Game, before: JsonObject, action: int, reward: float) -> str:  # noqa: ARG002
        """The card drawn, or how it ended."""
        if action == _HIT:
            lost = " You lose." if reward < 0 else ""
            return f"You draw {_cards(game.player[-1:])}. {_sum(game)}{lost}"
        result = "You win." if reward > 0 else "You lose." if reward < 0 else "It is a draw."
        return f"The dealer has {_cards(game.dealer)}. {result}"

    def check(self, game: Game, over: bool, reward: float) -> Check:
        """Won with a positive last reward; a draw is half of it."""
        score = {True: 1.0, False: 0.0}[reward > 0] if reward else 0.5
        return Check(passed=over and reward > 0, score=score if over else 0.0, evidence={"player": list(game.player)})

    def save(self, game: Game) -> JsonObject:
        """Both hands."""
        return {"player": [int(card) for card in game.player], "dealer": [int(card) for card in game.dealer]}

    def load(self, game: Game, state: JsonObject) -> None:
        """Raises ``ValueError`` for cards that there are not."""
        player, dealer = list(state["player"]), list(state["dealer"])
        if min(len(player), len(dealer)) < 2 or not set(player + dealer) <= set(range(1, 11)):
            raise ValueError(f"no hands of at least two cards from 1 to 10: {player}, {dealer}")
        game.player, game.dealer = player, dealer

    def by_chance(self, game: Game) -> bool:  # noqa: ARG002
        """Always."""
        return True


def _cards(cards: list[int]) -> str:
    return ", ".join("ace" if card == 1 else str(card) for card in cards)


def _sum(game: Game) -> str:
    total, _, usable_ace = game._get_obs()
    return f"Your sum is {total}{' with an ace as 11' if usable_ace else ''}."


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
        """Where the walker, the goal and the holes are. Raises ``EnvError`` for a map without a goal."""
        holes = ", ".join(f"({row}, {column})" for row, column in _cells(game, b"H"))
        goals = _cells(game, b"G")
        if not goals:
            raise EnvError("the map of the lake has no goal: one cell of desc has to be G")
        places = " or ".join(f"row {row}, column {column}" for row, column in goals)
        return f"You are at {_cell(game)}. The goal is at {places}. Holes at {holes or 'no place'}."

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
        # Not part of the number: whether the passenger changes its mind is drawn at the reset.
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
