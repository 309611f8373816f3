"""Counting what trajectories hold, and summing it up for a data set: pure functions of one run, or of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import msgspec
import polars as pl

from agentmill.pipelines.refusals import is_refusal
from agentmill.pipelines.sensitive.findings import SORTS
from agentmill.pipelines.sensitive.patterns import Sort
from agentmill.schemas.ids import digest
from agentmill.schemas.records.trajectory import (
    Action,
    AnyItem,
    ApiAction,
    CodeAction,
    MessageAction,
    TextObservation,
    Trajectory,
    WebObservation,
)
from agentmill.schemas.records.verdict import Ending, Quality
from agentmill.schemas.tables import Table
from agentmill.synthesis.environments.environment import misfit
from agentmill.synthesis.language import LEAST_CHARACTERS

MOST_CHARACTERS = 4_000
"""As much of what an agent says decides on its language."""

ADP_THOUGHT_SHARE = 0.8
"""Of the calls of a run, those with a thought that the Agent Data Protocol asks for (arXiv:2510.24702)."""

Count = Callable[[Sequence[str]], list[int]]
"""The number of tokens of each text."""
Identify = Callable[[str], str]


def quality(
    run: Trajectory, count_tokens: Count | None, identify: Identify, sensitive: Mapping[Sort, int] | None = None
) -> Quality:
    """The row of one run; ``identify`` names the language of a text, ``sensitive`` counts what was found by sort."""
    calls = [item for item in run.content if isinstance(item, ApiAction | CodeAction)]
    tools = {tool.name: tool for tool in run.tools}
    named = [call for call in calls if isinstance(call, ApiAction)]
    thoughts = [thought(call) for call in calls]
    messages = [item.content for item in run.content if isinstance(item, MessageAction)]
    text = " ".join(filter(None, [*thoughts, *messages]))
    texts = list(texts_of(run))
    lengths = count_tokens(texts) if count_tokens is not None else None
    refusals = list(map(is_refusal, messages))
    found = {} if sensitive is None else {sort: sensitive.get(sort, 0) for sort in SORTS}
    return Quality(
        trajectory_id=run.trajectory_id,
        content_digest=digest([*texts, *(msgspec.to_builtins(call.kwargs) for call in named)]),
        ending=ending(run.content),
        items=len(run.content),
        turns=max((item.turn for item in run.content), default=0),
        messages=len(messages),
        calls=len(calls),
        calls_with_thought=sum(map(bool, thoughts)),
        calls_unanswered=len(unanswered(run.content)),
        calls_undeclared=sum(bool(tools) and call.function not in tools for call in named),
        calls_misfit=sum(misfit(call, tools[call.function]) is not None for call in named if call.function in tools),
        results_unlinked=len(unlinked(run.content)),
        errors=sum(item.error for item in run.content),
        characters=sum(map(len, texts)),
        starts_with_user=bool(run.content) and getattr(run.content[0], "source", None) == "user",
        has_system_prompt=bool(run.system_prompt),
        tokens=None if lengths is None else sum(lengths),
        language=identify(text[:MOST_CHARACTERS]) if len(text) >= LEAST_CHARACTERS else None,
        code_languages=sorted({item.language for item in run.content if isinstance(item, CodeAction)}),
        status=run.outcome.status if run.outcome is not None else None,
        longest_text=None if lengths is None else max(lengths, default=0),
        refusals=sum(refusals),
        refused=bool(refusals) and refusals[-1],
        secrets=found.get("secret"),
        personal=found.get("personal"),
        paths=found.get("path"),
    )


def thought(action: Action) -> str:
    """What the agent thought before it acted."""
    return (action.description or action.reasoning_content or "").strip()


def texts_of(run: Trajectory) -> Iterator[str]:
    """All texts of a run, in order; of calls the arguments."""
    yield run.system_prompt or ""
    for item in run.content:
        if isinstance(item, Action):
            yield from filter(None, (item.reasoning_content, item.description))
        if isinstance(item, ApiAction):
            yield item.function
            yield item.raw_arguments or msgspec.json.encode(item.kwargs).decode()
        elif isinstance(item, WebObservation):
            yield from filter(None, (item.url, item.axtree or item.html))
        elif isinstance(item, MessageAction | CodeAction | TextObservation):
            yield item.content


def ending(content: Sequence[AnyItem]) -> Ending:
    """What a run ends in."""
    if not content:
        return "nothing"
    last = content[-1]
    kinds: tuple[tuple[type[Any], Ending], ...] = (
        (MessageAction, "message"),
        (ApiAction, "call"),
        (CodeAction, "code"),
    )
    return next((name for kind, name in kinds if isinstance(last, kind)), "observation")


def unanswered(content: Sequence[AnyItem]) -> list[AnyItem]:
    """The calls that no observation answers: by id, or where neither has one, by coming next."""
    answered = {item.tool_call_id for item in content if not isinstance(item, Action)}
    left: list[AnyItem] = []
    for item, after in zip_longest(content, content[1:]):
        if not isinstance(item, ApiAction | CodeAction):
            continue
        linked = item.tool_call_id is not None and item.tool_call_id in answered
        next_to = item.tool_call_id is None and after is not None and not isinstance(after, Action)
        if not (linked or next_to):
            left.append(item)
    return left


def unlinked(content: Sequence[AnyItem]) -> list[AnyItem]:
    """The observations that carry the id of a call that there is not."""
    ids = {item.tool_call_id for item in content if isinstance(item, Action)}
    return [item for item in content if not isinstance(item, Action) and item.tool_call_id not in ids | {None}]


def summary(table: Table) -> dict[str, Any]:
    """The named metrics of a table of ``Quality``: counts, shares of all calls or all runs, and quantiles of lengths.

    The three that begin with ``adp`` are the checks of the Agent Data Protocol: calls that fit their tools, runs with a
    thought before at least 80 % of calls, runs that end in a message.
    """
    rows = pl.scan_parquet([str(path) for path in table.shards()])
    calls = pl.col("calls").sum()
    fitting = (pl.col("calls") - pl.col("calls_undeclared") - pl.col("calls_misfit")).sum()
    enough = pl.col("calls_with_thought") >= ADP_THOUGHT_SHARE * pl.col("calls")
    names = ("turns", "tokens", "characters")
    lengths = {f"{name}_{percent}": _quantile(name, percent) for name in names for percent in (50, 95)}
    found = rows.select(
        trajectories=pl.len(),
        duplicates=pl.len() - pl.col("content_digest").n_unique(),
        calls=calls,
        share_of_calls_with_thought=pl.col("calls_with_thought").sum() / calls,
        calls_unanswered=pl.col("calls_unanswered").sum(),
        results_unlinked=pl.col("results_unlinked").sum(),
        calls_undeclared=pl.col("calls_undeclared").sum(),
        calls_misfit=pl.col("calls_misfit").sum(),
        errors=pl.col("errors").sum(),
        adp_calls_that_fit=fitting / calls,
        adp_runs_with_thoughts=enough.mean(),
        adp_runs_ending_in_a_message=(pl.col("ending") == "message").mean(),
        **lengths,
    ).collect()
    return found.to_dicts()[0]


def _quantile(name: str, percent: int) -> pl.Expr:
    return pl.col(name).quantile(percent / 100, "nearest")
