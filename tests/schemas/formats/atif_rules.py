"""The rules of ATIF v1.7 as a checker of documents, written from the RFC's description and apart from our writer."""

from __future__ import annotations

from typing import Any

AGENT_ONLY = {"model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics"}
TRAJECTORY = {
    *("schema_version", "session_id", "trajectory_id", "agent", "steps", "notes", "extra", "final_metrics"),
    *("continued_trajectory_ref", "subagent_trajectories"),
}
STEP = {
    *("step_id", "timestamp", "source", "message", "observation", "llm_call_count", "is_copied_context", "extra"),
    *AGENT_ONLY,
}
METRICS = {
    *("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd", "prompt_token_ids", "completion_token_ids"),
    *("logprobs", "extra"),
}
FINAL = {
    *(
        "total_prompt_tokens",
        "total_completion_tokens",
        "total_cached_tokens",
        "total_cost_usd",
        "total_steps",
        "extra",
    ),
}


def broken(document: dict[str, Any], dialect: str = "strict") -> list[str]:
    """What of the document breaks the rules of the dialect."""
    found = unknown(document, TRAJECTORY, "trajectory")
    if document.get("schema_version") != "ATIF-v1.7":
        found.append("version")
    agent = document["agent"]
    found += unknown(agent, {"name", "version", "model_name", "tool_definitions", "extra"}, "agent")
    found += [f"agent.{key}" for key in ("name", "version") if not isinstance(agent.get(key), str)]
    found += unknown(document.get("final_metrics", {}), FINAL, "final_metrics")
    if not document["steps"]:
        found.append("no steps")
    for number, step in enumerate(document["steps"], start=1):
        if step.get("step_id") != number:
            found.append(f"step_id {step.get('step_id')} at {number}")
        found += [f"step {number}: {text}" for text in _step(step, dialect)]
    return found + nulls(document)


def unknown(fields: dict[str, Any], allowed: set[str], path: str) -> list[str]:
    return [f"{path} has {key}" for key in fields.keys() - allowed]


def nulls(value: Any) -> list[str]:
    """Nulls outside of what is open."""
    if isinstance(value, dict):
        inner = [found for key, each in value.items() if key not in OPEN for found in nulls(each)]
        return [f"null {key}" for key, each in value.items() if each is None] + inner
    return [found for each in value for found in nulls(each)] if isinstance(value, list) else []


OPEN = {"extra", "arguments", "tool_definitions", "logprobs"}


def _step(step: dict[str, Any], dialect: str) -> list[str]:
    found = unknown(step, STEP, "step")
    if step["source"] not in ("system", "user", "agent"):
        found.append(f"source {step['source']}")
    if dialect == "strict" and step["source"] != "agent":
        found += [f"{key} of a step that is no agent's" for key in AGENT_ONLY & step.keys()]
    cost = {"cost" if key == "cost_usd" and dialect == "adp" else key for key in METRICS}
    found += unknown(step.get("metrics", {}), cost, "metrics")
    if dialect == "strict" and step.get("llm_call_count") == 0 and step.keys() & {"metrics", "reasoning_content"}:
        found.append("metrics of no model")
    found += _content(step["message"], dialect)
    names = []
    for call in step.get("tool_calls", []):
        found += unknown(call, {"tool_call_id", "function_name", "arguments", "extra"}, "call")
        names.append(call["tool_call_id"])
        if not isinstance(call["arguments"], dict) or not isinstance(call["function_name"], str):
            found.append("call")
    for result in step.get("observation", {}).get("results", []):
        found += unknown(result, {"source_call_id", "content", "subagent_trajectory_ref", "extra"}, "result")
        if dialect == "strict" and result.get("source_call_id") not in [None, *names]:
            found.append(f"result of call {result['source_call_id']}")
        if dialect == "adp" and "content" not in result:
            found.append("result without content")
        found += _content(result.get("content", ""), dialect)
        for reference in result.get("subagent_trajectory_ref", []):
            found += unknown(reference, {"trajectory_id", "trajectory_path", "session_id", "extra"}, "reference")
            if not reference.keys() & {"trajectory_id", "trajectory_path"}:
                found.append("reference to nothing")
    return found


def _content(content: Any, dialect: str) -> list[str]:
    if isinstance(content, str):
        return []
    found = []
    for part in content:
        if part["type"] == "text" and (part.keys() != {"type", "text"} or not isinstance(part["text"], str)):
            found.append("text part")
        if part["type"] == "image" and part["source"].get("media_type", "")[:6] != "image/" and dialect == "strict":
            found.append("image part")
    return found
