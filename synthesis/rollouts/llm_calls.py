"""Asking policies: for a turn, for several at once, and for words about an episode, as a summary or advice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from agentmill.schemas.chat import to_messages
from agentmill.schemas.dialects.tool_text import TOOL_TEXTS, calls_text
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.trajectory import AnyItem, MessageAction, TextObservation, Usage
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.policies.policy import Conversation, Policy, PolicyError, Turn
from agentmill.synthesis.prompts import prompt
from agentmill.synthesis.rollouts.context_management import Summarizer

T = TypeVar("T")

TRIES = 3
"""How often a policy is asked for words before its silence counts."""


def identity_of(policy: Policy, entry: str | None) -> str:
    """What tells a policy apart from others, as a digest for the ids of what it had a part in.

    ``entry`` is its name in the recipe's ``models``, ``None`` for one that is none of these.
    """
    return digest(policy.name, policy.model, policy.revision, policy.sampling, *([] if entry is None else [entry]))


async def all_of(waiting: Sequence[Awaitable[T]]) -> list[T]:
    """All results, awaited at once. Raises the first exception in their order, when all have ended."""
    found = await asyncio.gather(*waiting, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found  # type: ignore[return-value]


async def turn_of(policy: Policy, conversation: Conversation) -> Turn:
    """The policy's turn; whatever it raises is its own fault, but for what the environment raised below it."""
    try:
        return await policy.act(conversation)
    except (PolicyError, EnvError, UserError):
        raise
    except (Exception, SystemExit) as error:
        raise PolicyError("broken", f"{type(error).__name__}: {error}") from error


async def words_of(
    policy: Policy, episode_id: str, system_prompt: str, content: Sequence[AnyItem], seed: int
) -> tuple[MessageAction, Usage]:
    """What the policy says to ``content`` and what it cost; it is given no tools.

    Raises ``PolicyError``, also (``empty_response``) if it says nothing in ``TRIES`` answers.
    """
    words, usage = await words_if_any(policy, episode_id, system_prompt, content, seed)
    if words is None:
        raise PolicyError("empty_response", f"policy {policy.name!r} returned an empty response, {TRIES} times")
    return words, usage


async def words_if_any(
    policy: Policy, episode_id: str, system_prompt: str, content: Sequence[AnyItem], seed: int, whole: bool = False
) -> tuple[MessageAction | None, Usage]:
    """As ``words_of``, with ``None`` where the policy answers nothing; each try has a seed of its own.

    ``whole``: words that were cut off count as none.
    """
    usage = Usage()
    for attempt in range(TRIES):
        conversation = Conversation(
            episode_id=episode_id,
            system_prompt=system_prompt,
            content=tuple(content),
            tools=[],
            seed=derive_seed(seed, attempt) if attempt else seed,
        )
        turn: Turn = await turn_of(policy, conversation)
        usage = total(usage, turn.usage)
        words = next((action for action in turn.actions if isinstance(action, MessageAction)), None)
        if words is not None and words.content.strip() and not (whole and turn.finish_reason == "length"):
            return words, usage
    return None, usage


def text_of(turn: Turn) -> str:
    """What a turn says in words."""
    return "\n".join(action.content for action in turn.actions if isinstance(action, MessageAction))


def total(left: Usage, right: Usage) -> Usage:
    """Both together, field by field; what neither reports stays ``None``."""
    values = {}
    for name in Usage.__struct_fields__:
        parts = [value for value in (getattr(left, name), getattr(right, name)) if value is not None]
        values[name] = sum(parts) if parts else None
    return Usage(**values)


def summarizer(policy: Policy, episode_id: str, seed: int, asked_by: str = "summarizer") -> Summarizer:
    """Has ``policy`` sum up turns, as the prompt ``asked_by`` says."""

    async def summed_up(content: Sequence[AnyItem]) -> tuple[str, Usage]:
        question = TextObservation(content=transcript(content), source="user")
        words, usage = await words_of(policy, episode_id, prompt(asked_by), [question], seed)
        return words.content.strip(), usage

    return summed_up


def transcript(content: Sequence[AnyItem]) -> str:
    """What happened, as text: what the agent did stands behind ``>``, what it saw below it."""
    lines = []
    for message in to_messages(None, content):
        if message.role == "assistant":
            lines.append(f"> {calls_text(message, TOOL_TEXTS['json'])}")
        else:
            lines.append(message.content or "")
    return "\n".join(lines)
