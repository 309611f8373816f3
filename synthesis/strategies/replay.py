"""Replaying what was recorded: each action carried out again, each state compared with the one written down."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from schemas.record import JsonObject
from schemas.trajectory import Action, AnyAction, AnyItem
from synthesis.environments.environment import Environment, WorldError
from synthesis.strategies.stepping import carry_out, world_at_fault

ACTOR = "actor"


class ReplayDiverged(WorldError):
    """The recorded actions do not lead where they led before."""

    reason = "replay_diverged"


def acts(item: AnyItem) -> bool:
    """Whether it is an action upon the environment: those of other roles than the actor's are words only."""
    return isinstance(item, Action) and item.role in (None, ACTOR)


def imagined(item: AnyItem) -> bool:
    """Whether it is an answer of the environment that a model made up."""
    made_up = not isinstance(item, Action) and item.synthetic and item.turn > 0
    return made_up and item.context_operation in (None, "copied")


def replay(environment: Environment, content: Sequence[AnyItem]) -> None:
    """Carry out ``content`` in an environment that was just reset. Raises ``ReplayDiverged``, ``WorldError``."""
    difference = divergence(environment, content)
    if difference is not None:
        raise ReplayDiverged(
            f"item {difference['item']}: state {difference['replayed']}, recorded was {difference['recorded']}"
        )


def divergence(environment: Environment, content: Sequence[AnyItem]) -> JsonObject | None:
    """Carry out each action that was answered, and return the first difference of states, if there is one.

    An observation with a state digest answers the oldest action that is not yet carried out; those of turn 0 show the
    state of the start. One that a model made up has no state: the action of its turn is carried out, until the world
    has ended.
    """
    waiting: deque[AnyAction] = deque()
    ended = False
    for index, item in enumerate(content):
        if isinstance(item, Action):
            if acts(item):
                waiting.append(item)
        elif imagined(item):
            while waiting and waiting[0].turn < item.turn:
                waiting.popleft()
            if waiting and not ended:
                ended = carry_out(environment, waiting.popleft()).terminated
        elif item.state_digest is not None:
            if item.turn > 0:
                if not waiting:
                    return {"item": index, "recorded": item.state_digest, "replayed": None}
                carry_out(environment, waiting.popleft())
            with world_at_fault():
                replayed = environment.state_digest()
            if replayed != item.state_digest:
                return {"item": index, "recorded": item.state_digest, "replayed": replayed}
    return None
