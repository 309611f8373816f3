"""``Domain`` and ``Problem`` to PDDL text, in one layout; reading it back gives the same records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentmill.synthesis.environments.pddl.domain import (
    EQUALS,
    OBJECT,
    Action,
    Domain,
    Literal,
    Predicate,
    Problem,
    Typed,
)


def domain_text(domain: Domain) -> str:
    """The whole domain."""
    return "\n".join([*_head(domain), *(_action(action) for action in domain.actions), ")"]) + "\n"


def domain_head(domain: Domain, further: Sequence[Predicate] = ()) -> str:
    """The domain without its actions, with ``further`` predicates."""
    return "\n".join([*_head(domain, further), ")"]) + "\n"


def problem_text(problem: Problem) -> str:
    """The whole problem."""
    objects = f"  (:objects {_typed(problem.objects)})"
    init = "".join(f"\n    ({' '.join(atom)})" for atom in problem.init)
    lines = [f"(define (problem {problem.name})", f"  (:domain {problem.domain})"]
    return "\n".join([*lines, objects, f"  (:init{init})", f"  (:goal {_conjunction(problem.goal)}))"]) + "\n"


def _head(domain: Domain, further: Sequence[Predicate] = ()) -> list[str]:
    lines = [f"(define (domain {domain.name})", f"  (:requirements {' '.join(_requirements(domain))})"]
    if domain.types:
        lines.append(f"  (:types {_typed(Typed(name, parent) for name, parent in domain.types)})")
    if domain.constants:
        lines.append(f"  (:constants {_typed(domain.constants)})")
    every = [*domain.predicates, *further]
    predicates = "".join(f"\n    ({' '.join([p.name, _typed(p.parameters)]).strip()})" for p in every)
    return [*lines, f"  (:predicates{predicates})"]


def _requirements(domain: Domain) -> list[str]:
    literals = [literal for action in domain.actions for literal in action.precondition]
    required = [":strips", ":typing"] if domain.types else [":strips"]
    if any(not literal.positive and literal.predicate != EQUALS for literal in literals):
        required.append(":negative-preconditions")
    return [*required, ":equality"] if any(literal.predicate == EQUALS for literal in literals) else required


def _action(action: Action) -> str:
    lines = [f"  (:action {action.name}", f"    :parameters ({_typed(action.parameters)})"]
    if action.precondition:
        lines.append(f"    :precondition {_conjunction(action.precondition)}")
    return "\n".join([*lines, f"    :effect {_conjunction(action.effect)})"])


def _conjunction(literals: Iterable[Literal]) -> str:
    return f"(and {' '.join(_literal(literal) for literal in literals)})"


def _literal(literal: Literal) -> str:
    atom = f"({' '.join([literal.predicate, *literal.arguments])})"
    return atom if literal.positive else f"(not {atom})"


def _typed(items: Iterable[Typed]) -> str:
    """Untyped names come last in a typed list, so ``object`` is written where another name has a type."""
    items = tuple(items)
    typed = any(item.type != OBJECT for item in items)
    return " ".join(f"{item.name} - {item.type}" if typed else item.name for item in items)
