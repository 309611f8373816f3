"""The expert fulfils missions of every kind with what an agent has seen, from wherever an agent has come to."""

from __future__ import annotations

import pytest

from agentmill.schemas.records.trajectory import MessageAction
from agentmill.synthesis.environments.babyai.environment import BabyaiEnvironment
from tests.synthesis.environments.babyai.test_environment import PUT, UNLOCK, level

MAZE = {"room_size": 5, "num_rows": 2, "num_cols": 2, "num_dists": 4}


def follow(environment: BabyaiEnvironment, most: int = 30) -> list[str]:
    """The commands of the expert."""
    done: list[str] = []
    while len(done) < most and (advice := environment.expert()) is not None:
        done.append(environment.command(advice))
        assert not environment.step(advice).error
    return done


@pytest.mark.parametrize(
    ("source", "options", "seed", "plan"),
    [
        (*PUT, 0, ["pick up purple ball 1", "put next to blue key 1"]),
        (*UNLOCK, 1, ["turn left", "turn left", "pick up red key 1", "open red door 1"]),
        ("BabyAI-PutNextS5N2Carrying-v0", {}, 0, ["put next to red ball 1"]),
    ],
)
def test_plans_are_short(source: str, options: dict[str, int], seed: int, plan: list[str]) -> None:
    environment = level((source, options), seed)
    assert follow(environment) == plan
    assert environment.check().passed


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("BabyAI-GoTo-v0", {"room_size": 5, "num_rows": 2, "num_cols": 2, "num_dists": 3}),
        ("BabyAI-GoToSeq-v0", MAZE),
        ("BabyAI-OpenDoorsOrderN4-v0", {}),
        ("BabyAI-PickupLoc-v0", {}),
        ("BabyAI-UnlockPickup-v0", {}),
        ("BabyAI-KeyInBox-v0", {}),
        ("BabyAI-MoveTwoAcrossS5N2-v0", {}),
    ],
)
def test_missions_of_every_kind_are_met(source: str, options: dict[str, int]) -> None:
    for seed in range(4):
        environment = level((source, options), seed)
        follow(environment)
        assert environment.check().passed, (seed, environment.mission())


def test_it_goes_on_from_what_another_agent_did() -> None:
    environment = level(PUT, 0)
    for command in ("pick up grey ball 1", "turn left", "turn left"):
        environment.step(MessageAction(content=command))
    assert "drop" in follow(environment)
    assert environment.check().passed


def test_it_gives_up_where_something_blocks_the_way() -> None:
    environment = level(("BabyAI-BlockedUnlockPickup-v0", {}), 0)
    assert len(follow(environment)) < 30
    assert not environment.check().passed
