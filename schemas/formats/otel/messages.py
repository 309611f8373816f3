"""Messages of ``gen_ai`` spans, ``{role, parts}``, as the items of one run."""

from __future__ import annotations

from bisect import insort
from typing import Any

import msgspec

from agentmill.schemas.format import FormatError
from agentmill.schemas.formats.otel.spans import Span
from agentmill.schemas.messages.calls import read_arguments
from agentmill.schemas.messages.conversation import Transcript
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import (
    AnyItem,
    ApiAction,
    ImageObservation,
    MessageAction,
    ObservationSource,
    TextObservation,
)

MessageForm = tuple[Any, list[Any]]
_TEXT = ("content", "text")
_REASONING = ("reasoning", "thinking")


class MessageParts:
    """Adds what each chat span shows beyond the ones before it."""

    def __init__(self, agent: Any = None) -> None:
        self.transcript = Transcript()
        self.agent = agent if isinstance(agent, str) else None
        self.instructions: Any = None
        self.used: set[str] = set()
        """Ids of tool spans whose result is in the conversation."""
        self._histories: list[list[MessageForm]] = []
        """The messages after each chat so far, in the form that is compared; the longest last."""
        self._known: list[MessageForm] = []
        """Those after the last chat."""
        self._calls: dict[str, tuple[str, int]] = {}
        """By the id in the trace, the calls without a result: their id and turn."""
        self._unnumbered: list[str] = []
        """The calls of the last turn that have no id in the trace and no result."""

    def chat(self, span: Span) -> None:
        """Add the messages of a chat that are not known from the chats before."""
        instructions = span.attributes.get("gen_ai.system_instructions")
        if instructions is not None and self.transcript.system_prompt is None and not self._known:
            self.instructions = instructions
            self.transcript.system_prompt = _text(instructions if isinstance(instructions, list) else [instructions])
        given = _messages(span.attributes.get("gen_ai.input.messages"))
        forms = [_form(message) for message in given]
        start = self._continued(forms)
        extends = forms[: len(self._known)] == self._known
        self.transcript.remarks["history_changed"] += not extends
        # Agents shorten or rewrite their history. What was shown before in the same words is not new.
        known = set() if extends else set(map(repr, self._known))
        for message, form in zip(given[start:], forms[start:], strict=True):
            if repr(form) not in known:
                self._add(message)
        answers = _messages(span.attributes.get("gen_ai.output.messages"))
        self._known = forms + [_form(message) for message in answers]
        insort(self._histories, self._known, key=len)
        for message in answers:
            self._add(message)

    def _continued(self, forms: list[MessageForm]) -> int:
        """How many of the messages are the longest history of an earlier chat, which the others continue; 0 if none.

        This need not be the last chat: an agent may ask for a title or a summary in between.
        """
        earlier = reversed(self._histories)
        return next((len(history) for history in earlier if forms[: len(history)] == history), 0)

    def tool(self, span: Span) -> None:
        """Add the result of a tool, if no message shows it."""
        given = span.attributes.get("gen_ai.tool.call.id")
        if not isinstance(given, str) or given not in self._calls:
            return
        result = span.attributes.get("gen_ai.tool.call.result")
        if result is None and not span.failed:
            return
        call_id, turn = self._calls.pop(given)
        self.used.add(span.span_id)
        rest: JsonObject = {}
        name = self.transcript.answer(given, rest, [call_id])
        text = _json(result) if result is not None else str(span.attributes.get("error.type", ""))
        item = TextObservation(content=text, source="environment", tool_call_id=name, error=span.failed, turn=turn)
        # The result belongs to the turn of its call, though later turns were read before the tools.
        self.transcript.turn, last = turn, self.transcript.turn
        self.transcript.add(item, rest)
        self.transcript.turn = last

    def _add(self, message: JsonObject) -> None:
        role = message.get("role")
        parts = [part if isinstance(part, dict) else {"type": "text", "content": part} for part in _parts(message)]
        rest = {key: value for key, value in message.items() if key not in ("role", "parts", "content")}
        if role == "system" and self.transcript.system_prompt is None and not self.transcript.content:
            self.transcript.system_prompt = _text(parts)
        elif role == "assistant":
            self._act(parts, rest)
        else:
            self.transcript.remarks["unknown_role"] += role not in ("user", "tool", "system", "developer")
            rest |= {"role": role} if role not in ("user", "tool") else {}
            self._see(parts, "user" if role == "user" else "environment", rest)

    def _act(self, parts: list[JsonObject], rest: JsonObject) -> None:
        """A turn: the text and reasoning go with the first call."""
        self.transcript.turn += 1
        self._unnumbered = []
        text = _text([part for part in parts if part.get("type") == "text"]) or None
        reasoning = _text([part for part in parts if part.get("type") in _REASONING]) or None
        calls = [part for part in parts if part.get("type") == "tool_call" and isinstance(part.get("name"), str)]
        known = ("text", *_REASONING)
        others = [part for part in parts if part.get("type") not in known and part not in calls]
        self.transcript.remarks["unknown_part"] += len(others)
        rest |= {"parts": others} if others else {}
        if not calls:
            self._put(MessageAction(content=text or "", reasoning_content=reasoning), rest)
        for number, call in enumerate(calls):
            more = {key: each for key, each in call.items() if key not in ("type", "id", "name", "arguments")}
            more |= rest if number == 0 else {}
            call_id = self.transcript.call_id(call.get("id"), more)
            self._calls[str(call.get("id") or call_id)] = (call_id, self.transcript.turn)
            if not call.get("id"):
                self._unnumbered.append(call_id)
            kwargs, raw = read_arguments(call.get("arguments"))
            item = ApiAction(
                function=call["name"],
                kwargs=kwargs,
                raw_arguments=raw,
                tool_call_id=call_id,
                description=text if number == 0 else None,
                reasoning_content=reasoning if number == 0 else None,
            )
            self._put(item, more)

    def _see(self, parts: list[JsonObject], source: ObservationSource, rest: JsonObject) -> None:
        for part in parts:
            kind = part.get("type")
            more = {key: value for key, value in part.items() if key not in ("type", *_TEXT)} | rest
            if kind == "text":
                self._put(TextObservation(content=_text([part]), source=source), more)
            elif kind == "tool_call_response":
                more = {key: value for key, value in more.items() if key not in ("id", "response", "result")}
                call_id = self._answered(part.get("id"), more)
                shown = part.get("result") if part.get("response") is None else part["response"]
                item = TextObservation(content=_json(shown), source="environment", tool_call_id=call_id)
                self._put(item, more)
            elif part.get("modality") == "image" and isinstance(part.get("uri"), str):
                more.pop("uri")
                self._put(ImageObservation(content=part["uri"], source=source), more)
            else:
                self.transcript.remarks["unknown_part"] += 1
                self._put(TextObservation(content="", source=source), {**rest, "part": part})
            rest = {}

    def _answered(self, given: Any, rest: JsonObject) -> str | None:
        """The id of the call that a result answers; one without an id answers those of its turn without one, in order.

        Such a result of no call is remarked on as ``orphan_result``.
        """
        if given not in (None, ""):
            self._calls.pop(str(given), None)
            return self.transcript.answer(given, rest)
        if self._unnumbered:
            call_id = self._unnumbered.pop(0)
            self._calls.pop(call_id, None)
            return call_id
        self.transcript.remarks["orphan_result"] += 1
        return None

    def _put(self, item: AnyItem, rest: JsonObject) -> None:
        self.transcript.add(msgspec.structs.replace(item, agent=self.agent), rest)


def _messages(given: Any) -> list[JsonObject]:
    """The messages of an attribute; a lone text is what a user says. Raises ``FormatError`` (``invalid``)."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if given is None:
        return []
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise FormatError("invalid", f"expected messages of a span, a list of objects, got {given!r:.60}")
    return given


def _parts(message: JsonObject) -> list[Any]:
    parts = message.get("content") if message.get("parts") is None else message["parts"]
    return parts if isinstance(parts, list) else [] if parts is None else [parts]


def _form(message: JsonObject) -> MessageForm:
    """A message as its output and the histories of later chats both show it: equal for equal messages.

    Without what only the output has (why it ended, reasoning with other parts), and with arguments decoded.
    """
    parts = _parts(message)
    shown = [part for part in parts if not (isinstance(part, dict) and part.get("type") in _REASONING)]
    return message.get("role"), [_part_form(part) for part in shown or parts]


def _part_form(part: Any) -> Any:
    if not isinstance(part, dict) or part.get("type") != "tool_call":
        return part
    return {**part, "arguments": read_arguments(part.get("arguments"))}


def _text(parts: list[Any]) -> str:
    """The texts of parts, one after the other."""
    return "\n".join(
        _json(next((part[key] for key in _TEXT if key in part), "") if isinstance(part, dict) else part)
        for part in parts
    )


def _json(value: Any) -> str:
    """A text as it is, another value as JSON text, none as an empty text."""
    if value is None or isinstance(value, str):
        return value or ""
    return msgspec.json.encode(value).decode()
