"""Runs as a model writes them, world and all: turns as JSON, each held against the rules of the world.

    {"turns": [{"thought": ..., "action": ..., "observation": ..., "error": ...}, ...],
     "ending": {"status": ..., "reason": ...}}

An action is a text, or with tools ``{"name": ..., "arguments": {...}}``. What is wrong is a ``Fault``; all turns before
it are verified, and stay.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, TypeVar

import msgspec

from schemas.record import JsonObject, Record
from schemas.trajectory import AnyAction, ApiAction, MessageAction, TextObservation, Tool
from synthesis.environments.calls import misfit
from synthesis.environments.environment import Environment
from synthesis.strategies.episode import numbered
from synthesis.strategies.stepping import carry_out, world_at_fault

R = TypeVar("R", bound=Record)


class Fault(Exception):
    """Why a turn does not stand. ``reason`` is a short code: ``malformed``, ``undeclared_tool`` …"""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class WrittenCall(Record):
    """A call of a tool."""

    name: str
    arguments: JsonObject = {}


class WrittenTurn(Record):
    """What the agent thinks and does, and what the world answers. ``error``: the agent's mistake, which it refuses."""

    action: str | WrittenCall
    thought: str | None = None
    observation: str | None = None
    error: bool = False


class Ending(Record):
    """How the run ends, as its writer claims."""

    status: Literal["success", "failure", "unfinished"]
    reason: str = ""


class Script:
    """The turns that stand so far. ``world`` is a live one, which must accept each action, where there is one."""

    def __init__(self, tools: list[Tool], world: Environment | None, max_turns: int) -> None:
        self.turns: list[WrittenTurn] = []
        self._tools = {tool.name: tool for tool in tools}
        self._world = world
        self._world_ended = False
        self._max_turns = max_turns

    def take(self, text: str) -> Ending | None:
        """Add the turns of an answer. Returns how the run ends; ``None`` if it is cut off behind ``max_turns``.

        Raises ``Fault`` at the first that does not stand, ``WorldError`` if the world breaks.
        """
        written, ending, broken = read(text)
        for place, each in enumerate(written):
            if len(self.turns) == self._max_turns:
                return None
            self._add(each, last=broken is None and place == len(written) - 1)
        if broken is not None:
            raise broken
        if not self.turns:
            raise Fault("no_turns", "there is no turn at all")
        return _converted(ending, Ending, "`ending`")

    def _add(self, written: Any, last: bool) -> None:
        turn = _converted(written, WrittenTurn, "the turn")
        action = action_of(turn)
        if isinstance(action, ApiAction) and not self._tools:
            raise Fault("malformed", "the agent writes commands here: `action` must be a text")
        if isinstance(action, MessageAction) and not action.content.strip():
            raise Fault("malformed", "`action` is empty")
        closing = last and bool(self._tools) and isinstance(action, MessageAction)
        if not closing and not (turn.observation or "").strip():
            raise Fault("no_observation", "`observation` is missing: what the world answers to the action")
        if isinstance(action, ApiAction) and not turn.error:
            self._check_declared(action)
        if self._world is not None:
            self._check_world(self._world, action, turn.error)
        self.turns.append(turn)

    def _check_declared(self, call: ApiAction) -> None:
        if call.function not in self._tools:
            raise Fault("undeclared_tool", f"there is no tool {call.function!r}, only {', '.join(self._tools)}")
        if wrong := misfit(call, self._tools[call.function]):
            raise Fault("wrong_arguments", f"{call.function} does not take these arguments: {wrong}")

    def _check_world(self, world: Environment, action: AnyAction, mistake: bool) -> None:
        """Carry out the action; the world is as before if it does not stand."""
        if self._world_ended:
            raise Fault("after_the_end", "the run has ended before this turn, in success or failure: end it there")
        with world_at_fault():
            before = world.snapshot()
        transition = carry_out(world, action)
        if mistake and not transition.error:
            with world_at_fault():
                world.restore(before)
            raise Fault("no_mistake", "the turn is marked as an error, but the world accepts its action")
        if transition.error and not mistake:
            said = getattr(transition.observation, "content", "")
            raise Fault("illegal_action", f"the world refuses this action: {said}")
        self._world_ended = transition.terminated


def read(text: str) -> tuple[list[Any], Any, Fault | None]:
    """The turns and the ending in an answer, as plain JSON; of one that is broken those turns that are whole."""
    start = max(0, text.find("{"))
    try:
        value, _ = json.JSONDecoder().raw_decode(text, start)
        if isinstance(value, dict) and isinstance(value.get("turns"), list):
            return value["turns"], value.get("ending"), None
        wrong = 'it must be an object with "turns" and "ending"'
    except json.JSONDecodeError as error:
        wrong = f"it is no JSON: {error.msg} in line {error.lineno}"
    except RecursionError:
        wrong = "it is nested too deeply"
    return _whole_turns(text), None, Fault("malformed", wrong)


def _whole_turns(text: str) -> list[Any]:
    """The turns before the place where JSON breaks off."""
    found = re.search(r'"turns"\s*:\s*\[\s*', text)
    turns: list[Any] = []
    while found is not None:
        try:
            value, end = json.JSONDecoder().raw_decode(text, found.end())
        except (json.JSONDecodeError, RecursionError):
            break
        turns.append(value)
        found = re.compile(r"\s*,\s*").match(text, end)
    return turns


def action_of(turn: WrittenTurn) -> AnyAction:
    """The action of a turn, with its thought."""
    if isinstance(turn.action, str):
        return MessageAction(content=turn.action, description=turn.thought, error=turn.error)
    name, arguments = turn.action.name, turn.action.arguments
    return ApiAction(function=name, kwargs=arguments, description=turn.thought, error=turn.error)


def items_of(turns: list[WrittenTurn]) -> list[AnyAction | TextObservation]:
    """The turns as items of a run: what the world says is ``synthetic``, and nothing has tokens."""
    items: list[AnyAction | TextObservation] = []
    for number, turn in enumerate(turns, start=1):
        action = numbered(action_of(turn), number, 0)
        items.append(action)
        if turn.observation is not None:
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
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise Fault("malformed", f"{name} is not of the form that was asked for: {error}") from error
