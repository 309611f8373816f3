"""Refusals: messages of an agent that begin with a phrase by which models refuse to help.

The phrases, by language, are in ``refusals.yaml``. A phrase list is cheap and finds refusals in standard wording only;
whether an answer is harmful, or a polite evasion, is a question for ``judge``.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from agentmill.schemas.config import read_yaml

NEAR_START = 300
"""Characters of a message that are looked at: a refusal comes first, and a quotation of one may come later."""

APOSTROPHES = str.maketrans("\u2019\u02bc\u0060", "'''")


def is_refusal(text: str) -> bool:
    """Whether a message begins as a refusal does, in any of the languages of the list."""
    start = " ".join(text[:NEAR_START].translate(APOSTROPHES).lower().split())
    return _pattern().search(start) is not None


@functools.cache
def _pattern() -> re.Pattern[str]:
    phrases = read_yaml(Path(__file__).with_suffix(".yaml"))
    return re.compile("|".join(f"(?:{each})" for patterns in phrases.values() for each in patterns))
