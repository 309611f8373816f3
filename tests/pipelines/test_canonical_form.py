"""Canonical forms: what a consistent renaming leaves the same, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest

from agentmill.pipelines.canonical_form import (
    NAME,
    Act,
    act_of,
    form_of,
    labels_in,
    moves_of,
    names_in,
    pieces_of,
    text_key,
    texts_in,
)
from agentmill.schemas.records.trajectory import ApiAction, CodeAction, MessageAction


def call(function: str, **kwargs: Any) -> Act:
    return act_of(ApiAction(function=function, kwargs=kwargs))


def form(text: str, *acts: Act, keep_numbers: bool = False) -> str:
    return " ".join(form_of(text, names_in(acts), keep_numbers)).replace("\x00", "_")


def test_acts() -> None:
    assert call("Move", to="Hall  A", n=2.0, deep={"b": True, "a": ["x", ""]}) == Act(
        "move", ("x", "true", "2", "hall a"), True
    )
    assert act_of(ApiAction(function="f", kwargs={}, raw_arguments="{oops")) == Act("f", ("{oops",), True)
    assert act_of(MessageAction(content="go from Hall to attic")) == Act("go", ("hall", "attic"), False)
    assert act_of(CodeAction(language="sh", content="cat /etc/hosts")) == Act("cat", ("/etc/hosts",), False)
    long = "one two three four five six seven eight nine ten eleven twelve thirteen"
    assert act_of(MessageAction(content=long.upper())) == Act("", (long,), False)
    assert act_of(MessageAction(content="")).values == ()


def test_a_command_does_what_a_call_does() -> None:
    opened = call("open", worker="anna", door="door1")
    assert set(opened.loose()) & set(act_of(MessageAction(content="let anna open door1")).loose())
    assert not set(opened.loose()) & set(act_of(MessageAction(content="let ben open door1")).loose())
    assert call("open", door="door1").exact() != call("shut", door="door1").exact()
    assert call("look").loose() == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Add 3 points for Lena Berg, now.", "add _ points for _ now"),
        ("The ball is red. The box is at Peter's.", "the ball is red the box is at _ s"),
        ('Say "Hello there" to item-42 and `ls`', "say _ to _ and _"),
        ("I think it isn't", "i think it isn t"),
        ("- First of all: Look", "first of all look"),
        ("", ""),
    ],
)
def test_names_by_their_looks(text: str, expected: str) -> None:
    assert form(text) == expected


def test_names_by_the_actions() -> None:
    acts = [call("take", item="red ball", n=3), call("say", text="a text of more than just six words")]
    assert form("take 3 times the red ball, not the red one", *acts) == "take _ times the _ not the red one"
    assert form("take 3 of the red ball", *acts, keep_numbers=True) == "take 3 of the _"


def test_a_consistent_renaming_changes_no_move() -> None:
    first = [call("move", a="hall", to="attic"), call("take", item="key", place="attic"), call("rest", n=1)]
    second = [call("move", a="barn", to="loft"), call("take", item="hat", place="loft"), call("rest", n=1)]
    mixed = [call("move", a="barn", to="loft"), call("take", item="hat", place="barn"), call("rest", n=1)]
    for size in (2, 3, 9):
        assert moves_of(first, size, False) == moves_of(second, size, False)
        assert moves_of(first, size, False) != moves_of(mixed, size, False)
        assert len(moves_of(first, size, False)) == max(1, 3 - size + 1)
    more = [*second[:2], call("rest", n=2)]
    assert moves_of(first, 3, False) == moves_of(more, 3, False)
    assert moves_of(first, 3, True) != moves_of(more, 3, True)
    assert moves_of([], 3, False) == []


def test_texts() -> None:
    assert texts_in(ApiAction(function="f", kwargs={"b": "Two", "a": 1})) == ["1", "two"]
    assert texts_in(MessageAction(content="Yes.")) == ["Yes."]
    assert text_key(["Go, on!"]) == text_key(["go", "ON"]) != text_key(["goon"])


def test_pieces_keep_what_they_replace() -> None:
    names = frozenset({("blue", "box")})
    assert pieces_of("Put 'Old \x00 Hat' of Lena Berg into the Blue box 7.", names, keep_numbers=True) == [
        ("put", "put"),
        (NAME, "old   hat"),
        ("of", "of"),
        (NAME, "lena berg"),
        ("into", "into"),
        ("the", "the"),
        (NAME, "blue box"),
        ("7", "7"),
    ]
    assert pieces_of("7", names, keep_numbers=False) == [(NAME, "7")]


def test_labels_are_quoted_or_have_a_digit() -> None:
    assert labels_in("Lena wants 'Old Hat' and item-4, or `5`.") == {"old hat", "item-4", "5"}
    assert labels_in("") == set()


def test_known_names_have_their_number_in_every_run() -> None:
    acts = [call("go", to="hall"), call("go", to="attic")]
    assert moves_of(acts, 1, True) == [moves_of(acts[:1], 1, True)[0]] * 2
    first, second = moves_of(acts, 1, True, {"attic": 0})
    assert first != second
    assert moves_of([call("go", to="loft")], 1, True, {"loft": 0}) == [second]
