"""Strategies by name."""

from __future__ import annotations

from schemas.registry import Registry

STRATEGIES = Registry(
    "strategy",
    {
        "branch": "synthesis.strategies.branch:Branch",
        "imagine": "synthesis.strategies.imagine:Imagine",
        "memory": "synthesis.strategies.memory:Memory",
        "multi_agent": "synthesis.strategies.multi_agent:MultiAgent",
        "revise": "synthesis.strategies.revise:Revise",
        "sample": "synthesis.strategies.sample:Sample",
        "tree_search": "synthesis.strategies.tree_search:TreeSearch",
    },
)
