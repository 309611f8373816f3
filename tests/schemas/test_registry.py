"""Registries and near matches: a wrong name gets the right one."""

from __future__ import annotations

import pickle

import pytest

from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.registry import Registry

COUNTERS = Registry(
    "counter", {"plain": "collections:Counter", "gone": "collections:Nothing", "absent": "no_such_room:X"}
)


def test_a_name_loads_what_it_stands_for() -> None:
    assert COUNTERS.load("plain")("aab")["a"] == 2
    assert (list(COUNTERS), len(COUNTERS), COUNTERS["plain"]) == (["plain", "gone", "absent"], 3, "collections:Counter")


def test_a_wrong_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UserError) as caught:
        COUNTERS.load("plane")
    assert str(caught.value) == "unknown counter 'plane'; known: absent, gone, plain. Did you mean 'plain'?"


def test_errors_of_the_plug_in_are_passed_on() -> None:
    with pytest.raises(AttributeError, match="Nothing"):
        COUNTERS.load("gone")
    with pytest.raises(ModuleNotFoundError, match="no_such_room"):
        COUNTERS.load("absent")


def test_a_registry_travels_to_workers() -> None:
    assert dict(pickle.loads(pickle.dumps(COUNTERS))) == dict(COUNTERS)


def test_near_matches_are_near() -> None:
    assert near_match("temprature", ["temperature", "top_p"]) == " Did you mean 'temperature'?"
    assert near_match("xyz", ["temperature", "top_p"]) == ""
    assert near_match("x", []) == ""
