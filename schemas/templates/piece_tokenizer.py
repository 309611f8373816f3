"""Pieces of a text as tokens, for tokenizers that put a space before each text that they get (Llama 2, Phi-3, Mistral).

A conversation is tokenised a piece at a time. A piece within it gets the space only where the tokenizer puts one within
the whole: some do so behind a special token. Elsewhere the model would be trained on a space that it never sees.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Tokens = tuple[list[int], list[tuple[int, int]]]
"""Ids, and where each begins and ends in its text, in characters."""

PROBE = "0"
"""No tokenizer changes its case or its accents."""


class PieceTokenizer:
    """Tokenises pieces of a text as ``tokenizer`` tokenises them within the text.

    Raises ``UserError`` where the tokenizer puts the space in a way that cannot be switched off.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        # Copies, since options of a tokenizer hold for all who use it.
        text = _serialized(tokenizer)
        self._whole, self._spaceless = _loaded(text), _loaded(_without_space(text))
        self._splitting = _loaded(_without_space(text))
        self._splitting.encode_special_tokens = True
        _check(self._whole, self._spaceless)
        added = self._whole.get_added_tokens_decoder()
        # Where one token ends as another one does, the longer is the one that is there.
        longest = sorted(added.items(), key=lambda item: -len(item[1].content))
        self._added = [(token.content, token.rstrip, number) for number, token in longest]

    def encode(self, piece: str, before: str = "") -> Tokens:
        """The tokens of ``piece``; ``before`` is the piece before it, empty at the start of the text."""
        if not before:
            return _tokens(self._whole, piece)
        added = self._ending(before)
        if added is not None:
            opening, number = added
            ids, places = _tokens(self._whole, opening + piece)
            # Some added tokens are not recognized before the space is put, or not before any text.
            if ids[:1] == [number]:
                shift = len(opening)
                return ids[1:], [(max(start - shift, 0), max(end - shift, 0)) for start, end in places[1:]]
        return _tokens(self._spaceless, piece)

    def split(self, text: str) -> list[int]:
        """The tokens of ``text`` within a text, with special tokens split, too."""
        return _tokens(self._splitting, text)[0]

    def _ending(self, text: str) -> tuple[str, int] | None:
        """The added token with which a text ends, and its id; the white space that it takes counts with it."""
        for content, takes_space, number in self._added:
            if (text.rstrip() if takes_space else text).endswith(content):
                return content, number
        return None


def puts_space(tokenizer: Tokenizer) -> bool:
    """Whether ``tokenizer`` puts a space, or anything else, before a text."""
    return not _shown(tokenizer, PROBE).startswith(PROBE)


def _shown(tokenizer: Tokenizer, text: str) -> str:
    """The text as it comes to the vocabulary."""
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    if tokenizer.pre_tokenizer is None:
        return text
    return "".join(part for part, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))


def _check(whole: Tokenizer, spaceless: Tokenizer) -> None:
    """Raises ``UserError`` unless ``spaceless`` differs from ``whole`` in the space before a text alone."""
    space = _shown(whole, PROBE).removesuffix(_shown(spaceless, PROBE))
    text = f"{PROBE} {PROBE}\n{PROBE}"
    if puts_space(spaceless) or _shown(whole, text) != space + _shown(spaceless, text):
        raise _unfit()


def _unfit() -> UserError:
    return UserError(
        "the tokenizer puts a space before each text that it gets, in a way that cannot be switched off, so that the"
        " parts of a conversation would have tokens that the model never sees; take another model",
        ErrorCode.TOKENIZER_UNFIT,
    )


def _serialized(tokenizer: Tokenizer) -> str:
    try:
        return str(tokenizer.to_str())
    # The library has no class of its own for parts that are written in Python.
    except Exception as error:
        raise _unfit() from error


def _loaded(text: str) -> Tokenizer:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _without_space(serialized: str) -> str:
    """A serialized tokenizer without the steps that put a space before a text."""
    parts: dict[str, Any] = json.loads(serialized)
    steps = {name: _spaceless_step(parts[name]) for name in ("normalizer", "pre_tokenizer")}
    return json.dumps({**parts, **steps})


def _spaceless_step(step: dict[str, Any] | None) -> dict[str, Any] | None:
    kind = step["type"] if step else None
    if step is None or kind == "Prepend":
        return None
    if kind == "Metaspace":
        return {**step, "prepend_scheme": "never"}
    if kind == "ByteLevel":
        return {**step, "add_prefix_space": False}
    for name in ("normalizers", "pretokenizers"):
        if name in step:
            return {**step, name: [each for each in map(_spaceless_step, step[name]) if each is not None]}
    return step


def _tokens(tokenizer: Tokenizer, text: str) -> Tokens:
    encoding = tokenizer.encode(text, add_special_tokens=False)
    return list(encoding.ids), list(encoding.offsets)
