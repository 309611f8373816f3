"""Planning worlds written by a model, after AgentGen (Hu et al., 2024): one seed world in the prompt, repair rounds.

What the model writes is read, linted and tried out; the faults found are fed back with all its earlier versions.
"""

from __future__ import annotations

from string import Template

import msgspec

from schemas.ids import derive_seed, digest
from schemas.record import JsonObject
from schemas.task import EnvironmentSpec, Inspiration, Lineage
from schemas.trajectory import AnyItem, MessageAction, TextObservation
from synthesis.environments.pddl.reader import read_domain
from synthesis.environments.pddl.structure import domain_structure
from synthesis.generators.admission import AdmissionLimits
from synthesis.generators.generator import GenerationError
from synthesis.generators.pddl_admission import environment_checks
from synthesis.generators.pddl_llm.answer import Malformed, read_answer
from synthesis.policies.policy import Conversation, Policy
from synthesis.prompts import prompt

OPERATOR = "spec_env"
BACKEND = "llm"


class LlmGenerator:
    """Proposes planning worlds that ``policy`` writes, with at most ``repairs`` rounds of repair."""

    def __init__(self, policy: Policy, repairs: int = 3, limits: AdmissionLimits = AdmissionLimits()) -> None:
        self._policy = policy
        self._repairs = repairs
        self._limits = limits

    async def propose(self, inspiration: Inspiration, seed: int) -> EnvironmentSpec:
        """A world without known faults. Raises ``GenerationError`` (``unrepaired``) with all versions and their faults
        as ``history``, and passes on ``PolicyError``."""
        history: list[JsonObject] = []
        for number in range(self._repairs + 1):
            text = await self._ask(inspiration, seed, history)
            try:
                spec = self._spec(text, inspiration, seed, number)
                faults = self._faults(spec)
            except Malformed as error:
                faults = str(error)
            if not faults:
                return msgspec.structs.replace(spec, structure_digest=domain_structure(read_domain(spec.source)))
            history.append({"text": text, "faults": faults})
        detail = f"still faulty after {self._repairs} repairs: {history[-1]['faults']}"
        raise GenerationError("unrepaired", detail, history)

    async def _ask(self, inspiration: Inspiration, seed: int, history: list[JsonObject]) -> str:
        """The next version; the conversation so far is the request and all versions with their faults."""
        request = Template(prompt("pddl_world_request"))
        repair = Template(prompt("pddl_world_repair"))
        asked = request.substitute(seed_world=prompt("pddl_world_seed"), inspiration=inspiration.text)
        content: list[AnyItem] = [TextObservation(content=asked, source="user")]
        for turn, version in enumerate(history, start=1):
            content.append(MessageAction(content=version["text"], turn=turn))
            told = repair.substitute(faults=version["faults"])
            content.append(TextObservation(content=told, source="user", turn=turn))
        turn_of_policy = await self._policy.act(
            Conversation(
                episode_id=self._identity(inspiration, seed),
                system_prompt=prompt("pddl_world_system"),
                content=tuple(content),
                tools=[],
                seed=derive_seed(BACKEND, seed, len(history)),
            )
        )
        return "\n".join(action.content for action in turn_of_policy.actions if isinstance(action, MessageAction))

    def _identity(self, inspiration: Inspiration, seed: int) -> str:
        policy = self._policy
        return digest(
            OPERATOR, "pddl", BACKEND, policy.name, policy.model, policy.revision, inspiration.inspiration_id, seed
        )

    def _spec(self, text: str, inspiration: Inspiration, seed: int, repairs: int) -> EnvironmentSpec:
        """Raises ``Malformed``."""
        answer = read_answer(text)
        return EnvironmentSpec(
            environment_id=self._identity(inspiration, seed),
            family="pddl",
            name=answer.domain_name,
            source=answer.domain,
            parameters={**answer.texts, "problems": {"example": answer.problem}},
            lineage=Lineage(
                operator=OPERATOR,
                inspiration=inspiration.inspiration_id,
                seed=seed,
                notes={"backend": BACKEND, "model": self._policy.model, "repairs": repairs},
            ),
        )

    def _faults(self, spec: EnvironmentSpec) -> str:
        """What admission would find, all of it, in words; empty where it finds nothing."""
        limits = self._limits
        checks = list(environment_checks(spec, limits.plan, limits.probes, limits.probe_states))
        return "\n".join(f"- {check.name.replace('_', ' ')}: {check.detail}" for check in checks if not check.passed)
