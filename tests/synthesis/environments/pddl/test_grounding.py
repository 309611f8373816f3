"""The grounded stepper against its definition and against unified-planning's simulator."""

from __future__ import annotations

import random
from typing import Any

import pytest

from agentmill.synthesis.environments.pddl import grounding
from agentmill.synthesis.environments.pddl.domain import PddlError
from agentmill.synthesis.environments.pddl.grounding import Grounded, bits
from tests.synthesis.environments.examples import (
    BLOCKS,
    BLOCKS_PROBLEM,
    HANOI,
    WAREHOUSE,
    WAREHOUSE_PROBLEM,
    blocks_problem,
    grounded,
    hanoi_problem,
)

TOGGLE = """
(define (domain toggle)
  (:requirements :strips :negative-preconditions)
  (:predicates (on ?x) (stuck ?x) (never ?x))
  (:action flip-on :parameters (?x) :precondition (and (not (on ?x)) (not (stuck ?x))) :effect (on ?x))
  (:action flip-off :parameters (?x) :precondition (on ?x) :effect (not (on ?x)))
  (:action renew :parameters (?x) :precondition (on ?x) :effect (and (not (on ?x)) (on ?x)))
  (:action vanish :parameters (?x) :precondition (never ?x) :effect (never ?x)))
"""


def toggle(facts: str, goal: str) -> Grounded:
    return grounded(TOGGLE, f"(define (problem p) (:domain toggle) (:objects a b) (:init {facts}) (:goal {goal}))")


def names(world: Grounded, state: int) -> list[str]:
    chosen = [world.actions[number] for number in world.applicable(state)]
    return [" ".join([action.name, *action.arguments]) for action in chosen]


def test_static_atoms_have_no_bit() -> None:
    world = grounded(WAREHOUSE, WAREHOUSE_PROBLEM)
    assert {atom[0] for atom in world.atoms} == {"at", "lies", "carries", "busy"}
    assert ("path", "dock", "aisle") in world.static
    assert world.holds(world.init, ("path", "dock", "aisle"))
    assert not world.holds(world.init, ("path", "dock", "depot"))
    assert [action.arguments for action in world.actions if action.name == "go"] == [
        ("rob", "depot", "aisle"),
        ("rob", "dock", "aisle"),
        ("rob", "aisle", "depot"),
        ("rob", "aisle", "dock"),
    ]


def test_negative_preconditions_and_reachability() -> None:
    world = toggle("(stuck b)", "(on a)")
    assert world.atoms == (("on", "a"),)
    assert [action.name for action in world.actions] == ["flip-on", "flip-off", "renew"]
    assert names(world, world.init) == ["flip-on a"]
    on = world.apply(world.init, 0)
    assert names(world, on) == ["flip-off a", "renew a"]
    assert world.is_goal(on)
    assert not world.is_goal(world.init)


def test_deletes_come_before_adds() -> None:
    world = toggle("(on a)", "(on a)")
    renew = next(number for number, action in enumerate(world.actions) if action.name == "renew")
    assert world.apply(world.init, renew) == world.init


@pytest.mark.parametrize(("goal", "reachable"), [("(on b)", False), ("(not (stuck b))", False), ("(stuck b)", True)])
def test_what_never_changes_decides_a_goal_at_once(goal: str, reachable: bool) -> None:
    world = toggle("(stuck b)", goal)
    assert world.reachable_goal is reachable
    assert world.is_goal(world.init) is reachable


def test_a_contradictory_goal_is_unreachable() -> None:
    assert not toggle("", "(and (on a) (not (on a)))").reachable_goal


def test_equality_excludes_bindings() -> None:
    text = BLOCKS.replace(":strips", ":strips :equality").replace(
        "(and (held ?x) (clear ?y))", "(and (held ?x) (= ?x ?y))"
    )
    assert not [
        action
        for action in grounded(text, BLOCKS_PROBLEM).actions
        if len(set(action.arguments)) == 2 and action.name == "stack"
    ]


def test_too_many_actions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grounding, "MAX_GROUND_ACTIONS", 10)
    with pytest.raises(PddlError, match="more than 10 ground actions"):
        grounded(BLOCKS, blocks_problem(4, seed=0))


def test_bindings_that_come_to_nothing_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last parameter alone decides, so that all bindings of the others are tried."""
    domain = """(define (domain d) (:requirements :strips) (:predicates (last ?x) (done))
      (:action a :parameters (?a ?b ?c ?d) :precondition (last ?d) :effect (done)))"""
    problem = "(define (problem p) (:domain d) (:objects o1 o2 o3 o4) (:init) (:goal (done)))"
    assert not grounded(domain, problem).actions
    monkeypatch.setattr(grounding, "MAX_BINDINGS", 300)
    with pytest.raises(PddlError, match="more than 300 bindings"):
        grounded(domain, problem)


@pytest.mark.parametrize(
    ("domain", "problem"),
    [
        (BLOCKS, blocks_problem(9, seed=1)),
        (WAREHOUSE, WAREHOUSE_PROBLEM),
        (HANOI, hanoi_problem(5)),
        (TOGGLE, "(define (problem p) (:domain toggle) (:objects a b c) (:init (on b)) (:goal (on a)))"),
    ],
    ids=["blocks", "warehouse", "hanoi", "toggle"],
)
def test_the_applicable_actions_are_those_whose_conditions_hold(domain: str, problem: str) -> None:
    world, chance = grounded(domain, problem), random.Random(0)
    state = world.init
    for _ in range(300):
        listed = world.applicable(state)
        assert listed == [
            number
            for number, action in enumerate(world.actions)
            if state & action.needs == action.needs and not state & action.forbids
        ]
        state = world.apply(state, chance.choice(listed))


def test_bits_are_listed_ascending() -> None:
    assert list(bits(0b1000101)) == [0, 2, 6]


@pytest.mark.parametrize(
    ("domain", "problem"), [(BLOCKS, BLOCKS_PROBLEM), (WAREHOUSE, WAREHOUSE_PROBLEM)], ids=["blocks", "warehouse"]
)
def test_a_random_walk_agrees_with_unified_planning(domain: str, problem: str) -> None:
    theirs = Simulation(domain, problem)
    world, chance = grounded(domain, problem), random.Random(0)
    state = world.init
    for _ in range(15):
        listed = names(world, state)
        assert sorted(listed) == theirs.applicable()
        assert {atom for atom in world.atoms if world.holds(state, atom)} == theirs.true_atoms(world)
        number = chance.choice(world.applicable(state))
        theirs.apply(world.actions[number].name, world.actions[number].arguments)
        state = world.apply(state, number)


class Simulation:
    """unified-planning's sequential simulator on the same texts."""

    def __init__(self, domain: str, problem: str) -> None:
        from unified_planning.io import PDDLReader
        from unified_planning.shortcuts import SequentialSimulator, get_environment

        get_environment().credits_stream = None
        self.problem: Any = PDDLReader().parse_problem_string(domain, problem)
        self.simulator = SequentialSimulator(self.problem)
        self.state = self.simulator.get_initial_state()

    def applicable(self) -> list[str]:
        listed = self.simulator.get_applicable_actions(self.state)
        return sorted(" ".join([action.name, *map(str, arguments)]) for action, arguments in listed)

    def apply(self, name: str, arguments: tuple[str, ...]) -> None:
        action = self.problem.action(name)
        self.state = self.simulator.apply(self.state, action, [self.problem.object(word) for word in arguments])

    def true_atoms(self, world: Grounded) -> set[tuple[str, ...]]:
        def value(atom: tuple[str, ...]) -> bool:
            fluent = self.problem.fluent(atom[0])(*[self.problem.object(word) for word in atom[1:]])
            return bool(self.state.get_value(fluent).is_true())

        return {atom for atom in world.atoms if value(atom)}
