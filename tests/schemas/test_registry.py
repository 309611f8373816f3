"""Registries and near matches: a wrong name gets the right one."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.registry import Registry, _installed
from tests.errors import user_error

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


def distribution(folder: Path, name: str, entry: str) -> None:
    """A package as pip installs it, which declares one counter."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[agentmill.counters]\n{entry}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages."""
    monkeypatch.syspath_prepend(str(tmp_path))
    _installed.cache_clear()
    yield tmp_path
    _installed.cache_clear()


def test_an_installed_package_adds_a_name_by_entry_point(site: Path) -> None:
    distribution(site, "ours", "ordered = collections:OrderedDict")
    counters: Registry[type[dict[str, int]]] = Registry("counter", dict(COUNTERS), group="counters")
    assert counters.load("ordered")(a=1) == {"a": 1}
    assert [*counters] == [*COUNTERS, "ordered"]
    assert "ordered" not in Registry("counter", dict(COUNTERS), group="others")


def test_an_entry_point_cannot_replace_a_name(site: Path) -> None:
    distribution(site, "theirs", "plain = collections:OrderedDict")
    with user_error("name-taken", "'plain'", "theirs 1.0", "collections:OrderedDict", "collections:Counter"):
        Registry("counter", dict(COUNTERS), group="counters").load("plain")


def test_near_matches_are_near() -> None:
    assert near_match("temprature", ["temperature", "top_p"]) == " Did you mean 'temperature'?"
    assert near_match("xyz", ["temperature", "top_p"]) == ""
    assert near_match("x", []) == ""
