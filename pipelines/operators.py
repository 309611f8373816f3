"""Operators by name: what the steps of a recipe may say. Each is a configuration class."""

from __future__ import annotations

from schemas.registry import Registry

OPERATORS = Registry(
    "operator",
    {
        "admit": "pipelines.stages.admit:Admit",
        "check_outcome": "pipelines.stages.check_outcome:CheckOutcome",
        "evaluate": "pipelines.stages.evaluate:Evaluate",
        "evolve": "pipelines.stages.evolve:Evolve",
        "expert": "pipelines.stages.expert:Expert",
        "filter": "pipelines.stages.filter:Filter",
        "propose": "pipelines.stages.propose:Propose",
        "sample": "pipelines.stages.sample:Sample",
        "sft": "pipelines.stages.sft:Sft",
        "spec_env": "pipelines.stages.spec_env:SpecEnv",
        "train_sft": "pipelines.stages.train_sft:TrainSft",
    },
)
