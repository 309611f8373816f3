"""What of a long trajectory the agent was shown: marks stand for the turns that were left out before them.

A mark is an observation whose ``context_operation`` is ``condense`` (turns left out) or ``fold`` (turns summed up). It
stands where the context was shortened; its ``turn`` is the last one that it stands for. Nothing is ever deleted.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from schemas.trajectory import Action, AnyItem

MARKS = ("condense", "fold")


def is_mark(item: AnyItem) -> bool:
    """Whether the item stands for turns that were left out."""
    return item.context_operation in MARKS and not isinstance(item, Action)


def shown(content: Sequence[AnyItem]) -> list[AnyItem]:
    """What the agent sees next: the opening (turn 0), the last mark, and all turns that it does not stand for."""
    seen = [content[place] for place in shown_places(content)]
    return [msgspec.structs.replace(item, turn=0) if is_mark(item) else item for item in seen]


def shown_places(content: Sequence[AnyItem]) -> list[int]:
    """Where in ``content`` that stands."""
    mark = next((place for place in reversed(range(len(content))) if is_mark(content[place])), None)
    if mark is None:
        return list(range(len(content)))
    items = [(place, item) for place, item in enumerate(content) if not is_mark(item)]
    opening = [place for place, item in items if item.turn == 0]
    later = [place for place, item in items if item.turn > content[mark].turn]
    return [*opening, mark, *later]
