"""Requests that a model writes for calls that were executed: back-translation, as in GOAT (arXiv:2510.12218).

The model sees the calls with their results. Checks by code: what only the user knows is in the request, and what the
calls find or are asked for is not; then the task is judged as ``admit`` judges it. Faults are fed back.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from string import Template

import msgspec

from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Lineage, Task
from agentmill.schemas.records.trajectory import ApiAction
from agentmill.synthesis.environments.toolbox.goal import Answer
from agentmill.synthesis.environments.toolbox.toolbox import FINISH, Toolbox
from agentmill.synthesis.environments.toolbox.user import Request
from agentmill.synthesis.generators.admission import AdmissionLimits, admit_task, rejection
from agentmill.synthesis.generators.author import BACKEND, RepairLoop, fault_text
from agentmill.synthesis.generators.task_author import Unwritten, json_object
from agentmill.synthesis.generators.toolbox_admission import contains_value, slots_of
from agentmill.synthesis.generators.toolbox_tasks.call_chains import shows_key
from agentmill.synthesis.generators.toolbox_tasks.generator import gives_away
from agentmill.synthesis.generators.toolbox_tasks.live_toolbox import Call, plain, read_toolbox
from agentmill.synthesis.generators.toolbox_tasks.written import TEXT, closed, execute
from agentmill.synthesis.policies.policy import Policy
from agentmill.synthesis.prompts import prompt
from agentmill.synthesis.rollouts.delimiting import between


class WrittenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON object that the model answers."""

    request: str


class BackTranslator:
    """Writes the requests of tasks with ``policy``, with at most ``repairs`` rounds of repair per task."""

    def __init__(self, policy: Policy, repairs: int, limits: AdmissionLimits = AdmissionLimits()) -> None:
        self._policy = policy
        self._loop = RepairLoop(policy, prompt("task_system"), prompt("object_repair"), repairs, closed(request=TEXT))
        self._limits = limits

    async def write(self, spec: EnvironmentSpec, task: Task, seed: int) -> Task:
        """``task``, drawn by rules, with a request of the model. Raises as ``TaskAuthor.write``."""
        with closing(read_toolbox(spec)) as live:
            gold = [each for each in task.gold or [] if isinstance(each, ApiAction) and each.function != FINISH]
            calls = [execute(live, each.function, each.kwargs) for each in gold]
            given, found = values_of(live.toolbox, calls)
        answers = msgspec.convert(task.goal.get("answers", []), list[Answer])
        # What the user may say, such as a day, can be equal to a key by chance.
        sayable = [*given, *(str(slot["text"]) for slot in slots_of(task))]
        hidden = [key for key in found if not any(contains_value(text, key) for text in sayable)]
        request = Template(prompt("back_translation")).substitute(
            calls=between([_line(call) for call in calls]),
            given=_listed(given),
            answers=_listed([str(each.value) for each in answers]),
        )
        who = (self._policy.name, self._policy.model, self._policy.revision)
        task_id = digest(task.task_id, BACKEND, *who)

        def read(text: str, repairs: int) -> tuple[Task | None, str]:
            try:
                words = _request(text)
                _check(words, given, hidden, answers)
            except Unwritten as error:
                return None, f"- {error}"
            draft = self._translated(task, task_id, words, repairs)
            report, _, _ = admit_task(draft, spec, self._limits)
            failed = rejection(report)
            return (draft, "") if failed is None else (None, fault_text(failed))

        return await self._loop.write(request, task_id, seed, read)

    def _translated(self, task: Task, task_id: str, words: str, repairs: int) -> Task:
        lineage = task.lineage or Lineage(operator="call_first")
        notes: JsonObject = {
            **lineage.notes,
            "backend": BACKEND,
            "model": self._policy.model,
            "repairs": repairs,
            "wording": task.instruction,
        }
        return msgspec.structs.replace(
            task,
            task_id=task_id,
            instruction=words,
            # Without the slots of the request by rules: what the model wrote has none.
            initial_state={**task.initial_state, "request": plain(Request(words))},
            lineage=msgspec.structs.replace(lineage, notes=notes),
        )


def values_of(toolbox: Toolbox, calls: Sequence[Call]) -> tuple[list[str], list[str]]:
    """The values of arguments that only the user knows, and the keys that an earlier call shows, each once."""
    given: dict[str, None] = {}
    found: dict[str, None] = {}
    for place, call in enumerate(calls):
        for parameter in call.tool.parameters:
            value = call.arguments[parameter.name]
            shown = any(shows_key(toolbox, earlier, parameter, value) for earlier in calls[:place])
            (found if shown else given)[str(value)] = None
    return list(given), list(found)


def _check(words: str, given: Sequence[str], hidden: Sequence[str], answers: Sequence[Answer]) -> None:
    """Raises ``Unwritten`` for a request that lacks what only the user knows, or has what is to be found."""
    missing = [value for value in given if not contains_value(words, value)]
    if missing:
        raise Unwritten(f"the request does not say {', '.join(map(repr, missing))}, and no call finds it")
    known = [value for value in hidden if contains_value(words, value)]
    if known:
        raise Unwritten(f"the request says {known[0]!r}, which a call is to find; describe the row in other words")
    given_away = [answer.value for answer in answers if gives_away(words, answer)]
    if given_away:
        raise Unwritten(f"the request gives the answer {given_away[0]!r} away")


def _request(text: str) -> str:
    """The request in an answer. Raises ``Unwritten``."""
    try:
        words = msgspec.convert(json_object(text), WrittenRequest).request.strip()
    except msgspec.ValidationError as error:
        raise Unwritten(str(error)) from error
    if not words:
        raise Unwritten("the request is empty")
    return words


def _line(call: Call) -> JsonObject:
    described = {"tool": call.tool.name, "description": call.tool.description}
    return {**described, "arguments": call.arguments, "result": call.rows}


def _listed(values: Sequence[str]) -> str:
    return msgspec.json.encode(values).decode() if values else "none"
