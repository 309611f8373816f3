"""A bijective mapping of words under which the names of an environment become others, in every text alike.

Names are mapped word by word: ``lend_book`` becomes ``advance_volume`` where "lend" becomes "advance" and "book"
"volume". So identifiers, sentences about them and data agree without any knowledge of how they hang together; inflected
forms follow their base form, capitals and a/an are kept right. After the renamed actions of AgentRefine
(arXiv:2501.01702) and the obfuscated planning domains of Valmeekam et al. (arXiv:2206.10498).
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from typing import Literal

import msgspec

from agentmill.schemas.ids import derive_seed
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import Lineage
from agentmill.schemas.records.trajectory import ApiAction
from agentmill.synthesis.generators.renaming.lexicon import article, base_of, forms, invented, lexicon

Style = Literal["words", "symbols"]
"""Other English words where there are any, or words that do not exist."""
Names = Literal["actions", "objects", "all"]
"""Which names: of what can be done, of things and their kinds, or of both and of how things can be."""

NOTE = "renaming"
"""The key of ``lineage.notes`` under which a renaming is kept."""

_WORD = r"[^\W\d_]+"
_WORDS = re.compile(_WORD)
_WITH_ARTICLE = re.compile(rf"(?:(?<!\w)(?P<article>an?|(?:^|(?<=[.!?:] )|(?<=\n))An?)(?P<gap>\s+))?(?P<word>{_WORD})")


class Renaming(msgspec.Struct, frozen=True, dict=True, forbid_unknown_fields=True, omit_defaults=True):
    """``words`` maps base forms, ``identifiers`` maps names that hold no word which could be mapped, such as ``?a``.

    ``kept`` are names that remain as they are, since they consist of words of grammar or are compared by their letters.
    """

    words: dict[str, str] = {}
    identifiers: dict[str, str] = {}
    kept: tuple[str, ...] = ()

    def text(self, text: str) -> str:
        """Every word of a text, an identifier or a path mapped, and an article before it made right."""
        return _WITH_ARTICLE.sub(self._replaced, text)

    def name(self, name: str) -> str:
        """An identifier mapped. Unlike ``text``, not for what an identifier might only look like."""
        return self.identifiers.get(name) or self.text(name)

    def value(self, value: object) -> object:
        """A JSON value with its texts mapped, keys included."""
        match value:
            case str():
                return self.text(value)
            case list():
                return [self.value(each) for each in value]
            case dict():
                return {self.text(str(key)): self.value(each) for key, each in value.items()}
        return value

    def inverse(self) -> Renaming:
        """What undoes this renaming, identifiers in texts included."""
        return Renaming({new: old for old, new in (*self.words.items(), *self.identifiers.items())})

    def with_kept(self, names: Iterable[str]) -> Renaming:
        """The renaming with those of ``names`` noted that it does not change."""
        kept = {name for name in names if self.name(name) == name and _WORDS.search(name)}
        return msgspec.structs.replace(self, kept=tuple(sorted({*self.kept, *kept})))

    def note(self) -> JsonObject:
        """The renaming as the JSON object that a lineage holds of it."""
        noted: JsonObject = msgspec.json.decode(msgspec.json.encode(self))
        return noted

    @cached_property
    def forms(self) -> dict[str, str]:
        """Every form of every word, mapped."""
        # Base forms first: "found" is a word of its own where both "find" and "found" are mapped.
        found = dict(self.words)
        for old, new in self.words.items():
            for one, other in zip(forms(old), forms(new), strict=True):
                found.setdefault(one, other)
        return found

    def _replaced(self, found: re.Match[str]) -> str:
        word = found["word"]
        new = self.forms.get(word.lower())
        # A letter alone is a variable or an article; "b1" is a name.
        if new is None or (len(word) == 1 and not found.string[found.end() : found.end() + 1].isdigit()):
            return found[0]
        new = new.upper() if word.isupper() and len(word) > 1 else new
        new = new[0].upper() + new[1:] if word[0].isupper() else new
        before = found["article"]
        if before is None or before.lower() != article(word):
            return found[0][: -len(word)] + new
        return before[0] + article(new)[1:] + found["gap"] + new


def words_of(names: Iterable[str]) -> set[str]:
    """The words of names and texts that can be mapped, in the case in which they are found."""
    kept = lexicon().kept
    return {
        found[0]
        for name in names
        for found in _WORDS.finditer(name)
        if found[0].lower() not in kept and (len(found[0]) > 1 or name[found.end() : found.end() + 1].isdigit())
    }


def rename_call(call: ApiAction, renaming: Renaming, fixed: Collection[str] = ()) -> ApiAction:
    """A call with its tool, its arguments and their texts mapped; a ``fixed`` tool keeps its names."""
    kept = call.function in fixed
    kwargs = {name if kept else renaming.name(name): renaming.value(value) for name, value in call.kwargs.items()}
    return msgspec.structs.replace(
        call, function=call.function if kept else renaming.name(call.function), kwargs=kwargs
    )


def action_words(names: Iterable[str], things: set[str]) -> set[str]:
    """The words of the names of actions without those of things, unless a name consists of such words only."""
    found: set[str] = set()
    for name in names:
        words = words_of([name])
        found |= words - things or words
    return found


def texts_in(value: object) -> Iterator[str]:
    """All texts of a JSON value, keys included."""
    match value:
        case str():
            yield value
        case list() | tuple():
            for each in value:
                yield from texts_in(each)
        case dict():
            yield from texts_in([*map(str, value), *value.values()])


def renaming_of(lineage: Lineage | None) -> Renaming:
    """The renaming that a lineage holds; an empty one where it holds none."""
    return msgspec.convert(lineage.notes.get(NOTE, {}) if lineage else {}, Renaming)


def chosen(
    words: Collection[str],
    style: Style,
    texts: Iterable[str],
    seed: int,
    *,
    identifiers: Collection[str] = (),
    base: Renaming = Renaming(),
) -> Renaming:
    """``base`` with ``words`` and ``identifiers`` mapped as well; no new name is a word of ``texts`` or another name.

    The same for the same arguments, whatever their order.
    """
    named = {word for word in words if word.lower() not in base.forms}
    lower = {word for word in named if word == word.lower()}
    common = {base_of(word) for word in lower}
    bases = sorted(common | {base_of(word.lower()) for word in named})
    taken = {word.lower() for text in texts for word in _WORDS.findall(text)} | {*base.forms, *base.forms.values()}
    taken |= {form for word in bases for form in forms(word)}
    chance = random.Random(derive_seed("rename", style, seed))
    endless = invented(chance)
    neutral = chance.sample(lexicon().neutral, len(lexicon().neutral)) if style == "words" else []

    def fits(word: str) -> bool:
        return len(set(forms(word))) == len(forms(word)) and taken.isdisjoint(forms(word))

    def fresh(synonyms: list[str], *, proper: bool = False) -> str:
        # A chain, since `yield from` would close the endless one when it is left.
        new = next(filter(fits, itertools.chain(synonyms, [] if proper else neutral, endless)))
        taken.update(forms(new))
        return new

    mapped = dict(base.words)
    for word in bases:
        known = sorted(lexicon().synonyms.get(word, ())) if style == "words" else []
        mapped[word] = fresh(chance.sample(known, len(known)), proper=word not in common)
    single = {name: fresh([]) for name in sorted(identifiers) if name not in base.identifiers}
    return Renaming(mapped, {**base.identifiers, **single}, base.kept)
