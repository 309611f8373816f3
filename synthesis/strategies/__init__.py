"""Strategies by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmill.schemas.registry import Registry

if TYPE_CHECKING:
    from agentmill.synthesis.rollouts.parameters import EpisodeParameters

STRATEGIES: Registry[type[EpisodeParameters]] = Registry(
    "strategy",
    {
        "branch": "agentmill.synthesis.strategies.branch:Branch",
        "imagine": "agentmill.synthesis.strategies.imagine:Imagine",
        "inject": "agentmill.synthesis.strategies.inject:Inject",
        "memory": "agentmill.synthesis.strategies.memory:Memory",
        "multi_agent": "agentmill.synthesis.strategies.multi_agent:MultiAgent",
        "revise": "agentmill.synthesis.strategies.revise:Revise",
        "sample": "agentmill.synthesis.strategies.sample:Sample",
        "simulate": "agentmill.synthesis.strategies.simulated_episodes:Simulate",
        "tree_search": "agentmill.synthesis.strategies.tree_search:TreeSearch",
    },
    group="strategies",
)
