"""Operators by name: what the steps of a recipe may say. Each is a configuration class.

Every verifier is an operator by its own name, with its own parameters.
"""

from __future__ import annotations

from typing import Any

from schemas.registry import Registry
from synthesis.verifiers import VERIFIERS


class Operators(Registry):
    """Stages by name; of a verifier, the stage that runs it."""

    def load(self, name: str) -> Any:
        """The configuration class of a step. Raises ``UserError`` for an unknown name."""
        loaded = super().load(name)
        if name not in VERIFIERS:
            return loaded
        from pipelines.stages.verify import operator_of

        return operator_of(loaded)


OPERATORS = Operators(
    "operator",
    {
        **VERIFIERS,
        "admit": "pipelines.stages.admit:Admit",
        "branch": "pipelines.stages.branch:Branch",
        "check_tokens": "pipelines.stages.check_tokens:CheckTokens",
        "evaluate": "pipelines.stages.evaluate:Evaluate",
        "evolve": "pipelines.stages.evolve:Evolve",
        "expert": "pipelines.stages.expert:Expert",
        "filter": "pipelines.stages.filter:Filter",
        "imagine": "pipelines.stages.imagine:Imagine",
        "memory": "pipelines.stages.memory:Memory",
        "multi_agent": "pipelines.stages.multi_agent:MultiAgent",
        "normalize": "pipelines.stages.normalize:Normalize",
        "pick": "pipelines.stages.pick:Pick",
        "prompts": "pipelines.stages.prompts:Prompts",
        "propose": "pipelines.stages.propose:Propose",
        "quality": "pipelines.stages.quality:Quality",
        "reflection": "pipelines.stages.reflection:Reflection",
        "revise": "pipelines.stages.revise:Revise",
        "sample": "pipelines.stages.sample:Sample",
        "scorer_rows": "pipelines.stages.scorer_rows:ScorerRows",
        "search_trace": "pipelines.stages.search_trace:SearchTrace",
        "sft": "pipelines.stages.sft:Sft",
        "spec_env": "pipelines.stages.spec_env:SpecEnv",
        "spliced": "pipelines.stages.spliced:Spliced",
        "step_pairs": "pipelines.stages.step_pairs:StepPairs",
        "step_value": "pipelines.stages.step_value:StepValue",
        "text": "pipelines.stages.text:Text",
        "train_dpo": "pipelines.stages.training:TrainDpo",
        "train_kto": "pipelines.stages.training:TrainKto",
        "train_reward": "pipelines.stages.training:TrainReward",
        "train_sft": "pipelines.stages.training:TrainSft",
        "trajectory_pairs": "pipelines.stages.trajectory_pairs:TrajectoryPairs",
        "tree_search": "pipelines.stages.tree_search:TreeSearch",
        "unpaired": "pipelines.stages.unpaired:Unpaired",
        "world_model": "pipelines.stages.world_model:WorldModel",
        "wrap_env": "pipelines.stages.wrap_env:WrapEnv",
    },
)
