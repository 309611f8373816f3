"""Side tables: records that two tables have under one id."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.operators.lookup import Lookup, check_disjoint
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.task import EnvironmentSpec, Task
from tests.builders import spec, task
from tests.errors import user_error


def test_equal_records_of_two_tables_are_one(tmp_path: Path) -> None:
    tables = [
        seed_table(tmp_path / "one", [task("a"), task("b")]),
        seed_table(tmp_path / "two", [task("b"), task("c")]),
    ]
    lookup = Lookup(tables, Task)
    lookup.load()
    assert [lookup.get(name) for name in "abcd"] == [task("a"), task("b"), task("c"), None]


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
@pytest.mark.parametrize(
    ("kind", "records"),
    [
        (Task, [[task("a"), task("b")], [task("b", split="test")]]),
        (EnvironmentSpec, [[spec("a"), spec("b")], [spec("b", source="(define)")]]),
    ],
)
def test_different_records_of_one_id_name_both_tables(
    kind: type[Task] | type[EnvironmentSpec], records: list[list[Record]], order: tuple[str, str], tmp_path: Path
) -> None:
    made = {name: seed_table(tmp_path / name, rows) for name, rows in zip(("one", "two"), records, strict=True)}
    lookup = Lookup([made[name] for name in order], kind)
    with pytest.raises(UserError) as refused:
        lookup.load()
    first, second = (tmp_path / name for name in order)
    assert str(refused.value) == (
        f"{first} and {second} hold different {kind.__name__} records for b; expected one, or equal ones\n"
        "name tables that do not overlap, or only the one that is meant"
    )


def test_a_table_that_holds_two_records_of_one_id_is_named_once(tmp_path: Path) -> None:
    lookup = Lookup([seed_table(tmp_path / "one", [task("a"), task("a", split="test")])], Task)
    with user_error("records-conflict", f"{tmp_path}/one", "Task"):
        lookup.load()


def test_tables_without_a_common_id_are_disjoint(tmp_path: Path) -> None:
    tables = [seed_table(tmp_path / name, [task(f"{name}{n}") for n in range(2)]) for name in "abc"]
    check_disjoint(tables)
    check_disjoint(tables[:1])
    check_disjoint([])


def test_a_common_id_names_the_tables_that_hold_it(tmp_path: Path) -> None:
    rows = {"a": ["1", "2"], "b": ["3"], "c": ["0", "2", "1"]}
    tables = [seed_table(tmp_path / name, [task(each) for each in ids]) for name, ids in rows.items()]
    with pytest.raises(UserError) as refused:
        check_disjoint(tables)
    assert str(refused.value) == (
        f"{tmp_path}/a and {tmp_path}/c both hold Task 1 (2 such ids); expected every id once\n"
        "leave out one of the tables, or make one of them again, with another seed"
    )


def test_an_id_that_is_twice_in_one_table_names_it(tmp_path: Path) -> None:
    with user_error("record-twice", f"{tmp_path}/one holds twice Task 1 (1 such ids)", "id of its own"):
        check_disjoint([seed_table(tmp_path / "one", [task(each) for each in "1213"])])
