"""What a model answers when it is asked for an environment: a domain, an example problem, and texts as JSON."""

from __future__ import annotations

import json
import re

import msgspec

from agentmill.schemas.records.record import JsonObject


class Malformed(Exception):
    """The answer lacks a part; the message says to its author which."""


class Answer(msgspec.Struct, frozen=True):
    """The three parts. ``domain_name`` as the domain says it, lower case."""

    domain_name: str
    domain: str
    problem: str
    texts: JsonObject


def read_answer(text: str) -> Answer:
    """The parts, wherever they are in ``text`` and whatever is around them. Raises ``Malformed``."""
    domain = _expression(text, "domain")
    problem = _expression(text, "problem")
    found = re.search(r"\(\s*domain\s+([^\s()]+)", domain, re.IGNORECASE)
    if found is None:
        raise Malformed("the domain has no name; expected (define (domain NAME) ...)")
    # Comments in PDDL may hold braces, which would be taken for the JSON object.
    rest = text.replace(domain, "").replace(problem, "")
    return Answer(found[1].lower(), domain, problem, _texts(rest))


def _expression(text: str, kind: str) -> str:
    start = re.search(rf"\(\s*define\s*\(\s*{kind}\b", text, re.IGNORECASE)
    if start is None:
        raise Malformed(f"there is no {kind}; expected (define ({kind} NAME) ...)")
    depth = 0
    # Comments are matched as a whole, so brackets in them do not count.
    for bracket in re.finditer(r"[()]|;[^\n]*", text[start.start() :]):
        depth += {"(": 1, ")": -1}.get(bracket[0], 0)
        if depth == 0:
            return text[start.start() : start.start() + bracket.end()]
    raise Malformed(f"the {kind} does not end: {depth} closing bracket(s) are missing")


def _texts(text: str) -> JsonObject:
    start = text.find("{")
    if start < 0:
        raise Malformed('there is no JSON object with "predicate_text", "action_text" and "rules"')
    try:
        texts, _ = json.JSONDecoder().raw_decode(text[start:])
        # Half of a surrogate pair is JSON, and can be in no table.
        msgspec.json.encode(texts)
    except json.JSONDecodeError as error:
        raise Malformed(f"the JSON object cannot be read: {error.msg} at its line {error.lineno}") from error
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the JSON object cannot be read: {error}") from error
    unknown = sorted(set(texts) - {"predicate_text", "action_text", "rules"})
    missing = sorted({"predicate_text", "action_text"} - set(texts))
    if unknown or missing:
        raise Malformed(f"the JSON object lacks the keys {missing} and has the unknown keys {unknown}")
    return dict(texts)
