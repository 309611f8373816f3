"""The quality of trajectories as data: one row of counts each, whatever the runs themselves came to."""

from __future__ import annotations

from typing import Literal

from schemas.record import Record

Ending = Literal["nothing", "message", "call", "code", "observation"]


class Quality(Record):
    """What can be counted in one trajectory.

    ``calls`` are tool calls and code. ``calls_unanswered`` have no observation that answers them; ``results_unlinked``
    are observations with the id of no call. ``calls_undeclared`` name no declared tool, ``calls_misfit`` have arguments
    that the declared tool does not take (both 0 where no tools are declared). ``content_digest`` is equal for runs that
    say the same. ``tokens`` is the length of all texts under a tokenizer, ``language`` the ISO 639 code of what the
    agent says, ``None`` where it says too little.
    """

    trajectory_id: str
    content_digest: str
    ending: Ending
    items: int
    turns: int
    messages: int
    calls: int
    calls_with_thought: int
    calls_unanswered: int
    calls_undeclared: int
    calls_misfit: int
    results_unlinked: int
    errors: int
    characters: int
    starts_with_user: bool
    has_system_prompt: bool
    tokens: int | None = None
    language: str | None = None
    code_languages: list[str] = []
    status: str | None = None
