"""What a planning library accepts silently or rejects without saying where: checked first, with words for repair.

Supported are STRIPS, typing, negative preconditions and equality; every other feature is an error that names it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import msgspec

from agentmill.schemas.errors import near_match
from agentmill.synthesis.environments.pddl.domain import EQUALS, OBJECT, Domain, PddlError
from agentmill.synthesis.environments.pddl.outline import Node, outline

REQUIREMENTS = (":strips", ":typing", ":negative-preconditions", ":equality")
_DOMAIN_SECTIONS = (":requirements", ":types", ":constants", ":predicates", ":action")
_PROBLEM_SECTIONS = (":domain", ":requirements", ":objects", ":init", ":goal")
_ACTION_KEYS = (":parameters", ":precondition", ":effect")
_UNSUPPORTED = {
    "or": "disjunction (or)",
    "imply": "implication (imply)",
    "forall": "universal quantification (forall)",
    "exists": "existential quantification (exists)",
    "when": "conditional effects (when)",
    "increase": "numeric effects (increase)",
    "decrease": "numeric effects (decrease)",
    "assign": "numeric effects (assign)",
    ">": "numeric conditions (>)",
    "<": "numeric conditions (<)",
    ">=": "numeric conditions (>=)",
    "<=": "numeric conditions (<=)",
}


class Scope(msgspec.Struct):
    """The names a literal may use. ``arities`` of predicates; ``signatures`` are how they are declared."""

    requirements: set[str]
    types: set[str]
    objects: set[str]
    signatures: dict[str, str]
    arities: dict[str, int]


def lint_domain(text: str) -> None:
    """Raise ``PddlError`` for the first mistake found in a domain text; mistakes of type are left to the reader."""
    root = _define(text, "domain")
    sections = root.tail[1:]
    _check_order(sections, _DOMAIN_SECTIONS, repeatable=":action")
    named = {section.head: section for section in sections}
    scope = Scope({":strips"}, {OBJECT}, set(), {}, {})
    if ":requirements" in named:
        scope.requirements |= {_requirement(node) for node in named[":requirements"].tail}
    if ":types" in named:
        _demand(scope, ":typing", named[":types"])
        pairs = _typed(named[":types"].tail, None, "type")
        scope.types |= {name for name, _ in pairs} | {kind for _, kind in pairs}
        _check_types(dict(pairs), named[":types"])
    if ":constants" in named:
        scope.objects |= {name for name, _ in _typed(named[":constants"].tail, scope, "constant")}
    if ":predicates" not in named or not named[":predicates"].tail:
        raise PddlError(
            "the domain declares no predicates", root.where(), "a section (:predicates (name ?x - type) ...)"
        )
    for predicate in named[":predicates"].tail:
        _declare_predicate(predicate, scope)
    if ":constants" in named:
        _check_names(named[":constants"], scope, "constant")
    actions = [section for section in sections if section.head == ":action"]
    if not actions:
        raise PddlError("the domain has no action", root.where(), "(:action name :parameters (...) :effect (...))")
    _distinct([node.children[1] for node in actions if len(node.children) > 1], "action")
    for action in actions:
        _check_action(action, scope)


def lint_problem(text: str, domain: Domain) -> None:
    """The same for a problem text of ``domain``."""
    root = _define(text, "problem")
    sections = root.tail[1:]
    _check_order(sections, _PROBLEM_SECTIONS)
    named = {section.head: section for section in sections}
    for required in (":domain", ":init", ":goal"):
        if required not in named:
            raise PddlError(f"the problem lacks the section ({required} ...)", root.where(), f"({required} ...)")
    given = named[":domain"].tail[0].text() if named[":domain"].tail else ""
    if given != domain.name:
        raise PddlError(f"the problem is of domain {given!r}", named[":domain"].where(), f"(:domain {domain.name})")
    signatures = {p.name: _signature(p.name, [(x.name, x.type) for x in p.parameters]) for p in domain.predicates}
    arities = {predicate.name: len(predicate.parameters) for predicate in domain.predicates}
    constants = {constant.name for constant in domain.constants}
    types = {OBJECT, *(name for name, _ in domain.types)}
    scope = Scope(set(REQUIREMENTS), types, constants, signatures, arities)
    if ":objects" in named:
        objects = _typed(named[":objects"].tail, scope, "object")
        again = [node for node in named[":objects"].tail if node.word in constants]
        if again:
            raise PddlError(f"{again[0].word!r} is a constant of the domain already", again[0].where(), "another name")
        scope.objects |= {name for name, _ in objects}
        _check_names(named[":objects"], scope, "object")
    for fact in named[":init"].tail:
        if fact.head == "not":
            raise PddlError("a negated fact in :init", fact.where(), "only what is true; all else is false")
        _check_literal(fact, scope, set(), "an atom over objects", negative_ok=False)
    goal = named[":goal"].tail
    if len(goal) != 1:
        raise PddlError("the goal is not one expression", named[":goal"].where(), "(:goal (and (p a) (q b)))")
    for literal in _conjuncts(goal[0]):
        _check_literal(literal, scope, set(), "a literal over objects")


def _define(text: str, kind: str) -> Node:
    root = outline(text)
    children = root.children
    if root.head != "define" or len(children) < 2 or children[1].head != kind or len(children[1].children) != 2:
        raise PddlError(f"the text is not a {kind}", root.where(), f"(define ({kind} NAME) ...)")
    return root


def _check_order(sections: list[Node], known: tuple[str, ...], repeatable: str = "") -> None:
    last = -1
    for section in sections:
        if section.head not in known:
            what = f"unknown or unsupported section {section.head or section.text()!r}"
            raise PddlError(what, section.where(), f"only {', '.join(known)}.{near_match(section.head, known)}")
        position = known.index(section.head)
        if position < last or (position == last and section.head != repeatable):
            what = f"section {section.head} comes too late or twice"
            raise PddlError(what, section.where(), f"{' '.join(known)} in this order")
        last = position


def _requirement(node: Node) -> str:
    if node.word not in REQUIREMENTS:
        raise PddlError(f"requirement {node.text()} is not supported", node.where(), f"only {' '.join(REQUIREMENTS)}")
    return node.word


def _demand(scope: Scope, requirement: str, node: Node) -> None:
    if requirement not in scope.requirements:
        raise PddlError(
            f"this needs the requirement {requirement}", node.where(), f"(:requirements :strips {requirement})"
        )


def _distinct(nodes: Iterable[Node], kind: str) -> None:
    seen: dict[str, Node] = {}
    for node in nodes:
        first = seen.setdefault(node.text(), node)
        if first is not node:
            raise PddlError(
                f"{kind} {node.text()!r} is declared twice", node.where(), f"one declaration (line {first.line})"
            )


def _typed(nodes: list[Node], scope: Scope | None, kind: str) -> list[tuple[str, str]]:
    """A typed list as (name, type); with a scope, types must be known and ``:typing`` required."""
    names: list[Node] = []
    pairs: list[tuple[str, str]] = []
    pending = 0
    position = 0
    while position < len(nodes):
        node = nodes[position]
        if node.word is None:
            raise PddlError(f"a bracket in a list of {kind}s", node.where(), "name1 name2 - type (no 'either')")
        if node.word == "-":
            if pending == len(names) or position + 1 == len(nodes) or nodes[position + 1].word is None:
                raise PddlError("'-' without names before or a type after it", node.where(), "name1 name2 - type")
            type_node = nodes[position + 1]
            _check_type(type_node, scope)
            pairs += [(name.text(), type_node.text()) for name in names[pending:]]
            pending = len(names)
            position += 1
        else:
            if (kind == "parameter") != node.word.startswith("?"):
                raise PddlError(
                    f"{node.word!r} is no name of a {kind}",
                    node.where(),
                    "?name" if kind == "parameter" else "a name without '?'",
                )
            names.append(node)
        position += 1
    _distinct(names, kind)
    return pairs + [(name.text(), OBJECT) for name in names[pending:]]


def _check_type(node: Node, scope: Scope | None) -> None:
    if scope is None:
        return
    _demand(scope, ":typing", node)
    if node.word not in scope.types:
        known = sorted(scope.types)
        raise PddlError(
            f"unknown type {node.word!r}", node.where(), f"one of {', '.join(known)}.{near_match(node.text(), known)}"
        )


def _check_types(parents: Mapping[str, str], section: Node) -> None:
    for name in parents:
        line = [name]
        while (parent := parents.get(line[-1], OBJECT)) != OBJECT:
            if parent in line:
                raise PddlError(
                    f"the type {parent!r} is a kind of itself ({' - '.join([*line, parent])})",
                    section.where(),
                    "types that go up to object",
                )
            line.append(parent)


def _check_names(section: Node, scope: Scope, kind: str) -> None:
    # PDDL keeps these names apart, and the library takes such an object for the predicate.
    for before, node in itertools.pairwise(section.children):
        # What follows a hyphen is a type.
        if node.word in scope.arities and before.word != "-":
            raise PddlError(f"the {kind} {node.word!r} has the name of a predicate", node.where(), "another name")


def _signature(name: str, parameters: list[tuple[str, str]]) -> str:
    typed = [f"{parameter} - {kind}" if kind != OBJECT else parameter for parameter, kind in parameters]
    return f"({' '.join([name, *typed])})"


def _declare_predicate(node: Node, scope: Scope) -> None:
    if not node.head or node.head in _UNSUPPORTED or node.head in {"and", "not", EQUALS}:
        raise PddlError("this declares no predicate", node.where(), "(name ?x - type)")
    if node.head in scope.arities:
        raise PddlError(f"predicate {node.head!r} is declared twice", node.where(), "one declaration")
    parameters = _typed(node.tail, scope, "parameter")
    scope.arities[node.head] = len(parameters)
    scope.signatures[node.head] = _signature(node.head, parameters)


def _check_action(node: Node, scope: Scope) -> None:
    if len(node.children) < 2 or node.children[1].word is None:
        raise PddlError("an action without a name", node.where(), "(:action name :parameters (...) ...)")
    keys = node.children[2::2]
    parts = dict(zip([key.text() for key in keys], node.children[3::2], strict=False))
    order = [_ACTION_KEYS.index(key) if key in _ACTION_KEYS else -1 for key in parts]
    if order != sorted(set(order)) or -1 in order or len(keys) != len(node.children[3::2]) or not {0, 2} <= set(order):
        raise PddlError(
            f"action {node.children[1].word!r} has wrong parts",
            node.where(),
            ":parameters (...) :precondition (...) :effect (...), once each and in this order",
        )
    names = {name for name, _ in _typed(parts[":parameters"].children, scope, "parameter")}
    for literal in _conjuncts(parts[":precondition"]) if ":precondition" in parts else []:
        _check_literal(literal, scope, names, "a literal", equality_ok=True)
        if literal.head == "not" and literal.tail[0].head != EQUALS:
            _demand(scope, ":negative-preconditions", literal)
    effects = _conjuncts(parts[":effect"])
    if not effects:
        raise PddlError(
            f"action {node.children[1].word!r} has no effect", parts[":effect"].where(), "at least one literal"
        )
    for literal in effects:
        _check_literal(literal, scope, names, "a literal")


def _conjuncts(node: Node) -> list[Node]:
    if node.head == "and":
        return [literal for child in node.tail for literal in _conjuncts(child)]
    return [node] if node.children or node.word is not None else []


def _check_literal(
    node: Node, scope: Scope, parameters: set[str], kind: str, *, equality_ok: bool = False, negative_ok: bool = True
) -> None:
    if node.head == "not" and negative_ok:
        if len(node.tail) != 1 or node.tail[0].head == "not":
            raise PddlError("'not' takes one atom", node.where(), "(not (predicate term ...))")
        node = node.tail[0]
    if node.head in _UNSUPPORTED:
        raise PddlError(f"{_UNSUPPORTED[node.head]} is not supported", node.where(), "a conjunction of literals")
    if node.head == EQUALS and equality_ok:
        _demand(scope, ":equality", node)
        if len(node.tail) != 2:
            raise PddlError("'=' takes two terms", node.where(), "(= ?x ?y)")
    elif node.head not in scope.arities:
        hint = near_match(node.head, scope.arities)
        known = ", ".join(scope.signatures.values())
        raise PddlError(f"unknown predicate {node.head or node.text()!r}", node.where(), f"{kind} of {known}.{hint}")
    elif len(node.tail) != scope.arities[node.head]:
        raise PddlError(f"{node.head!r} has {len(node.tail)} argument(s)", node.where(), scope.signatures[node.head])
    for term in node.tail:
        known_terms = parameters if term.text().startswith("?") else scope.objects
        if term.word is None or term.word not in known_terms:
            names = sorted(parameters | scope.objects)
            raise PddlError(
                f"undeclared {'parameter' if term.text().startswith('?') else 'object'} {term.text()!r}",
                f"{term.where()} in {node.text()}",
                f"one of {', '.join(names) or 'none'}.{near_match(term.text(), names)}",
            )
