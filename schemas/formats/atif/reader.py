"""The steps of an ATIF trajectory as items.

A step of an agent is a turn: its message is the first call's description, or a message where there is no call; its
results are observations of the environment. A first system step is the system prompt. What an item does not say of its
step, call or result is kept under these names; our own fields of an item are in their ``extra`` under ``agentmill``
and are put on top of what was read.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from agentmill.schemas.format import FormatError
from agentmill.schemas.formats.atif.fields import AGENT_ONLY
from agentmill.schemas.formats.extension_fields import OURS
from agentmill.schemas.messages.conversation import Transcript, read_text
from agentmill.schemas.messages.parts import number_of, text_of
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import (
    AnyItem,
    ApiAction,
    CodeAction,
    ImageObservation,
    MessageAction,
    ObservationSource,
    TextObservation,
    TurnTokens,
    WebObservation,
)

_KNOWN_FIELDS = {"step_id", "message", "tool_calls", "observation", "reasoning_content"}
_TOKENS = ("prompt_token_ids", "completion_token_ids", "logprobs")


class StepReader:
    """Reads steps one by one; ``system`` is what the first system step says beyond its message."""

    def __init__(self) -> None:
        self.transcript = Transcript()
        self.system: JsonObject | None = None
        self.sequence: list[int] = []
        """The tokens of the run so far."""
        self.steps = 0

    def read(self, step: JsonObject) -> None:
        """Take in the next step. Raises ``FormatError`` (``invalid``) for a broken one."""
        self.steps += 1
        remarks = self.transcript.remarks
        remarks["step_id_gap"] += step.get("step_id", self.steps) != self.steps
        source = step.get("source")
        if not isinstance(source, str):
            raise FormatError("invalid", f"step {self.steps} has no source")
        remarks["unknown_role"] += source not in ("system", "user", "agent")
        rest = {
            key: value
            for key, value in step.items()
            if key not in _KNOWN_FIELDS and key != "source" and value is not None
        }
        calls = self._list(step.get("tool_calls"), "tool_calls")
        results = self._list(step_results(step), "results")
        if source == "agent":
            metrics = step.get("metrics") or step.get("reasoning_content")
            remarks["metrics_without_call"] += step.get("llm_call_count") == 0 and metrics is not None
            known = self._act(step, calls, rest)
        else:
            remarks["agent_only_field"] += any(step.get(key) is not None for key in AGENT_ONLY)
            rest |= {key: step[key] for key in ("tool_calls", "reasoning_content") if step.get(key) is not None}
            self._add_instruction(step, source, rest, bool(results))
            known = []
        for result in results:
            self._see(result, known, step)

    def _list(self, given: Any, name: str) -> list[JsonObject]:
        found = [] if given is None else given
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise FormatError("invalid", f"expected {name} of step {self.steps}, a list of objects, got {given!r:.60}")
        return found

    def _act(self, step: JsonObject, calls: list[JsonObject], rest: JsonObject) -> list[str]:
        """Add the actions of a step; the ids of its calls."""
        self.transcript.turn += 1
        text, parts = _message_content(step.get("message"))
        rest, mine = _own(rest)
        tokens = self._tokens(rest)
        if tokens is not None or "tokens" in mine:
            reason = mine.pop("finish_reason", None)
            tokens = msgspec.structs.replace(tokens, finish_reason=reason) if tokens is not None else None
        fields: dict[str, Any] = {"reasoning_content": text_of(step, "reasoning_content", rest), "tokens": tokens}
        fields |= {"context_operation": "copied"} if step.get("is_copied_context") is True else {}
        fields |= {"train": False} if step.get("llm_call_count") == 0 else {}
        held = ({"step": rest} if rest else {}) | ({"message": parts} if parts is not None else {})
        has_message = mine.pop("said", False) is True
        # Text with calls is the thought of the first one, unless our writer marked it as a message of its own.
        if has_message or not calls:
            fields |= _reward(rest)
            self._add(MessageAction(content=text, **fields), held, mine)
            # What the step says once belongs to its first item; only these two hold for all of them.
            fields, held = {key: fields[key] for key in ("context_operation", "train") if key in fields}, {}
        elif text:
            fields["description"] = text
        known = []
        for call in calls:
            known.append(self._call(call, fields, held))
            fields, held = {key: fields[key] for key in ("context_operation", "train") if key in fields}, {}
        return known

    def _call(self, call: JsonObject, fields: dict[str, Any], held: JsonObject) -> str:
        name, arguments = call.get("function_name"), call.get("arguments")
        arguments = {} if arguments is None else arguments
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise FormatError("invalid", f"step {self.steps} has a call without name or arguments: {call!r:.80}")
        rest = {key: value for key, value in call.items() if key not in ("tool_call_id", "function_name", "arguments")}
        rest, mine = _own({key: value for key, value in rest.items() if value is not None})
        more: JsonObject = {}
        call_id = self.transcript.call_id(call.get("tool_call_id"), more)
        fields = {**fields, "tool_call_id": call_id, **_reward(rest)}
        language = mine.pop("language", _adp_language(rest.get("extra")))
        item: AnyItem = ApiAction(function=name, kwargs=arguments, **fields)
        argument = next(iter(arguments), "")
        if isinstance(language, str) and len(arguments) == 1 and isinstance(arguments[argument], str):
            more |= {"function": name} if name != f"execute_{language}" else {}
            more |= {"argument": argument} if argument != "code" else {}
            item = CodeAction(language=language, content=arguments[argument], **fields)
        elif language is not None:
            mine["language"] = language
        self._add(item, {**held, **({"call": rest | more} if rest or more else {})}, mine)
        return call_id

    def _add_instruction(self, step: JsonObject, source: str, rest: JsonObject, observed: bool) -> None:
        """A step of the user, or of the system: the first is the prompt."""
        message = step.get("message")
        # An empty first step with results only holds what was seen before the first turn.
        if source == "system" and self.steps == 1 and not (message == "" and observed):
            text, parts = _message_content(message)
            self.transcript.system_prompt = text
            self.system = rest | ({"message": parts} if parts is not None else {})
            return
        rest, mine = _own(rest)
        rest |= {"source": source} if source != "user" else {}
        self.pending = {"step": rest} if rest else {}
        if source != "user" and observed and message in ("", None):
            return
        held, self.pending = self.pending, {}
        fields: dict[str, Any] = {"context_operation": "copied"} if step.get("is_copied_context") is True else {}
        speaker: ObservationSource = "user" if source == "user" else "environment"
        self._show(message, speaker, held, mine, {**fields, **_reward(rest)})

    pending: JsonObject = {}
    """What is kept of a step that has results and nothing else."""

    def _see(self, result: JsonObject, known: list[str], step: JsonObject) -> None:
        rest = {key: value for key, value in result.items() if key not in ("source_call_id", "content")}
        rest, mine = _own({key: value for key, value in rest.items() if value is not None})
        given = result.get("source_call_id")
        named = given in [call.get("tool_call_id") for call in step.get("tool_calls") or []]
        call_id = self.transcript.answer(given, rest, known if named else None)
        self.transcript.remarks["result_of_other_step"] += call_id is not None and call_id not in known
        extra = rest.get("extra") if isinstance(rest.get("extra"), dict) else {}
        source = (extra or {}).get("adp_source")
        speaker: ObservationSource = source if source in ("user", "agent", "environment") else "environment"
        fields: dict[str, Any] = {"tool_call_id": call_id, **_reward(rest)}
        fields |= {"context_operation": "copied"} if step.get("is_copied_context") is True else {}
        held: JsonObject = dict(self.pending) | ({"result": rest} if rest or self.pending else {})
        self.pending = {}
        if result.get("content") is None:
            held.setdefault("result", {})["content"] = None
        web = _web(extra, fields)
        if web is not None:
            held["result"]["content"] = result.get("content")
            self._add(web, held, mine)
        else:
            self._show(result.get("content"), speaker, held, mine, fields)

    def _show(self, content: Any, source: ObservationSource, held: JsonObject, mine: JsonObject, fields: Any) -> None:
        """A text, or parts: one observation of their texts and one of each image."""
        text, parts = _message_content(content)
        held |= {"parts": parts} if parts is not None else {}
        images = [path for part in content if (path := _path(part)) is not None] if isinstance(content, list) else []
        items: list[AnyItem] = [ImageObservation(content=path, source=source) for path in images]
        if text or not images:
            items.insert(0, TextObservation(content=text, source=source))
        self._add(msgspec.structs.replace(items[0], **fields), held, mine)
        for item in items[1:]:
            self._add(item, {"within": True}, {})

    def _add(self, item: AnyItem, held: JsonObject, mine: JsonObject) -> None:
        """Add an item with our own fields on top, if they are such."""
        item = msgspec.structs.replace(item, turn=self.transcript.turn)
        if mine:
            try:
                item = overlaid(item, mine)
            except msgspec.ValidationError:
                # What is under our key need not be ours, so what does not fit is kept as anything else.
                held = {**held, OURS: mine}
        self.transcript.rest.append(held)
        self.transcript.content.append(item)

    def _tokens(self, rest: JsonObject) -> TurnTokens | None:
        """The tokens of a step as a delta; they leave the metrics."""
        metrics = rest.get("metrics")
        metrics = metrics if isinstance(metrics, dict) else {}
        prompt, sampled, logprobs = (metrics.get(key) for key in _TOKENS)
        if not isinstance(prompt, list) or not isinstance(sampled, list):
            return None
        known = self.sequence
        # ATIF repeats the whole prompt in every step. Stored so, tokens would grow with the square of the run.
        extends = bool(known) and prompt[: len(known)] == known
        tokens = {
            "prompt_ids": prompt[len(known) :] if extends else prompt,
            "sampled_ids": sampled,
            "logprobs": logprobs or [],
            "segment_start": not extends,
        }
        try:
            found = msgspec.convert(tokens, TurnTokens)
        except msgspec.ValidationError:
            return None
        # A probability must belong to a token, so of unequal lists nothing is taken.
        if found.logprobs and len(found.logprobs) != len(found.sampled_ids):
            self.transcript.remarks["logprobs_length"] += 1
            return None
        self.sequence = [*prompt, *sampled]
        has_message = _TOKENS if logprobs else _TOKENS[:2]
        rest["metrics"] = {key: value for key, value in metrics.items() if key not in has_message}
        return found


def step_results(step: JsonObject) -> Any:
    """What a step has in the place of its results; ``None`` without an observation."""
    observation = step.get("observation")
    return observation.get("results") if isinstance(observation, dict) else observation


def beyond_results(step: JsonObject) -> list[str]:
    """The names of what else is in the observation of a step; no item has a place for it."""
    observation = step.get("observation")
    found = observation.items() if isinstance(observation, dict) else ()
    return [key for key, value in found if key != "results" and value is not None]


def overlaid(item: AnyItem, fields: JsonObject) -> AnyItem:
    """``item`` with ``fields`` in the place of its own. Raises ``msgspec.ValidationError``."""
    tag = item.__struct_config__.tag
    if fields.get("class_", tag) != tag and isinstance(item, TextObservation) and "text" in fields:
        fields = {**fields, str(fields["text"]): item.content}
        del fields["text"]
    plain = msgspec.to_builtins(item) if fields.get("class_", tag) == tag else {}
    return cast(AnyItem, msgspec.convert({**plain, **fields}, AnyItem))


def _message_content(content: Any) -> tuple[str, list[Any] | None]:
    """The text of a message or result, and its parts where it has such. Raises ``FormatError`` (``invalid``)."""
    if not isinstance(content, str | list | None):
        raise FormatError("invalid", f"expected a text or a list of parts, got {content!r:.60}")
    return read_text(content)[0], content if isinstance(content, list) else None


def _path(part: Any) -> str | None:
    image = part.get("source") if isinstance(part, dict) and part.get("type") == "image" else None
    path = image.get("path") if isinstance(image, dict) else None
    return path if isinstance(path, str) else None


def _own(rest: JsonObject) -> tuple[JsonObject, JsonObject]:
    """``rest`` without our own fields in its ``extra``, and these."""
    extra = rest.get("extra")
    mine = extra.get(OURS) if isinstance(extra, dict) else None
    if not isinstance(extra, dict) or not isinstance(mine, dict):
        return rest, {}
    others = {key: value for key, value in extra.items() if key != OURS}
    rest = {key: value for key, value in rest.items() if key != "extra"}
    return rest | ({"extra": others} if others else {}), dict(mine)


def _reward(rest: JsonObject) -> JsonObject:
    """The reward that ADP's dialect has in ``extra``."""
    extra = rest.get("extra")
    reward = number_of(extra.get("reward")) if isinstance(extra, dict) else None
    return {} if reward is None else {"reward": reward}


def _adp_language(extra: Any) -> Any:
    """The language of code in ADP's dialect."""
    return extra.get("language") if isinstance(extra, dict) and extra.get("adp_class") == "code_action" else None


def _web(extra: Any, fields: JsonObject) -> WebObservation | None:
    """The page that ADP's dialect has in ``extra``."""
    web = extra.get("web") if isinstance(extra, dict) else None
    if not isinstance(web, dict):
        return None
    try:
        return msgspec.convert({**web, **fields, "class_": "web_observation"}, WebObservation)
    except msgspec.ValidationError:
        return None
