"""Verifiers by name."""

from __future__ import annotations

from schemas.registry import Registry

VERIFIERS = Registry("verifier", {"check_outcome": "synthesis.verifiers.check_outcome:CheckOutcome"})
