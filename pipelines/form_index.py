"""Entries of benchmarks by their canonical form: which of them a sample is under other names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agentmill.pipelines.canonical_form import NAME, form_of, hash_of, moves_of, names_in, pieces_of
from agentmill.pipelines.leak_features import LEAST_FORM, LEAST_VALUES, Sample, values_of
from agentmill.pipelines.posting_index import Postings, runs
from agentmill.pipelines.scene_form import SceneForm, scene_form

FORM_WORDS = 5
"""Words of a run in canonical form, where names cut a text into short pieces."""

FORM_ACTIONS = 3
"""Actions of a run in canonical form."""


class Form(NamedTuple):
    """A sample in canonical form, as hashes.

    ``words`` and ``moves`` are runs of words and of actions. ``whole`` are runs of actions whose names are those of
    the instruction, each with all of the instruction, and ``placed`` are the same with all of the scene.
    """

    words: list[int]
    moves: list[int]
    whole: list[int]
    facts: list[int]
    placed: list[int]
    specific: bool


class FormIndex:
    """Entries by their canonical form, in which numbers are names or are kept."""

    def __init__(self, samples: Sequence[Sample], common: int, keep_numbers: bool) -> None:
        self._keep = keep_numbers
        forms = [self._form(each) for each in samples]
        self._acts = {number for number, each in enumerate(samples) if each.acts}
        self._scenes = {number: each.stated for number, each in enumerate(samples) if each.scene}
        self._specific = {number for number, form in enumerate(forms) if form.specific}
        self._words = Postings((form.words for form in forms), common)
        self._moves = Postings((form.moves for form in forms), common)
        self._whole = Postings((form.whole for form in forms), common)
        self._facts = Postings(form.facts for form in forms)
        self._placed = Postings((form.placed for form in forms), common)

    def observe(self, sample: Sample, key: int) -> None:
        """Note that the form of a sample comes with the instruction ``key``."""
        if self._specific:
            form = self._form(sample)
            self._words.observe(form.words, key)
            self._moves.observe(form.moves, key)
            self._whole.observe(form.whole, key)
            self._placed.observe(form.placed, key)

    def close(self) -> None:
        """Settle what is common."""
        for each in (self._words, self._moves, self._whole, self._placed):
            each.close()

    def comparable(self) -> set[int]:
        """The entries whose form is specific, and not all common; known after ``close``."""
        words, moves = self._words.totals(), self._moves.totals()
        whole, placed = self._whole.totals(), self._placed.totals()
        return {
            number
            for number in self._specific
            if (moves if number in self._acts else words)[number] or whole[number] or placed[number]
        }

    def shares(self, sample: Sample) -> dict[int, float]:
        """The share of each entry that a sample has.

        It is the least of those of words, of actions, of facts where both have a scene of one kind, and of what is
        rare: of runs alone, or of runs with the whole instruction and scene.
        """
        if not self._specific:
            return {}
        form = self._form(sample)
        words, acts = self._words.shares(form.words, rare=False), self._moves.shares(form.moves, rare=False)
        rare, rare_words = self._moves.shares(form.moves), self._words.shares(form.words)
        whole, placed = self._whole.shares(form.whole), self._placed.shares(form.placed)
        facts, sizes = self._facts.shares(form.facts), self._facts.totals()
        found = {}
        for number in self._specific & words.keys():
            both = bool(sample.scene) and self._scenes.get(number) is sample.stated
            alone, joint = rare if number in self._acts else rare_words, placed if both else whole
            shares = [words[number], max(alone.get(number, 0.0), joint.get(number, 0.0))]
            shares += [acts.get(number, 0.0)] if number in self._acts else []
            if both:
                # A state with more facts is another one, too.
                more = max(1.0, len(form.facts) / max(1, sizes[number]))
                shares.append(facts.get(number, 0.0) / more if form.facts or sizes[number] else 1.0)
            found[number] = min(shares)
        return found

    def _form(self, sample: Sample) -> Form:
        names = names_in(sample.acts)
        pieces = [piece for text in sample.asked[:1] for piece in pieces_of(text, names, self._keep)]
        words = [
            word.encode(errors="surrogatepass") for text in sample.asked for word in form_of(text, names, self._keep)
        ]
        asked: dict[str, int] = {}
        for word, name in pieces:
            if word == NAME:
                asked.setdefault(name, len(asked))
        instruction = hash_of([asked[name] if word == NAME else word for word, name in pieces])
        scene = scene_form(sample.scene, names, asked, self._keep)
        numbered = moves_of(sample.acts, FORM_ACTIONS, self._keep, asked) or [0]
        state = hash_of((sample.stated, scene.facts))
        return Form(
            words=_form_runs(words),
            moves=moves_of(sample.acts, FORM_ACTIONS, self._keep),
            whole=[hash_of((instruction, run)) for run in numbered],
            facts=[hash_of((sample.stated, fact)) for fact in scene.facts],
            placed=[hash_of((instruction, state, run)) for run in numbered] if sample.scene else [],
            specific=bool(words) and _is_specific(sample, words, scene),
        )


def _form_runs(form: Sequence[bytes]) -> list[int]:
    """Runs of words in canonical form; a shorter form is one run."""
    return runs([form], min(FORM_WORDS, len(form))).tolist() if form else []


def _is_specific(sample: Sample, form: Sequence[bytes], scene: SceneForm) -> bool:
    """Whether an equal form is no coincidence."""
    if len(sample.acts) == 1 and scene.names < LEAST_VALUES:
        return False
    return sum(word != NAME.encode() for word in form) + values_of(sample.acts) + scene.names >= LEAST_FORM
