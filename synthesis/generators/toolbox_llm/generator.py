"""Toolboxes written by a model: tables, rows and tools as data, after AgentScaler, with one example and repair rounds.

A model writes no code: its tools are SQL, which runs in the cell of the environment, so what it wrote can be tried out
at once. The faults found are fed back with all its earlier versions.
"""

from __future__ import annotations

from string import Template

import msgspec

from schemas.task import EnvironmentSpec, Inspiration
from synthesis.environments.toolbox.examples import LIBRARY
from synthesis.environments.toolbox.structure import toolbox_structure
from synthesis.environments.toolbox.toolbox import read_toolbox, write_toolbox
from synthesis.generators.admission import AdmissionLimits
from synthesis.generators.author import COPIED, NO_OBJECT, Author, first_fault, read_object
from synthesis.generators.toolbox_admission import environment_checks
from synthesis.policies.policy import Policy
from synthesis.prompts import prompt


class LlmGenerator:
    """Proposes toolboxes that ``policy`` writes, with at most ``repairs`` rounds of repair."""

    def __init__(self, policy: Policy, repairs: int = 3, limits: AdmissionLimits = AdmissionLimits()) -> None:
        self._author = Author(policy, "toolbox", prompt("toolbox_system"), prompt("object_repair"), repairs)
        self._limits = limits

    async def propose(self, inspiration: Inspiration, seed: int) -> EnvironmentSpec:
        """A toolbox without known faults. Raises ``GenerationError`` (``unrepaired``) with all versions and their
        faults as ``history``, and passes on ``PolicyError``."""
        example = msgspec.json.format(write_toolbox(LIBRARY), indent=1)
        asked = Template(prompt("toolbox_request")).substitute(example=example, inspiration=inspiration.text)

        def read(text: str, repairs: int) -> tuple[EnvironmentSpec | None, str]:
            source = read_object(text)
            if source is None:
                return None, NO_OBJECT
            spec = self._author.draft(inspiration, seed, repairs, source=source)
            faults = first_fault(environment_checks(spec, self._limits.probes))
            if faults:
                return None, faults
            structure = toolbox_structure(read_toolbox(source))
            copied = structure == toolbox_structure(LIBRARY)
            return msgspec.structs.replace(spec, structure_digest=structure), COPIED if copied else ""

        return await self._author.write(asked, inspiration, seed, read)
