"""The ``search_trace`` view: a tree told as one run."""

from __future__ import annotations

from agentmill.schemas.views.tree import SearchTrace
from tests.schemas.views.trees import made, reasons, row_of, run, shown

VIEW = SearchTrace(backtrack="back to {turn}")
BEST = run("s", "a", "b", "c", good=True)


def test_dead_ends_come_before_the_way_to_the_goal() -> None:
    found = made(VIEW, BEST, run("x", "a", "d", "e"), run("y", "f"))
    assert shown(row_of(found)) == [
        *("Go.", "*f", "F", "*back to 0", "Go."),
        *("*a", "A", "*d", "D", "*e", "E", "*back to 1", "A"),
        *("*b", "B", "*c"),
    ]
    assert row_of(found).trajectory_id == "s"
    assert (found["x"], found["y"]) == ([], [])


def test_dead_ends_branch_too() -> None:
    found = made(VIEW, run("s", "z", good=True), run("x", "a", "b"), run("y", "a", "c"))
    assert shown(row_of(found)) == [
        *("Go.", "*a", "A", "*b", "B", "*back to 1", "A", "*c", "C"),
        *("*back to 0", "Go.", "*z"),
    ]


def test_loss_on_the_way_to_the_goal_only() -> None:
    view = SearchTrace(backtrack="back", loss="path")
    assert shown(row_of(made(view, BEST, run("x", "a", "d")))) == [
        *("Go.", "*a", "A", "d", "D", "*back", "A", "*b", "B", "*c"),
    ]


def test_what_every_run_copied_carries_no_loss() -> None:
    runs = (run("s", "a", "b", good=True, copied=1), run("x", "a", "c", copied=1))
    assert shown(row_of(made(VIEW, *runs))) == ["Go.", "a", "A", "*c", "C", "*back to 1", "A", "*b"]
    assert shown(row_of(made(VIEW, *runs, run("p", "a", "e"))))[1] == "*a"


def test_the_best_success_is_the_goal_and_order_does_not_matter() -> None:
    runs = [
        run("t", "a", "b", "c", good=True),
        run("s", "a", "b", "e", good=True),
        run("u", "g", good=True),
        run("x", "h"),
    ]
    found = made(VIEW, *runs)
    assert row_of(found).trajectory_id == "u"
    assert reasons(found) == {"s": "other_success", "t": "other_success"}
    assert row_of(made(VIEW, *reversed(runs))) == row_of(found)


def test_unused() -> None:
    assert reasons(made(VIEW, run("x", "a"), run("y", "b"))) == {"x": "no_success", "y": "no_success"}
    assert reasons(made(VIEW, BEST)) == {"s": "no_dead_end"}
    assert reasons(made(VIEW, BEST, run("x", "a"))) == {"s": "no_dead_end", "x": "no_dead_end"}
    assert reasons(made(VIEW, BEST, run("x", "d"), run("u", "e", status="unknown"))) == {"u": "unscored"}


def test_a_run_of_many_turns_is_told_whole() -> None:
    found = made(VIEW, run("s", *["a"] * 3000, "b", good=True), run("x", *["a"] * 3000, "c"))
    assert len(row_of(found).messages) == 1 + 2 * 3000 + 2 + 2 + 1
