"""Fenced code blocks, as in Markdown: three or more backticks or tildes, the language, the code, and as many again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pydantic import Field

from agentmill.schemas.dialects.options import DialectConfig, result_openings, terminal_calls
from agentmill.schemas.messages.dialect import Block, ParsedText, lines, unsayable, with_prose
from agentmill.schemas.records.trajectory import Action, ApiAction, CodeAction

_FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})([^\n`]*)$", re.MULTILINE)


class Fenced(DialectConfig):
    """Fenced blocks are code that is run, in the language that the fence names."""

    languages: list[str] = Field(
        default=[], description="blocks in these languages are run; all of them if it is empty"
    )
    language: str | None = Field(
        default="", description="the language of blocks on whose fence there is none; null: these are no code"
    )
    last: bool = Field(default=False, description="only the last such block of a turn is run")

    def read(self, text: str) -> ParsedText | None:
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


_OPENED = re.compile(r"<execute(_\w+)?>")
_CLOSED = re.compile(r"</execute(_\w+)?>")
_PYTHON = ("ipython", "python")


class Execute(DialectConfig):
    """Code in ``<execute>`` (Python), ``<execute_bash>``, ``<execute_ipython>`` … tags."""

    terminal: list[str] = terminal_calls("exit", "exit()")
    results: list[str] = result_openings("Observation:")

    def read(self, text: str) -> ParsedText | None:
        """The code; line breaks right inside the tags, or blanks around a single line, are no part of it."""
        if "</execute" not in text:
            return None
        return with_prose(text, _executed(text))

    def compose(self, actions: Sequence[Action]) -> str:
        """There are words for code, and none for tool calls."""
        return lines(actions, [_executed_code(action) for action in actions])


def _executed(text: str) -> Iterator[Block]:
    """The blocks of a text; each ends at the first tag of its kind."""
    # What is never closed would be searched to the end of the text each time.
    last = {found[1]: found.start() for found in _CLOSED.finditer(text)}
    done = 0
    for opening in _OPENED.finditer(text):
        kind, start = opening[1], opening.end()
        if opening.start() < done or last.get(kind, -1) < start:
            continue
        closing = f"</execute{kind or ''}>"
        end = text.index(closing, start)
        done = end + len(closing)
        yield Block(opening.start(), done, _action((kind or "_")[1:] or None, text[start:end]))


def _action(kind: str | None, code: str) -> CodeAction:
    code = code.removeprefix("\n").removesuffix("\n") if "\n" in code else code.strip(" ")
    return CodeAction(language="python" if kind is None or kind in _PYTHON else kind, content=code)


def _executed_code(action: Action) -> str | None:
    if isinstance(action, ApiAction):
        raise unsayable("a tool call is no code")
    if not isinstance(action, CodeAction):
        return None
    kind = "" if action.language == "python" else f"_{action.language}"
    return f"<execute{kind}>\n{action.content}\n</execute{kind}>"
