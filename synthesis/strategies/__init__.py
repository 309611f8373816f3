"""Strategies by name."""

from __future__ import annotations

from schemas.registry import Registry

STRATEGIES = Registry("strategy", {"sample": "synthesis.strategies.sample:Sample"})
