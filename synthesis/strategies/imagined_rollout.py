"""Runs as a model writes them, environment and all: turns as JSON, each held against the rules of the environment.

    {"turns": [{"thought": ..., "action": ..., "observation": ..., "error": ...}, ...],
     "ending": {"status": ..., "reason": ...}}

An action is a text, or with tools ``{"name": ..., "arguments": {...}}``. What is wrong is a ``Fault``; all turns before
it are verified, and stay.
"""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any, Literal, TypeVar

import msgspec

from agentmill.schemas.arrow.check import RecordError, check
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, MessageAction, TextObservation, Tool
from agentmill.synthesis.environments.environment import Environment, misfit
from agentmill.synthesis.rollouts.episode import numbered
from agentmill.synthesis.rollouts.step import carry_out, environment_at_fault

R = TypeVar("R", bound=Record)

STARTS = 100
"""Places of an answer where its JSON is looked for."""

DETAIL_CHARS, WRITTEN_CHARS = 500, 2000
"""What a fault says at most, and what it shows of an answer."""


class Fault(Exception):
    """Why a turn, or the ending, does not stand. ``reason`` is a short code: ``malformed``, ``undeclared_tool`` …

    ``written`` is what does not stand, as it was written; what is too long is cut.
    """

    def __init__(self, reason: str, detail: str, written: str = "") -> None:
        self.reason = reason
        self.detail = _cut(detail, DETAIL_CHARS)
        self.written = _cut(written, WRITTEN_CHARS)
        super().__init__(self.detail)


class WrittenCall(Record):
    """A call of a tool."""

    name: str
    arguments: JsonObject = {}


class WrittenTurn(Record):
    """A thought, an action and the observation. ``error``: the agent's mistake, which the environment refuses."""

    action: str | WrittenCall
    thought: str | None = None
    observation: str | None = None
    error: bool = False


class Ending(Record):
    """How the run ends, as its writer claims."""

    status: Literal["success", "failure", "unfinished"]
    reason: str = ""


class SimulatedRollout:
    """The turns that stand so far. ``live`` is a live one, which must accept each action, where there is one.

    ``finished``: all turns stand, and nothing but the ending may still be missing. ``mistakes``: whether there may be
    any.
    """

    def __init__(self, tools: list[Tool], live: Environment | None, max_turns: int, *, mistakes: bool = False) -> None:
        self.turns: list[WrittenTurn] = []
        self.finished = False
        self._tools = {tool.name: tool for tool in tools}
        self._environment = live
        self._world_ended = False
        self._max_turns = max_turns
        self._mistakes = mistakes

    def take(self, text: str) -> Ending | None:
        """Add the turns of an answer. Returns how the run ends; ``None`` if it is cut off behind ``max_turns``.

        Of a run that is ``finished`` only the ending counts. Raises ``Fault`` at the first that does not stand,
        ``EnvError`` if the environment breaks.
        """
        # Also of a broken answer: turns that are whole need not be written again.
        written, ending, broken = read(text)
        whole = broken is None or broken.written.lstrip().startswith("]")  # the list of turns, if not what follows it
        for place, each in enumerate([] if self.finished else written):
            if len(self.turns) == self._max_turns:
                return None
            try:
                self._add(each, last=whole and place == len(written) - 1)
            except Fault as fault:
                raise Fault(fault.reason, fault.detail, _source(each)) from fault
        if broken is not None:
            self.finished = whole and bool(self.turns)
            raise broken
        if not self.turns:
            raise Fault("no_turns", "there is no turn at all", text)
        self.finished = True
        try:
            return _converted(ending, Ending, "`ending`")
        except Fault as fault:
            raise Fault(fault.reason, fault.detail, _source(ending)) from fault

    def _add(self, written: Any, last: bool) -> None:
        turn = _converted(written, WrittenTurn, "the turn")
        action = action_of(turn)
        if isinstance(action, ApiAction) and not self._tools:
            raise Fault("malformed", "the agent writes commands here: `action` must be a text")
        if isinstance(action, MessageAction) and not action.content.strip():
            raise Fault("malformed", "`action` is empty")
        if turn.error and not self._mistakes:
            raise Fault("unasked_mistake", "the turn is marked as an error, but the agent is to make no mistakes")
        answered = bool((turn.observation or "").strip())
        closing = last and bool(self._tools) and isinstance(action, MessageAction) and not turn.error
        if not closing and not answered:
            raise Fault("no_observation", "`observation` is missing: what the environment answers to the action")
        if isinstance(action, ApiAction) and not turn.error:
            self._check_declared(action)
        if self._environment is not None and answered:  # a last word to the user is no action upon the environment
            self._check_action(self._environment, action, turn.error)
        self.turns.append(turn)

    def _check_declared(self, call: ApiAction) -> None:
        if call.function not in self._tools:
            raise Fault("undeclared_tool", f"there is no tool {call.function!r}, only {', '.join(self._tools)}")
        if wrong := misfit(call, self._tools[call.function]):
            raise Fault("wrong_arguments", f"{call.function} does not take these arguments: {wrong}")

    def _check_action(self, live: Environment, action: AnyAction, mistake: bool) -> None:
        """Carry out the action; the environment is as before if it does not stand."""
        if self._world_ended:
            raise Fault("after_the_end", "the run has ended before this turn, in success or failure: end it there")
        with environment_at_fault():
            # A mistake that the environment accepts has changed it, and must be undone.
            before = live.snapshot()
        transition = carry_out(live, action)
        if mistake and not transition.error:
            with environment_at_fault():
                live.restore(before)
            raise Fault("no_mistake", "the turn is marked as an error, but the environment accepts its action")
        if transition.error and not mistake:
            fault = getattr(transition.observation, "content", "")
            raise Fault("illegal_action", f"the environment refuses this action: {fault}")
        self._world_ended = transition.terminated


def read(text: str) -> tuple[list[Any], Any, Fault | None]:
    """The turns and the ending in an answer, as plain JSON; of one that is broken those turns that are whole.

    Braces in what stands before the JSON do no harm: it is looked for at each of the first ``STARTS``.
    """
    wrong, furthest = "there is no JSON object", -1
    start = text.find("{")
    for _ in range(STARTS):
        if start < 0:
            break
        try:
            value, end = json.JSONDecoder().raw_decode(text, start)
            if isinstance(value, dict) and isinstance(value.get("turns"), list):
                return value["turns"], value.get("ending"), None
            place, fault = end, 'it must be an object with "turns" and "ending"'
        except json.JSONDecodeError as error:
            place, end, fault = error.pos, start + 1, f"it is no JSON: {error.msg} in line {error.lineno}"
        except (ValueError, RecursionError):  # the former for a number of thousands of digits
            wrong = "it is nested too deeply, or a number is too long"
            break
        if place > furthest:  # the one that got furthest was meant
            wrong, furthest = fault, place
        start = text.find("{", end)
    turns, rest = _whole_turns(text)
    return turns, None, Fault("malformed", wrong, rest)


def _whole_turns(text: str) -> tuple[list[Any], str]:
    """The turns before the place where JSON breaks off, and what stands from there on."""
    lists = islice(re.finditer(r'"turns"\s*:\s*\[\s*', text), STARTS)
    return max((_turns_from(text, found.end()) for found in lists), key=lambda each: len(each[0]), default=([], text))


def _turns_from(text: str, place: int) -> tuple[list[Any], str]:
    turns: list[Any] = []
    while True:
        try:
            value, end = json.JSONDecoder().raw_decode(text, place)
        except (ValueError, RecursionError):
            return turns, text[place:]
        turns.append(value)
        comma = re.compile(r"\s*,\s*").match(text, end)
        if comma is None:
            return turns, text[end:]
        place = comma.end()


def action_of(turn: WrittenTurn) -> AnyAction:
    """The action of a turn, with its thought."""
    if isinstance(turn.action, str):
        return MessageAction(content=turn.action, description=turn.thought, error=turn.error)
    name, arguments = turn.action.name, turn.action.arguments
    return ApiAction(function=name, kwargs=arguments, description=turn.thought, error=turn.error)


def items_of(turns: list[WrittenTurn]) -> list[AnyAction | TextObservation]:
    """The turns as items of a run: what the environment says is ``synthetic``, and nothing has tokens."""
    items: list[AnyAction | TextObservation] = []
    for number, turn in enumerate(turns, start=1):
        action = numbered(action_of(turn), number, 0)
        items.append(action)
        if turn.observation and turn.observation.strip():
            observed = TextObservation(
                content=turn.observation,
                source="environment",
                turn=number,
                tool_call_id=action.tool_call_id,
                error=turn.error,
                synthetic=True,
            )
            items.append(observed)
    return items


def _converted(value: Any, kind: type[R], name: str) -> R:
    try:
        converted = msgspec.convert(value, kind)
        # What cannot be written to a table is the writer's fault, and is reported while it can be repaired.
        check([converted], kind)
    except (msgspec.ValidationError, UnicodeEncodeError, OverflowError, RecursionError, RecordError) as error:
        fault = error.detail if isinstance(error, RecordError) else error
        raise Fault("malformed", f"{name} is not of the form that was asked for: {fault}") from error
    return converted


def _source(value: Any) -> str:
    """A value as it may have been written."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "(nested too deeply)"


def _cut(text: str, chars: int) -> str:
    """A text that can be sent, of at most so many characters; half a character becomes its escape."""
    sent = text.encode(errors="backslashreplace").decode()
    return sent if len(sent) <= chars else f"{sent[: chars - 1]}…"
