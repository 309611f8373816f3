"""A trajectory of several agents, seen by one of them: it acts, the others are heard."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.chat import grouped
from schemas.trajectory import Action, AnyAction, AnyItem, TextObservation
from schemas.views.toolformats import DIALECTS, calls_text


def plays(item: AnyItem, role: str) -> bool:
    """Whether ``item`` is an action of the agent, or of an agent in the role, of that name."""
    return isinstance(item, Action) and role in (item.agent, item.role)


def seen_by(role: str, content: Sequence[AnyItem]) -> list[AnyItem]:
    """``content``, item by item, with the actions of all others turned into what this one reads.

    Who speaks is written before it. Calls of others are shown as JSON; what they were answered stays an observation.
    """
    return [item if plays(item, role) or not isinstance(item, Action) else _heard(item) for item in content]


def _heard(action: AnyAction) -> TextObservation:
    ((message, _),) = grouped([action])
    speaker = action.agent or action.role
    text = calls_text(message, DIALECTS["json"])
    return TextObservation(
        content=f"{speaker}: {text}" if speaker else text,
        source="agent",
        name=speaker,
        turn=action.turn,
        error=action.error,
        synthetic=action.synthetic,
        context_operation=action.context_operation,
    )
