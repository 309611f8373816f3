"""The fields of ATIF v1.7 (Harbor RFC 0001), by where they are, and how ADP's dialect differs."""

from __future__ import annotations

from typing import Any, Literal

from agentmill.schemas.format import Losses
from agentmill.schemas.records.record import JsonObject

VERSION = "ATIF-v1.7"
"""The version that is written."""
VERSIONS = frozenset(f"ATIF-v1.{minor}" for minor in range(9))
"""The versions that are read."""

STEP = (
    *("step_id", "timestamp", "source", "message", "model_name", "reasoning_effort", "reasoning_content"),
    *("tool_calls", "observation", "metrics", "llm_call_count", "is_copied_context", "extra"),
)
AGENT_ONLY = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")
"""Fields that only the steps of agents have."""
CALL = ("tool_call_id", "function_name", "arguments", "extra")
RESULT = ("source_call_id", "content", "subagent_trajectory_ref", "extra")
REFERENCE = ("trajectory_id", "trajectory_path", "session_id", "extra")
METRICS = (
    *("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd"),
    *("prompt_token_ids", "completion_token_ids", "logprobs", "extra"),
)
FINAL_METRICS = (
    *("total_prompt_tokens", "total_completion_tokens", "total_cached_tokens", "total_cost_usd"),
    *("total_steps", "extra"),
)
AGENT = ("name", "version", "model_name", "tool_definitions", "extra")
TRAJECTORY = (
    *("schema_version", "session_id", "trajectory_id", "agent", "steps", "notes", "final_metrics"),
    *("continued_trajectory_ref", "extra", "subagent_trajectories"),
)
MEDIA_TYPES = {
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "png": "image/png",
    "gif": "image/gif",
    "webp": "image/webp",
}
"""By the suffix of an image's path."""


AtifDialect = Literal["strict", "adp"]


def finish(step: JsonObject, number: int, dialect: AtifDialect, losses: Losses) -> None:
    """Make ``step`` one that the dialect allows, in place: what it has no field for goes, and is counted."""
    step["step_id"] = number
    if step["source"] not in ("system", "user", "agent"):
        losses["steps.source"] += 1
        step["source"] = "user"
    allowed: tuple[str, ...] = STEP
    if dialect == "strict" and step["source"] != "agent":
        allowed = tuple(key for key in STEP if key not in AGENT_ONLY)
    # The RFC forbids these on a step that no model was called for.
    if dialect == "strict" and step.get("llm_call_count") == 0:
        allowed = tuple(key for key in allowed if key not in ("metrics", "reasoning_content"))
    keep(step, allowed, "steps", losses)
    step["message"] = _content(step.get("message", ""), dialect, "steps.message", losses)
    if isinstance(step.get("metrics"), dict):
        step["metrics"] = _metrics(step["metrics"], dialect, losses)
    if dialect == "adp" and "reasoning_effort" in step:
        step["reasoning_effort"] = str(step["reasoning_effort"])
    for call in step.get("tool_calls", []):
        keep(call, CALL, "steps.tool_calls", losses)
    for result in step.get("observation", {}).get("results", []):
        keep(result, RESULT, "steps.observation.results", losses)
        if "content" in result or dialect == "adp":
            result["content"] = _content(
                result.get("content", ""), dialect, "steps.observation.results.content", losses
            )
        if isinstance(result.get("subagent_trajectory_ref"), list):
            result["subagent_trajectory_ref"] = _part_references(result["subagent_trajectory_ref"], losses)


def keep(fields: JsonObject, allowed: tuple[str, ...], path: str, losses: Losses) -> None:
    """Leave only fields that are ``allowed`` and not null; others are counted."""
    for key in [key for key, value in fields.items() if key not in allowed or value is None]:
        if fields.pop(key) is not None:
            losses[f"{path}.{key}"] += 1


def _metrics(metrics: JsonObject, dialect: AtifDialect, losses: Losses) -> JsonObject:
    """Metrics with the name that the dialect has for the cost."""
    # The RFC and ADP's tools name the cost differently.
    old, new = ("cost", "cost_usd") if dialect == "strict" else ("cost_usd", "cost")
    named = {new if key == old and new not in metrics else key: value for key, value in metrics.items()}
    keep(named, tuple(new if key == "cost_usd" else key for key in METRICS), "steps.metrics", losses)
    return named


def _content(content: Any, dialect: AtifDialect, path: str, losses: Losses) -> Any:
    """A text, or the parts of it that version 1.7 knows."""
    if not isinstance(content, list):
        return content
    parts = [part for part in content if _is_part(part, dialect)]
    losses[path] += len(content) - len(parts)
    return parts


def _is_part(part: Any, dialect: AtifDialect) -> bool:
    if not isinstance(part, dict) or (dialect == "strict" and part.keys() - {"type", "text", "source"}):
        return False
    if part.get("type") == "text":
        return isinstance(part.get("text"), str) and part.get("source") is None
    source = part.get("source")
    if part.get("type") != "image" or not isinstance(source, dict) or not isinstance(source.get("path"), str):
        return False
    return part.get("text") is None and (dialect == "adp" or source.get("media_type") in MEDIA_TYPES.values())


def _part_references(references: list[Any], losses: Losses) -> list[JsonObject]:
    """References that say where the trajectory is: before version 1.7 ``session_id`` alone could."""
    found = [dict(each) for each in references if isinstance(each, dict)]
    for each in found:
        keep(each, REFERENCE, "steps.observation.results.subagent_trajectory_ref", losses)
    legal = [each for each in found if each.keys() & {"trajectory_id", "trajectory_path"}]
    losses["steps.observation.results.subagent_trajectory_ref"] += len(references) - len(legal)
    return legal
