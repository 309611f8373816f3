"""Blocks of planning worlds: every one is laid, and every world that they make is PDDL."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from functools import cache

import pytest

from agentmill.schemas.errors import UserError
from agentmill.synthesis.environments.pddl.reader import read_domain
from agentmill.synthesis.environments.pddl.writer import domain_text
from agentmill.synthesis.generators.data_files import convert
from agentmill.synthesis.generators.pddl_procedural.draft import Block, Draft, blocks
from agentmill.synthesis.generators.pddl_procedural.generator import compose, core_parts, feature_parts
from agentmill.synthesis.generators.pddl_procedural.themes import proper_nouns, themes


@pytest.fixture
def laid(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The paths of blocks that are laid during a test."""
    paths: set[str] = set()
    lay = Draft.lay

    def noted(self: Draft, path: str, hooked: Iterable[object] = (), **words: str) -> None:
        paths.add(path)
        lay(self, path, hooked, **words)  # type: ignore[arg-type]

    monkeypatch.setattr(Draft, "lay", noted)
    return paths


def worlds(n: int) -> Iterator[Draft]:
    """Worlds of all themes."""
    for seed in range(n):
        yield compose(themes()[seed % len(themes())], "", random.Random(seed))[0]


@cache
def domains() -> tuple[Draft, ...]:
    return tuple(worlds(300))


def test_every_block_is_laid(laid: set[str]) -> None:
    for _ in worlds(1500):
        pass
    assert laid == set(blocks())


def test_every_world_is_read_back_from_its_pddl() -> None:
    for number, draft in enumerate(domains()[:40]):
        domain = draft.domain(f"d{number}")
        assert read_domain(domain_text(domain)) == domain


def test_no_placeholder_is_left() -> None:
    for draft in domains():
        texts = [
            *draft.predicate_text.values(),
            *draft.action_text().values(),
            *draft.rules,
            domain_text(draft.domain("d")),
        ]
        assert re.findall(r"\b[A-Z]{2,}\b", "\n".join([*texts, str(draft.start), str(draft.goals)])) == []


def test_vocabularies_and_parts_are_complete() -> None:
    assert len(themes()) == 18
    assert all(len(theme.kinds) == 5 and len(theme.names) == 7 for theme in themes())
    assert {len(names) for names in proper_nouns().values()} <= {3, 4, 5, 6}
    assert [len(core_parts()), len(feature_parts())] == [15, 13]


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"need": "a"}, "f.yaml: Object contains unknown field `need`"),
        ({"actions": {"go": {"needs": "a"}}}, "f.yaml: Object missing required field `text` - at `$.actions[...]`"),
        ({"kinds": {"item": 3}}, "f.yaml: Expected `array`, got `int` - at `$.kinds[...]`"),
    ],
)
def test_a_mistake_in_a_block_names_file_and_key(block: object, message: str) -> None:
    with pytest.raises(UserError) as error:
        convert(block, Block, "f.yaml")
    assert str(error.value) == message
