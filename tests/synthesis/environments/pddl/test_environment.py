"""What a planning world says and does."""

from __future__ import annotations

import msgspec
import pytest

from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import ApiAction, CodeAction, MessageAction
from agentmill.synthesis.environments.environment import EnvError, Transition
from agentmill.synthesis.environments.pddl.environment import PddlEnvironment
from tests.synthesis.environments.examples import (
    BLOCKS_SPEC,
    BLOCKS_TASK,
    WAREHOUSE_SPEC,
    WAREHOUSE_TASK,
    warehouse,
)


def say(environment: PddlEnvironment, command: str) -> Transition:
    return environment.step(MessageAction(content=command))


def told(environment: PddlEnvironment, command: str) -> str:
    return str(say(environment, command).observation.content)  # type: ignore[union-attr]


def with_problem(task: Task, old: str, new: str) -> Task:
    assert old in task.initial_state["problem"]
    return msgspec.structs.replace(task, initial_state={"problem": task.initial_state["problem"].replace(old, new)})


def test_the_start_is_told_in_sentences() -> None:
    observation = PddlEnvironment(WAREHOUSE_SPEC).reset(WAREHOUSE_TASK, 0)
    assert observation.source == "environment"
    assert observation.content == (
        "Rob is in the dock; crate1 is in the aisle; crate2 is in the dock; a path leads from the dock to the aisle; "
        "a path leads from the aisle to the dock; a path leads from the aisle to the depot; a path leads from the "
        "depot to the aisle."
    )


def test_commands_may_be_given_as_sentences() -> None:
    texts = {name: f"{text}." for name, text in WAREHOUSE_SPEC.parameters["action_text"].items()}
    environment = warehouse(action_text=texts)
    environment.reset(WAREHOUSE_TASK, 0)
    action = environment.admissible()[0]
    assert not say(environment, environment.command(action)).error


def test_hidden_predicates_are_not_told() -> None:
    environment = warehouse(hidden_predicates=["path", "busy"])
    assert environment.reset(WAREHOUSE_TASK, 0).content == (
        "Rob is in the dock; crate1 is in the aisle; crate2 is in the dock."
    )
    assert told(environment, "let rob lift crate2 in dock") == "Rob carries crate2."


def test_a_step_tells_what_changed_and_denies_nothing_that_is_plain() -> None:
    environment = warehouse()
    assert told(environment, "let rob lift crate2 in dock") == "Rob carries crate2; rob is busy."
    assert told(environment, "send rob from dock to aisle") == "Rob is in the aisle."
    assert told(environment, "let rob drop crate2 in aisle") == "Crate2 is in the aisle; rob is not busy."


def test_denials_may_have_a_sentence_of_their_own() -> None:
    environment = warehouse(denial_text={"busy": "{0} rests"})
    told(environment, "let rob lift crate2 in dock")
    assert told(environment, "let rob drop crate2 in dock") == "Crate2 is in the dock; rob rests."


def test_a_change_that_cannot_be_seen_is_still_answered() -> None:
    environment = warehouse(hidden_predicates=["at"])
    assert told(environment, "send rob from dock to aisle") == "Done."


REFUSALS = {
    "unmet condition": (
        "let rob drop crate1 in dock",
        "rob does not carry crate1",
        "You cannot let rob drop crate1 in dock: ",
    ),
    "two unmet conditions": (
        "let rob lift crate1 in depot",
        "rob is not in the depot and crate1 is not in the depot",
        "",
    ),
    "static condition": (
        "send rob from dock to depot",
        "a path does not lead from the dock to the depot",
        "",
    ),
    "equality": ("send rob from dock to dock", "both are dock", ""),
    "unknown object": ("send rob from dock to moon", "moon is no place (there is depot, dock, aisle)", ""),
    "wrong type": ("send crate1 from dock to aisle", "crate1 is no robot (there is rob)", ""),
    "unknown command": ("jump", "send <robot> from <place1> to <place2>", "'jump' is no command. Commands: "),
    "long babble": ("bla " * 100, "...' is no command", ""),
}


@pytest.mark.parametrize(("command", "why", "start"), REFUSALS.values(), ids=list(REFUSALS))
def test_an_illegal_command_changes_nothing_and_says_why(command: str, why: str, start: str) -> None:
    environment = warehouse()
    before = environment.state_digest()
    transition = say(environment, command)
    assert (transition.error, transition.reward, transition.terminated) == (True, 0.0, False)
    content = transition.observation.content  # type: ignore[union-attr]
    assert why in content
    assert content.startswith(start)
    assert environment.state_digest() == before


def test_a_forbidden_state_is_named() -> None:
    environment = warehouse()
    say(environment, "let rob lift crate2 in dock")
    say(environment, "send rob from dock to aisle")
    assert told(environment, "let rob lift crate1 in aisle") == "You cannot let rob lift crate1 in aisle: rob is busy."


@pytest.mark.parametrize(
    ("action", "why"),
    [
        (ApiAction(function="fly", kwargs={}), "There is no function 'fly'. Functions: go, lift, drop."),
        (ApiAction(function="go", kwargs={"r": "rob"}), "go takes the arguments r, a, b; given: r."),
        (CodeAction(language="python", content="1"), "Code is not run here. Write one command."),
    ],
    ids=["function", "arguments", "code"],
)
def test_an_illegal_call_says_what_is_legal(action: ApiAction, why: str) -> None:
    transition = warehouse().step(action)
    assert transition.error
    assert transition.observation.content == why  # type: ignore[union-attr]


def test_a_call_and_its_command_do_the_same() -> None:
    by_call, by_text = warehouse(), warehouse()
    action = ApiAction(function="go", kwargs={"r": "ROB", "a": "dock", "b": "aisle"})
    assert by_text.command(action) == "send rob from dock to aisle"
    assert by_call.step(action) == say(by_text, "  `Send ROB from  dock to aisle.` ")
    assert by_call.state_digest() == by_text.state_digest()
    with pytest.raises(ValueError, match="no function 'fly'"):
        by_call.command(ApiAction(function="fly", kwargs={}))


def test_the_goal_ends_the_episode_with_reward_one() -> None:
    environment = warehouse()
    rewards = []
    while (action := environment.expert()) is not None:
        transition = environment.step(action)
        rewards.append((transition.reward, transition.terminated))
    assert rewards == [(0.0, False)] * 4 + [(1.0, True)]
    assert environment.check().passed


def test_the_check_counts_goal_literals() -> None:
    environment = warehouse()
    check = environment.check()
    assert (check.passed, check.score) == (False, 1 / 3)
    assert check.evidence == {"unmet": ["crate1 is in the depot", "rob is in the aisle"]}
    say(environment, "send rob from dock to aisle")
    assert environment.check().score == 2 / 3


def test_the_expert_finds_its_way_back_from_a_detour() -> None:
    environment = warehouse()
    say(environment, "let rob lift crate2 in dock")
    commands = [environment.command(action) for action in iter(environment.expert, None) if environment.step(action)]
    assert commands[:2] == ["send rob from dock to aisle", "let rob drop crate2 in aisle"]
    assert len(commands) == 6


def test_the_expert_knows_a_dead_end() -> None:
    task = with_problem(WAREHOUSE_TASK, " (path depot aisle)", "")
    environment = warehouse()
    environment.reset(with_problem(task, "(at rob aisle)", "(at rob depot)"), 0)
    assert environment.expert() is not None
    for command in ("send rob from dock to aisle", "send rob from aisle to depot"):
        assert not say(environment, command).terminated
    assert environment.expert() is None
    assert [action.function for action in environment.admissible()] == []


def test_the_expert_follows_the_gold_plan() -> None:
    out = "send rob from dock to aisle"
    rest = ["let rob lift crate1 in aisle", "send rob from aisle to depot", "let rob drop crate1 in depot"]
    straight = [out, *rest, "send rob from depot to aisle"]
    scenic = ["let rob lift crate2 in dock", out, "let rob drop crate2 in aisle", *straight[1:]]
    environment = warehouse()
    assert followed(environment, scenic) == scenic
    assert followed(environment, [out, "send rob from aisle to dock", *straight]) == straight, "loops are cut"
    assert followed(environment, ["let rob lift crate2 in dock", "fly"]) == straight, "a false gold plan is no advice"


def followed(environment: PddlEnvironment, gold: list[str]) -> list[str]:
    """The expert's commands where ``gold`` is the task's solution."""
    actions = [MessageAction(content=command) for command in gold]
    environment.reset(msgspec.structs.replace(WAREHOUSE_TASK, gold=actions), 0)
    commands = []
    while len(commands) < 20 and (action := environment.expert()) is not None:
        commands.append(environment.command(action))
        environment.step(action)
    return commands


def test_admissible_actions_come_in_the_order_of_declaration() -> None:
    environment = warehouse()
    assert [environment.command(action) for action in environment.admissible()] == [
        "send rob from dock to aisle",
        "let rob lift crate2 in dock",
    ]


def test_tools_are_the_actions() -> None:
    tool = warehouse().tools[0]
    assert (tool.name, tool.description) == ("go", "send <robot> from <place1> to <place2>")
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "r": {"type": "string", "description": "name of a robot"},
            "a": {"type": "string", "description": "name of a place"},
            "b": {"type": "string", "description": "name of a place"},
        },
        "required": ["r", "a", "b"],
        "additionalProperties": False,
    }


def test_rules_are_given_or_written_from_the_domain() -> None:
    assert PddlEnvironment(BLOCKS_SPEC).rules.startswith("You move blocks with one hand.")
    written = warehouse().rules.splitlines()
    assert written[0] == "Commands:"
    assert written[2] == (
        "- let <robot> lift <crate> in <place> (if <robot> is in the <place>; <crate> is in the <place>; <robot> is "
        "not busy): <crate> is not in the <place>; <robot> carries <crate>; <robot> is busy"
    )


def test_two_actions_may_share_a_command_where_their_objects_differ() -> None:
    same = {"go": "use {0} {1} {2}", "lift": "use {0} {1} {2}", "drop": "let {0} drop {1} in {2}"}
    environment = warehouse(action_text=same)
    assert told(environment, "use rob crate2 dock") == "Rob carries crate2; rob is busy."
    assert told(environment, "use rob dock aisle") == "Rob is in the aisle."


def test_a_snapshot_is_the_state_in_plain_text() -> None:
    environment = warehouse()
    start, digest = environment.snapshot(), environment.state_digest()
    say(environment, "send rob from dock to aisle")
    assert environment.state_digest() != digest
    environment.restore(start)
    assert environment.state_digest() == digest
    assert set(msgspec.json.decode(start)) == {"problem", "state"}


@pytest.mark.parametrize("snapshot", [b"", b"{}", b'{"problem": "x", "state": "1"}', b'{"problem": 1}'])
def test_a_foreign_snapshot_is_refused(snapshot: bytes) -> None:
    with pytest.raises(EnvError, match="snapshot"):
        warehouse().restore(snapshot)


def test_equal_states_have_equal_digests_whatever_led_to_them() -> None:
    environment = warehouse()
    start = environment.state_digest()
    for command in ("send rob from dock to aisle", "send rob from aisle to dock"):
        say(environment, command)
    assert environment.state_digest() == start
    other = PddlEnvironment(BLOCKS_SPEC)
    other.reset(BLOCKS_TASK, 0)
    assert other.state_digest() != start
