"""One small record of every format that is only read: two turns, a call that is answered, a label or an ending."""

from __future__ import annotations

import json
from typing import Any

SYSTEM, TASK, ANSWER = "Use tools.", "Where is the ball?", "On the floor."

SWE_AGENT: dict[str, Any] = {
    "trajectory": [
        {"action": "ls", "observation": "ball", "response": "L\n```\nls```", "thought": "L\n", "state": "{}"}
    ],
    "history": [
        {"role": "system", "content": SYSTEM, "agent": "main"},
        {"role": "user", "content": TASK, "agent": "main"},
        {"role": "assistant", "content": "L\n```\nls```", "thought": "L\n", "action": "ls", "agent": "main"},
        {"role": "user", "content": "ball\nbash-$", "agent": "main"},
    ],
    "info": {"exit_status": "submitted"},
}

OPENHANDS: dict[str, Any] = {
    "instance_id": "i",
    "test_result": {"report": {"resolved": False}},
    "history": [
        {"id": 0, "source": "agent", "action": "system", "args": {"content": SYSTEM}},
        {"id": 1, "source": "user", "action": "message", "args": {"content": TASK}},
        {"id": 2, "source": "agent", "action": "run", "args": {"command": "ls"}},
        {"id": 3, "source": "agent", "observation": "run", "content": "ball", "cause": 2},
        {"id": 4, "source": "agent", "action": "message", "args": {"content": ANSWER}},
    ],
}


def node(kind: str, text: str, *children: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A node of a ToolBench tree."""
    return {"node_type": kind, "description": text, "children": list(children), "pruned": False, **fields}


def call(name: str, arguments: str, seen: str, code: int, *children: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The two nodes of a call."""
    given = node("Action Input", arguments, *children, observation=seen, observation_code=code, **fields)
    return node("Action", name, given)


TOOLBENCH: dict[str, Any] = {
    "win": True,
    "tree": {
        "size": 7,
        "tree": node(
            "Action Input",
            "",
            node(
                "Thought",
                "Look.",
                call(
                    "look",
                    '{"where": "floor"}',
                    "a ball",
                    0,
                    call("Finish", '{"return_type": "give_up_and_restart"}', "chose to give up", 4, pruned=True),
                    call("Finish", '{"final_answer": "floor"}', "answered", 3),
                ),
            ),
        ),
    },
    "answer_generation": {
        "query": TASK,
        "function": [
            {"name": "look", "description": "d", "parameters": {"type": "object"}},
            {"name": "Finish", "parameters": {"type": "object"}},
        ],
        "train_messages": [
            [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"\n{TASK}\nBegin!\n"},
                {"role": "user", "content": "This is not the first time.", "valid": False},
                {
                    "role": "assistant",
                    "content": None,
                    "function_call": {"name": "look", "arguments": '{"where": "floor"}'},
                },
            ],
        ],
    },
}


def says(role: str, *parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A message of a ``gen_ai`` span."""
    return {"role": role, "parts": list(parts), **fields}


def text(content: str) -> dict[str, Any]:
    """A text part."""
    return {"type": "text", "content": content}


def chat(span_id: str, start: int, given: list[Any], answered: list[Any], **attributes: Any) -> dict[str, Any]:
    """A chat span inside the span ``agent``."""
    return {
        "spanId": span_id,
        "parentSpanId": "agent",
        "startTimeUnixNano": str(start),
        "attributes": {
            "gen_ai.operation.name": "chat",
            "gen_ai.input.messages": given,
            "gen_ai.output.messages": answered,
            **attributes,
        },
    }


ASKS = says("user", text(TASK))
CALLS = says(
    "assistant", text("Look."), {"type": "tool_call", "id": "c", "name": "look", "arguments": {"where": "floor"}}
)
SEES = says("tool", {"type": "tool_call_response", "id": "c", "response": "a ball"})
SAYS = says("assistant", text(ANSWER))
OTEL: list[dict[str, Any]] = [
    {"spanId": "agent", "startTimeUnixNano": "1", "attributes": {"gen_ai.operation.name": "invoke_agent"}},
    chat("one", 2, [ASKS], [{**CALLS, "finish_reason": "tool_call"}], **{"gen_ai.system_instructions": [text(SYSTEM)]}),
    chat("two", 3, [ASKS, CALLS, SEES], [{**SAYS, "finish_reason": "stop"}]),
]


def browsed(place: int, action: str, error: str = "", reply: str = "", **run: Any) -> dict[str, Any]:
    """A row of Go-Browse; ``reply`` is what the agent said in the row before."""
    said = json.dumps({"thought": "Look.", "action": action})
    return {
        "graph_data": {"domain": "map"},
        "node_data": {"node_url": "http://map"},
        "step_data": {
            "action": said,
            "misc": {"model_usage": {"total_tokens": 7}},
            "obs": {
                "axtree_txt": f"[{place}] link 'Find'",
                "axtree_visible_only_txt": "[1] link",
                "last_action": reply,
                "last_action_error": error,
                "pruned_html": f"<a bid='{place}'>",
            },
            "parsed_action": action,
            "step_number": place,
            "thought": "Look.",
        },
        "traj_data": {
            "goal": TASK,
            "misc": {},
            "response": "N/A",
            "reward": 0.0,
            "success": False,
            "traj_num": 3,
            **run,
        },
    }


CLICK = browsed(0, "click('149')")
GO_BROWSE: list[dict[str, Any]] = [
    CLICK,
    browsed(1, "fill('158', 'floor')", "no such element", CLICK["step_data"]["action"]),
]


def chosen(op: str, value: str, node_id: str) -> dict[str, Any]:
    """A step of Mind2Web."""
    others = [{"tag": "div", "backend_node_id": "8", "is_original_target": False}]
    return {
        "action_uid": f"uid-{node_id}",
        "raw_html": f"<input backend_node_id={node_id}>",
        "cleaned_html": "<input>",
        "operation": {"op": op, "original_op": op, "value": value},
        "pos_candidates": [*others, {"tag": "input", "backend_node_id": node_id, "is_original_target": True}],
        "neg_candidates": [{"tag": "a", "backend_node_id": "9"}],
    }


MIND2WEB: dict[str, Any] = {
    "website": "map",
    "annotation_id": "a",
    "confirmed_task": TASK,
    "action_reprs": ["[input] -> CLICK", "[input] -> TYPE: floor"],
    "actions": [chosen("CLICK", "", "1"), chosen("TYPE", "floor", "2")],
}

RECORDS: dict[str, Any] = {
    "openhands": OPENHANDS,
    "otel": OTEL,
    "steps": [{"action": "look(where='box')", "reward": 1}, {"action": "stop()", "seen": "empty"}],
    "swe_agent": SWE_AGENT,
    "toolbench": TOOLBENCH,
}
BROWSED = frozenset({"steps"})
"""Those whose runs see web pages: one before the first action, and no system prompt."""
