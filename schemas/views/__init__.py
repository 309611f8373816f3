"""Training views by name."""

from __future__ import annotations

from schemas.registry import Registry

VIEWS = Registry("view", {"sft": "schemas.views.sft:Sft"})
