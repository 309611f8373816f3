"""What the simulated server says: a pure function of the request, so that every run of it is the same run.

A token is a word, and its id a checksum; a prompt is its messages one after the other, so that each prompt of an
episode extends the tokens of the turn before it. The length of an answer is drawn from a log-normal distribution, and
with it the time that it takes: ``prefill_ms`` and ``token_ms`` for each token.
"""

from __future__ import annotations

import math
import random
import zlib
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal

import msgspec

MODEL = "simulated"
END = "</>"
VOCABULARY = 50_000
LOGPROB = -0.25

Fault = Literal["malformed", "hang", "busy"]


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """How a server behaves. Rates are shares of the requests; which ones they hit, ``seed`` and the request decide.

    ``slots`` answers are made at once. An answer is some filler and one of ``words``, about ``tokens`` long (the mean
    of a log-normal distribution with ``spread``). ``malformed`` answers are cut off, ``hang`` ones never come, ``busy``
    ones are refused with 429 and ``Retry-After``; of the malformed the share ``stubborn`` stays so however often it is
    asked. A prompt above ``context`` tokens is refused. After ``holds_after`` answers none comes any more. The server
    kills itself ``lifetime_s`` after it began to serve.
    """

    slots: int = 64
    words: tuple[str, ...] = ("left", "right")
    tokens: float = 40.0
    spread: float = 1.0
    prefill_ms: float = 0.0
    token_ms: float = 0.0
    seed: int = 0
    malformed: float = 0.0
    stubborn: float = 0.5
    hang: float = 0.0
    busy: float = 0.0
    context: int = 1_000_000
    holds_after: int | None = None
    lifetime_s: float | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a request gets: a status and a body, after ``service_s`` in a slot; or a ``fault`` in its place.

    A ``stubborn`` fault comes each time that the request does, any other the first time only.
    """

    status: int
    body: bytes
    service_s: float = 0.0
    fault: Fault | None = None
    stubborn: bool = False


def answer(behaviour: Behaviour, request: dict[str, Any]) -> Answer:
    """The answer to a chat completion request."""
    prompt = prompt_ids(request["messages"])
    if len(prompt) > behaviour.context:
        limit = f"This model's maximum context length is {behaviour.context} tokens."
        said = f"{limit} However, your prompt contains {len(prompt)} input tokens."
        return Answer(status=400, body=error(said, 400))
    chance = random.Random(identity(behaviour, request))
    fault = _fault(behaviour, chance.random())
    stubborn = fault == "malformed" and chance.random() < behaviour.stubborn
    words = _words(behaviour, request, chance)
    seconds = (behaviour.prefill_ms + behaviour.token_ms * (len(words) + 1)) / 1000
    body = completion(request, prompt, words)
    return Answer(status=200, body=body, service_s=seconds, fault=fault, stubborn=stubborn)


def identity(behaviour: Behaviour, request: dict[str, Any]) -> int:
    """A number for the request: equal for equal messages, seeds and choices."""
    what = [behaviour.seed, request["messages"], request.get("seed"), request.get("structured_outputs")]
    return int.from_bytes(blake2b(msgspec.json.encode(what), digest_size=8).digest(), "big")


def prompt_ids(messages: list[dict[str, Any]]) -> list[int]:
    """The tokens of a conversation, up to where the next answer begins."""
    ids: list[int] = []
    for message in messages:
        ids += message_ids(message["role"], message.get("content") or "")
    return [*ids, token_id("<assistant>")]


@lru_cache(maxsize=100_000)
def message_ids(role: str, content: str) -> tuple[int, ...]:
    """The tokens of one message."""
    return tuple(token_id(word) for word in (f"<{role}>", *content.split(), END))


@lru_cache(maxsize=VOCABULARY)
def token_id(word: str) -> int:
    """The token that a word is."""
    return zlib.crc32(word.encode()) % VOCABULARY


def completion(request: dict[str, Any], prompt: list[int], words: list[str]) -> bytes:
    """The body of an answer; tokens and log-probabilities are in it if they were asked for, as vLLM gives them."""
    sampled = [*words, END]
    ids = [token_id(word) for word in sampled]
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": " ".join(words), "refusal": None, "tool_calls": []},
        "finish_reason": "stop",
    }
    answered: dict[str, Any] = {
        "id": "chatcmpl-simulated",
        "object": "chat.completion",
        "created": 0,
        "model": request.get("model", MODEL),
        "choices": [choice],
        "usage": {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(ids),
            "total_tokens": len(prompt) + len(ids),
        },
    }
    if request.get("logprobs"):
        choice["logprobs"] = {"content": [_entry(word) for word in sampled]}
    if request.get("return_token_ids"):
        choice["token_ids"] = ids
        answered["prompt_token_ids"] = prompt
    return msgspec.json.encode(answered)


@lru_cache(maxsize=VOCABULARY)
def _entry(word: str) -> msgspec.Raw:
    """What an answer says of one sampled token, as JSON."""
    return msgspec.Raw(
        msgspec.json.encode({"token": word, "logprob": LOGPROB, "bytes": list(word.encode()), "top_logprobs": []})
    )


def error(message: str, status: int) -> bytes:
    """An error in OpenAI's form."""
    return msgspec.json.encode({"error": {"message": message, "type": "error", "param": None, "code": status}})


def _fault(behaviour: Behaviour, drawn: float) -> Fault | None:
    rates: tuple[tuple[Fault, float], ...] = (
        ("malformed", behaviour.malformed),
        ("hang", behaviour.hang),
        ("busy", behaviour.busy),
    )
    for name, rate in rates:
        if drawn < rate:
            return name
        drawn -= rate
    return None


def _words(behaviour: Behaviour, request: dict[str, Any], chance: random.Random) -> list[str]:
    """One of the choices, where there are any; else filler and one of the server's words."""
    choices = (request.get("structured_outputs") or {}).get("choice")
    if choices:
        return list(chance.choice(choices).split())
    location = math.log(behaviour.tokens) - behaviour.spread**2 / 2
    length = round(chance.lognormvariate(location, behaviour.spread))
    most = request.get("max_tokens") or 1_000
    return [*["so"] * (min(max(length, 2), most) - 2), chance.choice(behaviour.words)]
