"""A model that writes environments or tasks: it is asked, and shown the faults of what it wrote until there are none.

The conversation holds all earlier versions with their faults, so that a repair does not bring an old fault back.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable
from string import Template
from typing import Any, TypeVar

import msgspec

from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import AdmissionCheck, EnvironmentSpec, Inspiration, Lineage
from agentmill.schemas.records.trajectory import AnyItem, MessageAction, TextObservation
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.json_objects import objects_in
from agentmill.synthesis.policies.policy import Conversation, Policy

NO_OBJECT = (
    "there is no JSON object in the answer, or it does not end, or it holds what JSON has not (NaN, Infinity, half "
    "characters)"
)
COPIED = "- copied: this is the example that you were shown, only its names differ; design another one"

OPERATOR = "spec_env"
BACKEND = "llm"
_NAME_WORDS = 4

Checks = Callable[[EnvironmentSpec], Iterable[AdmissionCheck]]
Structure = Callable[[str], str]
"""Of a source: equal for those that differ in names only."""

T = TypeVar("T")
Read = Callable[[str, int], tuple[T | None, str]]
"""Of a text and the number of repairs before it: what was written, and its faults in words."""


class RepairLoop:
    """Asks ``policy`` under the prompt ``system``, and again with ``repair``, the prompt with ``$faults``, at most
    ``repairs`` times. With ``answer_schema`` each answer is to be a JSON object that fits it."""

    def __init__(
        self, policy: Policy, system: str, repair: str, repairs: int, answer_schema: JsonObject | None = None
    ) -> None:
        self._policy = policy
        self._system = system
        self._repair = Template(repair)
        self._repairs = repairs
        self._answer_schema = answer_schema

    async def write(self, request: str, episode_id: str, seed: int, read: Read[T]) -> T:
        """A version without faults. Raises ``GenerationError`` (``unrepaired``) with all versions and their faults as
        ``history``, and passes on ``PolicyError``."""
        history: list[JsonObject] = []
        for number in range(self._repairs + 1):
            text = await self._ask(request, episode_id, seed, history)
            made, faults = await asyncio.to_thread(read, text, number)  # what was written may take its time
            if made is not None and not faults:
                return made
            history.append({"text": text, "faults": faults})
        detail = f"still faulty after {self._repairs} repairs: {history[-1]['faults']}"
        raise GenerationError("unrepaired", detail, history)

    async def _ask(self, request: str, episode_id: str, seed: int, history: list[JsonObject]) -> str:
        content: list[AnyItem] = [TextObservation(content=request, source="user")]
        for turn, version in enumerate(history, start=1):
            content.append(MessageAction(content=version["text"], turn=turn))
            fault_text = self._repair.substitute(faults=version["faults"])
            content.append(TextObservation(content=fault_text, source="user", turn=turn))
        turn_of_policy = await self._policy.act(
            Conversation(
                episode_id=episode_id,
                system_prompt=self._system,
                content=tuple(content),
                tools=[],
                # Another seed for each repair: the same one could bring the same answer.
                seed=derive_seed(BACKEND, seed, len(history)),
                answer_schema=self._answer_schema,
            )
        )
        return "\n".join(action.content for action in turn_of_policy.actions if isinstance(action, MessageAction))


class Author:
    """Writes with ``policy``, under the prompt ``system``; ``repair`` is the prompt with ``$faults``."""

    def __init__(self, policy: Policy, family: str, system: str, repair: str, repairs: int) -> None:
        self._policy = policy
        self._family = family
        self._loop = RepairLoop(policy, system, repair, repairs)

    def identity(self, inspiration: Inspiration, seed: int) -> str:
        """The id of what is written for an inspiration and a seed."""
        who = (self._policy.name, self._policy.model, self._policy.revision)
        return digest(OPERATOR, self._family, BACKEND, *who, inspiration.inspiration_id, seed)

    def draft(self, inspiration: Inspiration, seed: int, repairs: int, **fields: Any) -> EnvironmentSpec:
        """What was written, as an environment; named after the inspiration unless ``fields`` says how."""
        words = re.findall(r"[a-z]+", inspiration.text.lower())[:_NAME_WORDS]
        fields.setdefault("name", "-".join(words) or self._family)
        return EnvironmentSpec(
            environment_id=self.identity(inspiration, seed),
            family=self._family,
            lineage=Lineage(
                operator=OPERATOR,
                inspiration=inspiration.inspiration_id,
                seed=seed,
                notes={"backend": BACKEND, "model": self._policy.model, "repairs": repairs},
            ),
            **fields,
        )

    async def write(
        self, request: str, inspiration: Inspiration, seed: int, read: Read[EnvironmentSpec]
    ) -> EnvironmentSpec:
        """As ``RepairLoop.write``."""
        return await self._loop.write(request, self.identity(inspiration, seed), seed, read)

    async def write_source(
        self, request: str, inspiration: Inspiration, seed: int, checks: Checks, structure: Structure, example: str
    ) -> EnvironmentSpec:
        """As ``write``, where all that is written is one JSON object, the source of the environment.

        It passes ``checks``, and has another ``structure`` than ``example``, the source that was shown.
        """
        shown = structure(example)

        def read(text: str, repairs: int) -> tuple[EnvironmentSpec | None, str]:
            source = read_object(text)
            if source is None:
                return None, NO_OBJECT
            spec = self.draft(inspiration, seed, repairs, source=source)
            faults = first_fault(checks(spec))
            if faults:
                return None, faults
            found = structure(source)
            return msgspec.structs.replace(spec, structure_digest=found), COPIED if found == shown else ""

        return await self.write(request, inspiration, seed, read)


def fault_text(check: AdmissionCheck) -> str:
    """A failed check, for the author."""
    return f"- {check.name.replace('_', ' ')}: {check.detail}"


def first_fault(checks: Iterable[AdmissionCheck]) -> str:
    """The first failed check in words, empty where all pass; what lies behind it cannot be tried."""
    return next((fault_text(check) for check in checks if not check.passed), "")


def read_object(text: str) -> str | None:
    """The JSON object in a text, the longest of several; ``None`` if there is none, or none that can be kept."""
    whole = [each for each in objects_in(text) if each.value is not None]
    found = max(whole, key=lambda each: len(each.text), default=None)
    try:
        # The encoding fails for half characters, which no table can hold.
        return None if found is None else json.dumps(found.value, ensure_ascii=False, allow_nan=False).encode().decode()
    except (ValueError, RecursionError):
        return None
