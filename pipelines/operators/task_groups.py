"""Groups of tasks by the values of their fields: skills, difficulty in fifths, environments, and fields of these."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from agentmill.pipelines.operators.operator import Inputs, tables_of
from agentmill.pipelines.operators.quotas import Quota, QuotaValues
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.task import Task
from agentmill.schemas.tables import read_columns

DIFFICULTY = "difficulty"
FIFTHS = 5


def check_fields(by: Sequence[str]) -> None:
    """Raises ``UserError`` for fields that neither tasks nor their environments have."""
    for quota in (Quota(by=field, at_most=1) for field in by if field != DIFFICULTY):
        quota.check(Task)
        if quota.role not in (None, "environments"):
            raise UserError(
                f"`by: {quota.by}` is a field of another table; expected one of the tasks, or environment.FIELD",
                ErrorCode.KEY_NOT_FOR_THIS,
            )


class TaskGroups:
    """The values that the tasks of ``role`` have in each field of ``by``. Pickles as paths; each worker loads it once.

    ``operator`` is whose parameter ``by`` is, for messages.
    """

    def __init__(self, by: Sequence[str], inputs: Inputs, role: str, operator: str) -> None:
        self.by = list(by)
        self.digests = [table.digest for name in (role, "environments") for table in tables_of(inputs, name)]
        """Of all tables that the values may be read from."""
        self._paths = [path for table in tables_of(inputs, role) for path in table.shards()]
        field = {DIFFICULTY: f"{DIFFICULTY}.level"}
        self._fields = {
            each: QuotaValues(Quota(by=field.get(each, each), at_most=1), Task, inputs, f"{operator}: `by`")
            for each in by
        }
        self.of: dict[str, list[tuple[str, str]]] = {}
        """(field, value) by task, once loaded."""

    def load(self) -> None:
        """Read the fields. Raises ``UserError`` for one that no task has."""
        self.of = defaultdict(list)
        for by, values in self._fields.items():
            values.load()
            ids: list[str] = []
            for path in self._paths:
                own = read_columns(path, Task, ["task_id"])["task_id"].to_pylist()
                for task_id, found in zip(own, values.values_in(path), strict=True):
                    self.of[task_id] += [(by, fifth(each) if by == DIFFICULTY else each) for each in found]
                ids += own
            values.check_found(ids)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "of": {}}


def fifth(level: str) -> str:
    """The fifth that a difficulty from 0 to 1 is in."""
    place = min(FIFTHS - 1, max(0, int(float(level) * FIFTHS)))
    return f"{place / FIFTHS:.1f} to {(place + 1) / FIFTHS:.1f}"
