"""English words for renaming: which words are names at all, their forms, and what they can be called instead."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from functools import cache

import msgspec

from agentmill.synthesis.generators.data_files import convert, read_table

_SHORT = re.compile(r"[^aeiou]*[aeiou][^aeiouwxy]")
"""Words of one syllable that double their last letter before -ed and -ing."""
_STARTS, _MIDDLES, _ENDS = "bdfgklmnprtvz", "dklmnrtz", "xzvq"
"""Consonants of invented words. No English word ends as they do."""
_VOWELS = "aiou"
_PER_LENGTH = 5_000
"""So many invented words are drawn before they become a syllable longer."""
_SOUNDS_LIKE_YOU = ("uni", "use", "usa", "eu")


class _Grammar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kept: str
    irregular: dict[str, str]


class _Synonyms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    neutral: str
    words: dict[str, str]


class Lexicon(msgspec.Struct, frozen=True):
    """``kept`` are words that are never renamed, ``synonyms`` replacements by base form, ``neutral`` names for what has
    no synonym, ``irregular`` the forms of irregular words, ``bases`` the base form of every form of a listed word."""

    kept: frozenset[str]
    synonyms: dict[str, tuple[str, ...]]
    neutral: tuple[str, ...]
    irregular: dict[str, tuple[str, ...]]
    bases: dict[str, str]


@cache
def lexicon() -> Lexicon:
    """The words of the data files. Raises ``UserError`` for files that are malformed."""
    grammar = convert(read_table(__package__, "grammar.yaml"), _Grammar, f"{__package__}/data/grammar.yaml")
    listed = convert(read_table(__package__, "synonyms.yaml"), _Synonyms, f"{__package__}/data/synonyms.yaml")
    irregular = {base: (base, *forms.split()) for base, forms in grammar.irregular.items()}
    known = [*listed.words, *(base for base in irregular if base not in listed.words)]
    bases = {base: base for base in known}
    for base in known:
        for form in irregular.get(base) or _regular(base):
            bases.setdefault(form, base)
    return Lexicon(
        kept=frozenset(grammar.kept.split()),
        synonyms={base: tuple(words.split()) for base, words in listed.words.items()},
        neutral=tuple(listed.neutral.split()),
        irregular=irregular,
        bases=bases,
    )


def forms(base: str) -> tuple[str, ...]:
    """The base form of a word, then its forms with -s, -ed and -ing; of a word that is none of these, harmless ones."""
    return lexicon().irregular.get(base) or _regular(base)


def base_of(word: str) -> str:
    """The base form of a lower-case word: as listed, else without the -s of a plural, else the word itself."""
    listed = lexicon().bases.get(word)
    if listed is not None:
        return listed
    if word.endswith(("ss", "us", "is")) or not word.endswith("s") or len(word) < 4:
        return word
    guesses = [f"{word[:-3]}y"] if word.endswith("ies") else []
    with_e = word.endswith(("ses", "zes")) and not word.endswith("sses")
    guesses += [word[:-1], word[:-2]] if with_e else [word[:-2], word[:-1]]
    return next((guess for guess in guesses if _regular(guess)[1] == word), word)


def invented(chance: random.Random) -> Iterator[str]:
    """Words that do not exist, without end, in an order that ``chance`` decides; some may come twice."""
    for number in itertools.count():
        # There are 6,656 of two syllables, and data may hold more words than that.
        longer = (_MIDDLES, _VOWELS) * (1 + number // _PER_LENGTH)
        yield "".join(chance.choice(letters) for letters in (_STARTS, _VOWELS, *longer, _ENDS))


def all_invented() -> Iterator[str]:
    """Every word of two syllables that ``invented`` may give."""
    return map("".join, itertools.product(_STARTS, _VOWELS, _MIDDLES, _VOWELS, _ENDS))


def article(word: str) -> str:
    """``a`` or ``an``, by the first letters of ``word``."""
    word = word.lower()
    return "an" if word[:1] in tuple("aeiou") and not word.startswith(_SOUNDS_LIKE_YOU) else "a"


def _regular(base: str) -> tuple[str, ...]:
    after_consonant = base.endswith("y") and base[-2:-1] not in tuple("aeiou")
    if after_consonant:
        return base, f"{base[:-1]}ies", f"{base[:-1]}ied", f"{base}ing"
    plural = f"{base}es" if base.endswith(("s", "x", "z", "ch", "sh")) else f"{base}s"
    if base.endswith("e"):
        return base, plural, f"{base}d", f"{base}ing" if base.endswith("ee") else f"{base[:-1]}ing"
    stem = base + base[-1] if _SHORT.fullmatch(base) else base
    return base, plural, f"{stem}ed", f"{stem}ing"
