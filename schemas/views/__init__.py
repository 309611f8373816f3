"""Training views by name: those of one trajectory, those that pair two, and those of a whole search tree."""

from __future__ import annotations

from schemas.registry import Registry

VIEWS = Registry(
    "view",
    {
        "prompts": "schemas.views.prompts:Prompts",
        "reflection": "schemas.views.reflection:Reflection",
        "scorer_rows": "schemas.views.scorer_rows:ScorerRows",
        "sft": "schemas.views.sft:Sft",
        "text": "schemas.views.text:Text",
        "unpaired": "schemas.views.unpaired:Unpaired",
        "world_model": "schemas.views.world_model:WorldModel",
    },
)

PAIR_VIEWS = Registry(
    "pair view",
    {
        "step_pairs": "schemas.views.step_pairs:StepPairs",
        "trajectory_pairs": "schemas.views.trajectory_pairs:TrajectoryPairs",
    },
)

FAMILY_VIEWS = Registry(
    "family view",
    {
        "search_trace": "schemas.views.search_trace:SearchTrace",
        "spliced": "schemas.views.spliced:Spliced",
    },
)
