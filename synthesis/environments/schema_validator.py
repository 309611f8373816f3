"""JSON Schemas of foreign data sets and models, as a validator whose patterns are matched in linear time.

Python's ``re`` may take for ever for a pattern such as ``^([a-z]+)+$``, and no time limit ends it. RE2, which takes
time linear in the text, matches them here; a pattern that it does not know (one that looks around) is not checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import pyarrow as pa
import pyarrow.compute as pc
from jsonschema.validators import extend

Found = Iterator[jsonschema.ValidationError]
_BASE = jsonschema.Draft202012Validator
_PATTERNS = "patternProperties"


def _matches(pattern: str, text: str) -> bool:
    try:
        return bool(pc.match_substring_regex(pa.array([text], pa.string()), pattern)[0].as_py())
    except (pa.ArrowInvalid, UnicodeEncodeError):
        return True


def _pattern(validator: Any, pattern: Any, value: Any, schema: Any) -> Found:  # noqa: ARG001 - as jsonschema calls it
    if isinstance(value, str) and isinstance(pattern, str) and not _matches(pattern, value):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, value: Any, schema: Any) -> Found:  # noqa: ARG001
    for pattern, inner in patterns.items() if isinstance(value, dict) else ():
        for name in filter(lambda name: _matches(pattern, name), value):
            yield from validator.descend(value[name], inner, path=name, schema_path=pattern)


def _additional(validator: Any, given: Any, value: Any, schema: Any) -> Found:
    # It would match names with ``re``.
    if _PATTERNS not in schema:
        yield from _BASE.VALIDATORS["additionalProperties"](validator, given, value, schema) or ()


def _unevaluated(validator: Any, given: Any, value: Any, schema: Any) -> Found:
    # It would do so by the schemas that this one is made of, wherever they are.
    if not any(word in repr(schema) for word in (_PATTERNS, "$ref", "$dynamicRef")):
        yield from _BASE.VALIDATORS["unevaluatedProperties"](validator, given, value, schema) or ()


Validator = extend(
    _BASE,
    {
        "pattern": _pattern,
        _PATTERNS: _pattern_properties,
        "additionalProperties": _additional,
        "unevaluatedProperties": _unevaluated,
    },
)
"""As ``jsonschema.Draft202012Validator``; where names have patterns, it does not check that there are no others."""
