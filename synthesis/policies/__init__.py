"""Policies by name, and the making of one from its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.registry import Registry

if TYPE_CHECKING:
    from synthesis.policies.policy import Policy
    from synthesis.policies.settings import PolicySettings

POLICIES = Registry(
    "policy",
    {
        "expert": "synthesis.policies.expert:ExpertPolicy",
        "openai": "synthesis.policies.openai:OpenAiPolicy",
        "scripted": "synthesis.policies.scripted:ScriptedPolicy",
        "vllm": "synthesis.policies.vllm:VllmPolicy",
    },
)


def make_policy(settings: PolicySettings) -> Policy:
    """The policy that ``settings`` describe. Raises ``UserError`` for an unknown name or settings it cannot use."""
    policy: Policy = POLICIES.load(settings.policy)(settings)
    return policy
