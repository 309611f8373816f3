"""How a planning environment is put into words, and how commands are read: templates of an environment's parameters.

Parameters of a spec of family ``pddl``, all by lower-case name:

* ``predicate_text``: a sentence for every predicate, ``"{0} is at {1}"``, without a full stop;
* ``denial_text``: the sentence where a predicate does not hold; by default ``predicate_text`` with "not";
* ``action_text``: a command for every action with a place for each parameter, ``"move {0} to {1}"``;
* ``rules``: what the agent reads of the environment and of every command; written from the domain where it is absent;
* ``hidden_predicates``: names of predicates that observations leave out (refusals still name them).

Other keys are left to whoever made the spec.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentmill.schemas.errors import near_match
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Tool
from agentmill.synthesis.environments.environment import tidy
from agentmill.synthesis.environments.pddl.domain import EQUALS, OBJECT, Action, Atom, Domain, Literal, Problem
from agentmill.synthesis.environments.pddl.template import Template, negated


class Parameters(msgspec.Struct, frozen=True):
    """The keys that this family reads."""

    predicate_text: dict[str, str]
    action_text: dict[str, str]
    denial_text: dict[str, str] = {}
    rules: str | None = None
    hidden_predicates: tuple[str, ...] = ()


class Call(msgspec.Struct, frozen=True):
    """An action of the domain with one word per parameter, which need not be an object."""

    action: str
    arguments: tuple[str, ...]


class Misunderstood(Exception):
    """Text that is no command; the message tells the agent what is."""


class Wording:
    """Sentences and commands of one domain. Raises ``ValueError`` for parameters that do not fit it."""

    def __init__(self, domain: Domain, parameters: JsonObject) -> None:
        try:
            given = msgspec.convert(parameters, Parameters)
        except msgspec.ValidationError as error:
            raise ValueError(f"parameters of the environment: {error}") from error
        arities = {predicate.name: len(predicate.parameters) for predicate in domain.predicates}
        self._actions = {action.name: action for action in domain.actions}
        self._sentences = _templates("predicate_text", given.predicate_text, arities)
        self._denials = _templates("denial_text", given.denial_text, arities, partial=True)
        action_arities = {name: len(action.parameters) for name, action in self._actions.items()}
        # Commands are read without what does not count, such as a full stop.
        commands = {name: tidy(text) for name, text in given.action_text.items()}
        self._commands = _templates("action_text", commands, action_arities)
        for name, template in self._commands.items():
            if len(template.places) < action_arities[name]:
                raise ValueError(f"action_text of {name!r} lacks a place for a parameter: {template.text!r}")
        unknown = [name for name in given.hidden_predicates if name not in arities]
        if unknown:
            raise ValueError(f"hidden_predicates names {unknown[0]!r}, no predicate.{near_match(unknown[0], arities)}")
        self.hidden = frozenset(given.hidden_predicates)
        self.rules = given.rules if given.rules is not None else self._default_rules()

    def sentence(self, atom: Atom, positive: bool = True) -> str:
        """An atom or its denial."""
        if not positive and atom[0] in self._denials:
            return self._denials[atom[0]].fill(atom[1:])
        sentence = self._sentences[atom[0]].fill(atom[1:])
        return sentence if positive else negated(sentence)

    def goal(self, problem: Problem) -> str:
        """The goal of a problem, as an instruction."""
        sentences = [self.sentence((x.predicate, *x.arguments), positive=x.positive) for x in problem.goal]
        return f"Goal: {' and '.join(sentences)}."

    def paragraph(self, atoms: Sequence[Atom], denied: Sequence[Atom] = ()) -> str:
        """The atoms, then the denied ones, in one sentence without those of hidden predicates; may be empty."""
        sentences = [self.sentence(atom) for atom in atoms if atom[0] not in self.hidden]
        sentences += [self.sentence(atom, positive=False) for atom in denied if atom[0] not in self.hidden]
        text = "; ".join(sentences)
        return f"{text[0].upper()}{text[1:]}." if text else ""

    def command(self, call: Call) -> str:
        """A call as the command that ``read`` understands. Raises ``ValueError`` for an action there is not."""
        if call.action not in self._commands:
            raise ValueError(f"no action {call.action!r}")
        return self._commands[call.action].fill(call.arguments)

    def read(self, text: str) -> list[Call]:
        """The calls that a command may mean, at least one. Raises ``Misunderstood``."""
        command = tidy(text)
        calls = []
        for name, template in self._commands.items():
            words = template.match(command)
            if words is not None:
                calls.append(Call(name, words))
        if not calls:
            shown = command if len(command) <= 60 else f"{command[:60]}..."
            raise Misunderstood(f"{shown!r} is no command. Commands: {'; '.join(self.forms())}.")
        return calls

    def call(self, function: str, arguments: JsonObject) -> Call:
        """A tool call as a call. Raises ``Misunderstood``."""
        action = self._actions.get(function.lower())
        if action is None:
            raise Misunderstood(f"There is no function {function!r}. Functions: {', '.join(self._actions)}.")
        names = [_bare(parameter.name) for parameter in action.parameters]
        if set(arguments) != set(names):
            given = ", ".join(arguments) or "none"
            raise Misunderstood(f"{action.name} takes the arguments {', '.join(names) or 'none'}; given: {given}.")
        # Models also write numbers as arguments, and capital letters, which PDDL does not tell apart.
        return Call(action.name, tuple(str(arguments[name]).lower() for name in names))

    def arguments(self, call: Call) -> dict[str, str]:
        """The arguments of a call by the bare names of the action's parameters."""
        names = [_bare(parameter.name) for parameter in self._actions[call.action].parameters]
        return dict(zip(names, call.arguments, strict=True))

    def forms(self) -> list[str]:
        """Every command with its parameters' types in angle brackets."""
        return [self._commands[name].fill(_kinds(action)) for name, action in self._actions.items()]

    def tools(self) -> list[Tool]:
        """Every action as a function whose arguments are names of objects."""
        return [
            Tool(name=name, description=form, parameters=_schema(self._actions[name]))
            for name, form in zip(self._actions, self.forms(), strict=True)
        ]

    def refusal(self, call: Call, unmet: Sequence[str]) -> str:
        """Why an action cannot be done now."""
        return f"You cannot {self.command(call)}: {' and '.join(unmet)}."

    def reason(self, literal: Literal) -> str:
        """What stands against a precondition over objects that does not hold."""
        if literal.predicate == EQUALS:
            first, second = literal.arguments
            return f"{first} is not {second}" if literal.positive else f"both are {first}"
        return self.sentence((literal.predicate, *literal.arguments), positive=not literal.positive)

    def _default_rules(self) -> str:
        return "\n".join(["Commands:", *(self._rule(action) for action in self._actions.values())])

    def _rule(self, action: Action) -> str:
        """One line: the command, what it needs, what it does."""
        kinds = dict(zip([parameter.name for parameter in action.parameters], _kinds(action), strict=True))

        def sentences(literals: Sequence[Literal]) -> str:
            ground = [
                Literal(x.predicate, tuple(kinds.get(term, term) for term in x.arguments), x.positive) for x in literals
            ]
            return "; ".join(
                self.reason(Literal(literal.predicate, literal.arguments, not literal.positive)) for literal in ground
            )

        needs = [literal for literal in action.precondition if literal.predicate != EQUALS]
        line = f"- {self._commands[action.name].fill(tuple(kinds.values()))}"
        return (
            f"{line} (if {sentences(needs)}): {sentences(action.effect)}"
            if needs
            else f"{line}: {sentences(action.effect)}"
        )


def _templates(
    key: str, texts: dict[str, str], arities: dict[str, int], *, partial: bool = False
) -> dict[str, Template]:
    lower = {name.lower(): text for name, text in texts.items()}
    for name in arities:
        if name not in lower and not partial:
            raise ValueError(f"{key} has no text for {name!r}")
    for name in lower:
        if name not in arities:
            raise ValueError(f"{key} has a text for {name!r}, which the domain has not.{near_match(name, arities)}")
    try:
        return {name: Template(lower[name], arity) for name, arity in arities.items() if name in lower}
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def _bare(parameter: str) -> str:
    return parameter.removeprefix("?")


def _kinds(action: Action) -> tuple[str, ...]:
    """``<type>`` per parameter, ``<name>`` where it has none; numbered where a type comes twice."""
    words = [p.type if p.type != OBJECT else _bare(p.name) for p in action.parameters]
    counts: dict[str, int] = {}
    numbered = []
    for word in words:
        counts[word] = counts.get(word, 0) + 1
        numbered.append(f"<{word}{counts[word]}>" if words.count(word) > 1 else f"<{word}>")
    return tuple(numbered)


def _schema(action: Action) -> JsonObject:
    names = [_bare(parameter.name) for parameter in action.parameters]
    types = [parameter.type for parameter in action.parameters]
    properties = {
        name: {"type": "string", "description": "name of a thing" if kind == OBJECT else f"name of a {kind}"}
        for name, kind in zip(names, types, strict=True)
    }
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}
