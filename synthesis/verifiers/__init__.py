"""Verifiers by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmill.schemas.registry import Registry

if TYPE_CHECKING:
    from agentmill.synthesis.verifiers.verifier import Verifier

VERIFIERS: Registry[type[Verifier]] = Registry(
    "verifier",
    {
        "check_outcome": "agentmill.synthesis.verifiers.check_outcome:CheckOutcome",
    },
    group="verifiers",
)
