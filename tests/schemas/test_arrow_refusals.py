"""What no table can hold exactly is refused, with the record's place and the field's name."""

from __future__ import annotations

import math
import pickle
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest

from agentmill.schemas.arrow.check import check
from agentmill.schemas.arrow.convert import RecordError, from_arrow, to_arrow
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.trajectory import MessageAction, Outcome, TextObservation, Trajectory, WebObservation
from agentmill.schemas.records.verdict import Label, Value
from agentmill.schemas.tables import write_shard
from tests.builders import called, outcome, tokens, trajectory


class Items(list[Any]):
    pass


DEEP: list[Any] = []
for _ in range(5000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("fields", "field", "detail"),
    [
        ({"extra": {"score": math.nan}}, "extra.score", "nan is not a value"),
        ({"extra": {"a": [1, {"b": math.inf}]}}, "extra.a[1].b", "inf is not a value"),
        ({"outcome": Outcome(reward=math.nan)}, "outcome.reward", "nan is not a value"),
        ({"outcome": Outcome(reward=-math.inf)}, "outcome.reward", "-inf is not a value"),
        ({"system_prompt": "bad \ud83d half"}, "system_prompt", "lone surrogate '\\ud83d' at character 4"),
        ({"content": [called("f", text="\udc00")]}, "content[0].kwargs.text", "lone surrogate"),
        ({"extra": {"\ud800": 1}}, "extra", "lone surrogate"),
        ({"extra": {1: 2}}, "extra", "the key 1 is no text"),
        ({"extra": {"a": (1, 2)}}, "extra.a", "a tuple is no JSON value"),
        ({"extra": {"a": {1, 2}}}, "extra.a", "set is no JSON value"),
        ({"extra": {"a": b"x"}}, "extra.a", "bytes is no JSON value"),
        ({"extra": {"a": np.float32(1)}}, "extra.a", "float32 is no JSON value"),
        ({"extra": {"a": DEEP}}, f"extra.a{'[0]' * 199}", "nested too deeply"),
        ({"attempt": 2**63}, "attempt", "does not fit in 64 bits"),
        ({"content": [MessageAction(content="x", turn=-(2**63) - 1)]}, "content[0].turn", "does not fit in 64 bits"),
        (
            {"content": [MessageAction(content="x", tokens=tokens(2**64))]},
            "content[0].tokens.sampled_ids[0]",
            "64 bits",
        ),
        ({"attempt": "3"}, "attempt", "Expected `int`, got `str`"),
        ({"attempt": True}, "attempt", "Expected `int`, got `bool`"),
        ({"content": (MessageAction(content="x"),)}, "content", "tuple"),
        ({"outcome": Outcome(status="won")}, "outcome.status", "Invalid enum value 'won'"),  # type: ignore[arg-type]
        ({"content": [TextObservation(content="x", source="tool")]}, "content[0].source", "'tool'"),  # type: ignore[arg-type]
        ({"content": [outcome()]}, "content[0]", "`class_`"),
        ({"content": [None]}, "content[0]", "got `null`"),
        ({"system_prompt": b"x"}, "system_prompt", "bytes"),
        ({"content": [MessageAction(content=None)]}, "content[0].content", "got `null`"),  # type: ignore[arg-type]
        ({"content": [WebObservation(viewport_size=(1, 2, 3))]}, "content[0].viewport_size", "length 2"),  # type: ignore[arg-type]
        ({"content": [WebObservation(viewport_size=[1, 2])]}, "content[0].viewport_size", "list"),  # type: ignore[arg-type]
        ({"content": [MessageAction(content="x", tokens=tokens(True))]}, "content[0].tokens.sampled_ids[0]", "bool"),
        ({"content": [MessageAction(content="x", reward=each) for each in (None, ANY)]}, "", "_ANY is unsupported"),
        ({"content": [MessageAction(content="x", reward=each) for each in (None, np.zeros(2))]}, "", "ndarray"),  # type: ignore[arg-type]
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_culprit_is_named(fields: dict[str, Any], field: str, detail: str) -> None:
    with pytest.raises(RecordError) as caught:
        to_arrow([trajectory(), trajectory("bad", **fields)], Trajectory)
    assert caught.value.index == 1
    assert caught.value.field == field
    assert detail in caught.value.detail
    assert isinstance(caught.value, ValueError)


def test_lists_and_dicts_of_a_kind_of_their_own_are_taken() -> None:
    given = trajectory(extra=OrderedDict(a=Counter("aa")), content=Items([MessageAction(content="x")]))
    assert from_arrow(to_arrow([given], Trajectory), Trajectory) == [given]


def test_integers_that_a_float_cannot_hold_are_refused() -> None:
    value = Value(trajectory_id="t", name="v", value=2**53 + 1, estimator="e", n=1)
    with pytest.raises(RecordError, match="field 'value': int 9007199254740993 would come back as float"):
        to_arrow([value], Value)


def test_records_of_another_type_are_refused() -> None:
    label = Label(trajectory_id="t", name="n", value="v", labeller="l")
    with pytest.raises(RecordError, match=r"record 0: .*unknown field"):
        to_arrow([label], Trajectory)  # type: ignore[type-var]


def test_nothing_is_written_of_a_refused_batch(tmp_path: Path) -> None:
    path = tmp_path / "table/data/part-00000.parquet"
    records: list[Record] = [trajectory(), trajectory("bad", extra={"a": math.nan})]
    with pytest.raises(RecordError):
        write_shard(path, records, Trajectory)
    assert list(tmp_path.iterdir()) == []


def test_the_error_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(RecordError(3, "extra.a", "nan is no value")))
    assert (error.index, error.field, error.detail) == (3, "extra.a", "nan is no value")
    assert str(error) == "record 3: field 'extra.a': nan is no value"


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(("levels", "held"), [(199, True), (200, False), (900, False)])
def test_values_are_nested_in_200_levels_at_most(levels: int, held: bool) -> None:
    deep = [trajectory("t1"), trajectory("t2", extra={"a": nested(levels)})]  # the object is a level, too
    if held:
        check(deep, Trajectory)
        assert from_arrow(to_arrow(deep, Trajectory), Trajectory) == deep
        return
    for refuse in (to_arrow, check):
        with pytest.raises(RecordError, match=r"record 1: field 'extra.*nested too deeply \(more than 200 levels\)"):
            refuse(deep, Trajectory)
