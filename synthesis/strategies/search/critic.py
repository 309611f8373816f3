"""The critic: a policy that is asked how far a run is on its way to the goal."""

from __future__ import annotations

import re

from schemas.ids import derive_seed
from schemas.trajectory import TextObservation
from synthesis.policies.policy import ContextOverflow, Policy
from synthesis.prompts import prompt
from synthesis.strategies.asking import TRIES, transcript, words_if_any
from synthesis.strategies.episode import Episode

CRITIC = "critic"
HIGHEST = 10.0

_SCALE = r"(?:\s*\(?(?:from\s+)?\d+\s*(?:-|–|to)\s*\d+\)?(?=\s*:|\s*is\b))?(?:\s+is\b)?"
"""The scale that some say before the score, as in ``Score (0-10): 7``."""
_SCORE = re.compile(rf"score{_SCALE}[^\w-]*(?:-\s+)?(-?\d+(?:\.\d+)?)", re.IGNORECASE)
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*\.?\s*")


async def estimate(critic: Policy, episode: Episode, seed: int) -> float | None:
    """The score of a run so far, in [0, 1]; ``None`` if the critic gives none in ``TRIES`` answers, or cannot read it.

    Raises ``PolicyError`` where the critic cannot be asked, or its budget is spent.
    """
    asked = [TextObservation(content=transcript(episode.content), source="user")]
    for attempt in range(TRIES):
        try:
            words, _ = await words_if_any(
                critic, episode.plan.trajectory_id, prompt("search_critic"), asked, derive_seed(seed, attempt)
            )
        except ContextOverflow:  # the transcript does not get shorter
            return None
        score = None if words is None else read_score(words.content)
        if score is not None:
            return score
    return None


def read_score(text: str) -> float | None:
    """The last ``Score: N``, or the number that a text consists of, from 0 to 10, as a share; ``None`` for others."""
    found = _SCORE.findall(text) or ([alone[1]] if (alone := _NUMBER.fullmatch(text)) else [])
    score = float(found[-1]) if found else None
    return score / HIGHEST if score is not None and 0 <= score <= HIGHEST else None
