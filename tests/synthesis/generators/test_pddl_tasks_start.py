"""Rules for initial states, one by one, and sampling by scheme."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from agentmill.synthesis.environments.pddl.domain import Action, Atom, Domain, Literal, PddlError, Predicate, Typed
from agentmill.synthesis.generators.pddl_tasks.scheme import scheme_of
from agentmill.synthesis.generators.pddl_tasks.start import AnyRule, Unsamplable, sample_facts

MEMBERS = {
    "item": ("a", "b", "c"),
    "place": ("x", "y", "z"),
    "door": ("d1", "d2", "d3"),
    "any": ("a", "b", "c", "x", "y", "z"),
}


def domain(*predicates: str) -> Domain:
    """A domain of predicates written ``"at item place"``."""
    declared = []
    for text in predicates:
        name, *kinds = text.split()
        declared.append(Predicate(name, tuple(Typed(f"?{n}", kind) for n, kind in enumerate(kinds))))
    touched = Action("touch", (), (), (Literal(declared[0].name),))
    return Domain(
        "d", (("any", "object"), ("item", "any"), ("place", "any"), ("door", "object")), (), tuple(declared), (touched,)
    )


def facts(rules: list[dict[str, Any]], *predicates: str, seed: int = 0, **members: tuple[str, ...]) -> tuple[Atom, ...]:
    read = msgspec.convert(rules, list[AnyRule])
    return sample_facts(read, domain(*predicates), {**MEMBERS, **members}, random.Random(seed))


def test_one_places_one_object_somewhere() -> None:
    drawn = {facts([{"rule": "one", "predicate": "here"}], "here place", seed=seed) for seed in range(20)}
    assert drawn == {(("here", "x"),), (("here", "y"),), (("here", "z"),)}


def test_all_takes_every_combination() -> None:
    assert len(facts([{"rule": "all", "predicate": "at"}], "at item place")) == 9
    assert facts([{"rule": "all", "predicate": "free"}], "free") == (("free",),)


def test_some_draws_within_its_count() -> None:
    rule = {"rule": "some", "predicate": "shut", "count": [1, 2]}
    sizes = {len(facts([rule], "shut place", seed=seed)) for seed in range(20)}
    assert sizes == {1, 2}


def test_each_gives_every_object_one_fact_of_one_of_the_options() -> None:
    rule = {"rule": "each", "predicate": "raw", "options": ["raw", "in"]}
    drawn = facts([rule], "raw item", "in item place", seed=1)
    assert [atom[1] for atom in drawn] == ["a", "b", "c"]
    assert {atom[0] for atom in drawn} <= {"raw", "in"}


def test_distinct_objects_may_run_out() -> None:
    rule = {"rule": "each", "predicate": "at", "distinct": True}
    assert len({atom[2] for atom in facts([rule], "at item place")}) == 3
    with pytest.raises(Unsamplable, match="too few objects"):
        facts([rule], "at item place", place=("x", "y"))


def test_each_last_may_be_restricted_to_where_a_predicate_holds() -> None:
    rules = [{"rule": "some", "predicate": "shut"}, {"rule": "each_last", "predicate": "opens", "where": "shut"}]
    shut, opens = facts(rules, "shut place", "opens item place")
    assert shut[1] == opens[2]


def test_unless_takes_what_is_not_mentioned() -> None:
    rules = [{"rule": "one", "predicate": "at"}, {"rule": "unless", "predicate": "room", "other": "at"}]
    at, *room = facts(rules, "at item place", "room place")
    assert {atom[1] for atom in room} == {"x", "y", "z"} - {at[2]}


def test_chain_is_a_total_order() -> None:
    assert facts([{"rule": "chain", "predicate": "next"}], "next place place") == (
        ("next", "x", "y"),
        ("next", "y", "z"),
    )


@pytest.mark.parametrize(
    ("shape", "count"), [("path", 4), ("ring", 6), ("star", 4), ("one_way", 3), ("out_tree", 2), ("in_tree", 2)]
)
def test_graphs_connect_all_nodes(shape: str, count: int) -> None:
    rule = {"rule": "graph", "predicate": "way", "shapes": [shape], "root": "root"}
    root, *edges = facts([rule], "way place place", "root place", seed=3)
    assert len(edges) == count
    assert {name for edge in edges for name in edge[1:]} == {"x", "y", "z"}
    if shape == "out_tree":
        assert root[1] not in {edge[2] for edge in edges}


def test_doors_join_all_places_and_open_both_ways() -> None:
    drawn = facts([{"rule": "doors", "predicate": "joins"}], "joins door place place")
    assert {name for atom in drawn[:4] for name in atom[2:]} == {"x", "y", "z"}
    assert all(("joins", door, far, near) in drawn for _, door, near, far in drawn)


def test_recipes_make_every_product_from_two_earlier_pieces() -> None:
    pieces = ("p1", "p2", "p3", "p4", "p5")
    drawn = facts(
        [{"rule": "recipes", "predicate": "makes", "have": "own"}], "makes item item item", "own item", item=pieces
    )
    own = {atom[1] for atom in drawn if atom[0] == "own"}
    assert own == {"p1", "p2", "p3"}
    for _, left, right, product in [atom for atom in drawn if atom[0] == "makes"]:
        assert left != right
        assert {left, right} <= own
        own.add(product)
    assert own == set(pieces)


def test_towers_put_each_item_on_one_thing() -> None:
    rule = {"rule": "towers", "predicate": "on", "base": "low", "clear": "clear"}
    drawn = facts([rule], "on item item", "low item", "clear item", seed=2)
    placed = [atom[1] for atom in drawn if atom[0] in ("on", "low")]
    covered = {atom[2] for atom in drawn if atom[0] == "on"}
    assert sorted(placed) == ["a", "b", "c"]
    assert {atom[1] for atom in drawn if atom[0] == "clear"} == {"a", "b", "c"} - covered


def test_towers_on_places_obey_sizes() -> None:
    rules = [{"rule": "towers", "predicate": "on", "clear": "clear"}, {"rule": "sizes", "predicate": "fits"}]
    for seed in range(10):
        drawn = facts(rules, "on item any", "clear any", "fits item any", seed=seed)
        fits = {atom[1:] for atom in drawn if atom[0] == "fits"}
        assert all(atom[1:] in fits for atom in drawn if atom[0] == "on")
        assert len(fits) == 3 + 3 * 3


def test_scheme_draws_numbers_of_objects_and_grows_on_demand() -> None:
    given = {
        "objects": {
            "item": {"count": [1, 2], "names": ["a", "b", "c"]},
            "place": {"count": [2, 2], "names": ["x", "y"]},
        },
        "start": [{"rule": "each", "predicate": "at"}],
    }
    read = scheme_of({"problems": given})
    sizes = {len(read.sample(domain("at item place"), random.Random(seed)).objects) for seed in range(20)}
    assert sizes == {3, 4}
    assert len(read.sample(domain("at item place"), random.Random(0), {"item": 9}).objects) == 5


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "parameters\\['problems'\\] is missing"),
        ({"problems": {}}, "neither rules nor an example"),
        ({"problems": {"start": [{"rule": "dice", "predicate": "at"}]}}, "Invalid value 'dice'"),
    ],
)
def test_broken_schemes_are_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(PddlError, match=message):
        scheme_of(parameters)
