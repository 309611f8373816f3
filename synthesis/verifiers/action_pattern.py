"""Patterns of actions: which items of a trajectory a rule or a milestone speaks of.

{tool: search}                                   # calls of a tool; * and ? stand for any characters
{tool: write_file, arguments: {path: "/etc/*"}}  # texts are patterns, too; other values must be equal
{code: "rm -rf", language: bash}                 # a regular expression that the code holds
{message: "(?i)sorry"}                           # what the agent says
{observation: "404"}                             # what it sees
{tool: "*", error: true}                         # calls that were answered with an error
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from agentmill.schemas.config import Config
from agentmill.schemas.records.trajectory import Action, AnyItem, ApiAction, CodeAction, MessageAction
from agentmill.schemas.views.conversation import answers

KINDS = ("tool", "code", "message", "observation")
OF_KIND = {"arguments": "tool", "language": "code"}
"""The parameters that only patterns of one kind have."""


def _compiles(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from error
    return text


Regex = Annotated[str, AfterValidator(_compiles)]
"""A regular expression of Python's ``re``, looked for anywhere in a text."""


class ActionPattern(Config):
    """Which items of a trajectory are meant: those of one kind, by what they hold."""

    tool: str | None = Field(default=None, description="calls of the tool with this name; * and ? as in file names")
    arguments: dict[str, Any] = Field(
        default={}, description="of a tool: arguments that the call has; texts with * and ?, other values as they are"
    )
    code: Regex | None = Field(default=None, description="code that holds this regular expression")
    language: str | None = Field(default=None, description="of code: its language")
    message: Regex | None = Field(default=None, description="messages of the agent that hold this regular expression")
    observation: Regex | None = Field(default=None, description="observations that hold this regular expression")
    error: bool | None = Field(default=None, description="actions answered with an error, or those that were not")

    @model_validator(mode="after")
    def _one_kind(self) -> ActionPattern:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"a pattern names one of {', '.join(KINDS)}, for example {{tool: search}}")
        for name, kind in OF_KIND.items():
            if getattr(self, name) and given != [kind]:
                raise ValueError(f"`{name}` goes with `{kind}`")
        return self

    def places(self, content: Sequence[AnyItem]) -> list[int]:
        """The items that it fits, by place, in order."""
        return [place for place in range(len(content)) if self.fits(content, place)]

    def fits(self, content: Sequence[AnyItem], place: int) -> bool:
        """Whether it fits the item at ``place``; a proposal, or a message to other agents, is no action."""
        item = content[place]
        if self.observation is not None:
            text = getattr(item, "content", None) or getattr(item, "axtree", None) or getattr(item, "html", None) or ""
            found = not isinstance(item, Action) and _holds(self.observation, text)
        else:
            found = isinstance(item, Action) and item.role in (None, "actor") and self._fits_action(item)
        return found and (self.error is None or self.error == failed(content, place))

    def _fits_action(self, item: Action) -> bool:
        if isinstance(item, ApiAction):
            return self.tool is not None and _globs(item.function, self.tool) and self._has_arguments(item)
        if isinstance(item, CodeAction):
            language = self.language is None or item.language == self.language
            return self.code is not None and language and _holds(self.code, item.content)
        return self.message is not None and isinstance(item, MessageAction) and _holds(self.message, item.content)

    def _has_arguments(self, call: ApiAction) -> bool:
        return all(name in call.kwargs and _equal(call.kwargs[name], value) for name, value in self.arguments.items())

    def __str__(self) -> str:
        given = self.model_dump(exclude_unset=True)
        return ", ".join(f"{name} {value}" for name, value in given.items())


def failed(content: Sequence[AnyItem], place: int) -> bool:
    """Whether an action was answered with an error, or an observation is one."""
    item = content[place]
    if not isinstance(item, Action):
        return item.error
    own = [each for each in answers(content, place) if each.tool_call_id == item.tool_call_id]
    return item.error or any(each.error for each in own)


@lru_cache(maxsize=1024)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


def _holds(pattern: str, text: str) -> bool:
    return _pattern(pattern).search(text) is not None


def _equal(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, str):
        return isinstance(value, str) and _globs(value, wanted)
    return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)


def _globs(text: str, pattern: str) -> bool:
    # Brackets are plain characters: paths and commands hold them, and only * and ? are documented.
    return fnmatchcase(text, pattern.replace("[", "[[]"))
