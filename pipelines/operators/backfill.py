"""``backfill``: the missing thoughts of fixed actions, written by a model; with ``alternatives``, contrasts of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from agentmill.pipelines.engine import stop
from agentmill.pipelines.engine.operation import AnyOperation
from agentmill.pipelines.operators.judged_verify import JudgedVerify, Judging
from agentmill.pipelines.operators.lookup import BRANCHES
from agentmill.pipelines.operators.operator import Inputs, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.step_estimates import check_replaced
from agentmill.pipelines.operators.trajectory_index import TrajectoryIndex
from agentmill.pipelines.operators.verify import LABELS
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import AnyItem, Trajectory
from agentmill.schemas.records.verdict import Verdict
from agentmill.synthesis.verifiers.backfill import WRITTEN, Alternatives, BackfillVerifier
from agentmill.synthesis.verifiers.judging import Panel
from agentmill.synthesis.verifiers.verifier import Finding, Verifier

WRITER, ALTERNATIVES = "writer", "alternatives"
RELATION = BRANCHES._replace(role=ALTERNATIVES)
STEPS = "steps."
"""Before what became of a step in the metrics: ``written``, or the reason for which it stays without a thought."""


class Backfill(JudgedVerify, BackfillVerifier):
    """Thoughts before the agent's own actions, written by a model, as labels that ``thoughts`` of ``sft`` puts in."""

    table_roles: ClassVar[Sequence[str]] = ("of", ALTERNATIVES)
    model_roles: ClassVar[Mapping[str, str]] = {WRITER: WRITER}
    sides: ClassVar[Sequence[str]] = (LABELS,)
    verifier_type: ClassVar[type[Verifier]] = BackfillVerifier

    writer: str = Field(description="the model that writes the thoughts")
    judges: TableNames | None = Field(
        default=None, description="models of which most must find a thought grounded; without them only code checks it"
    )
    temperature: float = Field(default=0.0, ge=0, description="of writer and judges, before that of the model")
    alternatives: TableNames | None = Field(
        default=None, description="tables of branches of these trajectories, whose first turns a thought is to weigh"
    )
    name: str = Field(default="thought", min_length=1, description="the name of its verdicts and labels")

    def policies(self) -> dict[str, str]:
        """The writer, then the judges."""
        return {WRITER: self.writer, **super().policies()}

    def check_judges(self) -> None:
        """Raises ``UserError`` for a writer that is to judge itself."""
        if self.writer in (self.judges or ()):
            raise UserError(
                f"`judges` names {self.writer}, which is the writer; name other models", ErrorCode.KEY_NOT_FOR_THIS
            )

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """As ``Verify.writes``; alternatives are trajectories, too."""
        if self.alternatives:
            expect(reads, ALTERNATIVES, "Trajectory")
        return super().writes(reads)

    def check_inputs(self, inputs: Inputs) -> None:
        """Raises ``UserError`` for alternatives that all belong to other trajectories, or replace no turn."""
        if self.alternatives:
            RELATION.check(inputs)
            check_replaced(tables_of(inputs, ALTERNATIVES))

    def notes(self, manifest: Manifest) -> list[str]:
        """A line with the steps that stay without a thought, and why; a warning of alternatives that belong to none."""
        counts = {name.removeprefix(STEPS): int(n) for name, n in manifest.metrics.items() if name.startswith(STEPS)}
        without = {name: n for name, n in sorted(counts.items()) if name != WRITTEN}
        why = ", ".join(f"{name} {n:,}" for name, n in without.items())
        text = f"warning: {sum(without.values()):,} of {sum(counts.values()):,} steps have got no thought ({why})"
        return [*super().notes(manifest), *([text] if without else []), *RELATION.notes(manifest)]

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The thoughts."""
        verifier = self.verifier()
        assert isinstance(verifier, BackfillVerifier)
        window = self.window or max((model.window for model in context.models.values()), default=1)
        branches = Branches(
            TrajectoryIndex(tables_of(inputs, ALTERNATIVES)), RELATION.metrics(inputs) if self.alternatives else {}
        )
        settings = self.settings(context.models)
        return Backfilling(verifier, branches, settings, self.seed_of(context), window)


class Branches:
    """First turns of branches, by the trajectory that they leave. Pickles as paths; of each an id is kept.

    ``metrics`` tell how many branches there are, and how many leave none of the trajectories that are read.
    """

    def __init__(self, index: TrajectoryIndex, metrics: Mapping[str, float]) -> None:
        self.metrics = metrics
        self._index = index
        self._ids: dict[str, list[str]] = {}

    def load(self) -> None:
        """Find out who descends from whom. Raises ``UserError`` for a branch that is given twice."""
        self._ids = defaultdict(list)
        for branch in self._index.scan():
            stop.check()
            if branch.parent_id is not None and branch.branch_turn is not None:
                self._ids[branch.parent_id].append(branch.trajectory_id)

    def of(self, trajectory_id: str) -> Alternatives:
        """The first turns of the branches of a trajectory, in the order of their ids."""
        found: dict[int, list[Sequence[AnyItem]]] = defaultdict(list)
        for branch_id in sorted(self._ids.get(trajectory_id, ())):
            branch = self._index.get(branch_id)
            turn = branch.branch_turn
            assert turn is not None
            found[turn].append([item for item in branch.content if item.turn == turn])
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ids": {}}


class Backfilling(Judging):
    """The thoughts of each trajectory. What is journalled is not asked again."""

    def __init__(
        self, verifier: BackfillVerifier, branches: Branches, settings: Mapping[str, Any], seed: int, window: int
    ) -> None:
        super().__init__(verifier, None, settings, seed, window)
        self._writing = verifier
        self._branches = branches

    async def open(self) -> None:
        """Make the models, and find the alternatives."""
        self._branches.load()
        await super().open()

    async def found(self, task: Task | None, record: Trajectory, panel: Panel) -> Verdict | Sequence[Finding]:
        """The thoughts of a trajectory."""
        del task
        return await self._writing.write(record, panel, self._branches.of(record.trajectory_id))

    def measures(self, output: Verdict) -> Mapping[str, float]:
        """As ``Judging.measures``; of steps, what became of them."""
        counted = {} if output.item is None else {f"{STEPS}{output.reason or WRITTEN}": 1}
        return {**super().measures(output), **counted}

    def summed(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """With the numbers of alternatives."""
        return {**super().summed(metrics), **self._branches.metrics}
