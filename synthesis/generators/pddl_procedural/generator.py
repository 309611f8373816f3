"""Planning environments from a grammar, after AgentGen (Hu et al., 2024), without a model.

An inspiration text chooses a theme and makes parts likelier that its words name; the seed decides the rest. An
environment is composed of a core and up to two features.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Sequence
from functools import cache

import msgspec

from agentmill.schemas.ids import derive_seed
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Inspiration
from agentmill.synthesis.environments.pddl.structure import domain_structure
from agentmill.synthesis.environments.pddl.writer import domain_text
from agentmill.synthesis.generators.data_files import convert, read_table
from agentmill.synthesis.generators.pddl_procedural import cores, features
from agentmill.synthesis.generators.pddl_procedural.draft import Draft
from agentmill.synthesis.generators.pddl_procedural.themes import PACKAGE, Theme, themes
from agentmill.synthesis.generators.procedural import BACKEND, choose_theme, matches, proposal

_PLACEHOLDERS = ("X", "Y", "Z", "W")
MAX_ACTIONS = 6
MAX_PARAMETERS = 4
EMPHASIS = 3.0
"""What each keyword found in the inspiration adds to the weight of a part."""


class ProceduralGenerator:
    """Proposes planning environments from a seeded grammar; no model is asked."""

    async def propose(self, inspiration: Inspiration, seed: int) -> EnvironmentSpec:
        """An environment; same inspiration and seed, same environment."""
        return propose(inspiration, seed)


def propose(inspiration: Inspiration, seed: int) -> EnvironmentSpec:
    """The environment of ``inspiration`` and ``seed``. ``lineage.notes`` names its theme and its parts."""
    chance = random.Random(derive_seed(BACKEND, inspiration.inspiration_id, seed))
    theme = choose_theme(themes(), lambda each: each.keywords, inspiration.text, chance)
    draft, parts = compose(theme, inspiration.text, chance)
    name = "-".join([theme.name, *parts])
    domain = draft.domain(name)
    return proposal(
        "pddl",
        inspiration,
        seed,
        {"theme": theme.name, "parts": parts},
        name=name,
        source=domain_text(domain),
        parameters={
            "predicate_text": draft.predicate_text,
            "action_text": draft.action_text(),
            "rules": told_rules(draft),
            "problems": _problems(draft),
        },
        structure_digest=domain_structure(domain),
    )


def told_rules(draft: Draft) -> str:
    """The rules in a few sentences, then every command with capital letters for names of objects."""
    commands = [_form(text) for text in draft.action_text().values()]
    return f"{' '.join(draft.rules)}\nCommands: {'; '.join(commands)}."


def _form(text: str) -> str:
    """``take {1} in {0}`` as ``take X in Y``: placeholders in the order of the text."""
    order = list(dict.fromkeys(re.findall(r"{(\d)}", text)))
    return re.sub(r"{(\d)}", lambda found: _PLACEHOLDERS[order.index(found[1])], text)


def _problems(draft: Draft) -> JsonObject:
    """The scheme of ``agentmill.synthesis.generators.pddl_tasks.scheme``."""
    word = draft.theme.kind
    pools = {word(r): {"count": list(n), "names": list(draft.theme.objects(r))} for r, n in draft.kinds.items()}
    return {
        "objects": {kind: pool for kind, pool in pools.items() if pool["count"] != [0, 0]},
        "start": draft.start,
        "goals": draft.goals,
    }


Build = Callable[[Draft, random.Random], None]


class Part(msgspec.Struct, frozen=True):
    """A core or a feature: how it is built, how likely it is, and the word stems that make it likelier."""

    name: str
    build: Build
    keywords: tuple[str, ...]
    weight: float = 1.0
    fits: Callable[[Draft], bool] = lambda _: True


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    weight: float
    keywords: str


class _Entries(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table of parts; each is a function of that name in ``cores`` or ``features``."""

    cores: dict[str, _Entry]
    features: dict[str, _Entry]


@cache
def _entries() -> _Entries:
    return convert(read_table(PACKAGE, "parts.yaml"), _Entries, f"{PACKAGE}/data/parts.yaml")


@cache
def core_parts() -> tuple[Part, ...]:
    """What an environment can be about."""
    return tuple(
        Part(name, getattr(cores, name), tuple(entry.keywords.split()), entry.weight)
        for name, entry in _entries().cores.items()
    )


@cache
def feature_parts() -> tuple[Part, ...]:
    """What can be laid over an environment."""
    return tuple(
        Part(
            name,
            getattr(features, name),
            tuple(entry.keywords.split()),
            entry.weight,
            getattr(features, f"fits_{name}"),
        )
        for name, entry in _entries().features.items()
    )


def compose(theme: Theme, text: str, chance: random.Random) -> tuple[Draft, list[str]]:
    """An environment in the words of ``theme``, and the names of its parts, core first."""
    draft = Draft(theme)
    core = _pick(core_parts(), text, chance)
    core.build(draft, chance)
    names = [core.name]
    for _ in range(chance.choices((0, 1, 2), (1, 4, 4))[0]):
        fitting = [part for part in feature_parts() if part.name not in names and part.fits(draft)]
        if fitting:
            part = _pick(fitting, text, chance)
            # A feature changes the draft, and one that makes it too large is dropped whole.
            extended = copy.deepcopy(draft)
            part.build(extended, chance)
            if _small(extended):
                draft = extended
                names.append(part.name)
    return draft, names


def _pick(parts: Sequence[Part], text: str, chance: random.Random) -> Part:
    weights = [part.weight * (1.0 + EMPHASIS * matches(text, part.keywords)) for part in parts]
    return chance.choices(parts, weights)[0]


def _small(draft: Draft) -> bool:
    """Whether the environment is still small enough to be described in a short prompt."""
    longest = max(len(action.parameters) for action in draft.actions.values())
    return len(draft.actions) <= MAX_ACTIONS and longest <= MAX_PARAMETERS
