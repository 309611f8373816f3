"""Blackjack: twenty-one against a dealer."""

from __future__ import annotations

from schemas.record import JsonObject
from synthesis.environments.environment import Check
from synthesis.environments.gymnasium_text.describer import Game

_HIT = 1


class Blackjack:
    """``Blackjack-v1``. The dealer's second card is part of the state, and not told before the end."""

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
