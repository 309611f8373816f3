"""Private fields: what of a record is removed, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from agentmill.schemas.profiles.private import LEFT, REMOVED, PrivateFields


@pytest.mark.parametrize(
    ("path", "record", "public", "n"),
    [
        ("token", {"token": 1, "a": {"token": 2}, "b": [{"token": 3, "c": 4}]}, {"a": {}, "b": [{"c": 4}]}, 3),
        ("$.token", {"token": 1, "a": {"token": 2}}, {"a": {"token": 2}}, 1),
        ("[].token", [{"token": 1}, [{"token": 2}]], [{}, [{}]], 2),
        (
            "a.token",
            {"token": 1, "a": [{"token": 2}, {"b": {"token": 3}}]},
            {"token": 1, "a": [{}, {"b": {"token": 3}}]},
            1,
        ),
        ("a[].b.c", {"a": [{"b": {"c": 1, "d": 2}}]}, {"a": [{"b": {"d": 2}}]}, 1),
        ("a.*.c", {"a": {"x": {"c": 1}, "y": {"c": 2, "d": 3}}}, {"a": {"x": {}, "y": {"d": 3}}}, 2),
        ("user.email", {"user.email": 1, "user": {"email": 2}}, {"user": {}}, 2),
        ("a", {"a": {"b": 1}, "c": None}, {"c": None}, 1),
        ("a.c", {"a": '{"c":1,"b":[1.0]}'}, {"a": '{"b":[1.0]}'}, 1),
        ("c", {"a": '[{"b": "{\\"c\\": 1}"}]'}, {"a": '[{"b": "{}"}]'}, 1),
        ("c", {"a": '{"b":  1}', "d": "c"}, {"a": '{"b":  1}', "d": "c"}, 0),
        ("*", {"a": 1}, {}, 1),
    ],
)
def test_fields_are_removed_wherever_a_path_leads(path: str, record: Any, public: Any, n: int) -> None:
    kept, found = PrivateFields([path]).remove(record)
    assert kept == public
    assert found == ({REMOVED + path: n} if n else {})


@pytest.mark.parametrize("text", ['{"token": "x', "{'token': 1}", 'log: {"token": 1}', '{\\"token\\": 1}'])
def test_text_that_names_a_private_field_and_is_no_json_is_counted(text: str) -> None:
    kept, found = PrivateFields(["token"]).remove({"a": text})
    assert kept == {"a": text}
    assert found == {LEFT + "token": 1}


def test_the_record_itself_stays_as_it_is() -> None:
    record = {"a": [{"token": 1}]}
    PrivateFields(["token"]).remove(record)
    assert record == {"a": [{"token": 1}]}


@pytest.mark.parametrize("path", ["", ".", "a..b", "a.", "$."])
def test_a_path_without_a_name_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="expected names joined by dots"):
        PrivateFields([path])
