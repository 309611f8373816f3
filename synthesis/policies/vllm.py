"""The policy that is a model behind vLLM: exact tokens, log-probabilities, seeds and constrained answers."""

from __future__ import annotations

from schemas.record import JsonObject
from synthesis.policies.completion import request_body
from synthesis.policies.openai import OpenAiPolicy
from synthesis.policies.policy import Conversation


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
