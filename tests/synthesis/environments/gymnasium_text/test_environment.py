"""Toy games as text: dynamics and rewards as gymnasium has them, success by a rule of each game."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import ApiAction, MessageAction
from agentmill.synthesis.environments.environment import EnvError, Transition
from agentmill.synthesis.environments.gymnasium_text.environment import GymnasiumEnvironment

LAKE = {"describer": "frozen_lake", "kwargs": {"map_name": "4x4", "is_slippery": False}}
SLIPPERY = {"describer": "frozen_lake", "kwargs": {"map_name": "4x4"}}


def world(source: str, parameters: JsonObject, state: JsonObject | None = None, seed: int = 0) -> GymnasiumEnvironment:
    """Made and reset."""
    environment = GymnasiumEnvironment(
        EnvironmentSpec(environment_id="e", family="gymnasium", name="n", source=source, parameters=parameters)
    )
    environment.reset(task(state), seed)
    return environment


def task(state: JsonObject | None) -> Task:
    return Task(
        task_id="t", environment_id="e", instruction="", initial_state={} if state is None else {"state": state}
    )


def say(environment: GymnasiumEnvironment, *commands: str) -> Transition:
    """The last transition."""
    return [environment.step(MessageAction(content=command)) for command in commands][-1]


def text(transition: Transition) -> str:
    return str(transition.observation.content)  # type: ignore[union-attr]


def follow_expert(environment: GymnasiumEnvironment, limit: int = 100) -> list[str]:
    commands: list[str] = []
    while len(commands) < limit and (action := environment.expert()) is not None:
        commands.append(environment.command(action))
        environment.step(action)
    return commands


def test_the_lake_is_described() -> None:
    environment = world("FrozenLake-v1", LAKE)
    assert environment.reset(task({"s": 4}), 0).content == (
        "You are at row 1, column 0. The goal is at row 3, column 3. Holes at (1, 1), (1, 3), (2, 3), (3, 0)."
    )
    assert "slippery" not in environment.rules
    assert text(say(environment, "Left.")) == "You are still at row 1, column 0."
    fall = say(environment, "right")
    assert (text(fall), fall.terminated, fall.reward) == ("You fell into the hole at row 1, column 1.", True, 0.0)
    assert not environment.check().passed
    over = say(environment, "left")
    assert (over.error, text(over), environment.admissible()) == (True, "The game is over.", [])


def test_a_lake_without_a_goal_is_refused() -> None:
    with pytest.raises(EnvError, match="no goal"):
        world("FrozenLake-v1", {**LAKE, "kwargs": {"desc": ["SF", "FF"], "is_slippery": False}})


def test_a_lake_names_all_its_goals() -> None:
    environment = world("FrozenLake-v1", {**LAKE, "kwargs": {"desc": ["SFG", "FHF", "GFF"], "is_slippery": False}})
    assert "The goal is at row 0, column 2 or row 2, column 0." in environment.reset(task(None), 0).content


def test_the_lake_is_crossed_the_shortest_way() -> None:
    environment = world("FrozenLake-v1", LAKE)
    assert len(follow_expert(environment)) == 6
    assert environment.check().passed
    assert environment.expert() is None


def test_the_cliff_is_won_with_a_negative_reward() -> None:
    environment = world("CliffWalking-v1", {"describer": "cliff_walking"})
    fall = say(environment, "right")
    assert text(fall) == "You fell off the cliff and are back at row 3, column 0."
    assert (fall.reward, fall.terminated) == (-100.0, False)
    assert follow_expert(environment) == ["up", *["right"] * 11, "down"]
    assert environment.check().passed


def test_the_taxi_brings_its_passenger() -> None:
    environment = world("Taxi-v4", {"describer": "taxi"}, {"s": 252})
    assert environment.reset(task({"s": 252}), 0).content == (
        "The taxi is at row 2, column 2. The passenger waits at Blue and wants to go to Red."
    )
    assert text(say(environment, "pick up")) == "There is nobody to pick up here."
    assert text(say(environment, "drop off")) == "You cannot drop off anybody here."
    assert text(say(environment, "south", "south", "east")) == "A wall: the taxi did not move."
    commands = follow_expert(environment)
    assert commands[-1] == "drop off"
    assert (environment.check().passed, environment.check().score) == (True, 1.0)


def test_the_taxi_scores_half_with_the_passenger_aboard() -> None:
    environment = world("Taxi-v4", {"describer": "taxi"}, {"s": 252})
    while environment.check().score == 0.0:
        action = environment.expert()
        assert action is not None
        transition = environment.step(action)
    assert (text(transition), environment.check().score) == ("The passenger is in the taxi.", 0.5)
    assert not environment.check().passed


def test_walls_are_told_as_they_stand() -> None:
    environment = world("Taxi-v4", {"describer": "taxi"})
    assert (
        "Walls: between columns 0 and 1 in rows 3, 4; between columns 1 and 2 in rows 0, 1; "
        "between columns 2 and 3 in rows 3, 4." in environment.rules
    )


def test_blackjack_is_won_by_the_last_reward() -> None:
    parameters: JsonObject = {"describer": "blackjack"}
    won = world("Blackjack-v1", parameters, {"player": [10, 10], "dealer": [10, 8]})
    assert won.reset(task({"player": [10, 1], "dealer": [10, 8]}), 0).content == (
        "Your cards: 10, ace. Your sum is 21 with an ace as 11. The dealer shows 10."
    )
    end = say(won, "stick")
    assert (text(end), end.reward, end.terminated) == ("The dealer has 10, 8. You win.", 1.0, True)
    assert won.check().passed
    lost = world("Blackjack-v1", parameters, {"player": [10, 7], "dealer": [10, 8]})
    assert text(say(lost, "stick")) == "The dealer has 10, 8. You lose."
    assert (lost.check().passed, lost.check().score) == (False, 0.0)
    drawn = world("Blackjack-v1", parameters, {"player": [10, 8], "dealer": [10, 8]})
    say(drawn, "stick")
    assert (drawn.check().passed, drawn.check().score) == (False, 0.5)


def test_actions_may_have_other_names() -> None:
    environment = world("FrozenLake-v1", {**LAKE, "commands": ["go west", "go south", "go east", "go north"]})
    assert [tool.name for tool in environment.tools] == ["go_west", "go_south", "go_east", "go_north"]
    assert text(say(environment, "Go East")) == "You are at row 0, column 1."
    assert text(environment.step(ApiAction(function="go_west", kwargs={}))) == "You are at row 0, column 0."
    assert text(say(environment, "left")) == (
        "That is no command here. Commands: go west, go south, go east, go north."
    )
    assert environment.command(environment.admissible()[1]) == "go south"


def test_chance_is_part_of_the_state_where_it_matters() -> None:
    slippery, firm = world("FrozenLake-v1", SLIPPERY), world("FrozenLake-v1", LAKE)
    starts = slippery.state_digest(), firm.state_digest()
    say(slippery, "up", "up")
    say(firm, "up", "up")
    assert firm.state_digest() == starts[1]
    assert slippery.state_digest() != starts[0]
    snapshot = slippery.snapshot()
    ahead = [(slippery.step(action), slippery.state_digest()) for action in slippery.admissible()]
    slippery.restore(snapshot)
    assert [(slippery.step(action), slippery.state_digest()) for action in slippery.admissible()] == ahead


def test_seeds_draw_starts_and_chances() -> None:
    starts = {world("Taxi-v4", {"describer": "taxi"}, seed=seed).state_digest() for seed in range(5)}
    assert len(starts) == 5
    again = world("Taxi-v4", {"describer": "taxi"}, seed=3)
    assert again.state_digest() in starts


SPEC_MISTAKES: dict[str, tuple[str, JsonObject, str]] = {
    "old version": ("Taxi-v3", {"describer": "taxi"}, "Taxi-v4"),
    "unknown game": ("Taxx-v4", {"describer": "taxi"}, "Did you mean: `Taxi`"),
    "unknown describer": ("Taxi-v4", {"describer": "taxy"}, "Did you mean 'taxi'"),
    "no describer": ("Taxi-v4", {}, "describer"),
    "unknown key": ("Taxi-v4", {"describer": "taxi", "rain": True}, "rain"),
    "unknown argument": ("Taxi-v4", {"describer": "taxi", "kwargs": {"rain": True}}, "rain"),
    "a map by chance": ("FrozenLake-v1", {"describer": "frozen_lake", "kwargs": {"map_name": None}}, "its own map"),
    "too few commands": ("Taxi-v4", {"describer": "taxi", "commands": ["a"]}, "6 different names"),
    "equal commands": ("Blackjack-v1", {"describer": "blackjack", "commands": ["a", "a."]}, "2 different names"),
    "same tools": ("Blackjack-v1", {"describer": "blackjack", "commands": ["Stop", "stop"]}, "2 different names"),
}


@pytest.mark.filterwarnings("ignore:.*The environment Taxi-v3 is out of date.*")
@pytest.mark.parametrize(("source", "parameters", "expected"), SPEC_MISTAKES.values(), ids=list(SPEC_MISTAKES))
def test_a_broken_spec_is_the_worlds_fault(source: str, parameters: JsonObject, expected: str) -> None:
    with pytest.raises(EnvError, match=expected):
        world(source, parameters)


@pytest.mark.parametrize(
    ("source", "describer", "state"),
    [
        ("FrozenLake-v1", "frozen_lake", {"s": 16}),
        ("FrozenLake-v1", "frozen_lake", {}),
        ("Blackjack-v1", "blackjack", {"player": [11, 1], "dealer": [1, 1]}),
        ("Blackjack-v1", "blackjack", {"player": [1], "dealer": [1, 1]}),
    ],
)
def test_a_state_that_is_none_is_refused(source: str, describer: str, state: JsonObject) -> None:
    with pytest.raises(EnvError, match=r"initial_state\['state'\]"):
        world(source, {"describer": describer}, state)


@pytest.mark.parametrize("snapshot", [b"", b"{}", b'{"game": {"s": 99}}'])
def test_a_foreign_snapshot_is_refused(snapshot: bytes) -> None:
    with pytest.raises(EnvError, match="no snapshot of FrozenLake-v1"):
        world("FrozenLake-v1", LAKE).restore(snapshot)


def test_a_world_must_be_reset_first() -> None:
    spec: Any = GymnasiumEnvironment.examples()[0][0]
    environment = GymnasiumEnvironment(msgspec.structs.replace(spec, name="other"))
    with pytest.raises(EnvError, match="not reset"):
        environment.check()
    environment.close()
    environment.close()
