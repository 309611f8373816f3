"""Rows of a run that become one record."""

from __future__ import annotations

from agentmill.schemas.profiles.fields import join
from agentmill.schemas.records.record import JsonObject


def message(role: str, content: str) -> JsonObject:
    return {"role": role, "content": content}


def joined(*rows: list[JsonObject]) -> list[JsonObject]:
    found: list[JsonObject] = join([{"messages": row} for row in rows], "messages")["messages"]
    return found


A, B, C = (message("assistant", text) for text in "abc")


def test_join_keeps_an_opening_of_all_rows_once() -> None:
    task = message("user", "Do it.")
    assert joined([task, A], [task, B], [task, C]) == [task, A, B, C]


def test_join_keeps_a_message_that_the_user_repeats() -> None:
    again, other = message("user", "continue"), message("user", "look")
    assert joined([again, A], [other, B], [again, C]) == [again, A, other, B, again, C]


def test_join_keeps_a_repeated_system_message_once() -> None:
    system, other = message("system", "Be brief."), message("user", "look")
    assert joined([system, A], [other, B], [system, C]) == [system, A, other, B, C]
