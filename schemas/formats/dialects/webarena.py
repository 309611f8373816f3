"""WebArena's commands (arXiv:2307.13854): one between fences at the end of a text, ```` ```click [164]``` ````."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from schemas.formats.dialects.config import DialectConfig, terminal_calls
from schemas.formats.dialects.dialect import Block, Spoken, lines, unsayable, with_prose
from schemas.trajectory import Action, ApiAction, CodeAction

_FENCE = re.compile(r"`{3,}")
_FULL_STOP = re.compile(r"\.\s*\Z")
"""One behind the command is not said by itself."""

_TYPE = re.compile(r"\[([^\[\]]*)\]\s*\[(.*?)\](?:\s*\[((?:press_enter_after=)?[01])\])?", re.DOTALL)
PARAMETERS: dict[str, tuple[str, ...]] = {
    "click": ("id",),
    "close_tab": (),
    "go_back": (),
    "go_forward": (),
    "goto": ("url",),
    "hover": ("id",),
    "new_tab": (),
    "press": ("key_comb",),
    "scroll": ("direction",),
    "stop": ("answer",),
    "tab_focus": ("tab_index",),
    "type": ("id", "content", "press_enter_after"),
}
"""The commands, and what their arguments are called, in order; the last one of ``type`` may be left out."""


class WebArena(DialectConfig):
    """Commands of WebArena's agents and those after them, such as NNetNav's; all arguments are texts."""

    terminal: list[str] = terminal_calls("stop")

    def read(self, text: str) -> Spoken | None:
        """The last command between fences; models open more of them than they close."""
        for opening, closing in reversed(list(itertools.pairwise(_FENCE.finditer(text)))):
            call = _command(text[opening.end() : closing.start()])
            if call is not None:
                stop = _FULL_STOP.match(text, closing.end())
                return with_prose(text, [Block(opening.end() - 3, stop.end() if stop else closing.end(), call)])
        return None

    def compose(self, actions: Sequence[Action]) -> str:
        """There are words for the commands, one at a time."""
        return lines(actions, [_written(action) for action in actions])


def _command(text: str) -> ApiAction | None:
    """The command that ``text`` is, if it is one."""
    text = text.strip()
    name = re.split(r"\W", text, maxsplit=1)[0]
    arguments = text[len(name) :].lstrip()
    parameters = PARAMETERS.get(name)
    if parameters is None:
        return None
    if name == "type":
        found = _TYPE.fullmatch(arguments)
        values = [each for each in found.groups() if each is not None] if found else None
    elif parameters:
        values = [arguments[1:-1]] if len(arguments) > 1 and arguments[0] == "[" and arguments[-1] == "]" else None
    else:
        values = None if arguments else []
    if values is None:
        return None
    # Some write ``[direction=down]`` for ``[down]``.
    named = zip(parameters, values, strict=False)
    return ApiAction(function=name, kwargs={each: value.removeprefix(f"{each}=") for each, value in named})


def _written(action: Action) -> str | None:
    if isinstance(action, CodeAction):
        raise unsayable("code is no command of WebArena")
    if not isinstance(action, ApiAction):
        return None
    text = " ".join([action.function, *(f"[{value}]" for value in action.kwargs.values())])
    command = _command(text)
    if command is None or command.kwargs != action.kwargs:
        raise unsayable(f"{action.function!r} with these arguments is no command of WebArena")
    return f"```{text}```"
