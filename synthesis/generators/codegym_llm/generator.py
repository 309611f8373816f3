"""Coding problems written by a model, after CodeGym (arXiv:2509.17325), with an example and repair rounds.

What a model wrote is code, which is run in the sandbox only. The first fault that admission finds is fed back, with all
earlier versions.
"""

from __future__ import annotations

from string import Template

import msgspec

from agentmill.schemas.records.task import EnvironmentSpec, Inspiration
from agentmill.synthesis.environments.codegym.examples import GAUGE
from agentmill.synthesis.environments.codegym.problem import read_problem, write_problem
from agentmill.synthesis.environments.codegym.structure import problem_structure
from agentmill.synthesis.generators.admission import AdmissionLimits
from agentmill.synthesis.generators.author import Author
from agentmill.synthesis.generators.codegym_admission import environment_checks
from agentmill.synthesis.policies.policy import Policy
from agentmill.synthesis.prompts import prompt


class LlmGenerator:
    """Proposes problems that ``policy`` writes, with at most ``repairs`` rounds of repair."""

    def __init__(self, policy: Policy, repairs: int = 3, limits: AdmissionLimits = AdmissionLimits()) -> None:
        self._author = Author(policy, "codegym", prompt("codegym_system"), prompt("object_repair"), repairs)
        self._limits = limits

    async def propose(self, inspiration: Inspiration, seed: int) -> EnvironmentSpec:
        """A problem without known faults. Raises ``GenerationError`` (``unrepaired``) with all versions and their
        faults as ``history``, and passes on ``PolicyError``."""
        example = write_problem(GAUGE)
        shown = msgspec.json.format(example, indent=1)
        question = Template(prompt("codegym_request")).substitute(example=shown, inspiration=inspiration.text)
        return await self._author.write_source(
            question,
            inspiration,
            seed,
            lambda spec: environment_checks(spec, self._limits.probes),
            lambda source: problem_structure(read_problem(source)),
            example,
        )
