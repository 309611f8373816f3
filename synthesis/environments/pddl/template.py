"""Text templates with numbered places: ``"move {0} to {1}"``."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PLACE = re.compile(r"\{(0|[1-9][0-9]*)\}")


class Template:
    """A template of ``arity`` places. Raises ``ValueError`` for a place beyond them or for braces of another kind."""

    def __init__(self, text: str, arity: int) -> None:
        self.text = " ".join(text.split())
        pieces = _PLACE.split(self.text)
        self.places = frozenset(int(number) for number in pieces[1::2])
        if self.places and max(self.places) >= arity:
            raise ValueError(f"{text!r} has a place {{{max(self.places)}}}, but there are {arity} argument(s)")
        if any("{" in piece or "}" in piece for piece in pieces[::2]):
            raise ValueError(f"{text!r} has braces that are no place like {{0}}")
        seen: set[str] = set()
        pattern = ""
        for literal, number in zip(pieces[::2], [*pieces[1::2], ""], strict=True):
            named = f"(?P=_{number})" if number in seen else f"(?P<_{number}>\\S+)"
            pattern += re.escape(literal) + (named if number else "")
            seen.add(number)
        self._pattern = re.compile(pattern, re.IGNORECASE)

    def fill(self, words: Sequence[str]) -> str:
        """The text with ``words`` in its places."""
        return _PLACE.sub(lambda place: words[int(place[1])], self.text)

    def match(self, text: str) -> tuple[str, ...] | None:
        """The lower-case words in the places, by number, or ``None``; each must be a single word."""
        found = self._pattern.fullmatch(text)
        return tuple(found[f"_{number}"].lower() for number in sorted(self.places)) if found else None


def negated(sentence: str) -> str:
    """A plain English sentence denied at the first verb of a small set; where none is in it, denied as a whole."""
    found = [(sentence.index(verb), verb) for verb in _DENIALS if verb in sentence]
    if not found:
        return f"it is not so that {sentence}"
    place, verb = min(found)
    return sentence[:place] + _DENIALS[verb] + sentence[place + len(verb) :]


_DENIALS = {
    **{f" {verb} ": f" {verb} not " for verb in ("is", "are", "was", "were", "will")},
    " can ": " cannot ",
    " has ": " does not have ",
    "you have ": "you do not have ",
    "you hold ": "you do not hold ",
    **{
        f" {verb}s ": f" does not {verb} "
        for verb in ("hold", "lead", "need", "fit", "open", "know", "contain", "take", "connect", "belong", "own")
    },
    " carries ": " does not carry ",
}
