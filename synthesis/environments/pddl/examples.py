"""Two small planning domains: a warehouse (types, constants, equality, negative preconditions) and plain blocks."""

from __future__ import annotations

from agentmill.schemas.records.task import EnvironmentSpec, Task

_WAREHOUSE = """
(define (domain warehouse)
  (:requirements :strips :typing :negative-preconditions :equality)
  (:types place crate robot)
  (:constants depot - place)
  (:predicates
    (at ?r - robot ?p - place)
    (lies ?c - crate ?p - place)
    (carries ?r - robot ?c - crate)
    (busy ?r - robot)
    (path ?a ?b - place))
  (:action go
    :parameters (?r - robot ?a ?b - place)
    :precondition (and (at ?r ?a) (path ?a ?b) (not (= ?a ?b)))
    :effect (and (not (at ?r ?a)) (at ?r ?b)))
  (:action lift
    :parameters (?r - robot ?c - crate ?p - place)
    :precondition (and (at ?r ?p) (lies ?c ?p) (not (busy ?r)))
    :effect (and (not (lies ?c ?p)) (carries ?r ?c) (busy ?r)))
  (:action drop
    :parameters (?r - robot ?c - crate ?p - place)
    :precondition (and (at ?r ?p) (carries ?r ?c))
    :effect (and (lies ?c ?p) (not (carries ?r ?c)) (not (busy ?r)))))
"""

_WAREHOUSE_TASK = """
(define (problem tidy)
  (:domain warehouse)
  (:objects dock aisle - place crate1 crate2 - crate rob - robot)
  (:init (at rob dock) (lies crate1 aisle) (lies crate2 dock)
    (path dock aisle) (path aisle dock) (path aisle depot) (path depot aisle))
  (:goal (and (lies crate1 depot) (not (busy rob)) (at rob aisle))))
"""

_BLOCKS = """
(define (domain blocks)
  (:requirements :strips)
  (:predicates (on ?x ?y) (on-table ?x) (clear ?x) (held ?x) (hand-empty))
  (:action pick-up
    :parameters (?x)
    :precondition (and (clear ?x) (on-table ?x) (hand-empty))
    :effect (and (held ?x) (not (on-table ?x)) (not (clear ?x)) (not (hand-empty))))
  (:action put-down
    :parameters (?x)
    :precondition (held ?x)
    :effect (and (not (held ?x)) (clear ?x) (hand-empty) (on-table ?x)))
  (:action stack
    :parameters (?x ?y)
    :precondition (and (held ?x) (clear ?y))
    :effect (and (not (held ?x)) (not (clear ?y)) (clear ?x) (hand-empty) (on ?x ?y)))
  (:action unstack
    :parameters (?x ?y)
    :precondition (and (on ?x ?y) (clear ?x) (hand-empty))
    :effect (and (held ?x) (clear ?y) (not (clear ?x)) (not (hand-empty)) (not (on ?x ?y)))))
"""

_BLOCKS_TASK = """
(define (problem three)
  (:domain blocks)
  (:objects red green blue)
  (:init (on red green) (on-table green) (on-table blue) (clear red) (clear blue) (hand-empty))
  (:goal (and (on green blue) (on blue red))))
"""

EXAMPLES: list[tuple[EnvironmentSpec, Task]] = [
    (
        EnvironmentSpec(
            environment_id="pddl-warehouse",
            family="pddl",
            name="warehouse",
            source=_WAREHOUSE,
            parameters={
                "predicate_text": {
                    "at": "{0} is in the {1}",
                    "lies": "{0} is in the {1}",
                    "carries": "{0} carries {1}",
                    "busy": "{0} is busy",
                    "path": "a path leads from the {0} to the {1}",
                },
                "action_text": {
                    "go": "send {0} from {1} to {2}",
                    "lift": "let {0} lift {1} in {2}",
                    "drop": "let {0} drop {1} in {2}",
                },
            },
        ),
        Task(
            task_id="pddl-warehouse-tidy",
            environment_id="pddl-warehouse",
            instruction="Put crate1 in the depot; in the end rob is idle in the aisle.",
            initial_state={"problem": _WAREHOUSE_TASK},
        ),
    ),
    (
        EnvironmentSpec(
            environment_id="pddl-blocks",
            family="pddl",
            name="blocks",
            source=_BLOCKS,
            parameters={
                "predicate_text": {
                    "on": "{0} is on {1}",
                    "on-table": "{0} is on the table",
                    "clear": "{0} is clear",
                    "held": "you hold {0}",
                    "hand-empty": "your hand is empty",
                },
                "action_text": {
                    "pick-up": "pick up {0}",
                    "put-down": "put down {0}",
                    "stack": "stack {0} on {1}",
                    "unstack": "unstack {0} from {1}",
                },
                "rules": "You move blocks with one hand. Commands: pick up X (from the table), put down X, "
                "stack X on Y, unstack X from Y. Only a clear block can be taken or built on.",
                "hidden_predicates": ["clear", "hand-empty"],
            },
        ),
        Task(
            task_id="pddl-blocks-three",
            environment_id="pddl-blocks",
            instruction="Build a tower: green on blue, and blue on red.",
            initial_state={"problem": _BLOCKS_TASK},
        ),
    ),
]
