"""What puts a gymnasium game into words: the contract, and the part that games over a table of states share."""

from __future__ import annotations

from typing import Any, Protocol

from schemas.record import JsonObject
from schemas.registry import Registry
from synthesis.environments.environment import Check

Game = Any
"""A live gymnasium environment without wrappers; the library is untyped here."""

DESCRIBERS = Registry(
    "describer",
    {
        "blackjack": "synthesis.environments.gymnasium_text.blackjack:Blackjack",
        "cliff_walking": "synthesis.environments.gymnasium_text.grids:CliffWalking",
        "frozen_lake": "synthesis.environments.gymnasium_text.grids:FrozenLake",
        "taxi": "synthesis.environments.gymnasium_text.taxi:Taxi",
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
