"""What is compared of trajectories, tasks and benchmarks to find leaks: samples, entries, and the hashes of actions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from agentmill.pipelines.canonical_form import Act, hash_of, labels_in
from agentmill.pipelines.duplicates import words_of

WORDS = 13
"""Words of a run."""

LEAST_FORM = WORDS
"""Words other than names, and arguments of actions, that an entry needs to be compared by form."""

LEAST_VALUES = 3
"""Arguments that actions need, in those that are not common, to be no coincidence."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared of one trajectory or task.

    ``asked`` are the texts of the user; ``prompt`` are these, the system prompt and what the environment showed before
    the first action; ``shown`` are the texts of the agent and its environment. ``acts`` are those with arguments.
    ``scene`` is the state in the beginning: what the environment showed before the first action, or, if ``stated``,
    the initial state of a task; one is not comparable with the other.
    """

    task_id: str | None = None
    asked: tuple[str, ...] = ()
    prompt: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    acts: tuple[Act, ...] = ()
    scene: tuple[str, ...] = ()
    stated: bool = False


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared of one entry of a benchmark."""

    benchmark: str
    entry_id: str
    task_id: str | None = None
    instruction: str = ""
    answers: tuple[str, ...] = ()
    acts: tuple[Act, ...] = ()
    scene: tuple[str, ...] = ()
    stated: bool = False

    def sample(self) -> Sample:
        """The entry as one that asks this."""
        asked = (self.instruction,)
        return Sample(
            task_id=self.task_id,
            asked=asked,
            prompt=asked,
            shown=self.answers,
            acts=self.acts,
            scene=self.scene,
            stated=self.stated,
        )


def action_features(acts: Sequence[Act]) -> list[int]:
    """What a sequence of actions is found by: each action, its arguments alone, and each two in a row."""
    alone = [feature for act in acts for feature in (act.exact(), *act.loose())]
    return alone + [hash((first.exact(), second.exact())) % 2**64 for first, second in pairwise(acts)]


def place_features(sample: Sample) -> list[int]:
    """What shows where the actions of a sample are done: its scene, and the labels in its instruction, as they are.

    A paraphrase changes neither. So they make the same few actions, or common ones, evidence.
    """
    scene, labels = words_of(sample.scene), sorted(set().union(*map(labels_in, sample.asked[:1])))
    found = [hash_of((sample.stated, scene))] if len(scene) >= LEAST_FORM else []
    return found + ([hash_of(labels)] if len(labels) >= LEAST_VALUES else [])


def piece_features(piece: Sequence[Act]) -> list[int]:
    """What one action, or two in a row, are found by."""
    return action_features(piece) if len(piece) == 1 else action_features(piece)[-1:]


def are_specific(acts: Iterable[Act]) -> bool:
    """Whether equal actions are no coincidence: they have some arguments, and not only digits.

    Digits are places in lists, which any solution counts up.
    """
    known = set(acts)
    words = (value for act in known for value in act.values if len(value) > 1 or not value.isdigit())
    return values_of(known) >= LEAST_VALUES and any(words)


def values_of(acts: Iterable[Act]) -> int:
    """How many arguments actions have; those of equal actions count once."""
    return sum(len(act.values) for act in set(acts))
