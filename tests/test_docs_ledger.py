"""The page of published systems claims no more than the operators and the recipes show."""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

import pytest

from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.pipelines.recipes.shipped import RecipeCard, recipe_files
from agentmill.schemas.config import read_yaml
from tests.pages import ROOT

LISTED: dict[str, Any] = read_yaml(ROOT / "docs/ledger.yaml")
ALIASES, SYSTEMS = LISTED["aliases"], LISTED["systems"]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs/reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_says_of_each_system_what_operators_and_recipes_show(reference: ModuleType) -> None:
    lines = "\n".join(reference.ledger()).splitlines()
    shown = {line.split(" | ")[0].removeprefix("| "): line for line in lines if line.count(" | ") == 3}
    recipes = {reference.compared(name): name for name in recipe_files()}
    counts = {"recipe": 0, "expressible": 0, "missing": 0}
    for name, chain in SYSTEMS.items():
        absent = {each for word in chain for each in ALIASES.get(word, [word])} - set(OPERATORS)
        recipe = recipes.get(reference.compared(name))
        kind = "recipe" if recipe else "missing" if absent else "expressible"
        counts[kind] += 1
        assert f"| **{kind}** |" in shown[name]
        last = shown[name].rpartition(f"**{kind}** |")[2]
        assert {each for each in absent if f"`{each}`" in last} == (absent if kind == "missing" else set())
        assert recipe is None or f"`{recipe}`" in last
    head = " ".join(lines[:6])
    assert f"{len(SYSTEMS)} published systems" in head
    assert f"{counts['recipe']} have a recipe, {counts['expressible']} more are expressible" in head
    assert f"of {counts['missing']} an operator is missing" in head


def test_a_missing_operator_is_named_and_a_recipe_goes_before_it(reference: ModuleType) -> None:
    card = RecipeCard(name="eto", paper="", steps=9, status="untried")
    assert reference.coverage(None, ["ingest", "sample"], ALIASES) == ("expressible", [])
    assert reference.coverage(None, ["sample", "no_such", "SFT"], ALIASES) == ("missing", ["no_such"])
    assert reference.coverage(card, ["no_such"], ALIASES) == ("recipe", ["eto", "untried"])


def test_aliases_are_needed_and_name_operators() -> None:
    words = {word for chain in SYSTEMS.values() for word in chain}
    assert set(ALIASES) <= words - set(OPERATORS)
    assert {name for names in ALIASES.values() for name in names} <= set(OPERATORS)
    assert len(SYSTEMS) == 114
    assert all(SYSTEMS.values())
