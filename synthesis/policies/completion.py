"""Chat completions as data: the request body for a conversation, and the turn that an answer holds.

What is the model's fault is data (empty text, arguments that are no JSON object: an action that the environment will
refuse); what is the server's fault is a ``PolicyError`` with the reason ``malformed``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from agentmill.schemas.arrow.check import is_too_deep
from agentmill.schemas.chat import to_functions, to_messages, to_openai
from agentmill.schemas.dialects.tool_text import TOOL_TEXTS, written_out
from agentmill.schemas.messages.parts import number_of
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Action, AnyAction, AnyItem, ApiAction, MessageAction, TurnTokens, Usage
from agentmill.synthesis.policies.policy import Conversation, Denied, PolicyError, Turn
from agentmill.synthesis.policies.rate_limit import BUSY
from agentmill.synthesis.prompts import prompt


def token_sequence(content: Iterable[AnyItem]) -> list[int]:
    """The tokens of the current segment: all that prompts and answers added since its start, in order.

    None if the start of the segment is not among ``content``, as when the agent is shown its last turns only.
    """
    sequence: list[int] = []
    started = False
    for item in content:
        if not isinstance(item, Action) or item.tokens is None:
            continue
        if item.tokens.segment_start:
            sequence, started = [], True
        if not started:
            continue
        sequence += item.tokens.prompt_ids
        sequence += item.tokens.sampled_ids
    return sequence


def token_delta(
    content: Iterable[AnyItem],
    prompt_ids: list[int],
    sampled_ids: list[int],
    logprobs: list[float],
    finish_reason: str | None,
) -> TurnTokens:
    """The tokens of a turn that follows ``content``, given its whole prompt.

    A prompt that does not begin with the sequence before it (a model's own tokens need not be those that its text
    maps back to) starts a new segment. Log-probabilities that do not match the sampled tokens in number are left out.
    """
    before = token_sequence(content)
    # Only a delta is kept, since a run would otherwise store tokens that grow with the square of its turns.
    extends = bool(before) and prompt_ids[: len(before)] == before
    return TurnTokens(
        prompt_ids=prompt_ids[len(before) :] if extends else prompt_ids,
        sampled_ids=sampled_ids,
        logprobs=logprobs if len(logprobs) == len(sampled_ids) else [],
        segment_start=not extends,
        finish_reason=finish_reason,
    )


TOKEN_LIMITS = ("max_tokens", "max_completion_tokens")
"""The names that servers have for the most tokens of an answer."""

MOST_TOKENS = 100_000_000
"""Of one request: a server that counts more, or less than none, does not count."""

RESPONSE_FORMAT = "response_format"
"""The parameter for the form of an answer."""

OF_TOOLS = ("tool_choice", "parallel_tool_calls")
"""Sampling parameters that say how tools are called."""


class Function(msgspec.Struct):
    """The function of a tool call; ``arguments`` should be the text of a JSON object, and is one from some servers."""

    name: str
    arguments: Any = None


class Call(msgspec.Struct):
    """One tool call of an answer."""

    function: Function
    id: Any = None


class Answer(msgspec.Struct):
    """The assistant message. Hidden reasoning goes by two names among servers, or is in parts of the content.

    What is ``Any`` here and below comes in other forms from some servers; an answer is paid for, so it is not lost for
    that.
    """

    content: str | list[Any] | None = None
    """A text, or parts of which some are texts, as reasoning models of some providers answer."""
    refusal: Any = None
    tool_calls: list[Call] | None = None
    reasoning: Any = None
    reasoning_content: Any = None


NO_ERROR = (b"", b"null", b"false", b'""', b"{}", b"[]")
"""Values of ``error`` where there is none."""


class Choice(msgspec.Struct):
    """One answer, with the ids of its tokens where the server gives them.

    ``error``: how a gateway reports, with status 200, that the server behind it failed; each has its own form.
    """

    message: Answer
    finish_reason: str | None = None
    logprobs: Any = None
    token_ids: list[int] | None = None
    stop_reason: int | str | None = None
    error: msgspec.Raw = msgspec.Raw()


class Counts(msgspec.Struct):
    """Tokens that the server counted. ``prompt_tokens_details`` has those that came out of its prefix cache.

    Some count the reasoning in the total alone.
    """

    prompt_tokens: Any = None
    completion_tokens: Any = None
    total_tokens: Any = None
    prompt_tokens_details: Any = None


class Completion(msgspec.Struct):
    """The part of a chat completion that is used; unknown fields are ignored."""

    choices: list[Choice]
    usage: Counts | None = None
    prompt_token_ids: list[int] | None = None


def request_body(conversation: Conversation, model: str, sampling: JsonObject) -> JsonObject:
    """What is posted to ``/chat/completions``: messages, ``sampling``, and tools if there are any.

    Servers refuse parameters of tools where there are none, as where an agent that has some is asked for words, or is
    shown them as text.
    """
    tools, tool_format = conversation.tools, conversation.tool_format
    system_prompt, sampling = _with_schema(conversation, sampling)
    plain = to_messages(system_prompt, list(conversation.content))
    messages = to_openai([message for message, _ in written_out(plain, tools, tool_format)])
    if tools and tool_format == "native":
        return {"model": model, "messages": messages, "tools": to_functions(tools), **sampling}
    kept = {name: value for name, value in sampling.items() if name not in OF_TOOLS}
    stop = TOOL_TEXTS[tool_format].stop if tools and tool_format != "native" else None
    if stop:
        # With those of the sampling: without its own the model would go on with what the tool answers.
        given = kept.get("stop") or []
        kept["stop"] = list(dict.fromkeys([stop, *([given] if isinstance(given, str) else given)]))
    return {"model": model, "messages": messages, **kept}


def _with_schema(conversation: Conversation, sampling: JsonObject) -> tuple[str, JsonObject]:
    """System prompt and parameters that ask for the schema of an answer, if there is one.

    A ``response_format`` of the user's, also null, for none, is kept: the schema is then asked for in words.
    """
    schema, own = conversation.answer_schema, RESPONSE_FORMAT in sampling
    if own and sampling[RESPONSE_FORMAT] is None:
        sampling = {name: value for name, value in sampling.items() if name != RESPONSE_FORMAT}
    if schema is None:
        return conversation.system_prompt, sampling
    if own:
        in_words = prompt("answer_schema").replace("{schema}", msgspec.json.encode(schema).decode())
        return f"{conversation.system_prompt}\n\n{in_words}", sampling
    wanted = {"name": "answer", "schema": schema, "strict": True}
    return conversation.system_prompt, {**sampling, RESPONSE_FORMAT: {"type": "json_schema", "json_schema": wanted}}


def read_turn(text: str | bytes, seconds: float, conversation: Conversation) -> Turn:
    """The turn in a server's answer.

    Raises ``PolicyError`` (``malformed``) for what is no chat completion, and for one that reports an error; ``Denied``
    where that is the error of a provider that takes no request for now.
    """
    try:
        completion = msgspec.json.decode(text, type=Completion)
    # Servers also answer with HTML of a gateway, or in another encoding.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if _is_busy(text):
            raise Denied("rate_limited", f"the answer reports an error{_quoted(text)}") from error
        raise PolicyError("malformed", f"the answer is no chat completion: {error}{_quoted(text)}") from error
    if not completion.choices:
        if _is_busy(text):
            raise Denied("rate_limited", f"the answer reports an error{_quoted(text)}")
        raise PolicyError("malformed", f"the answer has no choices{_quoted(text)}")
    choice = completion.choices[0]
    _check_no_error(choice, text)
    actions = _actions(choice.message)
    # Where a text ended the answer, its tokens hold that text, which the message does not.
    stopped = isinstance(choice.stop_reason, str)
    if completion.prompt_token_ids is not None and choice.token_ids is not None and not stopped:
        logprobs = _logprobs(choice.logprobs)
        tokens = token_delta(
            conversation.content, completion.prompt_token_ids, choice.token_ids, logprobs, choice.finish_reason
        )
        # On the first action only: the tokens are those of the whole turn.
        actions[0] = msgspec.structs.replace(actions[0], tokens=tokens)
    usage = _usage(completion.usage or Counts(), seconds)
    return Turn(actions=actions, finish_reason=choice.finish_reason or "stop", usage=usage)


class Reported(msgspec.Struct):
    """An error in the place of an answer, with its status as a gateway writes it."""

    code: int | str | None = None


class OnlyError(msgspec.Struct):
    """An answer that is an error, with status 200."""

    error: Reported


def _is_busy(text: str | bytes, codes: Sequence[int] = BUSY) -> bool:
    """Whether an answer reports that no request is taken for now."""
    try:
        return str(msgspec.json.decode(text, type=OnlyError).error.code) in map(str, codes)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _check_no_error(choice: Choice, text: str | bytes) -> None:
    """Raises ``PolicyError`` (``malformed``): an empty message with an error is no answer of the model.

    ``Denied`` where a provider takes no request for now.
    """
    error = bytes(choice.error)
    found = error not in NO_ERROR
    # A gateway whose server is gone (502) has taken the request.
    if found and _is_busy(b'{"error":%b}' % error, (429, 503)):
        raise Denied("rate_limited", f"the answer reports an error{_quoted(error)}")
    if found or choice.finish_reason == "error":
        raise PolicyError("malformed", f"the answer reports an error{_quoted(error if found else text)}")


def _quoted(text: str | bytes) -> str:
    """The beginning of an answer: some providers say there why they refuse a request, with status 200."""
    words = (text if isinstance(text, str) else text.decode(errors="replace")).split()
    return f": {' '.join(words)[:200]}" if words else ""


def _actions(answer: Answer) -> list[AnyAction]:
    thought = [part for part in answer.content if _kind(part) == "thinking"] if isinstance(answer.content, list) else []
    reasoning = _words(answer.reasoning_content) or _words(answer.reasoning) or _words(thought) or None
    # Some servers put the words of a model that refuses in a field of their own, and leave the content empty.
    text = _text(answer.content) or _words(answer.refusal)
    if not answer.tool_calls:
        return [MessageAction(content=text, reasoning_content=reasoning)]
    calls: list[AnyAction] = [_call(call) for call in answer.tool_calls]
    calls[0] = msgspec.structs.replace(calls[0], description=text or None, reasoning_content=reasoning)
    return calls


def _text(content: str | list[Any] | None) -> str:
    if not isinstance(content, list):
        return content or ""
    return _words([part for part in content if _kind(part) == "text"])


def _kind(part: object) -> object:
    return part.get("type") if isinstance(part, dict) else None


def _words(value: object, depth: int = 8) -> str:
    """The text that a field holds, as it is, in parts or in an object; empty where there is none so deep."""
    if isinstance(value, str) or depth == 0:
        return value if isinstance(value, str) else ""
    if isinstance(value, list):
        return "".join(_words(each, depth - 1) for each in value)
    fields = [value.get(name) for name in ("text", "thinking", "content")] if isinstance(value, dict) else []
    return next((words for each in fields if (words := _words(each, depth - 1))), "")


def _logprobs(given: object) -> list[float]:
    """The natural logarithms of the probabilities of the sampled tokens, in order; empty where one is missing."""
    entries = given.get("content") if isinstance(given, dict) else None
    found = entries if isinstance(entries, list) else []
    known = [number_of(each.get("logprob")) for each in found if isinstance(each, dict)]
    numbers = [each for each in known if each is not None]
    return numbers if len(numbers) == len(found) else []


def _call(call: Call) -> ApiAction:
    # Some servers send nothing, or an empty text, for a call without arguments.
    given = "{}" if call.function.arguments in (None, "") else call.function.arguments
    call_id = None if call.id is None else str(call.id)
    text = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    try:
        arguments: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        arguments = None
    if isinstance(arguments, dict) and not is_too_deep(arguments):
        return ApiAction(function=call.function.name, kwargs=arguments, tool_call_id=call_id)
    return ApiAction(function=call.function.name, kwargs={}, raw_arguments=text, tool_call_id=call_id)


def _usage(counts: Counts, seconds: float) -> Usage:
    details = counts.prompt_tokens_details
    prompts, completions, both = map(_counted, (counts.prompt_tokens, counts.completion_tokens, counts.total_tokens))
    if prompts is not None and completions is not None and both is not None:
        completions = max(completions, both - prompts)
    return Usage(
        prompt_tokens=prompts,
        completion_tokens=completions,
        cached_tokens=_counted(details.get("cached_tokens")) if isinstance(details, dict) else None,
        seconds=seconds,
    )


def _counted(tokens: object) -> int | None:
    """A number of tokens; ``None``, as where the server does not count, for one that cannot be."""
    known = number_of(tokens)
    return int(known) if known is not None and 0 <= known <= MOST_TOKENS else None


class OnlyUsage(msgspec.Struct):
    """The part of an answer with what it cost."""

    usage: Counts


def usage_in(text: bytes) -> Usage | None:
    """What an answer cost that cannot be used for another reason; ``None`` if it does not say."""
    try:
        found = _usage(msgspec.json.decode(text, type=OnlyUsage).usage, 0.0)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None if None in (found.prompt_tokens, found.completion_tokens) else found


class Api(msgspec.Struct, frozen=True, kw_only=True):
    """What requests of one kind look like. ``advice`` is what to do where the server refuses the key or the model.

    ``estimate``: about what a body will cost; ``kind_of``: equal for bodies that differ in the conversation alone;
    ``short_request`` and ``same_parameters``: as short a request as can be, without the parameters of a body and with
    them. ``versioned``: its path is below the ``/v1`` of a base URL.
    """

    path: str
    estimate: Callable[[JsonObject], Usage]
    kind_of: Callable[[JsonObject], bytes]
    short_request: Callable[[JsonObject], JsonObject]
    same_parameters: Callable[[JsonObject], JsonObject]
    versioned: bool = True
    advice: str = "see to it and run the same command again; what has ended is kept"

    def base(self, url: str) -> str:
        """What ``path`` follows, of an endpoint."""
        return url if self.versioned else url.removesuffix("/v1")


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
    of_the_turn = ("messages", "tools", "seed", "structured_outputs", "response_format")
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
    # A server that counts 0 of both does not count: no request is empty.
    if not prompt and not answer:
        return expected, True
    filled = msgspec.structs.replace(
        usage,
        prompt_tokens=expected.prompt_tokens if prompt is None else prompt,
        completion_tokens=expected.completion_tokens if answer is None else answer,
    )
    return filled, prompt is None or answer is None


CHAT = Api(
    path="/chat/completions",
    estimate=estimate,
    kind_of=kind_of,
    short_request=short_request,
    same_parameters=same_parameters,
)
"""Chat completions, as OpenAI's API has them."""
