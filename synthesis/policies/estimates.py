"""Requests before they are answered: what one may cost, which are of one kind, and the shortest of its kind."""

from __future__ import annotations

import msgspec

from schemas.record import JsonObject
from schemas.trajectory import Usage
from synthesis.policies.completion import TOKEN_LIMITS

LETTERS_PER_TOKEN = 4
DEFAULT_MAX_TOKENS = 256
"""What an answer is reckoned at, before it is there, where ``sampling`` sets no limit."""

NOTHING: JsonObject = {
    "type": "function",
    "function": {"name": "nothing", "description": "Do nothing.", "parameters": {"type": "object", "properties": {}}},
}
"""The tool of a request that is to tell whether tools are taken at all."""


def estimate(body: JsonObject) -> Usage:
    """About what a request will cost: the tokens of its letters, and as long an answer as it may have."""
    letters = len(msgspec.json.encode([body["messages"], body.get("tools")]))
    limits = [int(body[name]) for name in TOKEN_LIMITS if body.get(name) is not None]
    answer_tokens = max(limits, default=DEFAULT_MAX_TOKENS)
    return Usage(prompt_tokens=letters // LETTERS_PER_TOKEN, completion_tokens=answer_tokens)


def kind_of(body: JsonObject) -> bytes:
    """Equal for requests that differ in nothing but the conversation and what its tools are."""
    of_the_turn = ("messages", "tools", "seed", "structured_outputs")
    parameters = {name: value for name, value in body.items() if name not in of_the_turn}
    return msgspec.json.encode([parameters, [name in body for name in of_the_turn]], order="sorted")


def short_request(body: JsonObject) -> JsonObject:
    """One word in the place of a conversation, and one token of answer."""
    limit = next((name for name in TOKEN_LIMITS if name in body), TOKEN_LIMITS[0])
    return {"model": body["model"], "messages": [{"role": "user", "content": "Hi"}], limit: 1}


def same_parameters(body: JsonObject) -> JsonObject:
    """One word in the place of a conversation, with the parameters of ``body`` and a tool if it has any."""
    system = [{**message, "content": "Be brief."} for message in body["messages"][:1] if message["role"] == "system"]
    tools = {"tools": [NOTHING]} if "tools" in body else {}
    return {**body, "messages": [*system, {"role": "user", "content": "Hi"}], **tools}


def completed(usage: Usage, expected: Usage) -> tuple[Usage, bool]:
    """``usage`` with what the server did not count as ``expected``, and whether there was such."""
    prompt, answer = usage.prompt_tokens, usage.completion_tokens
    if not prompt and not answer:
        return expected, True
    filled = msgspec.structs.replace(
        usage,
        prompt_tokens=expected.prompt_tokens if prompt is None else prompt,
        completion_tokens=expected.completion_tokens if answer is None else answer,
    )
    return filled, prompt is None or answer is None
