"""``tree_search``: search trees over the turns of a policy; its runs are the table, its nodes one beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field, model_validator

from agentmill.pipelines.engine.operation import Operation
from agentmill.pipelines.operators.acting import Acting
from agentmill.pipelines.operators.lookup import Lookup
from agentmill.pipelines.operators.rollout import NODES, Rollout, Worlds
from agentmill.pipelines.operators.stage import Inputs, StageContext, TableNames, expect, tables_of
from agentmill.schemas.records.task import EnvironmentSpec
from agentmill.schemas.tables import Manifest
from agentmill.synthesis.strategies.tree_search import UNSCORED
from agentmill.synthesis.strategies.tree_search import TreeSearch as TreeSearchStrategy


class TreeSearch(Acting, TreeSearchStrategy):
    """Search trees: the runs that end in them, and beside these a table of nodes with visits, Q and priors."""

    primary: ClassVar[str] = "tasks"
    table_roles: ClassVar[Sequence[str]] = ("tasks", "environments")
    model_roles: ClassVar[Mapping[str, str]] = {**Acting.model_roles, "critic": "critic"}
    sides: ClassVar[Sequence[str]] = (NODES,)

    tasks: TableNames = Field(description="tables of tasks")
    critic: str | None = Field(default=None, description="the model that scores states, for value: critic")
    window: int | None = Field(default=None, ge=1, description="trees in flight per worker")

    @model_validator(mode="after")
    def _a_critic_to_ask(self) -> TreeSearch:
        if (self.critic is None) == (self.value == "critic"):
            raise ValueError("`critic` names the model for `value: critic`; give both or none")
        return self

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Trajectories, from tasks."""
        expect(reads, "tasks", "Task")
        return super().writes(reads)

    def draws(self) -> tuple[str, int]:
        """The turns from one state, or else trees."""
        return ("branching", self.branching) if self.branching > 1 else super().draws()

    def notes(self, manifest: Manifest) -> list[str]:
        """A warning where the critic left states without a score."""
        unscored, nodes = manifest.metrics.get(f"tree_{UNSCORED}", 0), manifest.metrics.get("nodes", 0)
        if not unscored:
            return []
        return [f"warning: the critic gave no score that can be read for {unscored:,.0f} of {nodes:,.0f} states"]

    def operation(self, inputs: Inputs, context: StageContext) -> Operation:
        """The trees."""
        worlds = Worlds(environments=Lookup(tables_of(inputs, "environments"), EnvironmentSpec))
        strategy, actors = self.strategy(TreeSearchStrategy), self.actors(context)
        return Rollout("tree_search", strategy, worlds, actors, self.window_of(context), sides=self.sides)

    def window_of(self, context: StageContext) -> int:
        """As many trees as keep the servers as busy as episodes would: each tree asks for several turns at once."""
        together = self.branching if self.window is None else 1
        return max(1, super().window_of(context) // together)
