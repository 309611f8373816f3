"""Mistakes of an expert that errs at a set rate, as a stand-in for an agent that is asked without a model.

A mistake is a legal action that the expert would not have taken. Where a family does not list all of its actions
(tools with free arguments), it is a call of another declared tool, or the same call with one argument changed; the
environment may refuse it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.rows import Message
from agentmill.schemas.records.trajectory import ApiAction, Tool
from agentmill.synthesis.environments.environment import Environment
from agentmill.synthesis.policies.policy import Conversation, Review

EXPERT = "expert"
"""The name of the policy."""

MISTAKES = "mistakes"
"""The sampling parameter of the policy ``expert``: the probability of a mistake at each turn."""

WORDS = "I should look closer at what I was told, and try another way."
"""What a stand-in answers where it is asked for words and not for an action."""

APPROVAL, OBJECTION = "OK", "Something else has to be done first."
"""What an expert answers as a reviewer, the second after the word of its veto."""


def draws_mistake(rate: float, seed: int) -> bool:
    """Whether the turn with this seed is one of the mistakes; those of a lower rate are among those of a higher one."""
    return random.Random(derive_seed(MISTAKES, seed)).random() < rate


def other_action(conversation: Conversation, environment: Environment, best: ApiAction | None) -> ApiAction | None:
    """An action other than ``best``, by the seed of the turn; ``None`` where nothing else can be done.

    ``best`` is ``None`` where the expert knows no way: then it is any action.
    """
    chance = random.Random(derive_seed("other action", conversation.seed))
    listed = [each for each in environment.admissible() if not _same(each, best)]
    if getattr(environment, "lists_admissible", True):
        return chance.choice(listed) if listed else None
    last = next((item for item in reversed(conversation.content) if isinstance(item, ApiAction)), None)
    if best is None:
        return chance.choice(listed) if listed else changed_call(last, environment.tools, chance)
    return changed_call(best, environment.tools, chance)


def reviewed(review: Review, environment: Environment, best: ApiAction | None, errs: bool) -> str:
    """What an expert answers as a reviewer: a veto of any action but ``best``, and if it errs the other answer.

    Where the expert knows no way, nothing is vetoed.
    """
    if best is None or not review.proposed:
        return APPROVAL
    action = review.proposed[0]
    if isinstance(action, ApiAction):
        right = (action.function, action.kwargs) == (best.function, best.kwargs)
    else:
        right = action.content.strip() == environment.command(best)
    return APPROVAL if right != errs else f"{review.veto} {OBJECTION}"


def changed_call(call: ApiAction | None, tools: Sequence[Tool], chance: random.Random) -> ApiAction | None:
    """A call of another tool, or ``call`` with one argument changed; ``None`` if there is neither."""
    others = [tool for tool in tools if call is None or tool.name != call.function]
    own = next((tool for tool in tools if call is not None and tool.name == call.function), None)
    names = sorted(call.kwargs) if call is not None else []
    if call is not None and names and (not others or chance.random() < 0.5):
        name = chance.choice(names)
        schema = _properties(own).get(name, {})
        return ApiAction(
            function=call.function, kwargs={**call.kwargs, name: changed_value(call.kwargs[name], schema, chance)}
        )
    if not others:
        return None
    tool = chance.choice(others)
    given = {} if call is None else call.kwargs
    # What the other tool takes by the same name is taken over, so that some of these calls are carried out.
    kwargs = {name: given.get(name, any_value(schema, chance)) for name, schema in _properties(tool).items()}
    return ApiAction(function=tool.name, kwargs=kwargs)


def changed_value(value: Any, schema: JsonObject, chance: random.Random) -> Any:
    """Another value of the same type; of an ``enum`` another entry."""
    choices = [each for each in schema.get("enum", []) if each != value]
    if choices:
        return chance.choice(choices)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + chance.choice([-2, -1, 1, 2])
    if isinstance(value, list):
        return value[:-1] if value else [0]
    if isinstance(value, dict):
        return dict(list(value.items())[:-1]) if value else {"key": 0}
    text = "" if value is None else str(value)
    return text[:-1] if len(text) > 1 else f"{text}x"


def any_value(schema: JsonObject, chance: random.Random) -> Any:
    """A small value of the type that a JSON Schema asks for."""
    if schema.get("enum"):
        return chance.choice(schema["enum"])
    wanted = schema.get("type", "string")
    kind = wanted[0] if isinstance(wanted, list) and wanted else wanted
    values = {"integer": chance.randrange(4), "number": float(chance.randrange(4)), "boolean": chance.random() < 0.5}
    return values.get(kind, {"array": [], "object": {}}.get(kind, "unknown"))


def stand_in_text(conversation: Conversation) -> str:
    """What a stand-in answers where no action is asked for: ``WORDS``, or JSON that fits the schema, by the seed."""
    if conversation.answer_schema is None:
        return WORDS
    chance = random.Random(derive_seed("answer", conversation.seed))
    return msgspec.json.encode(drawn_answer(conversation.answer_schema, chance)).decode()


def drawn_answer(schema: JsonObject, chance: random.Random) -> Any:
    """A draw that fits the schema of a judge's answer. It says nothing of what was asked.

    Integers are from ``minimum`` (1) to ``maximum`` (four more), arrays have one to three values.
    """
    match schema.get("type"):
        case "object":
            return {name: drawn_answer(each, chance) for name, each in schema.get("properties", {}).items()}
        case "array":
            return [drawn_answer(schema.get("items", {}), chance) for _ in range(chance.randint(1, 3))]
        case "integer":
            least = schema.get("minimum", 1)
            return chance.randint(least, schema.get("maximum", least + 4))
        case _:
            return any_value(schema, chance)


def drawn_score(episode_id: str, messages: Sequence[Message], functions: str | None) -> tuple[float, str]:
    """A draw from 0 to 1 in the place of the score of a conversation, and the digest of what is scored."""
    scored = digest("score", episode_id, [msgspec.to_builtins(each) for each in messages], functions)
    return random.Random(scored).random(), scored


def _properties(tool: Tool | None) -> Mapping[str, JsonObject]:
    properties = {} if tool is None else tool.parameters.get("properties", {})
    # A foreign schema may hold true and false for a schema.
    return {name: schema if isinstance(schema, dict) else {} for name, schema in properties.items()}


def _same(action: ApiAction, other: ApiAction | None) -> bool:
    plain = {"tool_call_id": None, "turn": 0}
    return other is not None and msgspec.structs.replace(action, **plain) == msgspec.structs.replace(other, **plain)
