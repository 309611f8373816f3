"""Training views by name: those of one trajectory, those that pair two, and those of a whole search tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmill.schemas.registry import Registry

if TYPE_CHECKING:
    from agentmill.schemas.views.pair_view import PairView
    from agentmill.schemas.views.tree_view import FamilyView
    from agentmill.schemas.views.view import View

VIEWS: Registry[type[View]] = Registry(
    "view",
    {
        "prompts": "agentmill.schemas.views.text:Prompts",
        "reflection": "agentmill.schemas.views.tree:Reflection",
        "scorer_rows": "agentmill.schemas.views.scorer_rows:ScorerRows",
        "sft": "agentmill.schemas.views.sft:Sft",
        "text": "agentmill.schemas.views.text:Text",
        "unpaired": "agentmill.schemas.views.unpaired:Unpaired",
        "world_model": "agentmill.schemas.views.world_model:WorldModel",
    },
    group="views",
)

PAIR_VIEWS: Registry[type[PairView]] = Registry(
    "pair view",
    {
        "step_pairs": "agentmill.schemas.views.preference:StepPairs",
        "trajectory_pairs": "agentmill.schemas.views.preference:TrajectoryPairs",
    },
    group="pair_views",
)

FAMILY_VIEWS: Registry[type[FamilyView]] = Registry(
    "family view",
    {
        "search_trace": "agentmill.schemas.views.tree:SearchTrace",
        "spliced": "agentmill.schemas.views.tree:Spliced",
    },
    group="family_views",
)
