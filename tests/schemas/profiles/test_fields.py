"""Rows of a run that become one record."""

from __future__ import annotations

import msgspec
import pytest

from agentmill.schemas.config import validate
from agentmill.schemas.format import FormatError
from agentmill.schemas.profiles.fields import MessageFields, join, renamed_fields
from agentmill.schemas.profiles.profile import Profile
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import MessageAction
from tests.errors import user_error


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


@pytest.mark.parametrize("name", ["openai", "trl", "sharegpt", "llamafactory"])
def test_loss_marks_under_another_name_are_read_by_every_format(name: str) -> None:
    speakers = ("human", "gpt") if name == "sharegpt" else ("user", "assistant")
    text = [{"type": "text", "value": "a"}] if name == "llamafactory" else "a"
    marks = zip([*speakers, speakers[1]], (False, False, 1), strict=True)
    turns = [{"who": who, "text": text, "mask": mask} for who, mask in marks]
    fields = {"of": "turns", "role": "who", "content": ["text"], "train": "mask"}
    profile = validate(Profile, {"dataset": "d", "format": name, "messages": fields}, "p")
    (run,) = profile.reader().read(msgspec.json.encode({"turns": turns}), 0, 0).trajectories
    assert [item.train for item in run.content if isinstance(item, MessageAction)] == [False, True]


def test_rows_of_a_run_for_a_format_of_single_records_need_a_list_to_join() -> None:
    profile = validate(Profile, {"dataset": "d", "format": "openai", "group": {"by": ["id"]}}, "p")
    with pytest.raises(FormatError, match="`group` makes a list of rows"):
        profile.reader().read(msgspec.json.encode([{"id": 1, "messages": [A]}, {"id": 1, "messages": [B]}]), 0, 0)


def test_options_of_no_dialect_are_refused() -> None:
    given = {"dataset": "d", "format": "openai", "options": {"dialect_options": {"fenced": {}}}}
    with user_error("rule-broken", "dialect_options", "no `dialect`"):
        validate(Profile, given, "p").reader()
