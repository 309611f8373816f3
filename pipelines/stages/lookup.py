"""Side tables by id: what a worker looks up while it works on the rows of another table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from pipelines.engine.operation import identity
from schemas.errors import UserError
from schemas.record import Record
from schemas.tables import Table, read_shard

R = TypeVar("R", bound=Record)


class Lookup(Generic[R]):
    """Records of some tables by id. Pickles as paths; each worker loads it once.

    With ``single``, two different records under one key are an error.

    It holds whole records in memory: meant for environments, tasks and verdicts, not for trajectories.
    """

    def __init__(
        self,
        tables: Iterable[Table],
        record_type: type[R],
        key: Callable[[R], str] = identity,
        columns: Sequence[str] | None = None,
        *,
        single: bool = False,
    ) -> None:
        self._paths = [str(path) for table in tables for path in table.shards()]
        self._record_type = record_type
        self._key = key
        self._columns = columns
        self._single = single
        self._records: dict[str, R] = {}

    def load(self) -> None:
        """Read the tables; of equal ids the first stays. Raises ``UserError`` for a file that cannot be read, and
        where there are two of what must be ``single``."""
        self._records = {}
        for path in self._paths:
            for record in read_shard(Path(path), self._record_type, self._columns):
                first = self._records.setdefault(self._key(record), record)
                if self._single and identity(first) != identity(record):
                    told = f"{identity(first)} and {identity(record)} both stand for {self._key(record)}"
                    raise UserError(f"{path}: {told}; expected one: name tables that do not overlap")

    def get(self, record_id: str | None) -> R | None:
        """The record with this id, or ``None``."""
        return None if record_id is None else self._records.get(record_id)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_records": {}}
