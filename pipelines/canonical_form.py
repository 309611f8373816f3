"""Instructions and actions with their names replaced, so that a consistent renaming changes nothing.

Names are the arguments of actions, quoted texts, words with a digit, and words with a capital letter inside of a
sentence; neighbouring names are one. Numbers are names, too, unless they are to be kept. An instruction becomes a
sequence of words and placeholders. Of actions each run has placeholders of its own, numbered by first appearance
(alpha-equivalence): ``move(from=hall, to=attic), take(item=key, place=attic)`` is ``move(1, 2), take(3, 2)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from xxhash import xxh3_64_intdigest

from agentmill.pipelines.duplicates import MARKS, words_of
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, CodeAction, MessageAction

NAME = "\x00"
"""The placeholder of a name in an instruction."""

COMMAND_WORDS = 12
"""A message of more words is a text, and no command with arguments."""

CODE_WORDS = 200
"""Longer code is compared as a whole."""

NAME_WORDS = 6
"""An argument of more words is a text, and no name."""

_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are at by down for from in into is it me my of off on onto or over the to under up with you your",
    )
)
"""Words of commands that are no arguments."""

_QUOTED = re.compile(r'"[^"\n]{1,200}"|“[^”\n]{1,200}”|`[^`\n]{1,200}`|(?<!\w)\'[^\'\n]{1,200}\'(?!\w)')
_TOKEN = re.compile(rf"{NAME}|\w[\w{MARKS}]*(?:[-./:@]\w[\w{MARKS}]*)*")
_CODE = re.compile(rf"[\w{MARKS}./~-]+")
_NUMBER = re.compile(r"[-+]?\d[\d.,]*")
_SENTENCE_END = frozenset(".!?:;\n")


class Act(msgspec.Struct, frozen=True):
    """An action as it is compared: the tool, or first word, and its arguments as texts without case.

    ``call`` is true for a tool call, whose arguments are in the order of their names.
    """

    head: str
    values: tuple[str, ...]
    call: bool

    def exact(self) -> int:
        """A hash that is equal for equal actions."""
        return hash_of((self.call, self.head, self.values))

    def loose(self) -> list[int]:
        """Hashes of the arguments in any order, which a call and a command that do the same share.

        A command may have one word more, such as ``let anna open door1`` for ``open(worker=anna, door=door1)``.
        """
        values = sorted(self.values)
        fewer = [] if self.call else [values[:place] + values[place + 1 :] for place in range(len(values))]
        return [hash_of(each) for each in (values, *fewer) if each]

    def __str__(self) -> str:
        return f"{self.head}({', '.join(self.values)})"


def act_of(action: AnyAction) -> Act:
    """An action as it is compared, without thought and place."""
    if isinstance(action, ApiAction):
        given = action.raw_arguments if action.raw_arguments is not None else action.kwargs
        return Act(action.function.casefold(), tuple(filter(None, _leaves(given))), call=True)
    text, most, token = action.content, COMMAND_WORDS, _TOKEN
    if isinstance(action, CodeAction):
        most, token = CODE_WORDS, _CODE
    words = [word.casefold() for word in token.findall(text)]
    if not words or len(words) > most:
        return Act("", (" ".join(text.casefold().split()),) if words else (), call=False)
    return Act(words[0], tuple(word for word in words[1:] if word not in _FUNCTION_WORDS), call=False)


def texts_in(action: AnyAction) -> list[str]:
    """The texts of an action: its message, its code, or those of its arguments."""
    if isinstance(action, MessageAction | CodeAction):
        return [action.content]
    return [action.raw_arguments] if action.raw_arguments is not None else list(_leaves(action.kwargs))


def names_in(acts: Iterable[Act]) -> frozenset[tuple[str, ...]]:
    """The arguments of actions that may be names in an instruction, each as its words."""
    found = (tuple(_TOKEN.findall(value)) for act in acts for value in act.values)
    return frozenset(words for words in found if 0 < len(words) <= NAME_WORDS)


def labels_in(text: str) -> set[str]:
    """Quoted texts and words with a digit, without case: the names that no wording of a text changes."""
    quoted = {found[1:-1].casefold() for found in _QUOTED.findall(text)}
    words = (word.casefold() for word in _TOKEN.findall(_QUOTED.sub(" ", text)))
    return quoted | {word for word in words if any(map(str.isdigit, word))}


def pieces_of(text: str, names: frozenset[tuple[str, ...]], keep_numbers: bool) -> list[tuple[str, str]]:
    """The words of a text without case, each with what it replaces: ``NAME`` for a name, of one word or of several."""
    quoted: list[str] = []

    def note(found: re.Match[str]) -> str:
        quoted.append(found[0][1:-1].casefold())
        return f" {NAME} "

    text = _QUOTED.sub(note, text.replace(NAME, " "))
    tokens = [(found[0], _starts(text, found.start())) for found in _TOKEN.finditer(text)]
    lower = [token.casefold() for token, _ in tokens]
    longest = max(map(len, names), default=0)
    pieces: list[tuple[str, str]] = []
    place, guessed, quotes = 0, False, iter(quoted)
    while place < len(tokens):
        sizes = range(min(longest, len(tokens) - place), 0, -1)
        size = next((size for size in sizes if tuple(lower[place : place + size]) in names), 0)
        (token, starts), word = tokens[place], " ".join(lower[place : place + max(1, size)])
        number, before = _NUMBER.fullmatch(token) is not None, guessed
        guessed = not size and not number and token != NAME and _looks_like_a_name(token, starts)
        if number and keep_numbers:
            pieces.append((token, token))
        elif guessed and before:
            # First name and surname are one name.
            pieces[-1] = (NAME, f"{pieces[-1][1]} {word}")
        elif size or number or guessed or token == NAME:
            pieces.append((NAME, next(quotes) if token == NAME else word))
        else:
            pieces.append((word, word))
        place += max(1, size)
    return pieces


def form_of(text: str, names: frozenset[tuple[str, ...]], keep_numbers: bool) -> list[str]:
    """The words of an instruction without case, with ``NAME`` for each name, or for several next to each other."""
    words = [word for word, _ in pieces_of(text, names, keep_numbers)]
    return [word for place, word in enumerate(words) if word != NAME or words[place - 1 : place] != [NAME]]


def moves_of(acts: Sequence[Act], size: int, keep_numbers: bool, known: Mapping[str, int] | None = None) -> list[int]:
    """A hash of each run of ``size`` actions with names replaced; of fewer actions, of all of them.

    Names of ``known`` have these numbers, and the others are numbered in each run.
    """
    windows = range(max(1, len(acts) - size + 1)) if acts else ()
    return [hash_of(list(_renamed(acts[start : start + size], keep_numbers, known or {}))) for start in windows]


def _renamed(
    acts: Sequence[Act], keep_numbers: bool, known: Mapping[str, int]
) -> Iterator[tuple[str, list[int | str]]]:
    numbers = dict(known)
    for act in acts:
        yield (
            act.head,
            [
                value if keep_numbers and _NUMBER.fullmatch(value) else numbers.setdefault(value, len(numbers))
                for value in act.values
            ],
        )


def _looks_like_a_name(token: str, starts_sentence: bool) -> bool:
    return (
        token == NAME or any(map(str.isdigit, token)) or (token[0].isupper() and token != "I" and not starts_sentence)
    )


def _starts(text: str, place: int) -> bool:
    """Whether the word at ``place`` is the first of a sentence, where a capital letter means nothing."""
    before = text[max(0, place - 8) : place].rstrip(" \t\"'([*-")
    return not before or before[-1] in _SENTENCE_END


def _leaves(value: Any) -> Iterator[str]:
    """The values in arguments as texts, in the order of their names."""
    if isinstance(value, dict):
        for key in sorted(value):
            yield from _leaves(value[key])
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(each)
    elif isinstance(value, str):
        yield " ".join(value.casefold().split())
    elif isinstance(value, float) and value.is_integer():
        yield str(int(value))
    else:
        yield msgspec.json.encode(value).decode()


def hash_of(value: Any) -> int:
    """A hash of a value by how it is written."""
    # A file of a benchmark may hold half a surrogate pair, which JSON cannot say.
    return xxh3_64_intdigest(repr(value).encode(errors="surrogatepass"))


def text_key(texts: Iterable[str]) -> int:
    """A hash of the words of texts, without case and punctuation."""
    return xxh3_64_intdigest(b" ".join(words_of(texts)))
