"""Properties by which trajectories are grouped: task, environment, data set, outcome, any field; family and skill.

A property of a trajectory has no value, one or, as skills and lists below ``extra``, several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from pydantic import AfterValidator

from agentmill.pipelines.operators.lookup import Lookup
from agentmill.pipelines.operators.operator import Inputs, tables_of
from agentmill.schemas.arrow.layout import field_type
from agentmill.schemas.conditions import value_at
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Trajectory

FIELDS: Mapping[str, str] = {
    "task": "task_id",
    "environment": "environment_id",
    "dataset": "source.dataset",
    "outcome": "outcome.status",
}
"""Short names of fields of a trajectory."""

ROLES: Mapping[str, str] = {"family": "environments", "skill": "tasks"}
"""Properties that are not in the trajectory itself, and the tables that hold them."""


def _field(name: str) -> str:
    if name in FIELDS:
        return name
    try:
        field_type(Trajectory, name, "by")
    except ValueError as error:
        known = [*FIELDS, *ROLES]
        short = f"; short names: {', '.join(known)}.{near_match(name, known)}" if "." not in name else ""
        raise ValueError(f"{error}{short}") from None
    return name


FieldProperty = Annotated[str, AfterValidator(_field)]
"""A property that is in the trajectory itself: one of ``FIELDS``, or a field with dots, as ``extra.topic``."""

Property = Annotated[str, AfterValidator(lambda name: name if name in ROLES else _field(name))]
"""A ``FieldProperty``, or one of ``ROLES``."""


class Properties:
    """The properties of trajectories. Pickles as paths; each worker loads it once."""

    def __init__(self, inputs: Inputs) -> None:
        self._environments = Lookup(tables_of(inputs, "environments"), EnvironmentSpec, columns=["family"])
        self._tasks = Lookup(tables_of(inputs, "tasks"), Task, columns=["skills"])

    def load(self) -> None:
        """Read the tables. Raises ``UserError`` for a file that cannot be read."""
        self._environments.load()
        self._tasks.load()

    def values(self, name: str, trajectory: Trajectory) -> tuple[str, ...]:
        """The values of a property, as texts; empty where it is not known."""
        if name == "family":
            spec = self._environments.get(trajectory.environment_id)
            return () if spec is None else (spec.family,)
        if name == "skill":
            task = self._tasks.get(trajectory.task_id)
            return () if task is None else tuple(dict.fromkeys(task.skills))
        return field_values(name, trajectory)


class AbsenceCheck:
    """Finds properties that no record has; ``step`` and ``parameter`` are for its message."""

    def __init__(self, step: str, parameter: str) -> None:
        self._start = f"{step}: `{parameter}"
        self._seen: set[str] = set()
        self._others: dict[str, Counter[str]] = {}

    def note(self, name: str, record: Record, values: Sequence[str]) -> None:
        """Take note of the ``values`` that a record has of a property."""
        if values:
            self._seen.add(name)
        elif name not in self._seen:
            self._others.setdefault(name, Counter()).update(_present(name, record))

    def check(self) -> None:
        """Raises ``UserError`` for a property that was noted, and never with a value."""
        for name, others in self._others.items():
            if name not in self._seen:
                table = f" by the tables of `{ROLES[name]}`" if name in ROLES else ""
                raise UserError(
                    f"{self._start}: {name}`: no record has a value of it{table}\n"
                    f"some have: {', '.join(others) or 'no property at all'}.{near_match(name, others)}",
                    ErrorCode.FIELD_MISSING,
                )


def field_values(name: str, record: Record) -> tuple[str, ...]:
    """The values of a ``FieldProperty``, as texts; empty where it is null, or a task has no such field."""
    found: Any = value_at(record, FIELDS.get(name, name))
    values = found if isinstance(found, list) else [found]
    return tuple(dict.fromkeys(_text(each) for each in values if each is not None))


def _present(name: str, record: Record) -> Iterator[str]:
    """The properties that a record has, with those next to the field ``name`` in an open mapping."""
    yield from (each for each in FIELDS if field_values(each, record))
    above, _, _ = name.rpartition(".")
    mapping = value_at(record, above) if above else None
    if isinstance(mapping, dict):
        yield from (f"{above}.{key}" for key in mapping)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
