"""Planning environments written by a model, after AgentGen (Hu et al., 2024): one seed environment in the prompt,
repair rounds.

What the model writes is read, linted and tried out; the faults found are fed back with all its earlier versions.
"""

from __future__ import annotations

from string import Template

import msgspec

from agentmill.schemas.records.task import EnvironmentSpec, Inspiration
from agentmill.synthesis.environments.pddl.reader import read_domain
from agentmill.synthesis.environments.pddl.structure import domain_structure
from agentmill.synthesis.generators.admission import AdmissionLimits
from agentmill.synthesis.generators.author import Author, fault_text
from agentmill.synthesis.generators.pddl_admission import environment_checks
from agentmill.synthesis.generators.pddl_llm.answer import Malformed, read_answer
from agentmill.synthesis.policies.policy import Policy
from agentmill.synthesis.prompts import prompt


class LlmGenerator:
    """Proposes planning environments that ``policy`` writes, with at most ``repairs`` rounds of repair."""

    def __init__(self, policy: Policy, repairs: int = 3, limits: AdmissionLimits = AdmissionLimits()) -> None:
        self._author = Author(policy, "pddl", prompt("pddl_world_system"), prompt("pddl_world_repair"), repairs)
        self._limits = limits

    async def propose(self, inspiration: Inspiration, seed: int) -> EnvironmentSpec:
        """An environment without known faults. Raises ``GenerationError`` (``unrepaired``) with all versions and their
        faults as ``history``, and passes on ``PolicyError``."""
        request = Template(prompt("pddl_world_request"))
        question = request.substitute(seed_world=prompt("pddl_world_seed"), inspiration=inspiration.text)

        def read(text: str, repairs: int) -> tuple[EnvironmentSpec | None, str]:
            try:
                spec = self._spec(text, inspiration, seed, repairs)
            except Malformed as error:
                return None, str(error)
            return spec, self._faults(spec)

        spec = await self._author.write(question, inspiration, seed, read)
        return msgspec.structs.replace(spec, structure_digest=domain_structure(read_domain(spec.source)))

    def _spec(self, text: str, inspiration: Inspiration, seed: int, repairs: int) -> EnvironmentSpec:
        """Raises ``Malformed``."""
        answer = read_answer(text)
        parameters = {**answer.texts, "problems": {"example": answer.problem}}
        return self._author.draft(
            inspiration, seed, repairs, name=answer.domain_name, source=answer.domain, parameters=parameters
        )

    def _faults(self, spec: EnvironmentSpec) -> str:
        """What admission would find, all of it, in words; empty where it finds nothing."""
        limits = self._limits
        checks = list(environment_checks(spec, limits.plan, limits.probes, limits.probe_states))
        return "\n".join(fault_text(check) for check in checks if not check.passed)
