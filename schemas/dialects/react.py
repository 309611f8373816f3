"""``Thought:``, ``Action:``, ``Action Input:``, ``Final Answer:`` (ReAct, arXiv:2210.03629), in the spellings in use.

An action is one of: a name with ``Action Input:``, JSON if it is any; a name and a fenced block; ``name[text]``,
``name(text)`` or ``name(key=value)``; ``Answer`` with ``Final Answer:``; or else a command in plain text, which is a
message to its environment unless ``commands`` has it. It ends where a line begins with the next label; what follows,
such as an observation that the agent made up, is a message.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from pydantic import Field, field_validator

from agentmill.schemas.dialects.options import DialectConfig, Parameters, result_openings, terminal_calls
from agentmill.schemas.dialects.tool_text import TOOL_TEXTS
from agentmill.schemas.messages.calls import browser_action, read_arguments
from agentmill.schemas.messages.dialect import INPUT, ParsedText, text_arguments, unsayable
from agentmill.schemas.messages.surface_text import dumped
from agentmill.schemas.records.rows import MessageCall
from agentmill.schemas.records.trajectory import Action, ApiAction, CodeAction, MessageAction

_INPUTS = "Action Input:"
_INPUT = re.compile(rf"([^\n]+)\n\s*{_INPUTS}(.*)", re.DOTALL)
_CODE = re.compile(r"([^\n`]*)\n\s*(`{3,})([^\n`]*)\n(.*?)\n?\2", re.DOTALL)
_CALL = re.compile(r"([A-Za-z_][\w.-]*)(?:\[(.*)\]|\((.*)\))", re.DOTALL)
_WORD = re.compile(r"\s*\w*\s*")
_BLANKS = " \t"
_NAME = re.compile(r"\{([A-Za-z_]\w*)\}")
_COMMAND = re.compile(r"[^\s{}]+( [^\s{}]+| \{[A-Za-z_]\w*\})*")
_CHOICE = re.compile(r"[A-Z]\.")
_ACTION = "Action:"
"""Stands for the action among the names of arguments, none of which has a colon."""
_ANSWERS = "Final Answer:"
_THOUGHTS = ("Thought:", "THOUGHT:", "Think:")
_ACTIONS = ("Action:", "ACTION:", "Act:")
_LABELS = ("Observation:", "OBSERVATION:", *_THOUGHTS, *_ACTIONS, _ANSWERS)


class React(DialectConfig):
    """One thought and one action to a text."""

    terminal: list[str] = terminal_calls("answer", "finish", "Finish")
    results: list[str] = result_openings("Observation:", "OBSERVATION:")
    parameters: Parameters = Field(
        default={},
        description="what the text in ``name[text]`` is called, or a list for several that commas separate;"
        f" {INPUT!r} by default",
    )
    commands: list[str] = Field(
        default=[],
        description="actions in plain text that are calls, such as ``take {item} from {source}``: their first word is"
        " called, what stands in the place of the names are its arguments",
    )
    arguments: dict[str, str] = Field(
        default={},
        description="labels of lines that hold an argument of the action, such as ``Value``, and what that is called",
    )

    @field_validator("commands")
    @classmethod
    def _templates(cls, commands: list[str]) -> list[str]:
        for command in commands:
            names = _NAME.findall(command)
            if not _COMMAND.fullmatch(command) or len(set(names)) < len(names):
                raise ValueError(f"{command!r} is not a command; expected a word, then words and {{names}} that differ")
        return commands

    @functools.cached_property
    def _patterns(self) -> list[re.Pattern[str]]:
        return [re.compile(_pattern(each)) for each in self.commands]

    def read(self, text: str) -> ParsedText | None:
        """The first action of ``text`` and what follows it, or its final answer; ``None`` for a thought alone."""
        action = _label(text, _ACTIONS)
        answer = _label(text, (_ANSWERS,)) if _ANSWERS in text else None
        if answer is not None and action is not None and answer.start < action.start:
            # What a model goes on to write behind its answer is not done.
            given, rest = text[answer.stop : action.start].strip(), text[action.start :].strip()
            first = MessageAction(content=given, description=_thought(text[: answer.start]))
            return ParsedText([first, MessageAction(content=rest)], awaits=False, plainest=False)
        opening = action or answer
        if self.arguments and (labelled := self._labelled(text)):
            return ParsedText([labelled], plainest=False)
        if opening is None:
            return None
        thought = _thought(text[: opening.start])
        if answer is not None and (action is None or _WORD.fullmatch(text, action.stop, answer.start)):
            answer_text = text[answer.stop :].lstrip(_BLANKS)
            return ParsedText([MessageAction(content=answer_text, description=thought)], awaits=False)
        body, rest = _parted(text[opening.stop :].strip())
        done = self._call(body, thought) or MessageAction(content=body, description=thought)
        if rest:
            return ParsedText([done, MessageAction(content=rest)], plainest=False)
        return ParsedText([done], plainest=None if _INPUTS in body else False)

    def compose(self, actions: Sequence[Action]) -> str:
        """Names with ``Action Input:``. There are no words for code, for parallel calls, or for two messages."""
        if len(actions) != 1 or isinstance(actions[0], CodeAction):
            raise unsayable("a turn is one action, and none that runs code")
        action = actions[0]
        dialect = TOOL_TEXTS["react"]
        thought = f"{dialect.thought}{action.description}\n" if action.description else ""
        if isinstance(action, MessageAction):
            return f"{thought}{dialect.answer}{action.content}"
        assert isinstance(action, ApiAction)
        arguments = dumped(action.kwargs, "spaced") if action.raw_arguments is None else action.raw_arguments
        return thought + dialect.call(MessageCall(name=action.function, arguments=arguments))

    def _call(self, body: str, thought: str | None) -> ApiAction | CodeAction | None:
        if _INPUTS in body and (found := _INPUT.fullmatch(body)):
            kwargs, raw = read_arguments(found[2].strip())
            name = found[1].rstrip(_BLANKS) or found[1][:1]
            return ApiAction(function=name, kwargs=kwargs, raw_arguments=raw, description=thought)
        if "```" in body and (block := _block(body)):
            name, info, code = block
            return CodeAction(language=info.strip() or name.strip().lower(), content=code, description=thought)
        for pattern in self._patterns:
            if command := pattern.fullmatch(body):
                return ApiAction(function=body.split(" ")[0], kwargs=command.groupdict(), description=thought)
        if found := _CALL.fullmatch(body):
            name, bracketed, given = found.groups()
            if bracketed is None and "=" in given and name not in {*self.parameters, *self.terminal}:
                call = browser_action(body, {})
                if isinstance(call, ApiAction):
                    return ApiAction(function=name, kwargs=call.kwargs, description=thought)
            given = given if bracketed is None else bracketed
            kwargs = text_arguments(given, self.parameters.get(name, INPUT)) if given else {}
            return ApiAction(function=name, kwargs=kwargs, description=thought)
        return None

    def _labelled(self, text: str) -> ApiAction | None:
        """The action with arguments on lines of their own; ``None`` where there is anything else on or between these.

        A letter that is chosen (``Answer: B.``) is one without the full stop. A choice that no action follows (none of
        those given) goes by its label.
        """
        thought: list[str] = []
        found: dict[str, str] = {}
        for line in text.rstrip().split("\n"):
            label, colon, value = line.partition(":")
            name = _ACTION if f"{label.strip()}:" in _ACTIONS else self.arguments.get(label.strip())
            if not colon or name is None:
                if found:
                    return None
                thought.append(line)
            elif name in found:
                return None
            else:
                found[name] = value.strip()
        function = found.pop(_ACTION, None)
        kwargs = {name: value[:-1] if _CHOICE.fullmatch(value) else value for name, value in found.items()}
        if function is None:
            function = next((label for label, name in self.arguments.items() if [name] == list(kwargs)), None)
        if not function or not kwargs:
            return None
        return ApiAction(function=function, kwargs=kwargs, description=_thought("\n".join(thought)))


def _block(body: str) -> tuple[str, str, str] | None:
    """The name before a fenced block that ends ``body``, what comes after the fence, and the code.

    Nearly all fences are of three marks, so that each step has but one way: to find these takes half the time of the
    pattern, which tries every character of the code.
    """
    name, _, block = body.partition("\n")
    block = block.lstrip()
    if block.startswith("````"):
        found = _CODE.fullmatch(body)
        return (found[1], found[3], found[4]) if found else None
    info, line_break, code = block[3:].partition("\n")
    if not (block.startswith("```") and line_break and code.endswith("```")) or "`" in name or "`" in info:
        return None
    return name, info, code[:-3].removesuffix("\n")


def _pattern(command: str) -> str:
    """What matches a command, with a group for each of its names."""
    parts = _NAME.split(command)
    parts[::2] = map(re.escape, parts[::2])
    parts[1::2] = [f"(?P<{name}>.+?)" for name in parts[1::2]]
    return "".join(parts)


def _parted(text: str) -> tuple[str, str]:
    """An action, and what follows it from the next label on. Labels in the code that it is of are none."""
    if "\n" not in text or ":" not in text:
        return text, ""
    code = _CODE.match(text) if "```" in text else None
    following = _label(text, _LABELS, code.end() if code else 1)
    return (text[: following.start].rstrip(), text[following.start :]) if following else (text, "")


def _label(text: str, labels: tuple[str, ...], start: int = 0) -> slice | None:
    """The first of ``labels`` that begins a line, from ``start`` on, with the blanks before it.

    Looked for with ``str.find``, since a pattern would be tried at every line.
    """
    found, end = None, len(text)
    for label in labels:
        place = text.find(label, start, end)
        while place >= 0:
            line = place
            while line > start and text[line - 1] in _BLANKS:
                line -= 1
            if line == 0 or text[line - 1] == "\n":
                found, end = slice(line, place + len(label)), line
                break
            place = text.find(label, place + 1, end)
    return found


def _thought(text: str) -> str | None:
    labelled = text.lstrip()
    if labelled.startswith(_THOUGHTS):
        text = labelled[labelled.index(":") + 1 :].lstrip(_BLANKS).removeprefix("\n")
    return text.removesuffix("\n") or None
