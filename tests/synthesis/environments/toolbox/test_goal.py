"""The checker: what counts as done, in which order, with which answer, and what does not."""

from __future__ import annotations

import msgspec
import pytest

from agentmill.schemas.records.trajectory import AnyAction
from agentmill.synthesis.environments.toolbox.changes import Changes
from agentmill.synthesis.environments.toolbox.goal import Answer, Goal, Outcome, judge, numbers, tells
from tests.synthesis.environments.toolbox.boxes import LIBRARY_TASK, call, outcome, play, started

BACK, LEND = call("take_back", loan_id=2), call("lend_book", member_id=3, book_id=2)
END = call("finish", answer="0 points")


@pytest.mark.parametrize(
    ("actions", "missing", "unwanted"),
    [
        ([BACK, LEND, END], 0, 0),
        ([BACK, LEND], 2, 0),
        ([BACK, LEND, call("finish", answer="12 points")], 1, 0),
        ([BACK, END], 1, 1),
        ([BACK, LEND, call("take_back", loan_id=1), END], 0, 2),
        ([BACK, call("lend_book", member_id=1, book_id=2), END], 1, 1),
        ([END], 2, 0),
    ],
)
def test_all_of_the_goal_and_nothing_else(actions: list[AnyAction], missing: int, unwanted: int) -> None:
    check = outcome(actions)
    assert (len(check.evidence["missing"]), len(check.evidence["unwanted"])) == (missing, unwanted)
    assert check.passed == (missing == unwanted == 0)
    met = 3 - missing + ("finished" in check.evidence["missing"])
    assert check.score == pytest.approx(met / (3 + unwanted))


def test_the_order_in_which_rows_were_made_does_not_matter() -> None:
    goal = {
        "states": [
            {
                "inserted": {
                    "loans": [
                        {"member_id": 2, "book_id": 1, "status": "open"},
                        {"member_id": 3, "book_id": 3, "status": "open"},
                    ]
                },
                "updated": {"books": {"1": {"copies": 1}, "3": {"copies": 0}}},
            }
        ]
    }
    task = msgspec.structs.replace(LIBRARY_TASK, goal=goal)
    first, second = call("lend_book", member_id=2, book_id=1), call("lend_book", member_id=3, book_id=3)
    end = call("finish", answer="")
    for actions in ([first, second, end], [second, first, end]):
        check = outcome(actions, task)
        assert check.evidence["missing"] == check.evidence["unwanted"] == []
    assert not outcome([first, first, end], task).passed


def test_several_states_may_be_accepted_and_the_nearest_one_counts() -> None:
    other = {"updated": {"loans": {"1": {"status": "returned"}}, "books": {"2": {"copies": 1}}}}
    task = msgspec.structs.replace(LIBRARY_TASK, goal={"states": [*LIBRARY_TASK.goal["states"], other]})
    end = call("finish", answer="")
    assert outcome([call("take_back", loan_id=1), end], task).passed
    assert outcome([BACK, LEND, end], task).passed
    assert not outcome([call("take_back", loan_id=4), end], task).passed


def test_what_was_undone_is_no_change() -> None:
    environment = started()
    play(environment, call("lend_book", member_id=2, book_id=1), call("take_back", loan_id=5))
    missing = environment.check().evidence["unwanted"]
    assert missing == ['["inserted","loans",{"book_id":1,"member_id":2,"status":"returned"},0]']


@pytest.mark.parametrize(
    ("answer", "value", "holds"),
    [
        ("It costs 1,250 today.", 1250, True),
        ("It costs 1250.", 1250, True),
        ("rooms 12, 13", 13, True),
        ("12.50", 12, False),
        ("about -3 degrees", -3, True),
        ("1 2 3 4 5", 3, False),
        ("order 17 has 3", 3, True),
        ("", 0, False),
        ("Status: SHIPPED", "shipped", True),
        ("unshipped", "shipped", False),
        ("shipped or pending", "shipped", False),
        ("Ada   Berg", "Ada Berg", True),
    ],
)
def test_answers_hold_the_value_and_are_no_list_of_guesses(answer: str, value: int | str, holds: bool) -> None:
    assert tells(answer, Answer(value, ("pending",)), "Tell me of order 17.") == holds


def test_what_the_user_said_or_asked_besides_is_no_guess() -> None:
    wanted = Answer("shipped", ("pending", "packed"))
    assert tells("not pending any more but shipped", wanted, "Is my pending order shipped?")
    assert tells("shipped; packed", wanted, "", [Answer("packed")])
    assert numbers("7 of 1,000,000 in 2,5") == {7.0, 1000000.0, 2.0, 5.0}


@pytest.mark.parametrize(
    ("answer", "holds"),
    [
        ("2", True),
        ("1, 2, 3", False),
        ("2 or 1", False),
        ("-1 to 2", False),
        ("2 of 25", False),
        ("2, 2026", True),
        ("Two.", True),
        ("There is one thing to say: two", True),
        ("two or three", False),
        ("one", False),
    ],
)
def test_numbers_that_might_be_guesses_are_no_answer(answer: str, holds: bool) -> None:
    assert tells(answer, Answer(2, ("25",)), "How many?") == holds


def test_who_reports_what_was_changed_does_not_guess() -> None:
    goal = {**LIBRARY_TASK.goal, "answers": [{"value": "paid", "others": ["open", "returned", "lost"]}]}
    task = msgspec.structs.replace(LIBRARY_TASK, goal=goal)
    for answer, right in {"Loan 2 is returned; the fine is paid.": True, "lost or paid": False}.items():
        assert outcome([BACK, LEND, call("finish", answer=answer)], task).passed == right, answer


def test_answers_come_in_the_order_of_the_questions() -> None:
    answers = [{"value": 14}, {"value": "Ida Holm"}, {"value": 1200}]
    task = msgspec.structs.replace(LIBRARY_TASK, goal={"answers": answers})
    for answer, right in {
        "14; Ida Holm; 1,200": True,
        "Ida Holm has 14, ida  holm it is, 1200": True,
        "Ida Holm; 14; 1200": False,
        "1200, Ida Holm, 14": False,
        "14, 1200": False,
    }.items():
        assert outcome([call("finish", answer=answer)], task).passed == right, answer


def test_changes_are_told_one_by_one() -> None:
    facts = Changes(
        updated={"a": {1: {"x": 1, "y": None}}}, inserted={"a": [{"x": 2}, {"x": 2}]}, deleted={"b": [4]}
    ).facts()
    assert len(facts) == len(set(facts)) == 5
    assert not Changes()


@pytest.mark.parametrize(
    ("values", "answer", "passed"),
    [
        ((7, 7), "7", False),
        ((7, 7), "7 and 7", True),
        ((7, 9, 7), "7, 9", False),
        ((7, 9, 7), "7, 9, 7", True),
        (("Ada", "Ada"), "Ada", False),
        (("Ada", "Ada"), "Ada; Ada", True),
    ],
)
def test_of_two_equal_values_both_are_told(values: tuple[int | str, ...], answer: str, passed: bool) -> None:
    goal = Goal(answers=tuple(map(Answer, values)))
    assert judge(goal, Outcome(Changes(), answer, (), ()), "").passed is passed
