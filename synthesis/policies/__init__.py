"""Policies by name, and the making of one from its settings."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from agentmill.schemas.registry import Registry

if TYPE_CHECKING:
    from agentmill.synthesis.policies.policy import Policy, PolicySettings

POLICIES: Registry[Callable[[PolicySettings], Policy]] = Registry(
    "policy",
    {
        "expert": "agentmill.synthesis.policies.scripted:ExpertPolicy",
        "openai": "agentmill.synthesis.policies.openai:OpenAiPolicy",
        "scripted": "agentmill.synthesis.policies.scripted:ScriptedPolicy",
        "vllm": "agentmill.synthesis.policies.openai:VllmPolicy",
    },
    group="policies",
)


def make_policy(settings: PolicySettings) -> Policy:
    """The policy that ``settings`` describe. Raises ``UserError`` for an unknown name or settings it cannot use."""
    if settings.tokenizer is not None:
        from agentmill.synthesis.policies.reward_model import RewardModel

        return RewardModel(settings)
    return POLICIES.load(settings.policy)(settings)


def make_policies(settings: Mapping[str, PolicySettings]) -> dict[str, Policy]:
    """The policies of several roles; those that differ in ``sampling`` alone ask within the limits of one model.

    They share its connections and its spending, too. Raises as ``make_policy``.
    """
    made: list[tuple[PolicySettings, Policy]] = []
    policies: dict[str, Policy] = {}
    for role, each in settings.items():
        model = msgspec.structs.replace(each, sampling={})
        # A shallow copy shares clients, gate and spending, and has its own sampling.
        policy = next((copy.copy(policy) for known, policy in made if known == model), None) or make_policy(each)
        policy.sampling = each.sampling
        made.append((model, policy))
        policies[role] = policy
    return policies
