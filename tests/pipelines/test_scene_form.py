"""The form of a scene: what a renaming and another order leave equal, and what another state changes."""

from __future__ import annotations

import random
from collections.abc import Sequence

from agentmill.pipelines.scene_form import MOST_FACTS, SceneForm, scene_form, statements_of

TABLE = "The salt is on the table; the acid is on the table; the mixer is empty; the mixer suits the acid."
RENAMED = "The corn is on the table; the rice is on the table; the mixer is empty; the mixer suits the rice."


def form(text: str, names: str = "salt", asked: Sequence[str] = (), keep_numbers: bool = True) -> SceneForm:
    known = frozenset((name,) for name in names.split())
    return scene_form([text], known, {name: place for place, name in enumerate(asked)}, keep_numbers)


def test_every_name_may_be_another() -> None:
    assert form(TABLE) == form(RENAMED, "corn")
    # Acid is found as a name by its statement, the mixer is none.
    assert form(TABLE).names == 3
    assert form(TABLE, "salt mixer") == form(RENAMED.replace("mixer", "drum"), "corn drum")
    assert form(TABLE, "salt mixer").names == 5


def test_the_order_of_facts_means_nothing() -> None:
    facts = [f"the node{n} leads to the node{n + 1}" for n in range(6)]
    forms = [form("; ".join(random.Random(seed).sample(facts, 6)), keep_numbers=False) for seed in range(5)]
    assert all(each == forms[0] for each in forms)
    assert len(forms[0].facts) == 6


def test_another_state_is_another_form() -> None:
    names = "salt acid mixer"
    moved = form(TABLE.replace("suits the acid", "suits the salt"), names, ["salt"])
    assert set(form(TABLE, names, ["salt"]).facts) != set(moved.facts)
    ring = "; ".join(f"the v{n} leads to the v{(n + 1) % 6}" for n in range(6))
    line = "; ".join(f"the v{n} leads to the v{n + 1}" for n in range(6))
    assert form(ring, keep_numbers=False) != form(line, keep_numbers=False)


def test_names_of_the_instruction_are_distinguished() -> None:
    text = "The ann is here; the bob is here."
    assert form(text, "ann bob", ["ann", "bob"]).facts == form(text, "ann bob", ["bob", "ann"]).facts
    hot = text + " The ann is hot."
    assert form(hot, "ann bob", ["ann", "bob"]).facts != form(hot, "ann bob", ["bob", "ann"]).facts


def test_equal_facts_are_counted() -> None:
    assert len(form("A coin. A coin. A coin.").facts) == 3
    assert set(form("A coin. A coin.").facts) < set(form("A coin. A coin. A coin.").facts)


def test_numbers_are_kept_or_names() -> None:
    assert form("It costs 5.") != form("It costs 7.")
    assert form("It costs 5.", keep_numbers=False) == form("It costs 7.", keep_numbers=False)


def test_what_is_empty_or_long() -> None:
    assert form("") == form(" ;\n. ") == SceneForm([], 0)
    assert len(form("One line.\n" * 2 * MOST_FACTS).facts) == MOST_FACTS


def test_statements_of_json() -> None:
    state = {"users": [{"name": "Ann; Bo", "age": 3}, {"name": "Cy", "tags": ["x", 1]}], "text": "a b c d e f g.\nh"}
    assert [*statements_of(state)] == [
        "text\na b c d e f g.\nh",
        'users age 3 name "Ann  Bo"',
        'users name "Cy"',
        'users tags "x" 1',
    ]
    assert [*statements_of({})] == []
    rows = [[{"a": "x", "b": "y"}, {"a": "z", "b": "x"}], [{"a": "n", "b": "m"}, {"a": "k", "b": "n"}]]
    forms = [scene_form(statements_of(each), frozenset(), {}, keep_numbers=True) for each in rows]
    assert forms[0] == forms[1]
