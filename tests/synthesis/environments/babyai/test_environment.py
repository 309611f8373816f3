"""Levels of BabyAI as text: the game's own missions and rewards, our words, and commands that walk by themselves."""

from __future__ import annotations

from typing import Any

import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import ApiAction, MessageAction
from agentmill.synthesis.environments.babyai.environment import BabyaiEnvironment
from agentmill.synthesis.environments.environment import EnvError, Transition

LOCAL = ("BabyAI-GoToLocal-v0", {"room_size": 6, "num_dists": 3})
PUT = ("BabyAI-PutNextLocal-v0", {"room_size": 5, "num_objs": 3})
UNLOCK = ("BabyAI-UnlockLocal-v0", {})


def level(level: tuple[str, Any], seed: int = 1) -> BabyaiEnvironment:
    """Made and reset."""
    source, options = level
    parameters = {"options": options}
    environment = BabyaiEnvironment(
        EnvironmentSpec(environment_id="e", family="babyai", name="n", source=source, parameters=parameters)
    )
    environment.reset(task(seed), 0)
    return environment


def task(seed: object) -> Task:
    return Task(task_id="t", environment_id="e", instruction="", initial_state={"seed": seed})


def say(environment: BabyaiEnvironment, *commands: str) -> Transition:
    """The last transition."""
    return [environment.step(MessageAction(content=command)) for command in commands][-1]


def text(transition: Transition) -> str:
    return str(transition.observation.content)  # type: ignore[union-attr]


def commands(environment: BabyaiEnvironment) -> list[str]:
    return list(map(environment.command, environment.admissible()))


def test_what_is_seen_is_said_in_words() -> None:
    environment = level(LOCAL)
    assert environment.mission() == "go to the red key"
    assert environment.reset(task(1), 5).content == (
        "You see green ball 1 (1 forward, 1 left), yellow key 1 (2 forward). Ahead 1 step is free."
    )
    assert text(say(environment, "turn right")) == (
        "You see yellow key 1 (2 left), red key 1 (1 forward, 1 right). Out of sight: green ball 1. "
        "Ahead 2 steps are free."
    )


def test_a_command_walks_by_itself_and_the_game_rewards_the_mission() -> None:
    environment = level(LOCAL)
    say(environment, "Turn right.")
    done = say(environment, "`go to the red key`")
    assert (done.terminated, done.truncated, done.error) == (True, False, False)
    # Two turns and a step of 36, as the game has it.
    assert done.reward == pytest.approx(1 - 0.9 * 3 / 36)
    assert text(done).endswith("Ahead 0 steps are free. The mission is done.")
    check = environment.check()
    assert (check.passed, check.score, check.evidence) == (True, 1.0, {"actions": 3})
    assert (environment.admissible(), environment.expert()) == ([], None)
    over = say(environment, "turn left")
    assert (over.error, text(over)) == (True, "The episode is over.")


def test_legal_commands_are_of_what_was_seen() -> None:
    environment = level(LOCAL)
    first = ["turn left", "turn right", "move forward"]
    ball = ["go to green ball 1", "pick up green ball 1"]
    assert commands(environment) == [*first, *ball, "go to yellow key 1", "pick up yellow key 1"]
    unseen = say(environment, "go to red key 1")
    assert (unseen.error, text(unseen).split(". ")[0]) == (True, "You have seen no red key 1")
    assert "You can: turn left, turn right, move forward, go to green ball 1" in text(unseen)
    say(environment, "pick up yellow key 1")
    assert text(say(environment, "pick up green ball 1")).startswith("You cannot do that now. You can: turn left")
    assert "put next to green ball 1" in commands(environment)
    assert "drop" in commands(environment)


def test_tools_do_what_commands_do() -> None:
    one, other = level(PUT), level(PUT)
    calls = [("turn_right", {}), ("pick_up", {"object": "blue key 1"}), ("put_next_to", {"object": "yellow key 1"})]
    for function, kwargs in calls:
        action = ApiAction(function=function, kwargs=kwargs)
        assert one.step(action) == say(other, other.command(action))
    assert one.state_digest() == other.state_digest()
    assert one.check().passed


def test_a_locked_door_needs_its_key() -> None:
    environment = level(UNLOCK)
    assert "locked red door 1" in text(say(environment, "turn right"))
    assert say(environment, "open red door 1").error
    say(environment, "turn right", "pick up red key 1")
    assert "open red door 1" in commands(environment)
    assert say(environment, "open red door 1").reward > 0


def test_an_open_door_is_gone_through_and_closed() -> None:
    environment = level(("BabyAI-GoToSeq-v0", {"room_size": 5, "num_rows": 2, "num_cols": 2, "num_dists": 4}))
    say(environment, "turn right", "go to red ball 1", "open blue door 1")
    assert {"go through blue door 1", "close blue door 1"} <= set(commands(environment))
    before = environment.snapshot()
    closed = say(environment, "close blue door 1")
    assert "closed blue door 1 (in front of you)" in text(closed)
    environment.restore(before)
    assert "Out of sight: open blue door 1" in text(say(environment, "go through blue door 1"))


def test_the_same_kind_of_thing_gets_numbers_in_the_order_of_being_seen() -> None:
    environment = level(("BabyAI-GoToRedBall-v0", {"room_size": 8, "num_dists": 7}), 3)
    for _ in range(4):
        say(environment, "turn left")
    names = sorted(each.removeprefix("go to ") for each in commands(environment) if each.startswith("go to "))
    kinds = [name.rpartition(" ")[0] for name in names]
    numbers = {kind: [name.rpartition(" ")[2] for name in names if name.startswith(kind)] for kind in set(kinds)}
    assert all(found == [str(n + 1) for n in range(len(found))] for found in numbers.values())


def test_the_limit_of_the_game_truncates() -> None:
    environment = level(LOCAL)
    last = say(environment, *["turn left", "turn right"] * 18)
    assert (last.truncated, last.terminated, last.reward) == (True, False, 0.0)
    assert not environment.check().passed


def test_a_mistake_in_the_spec_or_the_task_is_an_error_of_the_environment() -> None:
    for source, options in [
        ("BabyAI-None-v0", {}),
        ("CartPole-v1", {}),
        ("BabyAI-GoToDoor-v0", {"room_size": 5}),
        ("BabyAI-GoToLocal-v0", {"rooms": 2}),
    ]:
        with pytest.raises(EnvError, match=source):
            level((source, options))
    environment = BabyaiEnvironment(EnvironmentSpec(environment_id="e", family="babyai", name="n", source=LOCAL[0]))
    with pytest.raises(EnvError, match="not reset"):
        environment.admissible()
    for seed in ("one", None, -1):
        with pytest.raises(EnvError, match="task t"):
            environment.reset(task(seed), 0)
    environment.reset(task(1), 0)
    for snapshot in (b"", b"[]", b'{"seed": 1}', b'{"seed": 1, "actions": ["x"]}', b'{"seed": 1, "actions": [9]}'):
        with pytest.raises(EnvError, match="no snapshot"):
            environment.restore(snapshot)


def test_rooms_that_are_too_full_are_refused_in_finite_time() -> None:
    with pytest.raises(EnvError, match="too many things"):
        level(("BabyAI-GoToRedBall-v0", {"room_size": 5, "num_dists": 4}))


def test_options_that_no_map_can_be_drawn_with_are_refused() -> None:
    with pytest.raises(EnvError, match="correct the options"):
        level(("BabyAI-GoToRedBall-v0", {"num_dists": "8"}), 0)


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    environment = level(("BabyAI-GoToRedBlueBall-v0", {}), 0)
    for seed in range(20):  # some of their drafts are rejected, which the package prints
        environment.reset(task(seed), 0)
    assert capfd.readouterr().out == ""


def test_what_is_in_hand_from_the_start_is_said() -> None:
    environment = level(("BabyAI-PutNextS5N2Carrying-v0", {}), 0)
    assert environment.reset(task(0), 0).content.endswith("You carry yellow box 1.")
