"""Several agents told as one assistant, after Chain-of-Agents (arXiv:2508.13167).

What they say among each other becomes thoughts of the one, between tags that bear their names; what was done stays as
it was done. So a single model learns to plan, act and object to itself in the same turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from schemas.chat import grouped
from schemas.trajectory import Action, AnyAction, AnyItem, MessageAction, TextObservation, Trajectory
from schemas.views.roles import SPEAKER, Perspective, heard, is_instruction, perspectives
from schemas.views.toolformats import DIALECTS, calls_text
from schemas.views.turns import PROPOSER


def linearized(trajectory: Trajectory, names: Sequence[str]) -> tuple[Trajectory, list[int]]:
    """A run of ours with the agents ``names`` as one, and where in the run each item of it stood.

    All other agents are heard. Reviewers that are among ``names`` speak where they vetoed; the veto is then theirs, and
    no answer of the world. The turns of what is said until something is done are one.
    """
    roles = perspectives(trajectory)
    people = frozenset(name for name, role in roles.items() if role.person)
    items: list[AnyItem] = []
    places: list[int] = []
    for place, item in enumerate(trajectory.content):
        if not _told(trajectory.content, place, names, roles):
            continue
        if isinstance(item, Action):
            item = _thought(item) if item.agent in names else heard(item, people)
            if isinstance(item, Action) and items and isinstance(items[-1], Action):
                item = msgspec.structs.replace(item, turn=items[-1].turn)
        items.append(item)
        places.append(place)
    return msgspec.structs.replace(trajectory, content=items), places


def _told(content: Sequence[AnyItem], place: int, names: Sequence[str], roles: dict[str, Perspective]) -> bool:
    item = content[place]
    if isinstance(item, Action):
        speaker = roles.get(item.agent or "")
        if speaker is None or not speaker.reviews:
            return True
        return item.agent in names and place + 1 < len(content) and _vetoes(content[place + 1], item.agent)
    if is_instruction(item):
        return any(roles[name].told for name in names)
    return not any(_vetoes(item, name) for name in names)


def _vetoes(item: Any, reviewer: str | None) -> bool:
    return isinstance(item, TextObservation) and item.source == "agent" and item.name == reviewer


def _thought(action: AnyAction) -> AnyAction:
    """What an agent said, or would have done, between tags; an action that was carried out as it is."""
    if action.role not in (SPEAKER, PROPOSER):
        return action
    ((message, _),) = grouped([action])
    text = calls_text(message, DIALECTS["json"])
    return MessageAction(
        content=f"<{action.agent}>\n{text}\n</{action.agent}>",
        turn=action.turn,
        agent=action.agent,
        role=action.role,
        error=action.error,
        context_operation=action.context_operation,
    )
