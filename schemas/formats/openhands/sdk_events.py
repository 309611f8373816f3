"""Events of the OpenHands SDK: a union on ``kind``."""

from __future__ import annotations

from typing import Any

from agentmill.schemas.format import FormatError, Losses
from agentmill.schemas.messages.calls import read_arguments
from agentmill.schemas.messages.conversation import Transcript, read_text, read_thinking
from agentmill.schemas.messages.parts import text_of
from agentmill.schemas.messages.tools import read_tools
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import (
    ApiAction,
    MessageAction,
    ObservationSource,
    TextObservation,
    Tool,
    Usage,
)

NO_TURNS = {
    *("ConversationStateUpdateEvent", "CondensationRequest", "PauseEvent", "TokenEvent", "InterruptEvent"),
    *("LLMCompletionLogEvent", "ConversationErrorEvent", "HookExecutionEvent", "StreamingDeltaEvent"),
}
"""Kinds of events that the model neither made nor saw."""
_SOURCES: dict[str, ObservationSource] = {"user": "user", "agent": "agent"}
_TEXTS = ("content", "output", "text", "result")
"""Where an observation has the text that the agent saw, in the order in which versions named it."""


class SdkEvents:
    """Reads events one by one, in the order of the log."""

    def __init__(self, losses: Losses) -> None:
        self.transcript = Transcript()
        self.losses = losses
        self.tools: list[Tool] = []
        self.others: list[JsonObject] = []
        """Events that are no items."""
        self.last_response: Any = None

    def read(self, event: JsonObject) -> None:
        """Take in the next event."""
        readers = {
            "SystemPromptEvent": self._system,
            "MessageEvent": self._message,
            "ActionEvent": self._act,
            "ObservationEvent": self._observe,
            "UserRejectObservation": self._observe,
            "AgentErrorEvent": self._observe,
            "Condensation": self._condense,
            "CondensationSummaryEvent": self._condense,
        }
        kind = event.get("kind")
        reader = readers.get(kind) if isinstance(kind, str) else None
        if reader is None:
            self.transcript.remarks["unknown_kind"] += not isinstance(kind, str) or kind not in NO_TURNS
            self.others.append(event)
        else:
            reader(event)

    def kept(self) -> JsonObject:
        """Events that are no items."""
        return {"events": self.others} if self.others else {}

    def usage(self) -> Usage:
        """Nothing: events do not say what they cost."""
        return Usage()

    def _system(self, event: JsonObject) -> None:
        """The prompt; its second, dynamic block belongs to the same message and is kept separate too."""
        blocks = [event.get("system_prompt"), event.get("dynamic_context")]
        texts = [read_text([each] if isinstance(each, dict) else each)[0] for each in blocks]
        # Our record has one system prompt, so a later one is kept as an event.
        if self.transcript.system_prompt is not None:
            self.transcript.remarks["repeated_system_prompt"] += 1
            self.others.append(event)
            return
        self.transcript.system_prompt = "\n".join(text for text in texts if text)
        self.tools, note, lost = read_tools(event.get("tools"), "object")
        self.losses.update(lost)
        known = ("system_prompt", "tools") if texts[0] else ("tools",)
        rest = {key: value for key, value in event.items() if key not in known and value not in (None, "")}
        self.others.append(rest | ({"tools": note["given"]} if "given" in note else {}))

    def _message(self, event: JsonObject) -> None:
        message = event.get("llm_message")
        rest = _rest(event, *(("llm_message",) if isinstance(message, dict) else ()), "extended_content")
        message = message if isinstance(message, dict) else {}
        known = ("role", "content", "reasoning_content", "thinking_blocks")
        more = {key: value for key, value in message.items() if key not in known and value not in (None, [], False)}
        hidden = text_of(message, "reasoning_content", more)
        content = _content(message, "content", more) + _content(event, "extended_content", rest)
        rest |= {"llm_message": more} if more else {}
        if event.get("source") == "agent" or message.get("role") == "assistant":
            self._turn(event.get("llm_response_id"))
            reasoning, thinking = read_thinking(message.get("thinking_blocks"))
            text, parts = read_text(content)
            item = MessageAction(content=text, reasoning_content=hidden or reasoning)
            self.transcript.add(item, rest | thinking | parts)
        else:
            source: ObservationSource = _SOURCES.get(str(event.get("source")), "environment")
            self.transcript.see([_part(part) for part in content], source, rest)

    def _act(self, event: JsonObject) -> None:
        self._turn(event.get("llm_response_id"))
        known = ("thought", "reasoning_content", "thinking_blocks", "tool_name", "tool_call_id", "tool_call", "action")
        rest = _rest(event, *known)
        call = event.get("tool_call")
        rest |= {"tool_call": call} if call and not isinstance(call, dict) else {}
        call = call if isinstance(call, dict) else {}
        nested = call.get("function")
        function = nested if isinstance(nested, dict) else call
        action = event.get("action")
        given = action if isinstance(action, dict) else {}
        arguments = function.get("arguments", {key: value for key, value in given.items() if key != "kind"})
        kwargs, text = read_arguments(arguments)
        name = function.get("name") or event.get("tool_name")
        if not isinstance(name, str):
            raise FormatError("invalid", f"an action names no tool, but {name!r:.60}")
        more = {key: value for key, value in given.items() if key not in kwargs or kwargs[key] != value}
        rest["action"] = more if isinstance(action, dict) else action
        if event.get("tool_name") not in (None, name):
            rest["tool_name"] = event["tool_name"]
        thought, parts = read_text(event.get("thought"))
        rest |= {"thought": parts["content"]} if parts and event.get("thought") else {}
        reasoning, thinking = read_thinking(event.get("thinking_blocks"))
        hidden = text_of(event, "reasoning_content", rest) or reasoning
        # The blocks say something else than the field that was taken.
        if reasoning is not None and hidden != reasoning:
            thinking = {"thinking_blocks": event["thinking_blocks"]}
        item = ApiAction(
            function=name,
            kwargs=kwargs,
            raw_arguments=text,
            tool_call_id=self.transcript.call_id(event.get("tool_call_id") or call.get("id"), rest),
            description=thought or None,
            reasoning_content=hidden,
        )
        self.transcript.add(item, rest | thinking)

    def _observe(self, event: JsonObject) -> None:
        """A result, a rejection by the user, or an error of the agent's call; each answers a call."""
        rest = _rest(event, "observation", "tool_call_id", "error", "rejection_reason")
        shown = event.get("observation")
        shown = shown if isinstance(shown, dict) else {"content": shown}
        key = next((key for key in _TEXTS if shown.get(key) is not None), "content")
        content = shown.get(key)
        more = {name: value for name, value in shown.items() if name != key and value is not None}
        if event["kind"] != "ObservationEvent":
            content = event.get("error", event.get("rejection_reason"))
            more = shown if shown.get("content") is not None else {}
        rest |= {"observation": more} if more else {}
        call_id = self.transcript.answer(event.get("tool_call_id"), rest)
        source: ObservationSource = "user" if event.get("source") == "user" else "environment"
        error = event["kind"] != "ObservationEvent" or bool(shown.get("is_error") or shown.get("error"))
        parts = [_part(part) for part in content] if isinstance(content, list) else content
        name = text_of(event, "tool_name", rest)
        self.transcript.see(parts, source, rest, tool_call_id=call_id, error=error, name=name)

    def _condense(self, event: JsonObject) -> None:
        """The summary that the agent saw from here on, in the place of the events that it forgot."""
        summary = event.get("summary")
        if not isinstance(summary, str) or not summary:
            self.others.append(event)
            return
        item = TextObservation(content=summary, source="environment", context_operation="condense")
        self.transcript.add(item, _rest(event, "summary"))

    def _turn(self, response: Any) -> None:
        """Begin a turn, if ``response`` is not that of the last action."""
        if response is None or response != self.last_response:
            self.transcript.turn += 1
        self.last_response = response


def _rest(event: JsonObject, *known: str) -> JsonObject:
    """Fields of an event that no field of ours says."""
    return {key: value for key, value in event.items() if key not in known and value not in (None, [], {})}


def _content(given: JsonObject, name: str, rest: JsonObject) -> list[Any]:
    """The parts that ``given`` has under ``name``, a text as one; anything else is kept in ``rest``."""
    content = given.get(name) or []
    if isinstance(content, list):
        return content
    text = text_of(given, name, rest)
    return [] if text is None else [{"type": "text", "text": text}]


def _part(part: Any) -> Any:
    """A part without what it leaves at its default, an image as OpenAI writes it."""
    if not isinstance(part, dict):
        return part
    urls = part.get("image_urls")
    if isinstance(urls, list) and len(urls) == 1:
        return {"type": "image_url", "image_url": {"url": urls[0]}}
    return {key: value for key, value in part.items() if value not in (None, False)}
