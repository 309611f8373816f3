"""Hypothesis strategies for ATIF documents: whatever the strict form can say."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.schemas.records import json_objects, texts

ids = st.sampled_from(["a", "b", "c", "call_1"])
numbers = st.integers(0, 10**6)
extras = json_objects.filter(lambda each: bool(each) and "agentmill" not in each)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


images = st.fixed_dictionaries(
    {
        "type": st.just("image"),
        "source": st.fixed_dictionaries({"media_type": st.just("image/png"), "path": st.just("images/1.png")}),
    }
)
parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}) | images, min_size=1, max_size=3)
contents = texts | parts
references = st.lists(
    st.fixed_dictionaries({"trajectory_path": texts}, optional={"session_id": texts, "extra": extras}), max_size=2
)
metrics = some(
    prompt_tokens=numbers,
    completion_tokens=numbers,
    cached_tokens=numbers,
    cost_usd=st.floats(0, 10),
    prompt_token_ids=st.lists(numbers, max_size=3),
    completion_token_ids=st.lists(numbers, max_size=3),
    logprobs=st.lists(st.floats(-9, 0), max_size=3),
    extra=extras,
)
calls = st.lists(
    st.fixed_dictionaries(
        {"tool_call_id": ids, "function_name": texts, "arguments": json_objects}, optional={"extra": extras}
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda call: call["tool_call_id"],
)
common = {"timestamp": st.just("2026-01-01T00:00:00Z"), "extra": extras, "is_copied_context": st.booleans()}


@st.composite
def results(draw: st.DrawFn, names: list[str]) -> dict[str, Any]:
    optional: dict[str, Any] = {"content": contents, "subagent_trajectory_ref": references, "extra": extras}
    if names:
        optional["source_call_id"] = st.sampled_from(names)
    return draw(some(**optional))


@st.composite
def agent_steps(draw: st.DrawFn) -> dict[str, Any]:
    optional = {
        **common,
        "model_name": texts,
        "reasoning_effort": st.sampled_from(["high", 0.5]),
        "reasoning_content": texts,
        "metrics": metrics,
        "tool_calls": calls,
        "llm_call_count": st.integers(1, 3),
    }
    step = draw(st.fixed_dictionaries({"source": st.just("agent"), "message": contents}, optional=optional))
    if draw(st.booleans()):
        names = [call["tool_call_id"] for call in step.get("tool_calls", [])]
        step["observation"] = {"results": draw(st.lists(results(names), min_size=1, max_size=3))}
    return step


@st.composite
def other_steps(draw: st.DrawFn) -> dict[str, Any]:
    source = st.sampled_from(["user", "system"])
    step = draw(st.fixed_dictionaries({"source": source, "message": contents}, optional=common))
    if draw(st.booleans()):
        step["observation"] = {"results": draw(st.lists(results([]), min_size=1, max_size=2))}
    return step


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    agent = st.fixed_dictionaries({"name": texts, "version": texts}, optional={"model_name": texts, "extra": extras})
    optional = {
        "session_id": texts,
        "trajectory_id": texts,
        "notes": texts,
        "continued_trajectory_ref": texts,
        "extra": extras,
        "final_metrics": some(
            total_prompt_tokens=numbers, total_cost_usd=st.floats(0, 10), total_steps=numbers, extra=extras
        ).filter(bool),
    }
    steps = draw(st.lists(agent_steps() | other_steps(), min_size=1, max_size=5))
    for number, step in enumerate(steps, start=1):
        step["step_id"] = number
    return draw(
        st.fixed_dictionaries(
            {"schema_version": st.just("ATIF-v1.7"), "agent": agent, "steps": st.just(steps)}, optional=optional
        )
    )
