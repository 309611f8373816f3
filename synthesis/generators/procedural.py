"""What generators of environments that ask no model share: a theme by the words of an inspiration, and the spec."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Inspiration, Lineage

OPERATOR = "spec_env"
BACKEND = "procedural"

T = TypeVar("T")


def proposal(family: str, inspiration: Inspiration, seed: int, notes: JsonObject, **fields: Any) -> EnvironmentSpec:
    """The environment of an inspiration and a seed; ``fields`` are its own, ``notes`` go into its lineage."""
    return EnvironmentSpec(
        environment_id=digest(OPERATOR, family, BACKEND, inspiration.inspiration_id, seed),
        family=family,
        lineage=Lineage(
            operator=OPERATOR,
            inspiration=inspiration.inspiration_id,
            seed=seed,
            notes={"backend": BACKEND, **notes},
        ),
        **fields,
    )


def matches(text: str, stems: Iterable[str]) -> int:
    """How many of ``stems`` begin a word of ``text``; stems of up to three letters must be the word or its plural."""
    words = re.findall(r"[a-z]+", text.lower())
    return sum(any(_matches(word, stem) for word in words) for stem in stems)


def _matches(word: str, stem: str) -> bool:
    # A short stem begins too many words: "car" also begins "care" and "carrot".
    return word.startswith(stem) if len(stem) > 3 else word in (stem, f"{stem}s")


def choose_theme(themes: Sequence[T], keywords: Callable[[T], Iterable[str]], text: str, chance: random.Random) -> T:
    """One of the themes whose keywords (word stems) ``text`` meets most often; any of all where it meets none."""
    scores = [matches(text, keywords(theme)) for theme in themes]
    best = max(scores)
    return chance.choice([theme for theme, score in zip(themes, scores, strict=True) if score == best])
