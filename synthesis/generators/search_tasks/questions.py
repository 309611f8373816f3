"""Questions about a corpus, drawn by chance: ``mask``, ``walk`` and ``width``.

``mask`` hides details of a text (MaskSearch, arXiv:2505.20285). ``walk`` chains statements of several passages by names
that are hidden (WebDancer, arXiv:2505.22648; TaskCraft, arXiv:2506.10055, calls it depth), ``width`` asks for several
details of one document together (TaskCraft).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from agentmill.synthesis.environments.search.environment import SEPARATOR
from agentmill.synthesis.generators.search_tasks.corpus_facts import CorpusFacts, Sentence, plain_title

Method = Literal["mask", "walk", "width"]
LEAST_DEPTH: Mapping[Method, int] = {"mask": 1, "walk": 2, "width": 2}
MOST_DEPTH = 8
WINDOW = 3
"""Most sentences around a mask."""
_LETTERS = "ABCDEFGH"
_HINT_CHARACTERS = 150


class Hop(msgspec.Struct, frozen=True):
    """A passage of the solution, and words to look for it by, the plainest first."""

    passage: str
    queries: tuple[str, ...]


class Draft(msgspec.Struct, frozen=True):
    """A question with its answers. ``hidden`` are names that it must not tell; ``depth`` counts masks, passages or
    facts."""

    method: Method
    depth: int
    instruction: str
    answers: tuple[str, ...]
    hops: tuple[Hop, ...]
    hidden: tuple[str, ...] = ()


Draw = Callable[[CorpusFacts, int, random.Random], Draft | None]


def draw_mask(facts: CorpusFacts, depth: int, chance: random.Random) -> Draft | None:
    """A text of a passage with ``depth`` details masked, and a rare name left by which to find it."""
    sentences = chance.choice(facts.sentences)
    if not sentences:
        return None
    begin = chance.randrange(len(sentences))
    window = sentences[begin : begin + chance.randint(1, WINDOW)]
    spans = list(dict.fromkeys(span.text for sentence in window for span in sentence.spans))
    if len(spans) < depth:
        return None
    masked = set(chance.sample(spans, depth))
    passage = facts.passages[window[0].passage]
    text = " ".join(sentence.text for sentence in window)
    answers = tuple(sorted(masked, key=lambda each: (text.index(each), each)))
    left = [name for name in (*spans, plain_title(passage.title)) if name not in masked and has_name(text, name)]
    if not any(facts.is_rare(name) or name in facts.titles for name in left):
        return None
    labels = _mask_labels(answers)
    cloze = replaced(text, labels)
    instruction = f"{_asked(list(labels.values()))} in this text?{_order(depth)}\n\n“{cloze}”"
    hint = unlabelled(cloze)
    hop = Hop(passage.id, (hint[:_HINT_CHARACTERS], hint, f"{passage.title} {hint}"))
    return Draft("mask", depth, instruction, answers, (hop,))


def draw_width(facts: CorpusFacts, depth: int, chance: random.Random) -> Draft | None:
    """``depth`` statements of one document with a detail masked in each."""
    titles = sorted(facts.titles)
    if not titles:
        return None
    title = chance.choice(titles)
    stated = [each for number in facts.titles[title] for each in facts.sentences[number] if each.spans]
    if len(stated) < depth:
        return None
    chosen = sorted(chance.sample(range(len(stated)), depth))
    answers = tuple(chance.choice(stated[place].spans).text for place in chosen)
    if len({*answers}) < depth:
        return None
    labels = _mask_labels(answers)
    lines: list[str] = []
    hops: dict[str, Hop] = {}
    for place, answer in zip(chosen, answers, strict=True):
        line = replaced(stated[place].text, {answer: labels[answer]})
        lines.append(f"- “{line}”")
        passage = facts.passages[stated[place].passage]
        hops.setdefault(passage.id, Hop(passage.id, (title, f"{title} {unlabelled(line)}")))
    asked = f"{_asked(list(labels.values()))} in these statements about {title}?{_order(depth)}"
    return Draft("width", depth, "\n".join([asked, *lines]), answers, tuple(hops.values()))


def draw_walk(facts: CorpusFacts, depth: int, chance: random.Random) -> Draft | None:
    """A chain of ``depth`` passages, each named in the one before by a name that the question hides."""
    titles = sorted(facts.titles)
    if not titles:
        return None
    title = chance.choice(titles)
    at = chance.choice(facts.titles[title])
    path: list[tuple[str | None, Sentence]] = []
    via: list[str] = []
    visited = {facts.passages[at].document}
    about: str | None = title
    for _ in range(depth - 1):
        edges = _edges(facts, at, via[-1] if via else None, visited)
        if not edges:
            return None
        sentence, name, at = chance.choice(edges)
        path.append((about, sentence))
        via.append(name)
        visited.add(facts.passages[at].document)
        about = name if name in facts.titles else None
    stated = _about(facts, at, via[-1])
    asked = [(sentence, span.text) for sentence in stated for span in sentence.spans if span.text not in {title, *via}]
    if not asked:
        return None
    sentence, answer = chance.choice(asked)
    path.append((about, sentence))
    return _chained(facts, title, path, via, answer)


def _edges(facts: CorpusFacts, at: int, name: str | None, visited: set[str]) -> list[tuple[Sentence, str, int]]:
    """The ways on from a passage: a sentence of it, the name in it, and another passage that this leads to."""
    found = []
    for sentence in facts.sentences[at] if name is None else _about(facts, at, name):
        for other in sentence.names():
            if other == name:
                continue
            places = facts.leads_to(at, other)
            found += [(sentence, other, place) for place in places if facts.passages[place].document not in visited]
    return found


def _about(facts: CorpusFacts, at: int, name: str) -> Sequence[Sentence]:
    """The sentences of a passage that are about a name: all if it is the title, else those that have the name."""
    if at in facts.titles.get(name, ()):
        return facts.sentences[at]
    return [sentence for sentence in facts.sentences[at] if has_name(sentence.text, name)]


def _chained(
    facts: CorpusFacts, title: str, path: Sequence[tuple[str | None, Sentence]], via: Sequence[str], answer: str
) -> Draft:
    labels = {name: f"[{letter}]" for name, letter in zip(via, _LETTERS, strict=False)}
    lines, hops = [], []
    for (about, sentence), name in zip(path, (title, *via), strict=True):
        last = sentence is path[-1][1]
        text = replaced(sentence.text, {**labels, answer: "[MASK]"} if last else labels)
        subject = "" if about is None else f"About {labels.get(about, about)}: "
        lines.append(f"- {subject}“{text}”")
        passage = facts.passages[sentence.passage]
        hops.append(Hop(passage.id, (name, f"{name} {passage.title}", f"{name} {unlabelled(text)}")))
    asked = "What belongs in the place of [MASK]? Each letter in brackets hides one name."
    return Draft("walk", len(path), "\n".join([asked, *lines]), (answer,), tuple(hops), tuple(via))


DRAWS: Mapping[Method, Draw] = {"mask": draw_mask, "walk": draw_walk, "width": draw_width}


def _mask_labels(answers: Sequence[str]) -> dict[str, str]:
    if len(answers) == 1:
        return {answers[0]: "[MASK]"}
    return {answer: f"[MASK {number}]" for number, answer in enumerate(answers, 1)}


def _asked(labels: Sequence[str]) -> str:
    if len(labels) == 1:
        return f"What belongs in the place of {labels[0]}"
    return f"What belongs in the places of {', '.join(labels[:-1])} and {labels[-1]}"


def _order(n: int) -> str:
    return "" if n == 1 else f" Separate the answers by {SEPARATOR!r}."


def has_name(text: str, name: str) -> bool:
    """Whether a text has a name as words of its own."""
    return re.search(_whole(name), text) is not None


def _whole(name: str) -> str:
    return rf"(?<!\w){re.escape(name)}(?!\w)"


def replaced(text: str, labels: Mapping[str, str]) -> str:
    """Every name by its label, longer ones first, in one pass so that no label is looked into."""
    names = sorted(labels, key=lambda name: (-len(name), name))
    return re.sub("|".join(map(_whole, names)), lambda found: labels[found[0]], text)


def unlabelled(text: str) -> str:
    """A text without its labels, as words to search for."""
    return " ".join(re.sub(r"\[(?:MASK(?: \d+)?|[A-H])\]", " ", text).split())
