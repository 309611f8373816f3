"""The critic: a policy that is asked how far a run is on its way to the goal."""

from __future__ import annotations

import re

from schemas.ids import derive_seed
from schemas.trajectory import TextObservation
from synthesis.policies.policy import Policy, PolicyError
from synthesis.prompts import prompt
from synthesis.strategies.asking import transcript, words_of
from synthesis.strategies.episode import Episode

CRITIC = "critic"
TRIES = 3
HIGHEST = 10.0

_SCORE = re.compile(r"score\W*(\d+(?:\.\d+)?)", re.IGNORECASE)
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*\.?\s*")


async def estimate(critic: Policy, episode: Episode, seed: int) -> float | None:
    """The score of an episode so far, in [0, 1]; ``None`` if ``TRIES`` answers hold no score, or no words."""
    asked = [TextObservation(content=transcript(episode.content), source="user")]
    for attempt in range(TRIES):
        try:
            words, _ = await words_of(
                critic, episode.plan.trajectory_id, prompt("search_critic"), asked, derive_seed(seed, attempt)
            )
        except PolicyError as error:
            if error.reason != "no_words":
                raise
            continue
        score = read_score(words.content)
        if score is not None:
            return score
    return None


def read_score(text: str) -> float | None:
    """The last ``Score: N``, or the number that a text consists of, from 0 to 10, as a share; ``None`` for others."""
    found = _SCORE.findall(text) or ([alone[1]] if (alone := _NUMBER.fullmatch(text)) else [])
    score = float(found[-1]) if found else None
    return None if score is None or score > HIGHEST else score / HIGHEST
