"""Verifiers by name."""

from __future__ import annotations

from agentmill.schemas.registry import Registry

VERIFIERS = Registry("verifier", {"check_outcome": "agentmill.synthesis.verifiers.check_outcome:CheckOutcome"})
