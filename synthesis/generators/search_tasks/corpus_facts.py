"""What a corpus holds that can be asked for: sentences, the dates, numbers and names in them, and shared names.

By rules, so that the same corpus gives the same facts. Of a corpus larger than ``MOST_CHARACTERS`` a random part is
read.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from agentmill.schemas.ids import random_key
from agentmill.synthesis.environments.search.corpus import SENTENCE_END, Document, Passage, passages_of
from agentmill.synthesis.environments.search.environment import SEPARATOR

MOST_CHARACTERS = 40_000_000
"""Text that is held in memory."""
RARE = 5
"""A name in no more passages than this leads from one to the others."""
OPENING = 3
"""Words of a title by which it is looked up."""
SENTENCE_CHARACTERS = (25, 400)
"""Shorter sentences say too little, longer ones are lists or badly cut."""

Kind = Literal["date", "number", "name", "title"]

_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_YEAR = r"(?<![\w.,-])(?:1\d|20)\d\d(?![\w-]|[.,]\d)"
_DATE = re.compile(rf"\b\d{{1,2}} (?:{_MONTHS}) \d{{3,4}}\b|\b(?:{_MONTHS}) \d{{1,2}}, \d{{3,4}}\b|{_YEAR}")
# Of two digits at least: a single one is guessed, and is in too many texts.
_NUMBER = re.compile(r"(?<![\w.,-])\d[\d,]*\d(?:\.\d+)?(?![\w-]|[.,]\d)")
_CAPITAL = r"[A-ZÀ-Þ][\w’'-]*\w"
_NAME = re.compile(rf"\b{_CAPITAL}(?:\s+(?:(?:of|de|van|von|the)\s+)?{_CAPITAL})*")
_WORD = re.compile(r"\w[\w’'-]*")
_NO_NAMES = frozenset(
    re.findall(
        r"\w+",
        f"""{_MONTHS} Monday Tuesday Wednesday Thursday Friday Saturday Sunday The A An In On At It He She They This
        That These Those Its His Her Their There Here After Before When While During From By For As But And Or
        However Since Although Until With Without One Two Some Many Most Other If To Of We You Who What Where Which
        Both Each Every No Not Only Later Then Today Under Over""",
    )
)
"""Words that have a capital at the beginning of a sentence, or always, and name nothing."""


class Span(msgspec.Struct, frozen=True):
    """A piece of a sentence that can be asked for; a ``title`` is that of another document."""

    kind: Kind
    text: str


class Sentence(msgspec.Struct, frozen=True):
    """A sentence of the passage with that number in ``CorpusFacts.passages``."""

    passage: int
    text: str
    spans: tuple[Span, ...]

    def names(self) -> list[str]:
        """The names and titles in it."""
        return [span.text for span in self.spans if span.kind in ("name", "title")]


class CorpusFacts(msgspec.Struct, frozen=True):
    """Passages with their sentences; ``named`` says in which passages a name is, of rare names only.

    ``titles`` are the passages of the document with a title that no other has, ``shared_titles`` those of the documents
    with a title that several have; ``unused`` counts documents that were left out.
    """

    passages: Sequence[Passage]
    sentences: Sequence[Sequence[Sentence]]
    titles: Mapping[str, Sequence[int]]
    shared_titles: Mapping[str, Sequence[int]]
    named: Mapping[str, Sequence[int]]
    documents: int
    unused: int

    def is_rare(self, name: str) -> bool:
        """Whether a name, or the title of a document, is in few passages."""
        return name in self.named

    def leads_to(self, at: int, name: str) -> Sequence[int]:
        """The passages that a name in passage ``at`` leads to: of its document, the linked one if several have it as
        their title, or else those that have the name too."""
        if name in self.titles:
            return self.titles[name]
        links = self.passages[at].links
        linked = [place for place in self.shared_titles.get(name, ()) if self.passages[place].document in links]
        return linked or self.named.get(name, ())

    def has_facts(self) -> bool:
        """Whether anything can be asked for."""
        return any(sentence.spans for sentences in self.sentences for sentence in sentences)


def corpus_facts(documents: Iterable[Document], seed: int, most: int = MOST_CHARACTERS) -> CorpusFacts:
    """The facts of a corpus; beyond ``most`` characters, those of the documents that ``seed`` draws."""
    kept, unused = _drawn(documents, seed, most)
    passages = [passage for document in kept for passage in passages_of(document)]
    titles: dict[str, list[int]] = defaultdict(list)
    owners: dict[str, set[str]] = defaultdict(set)
    for number, passage in enumerate(passages):
        name = plain_title(passage.title)
        titles[name].append(number)
        owners[name].add(passage.document)
    # A title that two documents have names neither of them, unless a link does.
    unique = {name: places for name, places in titles.items() if len(owners[name]) == 1 and _is_name(name)}
    shared = {name: places for name, places in titles.items() if len(owners[name]) > 1}
    openings: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name in sorted(unique, key=lambda each: (-len(each), each)):
        openings[_opening(_WORD.findall(name))].append(name)
    sentences = [list(_sentences(number, passage, openings)) for number, passage in enumerate(passages)]
    named: dict[str, list[int]] = defaultdict(list)
    for number, found in enumerate(sentences):
        for name in sorted({name for sentence in found for name in sentence.names()}):
            if len(named[name]) <= RARE:
                named[name].append(number)
    rare = {name: places for name, places in named.items() if len(places) <= RARE}
    return CorpusFacts(passages, sentences, unique, shared, rare, len(kept), unused)


def plain_title(title: str) -> str:
    """A title as texts mention it: without what is in parentheses at its end."""
    return re.sub(r"\s*\([^)]*\)$", "", title).strip()


def _drawn(documents: Iterable[Document], seed: int, most: int) -> tuple[list[Document], int]:
    """Documents in their order, of no more than ``most`` characters, and how many were left out."""
    heap: list[tuple[int, int, Document]] = []
    characters = unused = 0
    for place, document in enumerate(documents):
        heapq.heappush(heap, (-random_key(document.id, seed), place, document))
        characters += len(document.text)
        while characters > most and len(heap) > 1:
            characters -= len(heapq.heappop(heap)[2].text)
            unused += 1
    return [document for _, _, document in sorted(heap, key=lambda each: each[1])], unused


def _is_name(title: str) -> bool:
    words = _WORD.findall(title)
    return len(title) > 2 and bool(words) and title[0].isupper() and title not in _NO_NAMES and SEPARATOR not in title


def _sentences(number: int, passage: Passage, openings: Mapping[tuple[str, ...], Sequence[str]]) -> Iterator[Sentence]:
    own = plain_title(passage.title)
    least, most = SENTENCE_CHARACTERS
    for line in passage.text.split("\n"):
        for text in SENTENCE_END.split(line):
            if least <= len(text) <= most:
                yield Sentence(number, text, tuple(_spans(text, own, openings)))


def _spans(text: str, own: str, openings: Mapping[tuple[str, ...], Sequence[str]]) -> Iterator[Span]:
    """Spans that do not overlap, each text once; those of the document's own title are none."""
    taken: list[tuple[int, int]] = []
    seen = {own}
    for begin, end, kind in (*_titles(text, openings), *_matches(text)):
        if any(begin < other_end and other < end for other, other_end in taken):
            continue
        taken.append((begin, end))
        if text[begin:end] not in seen:
            seen.add(text[begin:end])
            yield Span(kind, text[begin:end])


def _titles(text: str, openings: Mapping[tuple[str, ...], Sequence[str]]) -> Iterator[tuple[int, int, Kind]]:
    words = [*_WORD.finditer(text)]
    for place, word in enumerate(words):
        following = _opening([each[0] for each in words[place : place + OPENING]])
        # Many titles may begin with one word: "The", "List", "Chapter".
        for title in (title for n in range(OPENING, 0, -1) for title in openings.get(following[:n], ())):
            end = word.start() + len(title)
            if text.startswith(title, word.start()) and not text[end : end + 1].isalnum():
                yield word.start(), end, "title"
                break


def _opening(words: Sequence[str]) -> tuple[str, ...]:
    """The first words of a title, or of a text that may name it; later ones without an ending as in “otters’”."""
    return tuple(words[:1]) + tuple(re.split("[’'-]", word)[0] for word in words[1:OPENING])


def _matches(text: str) -> Iterator[tuple[int, int, Kind]]:
    yield from ((found.start(), found.end(), "date") for found in _DATE.finditer(text))
    yield from ((found.start(), found.end(), "number") for found in _NUMBER.finditer(text))
    for found in _NAME.finditer(text):
        begin, words = found.start(), found[0].split()
        while words and words[0] in _NO_NAMES:
            begin = text.index(words[0], begin) + len(words.pop(0))
        # The first word of a sentence has a capital whatever it is.
        if not words or words[-1] in _NO_NAMES or (len(words) == 1 and not text[:begin].strip(" \"'([“")):
            continue
        yield text.index(words[0], begin), found.end(), "name"
