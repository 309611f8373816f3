"""The page of published systems claims no more than the operators and the recipes show."""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

import pytest

from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.pipelines.recipes.shipped import PLANNED, RecipeCard, recipe_files, sketch_files
from agentmill.schemas.config import read_yaml
from tests.pages import ROOT

LISTED: dict[str, Any] = read_yaml(ROOT / "docs/ledger.yaml")
ALIASES, SYSTEMS, LACKS = LISTED["aliases"], LISTED["systems"], LISTED["lacks"]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs/reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def absent_operators(name: str) -> set[str]:
    return {each for word in SYSTEMS[name] for each in ALIASES.get(word, [word])} - set(OPERATORS)


def test_the_page_says_of_each_system_what_operators_recipes_and_sketches_show(reference: ModuleType) -> None:
    lines = "\n".join(reference.ledger()).splitlines()
    shown = {line.split(" | ")[0].removeprefix("| "): line for line in lines if line.count(" | ") == 3}
    recipes = {reference.compared(name): name for name in recipe_files()}
    sketches = {reference.compared(name): name for name in sketch_files()}
    counts = {"recipe": 0, "expressible": 0, "missing": 0}
    for name in SYSTEMS:
        absent = absent_operators(name)
        recipe, sketch = recipes.get(reference.compared(name)), sketches.get(reference.compared(name))
        kind = "recipe" if recipe else "expressible" if sketch else "missing"
        counts[kind] += 1
        assert f"| **{kind}** |" in shown[name]
        last = shown[name].rpartition(f"**{kind}** |")[2]
        assert {each for each in absent if f"`{each}`" in last} == (absent if kind == "missing" else set())
        assert recipe is None or f"`{recipe}`" in last
        assert kind != "expressible" or f"(sketches.md#{sketch})" in last
        assert kind != "missing" or absent or LACKS.get(name, "a sketch") in last
    head = " ".join(lines[:6])
    assert f"{len(SYSTEMS)} published systems" in head
    assert f"{counts['recipe']} have a recipe, {counts['expressible']} more are expressible" in head
    assert f"for {counts['missing']} something is missing" in head
    assert counts["recipe"] + counts["expressible"] >= 70


def test_each_sketch_is_of_a_system_and_has_its_place_on_a_page(reference: ModuleType) -> None:
    assert {reference.compared(name) for name in sketch_files()} <= set(map(reference.compared, SYSTEMS))
    page = "\n".join(reference.sketches())
    for name, file in sketch_files().items():
        assert f"## {name}\n" in page
        assert file.read_text(encoding="utf-8") in page


def test_what_is_lacking_is_given_for_systems_without_a_sketch_whose_operators_exist(reference: ModuleType) -> None:
    written = {reference.compared(name) for name in (*recipe_files(), *sketch_files())}
    assert set(LACKS) <= set(SYSTEMS)
    assert not {name for name in LACKS if reference.compared(name) in written or absent_operators(name)}


def test_a_missing_operator_is_named_and_recipes_and_sketches_go_before_it(reference: ModuleType) -> None:
    card = RecipeCard(name="eto", paper="", steps=9, status="untried")
    sketch = RecipeCard(name="rise", paper="", steps=9, status=PLANNED)
    assert reference.coverage(None, ["ingest", "sample"], ALIASES) == ("missing", ["a sketch"])
    assert reference.coverage(None, ["ingest", "sample"], ALIASES, "new tokens") == ("missing", ["new tokens"])
    assert reference.coverage(None, ["sample", "no_such", "SFT"], ALIASES, "more") == ("missing", ["`no_such`"])
    assert reference.coverage(card, ["no_such"], ALIASES) == ("recipe", ["`eto`", "`untried`"])
    assert reference.coverage(sketch, ["no_such"], ALIASES) == ("expressible", ["[rise](sketches.md#rise)"])


def test_aliases_are_needed_and_name_operators() -> None:
    words = {word for chain in SYSTEMS.values() for word in chain}
    assert set(ALIASES) <= words - set(OPERATORS)
    assert {name for names in ALIASES.values() for name in names} <= set(OPERATORS)
    assert len(SYSTEMS) == 114
    assert all(SYSTEMS.values())
