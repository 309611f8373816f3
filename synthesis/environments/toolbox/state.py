"""What a live toolbox remembers besides its rows, and what wrappers may switch on."""

from __future__ import annotations

import msgspec


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The keys of ``spec.parameters``.

    ``hints`` tells with a refusal what would help; ``milestones`` rewards progress with the change of the score;
    ``faults`` is the share of calls that fail the first time, by no fault of the agent; ``user`` can be asked.
    """

    hints: bool = False
    milestones: bool = False
    faults: float = 0.0
    user: bool = False


class State(msgspec.Struct, frozen=True):
    """All of a state but the rows. ``failed`` are the calls that failed by a fault, ``asked`` the slots told."""

    answer: str | None = None
    violations: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()


class Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A snapshot. ``progress`` is how many actions of the gold solution were taken."""

    task_id: str
    state: State
    progress: int
    image: bytes
