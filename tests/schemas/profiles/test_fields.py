"""Rows of a run that become one record."""

from __future__ import annotations

import pytest

from agentmill.schemas.profiles.fields import MessageFields, join, renamed_fields
from agentmill.schemas.records.record import JsonObject


def message(role: str, content: str) -> JsonObject:
    return {"role": role, "content": content}


def joined(*rows: list[JsonObject]) -> list[JsonObject]:
    found: list[JsonObject] = join([{"messages": row} for row in rows], "messages")["messages"]
    return found


A, B, C = (message("assistant", text) for text in "abc")


@pytest.mark.parametrize(
    ("row", "names", "found"),
    [
        ({"traj": 1, "b": 2}, {"traj": "messages"}, {"messages": 1, "b": 2}),
        ({"traj": 1, "messages": 2}, {"traj": "messages"}, {"messages": 1, "messages_": 2}),
        ({"messages": 2, "traj": 1}, {"traj": "messages"}, {"messages_": 2, "messages": 1}),
        ({"traj": 1, "messages": None}, {"traj": "messages"}, {"messages": 1, "messages_": None}),
        ({"traj": None, "messages": 2}, {"traj": "messages"}, {"traj": None, "messages": 2}),
        ({"traj": None}, {"traj": "messages"}, {"messages": None}),
        ({"a": 1, "b": 2}, {"a": "b", "b": "a"}, {"b": 1, "a": 2}),
        ({"a": 1, "b": 2}, {"a": "c", "b": "c"}, {"c": 1, "b": 2}),
        ({"a": 1}, {"b": "c"}, {"a": 1}),
    ],
)
def test_a_new_name_takes_the_place_of_no_other_field(
    row: JsonObject, names: dict[str, str], found: JsonObject
) -> None:
    assert renamed_fields(row, names) == found
    assert [*renamed_fields(row, names)] == [*found]


def test_messages_under_another_name_keep_a_field_of_that_name() -> None:
    found = MessageFields(of="traj").apply({"traj": [message("user", "x")], "messages": "other"})
    assert found == {"messages_": "other", "messages": [message("user", "x")]}


def test_join_keeps_an_opening_of_all_rows_once() -> None:
    task = message("user", "Do it.")
    assert joined([task, A], [task, B], [task, C]) == [task, A, B, C]


def test_join_keeps_a_message_that_the_user_repeats() -> None:
    again, other = message("user", "continue"), message("user", "look")
    assert joined([again, A], [other, B], [again, C]) == [again, A, other, B, again, C]


def test_join_keeps_a_repeated_system_message_once() -> None:
    system, other = message("system", "Be brief."), message("user", "look")
    assert joined([system, A], [other, B], [system, C]) == [system, A, other, B, C]
