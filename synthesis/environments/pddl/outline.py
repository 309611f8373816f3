"""The bracket structure of a PDDL text with positions, so that errors can say where."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from agentmill.synthesis.environments.pddl.domain import PddlError

_TOKEN = re.compile(r"[()]|;[^\n]*|[^\s();]+")
_EXCERPT = 60
_MOST_DEEP = 100
_SECTIONS = {":requirements", ":types", ":constants", ":predicates", ":action", ":domain", ":objects", ":init", ":goal"}


class Node(msgspec.Struct):
    """A lower-case word (``word`` set) or a bracketed list of nodes; ``line`` and ``column`` count from 1."""

    line: int
    column: int
    word: str | None = None
    children: list[Node] = []

    @property
    def head(self) -> str:
        """The first word of a list; empty for a word, an empty list, or a list that starts with a list."""
        return (self.children[0].word or "") if self.children else ""

    @property
    def tail(self) -> list[Node]:
        """What follows the head."""
        return self.children[1:]

    def text(self) -> str:
        """The node as PDDL on one line."""
        return self.word if self.word is not None else f"({' '.join(child.text() for child in self.children)})"

    def where(self) -> str:
        """Position and a short excerpt, for ``PddlError``."""
        text = self.text()
        return f"line {self.line}, column {self.column}: {text if len(text) <= _EXCERPT else text[:_EXCERPT] + ' ...'}"


def _tokens(text: str) -> Iterator[tuple[str, int, int]]:
    for number, line in enumerate(text.lower().split("\n"), start=1):
        for match in _TOKEN.finditer(line):
            if not match.group().startswith(";"):
                yield match.group(), number, match.start() + 1


def outline(text: str) -> Node:
    """The single bracketed list that ``text`` consists of. Raises ``PddlError`` for brackets that do not match."""
    stack: list[Node] = []
    root: Node | None = None
    for token, line, column in _tokens(text):
        if root is not None:
            raise PddlError(f"{token!r} after the end of the text", f"line {line}, column {column}", "nothing more")
        if token == "(":
            stack.append(Node(line, column))
            if len(stack) > _MOST_DEEP:
                where = f"line {line}, column {column}"
                raise PddlError(f"more than {_MOST_DEEP} brackets in one another", where, "one 'and' of literals")
        elif not stack:
            raise PddlError(f"the text starts with {token!r}", f"line {line}, column {column}", "'(define ...'")
        elif token == ")":
            closed = stack.pop()
            if stack:
                stack[-1].children.append(closed)
            else:
                root = closed
        else:
            # A missing bracket shows only at the end of the text; the next section is much nearer to the mistake.
            if token in _SECTIONS and not stack[-1].children and len(stack) != 2:
                raise PddlError(
                    f"({token} at line {line}, column {column} stands inside another bracket that was not closed",
                    stack[-2].where() if len(stack) > 1 else "",
                    f"')' before ({token}",
                )
            stack[-1].children.append(Node(line, column, word=token))
    if stack:
        raise PddlError(f"{len(stack)} bracket(s) never closed, the innermost", stack[-1].where(), "')'")
    if root is None:
        raise PddlError("the text is empty", "line 1, column 1", "'(define ...'")
    return root
