"""SWE-agent files: what the model saw and did, whichever of the two lists says it, and nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentmill.schemas.format import FormatError, Origin, Read
from agentmill.schemas.formats.swe_agent.format import SweAgent
from agentmill.schemas.records.trajectory import ApiAction, CodeAction, MessageAction, TextObservation

SYSTEM = {"role": "system", "content": "Use the shell.", "agent": "main", "message_type": "system_prompt"}
TASK = {"role": "user", "content": "Fix it.\r\n", "agent": "main", "message_type": "observation"}


def read(document: Any) -> Read:
    return SweAgent().read(msgspec.json.encode(document), Origin("demo"))


def reply(thought: str, action: str, **fields: Any) -> dict[str, Any]:
    content = f"{thought}```\n{action}```" if "tool_calls" not in fields else thought
    return {"role": "assistant", "content": content, "thought": thought, "action": action, "agent": "main", **fields}


def step(thought: str, action: str, observation: str, **fields: Any) -> dict[str, Any]:
    response = f"{thought}```\n{action}```" if action else thought
    shape = {"action": action, "observation": observation, "response": response, "thought": thought}
    return {**shape, "state": '{"open_file": "n/a"}\n', **fields}


def call(name: str, arguments: Any, call_id: str | None = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def shown(text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, "agent": "main", **fields}


def test_a_run_of_commands_in_text() -> None:
    document = {
        "environment": "swe_main",
        "trajectory": [step("Look.\n", "ls\n", "a b"), step("Done.\n", "submit\n", "diff")],
        "history": [SYSTEM, TASK, reply("Look.\n", "ls\n"), shown("a b\nbash-$"), reply("Done.\n", "submit\n")],
        "info": {
            "exit_status": "submitted",
            "submission": "diff",
            "model_stats": {"instance_cost": 0.5, "tokens_sent": 7, "tokens_received": 0, "api_calls": 2},
        },
    }
    run, losses, others, remarks = read(document)
    assert not losses
    assert not others
    assert not remarks
    assert run.system_prompt == "Use the shell."
    assert run.content == [
        TextObservation(content="Fix it.\r\n", source="user", agent="main"),
        CodeAction(language="bash", content="ls\n", description="Look.\n", turn=1, tool_call_id="call_1", agent="main"),
        TextObservation(content="a b\nbash-$", source="environment", turn=1, tool_call_id="call_1", agent="main"),
        CodeAction(
            language="bash", content="submit\n", description="Done.\n", turn=2, tool_call_id="call_3", agent="main"
        ),
        TextObservation(content="diff", source="environment", turn=2, tool_call_id="call_3"),
    ]
    assert (run.outcome.status, run.outcome.reason, run.outcome.terminated) == ("unknown", "submitted", True)
    assert (run.usage.prompt_tokens, run.usage.completion_tokens, run.usage.cost_usd) == (7, None, 0.5)
    state = {"state": '{"open_file": "n/a"}\n'}
    assert run.extra["swe_agent"] == {
        "environment": "swe_main",
        "info": {"submission": "diff", "model_stats": {"tokens_received": 0, "api_calls": 2}},
        "content": {"1": state, "3": state},
    }


def test_structured_calls_come_from_history_and_a_step_that_it_misses_from_the_trajectory() -> None:
    document = {
        "trajectory": [
            step("Find.", "find x", "", response="Find.", state={"cwd": "/"}, execution_time=0.5),
            step("End.", "submit", "ok", response="End."),
        ],
        "history": [
            SYSTEM,
            TASK,
            reply("Find.", "find x", tool_calls=[call("find", '{"name": "x"}')]),
            {"role": "tool", "content": "nothing", "agent": "main", "tool_call_ids": ["c1"]},
        ],
    }
    run, losses, _, remarks = read(document)
    assert not losses
    assert not remarks
    assert run.content[1] == ApiAction(
        function="find", kwargs={"name": "x"}, description="Find.", turn=1, tool_call_id="c1", agent="main"
    )
    assert [item.tool_call_id for item in run.content] == [None, "c1", "c1", "call_3", "call_3"]
    assert isinstance(run.content[3], CodeAction)
    rest = run.extra["swe_agent"]["content"]["1"]
    assert rest == {"state": {"cwd": "/"}, "execution_time": 0.5, "action": "find x"}
    assert run.outcome.reason is None


@pytest.mark.parametrize(
    ("given", "kwargs", "raw"),
    [
        ('{"a": "01", "b": 1.0, "c": {"d": null}}', {"a": "01", "b": 1.0, "c": {"d": None}}, None),
        ({"a": 1}, {"a": 1}, None),
        (None, {}, None),
        ('{"a": ', {}, '{"a": '),
        ("[1, 2]", {}, "[1, 2]"),
        ("5", {}, "5"),
        ([1, 2], {}, "[1,2]"),
        ('{"a": "\\ud800"}', {}, '{"a": "\\ud800"}'),
        ('{"a": NaN}', {}, '{"a": NaN}'),
        ("", {}, ""),
    ],
)
def test_arguments_that_are_no_object_are_kept_raw(given: Any, kwargs: Any, raw: str | None) -> None:
    run = read({"history": [TASK, reply("", "f", tool_calls=[call("f", given)])]}).trajectory
    action = run.content[1]
    assert isinstance(action, ApiAction)
    assert (action.kwargs, action.raw_arguments) == (kwargs, raw)


def test_parallel_calls_share_a_turn_and_repeated_ids_become_unique() -> None:
    tool_calls = [call("f", "{}", "x"), call("g", "{}", "x")]
    results = [{"role": "tool", "content": text, "tool_call_ids": ["x"]} for text in "ab"]
    late = {"role": "tool", "content": "?", "tool_call_ids": ["z"]}
    more = {"role": "tool", "content": "c", "tool_call_ids": ["x"]}
    run, _, _, remarks = read({"history": [TASK, reply("T", "f", tool_calls=tool_calls), *results, more, late]})
    assert [item.tool_call_id for item in run.content] == [None, "x", "x_2", "x", "x_2", None, None]
    assert [item.turn for item in run.content] == [0, 1, 1, 1, 1, 1, 1]
    assert [getattr(item, "description", None) for item in run.content[1:3]] == ["T", None]
    assert remarks == {"repeated_call_id": 1, "duplicate_result": 1, "orphan_result": 1}
    assert run.extra["swe_agent"]["content"]["6"]["tool_call_id"] == "z"


def test_demonstrations_are_no_part_of_the_run() -> None:
    demos = [shown("A demonstration.", is_demo=True), reply("D", "ls", is_demo=True)]
    run = read({"history": [SYSTEM, *demos, TASK, reply("Go.", "ls")]}).trajectory
    assert [type(item) for item in run.content] == [TextObservation, CodeAction]
    assert run.extra["swe_agent"]["demonstrations"] == demos


def test_a_prompt_is_kept_where_history_does_not_show_it() -> None:
    elided = shown("Old output: 3 lines omitted")
    for name in ("query", "messages"):
        steps = [
            step("A", "ls", "x", **{name: [SYSTEM, TASK]}),
            step("B", "pwd", "y", **{name: [SYSTEM, TASK, elided]}),
        ]
        history = [SYSTEM, TASK, reply("A", "ls"), shown("x"), reply("B", "pwd"), shown("y")]
        rest = read({"trajectory": steps, "history": history}).trajectory.extra["swe_agent"]["content"]
        assert name not in rest["1"]
        assert rest["3"][name] == {"2": elided}
    run = read({"trajectory": [step("A", "ls", "x", query=[SYSTEM, TASK])]}).trajectory
    assert run.system_prompt == "Use the shell."
    assert [type(item) for item in run.content] == [TextObservation, CodeAction, TextObservation]


def test_what_the_scaffold_wrote_when_it_gave_up_is_no_turn() -> None:
    ending = {"action": "", "observation": "Exited", "response": "", "thought": "Exit due to cost limit"}
    message = {"role": "assistant", "content": "", "thought": "Exit due to cost limit", "action": ""}
    document = {
        "trajectory": [step("A", "ls", "x"), ending],
        "history": [TASK, reply("A", "ls"), shown("x"), message],
        "info": {"exit_status": "submitted (exit_cost)"},
    }
    run = read(document).trajectory
    assert len(run.content) == 3
    assert run.extra["swe_agent"]["empty_turns"] == [{"message": message, "step": ending}]
    assert (run.outcome.terminated, run.outcome.truncated) == (False, True)


def test_attempts_of_a_retrying_agent_are_runs_of_their_own() -> None:
    attempts = [
        {"trajectory": [step("A", name, "x")], "history": [TASK, reply("A", name)], "info": {"exit_status": name}}
        for name in ("one", "two", "three")
    ]
    finished = {**attempts[1], "info": {"exit_status": "two", "best": 1}, "attempts": attempts}
    run, _, others, _ = read(finished)
    assert (run.attempt, [each.attempt for each in others]) == (1, [0, 2])
    assert run.outcome.reason == "two"
    assert run.extra["swe_agent"]["attempt"] == {"info": {"exit_status": "two"}}
    assert len({run.trajectory_id, *(each.trajectory_id for each in others)}) == 3
    run, _, others, _ = read({"attempts": attempts})
    assert [run.attempt, *(each.attempt for each in others)] == [0, 1, 2]


def test_thinking_tags_and_parts_are_kept() -> None:
    blocks = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}]
    parts = [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]
    image = [{"type": "text", "text": "y"}, {"type": "image_url", "image_url": {"url": "a.png"}}]
    history = [
        TASK,
        reply("", "ls", thinking_blocks=blocks, tags=["t"]),
        shown("", content=parts),
        shown("", content=image),
    ]
    run = read({"history": history}).trajectory
    action = run.content[1]
    assert isinstance(action, CodeAction)
    assert action.reasoning_content == "Hm."
    rest = run.extra["swe_agent"]["content"]
    assert rest["1"] == {"tags": ["t"], "thinking_blocks": [{"signature": "s"}]}
    assert rest["2"] == {"content": parts}
    assert [getattr(item, "content", None) for item in run.content] == ["Fix it.\r\n", "ls", "x", "y", "a.png"]


def test_the_task_is_known_from_the_replay_configuration_and_its_key_is_dropped() -> None:
    replay = {"problem_statement": {"id": "repo-7"}, "agent": {"model": {"name": "m", "api_key": "secret"}}}
    for given in (replay, msgspec.json.encode(replay).decode()):
        run, losses, _, _ = read({"history": [TASK], "replay_config": given})
        assert run.task_id == "repo-7"
        assert losses == {"replay_config.api_key": 1}
        assert b"secret" not in msgspec.json.encode(run)
    run = read({"history": [TASK], "replay_config": "{oops"}).trajectory
    assert run.extra["swe_agent"]["replay_config"] == "{oops"


def test_no_key_of_a_retrying_agent_is_stored() -> None:
    models = [{"model": {"name": "m", "api_key": "secret"}}, {"model": {"name": "n", "api_key": None}}]
    replay = {"agent": {"type": "retry", "agent_configs": models, "retry_loop": {"model": {"api_key": "secret"}}}}
    run, losses, _, _ = read({"history": [TASK], "replay_config": replay})
    assert losses == {"replay_config.api_key": 2}
    assert b"secret" not in msgspec.json.encode(run)
    run, losses, _, _ = read({"history": [TASK], "replay_config": "agent:\n  model:\n    api_key: secret"})
    assert losses == {"replay_config": 1}
    assert b"secret" not in msgspec.json.encode(run)
    assert SweAgent.personal


def test_a_reply_without_a_command_is_a_message() -> None:
    history = [TASK, {"role": "assistant", "content": "I am lost."}, shown("Your output was not formatted correctly.")]
    run = read({"history": history}).trajectory
    assert isinstance(run.content[1], MessageAction)
    answer = run.content[2]
    assert isinstance(answer, TextObservation)
    assert (answer.source, answer.tool_call_id) == ("environment", None)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"history": []},
        {"history": None},
        {"history": "x"},
        {"history": ["x"]},
        {"trajectory": {}},
        {"attempts": [{}]},
    ],
)
def test_what_holds_no_run_is_refused(document: Any) -> None:
    with pytest.raises(FormatError) as caught:
        read(document)
    assert caught.value.reason == "invalid"
