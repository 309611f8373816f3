"""Toolboxes written by a model: tables, rows and tools as data, after AgentScaler, with one example and repair rounds.

A model writes no code: its tools are SQL, which runs in the cell of the environment, so what it wrote can be tried out
at once. The faults found are fed back with all its earlier versions.
"""

from __future__ import annotations

import json
import re
from string import Template

import msgspec

from schemas.task import AdmissionCheck, EnvironmentSpec, Inspiration, Lineage
from synthesis.environments.toolbox.examples import LIBRARY
from synthesis.environments.toolbox.structure import toolbox_structure
from synthesis.environments.toolbox.toolbox import read_toolbox, write_toolbox
from synthesis.generators.admission import AdmissionLimits
from synthesis.generators.author import BACKEND, OPERATOR, Author
from synthesis.generators.toolbox_admission import environment_checks
from synthesis.policies.policy import Policy
from synthesis.prompts import prompt

_NAME_WORDS = 4


class LlmGenerator:
    """Proposes toolboxes that ``policy`` writes, with at most ``repairs`` rounds of repair."""

    def __init__(self, policy: Policy, repairs: int = 3, limits: AdmissionLimits = AdmissionLimits()) -> None:
        self._author = Author(policy, "toolbox", prompt("toolbox_system"), prompt("toolbox_repair"), repairs)
        self._limits = limits

    async def propose(self, inspiration: Inspiration, seed: int) -> EnvironmentSpec:
        """A toolbox without known faults. Raises ``GenerationError`` (``unrepaired``) with all versions and their
        faults as ``history``, and passes on ``PolicyError``."""
        example = msgspec.json.format(write_toolbox(LIBRARY), indent=1)
        asked = Template(prompt("toolbox_request")).substitute(example=example, inspiration=inspiration.text)

        def read(text: str, repairs: int) -> tuple[EnvironmentSpec | None, str]:
            found = read_answer(text)
            if found is None:
                return None, "there is no JSON object in the answer, or it does not end"
            spec = self._spec(found, inspiration, seed, repairs)
            return spec, faults(spec, self._limits)

        spec = await self._author.write(asked, inspiration, seed, read)
        return msgspec.structs.replace(spec, structure_digest=toolbox_structure(read_toolbox(spec.source)))

    def _spec(self, source: str, inspiration: Inspiration, seed: int, repairs: int) -> EnvironmentSpec:
        words = re.findall(r"[a-z]+", inspiration.text.lower())[:_NAME_WORDS]
        return EnvironmentSpec(
            environment_id=self._author.identity(inspiration, seed),
            family="toolbox",
            name="-".join(words) or "toolbox",
            source=source,
            lineage=Lineage(
                operator=OPERATOR,
                inspiration=inspiration.inspiration_id,
                seed=seed,
                notes={"backend": BACKEND, "model": self._author.model, "repairs": repairs},
            ),
        )


def read_answer(text: str) -> str | None:
    """The JSON object in a text, whatever stands around it; ``None`` if there is none, or none that can be read."""
    start = re.search(r'{\s*"', text)
    try:
        value, _ = json.JSONDecoder().raw_decode(text[start.start() :] if start else "")
    except (ValueError, RecursionError):  # also a number of too many digits
        return None
    return json.dumps(value, ensure_ascii=False)


def faults(spec: EnvironmentSpec, limits: AdmissionLimits) -> str:
    """What admission would find first, in words; empty where it finds nothing. What lies behind cannot be tried."""
    for check in environment_checks(spec, limits.probes):
        if not check.passed:
            return _told(check)
    return ""


def _told(check: AdmissionCheck) -> str:
    return f"- {check.name.replace('_', ' ')}: {check.detail}"
