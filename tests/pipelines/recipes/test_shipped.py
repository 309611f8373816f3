"""Recipes and sketches by name, and in lists."""

from __future__ import annotations

from pathlib import Path

from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.shipped import PLANNED, recipe_cards, recipe_file, recipe_files, sketch_files
from tests.errors import user_error


def test_a_sketch_is_found_by_its_name_and_a_recipe_goes_before_it() -> None:
    assert recipe_file(Path("rise")) == sketch_files()["rise"]
    assert not set(sketch_files()) & set(recipe_files())
    with user_error("no-such-file", "Did you mean 'scoreflow'?", "agentmill list recipes"):
        recipe_file(Path("scorflow"))


def test_a_sketch_is_no_file_to_include(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\ninclude: [environments/pddll]\nsteps: []\n", encoding="utf-8")
    with user_error("no-such-file", "environments/pddl") as raised:
        read_recipe(tmp_path / "mine.yaml", ())
    assert "sketches/" not in str(raised.value)


def test_sketches_are_listed_after_recipes_as_planned() -> None:
    cards = recipe_cards()
    assert [card.name for card in cards] == [*recipe_files(), *sketch_files()]
    assert {card.name for card in cards if card.status == PLANNED} == set(sketch_files())
