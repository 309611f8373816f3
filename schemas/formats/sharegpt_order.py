"""The order of turns that LLaMA-Factory trains on; it skips a row that has another."""

from __future__ import annotations

from schemas.formats.format import FormatError
from schemas.formats.sharegpt_turns import KINDS, Names
from schemas.record import JsonObject

_ASKING = ("user", "tool")
_ANSWERING = ("assistant", "function_call")


def alternating(turns: list[JsonObject], names: Names) -> list[JsonObject]:
    """``turns`` as a system turn, then by turns what is said to the model and what it says, to its last answer.

    Neighbours of one kind that are said to the model become one turn. Raises ``FormatError``: ``text_beside_call`` for
    a text and a call in one turn of the model, ``turn_order`` for anything else out of order, ``no_answer``.
    """
    result: list[JsonObject] = []
    kinds: list[str] = []
    for turn in turns:
        kind = KINDS[turn[names.speaker]]
        if not result and kind == "system":
            result, kinds = [turn], [kind]
        elif kinds and kind == kinds[-1] and kind in _ASKING:
            result[-1] = _joined(result[-1], turn, names)
        else:
            _check(kinds[-1] if kinds else "system", kind)
            result.append(turn)
            kinds.append(kind)
    while kinds and kinds[-1] in _ASKING:
        kinds.pop()
    if not kinds or kinds == ["system"]:
        raise FormatError("no_answer", "the model says nothing")
    return result[: len(kinds)]


def _check(before: str, kind: str) -> None:
    if before in _ANSWERING and kind in _ANSWERING:
        text = {before, kind} == set(_ANSWERING)
        raise FormatError(*(_TEXT if text else ("turn_order", "two answers of the model follow each other")))
    wanted = _ASKING if before not in _ASKING else _ANSWERING
    if kind not in wanted:
        raise FormatError("turn_order", f"after a turn of kind {before} follows one of kind {kind}")


_TEXT = ("text_beside_call", "a text and a call follow each other; the dialect hermes can say both in one turn")


def _joined(first: JsonObject, second: JsonObject, names: Names) -> JsonObject:
    texts = (first.get(names.text), second.get(names.text))
    if not all(isinstance(text, str) for text in texts):
        raise FormatError("turn_order", "two turns of one side follow each other, and they are no texts to be joined")
    return {**first, names.text: "\n".join(map(str, texts))}
