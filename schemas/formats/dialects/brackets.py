"""``search[red shoes]``, ``click[Buy Now]``: a command with its argument in brackets, on the last line of a text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import Field

from schemas.formats.dialects.config import DialectConfig, Parameters, terminal_calls
from schemas.formats.dialects.dialect import INPUT, Block, Spoken, lines, text_arguments, unsayable, with_prose
from schemas.trajectory import Action, ApiAction, CodeAction

_COMMAND = re.compile(r"^([A-Za-z_][\w.-]*)\[(.*)\]$")


class Brackets(DialectConfig):
    """WebShop's commands (arXiv:2207.01206) and those like them."""

    terminal: list[str] = terminal_calls("finish", "Finish")

    parameters: Parameters = Field(
        default={},
        description="what the argument of a command is called, or a list for several that commas separate;"
        f" {INPUT!r} if it is not said here",
    )

    def read(self, text: str) -> Spoken | None:
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
