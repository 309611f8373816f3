"""OpenAI chat messages, from which the items of a run are made. Formats that spell them otherwise translate first.

An assistant message is one turn: its text, or its calls, the first of which takes text and reasoning along. A result
belongs to the call of its id; one without an id to a call of the turn before it, in order: to those without an id,
then to those that no result names. A field that is null is one that is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Any

from msgspec.structs import force_setattr

from agentmill.schemas.format import FormatError
from agentmill.schemas.messages.calls import CallReader
from agentmill.schemas.messages.conversation import Conversation, Flag, Text, key
from agentmill.schemas.messages.dialect import Dialect, ParsedText, is_plainest, is_terminal, read_text
from agentmill.schemas.messages.parts import REASONING, Image, opening_of, read_parts, reasoning_of, rest_of, speaker_of
from agentmill.schemas.messages.surface_text import Spelling, Wordings, wording
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import (
    Action,
    ApiAction,
    CodeAction,
    ImageObservation,
    MessageAction,
    ObservationSource,
    TextObservation,
)

_KNOWN = frozenset({"role", "content", "name"})
_RESULT = _KNOWN | {"tool_call_id"}
_CALLS = frozenset({ApiAction, CodeAction})


class MessageReader:
    """Reads the messages of one record. ``arguments`` is how the format spells arguments if nothing is noted."""

    def __init__(self, arguments: Spelling, flag: Flag, dialect: Dialect | None = None) -> None:
        self.flag = flag
        self.dialect = dialect
        self.conversation = Conversation()
        self._call_reader = CallReader(self.conversation, arguments)
        self._ids: set[str | None] = set()
        """Ids in use so far."""
        self._waiting: list[int] = []
        """Calls of the last turn without an id."""
        self._ending: list[int] = []
        """Such calls that end a task: they get a result only where there are more results than other calls."""
        self._results: list[int] = []
        """Results without an id since then."""
        self._ends: dict[int, int] = {}
        """Where results of several parts end, by the place of the first."""
        self._awaits = False
        """The last turn is answered by what comes next, whoever speaks."""
        self._openings = tuple(dialect.results) if dialect else ()
        self._only_openings = dialect is not None and dialect.only_results
        self._wordings = Wordings()

    def read(self, messages: Any) -> Conversation:
        """The conversation.

        Raises ``FormatError``: ``invalid``, ``unknown_role``, ``unknown_part``, ``unknown_call``.
        """
        if not isinstance(messages, list):
            raise FormatError("invalid", f"expected a list of messages, got {messages!r:.60}")
        conversation = self.conversation
        for place, message in enumerate(messages):
            try:
                # Broken messages are rare, so they are looked at only after the lookup has failed.
                reader = _READERS[message["role"]]
            except (KeyError, TypeError) as error:
                raise _unreadable(message, place) from error
            conversation.starts.append(len(conversation.content))
            reader(self, message)
        return self._finished()

    def read_texts(self, texts: Iterable[Text]) -> Conversation:
        """The conversation of messages that are a text and nothing else."""
        conversation = self.conversation
        for text, of_agent, train in texts:
            index = len(conversation.content)
            conversation.starts.append(index)
            if of_agent:
                self._begin_turn()
                self._add_text(text, index, train)
            else:
                self._hear(text)
        return self._finished()

    def _system(self, message: JsonObject) -> None:
        role = message["role"]
        if self.conversation.content or self.conversation.system_prompt is not None:
            self._observe(message, _KNOWN, source="environment", role=role)
            return
        self.conversation.starts[-1] = -1
        self.conversation.system_prompt = self._text(message, -1)
        if role != "system":
            self.conversation.note(-1, role=role)
        self._rest(message, -1, _KNOWN - {"name"})

    def _user(self, message: JsonObject) -> None:
        content = message.get("content")
        # Role and text are all that most messages hold, so these skip the general way.
        if len(message) == 2 and isinstance(content, str):
            self._hear(content)
        elif not self._is_result(opening_of(content)):
            self._observe(message, _KNOWN, source="user")
        else:
            self._results.append(len(self.conversation.content))
            self._observe(message, _KNOWN, source="environment")

    def _hear(self, text: str) -> None:
        content = self.conversation.content
        is_result = self._is_result(text)
        if is_result:
            self._results.append(len(content))
        source: ObservationSource = "environment" if is_result else "user"
        content.append(TextObservation(content=text, turn=self.conversation.turn, source=source))

    def _is_result(self, text: str) -> bool:
        """Whether a user turn is the environment's: by how it opens, or else by a guess, as it follows a call."""
        if self._openings and self.conversation.turn and text.startswith(self._openings):
            return True
        guessed = self._awaits and not self._only_openings
        if guessed:
            self.conversation.remarks["guessed_source"] += 1
        return guessed

    def _result(self, message: JsonObject) -> None:
        index = len(self.conversation.content)
        role = message["role"]
        call_id = message.get("tool_call_id")
        if call_id is not None and not isinstance(call_id, str):
            raise FormatError("invalid", f"the id of a result is {call_id!r:.60}, expected a text")
        self._ids.add(call_id)
        if role != "tool" or self._awaits:
            self.conversation.note(index, role=role)
        if not call_id:
            self._results.append(index)
            if not self._awaits:
                self.conversation.unnumbered.append(index)
            if call_id == "":
                self.conversation.note(index, id="")
        self._observe(message, _RESULT, source="environment", tool_call_id=call_id or None)
        if not call_id and len(self.conversation.content) > index + 1:
            self._ends[index] = len(self.conversation.content)

    def _give_id(self, result: int, name: str) -> None:
        """Give all parts of a result the id of its call."""
        for place in range(result, self._ends.get(result, result + 1)):
            # The items are frozen, but this reader made them and nobody else has them yet; a copy of each would take
            # longer.
            force_setattr(self.conversation.content[place], "tool_call_id", name)

    def _observe(self, message: JsonObject, known: frozenset[str], **fields: Any) -> None:
        index = len(self.conversation.content)
        content = message.get("content")
        if len(message) == 2 and isinstance(content, str):
            self.conversation.content.append(TextObservation(content=content, turn=self.conversation.turn, **fields))
            return
        fields.update(turn=self.conversation.turn, name=speaker_of(message), train=self._train(message))
        if isinstance(content, list):
            segments, outline = read_parts(content)
            self.conversation.note(index, parts=outline)
            images = {field: value for field, value in fields.items() if field != "name"}
            if all(isinstance(part, Image) for part in segments):
                known -= {"name"}
            for part in segments:
                item = (
                    ImageObservation(content=part.url, **images)
                    if isinstance(part, Image)
                    else TextObservation(content=part, **fields)
                )
                self.conversation.content.append(item)
        else:
            self.conversation.content.append(TextObservation(content=self._text(message, index), **fields))
        self._rest(message, index, known)

    def _assistant(self, message: JsonObject) -> None:
        self._begin_turn()
        conversation = self.conversation
        index = len(conversation.content)
        if isinstance(message.get("content"), str) and self._is_text(message):
            self._add_text(message["content"], index, self._train(message))
            return
        field, reasoning = reasoning_of(message)
        if field is not None and field != REASONING[0]:
            conversation.note(index, reasoning=field)
        calls = message.get("tool_calls")
        legacy = None if calls else message.get("function_call")
        agent, train = speaker_of(message), self._train(message)
        known = _KNOWN | {field} if field else _KNOWN
        if legacy is not None or calls:
            content = message.get("content")
            text = None if content is None else self._text(message, index)
            if "content" not in message:
                conversation.note(index, content="absent")
            if legacy is not None:
                conversation.note(index, role="function_call")
                calls = [{"type": "function", "function": legacy}]
            if self.dialect:
                conversation.note(index, native=True)
            known |= {"tool_calls" if legacy is None else "function_call"}
            fields = {"turn": conversation.turn, "agent": agent, "train": train}
            self._calls(calls, {"description": text, "reasoning_content": reasoning}, fields)
        else:
            self._add_text(self._text(message, index), index, train, agent, reasoning)
        self._rest(message, index, known)

    def _begin_turn(self) -> None:
        if self._waiting or self._ending or self._results:
            self._link()
        self.conversation.turn += 1
        self._awaits = False

    def _is_text(self, message: JsonObject) -> bool:
        """Whether a message is of a text and nothing else, but for a flag that our own field says."""
        flag = self.flag
        return len(message) == 2 or (len(message) == 3 and flag.matches(message.get(flag.field)))

    def _add_text(
        self, text: str, index: int, train: bool | None, agent: str | None = None, reasoning: str | None = None
    ) -> None:
        conversation, dialect, turn = self.conversation, self.dialect, self.conversation.turn
        parsed = read_text(dialect, text) if dialect else None
        if parsed is None or dialect is None:
            message = MessageAction(content=text, reasoning_content=reasoning, turn=turn, agent=agent, train=train)
            if dialect and dialect.compose([message]) != text:
                conversation.note(index, plain=True)
            elif dialect:
                self._wordings.add(index, None)
            conversation.content.append(message)
            return
        actions = parsed.actions
        self._word(text, index, parsed, dialect)
        for action in actions:
            if type(action) in _CALLS:
                (self._ending if is_terminal(dialect, action) else self._waiting).append(len(conversation.content))
            # The dialect made the actions just now, and left these at their defaults, as most texts have them.
            force_setattr(action, "turn", turn)
            if train is not None:
                force_setattr(action, "train", train)
            if agent is not None:
                force_setattr(action, "agent", agent)
            conversation.content.append(action)
        # A command that ends the task may be a plain text, such as ``Act: finish``.
        ended = bool(self._ending) or (not self._waiting and is_terminal(dialect, actions[0]))
        self._awaits = parsed.awaits and (bool(self._waiting) or not ended)
        if reasoning is not None:
            force_setattr(actions[0], "reasoning_content", reasoning)

    def _word(self, text: str, index: int, parsed: ParsedText, dialect: Dialect) -> None:
        """Note how ``text`` says what was read of it."""
        if is_plainest(dialect, parsed, text):
            self._wordings.add(index, None)
        elif (found := wording(text, parsed.actions)) is not None:
            self._wordings.add(index, found)
        else:
            self.conversation.note(index, text=text)

    def _calls(self, calls: Any, flag_field: JsonObject, fields: JsonObject) -> None:
        if not isinstance(calls, list):
            raise FormatError("invalid", f"expected a list of calls, got {calls!r:.60}")
        for place, call in enumerate(calls):
            action = self._call_reader.read(call, {**fields, **flag_field} if place == 0 else fields)
            self._ids.add(action.tool_call_id)
            if action.tool_call_id is None:
                self._waiting.append(len(self.conversation.content))
            self.conversation.content.append(action)

    def _finished(self) -> Conversation:
        """The conversation, with links to its last results, and notes on its wording."""
        self._link()
        self._wordings.note(self.conversation)
        return self.conversation

    def _link(self) -> None:
        """Give calls without an id, and the results without one that followed them, ids that are not in use.

        Where the results are fewer, they are those of the last calls.
        """
        waiting, results = self._waiting, self._results
        if self._ending and len(results) > len(waiting):
            # In the order in which they were written, which is that of their results.
            waiting = sorted([*waiting, *self._ending])
        if waiting and results:
            ids = self._ids
            for call, result in zip(waiting[-len(results) :], results, strict=False):
                name = f"call_{call}"
                # A later message may already have this id.
                while name in ids:
                    name += "_"
                ids.add(name)
                self._give_id(call, name)
                self._give_id(result, name)
        if len(results) > len(waiting):
            self._link_rest(results[len(waiting) :])
        if waiting or results or self._ending:
            self._waiting, self._ending, self._results = [], [], []

    def _link_rest(self, results: Sequence[int]) -> None:
        """Give tool results without an id the ids of the turn's calls that no result names."""
        conversation = self.conversation
        # Only a tool message is written without the id that it gets here; another one would not come back as it was.
        unnumbered = frozenset(conversation.unnumbered[-len(results) :])
        results = [result for result in results if result in unnumbered]
        if not results:
            return
        turn = list(takewhile(lambda item: item.turn == conversation.turn, reversed(conversation.content)))[::-1]
        named = {item.tool_call_id for item in turn if not isinstance(item, Action)}
        calls = [item.tool_call_id for item in turn if isinstance(item, ApiAction)]
        free = [call_id for call_id in calls if call_id is not None and call_id not in named][-len(results) :]
        for call_id, result in zip(free, results, strict=False):
            self._give_id(result, call_id)
        if orphans := len(results) - len(free):
            conversation.remarks["orphan_result"] += orphans

    def _text(self, message: JsonObject, index: int) -> str:
        content = message.get("content")
        if isinstance(content, str):
            return content
        if content is None:
            self.conversation.note(index, content="null" if "content" in message else "absent")
            return ""
        if not isinstance(content, list):
            raise FormatError("invalid", f"expected a text or a list of parts, got {content!r:.60}")
        segments, outline = read_parts(content)
        if not isinstance(segments[0], str) or len(segments) > 1:
            raise FormatError("unknown_part", f"a message of role {message['role']!r} holds an image")
        self.conversation.note(index, parts=outline)
        return segments[0]

    def _train(self, message: JsonObject) -> bool | None:
        given = message.get(self.flag.field)
        train = self.flag.read(given)
        self.conversation.remarks["unread_loss_mark"] += given is not None and train is None
        return train

    def _rest(self, message: JsonObject, index: int, known: frozenset[str]) -> None:
        """Keep the fields of a message that no field of ours says."""
        if message.keys() <= known:
            return
        flag_field = self.flag.field if index >= 0 and self.flag.matches(message.get(self.flag.field)) else None
        rest = rest_of(message, known, flag_field)
        if rest:
            self.conversation.fields[key(index)] = rest


_READERS: dict[str, Callable[[MessageReader, JsonObject], None]] = {
    "user": MessageReader._user,
    "assistant": MessageReader._assistant,
    "tool": MessageReader._result,
    "function": MessageReader._result,
    "system": MessageReader._system,
    "developer": MessageReader._system,
}
"""Not held by the reader, which would then hold itself, and the run, until the next collection of garbage."""


def _unreadable(message: Any, place: int) -> FormatError:
    if not isinstance(message, dict):
        return FormatError("invalid", f"message {place} is {message!r:.60}, expected an object")
    return FormatError(
        "unknown_role", f"message {place} is of role {message.get('role')!r:.60}; known: {', '.join(_READERS)}"
    )
