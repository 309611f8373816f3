"""Toolboxes written by a model: tables, rows and tools as data, after AgentScaler, with one example and repair rounds.

A model writes no code: its tools are SQL, which runs in the cell of the environment, so what it wrote can be tried out
at once. The faults found are fed back with all its earlier versions.
"""

from __future__ import annotations

from string import Template

import msgspec

from agentmill.schemas.records.task import EnvironmentSpec, Inspiration
from agentmill.synthesis.environments.toolbox.examples import LIBRARY
from agentmill.synthesis.environments.toolbox.structure import toolbox_structure
from agentmill.synthesis.environments.toolbox.toolbox import read_toolbox, write_toolbox
from agentmill.synthesis.generators.admission import AdmissionLimits
from agentmill.synthesis.generators.author import Author
from agentmill.synthesis.generators.toolbox_admission import environment_checks
from agentmill.synthesis.policies.policy import Policy
from agentmill.synthesis.prompts import prompt


class LlmGenerator:
    """Proposes toolboxes that ``policy`` writes, with at most ``repairs`` rounds of repair."""

    def __init__(self, policy: Policy, repairs: int = 3, limits: AdmissionLimits = AdmissionLimits()) -> None:
        self._author = Author(policy, "toolbox", prompt("toolbox_system"), prompt("object_repair"), repairs)
        self._limits = limits

    async def propose(self, inspiration: Inspiration, seed: int) -> EnvironmentSpec:
        """A toolbox without known faults. Raises ``GenerationError`` (``unrepaired``) with all versions and their
        faults as ``history``, and passes on ``PolicyError``."""
        example = write_toolbox(LIBRARY)
        shown = msgspec.json.format(example, indent=1)
        question = Template(prompt("toolbox_request")).substitute(example=shown, inspiration=inspiration.text)
        return await self._author.write_source(
            question,
            inspiration,
            seed,
            lambda spec: environment_checks(spec, self._limits.probes),
            lambda source: toolbox_structure(read_toolbox(source)),
            example,
        )
