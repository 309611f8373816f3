"""Fenced code blocks, as in Markdown: three or more backticks or tildes, the language, the code, and as many again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pydantic import Field

from schemas.formats.dialects.config import DialectConfig
from schemas.formats.dialects.dialect import Block, Spoken, lines, unsayable, with_prose
from schemas.trajectory import Action, ApiAction, CodeAction

_FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})([^\n`]*)$", re.MULTILINE)


class Fenced(DialectConfig):
    """Fenced blocks are code that is run, in the language that stands on the fence."""

    languages: list[str] = Field(
        default=[], description="blocks in these languages are run; all of them if it is empty"
    )
    language: str | None = Field(
        default="", description="the language of blocks on whose fence there is none; null: these are no code"
    )
    last: bool = Field(default=False, description="only the last such block of a turn is run")

    def read(self, text: str) -> Spoken | None:
        """The blocks that are run; all others, and an unclosed one, stay prose."""
        if "```" not in text and "~~~" not in text:
            return None
        run = [
            block for block in _blocks(text, self.language) if not self.languages or _language(block) in self.languages
        ]
        return with_prose(text, run[-1:] if self.last else run)

    def compose(self, actions: Sequence[Action]) -> str:
        """There are words for code, and none for tool calls."""
        return lines(actions, [_code(action) for action in actions])


def _blocks(text: str, language: str | None) -> Iterator[Block]:
    """The closed blocks; without a language, they are in ``language``, or none. Those of a list are indented."""
    opening: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opening is None or len(fence[1]) < len(opening[1]):  # the list ends, and a block that it left open
            opening = fence
        elif fence[1] == opening[1] and fence[2] == opening[2] and not fence[3].strip():
            code = text[opening.end() + 1 : fence.start()].removesuffix("\n")
            named = opening[3].split()[0] if opening[3].strip() else language
            if named is not None:
                yield Block(opening.start(), fence.end(), CodeAction(language=named, content=_dedented(code, fence[1])))
            opening = None


def _dedented(code: str, indent: str) -> str:
    return "\n".join(line.removeprefix(indent) for line in code.split("\n")) if indent else code


def _language(block: Block) -> str:
    return block.action.language if isinstance(block.action, CodeAction) else ""


def _code(action: Action) -> str | None:
    if isinstance(action, ApiAction):
        raise unsayable("a tool call is no code")
    if not isinstance(action, CodeAction):
        return None
    fence = "```"
    while fence in action.content:
        fence += "`"
    return f"{fence}{action.language}\n{action.content}\n{fence}"
