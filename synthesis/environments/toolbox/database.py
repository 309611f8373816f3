"""The cell in which the SQL of a toolbox runs: a database in memory that can do nothing but answer.

An authorizer admits reading and writing rows and a list of functions; there is no way to other files, to settings, to
the clock or to chance. Work is bounded by counting the steps of SQLite's machine, space by the length of a value, of an
answer and of the whole database, so that the bounds are the same everywhere.
"""

from __future__ import annotations

import itertools
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache

from agentmill.synthesis.environments.toolbox.toolbox import (
    NEW_ID,
    Column,
    Table,
    Tool,
    Toolbox,
    ToolboxError,
    Value,
    quoted,
)

MAX_ROWS = 50
"""How many rows a query may show."""

MAX_STEPS = 400_000
"""How many steps of SQLite's machine a statement may take; 1,000 rows joined with 50 need about 300,000."""

MAX_VALUE_BYTES = 20_000
"""How long a text, or a row of a table, may become."""

MAX_ANSWER_LETTERS = 50_000
"""How long the texts that a query shows may be together; 50 rows of ten short columns have about 5,000."""

MAX_PAGES = 8_192
"""How large the database may become, in pages of 512 bytes: 4 MiB."""

_MAX_FIELDS = 100
_STEPS_PER_COUNT = 1_000
_PAGE_BYTES = 512
_VERB = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE)\b", re.IGNORECASE)
_UPSERT = re.compile(r"\bDO\s+UPDATE\b", re.IGNORECASE)
_OR_ROLLBACK = re.compile(r"\s*\w+\s+OR\s+ROLLBACK\b", re.IGNORECASE)
_READING = (
    "abs coalesce count ifnull iif instr length like lower ltrim max min nullif replace rtrim substr sum trim upper"
)
FUNCTIONS = frozenset(_READING.split())
"""All functions that SQL may call."""

_ALLOWED = frozenset(
    (
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_INSERT,
        sqlite3.SQLITE_UPDATE,
        sqlite3.SQLITE_DELETE,
        sqlite3.SQLITE_SAVEPOINT,  # ours: the verbs of tools' statements are looked at before
    )
)
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MAX_VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_COLUMN: _MAX_FIELDS,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 5_000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 40,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 5,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 40,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 0,
}

Record = dict[str, Value]
Contents = dict[str, dict[int, tuple[Value, ...]]]
"""All rows: by table, then by key."""


class Refused(Exception):
    """The database does not let a call write: a constraint, or a bound on its work."""


class Database:
    """The rows of a toolbox, live. Raises ``ToolboxError`` for tables or rows that cannot be made.

    ``backwards`` makes SQLite give rows the other way round wherever a query leaves their order open.
    """

    def __init__(self, toolbox: Toolbox, *, backwards: bool = False) -> None:
        self._tables = toolbox.tables
        self._steps = 0
        self._contents: Contents | None = None
        self._image: bytes | None = None
        # Without an isolation level Python opens no transactions of its own, which would end our savepoints.
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._start = _start_of(toolbox)
        self._connection.execute("PRAGMA foreign_keys = ON")
        self._connection.execute(f"PRAGMA reverse_unordered_selects = {int(backwards)}")
        for limit, value in _LIMITS.items():
            self._connection.setlimit(limit, value)
        self.restore(self._start)
        # Last, as what comes before is our own work and not bounded.
        self._connection.set_progress_handler(self._count_steps, _STEPS_PER_COUNT)

    def reset(self) -> None:
        """Back to the rows of the toolbox."""
        self.restore(self._start)

    def ask(self, query: str, arguments: Mapping[str, Value]) -> list[Record]:
        """The first ``MAX_ROWS`` rows of a query. Raises ``Refused`` for one that is none, takes too long or shows more
        than ``MAX_ANSWER_LETTERS``."""
        cursor = self._run(query, arguments)
        try:
            names = [column[0] for column in cursor.description or ()]
            rows = []
            letters = 0
            for row in itertools.islice(cursor, MAX_ROWS):
                letters += sum(len(value) for value in row if isinstance(value, str | bytes))
                if letters > MAX_ANSWER_LETTERS:
                    raise Refused(f"the answer is too long: more than {MAX_ANSWER_LETTERS} letters")
                rows.append(dict(zip(names, row, strict=True)))
            return rows
        except sqlite3.Error as error:
            raise Refused(str(error)) from error
        finally:
            cursor.close()

    def compile(self, statement: str, arguments: Mapping[str, Value]) -> None:
        """Raises ``Refused`` for a statement that can never be carried out."""
        _look_at(statement)
        try:
            self._connection.execute(f"EXPLAIN {statement}", arguments).close()
        except sqlite3.Error as error:
            raise Refused(str(error)) from error

    def fields(self, query: str, arguments: Mapping[str, Value]) -> list[str]:
        """The names of the columns that a query gives, as often as they occur. Raises ``Refused``."""
        cursor = self._run(query, arguments)
        names = [column[0] for column in cursor.description]
        cursor.close()
        return names

    def holds(self, query: str, arguments: Mapping[str, Value]) -> bool:
        """Whether the first value that a query gives is true."""
        rows = self.ask(query, arguments)
        return bool(rows and next(iter(rows[0].values())))

    def call(self, tool: Tool, arguments: Mapping[str, Value]) -> list[Record]:
        """Carry out the statements of ``tool``, all or none, and answer. Its requirements are not looked at."""
        if not tool.writes:
            return self.ask(tool.returns, arguments)
        with self.trial() as keep:
            bound = dict(arguments)
            for statement in tool.writes:
                # An insertion that updates a row instead counts as one, too.
                rows_before = self._row_count() if _UPSERT.search(statement) else -1
                cursor = self._run(statement, bound)
                if NEW_ID not in bound and statement.lstrip()[:6].upper() == "INSERT":
                    cursor.fetchall()  # one with RETURNING has no count before
                    # Where nothing was inserted, SQLite has the key of an earlier row.
                    inserted = cursor.rowcount > 0 and (rows_before < 0 or self._row_count() > rows_before)
                    bound[NEW_ID] = cursor.lastrowid if inserted else None
                cursor.close()
            rows = self.ask(tool.returns, bound)
            keep()
        return rows

    @contextmanager
    def trial(self) -> Iterator[Callable[[], None]]:
        """What is written inside is undone at the end unless the function that this gives was called."""
        kept: list[bool] = []
        before = self._contents, self._image
        self._connection.execute("SAVEPOINT trial")
        try:
            self._contents = self._image = None
            yield lambda: kept.append(True)
        finally:
            if not self._connection.in_transaction:  # a statement that was interrupted or out of space undid everything
                self._contents = self._image = None
            else:
                if not kept:
                    self._connection.execute("ROLLBACK TO trial")
                    self._contents, self._image = before
                self._connection.execute("RELEASE trial")

    def contents(self) -> Contents:
        """All rows; computed anew after a write only. Not to be changed."""
        if self._contents is None:
            self._steps = -sys.maxsize  # our own reading is not bounded
            read = {table.name: self._connection.execute(f'SELECT * FROM "{table.name}"') for table in self._tables}
            self._contents = {name: {row[0]: row for row in rows} for name, rows in read.items()}
        return self._contents

    def _row_count(self) -> int:
        self._steps = -sys.maxsize  # our own reading is not bounded
        counts = (self._connection.execute(f'SELECT count(*) FROM "{table.name}"') for table in self._tables)
        return sum(cursor.fetchone()[0] for cursor in counts)

    def last_keys(self) -> list[tuple[str, int]]:
        """Per table the last key given out; the next one depends on it even where its row is gone."""
        self._steps = -sys.maxsize
        return self._connection.execute("SELECT name, seq FROM sqlite_sequence ORDER BY name").fetchall()

    def image(self) -> bytes:
        """The whole database, for ``restore``; made anew after a write only."""
        if self._image is None:
            self._image = self._connection.serialize()
        return self._image

    def restore(self, image: bytes) -> None:
        """Back to what an ``image`` holds."""
        # The authorizer admits no PRAGMA.
        self._connection.set_authorizer(None)
        self._connection.deserialize(image)
        self._connection.execute(f"PRAGMA max_page_count = {MAX_PAGES}")  # forgotten with the database before
        self._connection.set_authorizer(_authorized)
        self._contents, self._image = None, image

    def close(self) -> None:
        """Free the memory; safe to call twice."""
        self._connection.close()

    def _run(self, statement: str, arguments: Mapping[str, Value]) -> sqlite3.Cursor:
        _look_at(statement)
        self._steps = 0
        try:
            return self._connection.execute(statement, arguments)
        # Python's module raises the latter two for numbers beyond 64 bits and for half characters.
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
            raise Refused(str(error)) from error

    def _count_steps(self) -> int:
        self._steps += _STEPS_PER_COUNT
        return int(self._steps > MAX_STEPS)


def _look_at(statement: str) -> None:
    if not _VERB.match(statement):
        raise Refused("only SELECT, INSERT, UPDATE and DELETE are statements of a tool")
    if _OR_ROLLBACK.match(statement):
        raise Refused("OR ROLLBACK is prohibited, it undoes more than its call")


def _authorized(action: int, name: str | None, other: str | None, *_: object) -> int:
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_OK if other in FUNCTIONS else sqlite3.SQLITE_DENY
    counters = action == sqlite3.SQLITE_READ and name == "sqlite_sequence"
    own = action in _ALLOWED and (counters or not (name or "").startswith("sqlite_"))
    return sqlite3.SQLITE_OK if own else sqlite3.SQLITE_DENY


@lru_cache(maxsize=256)
def _filled(schema: tuple[str, ...], rows: tuple[tuple[str, tuple[tuple[Value, ...], ...]], ...]) -> bytes:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        # Small pages: an image is copied for every snapshot, and most tables have a few rows.
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        connection.execute(f"PRAGMA max_page_count = {MAX_PAGES}")
        connection.execute("BEGIN")
        for statement in schema:
            connection.execute(statement)
        for table, values in rows:
            for row in values:
                marks = ", ".join("?" * len(row))
                connection.execute(f'INSERT INTO "{table}" VALUES ({marks})', row)
        connection.execute("COMMIT")
        wrong = connection.execute("PRAGMA foreign_key_check").fetchone()
        if wrong is not None:
            raise ToolboxError(f"row {wrong[1]} of table {wrong[0]} refers to a row of {wrong[2]} that does not exist")
        return connection.serialize()
    except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
        raise ToolboxError(f"the tables cannot be filled: {error}") from error
    finally:
        connection.close()


def _start_of(toolbox: Toolbox) -> bytes:
    """The database at the start; made once for equal tables and rows."""
    schema = tuple(_definition(table) for table in toolbox.tables)
    rows = tuple((table.name, tuple(map(tuple, toolbox.rows.get(table.name, ())))) for table in toolbox.tables)
    return _filled(schema, rows)


def _definition(table: Table) -> str:
    columns = ", ".join(_column(column, column.name == table.key) for column in table.columns)
    return f'CREATE TABLE "{table.name}" ({columns}) STRICT'


def _column(column: Column, is_key: bool) -> str:
    parts = [f'"{column.name}" {column.type.upper()}', "PRIMARY KEY AUTOINCREMENT" if is_key else ""]
    parts += ["NOT NULL" if not column.optional else "", "UNIQUE" if column.unique and not is_key else ""]
    if column.references:
        parts.append(f'REFERENCES "{column.references}"')
    if column.least is not None:
        parts.append(f'CHECK ("{column.name}" >= {column.least})')
    if column.values:
        listed = ", ".join(map(quoted, column.values))
        parts.append(f'CHECK ("{column.name}" IN ({listed}))')
    return " ".join(part for part in parts if part)
