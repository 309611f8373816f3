"""The ``spliced`` view: a failed attempt and its correction."""

from __future__ import annotations

from agentmill.schemas.conditions import Condition
from agentmill.schemas.records.verdict import Label
from agentmill.schemas.views.annotations import Annotations
from agentmill.schemas.views.tree import Spliced
from tests.schemas.views.trees import made, reasons, row_of, run, shown

VIEW = Spliced(revision="I was wrong.")
GOOD = run("s", "a", "b", "c", good=True)


def test_the_failed_attempt_is_shown_and_the_good_one_learnt() -> None:
    found = made(VIEW, GOOD, run("x", "a", "d", "e"))
    assert shown(row_of(found)) == [
        *("Go.", "a", "A", "d", "D", "e", "E"),
        *("*I was wrong.", "A", "*b", "B", "*c"),
    ]
    assert row_of(found).trajectory_id == "x"
    assert found["s"] == []


def test_the_success_that_parts_last_corrects() -> None:
    found = made(VIEW, run("r", "z", good=True), GOOD, run("x", "a", "b", "e"))
    assert shown(row_of(found))[-3:] == ["*I was wrong.", "B", "*c"]
    assert reasons(found) == {"r": "no_partner"}


def test_the_attempt_may_end_with_its_first_error() -> None:
    error = Label(trajectory_id="x", name="first_error", value="error", labeller="rule", item=3)
    view = Spliced(revision="No.", error=Condition(label="first_error", equals="error"))
    found = made(view, GOOD, run("x", "a", "d", "e"), annotations=Annotations(labels={(3, error.name): error}))
    assert shown(row_of(found)) == ["Go.", "a", "A", "d", "D", "*No.", "A", "*b", "B", "*c"]
    assert row_of(found).view_parameters["error"] == {"label": "first_error", "equals": "error"}
    assert reasons(made(view, GOOD, run("x", "a", "d", "e"))) == {"s": "no_partner", "x": "no_error"}


def test_a_branch_of_the_failed_run_corrects_it() -> None:
    found = made(VIEW, run("x", "a", "d"), run("s", "a", "b", good=True, copied=1))
    assert shown(row_of(found)) == ["Go.", "a", "A", "d", "D", "*I was wrong.", "A", "*b"]


def test_good_turns_that_a_branch_of_a_failed_branch_copied_are_learnt() -> None:
    failed = run("x", "a", "d"), run("y", "a", "b", "e", copied=1)
    found = made(VIEW, *failed, run("z", "a", "b", "c", good=True, copied=2))
    rows = {name: shown(row) for name, (row,) in ((name, each) for name, each in found.items() if each)}
    assert rows["x"] == ["Go.", "a", "A", "d", "D", "*I was wrong.", "A", "*b", "B", "*c"]
    assert rows["y"][-2:] == ["B", "*c"]


def test_unused() -> None:
    assert reasons(made(VIEW, GOOD)) == {"s": "no_partner"}
    assert reasons(made(VIEW, run("x", "a"), run("y", "b"))) == {"x": "no_partner", "y": "no_partner"}
    assert reasons(made(VIEW, GOOD, run("x", "a", "b"))) == {"s": "no_partner", "x": "no_partner"}
