"""Training scripts by name; each is also ``python -m trainers.NAME``."""

from __future__ import annotations

from schemas.registry import Registry

TRAINERS = Registry("trainer", {"sft": "trainers.sft:main"})
