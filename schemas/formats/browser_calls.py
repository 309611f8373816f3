"""Actions of BrowserGym (arXiv:2412.05467), written as one Python call; they are parsed and never run."""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Mapping
from typing import Any

import msgspec

from schemas.record import JsonObject
from schemas.trajectory import ApiAction, CodeAction

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
        raise ValueError("an argument stands twice, or has no name")
    msgspec.json.encode(found)
    return found


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return [_value(each) for each in value]
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"{value!r} is no JSON value")
