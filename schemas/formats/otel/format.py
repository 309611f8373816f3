"""Traces of OpenTelemetry's semantic conventions for generative AI: spans of chats, tools and agents.

A record is one trace: OTLP JSON, a list of spans, or an object with ``spans``. Every span that invokes an agent is a
run; one inside another is a sub-agent. A run's conversation is what its chat spans show: each repeats the history, of
which only what is new is added. What remains of the spans (times, models, evaluations) is in ``extra``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from agentmill.schemas.config import Config
from agentmill.schemas.format import FormatError, Losses, Origin, Raw, Read, Remarks, decode, provenance
from agentmill.schemas.formats.otel.messages import MessageParts
from agentmill.schemas.formats.otel.spans import Span, read_spans
from agentmill.schemas.ids import part_id
from agentmill.schemas.messages.calls import link_remarks
from agentmill.schemas.messages.parts import count_of, image_remarks, number_of
from agentmill.schemas.messages.tools import read_tools
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Outcome, OutcomeStatus, Source, Trajectory, Usage

CONVERTER_VERSION = "1"
NAME = "otel"
CHATS = ("chat", "text_completion", "generate_content")
AGENT = "invoke_agent"
_HISTORY = ("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions", "gen_ai.tool.definitions")
_STATUS: dict[str, OutcomeStatus] = {"pass": "success", "passed": "success", "fail": "failure", "failed": "failure"}


class Otel(Config):
    """Traces with ``gen_ai`` spans, one trace a record. They are only read."""

    def read(self, raw: Raw, origin: Origin) -> Read:
        """The outermost run, and others with it. Raises ``FormatError``.

        Reasons: those of ``decode``; ``invalid`` for what holds no spans, or broken ones; ``empty`` where none shows a
        conversation.
        """
        spans = read_spans(decode(raw))
        trajectory_id, source = provenance(raw, origin, NAME, CONVERTER_VERSION)
        losses, remarks = Losses(), Remarks()
        names: dict[str, str] = {}
        runs = []
        for number, (agent, own) in enumerate(_runs(spans)):
            name = trajectory_id if number == 0 else part_id(trajectory_id, f"agent-{number}")
            names[agent.span_id if agent is not None else ""] = name
            whole = _whole(agent, spans, names)
            runs.append(_run(agent, own, name, whole, source, losses, remarks))
        if not any(run.content for run in runs):
            raise FormatError("empty", "no span shows a message; are the contents of messages recorded?")
        for run in runs:
            remarks += link_remarks(run.content, run.tools) + image_remarks(run.content)
        return Read(runs[0], +losses, tuple(runs[1:]), +remarks)


def _runs(spans: list[Span]) -> list[tuple[Span | None, list[Span]]]:
    """The agents, outermost first, each with the spans that are its own; ``None`` for spans outside of any."""
    by_id = {span.span_id: span for span in spans}
    groups: dict[str, tuple[Span | None, list[Span]]] = {}
    for span in spans:
        agent = span if span.operation == AGENT else _agent_of(span, by_id)
        groups.setdefault(agent.span_id if agent is not None else "", (agent, []))[1].append(span)
    found = list(groups.values())
    outside = [group for group in found if group[0] is None]
    # Chats outside of any agent are a run of their own; other spans outside say something of the outermost run.
    if any(span.operation in CHATS for _, own in outside for span in own) or len(found) == len(outside):
        return found
    first = next(group for group in found if group[0] is not None)
    for _, own in outside:
        first[1].extend(own)
    return [group for group in found if group[0] is not None]


def _agent_of(span: Span, by_id: dict[str, Span]) -> Span | None:
    """The innermost agent around ``span``."""
    # A broken trace may have parents in a circle.
    seen = {span.span_id}
    at = by_id.get(span.parent_id or "")
    while at is not None and at.span_id not in seen:
        if at.operation == AGENT:
            return at
        seen.add(at.span_id)
        at = by_id.get(at.parent_id or "")
    return None


def _whole(agent: Span | None, spans: list[Span], names: dict[str, str]) -> str | None:
    """The id of the run that an agent is part of."""
    if agent is None:
        return None
    outer = _agent_of(agent, {span.span_id: span for span in spans})
    return names.get(outer.span_id if outer is not None else "")


def _run(
    agent: Span | None,
    own: list[Span],
    trajectory_id: str,
    whole: str | None,
    source: Source,
    losses: Losses,
    remarks: Remarks,
) -> Trajectory:
    chats = [span for span in own if span.operation in CHATS]
    # Some exporters put the messages on the agent's span alone.
    with_messages = [span for span in chats if span.shows] or [span for span in own if span is agent and span.shows]
    reader = MessageParts(agent.attributes.get("gen_ai.agent.name") if agent is not None else None)
    for span in with_messages:
        reader.chat(span)
    # After the chats: where a chat shows the result as a message, that one counts.
    for span in own:
        if span.operation == "execute_tool":
            reader.tool(span)
    reader.transcript.arrange()
    remarks.update(reader.transcript.remarks)
    definitions = next((tools for span in [*with_messages, *own] if (tools := span.attributes.get(_HISTORY[3]))), None)
    tools, note, lost = read_tools(definitions, "object")
    losses.update(lost)
    kept: JsonObject = {"spans": [_rest(span, span in with_messages, definitions, reader) for span in own]}
    kept |= {"part_of": whole} if whole is not None else {}
    kept |= {"tools": note["given"]} if "given" in note else {}
    return Trajectory(
        trajectory_id=trajectory_id,
        content=reader.transcript.content,
        system_prompt=reader.transcript.system_prompt,
        tools=tools,
        outcome=_outcome(own),
        usage=_usage(chats),
        source=source,
        extra={NAME: kept | reader.transcript.notes()},
    )


def _rest(span: Span, with_messages: bool, definitions: Any, reader: MessageParts) -> JsonObject:
    """What of a span is not in the conversation."""
    attributes = dict(span.attributes)
    if with_messages:
        for key in _HISTORY[:2]:
            attributes.pop(key, None)
        if attributes.get(_HISTORY[2]) == reader.instructions:
            attributes.pop(_HISTORY[2], None)
    if attributes.get(_HISTORY[3]) == definitions:
        attributes.pop(_HISTORY[3], None)
    if span.span_id in reader.used:
        attributes.pop("gen_ai.tool.call.result", None)
    return {**span.rest, "attributes": attributes}


def _usage(chats: Sequence[Span]) -> Usage:
    """The sums over all chats; ``None`` where none says."""
    totals: dict[str, int] = {}
    names = {
        "prompt_tokens": "gen_ai.usage.input_tokens",
        "completion_tokens": "gen_ai.usage.output_tokens",
        "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    }
    for field, name in names.items():
        counts = [count for span in chats if (count := count_of(span.attributes.get(name))) is not None]
        if counts and (total := count_of(sum(counts))) is not None:
            totals[field] = total
    return msgspec.convert(totals, Usage)


def _outcome(own: list[Span]) -> Outcome:
    """The evaluation, if there is exactly one: its score as the reward, its label as the status."""
    found = [each for span in own for each in span.evaluations]
    if len(found) != 1:
        return Outcome()
    score, label = found[0].get("gen_ai.evaluation.score.value"), found[0].get("gen_ai.evaluation.score.label")
    status = _STATUS.get(label.lower(), "unknown") if isinstance(label, str) else "unknown"
    return Outcome(status=status, reward=number_of(score))
