"""A domain in the making, in a short notation that features read and extend.

The blocks of which environments are built are written so in YAML, one file in ``data`` for each group of parts.

Literals are written ``"here from, not at item place"``: a predicate, then names of the action's parameters. Parameters
are written ``"item from:place"``: a name and its role, or a role that is its own name. Texts of actions name their
parameters (``"take {item}"``), texts of predicates count their arguments (``"the {0} is clean"``). In every text
``<role>`` stands for the theme's word of a role, ``<roles>`` for its plural and ``<in>`` for its preposition. In every
name, notation and text of a block, words in capitals are placeholders.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

import msgspec

from agentmill.schemas.records.record import JsonObject
from agentmill.synthesis.environments.pddl.domain import OBJECT, Action, Domain, Literal, Predicate, Typed
from agentmill.synthesis.generators.data_files import convert, fill, fill_all, read_table
from agentmill.synthesis.generators.pddl_procedural.themes import PACKAGE, Theme, plural

BLOCK_FILES = ("journeys", "crafting", "arranging", "exchanges", "features")


class PredicateBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``goal`` is the weight as a goal."""

    text: str
    goal: int | float = 0


class ActionBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An action in the short notation; ``tags`` say what features may hook on."""

    text: str
    parameters: str = ""
    needs: str = ""
    effects: str = ""
    tags: str = ""


class Extension(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is added to an action; ``parameters`` come behind the others, ``text`` at the end."""

    needs: str = ""
    effects: str = ""
    parameters: str = ""
    text: str = ""


class Block(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of an environment. ``kinds`` and ``parents`` are by role, ``predicates`` by declaration, ``actions`` by
    name.

    ``start`` are rules for initial facts, ``rules`` sentences for a newcomer. ``extend`` adds to actions by name,
    ``hook`` to those that whoever lays the block names.
    """

    kinds: dict[str, tuple[int, int]] = {}
    parents: dict[str, str] = {}
    predicates: dict[str, PredicateBlock] = {}
    start: tuple[JsonObject, ...] = ()
    actions: dict[str, ActionBlock] = {}
    extend: dict[str, Extension] = {}
    hook: Extension | None = None
    goals: dict[str, float] = {}
    rules: tuple[str, ...] = ()


@cache
def blocks() -> dict[str, Block]:
    """All blocks, as ``"part.block"``. Raises ``UserError`` naming file and key."""
    found: dict[str, Block] = {}
    for file in BLOCK_FILES:
        origin = f"{PACKAGE}/data/{file}.yaml"
        table = convert(read_table(PACKAGE, f"{file}.yaml"), dict[str, dict[str, JsonObject]], origin)
        paths = {f"{part}.{name}": block for part, named in table.items() for name, block in named.items()}
        found |= {path: convert(block, Block, f"{origin}, {path}") for path, block in paths.items()}
    return found


@dataclass
class ActionDraft:
    """An action schema under construction. ``parameters`` are (name, role); ``tags`` say what features may hook on."""

    name: str
    parameters: list[tuple[str, str]]
    needs: list[Literal]
    effects: list[Literal]
    text: str
    tags: frozenset[str]

    def has(self, *names: str) -> bool:
        """Whether every one of ``names`` is a parameter."""
        return set(names) <= {name for name, _ in self.parameters}


@dataclass
class Draft:
    """An environment under construction. ``mover`` is ``""`` for the agent itself, else the role of what moves.

    ``kinds`` maps a role to the least and most objects of it, ``parents`` to its supertype, ``start`` are the rules by
    which initial states are sampled (``agentmill.synthesis.generators.pddl_tasks.start``), ``goals`` weigh goal
    predicates.
    """

    theme: Theme
    mover: str = ""
    kinds: dict[str, tuple[int, int]] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    predicates: dict[str, tuple[str, ...]] = field(default_factory=dict)
    predicate_text: dict[str, str] = field(default_factory=dict)
    actions: dict[str, ActionDraft] = field(default_factory=dict)
    start: list[JsonObject] = field(default_factory=list)
    goals: dict[str, float] = field(default_factory=dict)
    rules: list[str] = field(default_factory=list)

    def kind(self, role: str, low: int, high: int, parent: str = "") -> None:
        """Add a type of object, ``low`` to ``high`` of them. An abstract type has none."""
        self.kinds[role] = (low, high)
        if parent:
            self.parents[role] = parent

    def predicate(self, declaration: str, text: str, goal: float = 0.0) -> None:
        """Add a predicate, written ``"at item place"``. Raises ``ValueError`` where the name is taken."""
        name, *roles = declaration.split()
        if name in self.predicates:
            raise ValueError(f"two predicates {name!r}")
        self.predicates[name] = tuple(roles)
        self.predicate_text[name] = self.words(text)
        if goal:
            self.goals[name] = goal

    def action(self, name: str, parameters: str, needs: str, effects: str, text: str, tags: str = "") -> ActionDraft:
        """Add an action. Raises ``ValueError`` where the name is taken."""
        if name in self.actions:
            raise ValueError(f"two actions {name!r}")
        drafted = ActionDraft(
            name=name,
            parameters=_parameters(parameters),
            needs=_literals(needs),
            effects=_literals(effects),
            text=self.words(text),
            tags=frozenset(tags.split()),
        )
        self.actions[name] = drafted
        return drafted

    def extend(
        self, action: ActionDraft, needs: str = "", effects: str = "", parameters: str = "", text: str = ""
    ) -> None:
        """Add conditions, effects, parameters (behind the others) and a tail of text to ``action``."""
        action.parameters += _parameters(parameters)
        action.needs += _literals(needs)
        action.effects += _literals(effects)
        action.text += self.words(text)

    def lay(self, path: str, hooked: Iterable[ActionDraft] = (), /, **words: str) -> None:
        """Add the block ``path``, its placeholders replaced by ``words``; ``hooked`` get what it hooks on them."""
        block = blocks()[path]

        def filled(text: str) -> str:
            return fill(text, words)

        for role, (low, high) in block.kinds.items():
            self.kind(filled(role), low, high, block.parents.get(role, ""))
        for declaration, predicate in block.predicates.items():
            self.predicate(filled(declaration), filled(predicate.text), predicate.goal)
        self.start += fill_all(list(block.start), words)
        for name, action in block.actions.items():
            parameters, needs, effects = map(filled, (action.parameters, action.needs, action.effects))
            self.action(filled(name), parameters, needs, effects, filled(action.text), action.tags)
        for name, extension in block.extend.items():
            self._extend([self.actions[filled(name)]], extension, words)
        if block.hook is not None:
            self._extend(hooked, block.hook, words)
        self.goals |= {filled(name): weight for name, weight in block.goals.items()}
        for sentence in block.rules:
            self.add_rule(filled(sentence))

    def _extend(self, actions: Iterable[ActionDraft], extension: Extension, words: dict[str, str]) -> None:
        notation = (extension.needs, extension.effects, extension.parameters, extension.text)
        for action in actions:
            self.extend(action, *(fill(text, words) for text in notation))

    def add_rule(self, sentence: str) -> None:
        """Add a sentence to the rules, which the agent reads."""
        self.rules.append(self.words(sentence))

    def tagged(self, *tags: str) -> list[ActionDraft]:
        """The actions that carry one of ``tags``."""
        return [action for action in self.actions.values() if action.tags & set(tags)]

    def words(self, text: str) -> str:
        """``text`` in the theme's words."""
        text_of_rule = re.sub(r"<(\w+)>", lambda found: self._word(found[1]), text)
        # Themes bring their own nouns, so templates cannot know which article fits.
        return re.sub(r"\b([Aa]) (?=[aeio])", r"\1n ", text_of_rule)

    def domain(self, name: str) -> Domain:
        """The finished domain; types and parameters bear the theme's words."""
        word = self.theme.kind
        return Domain(
            name=name,
            types=tuple(
                (word(role), word(self.parents[role]) if role in self.parents else OBJECT) for role in self.kinds
            ),
            constants=(),
            predicates=tuple(
                Predicate(p, _numbered(word(role) for role in roles)) for p, roles in self.predicates.items()
            ),
            actions=tuple(
                Action(
                    name=action.name,
                    parameters=tuple(Typed(f"?{name}", word(role)) for name, role in action.parameters),
                    # Blocks that extend one action may ask for the same literal.
                    precondition=tuple(dict.fromkeys(action.needs)),
                    effect=tuple(dict.fromkeys(action.effects)),
                )
                for action in self.actions.values()
            ),
        )

    def action_text(self) -> dict[str, str]:
        """The text of every action, parameters by position."""
        return {action.name: _positional(action) for action in self.actions.values()}

    def _word(self, name: str) -> str:
        if name == "in":
            return self.theme.inside
        singular = name.removesuffix("s")  # no role ends in s
        return self.theme.kind(name) if singular == name else plural(self.theme.kind(singular))


def _parameters(text: str) -> list[tuple[str, str]]:
    return [(name, role or name) for name, _, role in (part.partition(":") for part in text.split())]


def _literals(text: str) -> list[Literal]:
    """Raises ``IndexError`` for an empty literal."""
    literals = []
    for part in filter(None, text.split(",")):
        words = part.split()
        positive = words[0] != "not"
        predicate, *terms = words if positive else words[1:]
        literals.append(Literal(predicate, tuple(f"?{term}" for term in terms), positive))
    return literals


def _numbered(kinds: Iterable[str]) -> tuple[Typed, ...]:
    return tuple(Typed(f"?x{number}", kind) for number, kind in enumerate(kinds))


def _positional(action: ActionDraft) -> str:
    numbers = {name: f"{{{number}}}" for number, (name, _) in enumerate(action.parameters)}
    return re.sub(r"{(\w+)}", lambda found: numbers[found[1]], action.text)
