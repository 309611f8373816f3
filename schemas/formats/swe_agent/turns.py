"""The turns of a SWE-agent run: messages of ``history`` and steps of ``trajectory``, aligned."""

from __future__ import annotations

from typing import Any, NamedTuple

from agentmill.schemas.messages.calls import read_arguments
from agentmill.schemas.messages.conversation import Transcript, read_text, read_thinking
from agentmill.schemas.messages.parts import text_of
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import ApiAction, CodeAction, MessageAction, ObservationSource

_MESSAGE = {
    *("role", "content", "agent", "thought", "action", "tool_calls", "tool_call_ids", "is_demo", "message_type"),
    "thinking_blocks",
}
_STEP = {"action", "observation", "response", "thought", "query", "messages"}
_TYPES = {"system": "system_prompt", "assistant": "action", "user": "observation", "tool": "observation"}
"""The ``message_type`` that a message of a role has anyway."""


class Run(NamedTuple):
    """A transcript, and what of ``history`` and ``trajectory`` is no item of it."""

    transcript: Transcript
    kept: JsonObject


def read_run(history: list[JsonObject], steps: list[JsonObject]) -> Run:
    """The items of a run, in the order of ``history``; steps that are missing there are where they were made."""
    history = history or _prompt(steps[0] if steps else {})
    return _Aligner(history, steps).run()


class _Aligner:
    """Walks along ``history``, and along ``steps`` with it."""

    def __init__(self, history: list[JsonObject], steps: list[JsonObject]) -> None:
        self.transcript = Transcript()
        self.kept: JsonObject = {}
        self.history = history
        self.steps = steps
        self.next_step = 0
        self.calls: list[Any] = []
        """Ids of calls that wait for their result."""
        self.observation: str | None = None
        """What the step of the last turn says that the agent saw, until it is found in ``history``."""
        replies = [each for each in history if each.get("role") == "assistant" and not each.get("is_demo")]
        # Texts may repeat, so places are safer where every reply has its step.
        self.by_position = len(replies) == len(steps)
        self.shown = set(map(_shown, history))

    def run(self) -> Run:
        for message in self.history:
            role = message.get("role")
            if message.get("is_demo"):
                self.kept.setdefault("demonstrations", []).append(message)
            elif role == "system" and self.transcript.system_prompt is None and not self.transcript.content:
                self.transcript.system_prompt, rest = read_text(message.get("content"))
                if rest := {**rest, **_rest(message)}:
                    self.kept["system"] = rest
            elif role == "assistant":
                self.reply(message)
            else:
                self.see(message)
        self.rest_of_steps(len(self.steps))
        return Run(self.transcript, self.kept)

    def reply(self, message: JsonObject) -> None:
        place = self.place(message)
        if place is not None:
            self.rest_of_steps(place)
        self.settle()
        step = self.steps[place] if place is not None else None
        self.next_step += step is not None
        self.act(message, step)

    def place(self, message: JsonObject) -> int | None:
        """The index of the step that made ``message``."""
        if self.by_position:
            return self.next_step
        text = read_text(message.get("content"))[0]
        for index in range(self.next_step, len(self.steps)):
            step = self.steps[index]
            if step.get("response") == text or (step.get("action") and step.get("action") == message.get("action")):
                return index
        return None

    def rest_of_steps(self, end: int) -> None:
        """Steps that ``history`` does not show: they are turns of their own."""
        self.settle()
        for step in self.steps[self.next_step : end]:
            message = {"content": step.get("response"), "thought": step.get("thought"), "action": step.get("action")}
            self.act(message, step)
            self.settle()
        self.next_step = max(self.next_step, end)

    def settle(self) -> None:
        """The turn is over: what its step says was seen and ``history`` does not show is added."""
        if self.observation:
            rest: JsonObject = {}
            call_id = self.transcript.answer(self.calls[0] if self.calls else None, rest)
            self.transcript.see(self.observation, "environment", rest, tool_call_id=call_id)
        self.observation = None
        self.calls = []

    def act(self, message: JsonObject, step: JsonObject | None) -> None:
        text, rest = read_text(message.get("content"))
        command = text_of(message, "action", rest) or ""
        thought = text_of(message, "thought", rest) or ""
        calls = message.get("tool_calls") or []
        if not (text or command or calls):
            entry = {"message": message, **({"step": step} if step is not None else {})}
            self.kept.setdefault("empty_turns", []).append(entry)
            return
        reasoning, thinking = read_thinking(message.get("thinking_blocks"))
        rest |= _rest(message) | thinking
        if step is not None:
            rest |= self.step_rest(step, message, text)
            self.observation = text_of(step, "observation", rest)
        self.transcript.turn += 1
        fields: dict[str, Any] = {
            "turn": self.transcript.turn,
            "agent": text_of(message, "agent", rest),
            "reasoning_content": reasoning,
        }
        if calls:
            rest |= {
                name: value for name, value in (("action", command), ("thought", thought)) if value not in ("", text)
            }
            self.call(calls, text or None, rest, fields)
        elif command:
            # The reply is thought and command in a fence, so it can be made of these two.
            if text not in (thought, f"{thought}```\n{command}```"):
                rest["content"] = rest.get("content", text)
            call_id = self.transcript.call_id(None, rest)
            self.calls.append(call_id)
            item = CodeAction(
                language="bash", content=command, description=thought or None, tool_call_id=call_id, **fields
            )
            self.transcript.add(item, rest)
        else:
            rest |= {"thought": thought} if thought not in ("", text) else {}
            self.transcript.add(MessageAction(content=text, **fields), rest)

    def call(self, calls: Any, text: str | None, rest: JsonObject, fields: JsonObject) -> None:
        for number, each in enumerate(calls if isinstance(calls, list) else [calls]):
            function = each.get("function") if isinstance(each, dict) else None
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                self.transcript.remarks["invalid_call"] += 1
                self.transcript.add(MessageAction(content=text or "", **fields), {**rest, "tool_calls": calls})
                return
            kwargs, raw = read_arguments(function.get("arguments"))
            more = {key: value for key, value in each.items() if key not in ("id", "type", "function")}
            more |= rest if number == 0 else {}
            item = ApiAction(
                function=function["name"],
                kwargs=kwargs,
                raw_arguments=raw,
                tool_call_id=self.transcript.call_id(each.get("id"), more),
                description=text if number == 0 else None,
                **fields,
            )
            self.calls.append(each.get("id") or item.tool_call_id)
            self.transcript.add(item, more)

    def see(self, message: JsonObject) -> None:
        rest = _rest(message)
        text = read_text(message.get("content"))[0]
        if self.observation is not None and not text.startswith(self.observation):
            rest["observation"] = self.observation
        self.observation = None
        given_ids = message.get("tool_call_ids") or []
        ids = given_ids if isinstance(given_ids, list) else []
        if len(ids) > 1 or ids != given_ids:
            rest["tool_call_ids"] = given_ids
        given = ids[0] if ids else (self.calls[0] if self.calls else None)
        self.calls = [each for each in self.calls if each != given]
        source: ObservationSource = "environment" if self.transcript.turn else "user"
        if message.get("role") not in ("user", "tool"):
            rest["role"] = message.get("role")
            self.transcript.remarks["unknown_role"] += message.get("role") != "system"
        fields = {"tool_call_id": self.transcript.answer(given, rest), "agent": text_of(message, "agent", rest)}
        self.transcript.see(message.get("content"), source, rest, **fields)

    def step_rest(self, step: JsonObject, message: JsonObject, text: str) -> JsonObject:
        """What a step says beyond its message."""
        rest = {key: value for key, value in step.items() if key not in _STEP and value not in (None, {}, [])}
        same = {"response": text, "thought": message.get("thought"), "action": message.get("action")}
        differing = {key: step[key] for key in same if step.get(key) not in (None, "", text, same[key])}
        rest |= {"step": differing} if differing else {}
        for name in ("query", "messages"):
            prompt = step.get(name)
            if isinstance(prompt, list) and (unseen := self.unseen(prompt)):
                rest[name] = unseen
        return rest

    def unseen(self, prompt: list[Any]) -> JsonObject:
        """Messages of a prompt that ``history`` does not show, by their place."""
        return {
            str(index): message
            for index, message in enumerate(prompt)
            if message != {} and not (isinstance(message, dict) and _shown(message) in self.shown)
        }


def _prompt(step: JsonObject) -> list[JsonObject]:
    prompt = step.get("query") or step.get("messages") or []
    return [each for each in prompt if isinstance(each, dict) and each] if isinstance(prompt, list) else []


def _rest(message: JsonObject) -> JsonObject:
    """Fields of a message that no field of ours says."""
    rest = {key: value for key, value in message.items() if key not in _MESSAGE and value is not None}
    kind = message.get("message_type")
    if kind is not None and kind != _TYPES.get(str(message.get("role"))):
        rest["message_type"] = kind
    return rest


def _shown(message: JsonObject) -> tuple[str, str]:
    """By what a message is known again."""
    return str(message.get("role")), str(message.get("content"))
