"""Events of OpenHands before its SDK: ``{id, source, action | observation, args | content, extras, cause, …}``."""

from __future__ import annotations

from typing import Any

import msgspec

from agentmill.schemas.format import Losses
from agentmill.schemas.messages.calls import read_arguments
from agentmill.schemas.messages.conversation import Transcript
from agentmill.schemas.messages.parts import count_of, number_of, text_of
from agentmill.schemas.messages.tools import read_tools
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import (
    AnyItem,
    ApiAction,
    CodeAction,
    MessageAction,
    ObservationSource,
    TextObservation,
    Tool,
    Usage,
)

NO_TURNS = {
    *("change_agent_state", "agent_state_changed", "initialize", "null", "pause", "resume", "stop", "start"),
    *("recall", "condensation_request", "loop_recovery"),
}
"""Actions and observations that the model neither made nor saw."""
PAGE = ("screenshot", "set_of_marks", "dom_object", "axtree_object", "extra_element_properties")
_OBJECTS = {"args", "tool_call_metadata", "llm_metrics"}
_EVENT = _OBJECTS | {"action", "observation", "content", "extras"}


class OldEvents:
    """Reads events one by one, in the order of the log."""

    def __init__(self, losses: Losses) -> None:
        self.transcript = Transcript()
        self.losses = losses
        self.tools: list[Tool] = []
        self.others: list[JsonObject] = []
        """Events that are no items."""
        self.responses: dict[str, JsonObject] = {}
        """What the model's API answered, by its id: every call of one response repeats it."""
        self.metrics: JsonObject = {}
        self.calls: dict[Any, str] = {}
        """Ids of events that are calls, and what the calls are known by."""
        self.seen: set[Any] = set()
        self.last_response: str | None = None
        self.agents: list[str] = []
        """The agents to which the run was delegated, the innermost last."""

    def read(self, event: JsonObject) -> None:
        """Take in the next event."""
        if isinstance(event.get("llm_metrics"), dict):
            # Metrics accumulate, so the last ones hold all before them.
            self.losses["llm_metrics"] += bool(self.metrics)
            self.metrics = event["llm_metrics"]
        name = event.get("action", event.get("observation"))
        if "action" in event and name == "system":
            self._system(event)
        elif name == "condensation":
            self._condense(event)
        elif not isinstance(name, str) or name in NO_TURNS:
            self.transcript.remarks["unknown_kind"] += not isinstance(name, str)
            self.others.append(event)
        elif "observation" in event:
            self._observe(event, name)
        elif name == "message":
            self._message(event)
        elif event.get("source", "agent") == "agent":
            self._act(event, name)
        else:
            self.others.append(event)
        self.seen.add(_id(event.get("id")))

    def kept(self) -> JsonObject:
        """What of the log is no item: other events, and the model's responses without the calls that are items."""
        kept: JsonObject = {"events": self.others} if self.others else {}
        known = set(self.calls.values())
        responses = {key: _unsaid(value, known) for key, value in self.responses.items()}
        kept |= {"model_responses": responses} if responses else {}
        return kept | ({"llm_metrics": self.metrics} if self.metrics else {})

    def usage(self) -> Usage:
        """What the run cost so far at its last event, or else what the responses say together."""
        total = self.metrics.get("accumulated_token_usage")
        cost = number_of(self.metrics.get("accumulated_cost"))
        usages = [total] if isinstance(total, dict) else [each.get("usage") for each in self.responses.values()]
        found = [each for each in usages if isinstance(each, dict)]
        return Usage(
            prompt_tokens=_sum(found, "prompt_tokens"),
            completion_tokens=_sum(found, "completion_tokens"),
            cost_usd=cost if cost is not None and cost > 0 else None,
        )

    def _system(self, event: JsonObject) -> None:
        args = _object(event.get("args"))
        self.tools, note, lost = read_tools(args.get("tools"), "object")
        self.losses.update(lost)
        rest = {key: value for key, value in args.items() if key not in ("content", "tools") and value is not None}
        self.transcript.system_prompt = text_of(args, "content", rest)
        rest |= {"tools": note["given"]} if "given" in note else {}
        self.others.append({**event, "args": rest})

    def _condense(self, event: JsonObject) -> None:
        """What the log forgot, and the summary that the agent saw in its place."""
        args = _object(event.get("args"))
        summary = args.get("summary")
        if "action" in event and isinstance(summary, str) and summary:
            rest = _rest(event) | {key: value for key, value in args.items() if key != "summary" and value is not None}
            self._add(TextObservation(content=summary, source="environment", context_operation="condense"), rest)
        else:
            self.others.append(event)

    def _message(self, event: JsonObject) -> None:
        args = _object(event.get("args"))
        holder = args if "content" in args else event
        rest = _rest(event, holder.get("content")) | {
            key: value
            for key, value in args.items()
            if key not in ("content", "thought") and value not in (None, [], "")
        }
        text = text_of(holder, "content", rest) or ""
        thought = text_of(args, "thought", rest) or None
        if event.get("source") == "agent":
            self._turn(event, rest)
            self._add(MessageAction(content=text, description=thought), rest)
        else:
            rest |= {"thought": thought} if thought else {}
            source: ObservationSource = "user" if event.get("source") == "user" else "environment"
            self._add(TextObservation(content=text, source=source), rest)

    def _act(self, event: JsonObject, name: str) -> None:
        args = _object(event.get("args"))
        rest = _rest(event)
        thought = text_of(args, "thought", rest) or None
        meta = self._turn(event, rest)
        call = _model_call(meta)
        given = text_of(meta, "tool_call_id", rest) or f"event_{event.get('id')}"
        fields: dict[str, Any] = {"description": thought, "tool_call_id": self.transcript.call_id(given, rest)}
        others = {key: value for key, value in args.items() if key != "thought" and value is not None}
        item: AnyItem
        if call is not None:
            kwargs, text = read_arguments(call.get("arguments"))
            item = ApiAction(function=call["name"], kwargs=kwargs, raw_arguments=text, **fields)
            # The event repeats the arguments of the model's call; only what OpenHands changed or added is kept.
            others = {key: value for key, value in others.items() if key not in kwargs or kwargs[key] != value}
            rest |= {"action": name, "args": others}
        elif name in ("run", "run_ipython") and isinstance(code := others.pop(_CODE[name], None), str):
            item = CodeAction(language="bash" if name == "run" else "python", content=code, **fields)
            rest |= {"args": others} if others else {}
        else:
            item = ApiAction(function=name, kwargs={key: args[key] for key in args if key != "thought"}, **fields)
        if meta.get("function_name") is not None and call is None:
            rest["function_name"] = meta["function_name"]
        self.calls[_id(event.get("id"))] = given
        self._add(item, rest)
        if name == "delegate":
            self.agents.append(str(args.get("agent")))

    def _observe(self, event: JsonObject, name: str) -> None:
        rest = _rest(event, event.get("content"))
        text = text_of(event, "content", rest) or ""
        cause = _id(event.get("cause"))
        extras = event.get("extras")
        if isinstance(extras, str):
            extras = read_arguments(extras)[0] or {"text": extras}
        elif not isinstance(extras, dict | None):
            rest["extras"] = extras
        extras = _object(extras)
        self.losses.update(f"extras.{key}" for key in PAGE if extras.get(key) not in (None, ""))
        extras = {key: value for key, value in extras.items() if key not in PAGE and value is not None}
        rest |= {"extras": extras} if extras else {}
        if name == "delegate" and self.agents:
            self.agents.pop()
        given = self.calls.get(cause) if cause is not None else None
        self.transcript.remarks["orphan_result"] += cause is not None and given is None
        self.transcript.remarks["early_result"] += cause is not None and cause not in self.seen
        error = name == "error" or bool(event.get("error")) or extras.get("error") is True
        self._add(
            TextObservation(
                content=text,
                source="environment",
                name=name,
                tool_call_id=self.transcript.answer(given, rest),
                error=error,
            ),
            rest,
        )

    def _turn(self, event: JsonObject, rest: JsonObject) -> JsonObject:
        """Begin a turn, if the event is not of the same response as the last; what the model's call was."""
        meta = _object(event.get("tool_call_metadata"))
        response = _object(meta.get("model_response"))
        key = response.get("id")
        # Parallel calls of one response are separate events.
        if key is None or key != self.last_response:
            self.transcript.turn += 1
        self.last_response = key
        if isinstance(key, str):
            # Once for all calls of it: a response may be as long as the whole event.
            self.responses.setdefault(key, response)
            rest["model_response"] = key
        elif response:
            rest["model_response"] = response
        known = ("function_name", "tool_call_id", "model_response")
        more = {name: value for name, value in meta.items() if name not in known and value is not None}
        rest |= {"tool_call_metadata": more} if more else {}
        return meta

    def _add(self, item: AnyItem, rest: JsonObject) -> None:
        if self.agents:
            item = msgspec.structs.replace(item, agent=self.agents[-1])
        self.transcript.add(item, rest)


_CODE = {"run": "command", "run_ipython": "code"}


def _rest(event: JsonObject, text: Any = None) -> JsonObject:
    """Fields of an event that no field of ours says."""
    return {
        key: value
        for key, value in event.items()
        if (key not in _EVENT or (key in _OBJECTS and not isinstance(value, dict)))
        and value is not None
        and not (key == "message" and value == text)
    }


def _id(value: Any) -> Any:
    """The id of an event, by which others refer to it; none where it cannot be one."""
    return None if isinstance(value, list | dict) else value


def _object(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _model_call(meta: JsonObject) -> JsonObject | None:
    """The call as the model wrote it."""
    for choice in _list(_object(meta.get("model_response")).get("choices")):
        for call in _list(_object(_object(choice).get("message")).get("tool_calls")):
            function = _object(call).get("function")
            if _object(call).get("id") == meta.get("tool_call_id") and isinstance(_object(function).get("name"), str):
                return _object(function)
    return None


def _unsaid(response: JsonObject, known: set[str]) -> JsonObject:
    """A response without the calls that are items."""
    choices = []
    for choice in _list(response.get("choices")):
        message = _object(_object(choice).get("message"))
        calls = [call for call in _list(message.get("tool_calls")) if _id(_object(call).get("id")) not in known]
        message = {key: value for key, value in message.items() if key != "tool_calls" and value is not None}
        choices.append({**_object(choice), "message": message | ({"tool_calls": calls} if calls else {})})
    return {**response, "choices": choices}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _sum(usages: list[JsonObject], name: str) -> int | None:
    values = [count for each in usages if (count := count_of(each.get(name))) is not None]
    # All zero means that nothing was counted: every response has tokens.
    return count_of(sum(values)) if any(values) else None
