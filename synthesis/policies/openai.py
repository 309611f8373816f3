"""Policies that are models behind an OpenAI-compatible API."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import msgspec

from agentmill.schemas.records.record import JsonObject
from agentmill.synthesis.policies.completion import CHAT, Api, read_turn, request_body
from agentmill.synthesis.policies.model_client import ModelClient
from agentmill.synthesis.policies.policy import Conversation, PolicyError, Turn


class OpenAiPolicy(ModelClient):
    """Asks a served model for each turn."""

    name = "openai"
    api: ClassVar[Api] = CHAT

    async def act(self, conversation: Conversation) -> Turn:
        """The model's next turn. Raises as ``ModelClient.answer``."""
        read = partial(read_turn, conversation=conversation)
        turn, usage = await self.answer(conversation.episode_id, self.body(conversation), read)
        return msgspec.structs.replace(turn, usage=usage)

    def body(self, conversation: Conversation) -> JsonObject:
        """The request for one turn. Raises ``PolicyError`` for a constrained one: the API has no words for it."""
        if conversation.choices is not None:
            raise PolicyError("unsupported", f"policy {self.name!r} cannot choose among given answers; `vllm` can")
        return request_body(conversation, self._served, self.sampling)


class VllmPolicy(OpenAiPolicy):
    """An ``OpenAiPolicy`` that uses what vLLM adds to the API.

    Each turn is sampled with its own seed and comes with the token ids and log-probabilities that were sampled;
    ``choices`` become a structured output.
    """

    name = "vllm"

    def body(self, conversation: Conversation) -> JsonObject:
        """The request for one turn, with vLLM's extra parameters."""
        extras: JsonObject = {"seed": conversation.seed, "logprobs": True, "return_token_ids": True}
        if conversation.choices is not None:
            extras["structured_outputs"] = {"choice": conversation.choices}
        return {**request_body(conversation, self._served, self.sampling), **extras}
