"""Two small toolboxes: a library, and the same behind every wrapper that the environment knows."""

from __future__ import annotations

import msgspec

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction
from agentmill.synthesis.environments.toolbox.toolbox import (
    Column,
    Parameter,
    Requirement,
    Rule,
    Table,
    Tool,
    Toolbox,
    write_toolbox,
)

_MEMBERS = Table(
    name="members",
    noun="member",
    columns=(
        Column(name="member_id", type="integer"),
        Column(name="name", type="text", unique=True),
        Column(name="city", type="text", examples=("Lisbon", "Oslo", "Graz")),
        Column(name="points", type="integer", least=0, most=40),
    ),
)
_BOOKS = Table(
    name="books",
    noun="book",
    columns=(
        Column(name="book_id", type="integer"),
        Column(name="title", type="text", unique=True),
        Column(name="copies", type="integer", least=0, most=5),
    ),
)
_LOANS = Table(
    name="loans",
    noun="loan",
    columns=(
        Column(name="loan_id", type="integer"),
        Column(name="member_id", type="integer", references="members"),
        Column(name="book_id", type="integer", references="books"),
        Column(name="status", type="text", values=("open", "returned")),
    ),
)
_LOAN_FIELDS = {"loan_id": "loans.loan_id", "book_id": "loans.book_id", "status": "loans.status"}
_MEMBER_FIELDS = {name: f"members.{name}" for name in ("member_id", "name", "city", "points")}

LIBRARY = Toolbox(
    about="You work at the desk of a small library.",
    tables=(_MEMBERS, _BOOKS, _LOANS),
    rows={
        "members": [(1, "Ida Holm", "Oslo", 12), (2, "Joe Stern", "Graz", 3), (3, "Mia Costa", "Lisbon", 0)],
        "books": [(1, "River Stones", 2), (2, "The Long Winter", 0), (3, "Maps of Salt", 1)],
        "loans": [(1, 1, 2, "open"), (2, 2, 2, "open"), (3, 1, 3, "returned"), (4, 3, 1, "open")],
    },
    tools=(
        Tool(
            name="find_member",
            description="Finds a member by name.",
            parameters=(Parameter(name="name", column="members.name"),),
            returns="SELECT member_id, name, city, points FROM members WHERE name = :name ORDER BY member_id",
            columns=_MEMBER_FIELDS,
        ),
        Tool(
            name="find_book",
            description="Finds a book by its title.",
            parameters=(Parameter(name="title", column="books.title"),),
            returns="SELECT book_id, title, copies FROM books WHERE title = :title ORDER BY book_id",
            columns={"book_id": "books.book_id", "title": "books.title", "copies": "books.copies"},
        ),
        Tool(
            name="list_loans",
            description="Lists the loans of a member.",
            parameters=(Parameter(name="member_id", column="members.member_id"),),
            returns="SELECT loan_id, book_id, status FROM loans WHERE member_id = :member_id ORDER BY loan_id",
            columns=_LOAN_FIELDS,
        ),
        Tool(
            name="lend_book",
            description="Lends a copy of a book to a member.",
            parameters=(
                Parameter(name="member_id", column="members.member_id"),
                Parameter(name="book_id", column="books.book_id"),
            ),
            requires=(
                Requirement(
                    query="SELECT 1 FROM members WHERE member_id = :member_id",
                    message="there is no member {member_id}",
                    hint="find_member tells the key of a member",
                ),
                Requirement(
                    query="SELECT copies > 0 FROM books WHERE book_id = :book_id",
                    message="there is no copy of book {book_id}",
                    hint="take back a loan of it first",
                ),
            ),
            writes=(
                "INSERT INTO loans (member_id, book_id, status) VALUES (:member_id, :book_id, 'open')",
                "UPDATE books SET copies = copies - 1 WHERE book_id = :book_id",
            ),
            returns="SELECT loan_id, book_id, status FROM loans WHERE loan_id = :new_id",
            columns=_LOAN_FIELDS,
            request="lend {book_id} to {member_id}",
        ),
        Tool(
            name="take_back",
            description="Takes the book of an open loan back.",
            parameters=(Parameter(name="loan_id", column="loans.loan_id"),),
            requires=(
                Requirement(
                    query="SELECT status = 'open' FROM loans WHERE loan_id = :loan_id",
                    message="there is no open loan {loan_id}",
                    hint="list_loans tells the loans of a member",
                ),
            ),
            writes=(
                "UPDATE books SET copies = copies + 1 WHERE book_id = "
                "(SELECT book_id FROM loans WHERE loan_id = :loan_id)",
                "UPDATE loans SET status = 'returned' WHERE loan_id = :loan_id",
            ),
            returns="SELECT loan_id, book_id, status FROM loans WHERE loan_id = :loan_id",
            columns=_LOAN_FIELDS,
            request="take back {loan_id}",
        ),
    ),
)

_RULE = Rule(
    name="rule 1",
    tool="lend_book",
    query="SELECT count(*) < 3 FROM loans WHERE member_id = :member_id AND status = 'open'",
    text="A member has at most three open loans.",
)


def _call(function: str, **kwargs: str | int) -> AnyAction:
    return ApiAction(function=function, kwargs=kwargs)


_TASK = Task(
    task_id="toolbox-library-return",
    environment_id="toolbox-library",
    instruction="Joe Stern brings The Long Winter back. Lend it to Mia Costa, and tell me how many points she has.",
    initial_state={
        "request": {
            "template": "{one} brings The Long Winter back. Lend it to Mia Costa, and tell me how many points she has.",
            "slots": {"one": {"label": "name", "text": "Joe Stern"}},
        }
    },
    goal={
        "states": [
            {
                "updated": {"loans": {"2": {"status": "returned"}}},
                "inserted": {"loans": [{"member_id": 3, "book_id": 2, "status": "open"}]},
            }
        ],
        "answers": [{"value": 0}],
    },
    gold=[
        _call("find_member", name="Joe Stern"),
        _call("find_book", title="The Long Winter"),
        _call("list_loans", member_id=2),
        _call("take_back", loan_id=2),
        _call("find_member", name="Mia Costa"),
        _call("lend_book", member_id=3, book_id=2),
        _call("finish", answer="Mia Costa has 0 points."),
    ],
)

_HIDDEN = msgspec.structs.replace(
    _TASK,
    task_id="toolbox-library-hidden",
    environment_id="toolbox-library-wrapped",
    instruction=_TASK.instruction.replace("Joe Stern", "(ask me for the name)"),
    initial_state={"request": {**_TASK.initial_state["request"], "hidden": ["one"]}},
    goal={**_TASK.goal, "asked": ["one"], "forbidden": ["find_book"]},
    gold=[
        _call("ask_user", question="What is the name of the member?"),
        _call("find_member", name="Joe Stern"),
        _call("find_member", name="Joe Stern"),
        _call("list_loans", member_id=2),
        _call("take_back", loan_id=2),
        _call("find_member", name="Mia Costa"),
        _call("lend_book", member_id=3, book_id=2),
        _call("finish", answer="Mia Costa has 0 points."),
    ],
)

EXAMPLES: list[tuple[EnvironmentSpec, Task]] = [
    (
        EnvironmentSpec(
            environment_id="toolbox-library", family="toolbox", name="library", source=write_toolbox(LIBRARY)
        ),
        _TASK,
    ),
    (
        EnvironmentSpec(
            environment_id="toolbox-library-wrapped",
            family="toolbox",
            name="library-wrapped",
            source=write_toolbox(
                msgspec.structs.replace(LIBRARY, rules=(_RULE,), policy=f"The policy.\n{_RULE.name}. {_RULE.text}")
            ),
            parameters={"hints": True, "milestones": True, "faults": 0.5, "user": True},
        ),
        _HIDDEN,
    ),
]
