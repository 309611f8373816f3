"""Contamination: whether a trajectory is, or holds, an entry of a benchmark, under its own names or under others.

Five tests compare a sample (a trajectory or a task) with an entry. Each gives the share of the entry that is found,
from 0 to 1:

- ``task``: 1 if the id of the task is the same.
- ``instruction``: runs of 13 words of the instruction in the prompt (the 13-grams of GPT-3, Brown et al. 2020,
  arXiv:2005.14165, appendix C), or the whole instruction as a text or a line of the prompt.
- ``answer``: runs of 13 words of the answers in what the agent and the environment say. A shorter one is no evidence.
- ``actions``: the longest common subsequence of the actions that have arguments; a paraphrase does not change it. Few
  or common ones count if the initial state, or the labels (quoted texts and numbers) in the instruction, are the same.
- ``renamed``: the least of the shares of runs of words, of runs of actions and of facts of the initial state (where
  both have one), in the canonical form that a consistent renaming does not change
  (``agentmill.pipelines.canonical_form``, ``agentmill.pipelines.scene_form``).

What many texts share is no evidence: as in GPT-3, a run or an action that comes with more than ``common`` different
instructions, of data and benchmarks together, does not count. So the instances of a template, which differ in names
alone and are different tasks, are no matches where there are many of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

import msgspec

from agentmill.pipelines.canonical_form import NAME, Act, form_of, names_in, text_key
from agentmill.pipelines.duplicates import words_of
from agentmill.pipelines.form_index import FormIndex
from agentmill.pipelines.leak_features import (
    WORDS,
    Entry,
    Sample,
    action_features,
    are_specific,
    piece_features,
    place_features,
)
from agentmill.pipelines.posting_index import Postings, WordRuns
from agentmill.schemas.records.record import JsonObject

K = TypeVar("K")

Test = Literal["task", "instruction", "answer", "actions", "renamed"]
TESTS: tuple[Test, ...] = ("task", "instruction", "answer", "actions", "renamed")
"""The tests; the first that finds an entry is the reason."""

LEAST_EQUAL_WORDS = 3
"""Words of an instruction that is found as a whole: ``go on`` is none."""

MOST_DETOUR = 2
"""A sequence of actions that is longer than what it shares, times this, is not the same one with detours."""

EXCERPT = 300
"""Characters of what matched that are kept as evidence."""


class Match(NamedTuple):
    """An entry, by its number, that a test found; ``score`` is the share of it."""

    test: Test
    entry: int
    score: float


class BenchmarkIndex:
    """The entries of benchmarks by their features. ``thresholds`` are the least scores of the tests that are made.

    First ``observe`` every sample, then ``close``, then ``match``; the order of samples does not matter.
    """

    def __init__(self, entries: Sequence[Entry], thresholds: Mapping[Test, float], common: int) -> None:
        # Of the scenes the hashes are enough.
        self.entries = [msgspec.structs.replace(each, scene=()) for each in entries]
        self._tests: dict[Test, Callable[[Sample], Mapping[int, float]]] = {
            "task": self._same_task,
            "instruction": self._same_instruction,
            "answer": lambda sample: self._answers.shares(sample.shown),
            "actions": self._same_actions,
            "renamed": self._renamed,
        }
        self._thresholds = {test: thresholds[test] for test in TESTS if test in thresholds}
        self._tasks = _first((each.task_id, place) for place, each in enumerate(entries) if each.task_id is not None)
        long = [len(words_of([each.instruction])) >= LEAST_EQUAL_WORDS for each in entries]
        self._equal = _first((text_key([each.instruction]), place) for place, each in enumerate(entries) if long[place])

        def used(test: Test) -> Sequence[Entry]:
            return entries if test in self._thresholds else ()

        self._asked = WordRuns(([each.instruction] for each in used("instruction")), WORDS, common)
        self._answers = WordRuns((each.answers for each in used("answer")), WORDS, common)
        self._actions = Postings((action_features(each.acts) for each in used("actions")), common)
        self._places = Postings((place_features(each.sample()) for each in used("actions")), common)
        samples = [each.sample() for each in used("renamed")]
        self._forms = [FormIndex(samples, common, keep_numbers) for keep_numbers in (True, False)]
        for each in entries:
            self.observe(each.sample())

    def observe(self, sample: Sample) -> None:
        """Count the features of a sample, to know which are common."""
        # What a user writes later differs between attempts at one task.
        key = text_key(sample.asked[:1])
        self._asked.observe(sample.prompt, key)
        self._answers.observe(sample.shown, key)
        self._actions.observe(action_features(sample.acts), key)
        self._places.observe(place_features(sample) if self._places else (), key)
        for form in self._forms:
            form.observe(sample, key)

    def close(self) -> None:
        """Settle what is common."""
        self._asked.close()
        self._answers.close()
        self._actions.close()
        self._places.close()
        for form in self._forms:
            form.close()

    def comparable(self) -> dict[Test, int]:
        """How many entries, or different instructions, each test can compare; known after ``close``."""
        found: dict[Test, int] = {
            "task": len(self._tasks),
            "instruction": len(self._equal),
            "answer": int((self._answers.totals() > 0).sum()),
            "actions": sum(
                bool(each.acts) and (are_specific(each.acts) or placed > 0)
                for each, placed in zip(self.entries, self._places.totals().tolist(), strict=False)
            ),
            "renamed": len(set().union(*(form.comparable() for form in self._forms))),
        }
        return {test: found[test] for test in self._thresholds}

    def match(self, sample: Sample) -> list[Match]:
        """The best entry of each test that finds one, in the order of ``TESTS``; of equal ones the first entry."""
        matches = []
        for test, threshold in self._thresholds.items():
            shares = self._tests[test](sample)
            best = max(shares, key=lambda entry: (shares[entry], -entry), default=None)
            if best is not None and shares[best] >= threshold:
                matches.append(Match(test, best, shares[best]))
        return matches

    def evidence(self, match: Match, sample: Sample) -> JsonObject:
        """What matched: the entry, and its words or actions that were found, or its form."""
        entry = self.entries[match.entry]
        found: JsonObject = {"test": match.test, "benchmark": entry.benchmark, "entry": entry.entry_id}
        found["share"] = round(match.score, 4)
        if match.test == "instruction":
            words = self._asked.found(entry.instruction, sample.prompt) or " ".join(entry.instruction.split())
            found["words"] = words[:EXCERPT]
        elif match.test == "answer":
            stretches = (self._answers.found(text, sample.shown) for text in entry.answers)
            found["words"] = next(filter(None, stretches), "")[:EXCERPT]
        elif match.test == "actions":
            shared = common_subsequence(entry.acts, sample.acts)
            found["actions"] = "; ".join(str(entry.acts[place]) for place in shared)[:EXCERPT]
        elif match.test == "renamed":
            form = form_of(entry.instruction, names_in(entry.acts), keep_numbers=False)
            found["form"] = " ".join(form).replace(NAME, "_")[:EXCERPT]
            found["actions"] = "; ".join(map(str, entry.acts))[:EXCERPT]
        return found

    def _same_task(self, sample: Sample) -> Mapping[int, float]:
        place = None if sample.task_id is None else self._tasks.get(sample.task_id)
        return {} if place is None else {place: 1.0}

    def _same_instruction(self, sample: Sample) -> Mapping[int, float]:
        # An instruction may be a line of a longer prompt.
        lines = (line for text in sample.prompt for line in (text, *text.splitlines()))
        equal = [self._equal.get(text_key([line])) for line in lines]
        return {each: 1.0 for each in equal if each is not None} or self._asked.shares(sample.prompt)

    def _same_actions(self, sample: Sample) -> Mapping[int, float]:
        known = self._actions.known(action_features(sample.acts))
        placed = self._places.shares(place_features(sample))
        found = {}
        for number in self._actions.shares(known).keys() | placed.keys():
            acts = self.entries[number].acts
            places = common_subsequence(acts, sample.acts)
            # Each action may be common, and two in a row be not.
            pieces = [acts[place : place + size] for place in places for size in (1, 2)]
            rare = {act for piece in pieces if not known.isdisjoint(piece_features(piece)) for act in piece}
            evident = are_specific(rare) or number in placed
            if evident and 0 < len(sample.acts) <= MOST_DETOUR * len(places):
                found[number] = len(places) / len(acts)
        return found

    def _renamed(self, sample: Sample) -> Mapping[int, float]:
        found: dict[int, float] = {}
        for form in self._forms:
            for number, share in form.shares(sample).items():
                found[number] = max(share, found.get(number, 0.0))
        return found


def common_subsequence(first: Sequence[Act], second: Sequence[Act]) -> list[int]:
    """The places in ``first`` of a longest common subsequence of two sequences of actions.

    Actions are equal if they are so exactly, or, where one is a call and the other a command, in their arguments. The
    table of lengths is kept as one integer for each action of ``second`` (Hyyrö 2004, "Bit-parallel LCS-length
    computation revisited").
    """
    exact: dict[int, int] = {}
    loose: dict[tuple[bool, int], int] = {}
    for place, act in enumerate(first):
        exact[act.exact()] = exact.get(act.exact(), 0) | 1 << place
        for key in act.loose():
            loose[act.call, key] = loose.get((act.call, key), 0) | 1 << place
    full, rows = (1 << len(first)) - 1, [(1 << len(first)) - 1]
    equal = []
    for act in second:
        equal.append(exact.get(act.exact(), 0))
        for key in act.loose():
            equal[-1] |= loose.get((not act.call, key), 0)
    for mask in equal:
        row = rows[-1]
        shared = row & mask
        rows.append(((row + shared) | (row - shared)) & full)
    return sorted(_walk_back(rows, equal, len(first)))


def _walk_back(rows: Sequence[int], equal: Sequence[int], length: int) -> Iterator[int]:
    """The places of a longest common subsequence, from its end."""
    column, row = length, len(equal)
    while column and row:
        here, above = (_zeros(rows[number], column) for number in (row, row - 1))
        if here == above:
            row -= 1
        elif here == _zeros(rows[row], column - 1):
            column -= 1
        else:
            column, row = column - 1, row - 1
            yield column


def _zeros(row: int, column: int) -> int:
    """How many of the lowest ``column`` bits are 0: the length of the subsequence so far."""
    return column - (row & ((1 << column) - 1)).bit_count()


def _first(pairs: Iterable[tuple[K, int]]) -> dict[K, int]:
    """The first number of each key."""
    found: dict[K, int] = {}
    for key, number in pairs:
        found.setdefault(key, number)
    return found
