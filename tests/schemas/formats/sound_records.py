"""Sound records of every format, each kind of item and each shape of record among them."""

from __future__ import annotations

from typing import Any

from agentmill.schemas.formats import FORMATS, READ_ONLY
from agentmill.schemas.records.trajectory import (
    BoundingBox,
    CodeAction,
    Generation,
    ImageAnnotation,
    ImageObservation,
    TextObservation,
    TurnTokens,
    Usage,
    WebObservation,
)
from tests.builders import agent_message, called, instruction, outcome, seen, tool, trajectory
from tests.schemas.formats.log_records import ANSWER, OTEL, RECORDS, SYSTEM, TASK

RUN = trajectory(
    content=[
        instruction(),
        called("look", 1, "a", where="box", how={"deep": [1, None, "01"]}),
        called("look", 1, "b", where="bed"),
        seen("a ball", 1, tool_call_id="a"),
        seen("nothing", 1, tool_call_id="b", error=True),
        agent_message("Done.", 2, reasoning_content="It is there."),
    ],
    tools=[tool("look")],
    system_prompt="You tidy up.",
    outcome=outcome("success"),
)
SHOWN = trajectory(
    content=[
        instruction(),
        CodeAction(
            language="python",
            content="x",
            turn=1,
            tool_call_id="a",
            reward=0.5,
            tokens=TurnTokens(prompt_ids=[1, 2], sampled_ids=[3], logprobs=[-0.5], segment_start=True),
        ),
        WebObservation(
            html="<p>",
            url="http://x",
            viewport_size=(3, 4),
            turn=1,
            tool_call_id="a",
            image_observation=ImageObservation(content="a.png", source="environment"),
        ),
        ImageObservation(
            content="b.png",
            source="user",
            turn=1,
            annotations=[
                ImageAnnotation(
                    text="t", element_type="button", bounding_box=BoundingBox(x=0.0, y=1.0, width=2.0, height=3.0)
                )
            ],
        ),
        TextObservation(content="less", source="environment", turn=1, context_operation="condense"),
        agent_message("Done.", 2),
    ],
    generation=Generation(
        model="m", revision=None, policy="p", strategy="s", scaffold="c", sampling={"temperature": 0.5}, seed=7
    ),
    usage=Usage(prompt_tokens=5, seconds=0.5, cost_usd=0.1),
    attempt=1,
    branch_turn=1,
    outcome=outcome("failure"),
)
OTHER = trajectory(
    content=[*RUN.content[:-1], agent_message("No.", 2)], tools=RUN.tools, system_prompt=RUN.system_prompt
)

_CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"where": "floor"}'}}
_ATTEMPT: dict[str, Any] = {
    "trajectory": [{"action": "", "observation": "ball", "response": "L", "thought": "L", "query": [{"role": "user"}]}],
    "history": [
        {"role": "system", "content": [{"type": "text", "text": SYSTEM}]},
        {"role": "user", "content": "d", "is_demo": True},
        {"role": "user", "content": TASK, "message_type": "observation"},
        {"role": "assistant", "content": "L", "tool_calls": [_CALL], "thinking_blocks": [{"thinking": "t"}]},
        {"role": "tool", "content": [{"type": "text", "text": "ball"}], "tool_call_ids": ["c"]},
    ],
    "info": {"exit_status": "exit_cost", "model_stats": {"tokens_sent": 5, "instance_cost": 0.5}},
}
_META = {
    "tool_call_id": "c",
    "function_name": "look",
    "model_response": {"id": "r", "usage": {"prompt_tokens": 3}, "choices": [{"message": {"tool_calls": [_CALL]}}]},
}
_OLD = [
    {"id": 0, "source": "agent", "action": "system", "args": {"content": SYSTEM, "tools": [{"name": "look"}]}},
    {"id": 1, "source": "user", "action": "message", "args": {"content": TASK, "image_urls": []}},
    {"id": 2, "source": "agent", "action": "run", "args": {"command": "ls"}, "tool_call_metadata": _META},
    {"id": 3, "source": "agent", "observation": "run", "content": "ball", "cause": 2, "extras": {"error": True}},
    {"id": 4, "source": "agent", "action": "delegate", "args": {"agent": "b", "thought": "t"}},
    {"id": 5, "source": "agent", "observation": "delegate", "content": "", "cause": 4, "extras": '{"outputs": {}}'},
    {"id": 6, "source": "agent", "action": "condensation", "args": {"summary": "s"}},
    {"id": 7, "source": "agent", "action": "change_agent_state", "llm_metrics": {"accumulated_cost": 0.5}},
]
_SDK = [
    {"kind": "SystemPromptEvent", "system_prompt": {"type": "text", "text": SYSTEM}, "tools": [{"name": "look"}]},
    {
        "kind": "MessageEvent",
        "source": "user",
        "llm_message": {"role": "user", "content": [{"type": "image", "image_urls": ["a.png"]}]},
        "extended_content": [{"type": "text", "text": TASK}],
    },
    {
        "kind": "ActionEvent",
        "thought": [{"type": "text", "text": "t"}],
        "tool_name": "look",
        "tool_call_id": "c",
        "tool_call": _CALL,
        "action": {"kind": "Look", "where": "floor"},
        "llm_response_id": "r",
        "reasoning_content": "hm",
    },
    {
        "kind": "ObservationEvent",
        "tool_name": "look",
        "tool_call_id": "c",
        "observation": {"content": [{"type": "text", "text": "ball"}], "is_error": False},
    },
    {"kind": "Condensation", "summary": "s"},
    {"kind": "AgentErrorEvent", "error": "e", "tool_name": "look", "tool_call_id": "c"},
    {"kind": "MessageEvent", "source": "agent", "llm_message": {"role": "assistant", "content": ANSWER}},
]
_OTLP = {
    "resourceSpans": [
        {
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "spanId": "a",
                            "attributes": [
                                {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
                                {"key": "gen_ai.input.messages", "value": {"stringValue": '[{"role": "user"}]'}},
                                {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "12"}},
                                {"key": "tags", "value": {"arrayValue": {"values": [{"intValue": 1}]}}},
                                {
                                    "key": "gen_ai.output.messages",
                                    "value": {
                                        "arrayValue": {
                                            "values": [
                                                {
                                                    "kvlistValue": {
                                                        "values": [
                                                            {"key": "role", "value": {"stringValue": "assistant"}},
                                                            {"key": "content", "value": {"stringValue": ANSWER}},
                                                        ]
                                                    }
                                                }
                                            ]
                                        }
                                    },
                                },
                            ],
                            "events": [
                                {
                                    "attributes": [
                                        {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 0.5}},
                                        {"key": "gen_ai.evaluation.score.label", "value": {"stringValue": "pass"}},
                                    ]
                                }
                            ],
                        }
                    ]
                }
            ]
        }
    ]
}
_TOOL = {
    "spanId": "tool",
    "parentSpanId": "agent",
    "startTimeUnixNano": "4",
    "status": {"code": 2},
    "attributes": {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.call.id": "c",
        "gen_ai.tool.call.result": {"ball": True},
    },
}
_ASKED = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": [{"type": "text", "text": TASK}]}]
_SAID = {"role": "assistant", "content": ANSWER, "weight": 1}
MORE: dict[str, list[Any]] = {
    "atif": [
        {
            "schema_version": "ATIF-v1.7",
            "agent": {"name": "a", "version": "1", "tool_definitions": [{"name": "look"}]},
            "steps": [
                {"step_id": 1, "source": "system", "message": SYSTEM},
                {
                    "step_id": 2,
                    "source": "agent",
                    "message": [{"type": "text", "text": "L"}],
                    "reasoning_content": "hm",
                    "tool_calls": [{"tool_call_id": "c", "function_name": "look", "arguments": {"where": "floor"}}],
                    "metrics": {"prompt_token_ids": [1], "completion_token_ids": [2], "logprobs": [-0.5]},
                    "observation": {
                        "results": [
                            {
                                "source_call_id": "c",
                                "content": "ball",
                                "subagent_trajectory_ref": [{"trajectory_id": "s"}],
                                "extra": {"reward": 0.5, "web": {"url": "http://x", "viewport_size": [3, 4]}},
                            }
                        ]
                    },
                },
            ],
            "final_metrics": {"total_prompt_tokens": 3, "total_cost_usd": 0.5},
            "subagent_trajectories": [
                {
                    "schema_version": "ATIF-v1.7",
                    "trajectory_id": "s",
                    "agent": {"name": "b", "version": "1"},
                    "steps": [{"step_id": 1, "source": "user", "message": TASK}],
                }
            ],
        }
    ],
    "openai": [
        {
            "messages": [
                *_ASKED,
                {"role": "assistant", "function_call": _CALL["function"]},
                {"role": "function", "name": "look", "content": "ball"},
                _SAID,
            ],
            "functions": [{"name": "look"}],
        }
    ],
    "trl": [
        {"prompt": _ASKED, "completion": [_SAID], "label": True},
        {"chosen": [*_ASKED, _SAID], "rejected": [*_ASKED, {**_SAID, "content": "No."}]},
        {"prompt": TASK, "completions": ["One.", "Two."], "labels": [True, False]},
    ],
    "sharegpt": [
        {
            "conversations": [{"from": "human", "value": TASK}],
            "system": SYSTEM,
            "chosen": {"from": "gpt", "value": "<think>\nhm\n</think>\n\nA."},
            "rejected": {"from": "gpt", "value": "No."},
        },
        {"conversations": [{"from": "human", "value": TASK}, {"from": "gpt", "value": "A."}], "kto_tag": True},
    ],
    "xlam": [{"messages": _ASKED, "chosen": '[TOOL_CALLS] [{"name": "look", "arguments": {}}]'}],
    "openhands": [_OLD, {"events": _SDK, "resolved": True, "instance_id": "i"}],
    "otel": [_OTLP, [*OTEL[:2], _TOOL]],
    "swe_agent": [
        {"attempts": [_ATTEMPT, RECORDS["swe_agent"]], "replay_config": '{"problem_statement": {"id": "i"}}'}
    ],
}
"""Records of shapes that no run of ours is written in."""


def sound_records(name: str) -> list[Any]:
    """Records of a format, as JSON values."""
    if name in READ_ONLY:
        return [RECORDS[name], *MORE.get(name, ())]
    sound = FORMATS.load(name)()
    written = [sound.write(run).document for run in (RUN, SHOWN)]
    pairs = [sound.write_pair(RUN, OTHER).document] if hasattr(sound, "write_pair") else []
    return [*written, *pairs, *MORE.get(name, ())]
