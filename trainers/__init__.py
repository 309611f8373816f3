"""Training scripts by name; each is also ``python -m trainers.NAME``."""

from __future__ import annotations

from schemas.registry import Registry

TRAINERS = Registry("trainer", {"dpo": "trainers.dpo:main", "kto": "trainers.kto:main", "sft": "trainers.sft:main"})
