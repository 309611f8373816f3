"""``click(element_id="93")``: Python calls with plain values, each on a line of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pydantic import Field

from schemas.formats.browser_calls import PARAMETERS, browser_action
from schemas.formats.dialects.config import DialectConfig, terminal_calls
from schemas.formats.dialects.dialect import Block, Spoken, lines, unsayable, with_prose
from schemas.formats.json_text import dumped
from schemas.trajectory import Action, ApiAction, CodeAction

_LINE = re.compile(r"^[ \t]*([A-Za-z_]\w*)\(.*\)[ \t]*$", re.MULTILINE)


class Calls(DialectConfig):
    """Calls as Synatra's agents (arXiv:2409.15637) write them, among comments and prose; they are never run."""

    terminal: list[str] = terminal_calls("stop", "finish")
    functions: list[str] = Field(default=[], description="what is called; anything if it is empty")
    parameters: dict[str, list[str]] = Field(
        default={}, description="what arguments without a name are called, in order, besides those of BrowserGym"
    )

    def read(self, text: str) -> Spoken | None:
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
