"""PDDL text to records: what is read, what is refused, and how the refusal reads."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyparsing import ParserElement

from agentmill.synthesis.environments.pddl import reader
from agentmill.synthesis.environments.pddl.domain import Action, Literal, PddlError, Predicate, Typed, objects_by_type
from agentmill.synthesis.environments.pddl.reader import read_domain, read_problem
from agentmill.synthesis.environments.pddl.writer import domain_text, problem_text
from tests.synthesis.environments.examples import (
    BLOCKS,
    BLOCKS_PROBLEM,
    HANOI,
    WAREHOUSE,
    WAREHOUSE_PROBLEM,
    hanoi_problem,
    read,
)


def test_texts_are_parsed_without_remembering_matches() -> None:
    """With them, as the library sets it on import, a text takes three times as long."""
    read_domain.cache_clear()
    ParserElement.enable_packrat()
    reader._reader.cache_clear()
    read_domain(WAREHOUSE)
    assert not ParserElement._packratEnabled


def test_a_domain_is_read_as_it_stands() -> None:
    domain = read_domain(WAREHOUSE)
    assert domain.name == "warehouse"
    assert domain.types == (("place", "object"), ("crate", "object"), ("robot", "object"))
    assert domain.constants == (Typed("depot", "place"),)
    assert domain.predicates[0] == Predicate("at", (Typed("?r", "robot"), Typed("?p", "place")))
    assert domain.actions[0] == Action(
        name="go",
        parameters=(Typed("?r", "robot"), Typed("?a", "place"), Typed("?b", "place")),
        precondition=(
            Literal("at", ("?r", "?a")),
            Literal("path", ("?a", "?b")),
            Literal("=", ("?a", "?b"), positive=False),
        ),
        effect=(Literal("at", ("?r", "?a"), positive=False), Literal("at", ("?r", "?b"))),
    )
    assert domain.fluents() == {"at", "lies", "carries", "busy"}


def test_a_problem_is_read_as_it_stands() -> None:
    domain, problem = read(WAREHOUSE, WAREHOUSE_PROBLEM)
    assert problem.objects[0] == Typed("dock", "place")
    assert problem.init[:2] == (("at", "rob", "dock"), ("lies", "crate1", "aisle"))
    assert problem.goal == (
        Literal("lies", ("crate1", "depot")),
        Literal("busy", ("rob",), positive=False),
        Literal("at", ("rob", "aisle")),
    )
    assert objects_by_type(domain, problem)["place"] == ("depot", "dock", "aisle")
    assert objects_by_type(domain, problem)["object"] == ("depot", "dock", "aisle", "crate1", "crate2", "rob")


@pytest.mark.parametrize(
    ("domain", "problem"),
    [(WAREHOUSE, WAREHOUSE_PROBLEM), (BLOCKS, BLOCKS_PROBLEM), (HANOI, hanoi_problem(3))],
    ids=["warehouse", "blocks", "hanoi"],
)
def test_written_text_reads_back_the_same(domain: str, problem: str) -> None:
    records = read(domain, problem)
    assert read(domain_text(records[0]), problem_text(records[1])) == records


def test_case_and_comments_do_not_count() -> None:
    noisy = "; a remark\n" + BLOCKS.upper().replace("(:ACTION STACK", "(:ACTION STACK ; (not a bracket\n")
    assert read_domain(noisy) == read_domain(BLOCKS)


def test_a_subtype_belongs_to_all_its_supertypes() -> None:
    text = BLOCKS.replace(":strips", ":strips :typing").replace(
        "(:predicates", "(:types box - thing thing)(:predicates"
    )
    domain = read_domain(text)
    assert list(domain.supertypes("box")) == ["box", "thing", "object"]


@pytest.mark.parametrize("things", ["thing - object", "thing"])
def test_objects_of_any_kind_are_read_where_no_predicate_takes_them(things: str) -> None:
    domain = read_domain(WAREHOUSE)
    problem = read_problem(WAREHOUSE_PROBLEM.replace("rob - robot", f"rob - robot {things}"), domain)
    assert problem.objects[-1] == Typed("thing", "object")
    assert read_problem(problem_text(problem), domain) == problem


def test_a_predicate_may_bear_the_name_of_a_type() -> None:
    domain = read_domain(WAREHOUSE.replace("busy", "crate"))
    assert "crate" in domain.fluents()
    assert read_problem(WAREHOUSE_PROBLEM.replace("busy", "crate"), domain).objects[-2:] == (
        Typed("crate2", "crate"),
        Typed("rob", "robot"),
    )


DOMAIN_MISTAKES = {
    "unknown predicate": (
        "(not (busy ?r)))",
        "(not (bussy ?r)))",
        ["'bussy'", "line 18, column 53", "'busy'"],
    ),
    "arity": ("(not (busy ?r)))", "(not (busy ?r ?c)))", ["'busy' has 2 argument", "(busy ?r - robot)"]),
    "unbound parameter": ("(carries ?r ?c) (busy ?r)", "(carries ?r ?x) (busy ?r)", ["parameter '?x'", "?c, ?p, ?r"]),
    "type of an argument": ("(at ?r ?a) (path", "(at ?a ?r) (path", ["wrong type of argument in at(a, r)", "line"]),
    "undeclared type": ("?r - robot ?p - place", "?r - robot ?p - plce", ["unknown type 'plce'", "'place'"]),
    "duplicate action": (":action drop", ":action lift", ["action 'lift' is declared twice"]),
    "duplicate predicate": ("(busy ?r - robot)", "(busy ?r - robot) (at)", ["predicate 'at' is declared twice"]),
    "duplicate parameter": ("(?r - robot ?a ?b - place)", "(?r - robot ?a ?a - place)", ["'?a' is declared twice"]),
    "cyclic types": ("crate robot)", "crate - robot robot - crate)", ["'robot' is a kind of itself", "line 4"]),
    "constant of a predicate": ("(:constants depot", "(:constants busy", ["constant 'busy' has the name of a pred"]),
    "duplicate type": ("(:types place", "(:types place place", ["type 'place' is declared twice"]),
    "missing bracket": ("(busy ?r)))", "(busy ?r))", ["stands inside another bracket", "')' before (:action"]),
    "extra bracket": ("(busy ?r)))", "(busy ?r))))", ["after the end", "nothing more"]),
    "unknown section": ("(:types", "(:typs", ["section ':typs'", "':types'"]),
    "order of sections": ("(:requirements :strips", "(:constants)(:requirements :strips", ["too late or twice"]),
    "section twice": ("(:types", "(:requirements :strips) (:types", [":requirements comes too late or twice"]),
    "parts of an action": (":precondition", ":preconditions", ["action 'go' has wrong parts", ":effect"]),
    "no effect": ("(and (not (at ?r ?a)) (at ?r ?b))", "(and)", ["action 'go' has no effect"]),
    "undeclared requirement": (":equality", "", ["needs the requirement :equality"]),
    "unsupported requirement": (":strips", ":adl", ["requirement :adl is not supported", ":negative-preconditions"]),
    "disjunction": ("(path ?a ?b) (not", "(or (path ?a ?b) (busy ?r)) (not", ["disjunction (or) is not supported"]),
    "quantifier": ("(path ?a ?b) (not", "(forall (?x - crate) (busy ?r)) (not", ["(forall) is not supported"]),
    "conditional effect": ("(at ?r ?b))", "(when (busy ?r) (at ?r ?b)))", ["conditional effects (when)"]),
    "numeric effect": ("(at ?r ?b))", "(at ?r ?b) (increase (cost) 1))", ["numeric effects (increase)"]),
    "functions": ("(:predicates", "(:functions (fuel)) (:predicates", ["unsupported section ':functions'"]),
    "either": (
        "?p - place)\n    (lies",
        "?p - (either place crate))\n    (lies",
        ["type after it", "name1 name2 - type"],
    ),
    "not a domain": ("(domain warehouse)", "(problem warehouse)", ["not a domain"]),
    "empty": (WAREHOUSE, "", ["the text is empty"]),
    "prose": (WAREHOUSE, "Sure! Here is a domain.", ["starts with 'sure!'", "'(define ...'"]),
}


@pytest.mark.parametrize(("old", "new", "wanted"), DOMAIN_MISTAKES.values(), ids=list(DOMAIN_MISTAKES))
def test_a_mistake_in_a_domain_is_explained(old: str, new: str, wanted: list[str]) -> None:
    assert old in WAREHOUSE
    with pytest.raises(PddlError) as error:
        read_domain(WAREHOUSE.replace(old, new, 1))
    for part in wanted:
        assert part in str(error.value)


PROBLEM_MISTAKES = {
    "unknown object": ("(at rob dock)", "(at bob dock)", ["undeclared object 'bob'", "'rob'"]),
    "unknown type": ("crate2 - crate", "crate2 - crat", ["unknown type 'crat'", "'crate'"]),
    "wrong argument": ("(at rob dock)", "(at dock rob)", ["wrong type of argument in at(dock, rob)"]),
    "other domain": ("(:domain warehouse)", "(:domain house)", ["of domain 'house'", "(:domain warehouse)"]),
    "no goal": ("(:goal", "(:gaol", ["section ':gaol'", "':goal'"]),
    "duplicate object": ("crate1 crate2", "crate1 crate1", ["object 'crate1' is declared twice"]),
    "constant again": ("dock aisle", "dock depot", ["'depot' is a constant of the domain already"]),
    "negative fact": ("(at rob dock)", "(not (at rob dock))", ["a negated fact in :init", "only what is true"]),
    "variable in goal": ("(at rob aisle)", "(at ?r aisle)", ["undeclared parameter '?r'"]),
    "name of a predicate": ("crate2 - crate", "busy - crate", ["object 'busy' has the name of a predicate"]),
}


@pytest.mark.parametrize(("old", "new", "wanted"), PROBLEM_MISTAKES.values(), ids=list(PROBLEM_MISTAKES))
def test_a_mistake_in_a_problem_is_explained(old: str, new: str, wanted: list[str]) -> None:
    assert old in WAREHOUSE_PROBLEM
    with pytest.raises(PddlError) as error:
        read_problem(WAREHOUSE_PROBLEM.replace(old, new, 1), read_domain(WAREHOUSE))
    for part in wanted:
        assert part in str(error.value)


def test_the_library_s_reader_is_renewed_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_PARSES_PER_READER", 1)
    makes = reader._reader.cache_info().misses
    for number in range(3):
        assert read_domain(BLOCKS.replace("domain blocks", f"domain blocks{number}")).name == f"blocks{number}"
    assert reader._reader.cache_info().misses >= makes + 3


def test_a_missing_section_is_named() -> None:
    with pytest.raises(PddlError, match=r"lacks the section \(:goal"):
        read_problem("(define (problem p) (:domain blocks) (:objects a) (:init (clear a)))", read_domain(BLOCKS))


def test_an_error_has_parts() -> None:
    with pytest.raises(PddlError) as error:
        read_domain(BLOCKS.replace("(clear ?x) (on-table ?x)", "(clean ?x) (on-table ?x)"))
    assert error.value.what == "unknown predicate 'clean'"
    assert error.value.where == "line 7, column 24: (clean ?x)"
    assert error.value.expected.endswith("Did you mean 'clear'?")


@given(st.data())
def test_damaged_text_is_read_or_refused_but_never_breaks(data: st.DataObject) -> None:
    tokens = WAREHOUSE.replace("(", " ( ").replace(")", " ) ").split()
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(tokens) - 1))
        tokens[place] = data.draw(
            st.sampled_from(["", "(", ")", "-", "?r", "and", "not", "=", "place", ":action", "1.5", "é"])
        )
    with contextlib.suppress(PddlError):
        domain = read_domain(" ".join(tokens))
        assert read_domain(domain_text(domain)) == domain
