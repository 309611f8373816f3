"""The contract of a dialect: how agents without a field for calls write them into what they say.

Reading keeps every character: prose before a call becomes its ``description``, prose after the last one a message. What
only looks like a call (cut off, no JSON, no closing tag) stays prose.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from agentmill.schemas.format import FormatError
from agentmill.schemas.messages.surface_text import worded
from agentmill.schemas.records.trajectory import Action, AnyAction, ApiAction, CodeAction, MessageAction

INPUT = "input"
"""The name of a call's only argument where the text names none."""
_THOUGHT = re.compile(r"\s*<think>.*?</think>\s*", re.DOTALL)


class ParsedText(msgspec.Struct, frozen=True, gc=False):
    """What a text says in a dialect.

    ``awaits``: what comes next answers it. ``plainest``: whether it is the text that ``compose`` makes, if that is
    known without composing it.
    """

    actions: list[AnyAction]
    awaits: bool = True
    plainest: bool | None = None


class Dialect(Protocol):
    """A dialect: a ``DialectConfig`` whose fields are its options."""

    @property
    def terminal(self) -> Sequence[str]:
        """The calls that end a task and get no result."""

    @property
    def results(self) -> Sequence[str]:
        """How a user turn opens that is the environment's."""

    @property
    def only_results(self) -> bool:
        """Whether no other user turn is the environment's."""

    def read(self, text: str) -> ParsedText | None:
        """The actions in ``text``; ``None`` if it says nothing in the dialect."""

    def compose(self, actions: Sequence[Action]) -> str:
        """The plainest text of ``actions``. Raises ``FormatError`` (``unsayable``)."""


class Block(NamedTuple):
    """A call in a text, from ``start`` to ``end``."""

    start: int
    end: int
    action: ApiAction | CodeAction


def read_text(dialect: Dialect, text: str) -> ParsedText | None:
    """The actions in ``text``; ``None`` if it holds none in the dialect.

    A call within the ``<think>…</think>`` that the text begins with was only considered, and is no action. It is a part
    of the description, as all that precedes a call.
    """
    thought = _THOUGHT.match(text)
    if thought is None or dialect.read(thought[0]) is None:
        return dialect.read(text)
    parsed = dialect.read(text[thought.end() :])
    if parsed is None:
        return None
    first, *others = parsed.actions
    before = thought[0] + first.description if first.description else thought[0].removesuffix("\n")
    actions = [msgspec.structs.replace(first, description=before), *others]
    return msgspec.structs.replace(parsed, actions=actions, plainest=None)


def is_terminal(dialect: Dialect, action: AnyAction) -> bool:
    """Whether a call ends a task, so that no result of it follows."""
    return (action.function if isinstance(action, ApiAction) else action.content.strip()) in dialect.terminal


def write_actions(dialect: Dialect, actions: Sequence[AnyAction], parts: Sequence[str] | None = None) -> str:
    """The text of ``actions``, in the wording that ``parts`` are if just these are read from it, or else the plainest.

    Raises ``FormatError`` (``unsayable``) if other calls would be read from that.
    """
    text = worded(parts, actions) if parts is not None else None
    # Actions may have been changed since they were read, so the old wording is tried and not trusted.
    if text is not None and _comparable(_read(dialect, text)) == _comparable(actions):
        return text
    text = dialect.compose(actions)
    if calls_of(_read(dialect, text)) != calls_of(actions):
        raise unsayable(f"the text would be read as other calls: {text!r:.80}")
    return text


def is_plainest(dialect: Dialect, parsed: ParsedText, text: str) -> bool:
    """Whether ``text``, of which ``parsed`` was read, is the one that ``compose`` makes."""
    if parsed.plainest is not None:
        return parsed.plainest
    try:
        return dialect.compose(parsed.actions) == text
    except FormatError:
        return False


def text_arguments(given: str, names: str | Sequence[str]) -> dict[str, str]:
    """The arguments that a text between brackets holds, separated by commas, by name.

    Of more commas than names the last ones count, but none inside of brackets or double quotes. A name may stand
    before its value, as in ``get_relations(variable=#1)``.
    """
    if isinstance(names, str):
        return {names: given if names == INPUT else given.removeprefix(f"{names}=")}
    depth, quoted, commas = 0, False, []
    for place, character in enumerate(given):
        quoted ^= character == '"'
        depth += 0 if quoted else (character in "([{") - (character in ")]}")
        if character == "," and not (quoted or depth):
            commas.append(place)
    edges = [-1, *(commas[len(commas) - len(names) + 1 :] if len(commas) >= len(names) else commas), len(given)]
    values = (given[a + 1 : b].strip() for a, b in itertools.pairwise(edges))
    return {name: value.removeprefix(f"{name}=") for name, value in zip(names, values, strict=False)}


def unsayable(detail: str) -> FormatError:
    """The error of a call that a dialect has no words for."""
    return FormatError("unsayable", detail)


def with_prose(text: str, blocks: Iterable[Block]) -> ParsedText | None:
    """The actions of ``blocks`` and the prose around them; a line break next to a block belongs to neither.

    Prose of nothing but white space is none.
    """
    actions: list[AnyAction] = []
    done = 0
    for block in blocks:
        prose = _between(text[done : block.start], first=done == 0).removesuffix("\n")
        done = block.end
        actions.append(described(block.action, None if not prose or prose.isspace() else prose))
    if not actions:
        return None
    rest = text[done:].removeprefix("\n")
    return ParsedText(actions if not rest or rest.isspace() else [*actions, MessageAction(content=rest)])


def described(action: ApiAction | CodeAction, description: str | None) -> ApiAction | CodeAction:
    """The call with the text before it."""
    return action if description is None else msgspec.structs.replace(action, description=description)


def lines(actions: Sequence[Action], blocks: Sequence[str | None]) -> str:
    """``blocks`` (``None`` for a message) and the prose of ``actions``, one under the other."""
    texts: list[str] = []
    for action, block in zip(actions, blocks, strict=True):
        texts += [action.description] if action.description else []
        texts.append(action.content if isinstance(action, MessageAction) else block or "")
    return "\n".join(texts)


def _between(prose: str, first: bool) -> str:
    return prose if first else prose.removeprefix("\n")


def _read(dialect: Dialect, text: str) -> list[AnyAction]:
    parsed = read_text(dialect, text)
    return parsed.actions if parsed else []


def _comparable(actions: Sequence[AnyAction]) -> list[tuple[Any, ...]]:
    texts = (None if isinstance(action, ApiAction) else action.content for action in actions)
    triples = zip(map(type, actions), texts, (action.description or None for action in actions), strict=True)
    return [*triples, *calls_of(actions)]


def calls_of(actions: Sequence[Action]) -> list[tuple[Any, ...]]:
    """What distinguishes the calls among ``actions``."""
    found: list[tuple[Any, ...]] = []
    for action in actions:
        if isinstance(action, ApiAction):
            found.append((action.function, action.kwargs, action.raw_arguments))
        elif isinstance(action, CodeAction):
            found.append((action.language, action.content))
    return found
