"""Data of invented databases: every template is used, and nothing in them is left to fill in."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from string import Template

import msgspec
import pytest

from agentmill.synthesis.environments.toolbox.toolbox import Toolbox, write_toolbox
from agentmill.synthesis.generators.toolbox_procedural import draft, lifecycle, reads, vocabulary, writes
from agentmill.synthesis.generators.toolbox_procedural.generator import compose
from agentmill.synthesis.generators.toolbox_procedural.vocabulary import names, tables, themes


@cache
def toolboxes() -> tuple[Toolbox, ...]:
    return tuple(compose(themes()[seed % len(themes())], random.Random(seed))[0] for seed in range(120))


TEMPLATES = [("tool_of", "tools"), ("requires", "requirements"), ("effect", "effects")]


@pytest.mark.parametrize(("function", "table"), TEMPLATES)
def test_every_template_is_used(function: str, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    used = set()
    fill: Callable[..., object] = getattr(draft, function)

    def noted(name: str, *given: object, **options: object) -> object:
        used.add(name)
        return fill(name, *given, **options)

    for module in (draft, lifecycle, reads, writes):
        if hasattr(module, function):
            monkeypatch.setattr(module, function, noted)
    for seed in range(400):
        compose(themes()[seed % len(themes())], random.Random(seed))
    assert used == set(getattr(vocabulary, table)())


def test_every_table_and_column_is_drawn() -> None:
    """The columns of one theme; each is called by its entry or by the theme."""
    theme = themes()[0]
    words = msgspec.structs.asdict(theme)
    drawn = [compose(theme, random.Random(seed))[0].tables for seed in range(60)]
    found = {column.name for each in drawn for table in each for column in table.columns}
    for entry in tables().values():
        assert {Template(column.name).substitute(words) for column in entry.columns.values()} <= found
    nouns = {table.noun for each in drawn for table in each}
    assert nouns == {Template(entry.noun).substitute(words) for entry in tables().values()}


def test_nothing_is_left_to_fill_in() -> None:
    assert [toolbox for toolbox in toolboxes() if "$" in write_toolbox(toolbox)] == []


def test_names_are_enough_for_the_largest_table() -> None:
    most = max(entry.size[1] for entry in tables().values() if entry.name)
    assert min(len(names().first_names), len(names().last_names)) >= most
    assert all(len(theme.places) >= tables()["place"].size[1] for theme in themes())
    assert all(len(theme.life) == len(theme.verbs) + 1 for theme in themes())
