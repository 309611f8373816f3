"""The cell: what SQL may do in it, how much of it, and that undoing leaves no trace."""

from __future__ import annotations

import msgspec
import pytest

from agentmill.synthesis.environments.toolbox.database import Database, Refused
from agentmill.synthesis.environments.toolbox.examples import LIBRARY
from agentmill.synthesis.environments.toolbox.toolbox import Tool, Toolbox, ToolboxError, Value


@pytest.mark.parametrize(
    "statement",
    [
        "ATTACH 'x.db' AS other",
        "PRAGMA writable_schema = 1",
        "CREATE TABLE more (a INTEGER)",
        "DROP TABLE loans",
        "VACUUM",
        "SAVEPOINT mine",
        "EXPLAIN SELECT 1",
        "SELECT random()",
        "SELECT hex(randomblob(4))",
        "SELECT current_timestamp",
        "SELECT datetime('now')",
        "SELECT load_extension('x')",
        "SELECT name FROM sqlite_master",
        "SELECT * FROM pragma_database_list",
        "SELECT 1; DELETE FROM loans",
    ],
)
def test_what_could_reach_out_or_differ_is_refused(statement: str) -> None:
    database = Database(LIBRARY)
    before = database.contents(), database.image()
    with pytest.raises(Refused):
        database.ask(statement, {})
    assert (database.contents(), database.image()) == before


def test_a_query_that_would_not_end_is_stopped() -> None:
    many = " , ".join(f"loans AS l{number}" for number in range(14))
    with pytest.raises(Refused, match="interrupted"):
        Database(LIBRARY).ask(f"SELECT count(*) AS n FROM {many}", {})


def test_an_answer_may_not_grow_without_bound() -> None:
    text = "'" + "x" * 900 + "'"
    grown = f"replace({text}, 'x', {text})"
    with pytest.raises(Refused, match="too big"):
        Database(LIBRARY).ask(f"SELECT replace({grown}, 'x', {text}) AS t", {})


def test_recursion_is_refused() -> None:
    with pytest.raises(Refused):
        Database(LIBRARY).ask("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n", {})


def test_a_call_whose_second_statement_fails_does_nothing() -> None:
    tool = next(tool for tool in LIBRARY.tools if tool.name == "lend_book")
    database = Database(LIBRARY)
    before = database.contents(), database.image()
    with pytest.raises(Refused, match="CHECK"):
        database.call(tool, {"member_id": 1, "book_id": 2})  # there is no copy: the requirement is not looked at here
    assert (database.contents(), database.image()) == before


def test_a_trial_leaves_no_trace_unless_it_is_kept() -> None:
    database = Database(LIBRARY)
    tool = next(tool for tool in LIBRARY.tools if tool.name == "take_back")
    before = database.contents()
    with database.trial():
        database.call(tool, {"loan_id": 1})
        assert database.contents()["loans"][1] == (1, 1, 2, "returned")
    assert database.contents() == before
    with database.trial() as keep:
        database.call(tool, {"loan_id": 1})
        keep()
    assert database.contents()["loans"][1] == (1, 1, 2, "returned")


def test_rows_without_an_order_come_the_other_way_round_when_asked_backwards() -> None:
    query = "SELECT member_id FROM members"
    forth = Database(LIBRARY).ask(query, {})
    back = Database(LIBRARY, backwards=True).ask(query, {})
    assert [row["member_id"] for row in forth] == [1, 2, 3] == [row["member_id"] for row in back][::-1]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(1, 9, 1, "open")], "refers to a row of members that does not exist"),
        ([(1, 1, 1, "lost")], "cannot be filled: CHECK"),
        ([(1, 1, 1, "open"), (1, 1, 1, "open")], "cannot be filled: UNIQUE"),
        ([("one", 1, 1, "open")], "cannot be filled: datatype mismatch|cannot store TEXT"),
        ([(1, 1, 1)], "cannot be filled: table loans has 4 columns"),
    ],
)
def test_rows_that_break_the_tables_are_named(rows: list[tuple[int | str, ...]], expected: str) -> None:
    broken = msgspec.structs.replace(LIBRARY, rows={**LIBRARY.rows, "loans": rows})
    with pytest.raises(ToolboxError, match=expected):
        Database(broken)


SLOW = "UPDATE members SET points = (SELECT count(*) FROM members a, members b, members c)"
LONG = "UPDATE members SET name = member_id || replace(:text, 'a', :text)"


def many_members() -> Toolbox:
    rows: list[tuple[Value, ...]] = [(key, f"member {key}", "Oslo", 0) for key in range(1, 1_001)]
    return msgspec.structs.replace(LIBRARY, rows={**LIBRARY.rows, "members": rows})


def writing(*statements: str, returns: str = "SELECT 1 AS n") -> Tool:
    return Tool(name="more", description="Writes.", writes=statements, returns=returns, columns={"n": ""})


@pytest.mark.parametrize(("statement", "expected"), [(SLOW, "interrupted"), (LONG, "full")])
def test_a_write_that_breaks_a_bound_is_refused_and_undone(statement: str, expected: str) -> None:
    database = Database(many_members())
    before = database.contents(), database.image()
    with database.trial(), pytest.raises(Refused, match=expected):
        database.call(writing("UPDATE books SET copies = 7", statement), {"text": "a" * 100})
    assert (database.contents(), database.image()) == before
    database.call(writing("UPDATE books SET copies = 7"), {})
    assert database.contents()["books"][1] == (1, "River Stones", 7)


@pytest.mark.parametrize(
    "nothing",
    [
        "INSERT INTO loans (member_id, book_id, status) SELECT 1, 1, 'open' WHERE 1 = 0",
        "INSERT OR IGNORE INTO loans (loan_id, member_id, book_id, status) VALUES (1, 1, 1, 'open')",
    ],
)
def test_what_inserts_nothing_has_no_new_key(nothing: str) -> None:
    database = Database(LIBRARY)
    shown = "SELECT :new_id AS n"
    insert = "INSERT INTO loans (member_id, book_id, status) VALUES (1, 1, 'open')"
    assert database.call(writing(insert, returns=shown), {}) == [{"n": 5}]
    assert database.call(writing(f"{insert} RETURNING loan_id", returns=shown), {}) == [{"n": 6}]
    assert database.call(writing(nothing, returns=shown), {}) == [{"n": None}]


def test_a_statement_that_undoes_more_than_its_call_is_prohibited() -> None:
    database = Database(LIBRARY)
    for statement in (
        "INSERT OR ROLLBACK INTO books (title) VALUES ('River Stones')",
        "update or rollback books SET copies = 1",
    ):
        with pytest.raises(Refused, match="prohibited"):
            database.compile(statement, {})
        with pytest.raises(Refused, match="prohibited"):
            database.call(writing(statement), {})


def test_many_long_texts_are_no_answer() -> None:
    database = Database(many_members())
    query = "SELECT replace(:text, 'a', :text) AS n FROM members"
    assert len(database.ask(query, {"text": "a" * 20})) == 50
    with pytest.raises(Refused, match="too long"):
        database.ask(query, {"text": "a" * 100})
    with pytest.raises(Refused, match="too big"):
        database.ask(query, {"text": "a" * 150})


def test_the_key_of_a_deleted_row_is_not_given_out_again() -> None:
    delete = writing("DELETE FROM loans WHERE loan_id = 4")
    insert = writing("INSERT INTO loans (member_id, book_id, status) VALUES (1, 1, 'open')")
    after = []
    for order in ([delete, insert], [insert, delete]):
        database = Database(LIBRARY)
        for tool in order:
            database.call(tool, {})
        after.append((database.contents(), database.last_keys()))
    assert after[0] == after[1]
    assert sorted(after[0][0]["loans"]) == [1, 2, 3, 5]


def test_the_key_of_a_new_row_is_not_that_of_an_earlier_one_where_a_row_was_updated_instead() -> None:
    insert = (
        "INSERT INTO loans (loan_id, member_id, book_id, status) VALUES (:loan_id, 1, 1, 'open')"
        " ON CONFLICT (loan_id) DO UPDATE SET status = 'returned'"
    )
    tool = Tool(name="put", description="", writes=(insert,), returns="SELECT :new_id AS made", columns={"made": ""})
    database = Database(LIBRARY)
    for _ in range(2):
        database.reset()
        assert database.call(tool, {"loan_id": 1}) == [{"made": None}]
        assert database.call(tool, {"loan_id": 99}) == [{"made": 99}]
        assert database.call(tool, {"loan_id": 99}) == [{"made": None}]
