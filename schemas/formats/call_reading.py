"""Calls of OpenAI messages: what is called, with which arguments, and how these were spelled."""

from __future__ import annotations

from typing import Any

from schemas.formats.arguments import read_arguments
from schemas.formats.conversation import Conversation
from schemas.formats.format import FormatError
from schemas.formats.json_text import Spelling, spelled, spelling_of
from schemas.record import JsonObject
from schemas.trajectory import ApiAction

_CALL = frozenset({"id", "type", "function"})
_FUNCTION = frozenset({"name", "arguments"})


class CallReader:
    """Reads the calls of one conversation. ``arguments`` is how the format spells arguments if nothing is noted."""

    def __init__(self, talk: Conversation, arguments: Spelling) -> None:
        self.talk = talk
        self.arguments = arguments
        self._style: Spelling | None = None
        self._empty: list[int] = []
        """Calls before the one that tells the style: without arguments, and spelled as the format does it."""

    def read(self, call: Any, fields: JsonObject) -> ApiAction:
        """The call that becomes the next item, with ``fields`` beside it. Raises ``FormatError``."""
        index = len(self.talk.content)
        function = _function(call)
        call_id = call.get("id")
        if call_id is not None and not isinstance(call_id, str):
            raise FormatError("invalid", f"the id of a call is {call_id!r:.60}, expected a text")
        if not call_id:
            self.talk.unnumbered.append(index)
            if call_id == "":
                self.talk.note(index, id="")
        kwargs, raw = read_arguments(function.get("arguments"))
        self._spelled(function.get("arguments"), kwargs, raw, index)
        self._rest(call, function, index)
        name = function["name"]
        return ApiAction(function=name, kwargs=kwargs, raw_arguments=raw, tool_call_id=call_id or None, **fields)

    def _spelled(self, given: Any, kwargs: JsonObject, raw: str | None, index: int) -> None:
        """Note how arguments are spelled, if it is not in the way of the first call of the record."""
        if raw is not None:
            self.talk.remarks["invalid_arguments"] += 1
        elif kwargs and self._style is None:
            self._set_style(spelling_of(given, kwargs) or self.arguments)
        if given != (spelled(kwargs, self._style or self.arguments) if raw is None else raw):
            self.talk.note(index, arguments=given)
        elif self._style is None and raw is None:
            self._empty.append(index)

    def _set_style(self, style: Spelling) -> None:
        self._style = style
        if style != self.arguments:
            self.talk.spelling["arguments"] = style
        if (style == "object") != (self.arguments == "object"):
            for index in self._empty:
                self.talk.note(index, arguments=spelled({}, self.arguments))

    def _rest(self, call: JsonObject, function: JsonObject, index: int) -> None:
        """Keep the fields of a call that no field of ours says."""
        if "type" not in call:
            self.talk.note(index, type="absent")
        if call.keys() <= _CALL and function.keys() <= _FUNCTION:
            return
        rest = {field: value for field, value in call.items() if field not in _CALL and value is not None}
        more = {field: value for field, value in function.items() if field not in _FUNCTION and value is not None}
        rest |= {"function": more} if more else {}
        if rest:
            self.talk.call_fields[str(index)] = rest


def _function(call: Any) -> JsonObject:
    """The function that a call names, and its arguments."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise FormatError("unknown_call", f"expected a call with a function and its name, got {call!r:.80}")
    if call.get("type", "function") != "function":
        raise FormatError("unknown_call", f"a call is of type {call['type']!r:.60}; known: function")
    return function
