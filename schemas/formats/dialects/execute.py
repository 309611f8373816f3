"""``<execute>code</execute>``, as CodeAct (arXiv:2402.01030) and early OpenHands agents write it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from schemas.formats.dialects.config import DialectConfig, result_openings, terminal_calls
from schemas.formats.dialects.dialect import Block, Spoken, lines, unsayable, with_prose
from schemas.trajectory import Action, ApiAction, CodeAction

_BLOCK = re.compile(r"<execute(?:_(\w+))?>(.*?)</execute(?(1)_\1)>", re.DOTALL)
_PYTHON = (None, "ipython", "python")


class Execute(DialectConfig):
    """Code in ``<execute>`` (Python), ``<execute_bash>``, ``<execute_ipython>`` … tags."""

    terminal: list[str] = terminal_calls("exit", "exit()")
    results: list[str] = result_openings("Observation:")

    def read(self, text: str) -> Spoken | None:
        """The code; line breaks right inside the tags, or blanks around a single line, are no part of it."""
        if "</execute" not in text:
            return None
        last = text.find(">", text.rfind("</execute")) + 1
        blocks = [Block(found.start(), found.end(), _action(found)) for found in _BLOCK.finditer(text, 0, last)]
        return with_prose(text, blocks)

    def compose(self, actions: Sequence[Action]) -> str:
        """There are words for code, and none for tool calls."""
        return lines(actions, [_code(action) for action in actions])


def _action(found: re.Match[str]) -> CodeAction:
    code = found[2]
    code = code.removeprefix("\n").removesuffix("\n") if "\n" in code else code.strip(" ")
    return CodeAction(language="python" if found[1] in _PYTHON else found[1], content=code)


def _code(action: Action) -> str | None:
    if isinstance(action, ApiAction):
        raise unsayable("a tool call is no code")
    if not isinstance(action, CodeAction):
        return None
    kind = "" if action.language == "python" else f"_{action.language}"
    return f"<execute{kind}>\n{action.content}\n</execute{kind}>"
