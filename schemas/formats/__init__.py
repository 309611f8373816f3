"""Foreign formats by name."""

from __future__ import annotations

from schemas.registry import Registry

FORMATS = Registry("format", {"adp": "schemas.formats.adp:Adp"})
