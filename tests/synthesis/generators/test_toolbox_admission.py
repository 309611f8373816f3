"""Admission of toolboxes: the library passes, and every defect is found under its own name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentmill.schemas.records.task import AdmissionReport, EnvironmentSpec, Lineage, Task
from agentmill.synthesis.environments.toolbox.database import Database, Refused
from agentmill.synthesis.environments.toolbox.examples import LIBRARY
from agentmill.synthesis.environments.toolbox.toolbox import Column, Table, Tool, Toolbox
from agentmill.synthesis.generators import toolbox_probe
from agentmill.synthesis.generators.admission import admit_environment, admit_task, environment_digest, rejection
from tests.synthesis.environments.toolbox.boxes import (
    LIBRARY_SPEC,
    LIBRARY_TASK,
    WRAPPED_SPEC,
    and_tool,
    call,
    spec_of,
    with_tool,
)

TAKE_BACK = next(tool for tool in LIBRARY.tools if tool.name == "take_back")
SALE = Table(name="sales", noun="sale", columns=(Column(name="sale_id", type="integer"),))


def reason(report: AdmissionReport) -> str | None:
    failed = rejection(report)
    return failed.name if failed else None


def reading(returns: str, **columns: str) -> Tool:
    return Tool(name="more", description="Shows more.", returns=returns, columns=columns)


DEFECTS: dict[str, EnvironmentSpec] = {
    "syntax": msgspec.structs.replace(LIBRARY_SPEC, source=LIBRARY_SPEC.source.replace('"about"', '"abuot"')),
    "tables": spec_of(msgspec.structs.replace(LIBRARY, tables=(*LIBRARY.tables, LIBRARY.tables[0]))),
    "tools": spec_of(with_tool("take_back", request="take something back")),
    "rows": spec_of(msgspec.structs.replace(LIBRARY, rows={**LIBRARY.rows, "loans": [(1, 1, 77, "open")]})),
    "forbidden_sql": spec_of(with_tool("take_back", writes=("UPDATE books SET copies = random()",))),
    "sql": spec_of(with_tool("take_back", writes=("UPDATE books SET copys = 1",))),
    "result_columns": spec_of(with_tool("find_book", returns="SELECT book_id FROM books WHERE title = :title")),
    "unused_table": spec_of(
        msgspec.structs.replace(LIBRARY, tables=(*LIBRARY.tables, SALE), rows={**LIBRARY.rows, "sales": [(1,)]})
    ),
    "disconnected_tool": spec_of(
        msgspec.structs.replace(LIBRARY, tools=tuple(tool for tool in LIBRARY.tools if tool.name != "find_member"))
    ),
    "unreachable_tool": spec_of(with_tool("take_back", writes=("UPDATE loans SET status = 'lost'",))),
    "noop_tool": spec_of(with_tool("take_back", writes=("UPDATE loans SET status = status",))),
    "lying_tool": spec_of(
        with_tool(
            "take_back",
            writes=("UPDATE books SET copies = copies + 1",),
            returns="SELECT loan_id, book_id, 'returned' AS status FROM loans WHERE loan_id = :loan_id",
        )
    ),
    "unordered_rows": spec_of(and_tool(reading("SELECT book_id FROM books", book_id="books.book_id"))),
    "no_probe": spec_of(
        msgspec.structs.replace(
            LIBRARY,
            tools=(reading("SELECT book_id, title FROM books ORDER BY book_id", book_id="books.book_id", title=""),),
            tables=LIBRARY.tables[1:2],
            rows={"books": [(1, "River Stones", 0)]},
        )
    ),
}


def test_the_library_is_admitted_with_every_check_passed() -> None:
    report = admit_environment(LIBRARY_SPEC)
    assert reason(report) is None
    assert [check.name for check in report.checks] == list(DEFECTS)
    assert reason(admit_environment(WRAPPED_SPEC)) is None


@pytest.mark.parametrize(
    ("toolbox", "expected"),
    [
        (and_tool(reading("SELECT abs(-9223372036854775807 - 1) AS n", n="")), "result_columns: more cannot answer"),
        (
            and_tool(reading(f"SELECT count(*) AS n FROM {', '.join(f'loans l{n}' for n in range(14))}", n="")),
            "result_columns: more cannot answer: interrupted",
        ),
        (
            and_tool(reading("SELECT book_id FROM books WHERE book_id = :new_id", book_id="books.book_id")),
            "sql: more: ",
        ),
        (
            msgspec.structs.replace(LIBRARY, tables=(msgspec.structs.replace(SALE, columns=()), *LIBRARY.tables)),
            "tables: table sales has no columns",
        ),
    ],
)
def test_toolboxes_that_cannot_be_tried_are_rejected_and_not_raised(toolbox: Toolbox, expected: str) -> None:
    failed = rejection(admit_environment(spec_of(toolbox)))
    assert failed is not None
    assert f"{failed.name}: {failed.detail}".startswith(expected)


def test_a_tool_that_fails_while_it_is_tried_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Database):
        def call(self, tool: Tool, arguments: Any) -> Any:
            if tool.name == "find_book":
                raise Refused("interrupted")
            return super().call(tool, arguments)

    monkeypatch.setattr(toolbox_probe, "Database", Failing)
    failed = rejection(admit_environment(LIBRARY_SPEC))
    assert failed is not None
    assert (failed.name, failed.detail) == ("unordered_rows", "find_book fails: interrupted")


@pytest.mark.parametrize("defect", DEFECTS)
def test_defects_of_toolboxes_are_found_by_name(defect: str) -> None:
    report = admit_environment(DEFECTS[defect])
    failed = rejection(report)
    assert failed is not None
    assert (failed.name, bool(failed.detail)) == (defect, True)
    assert report.checks[-1] == failed


def test_structure_does_not_know_names_rows_or_order_but_knows_sql() -> None:
    text = LIBRARY_SPEC.source
    for old, new in [
        ("member", "reader"),
        ("loan", "lease"),
        ("'open'", "'out'"),
        ('"open"', '"out"'),
        ("title", "label_"),
    ]:
        text = text.replace(old, new)
    renamed = msgspec.structs.replace(LIBRARY_SPEC, source=text)
    assert environment_digest(renamed) == environment_digest(LIBRARY_SPEC)
    turned = spec_of(msgspec.structs.replace(LIBRARY, tools=LIBRARY.tools[::-1], rows={}))
    assert environment_digest(turned) == environment_digest(LIBRARY_SPEC)
    other = TAKE_BACK.writes[0].replace("+", "-")
    assert environment_digest(spec_of(with_tool("take_back", writes=(other,)))) != environment_digest(LIBRARY_SPEC)
    assert environment_digest(DEFECTS["syntax"]) is None


def task(**changes: Any) -> Task:
    return msgspec.structs.replace(LIBRARY_TASK, **changes)


NOTHING: dict[str, Any] = {"states": [{}]}
GOLD = list(LIBRARY_TASK.gold or [])
LENT_TO_IDA = msgspec.json.decode(
    msgspec.json.encode(LIBRARY_TASK.goal["states"][0]).replace(b'"member_id":3', b'"member_id":1')
)
TASK_DEFECTS: dict[str, Task] = {
    "broken": task(goal={"nonsense": 1}),
    "gold_rejected": task(gold=GOLD[:4]),
    "empty_answer_accepted": task(goal=NOTHING, gold=[call("finish", answer="")]),
    "ungrounded_argument": task(gold=[GOLD[3], *GOLD[4:]]),
    "guess_accepted": task(goal={**LIBRARY_TASK.goal, "answers": [{"value": 0}]}),
    "wrong_argument_accepted": task(
        goal={"states": [*LIBRARY_TASK.goal["states"], LENT_TO_IDA], "answers": []},
        gold=[*GOLD[:-1], call("finish", answer="")],
    ),
}


def test_the_example_is_admitted_but_for_an_answer_that_one_could_guess() -> None:
    report, _, _ = admit_task(LIBRARY_TASK, LIBRARY_SPEC)
    failed = rejection(report)
    assert failed is not None
    assert (failed.name, "'0'" in failed.detail) == ("guess_accepted", True)


def test_a_sound_task_is_admitted_with_its_gold() -> None:
    sound = task(
        instruction="Joe Stern brings The Long Winter back. Lend it to Mia Costa, and tell me how many points Joe has.",
        goal={**LIBRARY_TASK.goal, "answers": [{"value": 3}]},
        gold=[*GOLD[:-1], call("finish", answer="3")],
    )
    report, gold, _ = admit_task(sound, LIBRARY_SPEC)
    assert reason(report) is None
    assert gold == sound.gold
    twins = Lineage(operator="wrap_env", notes={"twins": {"take_back": ["burn"], "lend_book": ["lend_book"]}})
    lenient = msgspec.structs.replace(LIBRARY_SPEC, lineage=twins)
    assert reason(admit_task(sound, lenient)[0]) == "twin_accepted"


@pytest.mark.parametrize(
    ("asks", "answer", "guess"),
    [
        ("Members 1 and 3 ask: how many points has Joe, 2?", {"value": 2}, "1, 2, 3"),
        ("What is the last name of Joe Stern?", {"value": "Stern", "others": ["Joe Stern", "Ida Holm"]}, "Joe Stern"),
        ("Is it Oslo or Graz?", {"value": "Lisbon", "others": ["Graz", "Oslo"]}, "Graz, Lisbon, Oslo"),
        ("Which of rule 1, rule 3?", {"value": "rule 2", "others": ["rule 1", "rule 3"]}, "rule 1, rule 2, rule 3"),
    ],
)
def test_answers_that_need_no_look_are_found(asks: str, answer: dict[str, Any], guess: str) -> None:
    guessed = task(
        instruction=f"{LIBRARY_TASK.instruction} {asks}",
        goal={**LIBRARY_TASK.goal, "answers": [answer]},
        gold=[*GOLD[:-1], call("finish", answer=str(answer["value"]))],
    )
    failed = rejection(admit_task(guessed, LIBRARY_SPEC)[0])
    assert failed is not None
    assert (failed.name, repr(guess) in failed.detail) == ("guess_accepted", True)


@pytest.mark.parametrize("defect", TASK_DEFECTS)
def test_defects_of_tasks_are_found_by_name(defect: str) -> None:
    report, gold, _ = admit_task(TASK_DEFECTS[defect], LIBRARY_SPEC)
    assert reason(report) == defect
    assert gold is None


def test_a_call_that_is_not_needed_is_found() -> None:
    goal = {
        "states": [
            *LIBRARY_TASK.goal["states"],
            {"updated": {"loans": {"2": {"status": "returned"}}, "books": {"2": {"copies": 1}}}},
        ]
    }
    loose = task(goal=goal, gold=[*GOLD[:-1], call("finish", answer="")])
    report, _, _ = admit_task(loose, LIBRARY_SPEC)
    failed = rejection(report)
    assert failed is not None
    assert (failed.name, failed.detail) == ("unneeded_call", "the solution passes without its call 6, lend_book")
