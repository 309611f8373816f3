"""A live toolbox: calls and their refusals, text commands, the end, snapshots, wrappers."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from agentmill.schemas.records.trajectory import ApiAction, CodeAction, MessageAction
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.environments.toolbox.calls import Unreadable, read_command, write_command
from agentmill.synthesis.environments.toolbox.environment import ToolboxEnvironment
from agentmill.synthesis.environments.toolbox.examples import LIBRARY
from agentmill.synthesis.environments.toolbox.structure import toolbox_structure
from agentmill.synthesis.environments.toolbox.toolbox import Tool, Toolbox
from tests.synthesis.environments.toolbox.boxes import (
    LIBRARY_SPEC,
    LIBRARY_TASK,
    WRAPPED_SPEC,
    WRAPPED_TASK,
    and_tool,
    call,
    play,
    spec_of,
    started,
    told,
)

SEQUENCES = 10_000


def test_rows_are_told_as_json_and_writing_changes_the_digest() -> None:
    environment = started()
    start = environment.state_digest()
    (found,) = play(environment, call("find_member", name="Joe Stern"))
    assert json.loads(told(found)) == [{"member_id": 2, "name": "Joe Stern", "city": "Graz", "points": 3}]
    assert environment.state_digest() == start
    (back,) = play(environment, call("take_back", loan_id=2))
    assert json.loads(told(back)) == [{"loan_id": 2, "book_id": 2, "status": "returned"}]
    assert environment.state_digest() != start


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (call("burn_book", book_id=1), "There is no tool 'burn_book'; there are find_member, find_book"),
        (call("take_back"), "the argument 'loan_id' is missing; it takes loan_id"),
        (call("take_back", loan_id=1, why="late"), "there is no argument 'why'"),
        (call("take_back", loan_id="1"), "must be a whole number, not '1'"),
        (call("take_back", loan_id=True), "must be a whole number, not True"),
        (call("take_back", loan_id=1.5), "must be a whole number, not 1.5"),
        (call("take_back", loan_id=10**30), "must be a whole number"),
        (call("find_member", name=None), "must be a text, not None"),
        (call("find_member", name="x" * 3000), "has 3000 characters, and may have 2000"),
        (call("find_member", name="\ud800"), "characters that no text may have"),
        (call("take_back", loan_id=3), "there is no open loan 3"),
        (call("lend_book", member_id=1, book_id=2), "there is no copy of book 2"),
        (call("finish"), "finish takes one argument, 'answer', a text"),
        (call("ask_user", question="What?"), "There is no tool 'ask_user'"),
        (CodeAction(language="python", content="1"), "Code is not run here"),
        (MessageAction(content="take back loan 1"), "That is no call of a tool. Write one such as"),
    ],
)
def test_refusals_say_what_is_wrong_and_change_nothing(action: Any, expected: str) -> None:
    environment = started()
    before = environment.state_digest(), environment.snapshot()
    (transition,) = play(environment, action)
    assert transition.error
    assert expected in told(transition)
    assert "hint" not in json.loads(told(transition))
    assert (environment.state_digest(), environment.snapshot()) == before


def test_a_number_without_a_fraction_is_a_whole_number() -> None:
    (transition,) = play(started(), call("take_back", loan_id=1.0))
    assert not transition.error


def test_aliases_are_names_that_structures_do_not_depend_on() -> None:
    def counting(field: str, alias: str, where: str) -> Toolbox:
        query = f"SELECT count(*) AS {field} FROM loans {alias} WHERE {alias}.{where} > 1"
        return and_tool(Tool(name="more", description="Counts.", returns=query, columns={field: ""}))

    first = toolbox_structure(counting("n", "l", "book_id"))
    assert first == toolbox_structure(counting("number_of_loans", "Lent", "book_id"))
    assert first != toolbox_structure(counting("n", "l", "member_id"))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"a": 1},
        {"a": -2, "text": 'it\'s "so", (or) so=1'},
        {"list": [1, {"b": None}]},
        {"text": "Annual report  2023"},
        {"text": " 12\u202f000\xa0km \u3000\u2028"},
        {"text": "a\n\n\tb"},
    ],
)
def test_commands_are_written_and_read(values: dict[str, Any]) -> None:
    assert read_command(write_command("do_it", values)) == ApiAction(function="do_it", kwargs=values)
    assert read_command(f" `{write_command('do_it', values)}`. ").kwargs == values


def test_a_text_of_several_lines_is_taken_as_it_is_written() -> None:
    assert read_command('keep(text="one\n\n  two")\n').kwargs == {"text": "one\n\n  two"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "do it",
        "do_it(",
        "do_it(a)",
        "do_it(a=)",
        "do_it(a=1 b=2)",
        "do_it(a=1, a=2)",
        "f(a='x')",
        f"f(a={'9' * 5_000})",
    ],
)
def test_other_texts_are_no_commands(text: str) -> None:
    with pytest.raises(Unreadable):
        read_command(text)


def test_the_end_is_the_end() -> None:
    environment = started()
    (end, more) = play(environment, call("finish", answer="done"), call("take_back", loan_id=1))
    assert (end.terminated, end.reward) == (True, 0.0)
    assert more.error
    assert "over" in told(more)
    assert environment.admissible() == []
    assert environment.expert() is None


def test_the_expert_reads_before_it_writes_and_stops_off_its_way() -> None:
    environment = started()
    said = []
    while (advice := environment.expert()) is not None:
        said.append(advice)
        environment.step(advice)
    assert said == LIBRARY_TASK.gold
    assert environment.check().passed
    environment = started()
    play(environment, call("take_back", loan_id=1))
    assert environment.expert() is None


def test_a_snapshot_is_of_one_task() -> None:
    environment = started()
    other = started(msgspec.structs.replace(LIBRARY_TASK, task_id="other"))
    with pytest.raises(EnvError, match="of another task"):
        other.restore(environment.snapshot())
    with pytest.raises(EnvError, match="no snapshot"):
        other.restore(b"nonsense")
    with pytest.raises(EnvError, match="was not reset"):
        ToolboxEnvironment(LIBRARY_SPEC).step(call("finish", answer=""))


@pytest.mark.parametrize("change", [{"goal": {"state": []}}, {"initial_state": {"request": {"text": "x"}}}])
def test_a_broken_task_is_a_broken_world(change: dict[str, Any]) -> None:
    with pytest.raises(EnvError, match="toolbox-library-return"):
        started(msgspec.structs.replace(LIBRARY_TASK, **change))


def test_broken_specs_are_broken_worlds() -> None:
    with pytest.raises(EnvError, match="no toolbox"):
        ToolboxEnvironment(msgspec.structs.replace(LIBRARY_SPEC, source="{}"))
    with pytest.raises(EnvError, match="hint"):
        ToolboxEnvironment(spec_of(LIBRARY, hint=True))


def test_hints_say_what_would_help() -> None:
    (transition,) = play(started(hints=True), call("lend_book", member_id=1, book_id=2))
    assert json.loads(told(transition))["hint"] == "take back a loan of it first"


def test_milestones_reward_each_part_once_and_sum_up_to_the_score() -> None:
    environment = started(milestones=True)
    # The copy that is back is in nobody's goal: it goes out again.
    rewards = [transition.reward for transition in play(environment, *(LIBRARY_TASK.gold or []))]
    assert rewards == pytest.approx([0, 0, 0, 1 / 4, 0, 5 / 12, 1 / 3])
    back = started(milestones=True)
    wrong = play(back, call("take_back", loan_id=2), call("take_back", loan_id=1))
    assert wrong[0].reward > 0 > wrong[1].reward


def test_a_fault_does_nothing_and_does_not_come_twice() -> None:
    environment = started(faults=0.999999)
    before = environment.check()
    first, second, third = play(environment, *[call("take_back", loan_id=2)] * 3)
    assert (first.error, second.error, third.error) == (False, False, True)
    assert "Try the same call again" in told(first)
    assert json.loads(told(second))[0]["status"] == "returned"
    assert before.score < environment.check().score


def test_the_user_tells_a_slot_when_asked_for_it_and_the_checker_wants_that() -> None:
    environment = ToolboxEnvironment(WRAPPED_SPEC)
    environment.reset(WRAPPED_TASK, 0)
    vague, right = play(
        environment, call("ask_user", question="Anything else?"), call("ask_user", question="Which name?")
    )
    assert "I do not know what you mean" in told(vague)
    assert told(right) == "The name is Joe Stern."
    assert right.observation.source == "user"  # type: ignore[union-attr]
    silent = ToolboxEnvironment(WRAPPED_SPEC)
    silent.reset(WRAPPED_TASK, 0)
    play(silent, *(action for action in WRAPPED_TASK.gold or [] if getattr(action, "function", "") != "ask_user"))
    assert silent.check().evidence["missing"] == ["asked one"]


def test_a_broken_rule_is_a_violation_and_spoils_everything() -> None:
    environment = ToolboxEnvironment(WRAPPED_SPEC)
    environment.reset(WRAPPED_TASK, 0)
    play(environment, *[call("take_back", loan_id=4)] * 2)
    for _ in range(3):
        play(environment, *[call("lend_book", member_id=3, book_id=3)] * 2, call("take_back", loan_id=1))
    play(environment, *[call("find_book", title="Maps of Salt")] * 2)
    check = environment.check()
    assert "tool find_book" in check.evidence["violations"]
    assert (check.passed, check.score) == (False, 0.0)


def _anything(chance: random.Random) -> Any:
    """An argument as a confused agent might give it."""
    odd = [
        None,
        True,
        -1,
        0,
        1,
        2,
        3,
        7,
        2.0,
        1.5,
        10**25,
        float("inf"),
        "",
        "open",
        "Joe Stern",
        "x'; DROP TABLE loans; --",
    ]
    return chance.choice([*odd, [1], {"a": 1}, "\0", "é" * 50, "\udcff"])


@pytest.mark.parametrize(("spec", "task"), [(LIBRARY_SPEC, LIBRARY_TASK), (WRAPPED_SPEC, WRAPPED_TASK)])
def test_10_000_random_sequences_crash_nothing_and_leak_nothing(spec: Any, task: Any) -> None:
    environment = ToolboxEnvironment(spec)
    environment.reset(task, 0)
    start = environment.state_digest()
    chance = random.Random(0)
    tools = environment.tools
    legal = 0
    for _ in range(SEQUENCES // 2):
        environment.reset(task, 0)
        assert environment.state_digest() == start
        for _ in range(chance.randint(1, 5)):
            tool = chance.choice(tools)
            names = list(tool.parameters["properties"])
            arguments = {name: _anything(chance) for name in names if chance.random() < 0.95}
            before = environment.state_digest()
            transition = environment.step(ApiAction(function=tool.name, kwargs=arguments))
            legal += not transition.error
            if transition.error:
                assert environment.state_digest() == before
    assert legal > SEQUENCES // 10
