"""PDDL text to ``Domain`` and ``Problem``, parsed by unified-planning's ``PDDLReader`` and cached by text.

unified-planning takes a second to import, so it is imported when the first text is parsed. A problem is parsed against
the head of its domain (types, constants, predicates), which is four times quicker than against the whole.
"""

from __future__ import annotations

import itertools
import re
import threading
import warnings
from functools import lru_cache
from typing import TYPE_CHECKING

from agentmill.schemas.extras import missing_modules_explained
from agentmill.synthesis.environments.pddl.domain import (
    EQUALS,
    OBJECT,
    Action,
    Domain,
    Literal,
    PddlError,
    Predicate,
    Problem,
    Typed,
)
from agentmill.synthesis.environments.pddl.lint import lint_domain, lint_problem
from agentmill.synthesis.environments.pddl.writer import domain_head

if TYPE_CHECKING:
    from unified_planning.io import PDDLReader
    from unified_planning.model import FNode, InstantaneousAction
    from unified_planning.model import Problem as Parsed

_PARSES_PER_READER = 500
"""A reader is costly to make and its environment remembers every expression, so one serves this many texts."""

_OF_ANYTHING = Predicate("agentmill--any", (Typed("?x", OBJECT),))
"""A predicate that no text can name."""

_parses = itertools.count()
_lock = threading.Lock()


@lru_cache(maxsize=1024)
def read_domain(text: str) -> Domain:
    """The domain of a PDDL text. Raises ``PddlError``."""
    lint_domain(text)
    parsed = _parse(text)
    fluents = {fluent.name: fluent for fluent in parsed.fluents}
    return Domain(
        name=parsed.name,
        types=tuple((t.name, t.father.name if t.father else OBJECT) for t in parsed.user_types if t.name != OBJECT),
        constants=tuple(Typed(item.name, item.type.name) for item in parsed.all_objects),
        predicates=tuple(
            Predicate(name, tuple(Typed(f"?{p.name}", p.type.name) for p in fluent.signature))
            for name, fluent in fluents.items()
        ),
        actions=tuple(_action(action) for action in parsed.actions),
    )


@lru_cache(maxsize=4096)
def read_problem(text: str, domain: Domain) -> Problem:
    """The problem of a PDDL text, an instance of ``domain``. Raises ``PddlError``."""
    lint_problem(text, domain)
    # The library knows the type of all objects only where a predicate has a parameter of it.
    parsed = _parse(domain_head(domain, (_OF_ANYTHING,) if domain.types else ()), text)
    constants = {constant.name for constant in domain.constants}
    return Problem(
        name=parsed.name,
        domain=domain.name,
        objects=tuple(Typed(x.name, x.type.name) for x in parsed.all_objects if x.name not in constants),
        init=tuple(
            (atom.fluent().name, *(argument.object().name for argument in atom.args))
            for atom, value in parsed.explicit_initial_values.items()
            if value.is_true()
        ),
        goal=tuple(literal for goal in parsed.goals for literal in _literals(goal)),
    )


@lru_cache(maxsize=1)
def _reader(generation: int) -> PDDLReader:  # noqa: ARG001 - the key that renews the reader
    with missing_modules_explained():
        from pyparsing import ParserElement
        from unified_planning.environment import Environment
        from unified_planning.io import PDDLReader
    # The library remembers every match, for its reader of another language. PDDL is read three times faster without.
    ParserElement.disable_memoization()
    environment = Environment()
    environment.credits_stream = None
    # PDDL keeps the names of types, predicates and objects apart; the library refuses a name that is used twice.
    environment.error_used_name = False
    return PDDLReader(environment)


def _parse(domain: str, problem: str | None = None) -> Parsed:
    """Both texts by the library. Whatever it raises, bare KeyErrors and assertions too, becomes a ``PddlError``."""
    # Neither the library's parser nor Python's list of warnings is safe for threads.
    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        reader = _reader(next(_parses) // _PARSES_PER_READER)
        try:
            return reader.parse_problem_string(domain, problem)
        except Exception as error:
            raise _explain(error) from error


def _explain(error: Exception) -> PddlError:
    message = " ".join(str(error).split())
    place = re.search(r"line:? ?(\d+),? \(?col(?:umn)?:? ?(\d+)", message)
    where = f"line {place[1]}, column {place[2]}" if place else ""
    if isinstance(error, KeyError):
        return PddlError(f"unknown type {message}", where, "a type that the domain declares")
    ill_typed = re.search(r"The expression '([^']*)\\?' is not well-formed", message)
    if ill_typed:
        return PddlError(f"wrong type of argument in {ill_typed[1]}", where, "arguments of the predicate's types")
    syntax = re.search(r"Expected (.*?), found (.*?) \(at", message)
    if syntax:
        return PddlError(f"found {syntax[2]}", where, syntax[1])
    return PddlError(f"{type(error).__name__}: {message}", where)


def _action(action: InstantaneousAction) -> Action:
    parameters = tuple(Typed(f"?{p.name}", p.type.name) for p in action.parameters)
    precondition = [literal for part in action.preconditions for literal in _literals(part)]
    effect = [_literal(change.fluent, change.value.is_true()) for change in action.effects]
    return Action(action.name, parameters, tuple(dict.fromkeys(precondition)), tuple(dict.fromkeys(effect)))


def _literals(expression: FNode) -> list[Literal]:
    if expression.is_and():
        return [literal for part in expression.args for literal in _literals(part)]
    if expression.is_true():
        return []
    if expression.is_not():
        return [_literal(expression.arg(0), False)]
    return [_literal(expression, True)]


def _literal(expression: FNode, positive: bool) -> Literal:
    if expression.is_equals():
        return Literal(EQUALS, tuple(_term(argument) for argument in expression.args), positive)
    if not expression.is_fluent_exp():
        raise PddlError(f"{expression} is not supported", "", "a conjunction of literals")
    return Literal(expression.fluent().name, tuple(_term(argument) for argument in expression.args), positive)


def _term(expression: FNode) -> str:
    return f"?{expression.parameter().name}" if expression.is_parameter_exp() else str(expression.object().name)
