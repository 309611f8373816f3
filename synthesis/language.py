"""The language of a text, as an ISO 639 code (py3langid)."""

from __future__ import annotations

import functools
from typing import Any

LEAST_CHARACTERS = 40
"""The language of a shorter text cannot be recognised."""

SURE = 0.9
"""Below this probability the language of a text is not known for sure."""


def identify(text: str) -> str:
    """The most probable language."""
    return str(_identifier().classify(text)[0])


def sure_language(text: str) -> str | None:
    """The language of a text; ``None`` where it is too short, or another language is almost as probable."""
    if len(text.strip()) < LEAST_CHARACTERS:
        return None
    name, probability = _identifier().classify(text)
    return str(name) if probability >= SURE else None


@functools.cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
