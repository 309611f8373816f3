"""Environments and tasks as data: what a generator proposed and an admission let through."""

from __future__ import annotations

from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.trajectory import AnyAction, Tool


class Lineage(Record):
    """How an environment or a task came to be. ``inspiration`` is the id or digest of the text it was made from."""

    operator: str
    parents: list[str] = []
    inspiration: str | None = None
    seed: int | None = None
    notes: JsonObject = {}


CONTRAST = "contrast"
"""The operator that makes twins of tasks, and the key of ``Lineage.notes`` under which it keeps what it made.

The note of a task is copied where the twin is renamed."""


def contrast_of(lineage: Lineage | None) -> str | None:
    """The kind of a twin, also of a renamed one, or the tools of an environment of twins; ``None`` for others."""
    made: str | None = lineage.notes.get(CONTRAST) if lineage else None
    return made


class AdmissionCheck(Record):
    """One check of an admission and what it found."""

    name: str
    passed: bool
    detail: str = ""


class AdmissionReport(Record):
    """What admission found; ``repairs`` counts the repair rounds a generator needed."""

    checks: list[AdmissionCheck]
    repairs: int = 0
    seconds: float = 0.0


class EnvironmentSpec(Record):
    """An environment as data. ``source`` is what its family reads (PDDL, tool code, a registered name …).

    ``parameters`` is what the family needs with it (text templates, keyword arguments …). ``structure_digest`` is
    equal for environments that differ in names only.
    """

    environment_id: str
    family: str
    name: str
    source: str
    parameters: JsonObject = {}
    tools: list[Tool] = []
    structure_digest: str | None = None
    admission: AdmissionReport | None = None
    lineage: Lineage | None = None
    split: str | None = None


class Difficulty(Record):
    """How hard a task is; ``level`` in [0, 1] orders tasks of one family, the parts say why.

    ``plan_length`` in actions, ``expansions`` in states the planner expanded, ``pass_rate`` in [0, 1].
    """

    level: float
    plan_length: int | None = None
    expansions: int | None = None
    pass_rate: float | None = None


class Task(Record):
    """One thing to do in one environment. ``gold`` is a solution as actions, where one is known.

    ``initial_state`` and ``goal`` are in the family's own terms (PDDL: the problem in ``initial_state["problem"]``).
    ``structure_digest`` is equal for tasks that differ in object names only.
    """

    task_id: str
    environment_id: str
    instruction: str
    initial_state: JsonObject = {}
    goal: JsonObject = {}
    constraints: list[str] = []
    gold: list[AnyAction] | None = None
    difficulty: Difficulty | None = None
    skills: list[str] = []
    max_turns: int = 30
    structure_digest: str | None = None
    admission: AdmissionReport | None = None
    lineage: Lineage | None = None
    split: str | None = None


class Inspiration(Record):
    """A piece of text that conditions a generator; ``inspiration_id`` is a digest of the text."""

    inspiration_id: str
    text: str
    source: str | None = None
