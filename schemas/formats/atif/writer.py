"""Items as the steps of an ATIF trajectory, as ``reader`` reads them.

Actions of a turn are a step, with the results of its calls wherever they stood. What a user says is a step; what else
was seen without a call is a result of no call in the step before it. Fields of an item that ATIF has no place for go
into ``extra`` under ``agentmill``, of its step, call or result.
"""

from __future__ import annotations

from typing import Any

import msgspec

from agentmill.schemas.format import FormatError, Losses
from agentmill.schemas.formats.atif.fields import MEDIA_TYPES, AtifDialect, finish
from agentmill.schemas.formats.atif.reader import StepReader
from agentmill.schemas.formats.extension_fields import OURS
from agentmill.schemas.records.record import JsonObject, defaults
from agentmill.schemas.records.trajectory import (
    Action,
    AnyAction,
    AnyItem,
    ApiAction,
    CodeAction,
    ImageObservation,
    MessageAction,
    TextObservation,
    WebObservation,
)


class StepWriter:
    """Writes items one by one. ``held`` is what was kept of them, by index, when they were read from ATIF."""

    def __init__(self, held: JsonObject, dialect: AtifDialect, losses: Losses) -> None:
        self.held = held
        self.dialect = dialect
        self.losses = losses
        self.steps: list[JsonObject] = []
        self.turn: int | None = None
        """The turn of the step, if calls may still join it."""
        self.calls: dict[str, list[tuple[int, str]]] = {}
        """By id the steps of calls that have no result yet, and what the call is named there."""
        self.members: list[list[tuple[int, JsonObject]]] = []
        """Of each step the indices of its items, with where their own fields go, results apart."""
        self.results: list[list[tuple[int, JsonObject]]] = []
        self.sequence: list[int] = []
        self.place = 0
        """The step of the last item."""
        self.bare_prompt = False
        """Whether the last step is an empty system prompt, which would be none if it had results."""

    def prompt(self, system_prompt: str | None, kept: JsonObject | None) -> None:
        """The system step."""
        if system_prompt is not None:
            self._step("system", (kept or {}).get("message", system_prompt), None, {"step": _without(kept, "message")})

    def write(self, item: AnyItem, index: int) -> None:
        """Add the next item."""
        held = self.held.get(str(index), {})
        if held.get("within"):
            (self.results[self.place] or self.members[self.place]).append((index, {}))
        elif isinstance(item, MessageAction):
            step = self._agent(item, held, item.content)
            self.members[-1].append((index, step))
        elif isinstance(item, ApiAction | CodeAction):
            self._call(item, index, held)
        else:
            self._observe(item, index, held)

    def order(self) -> list[tuple[int, JsonObject]]:
        """The items in the order in which the steps say them."""
        return [each for pair in zip(self.members, self.results, strict=True) for part in pair for each in part]

    def _agent(self, item: AnyAction, held: JsonObject, text: str) -> JsonObject:
        step = self._step("agent", held.get("message", text), item, held)
        if item.reasoning_content is not None:
            step["reasoning_content"] = item.reasoning_content
        if item.tokens is not None:
            prompt = [*([] if item.tokens.segment_start else self.sequence), *item.tokens.prompt_ids]
            self.sequence = [*prompt, *item.tokens.sampled_ids]
            ids: JsonObject = {"prompt_token_ids": prompt, "completion_token_ids": item.tokens.sampled_ids}
            ids |= {"logprobs": item.tokens.logprobs} if item.tokens.logprobs else {}
            step["metrics"] = {**step.get("metrics", {}), **ids}
            if item.tokens.finish_reason is not None:
                own_fields(step)["finish_reason"] = item.tokens.finish_reason
        self.turn = item.turn
        return step

    def _call(self, item: ApiAction | CodeAction, index: int, held: JsonObject) -> None:
        plain = item.description is None and item.tokens is None and item.reasoning_content is None
        # A step has one reasoning and one list of tokens, so a call with its own begins another.
        joins = self.turn == item.turn and plain and "step" not in held
        step = self.steps[-1] if joins else self._agent(item, held, item.description or "")
        if joins and "tool_calls" not in step:
            own_fields(step)["said"] = True
        calls = step.setdefault("tool_calls", [])
        kept = dict(held.get("call", {}))
        given = kept.pop("tool_call_id", None) or item.tool_call_id
        # A list: ids of others may be anything.
        taken = [call["tool_call_id"] for call in calls]
        if given is None or (given in taken and "tool_call_id" not in held.get("call", {})):
            given = f"call_{index}"
        name, argument = kept.pop("function", None), kept.pop("argument", "code")
        call: JsonObject = {"tool_call_id": given, **kept}
        if isinstance(item, CodeAction):
            call |= {"function_name": name or f"execute_{item.language}", "arguments": {argument: item.content}}
            if self.dialect == "strict" and "extra" not in kept:
                own_fields(call)["language"] = item.language
        else:
            call |= {"function_name": item.function, "arguments": item.kwargs}
        calls.append(call)
        self.members[-1].append((index, call))
        if item.tool_call_id is not None:
            self.calls.setdefault(item.tool_call_id, []).append((len(self.steps) - 1, given))

    def _observe(self, item: AnyItem, index: int, held: JsonObject) -> None:
        source = getattr(item, "source", "environment")
        kept = dict(held.get("result", {}))
        content = held["parts"] if "parts" in held else kept.get("content", _content(item))
        kept.pop("content", None)
        kept_id = kept.pop("tool_call_id", None)
        waiting = self.calls.get(item.tool_call_id) if item.tool_call_id is not None else None
        if waiting:
            place, name = waiting.pop(0)
        elif "result" not in held and (source == "user" or "source" in held.get("step", {})):
            step = self._step("user", "" if content is None else content, item, held)
            self.members[-1].append((index, step))
            return
        else:
            if not self.steps or "step" in held or self.bare_prompt:
                self._step("system", "", item, held)
            place, name = len(self.steps) - 1, kept_id
            if name not in [call["tool_call_id"] for call in self.steps[place].get("tool_calls", [])]:
                self.losses["steps.observation.results.source_call_id"] += name is not None
                name = None
        result: JsonObject = {"source_call_id": name, "content": content, **kept}
        self.steps[place].setdefault("observation", {"results": []})["results"].append(result)
        self.results[place].append((index, result))
        self.place = place
        self.turn = None

    def _step(self, source: str, message: Any, item: AnyItem | None, held: JsonObject) -> JsonObject:
        self.turn = None
        step = {"source": source, "message": message, **held.get("step", {})}
        if item is not None and item.context_operation == "copied":
            step["is_copied_context"] = True
        self.bare_prompt = item is None and message == ""
        self.place = len(self.steps)
        self.steps.append(step)
        self.members.append([])
        self.results.append([])
        return step


def write_steps(
    system_prompt: str | None, content: list[AnyItem], kept: JsonObject, dialect: AtifDialect, losses: Losses
) -> tuple[list[JsonObject], str | None]:
    """The steps, and the system prompt that is read from them. What of ``kept`` has no place in them is counted."""
    writer = StepWriter(kept.get("content", {}), dialect, losses)
    writer.prompt(system_prompt, kept.get("system"))
    for index, item in enumerate(content):
        writer.write(item, index)
    order = writer.order()
    for index, place in order:
        if dialect == "adp" and place and str(index) not in writer.held:
            _name_in_adp(content[index], place)
    for number, step in enumerate(writer.steps, start=1):
        finish(step, number, dialect, losses)
    # Read back at once: what differs from the items is what ATIF cannot say, whatever the reason, and goes into
    # `extra`.
    reader = StepReader()
    for step in writer.steps:
        reader.read(step)
    if len(order) != len(reader.transcript.content):
        raise FormatError("unsayable_part", "a message consists of parts that ATIF has no words for, such as an image")
    for (index, place), plain in zip(order, reader.transcript.content, strict=True):
        if differing := _difference(content[index], plain):
            own_fields(place).update(differing)
    losses["content.order"] = sum(place != index for place, (index, _) in enumerate(order))
    return writer.steps, reader.transcript.system_prompt


def own_fields(place: JsonObject) -> JsonObject:
    """Our own fields in the ``extra`` of a step, call or result."""
    place["extra"] = {**place.get("extra", {})}
    place["extra"][OURS] = dict(place["extra"].get(OURS, {}))
    own: JsonObject = place["extra"][OURS]
    return own


def _difference(item: AnyItem, plain: AnyItem) -> JsonObject:
    """The fields of ``item`` that are not those of ``plain``; of a page without the text that ``plain`` has."""
    if type(item) is type(plain):
        names = [name for name in item.__struct_fields__ if getattr(item, name) != getattr(plain, name)]
        return {name: _plain(getattr(item, name)) for name in names}
    fields: JsonObject = _plain(item)
    plainest = defaults(type(item))
    fields = {name: value for name, value in fields.items() if name not in plainest or value != plainest[name]}
    if isinstance(item, WebObservation) and isinstance(plain, TextObservation):
        text_field = next((name for name in ("axtree", "html") if fields.get(name) == plain.content), None)
        if text_field is not None:
            fields = {name: value for name, value in fields.items() if name != text_field} | {"text": text_field}
    return fields


def _plain(value: Any) -> Any:
    """``value`` as JSON has it: a tuple is a list."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _content(item: AnyItem) -> Any:
    """What a result or message says of an observation; ``None`` where it is an image of no known kind."""
    if isinstance(item, TextObservation):
        return item.content
    if isinstance(item, ImageObservation):
        kind = MEDIA_TYPES.get(item.content.rpartition(".")[2].lower())
        source = {"media_type": kind, "path": item.content}
        return None if kind is None else [{"type": "image", "source": source}]
    assert isinstance(item, WebObservation)
    return item.axtree if item.axtree is not None else item.html


def _name_in_adp(item: AnyItem, place: JsonObject) -> None:
    """What ADP's dialect says in ``extra`` of an item."""
    extra: JsonObject = {"adp_class": item.__struct_config__.tag}
    if isinstance(item, CodeAction):
        extra["language"] = item.language
    if isinstance(item, Action) and item.description:
        extra["description"] = item.description
    if isinstance(item, TextObservation | ImageObservation):
        extra["adp_source"] = item.source
    if isinstance(item, WebObservation):
        names = ("html", "axtree", "url", "image_observation", "viewport_size")
        extra["web"] = {name: _plain(getattr(item, name)) for name in names}
    if item.reward is not None:
        extra["reward"] = item.reward
    place["extra"] = {**extra, **place.get("extra", {})}


def _without(fields: JsonObject | None, name: str) -> JsonObject:
    return {key: value for key, value in (fields or {}).items() if key != name}
