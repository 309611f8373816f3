"""Environments of family ``babyai``: a level with a configuration of its rooms, which the seed chooses."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.task import EnvironmentSpec, Inspiration
from agentmill.synthesis.generators.data_files import read_named
from agentmill.synthesis.generators.procedural import BACKEND, proposal

FAMILY = "babyai"


class Level(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A level: its gymnasium id, and the values that its options can have."""

    name: str
    source: str
    options: dict[str, tuple[Any, ...]] = {}

    def weight(self) -> float:
        """The square root of the number of configurations: of the same one twice admission keeps one."""
        return math.sqrt(math.prod(map(len, self.options.values())))


@cache
def levels() -> Mapping[str, Level]:
    """The levels by name."""
    return {level.name: level for level in read_named(__package__, "levels.yaml", Level)}


class BabyaiGenerator:
    """Proposes one of the levels that the inspiration text names (``GoToLocal``), or any where it names none."""

    async def propose(self, inspiration: Inspiration, seed: int) -> EnvironmentSpec:
        """An environment; same inspiration and seed, same environment."""
        chance = random.Random(derive_seed(FAMILY, BACKEND, inspiration.inspiration_id, seed))
        words = set(re.findall(r"\w+", inspiration.text))
        known = levels()
        chosen = [known[name] for name in known if name in words] or list(known.values())
        (level,) = chance.choices(chosen, [each.weight() for each in chosen])
        options = {name: chance.choice(values) for name, values in level.options.items()}
        return proposal(
            FAMILY,
            inspiration,
            seed,
            {"level": level.name},
            name="-".join([level.name, *(f"{name}={value}" for name, value in options.items())]),
            source=level.source,
            parameters={"options": options},
            structure_digest=digest(FAMILY, level.source, options),
        )
