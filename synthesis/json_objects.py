"""JSON objects in what models write: with thoughts, quoted calls and code fences around them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any, NamedTuple

START = re.compile(r'\{(?=\s*["}])')
"""Where an object may begin: code and formulas are full of other braces."""

MOST_READ = 20
"""How often a text may be read over, in vain, in search of its objects; what is behind that is not read."""


class WrittenObject(NamedTuple):
    """An object as it is written, and as it reads; without a value where it breaks off, or cannot be kept."""

    text: str
    value: dict[str, Any] | None


def objects_in(text: str) -> list[WrittenObject]:
    """The objects in a text, in their order; not those inside of others.

    One that breaks off, has a number of thousands of digits or is nested too deeply is the last, with all the text
    behind it. Half characters, which no table can hold, cost an object its value.
    """
    found: list[WrittenObject] = []
    decoder, whole, read = json.JSONDecoder(), len(text.rstrip()), 0
    start = START.search(text)
    while start is not None:
        begin = start.start()
        try:
            value, end = decoder.raw_decode(text, begin)
            json.dumps(value, ensure_ascii=False).encode()
            found.append(WrittenObject(text[begin:end], value))
        except json.JSONDecodeError as error:
            read += error.pos - begin
            if error.pos >= whole or error.msg.startswith("Unterminated") or read > MOST_READ * len(text):
                return [*found, WrittenObject(text[begin:], None)]
            end = begin + 1
        except UnicodeEncodeError:
            found.append(WrittenObject(text[begin:end], None))
        except (ValueError, RecursionError):
            return [*found, WrittenObject(text[begin:], None)]
        start = START.search(text, end)
    return found


def answer_in(text: str, fields: Collection[str]) -> WrittenObject | None:
    """The last object in a text that has one of the ``fields`` of an answer; ``None`` if there is none.

    No other takes its place where it cannot be used: that may be a draft, or quoted from what the answer is about.
    """
    for written, value in reversed(objects_in(text)):
        if any(f'"{name}"' in written if value is None else name in value for name in fields):
            return WrittenObject(written, value)
    return None
