"""JSON objects in what models write: with thoughts, quoted calls and code fences around them."""

from __future__ import annotations

import json
from typing import Any

STARTS = 100
"""Places where a text is tried; a text full of braces would take long."""


def objects_in(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The objects in a text, in their order, each as it is written and as it reads; not those inside of others.

    Nothing is read of one that breaks off, nor of one with half characters, which no table can hold.
    """
    found: list[tuple[str, dict[str, Any]]] = []
    decoder, start = json.JSONDecoder(), text.find("{")
    for _ in range(STARTS):
        if start < 0:
            break
        try:
            value, end = decoder.raw_decode(text, start)
            json.dumps(value, ensure_ascii=False).encode()
            found.append((text[start:end], value))
        except json.JSONDecodeError as error:
            if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated"):
                break
            end = start + 1
        except UnicodeEncodeError:  # half a character: the object is left out
            pass
        except (ValueError, RecursionError):  # a number of thousands of digits, or nested too deeply
            break
        start = text.find("{", end)
    return found
