"""``search[red shoes]``, ``click[Buy Now]``: a command with its argument in brackets, on the last line of a text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from pydantic import Field

from agentmill.schemas.dialects.options import DialectConfig, Parameters, terminal_calls
from agentmill.schemas.messages.calls import PARAMETERS, browser_action
from agentmill.schemas.messages.dialect import INPUT, Block, ParsedText, lines, text_arguments, unsayable, with_prose
from agentmill.schemas.messages.surface_text import dumped
from agentmill.schemas.records.trajectory import Action, ApiAction, CodeAction

_COMMAND = re.compile(r"^([A-Za-z_][\w.-]*)\[(.*)\]$")


class Brackets(DialectConfig):
    """WebShop's commands (arXiv:2207.01206) and those like them."""

    terminal: list[str] = terminal_calls("finish", "Finish")

    parameters: Parameters = Field(
        default={},
        description="what the argument of a command is called, or a list for several that commas separate;"
        f" {INPUT!r} by default",
    )

    def read(self, text: str) -> ParsedText | None:
        """The command on the last line that is not blank."""
        end = len(text.rstrip())
        start = text.rfind("\n", 0, end) + 1
        action = self.command(text[start:end])
        return with_prose(text, [Block(start, end, action)]) if action else None

    def command(self, text: str) -> ApiAction | None:
        """The command that ``text`` is, if it is one."""
        found = _COMMAND.match(text)
        if found is None:
            return None
        return ApiAction(function=found[1], kwargs=text_arguments(found[2], self.parameters.get(found[1], INPUT)))

    def compose(self, actions: Sequence[Action]) -> str:
        """There are words for a call with one argument that is a text."""
        return lines(actions, [self._call(action) for action in actions])

    def _call(self, action: Action) -> str | None:
        if isinstance(action, CodeAction):
            raise unsayable("code is no command in brackets")
        if not isinstance(action, ApiAction):
            return None
        names = self.parameters.get(action.function, INPUT)
        values = [value for value in action.kwargs.values() if isinstance(value, str)]
        if list(action.kwargs) != ([names] if isinstance(names, str) else names) or len(values) < len(action.kwargs):
            raise unsayable(f"{action.function!r} has other arguments than the texts {names!r}")
        return f"{action.function}[{', '.join(values)}]"


_LINE = re.compile(r"^[ \t]*([A-Za-z_]\w*)\(.*\)[ \t]*$", re.MULTILINE)


class Calls(DialectConfig):
    """Calls as Synatra's agents (arXiv:2409.15637) write them, among comments and prose; they are never run."""

    terminal: list[str] = terminal_calls("stop", "finish")
    functions: list[str] = Field(default=[], description="what is called; anything if it is empty")
    parameters: dict[str, list[str]] = Field(
        default={}, description="what arguments without a name are called, in order, besides those of BrowserGym"
    )

    def read(self, text: str) -> ParsedText | None:
        """The calls; a line with other code, or with values that are no JSON, stays prose."""
        return with_prose(text, self._blocks(text)) if "(" in text else None

    def compose(self, actions: Sequence[Action]) -> str:
        """All arguments have names. There are no words for code."""
        return lines(actions, [_call(action) for action in actions])

    def _blocks(self, text: str) -> Iterator[Block]:
        parameters = {**PARAMETERS, **{name: tuple(names) for name, names in self.parameters.items()}}
        for line in _LINE.finditer(text):
            if not self.functions or line[1] in self.functions:
                action = browser_action(line[0], parameters)
                if isinstance(action, ApiAction):
                    yield Block(line.start(), line.end(), action)


def _call(action: Action) -> str | None:
    if isinstance(action, CodeAction):
        raise unsayable("code is no call with plain values")
    if not isinstance(action, ApiAction):
        return None
    if action.raw_arguments is not None:
        raise unsayable(f"arguments of {action.function!r} have no names")
    given = [f"{name}={_literal(value)}" for name, value in action.kwargs.items()]
    return f"{action.function}({', '.join(given)})"


def _literal(value: object) -> str:
    """A value as Python spells it, texts in double quotes."""
    return dumped(value, "spaced") if isinstance(value, str) else repr(value)


_FENCE = re.compile(r"`{3,}")
_FULL_STOP = re.compile(r"\.\s*\Z")
"""One behind the command is not an action by itself."""

_TYPE = re.compile(r"\[([^\[\]]*)\]\s*\[(.*?)\](?:\s*\[((?:press_enter_after=)?[01])\])?", re.DOTALL)
WEBARENA_PARAMETERS: dict[str, tuple[str, ...]] = {
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

    def read(self, text: str) -> ParsedText | None:
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
    parameters = WEBARENA_PARAMETERS.get(name)
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
