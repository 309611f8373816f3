"""Recalling earlier runs for a task: which of a library, and how they are written.

Runs are ``similar`` by the words of their instructions: the share that both have of those that either has (Jaccard),
capitals and punctuation aside. That suits tasks that are worded in the same manner; it knows no synonyms.
"""

from __future__ import annotations

import random
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from agentmill.schemas.chat import is_mark
from agentmill.schemas.config import Config
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import TextObservation, Trajectory
from agentmill.synthesis.rollouts.llm_calls import transcript


class Retrieval(Config):
    """Which earlier runs the prompt shows."""

    shots: int = Field(default=3, ge=1, description="how many earlier runs the prompt shows at most")
    by: Literal["similar", "random"] = Field(
        default="similar", description="those whose instructions are most like the task's, or any, drawn anew each time"
    )
    held_out: bool = Field(
        default=True, description="never a run of the task itself, or of its instruction where a run names no task"
    )
    same_environment: bool = Field(
        default=False, description="only runs in the environment of the task, which have its tools"
    )

    def serves(self, run: Trajectory) -> bool:
        """Whether a run holds what is to be recalled."""
        del run
        return True


SORTED_FIRST = 64
"""So many of the most similar runs are sorted before the rest, of which none is wanted as a rule."""

TaskName = tuple[str | None, str]
"""What a task is distinguished by: its id, or where there is none its instruction."""


class Card(Record):
    """What a library knows of a run without opening it."""

    trajectory_id: str
    task: TaskName
    words: frozenset[str]
    environment_id: str | None = None


class Library:
    """Earlier runs, found by their cards and fetched one by one."""

    def __init__(self, cards: Iterable[Card], fetch: Callable[[str], Trajectory]) -> None:
        self._cards = sorted(cards, key=lambda card: card.trajectory_id)
        self._by_environment: dict[str | None, list[Card]] = {}
        for card in self._cards:
            self._by_environment.setdefault(card.environment_id, []).append(card)
        self._indexes: dict[str | None, WordIndex] = {}
        self._fetch = fetch
        self._ranked: dict[tuple[str, str, Retrieval, bool], list[str]] = {}

    def find(self, task: Task, retrieval: Retrieval, seed: int = 0, *, one_per_task: bool = False) -> list[str]:
        """The ids of the runs to recall for a task, the first choice first; ``seed`` is that of a random choice."""
        if retrieval.by == "random":
            cards = drawn(self._shown(task, retrieval), random.Random(seed))
            return _taken(cards, task, retrieval, one_per_task)
        key = (task.task_id, task.instruction, retrieval, one_per_task)
        if key not in self._ranked:  # a library may be large, and is asked for each attempt
            self._ranked[key] = _taken(self._nearest(task, retrieval), task, retrieval, one_per_task)
        return self._ranked[key]

    def holds(self, task: Task, retrieval: Retrieval) -> bool:
        """Whether there is any run to recall for a task; it ranks none."""
        without = _held_out(task, retrieval)
        return any(card.task not in without for card in self._shown(task, retrieval))

    def get(self, trajectory_id: str) -> Trajectory:
        """A run that was found."""
        return self._fetch(trajectory_id)

    def _shown(self, task: Task, retrieval: Retrieval) -> Sequence[Card]:
        """The runs in environments that may be shown."""
        return self._by_environment.get(task.environment_id, []) if retrieval.same_environment else self._cards

    def _nearest(self, task: Task, retrieval: Retrieval) -> Iterator[Card]:
        """These runs from the most similar on."""
        which = task.environment_id if retrieval.same_environment else None
        if which not in self._indexes:
            self._indexes[which] = WordIndex(self._shown(task, retrieval))
        return self._indexes[which].nearest(words_of(task.instruction))


class WordIndex:
    """Cards by their words, so that a question is not compared with all of them."""

    def __init__(self, cards: Sequence[Card]) -> None:
        self._cards = cards
        self._sizes = np.array([len(card.words) for card in cards], dtype=np.int64)
        self._places: dict[str, array[int]] = {}
        for place, card in enumerate(cards):
            for word in card.words:
                self._places.setdefault(word, array("q")).append(place)

    def nearest(self, words: frozenset[str]) -> Iterator[Card]:
        """The cards from the most similar on, sorted as far as it is asked; equally similar ones in their order.

        Similarity is the Jaccard index of the words, in [0, 1]; 0 where neither has any.
        """
        shared = np.zeros(len(self._cards), dtype=np.int64)
        for word in words & self._places.keys():
            shared[np.frombuffer(self._places[word], dtype=np.int64)] += 1
        found = shared / np.maximum(1, self._sizes + len(words) - shared)
        least = np.partition(found, -SORTED_FIRST)[-SORTED_FIRST] if len(found) > SORTED_FIRST else 0.0
        for part in (found >= least, found < least):
            places = np.flatnonzero(part)
            for place in places[np.argsort(-found[places], kind="stable")]:
                yield self._cards[place]


def drawn(cards: Sequence[Card], chance: random.Random) -> Iterator[Card]:
    """The cards in random order: a shuffle (Fisher and Yates) that goes as far as it is asked, for few are wanted."""
    moved: dict[int, int] = {}
    for left in range(len(cards), 0, -1):
        place = chance.randrange(left)
        yield cards[moved.get(place, place)]
        moved[place] = moved.get(left - 1, left - 1)


def _taken(ranked: Iterable[Card], task: Task, retrieval: Retrieval, one_per_task: bool) -> list[str]:
    taken: list[str] = []
    tasks = _held_out(task, retrieval)
    for card in ranked:
        if card.task in tasks:
            continue
        taken.append(card.trajectory_id)
        if len(taken) == retrieval.shots:
            break
        if one_per_task:
            tasks.add(card.task)
    return taken


def _held_out(task: Task, retrieval: Retrieval) -> set[TaskName]:
    return {_named(task.task_id, task.instruction), _named(None, task.instruction)} if retrieval.held_out else set()


def _named(task_id: str | None, question: str) -> TaskName:
    return (None, " ".join(question.split())) if task_id is None else (task_id, "")


def card_of(run: Trajectory) -> Card:
    """The card of a run."""
    question = instruction_of(run)
    return Card(
        trajectory_id=run.trajectory_id,
        task=_named(run.task_id, question),
        words=words_of(question),
        environment_id=run.environment_id,
    )


def instruction_of(run: Trajectory) -> str:
    """What the agent was asked to do; empty where nobody asked."""
    question = (item.content for item in run.content if isinstance(item, TextObservation) and item.source == "user")
    return next(question, "")


_UNSPACED = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")


def words_of(text: str) -> frozenset[str]:
    """The words of a text, in lower case; of Chinese and Japanese, which put no blanks between them, the characters."""
    return frozenset(_WORD.findall(text.lower()))


def retold(run: Trajectory) -> str:
    """What the agent was asked, did and saw, as text; without what it was shown of other runs."""
    shown = [
        item
        for item in run.content
        if not is_mark(item) and (item.turn > 0 or item.state_digest is not None or run.generation is None)
    ]
    question = instruction_of(run) if run.generation is not None else ""
    return "\n".join(part for part in (question, transcript(shown)) if part)
