"""Calls of OpenAI messages: what is called, with which arguments, and how these were spelled."""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from agentmill.schemas.arrow.check import MOST_LEVELS, is_too_deep
from agentmill.schemas.format import FormatError, Losses, Remarks
from agentmill.schemas.messages.conversation import Conversation
from agentmill.schemas.messages.surface_text import Spelling, spelled, spelling_of
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import AnyItem, ApiAction, CodeAction, Tool

_decode = msgspec.json.Decoder().decode


def read_arguments(given: Any) -> tuple[JsonObject, str | None]:
    """``kwargs`` and ``raw_arguments`` of a call.

    ``given`` is what is in the place of the arguments. An object, or JSON text of one, is taken as it is; any other
    text, or one nested too deeply for a table, is kept raw, any other value as its JSON text. No arguments at all
    (``None``) are an empty object.
    """
    if isinstance(given, dict):
        return given, None
    if given is None:
        return {}, None
    if not isinstance(given, str):
        return {}, msgspec.json.encode(given).decode()
    try:
        value = _decode(given)
    except (msgspec.DecodeError, RecursionError):
        return {}, given
    # Counting brackets is cheap and rules out nearly all texts; only the others are walked through.
    held = isinstance(value, dict) and not (given.count("[") + given.count("{") > MOST_LEVELS and is_too_deep(value))
    return (value, None) if held else ({}, given)


def arguments_of(call: JsonObject) -> Any:
    """What is in the place of the arguments of a call: some models write it as ``parameters``, as Llama 3 does."""
    given = call.get("arguments")
    return call.get("parameters") if given is None else given


def named_call(call: JsonObject) -> JsonObject:
    """A call with its name, and with ``arguments`` where it has some."""
    given = arguments_of(call)
    return {"name": call["name"], **({} if given is None else {"arguments": given})}


_CALL = frozenset({"id", "type", "function"})
_FUNCTION = frozenset({"name", "arguments"})


class CallReader:
    """Reads the calls of one conversation. ``arguments`` is how the format spells arguments if nothing is noted."""

    def __init__(self, conversation: Conversation, arguments: Spelling) -> None:
        self.conversation = conversation
        self.arguments = arguments
        self._style: Spelling | None = None
        self._empty: list[int] = []
        """Calls before the one that tells the style: without arguments, and spelled as the format does it."""

    def read(self, call: Any, fields: JsonObject) -> ApiAction:
        """The call that becomes the next item, with ``fields`` with it. Raises ``FormatError``."""
        index = len(self.conversation.content)
        function = _function(call)
        call_id = call.get("id")
        if call_id is not None and not isinstance(call_id, str):
            raise FormatError("invalid", f"the id of a call is {call_id!r:.60}, expected a text")
        if not call_id:
            self.conversation.unnumbered.append(index)
            if call_id == "":
                self.conversation.note(index, id="")
        given = function.get("arguments")
        kwargs, raw = read_arguments(given)
        if isinstance(given, dict) and None in given.values():
            self.conversation.with_nulls.append(index)
        self._spelled(given, kwargs, raw, index)
        self._rest(call, function, index)
        name = function["name"]
        return ApiAction(function=name, kwargs=kwargs, raw_arguments=raw, tool_call_id=call_id or None, **fields)

    def _spelled(self, given: Any, kwargs: JsonObject, raw: str | None, index: int) -> None:
        """Note how arguments are spelled, if it is not in the way of the first call of the record."""
        if raw is not None:
            self.conversation.remarks["invalid_arguments"] += 1
        elif kwargs and self._style is None:
            self._set_style(spelling_of(given, kwargs) or self.arguments)
        if given != (spelled(kwargs, self._style or self.arguments) if raw is None else raw):
            self.conversation.note(index, arguments=given)
        elif self._style is None and raw is None:
            self._empty.append(index)

    def _set_style(self, style: Spelling) -> None:
        self._style = style
        if style != self.arguments:
            self.conversation.spelling["arguments"] = style
        # Empty arguments are spelled alike in all texts, but not as an object and as a text.
        if (style == "object") != (self.arguments == "object"):
            for index in self._empty:
                self.conversation.note(index, arguments=spelled({}, self.arguments))

    def _rest(self, call: JsonObject, function: JsonObject, index: int) -> None:
        """Keep the fields of a call that no field of ours says."""
        if call.get("type") is None:
            self.conversation.note(index, type="absent")
        if call.keys() <= _CALL and function.keys() <= _FUNCTION:
            return
        rest = {field: value for field, value in call.items() if field not in _CALL and value is not None}
        more = {field: value for field, value in function.items() if field not in _FUNCTION and value is not None}
        rest |= {"function": more} if more else {}
        if rest:
            self.conversation.call_fields[str(index)] = rest


def _function(call: Any) -> JsonObject:
    """The function that a call names, and its arguments."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise FormatError("unknown_call", f"expected a call with a function and its name, got {call!r:.80}")
    if call.get("type") not in (None, "function"):
        raise FormatError("unknown_call", f"a call is of type {call['type']!r:.60}; known: function")
    return function


def drop_filled_nulls(conversation: Conversation, tools: Sequence[Tool], start: int = 0) -> Losses:
    """Drop arguments that are null and no parameter of the tool that is called; calls from ``start`` on are counted.

    A table gives the calls of a tool the parameters of all others, null. What is called without being declared, or
    takes other arguments than it names, keeps its nulls, and so do arguments that are JSON text.
    """
    losses = Losses()
    if not conversation.with_nulls:
        return losses
    parameters = {tool.name: _closed_parameters(tool) for tool in tools}
    for index in conversation.with_nulls:
        call = conversation.content[index]
        known = parameters.get(call.function) if isinstance(call, ApiAction) else None
        if known is None or not isinstance(call, ApiAction):
            continue
        kwargs = {name: value for name, value in call.kwargs.items() if value is not None or name in known}
        if index >= start and len(kwargs) < len(call.kwargs):
            losses["arguments.null"] += len(call.kwargs) - len(kwargs)
        # The reader made the call just now, and nothing else refers to it yet.
        force_setattr(call, "kwargs", kwargs)
    return losses


_OPEN_SCHEMA = ("additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf")


def _closed_parameters(tool: Tool) -> frozenset[str] | None:
    """The names of all parameters of a tool; ``None`` where its schema does not name all of them."""
    properties = tool.parameters.get("properties")
    if not isinstance(properties, dict) or any(tool.parameters.get(name) for name in _OPEN_SCHEMA):
        return None
    return frozenset(properties)


_POINT = ("x", "y", "button")
PARAMETERS: dict[str, tuple[str, ...]] = {
    "clear": ("bid",),
    "click": ("bid", "button", "modifiers"),
    "dblclick": ("bid", "button", "modifiers"),
    "drag_and_drop": ("from_bid", "to_bid"),
    "fill": ("bid", "value"),
    "focus": ("bid",),
    "go_back": (),
    "go_forward": (),
    "goto": ("url",),
    "hover": ("bid",),
    "keyboard_down": ("key",),
    "keyboard_insert_text": ("text",),
    "keyboard_press": ("key",),
    "keyboard_type": ("text",),
    "keyboard_up": ("key",),
    "mouse_click": _POINT,
    "mouse_dblclick": _POINT,
    "mouse_down": _POINT,
    "mouse_drag_and_drop": ("from_x", "from_y", "to_x", "to_y"),
    "mouse_move": ("x", "y"),
    "mouse_up": _POINT,
    "new_tab": (),
    "noop": ("wait_ms",),
    "press": ("bid", "key_comb"),
    "report_infeasible": ("reason",),
    "scroll": ("delta_x", "delta_y"),
    "select_option": ("bid", "options"),
    "send_msg_to_user": ("text",),
    "tab_close": (),
    "tab_focus": ("index",),
    "upload_file": ("bid", "file"),
}
"""The actions, and their parameters in order: arguments without a name are those."""


def browser_action(text: str, parameters: Mapping[str, tuple[str, ...]] = PARAMETERS) -> ApiAction | CodeAction:
    """The action that ``text`` is: a call with plain values, or else code. ``parameters`` are those of each call."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings, which are taken as Python takes them
            # Parsed and never evaluated: the text is foreign code.
            call = ast.parse(text.strip(), mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            return ApiAction(function=call.func.id, kwargs=_arguments(call, parameters.get(call.func.id, ())))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        pass
    return CodeAction(language="python", content=text)


def _arguments(call: ast.Call, parameters: tuple[str, ...]) -> JsonObject:
    """The arguments by name. Raises ``ValueError`` for what has no name, has it twice, or is no JSON value."""
    if len(call.args) > len(parameters):
        raise ValueError("more arguments than parameters")
    given = [*zip(parameters, call.args, strict=False), *((each.arg, each.value) for each in call.keywords)]
    found = {name: _value(ast.literal_eval(value)) for name, value in given if name is not None}
    if len(found) < len(given):
        raise ValueError("an argument is given twice, or has no name")
    # Raises for what JSON cannot hold, such as half characters.
    msgspec.json.encode(found)
    return found


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return [_value(each) for each in value]
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"{value!r} is no JSON value")


_CALLS = frozenset({ApiAction, CodeAction})


def link_remarks(content: Sequence[AnyItem], tools: Sequence[Tool]) -> Remarks:
    """What is odd, by reason code.

    ``repeated_call_id``, ``orphan_result``, ``early_result`` (its call comes later), ``duplicate_result``,
    ``unanswered_call``, and ``undeclared_tool`` where tools are declared and others called.
    """
    remarks = Remarks()
    waiting: dict[str | None, int] = {}
    early: set[str] = set()
    declared = {tool.name for tool in tools}
    before: AnyItem | None = None
    for item in content:
        call_id = item.tool_call_id
        # The parts of one result, such as its text and an image.
        goes_on = call_id is not None and before is not None and call_id == before.tool_call_id
        previous, before = before, item
        if goes_on and not {type(item), type(previous)} & _CALLS and type(item) is not type(previous):
            continue
        if type(item) in _CALLS:
            if declared and isinstance(item, ApiAction) and item.function not in declared:
                remarks["undeclared_tool"] += 1
            if call_id is None:
                remarks["unanswered_call"] += 1
                continue
            if call_id in waiting:
                remarks["repeated_call_id"] += 1
            if call_id in early:
                remarks["early_result"] += 1
            waiting[call_id] = waiting.get(call_id, 0) + 1
        elif call_id is not None and waiting.get(call_id, 0):
            waiting[call_id] -= 1
        elif call_id is not None:
            remarks["duplicate_result" if call_id in waiting else "orphan_result"] += 1
            # A call of this id may still come: then its result came too early.
            early.add(call_id)
    if unanswered := sum(waiting.values()):
        remarks["unanswered_call"] += unanswered
    return remarks
