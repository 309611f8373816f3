"""The operation of rollouts: what a strategy makes of a task, or of an earlier trajectory.

One input is one piece of what the strategy plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from agentmill.pipelines.engine.operation import AsyncOperation, Blamed, Result, Unit, identity
from agentmill.pipelines.operators.lookup import Lookup
from agentmill.pipelines.operators.selection_tables import NOT_SELECTED, Selected
from agentmill.pipelines.operators.splits import chosen
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Action, Trajectory, Usage
from agentmill.schemas.records.verdict import Dropped, Node
from agentmill.schemas.views.annotations import NOTHING, Annotations
from agentmill.schemas.views.view import Unused
from agentmill.synthesis.environments import blocks, check_admissible, make
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.policies import make_policies
from agentmill.synthesis.policies.policy import Policy, PolicyError, PolicySettings, Unreachable, exhausted
from agentmill.synthesis.policies.rate_limit import refused_s
from agentmill.synthesis.rollouts.blocking_env import CALL_TIMEOUT_S, environments_closed, gathered
from agentmill.synthesis.rollouts.call_budget import Budget, metered, tokens_of
from agentmill.synthesis.rollouts.step import blamed
from agentmill.synthesis.rollouts.strategy import Exploration, Strategy
from agentmill.synthesis.strategies.revise import SILENT

NODES = "nodes"
STOPPED = "stopped"
"""In ``extra`` of a trajectory, and before a reason in the metrics: what came after it was ended by a failure."""


class Actors(Record):
    """Who acts, on which tasks, and from which seed.

    ``split`` ``None`` takes the tasks of every split; of those it takes a ``share``, chosen by their ids.
    """

    policies: dict[str, PolicySettings]
    split: str | None
    share: float
    seed: int
    round: int


class SideTables(msgspec.Struct, frozen=True, kw_only=True):
    """What the records of a rollout refer to: environments, and the ``tasks`` of trajectories.

    ``selected`` decides which tasks are played.
    """

    environments: Lookup[EnvironmentSpec]
    tasks: Lookup[Task] | None = None
    selected: Selected | None = None

    def load(self) -> None:
        """Read all of it. Raises ``UserError``."""
        self.environments.load()
        if self.tasks is not None:
            self.tasks.load()
        if self.selected is not None:
            self.selected.load()

    def not_selected(self, record: Task | Trajectory) -> Unused | None:
        """Why a record is not selected; ``None`` for one that is. Raises ``UserError`` as ``load``."""
        return None if self.selected is None else self.selected.refusal(identity(record))

    def task(self, record: Task | Trajectory) -> Task | None:
        """The task of a record, if it is known."""
        if isinstance(record, Task):
            return record
        return self.tasks.get(record.task_id) if self.tasks is not None else None


def stopped_measures(found: Sequence[Trajectory], spent: Usage) -> dict[str, float]:
    """Where a piece was ended by a failure after ``found``: the reason, and what of the cost is in none of these."""
    reason = found[-1].extra.get(STOPPED) if found else None
    if reason is None:
        return {}
    known: Counter[str] = Counter()
    for each in found:
        known.update(tokens_of(each.usage))
    lost = {f"lost_{name}": value - known[name] for name, value in tokens_of(spent).items() if value > known[name]}
    return {f"{STOPPED}.{reason}": 1.0, **lost}


class Rollout(AsyncOperation[Task | Trajectory, Trajectory]):
    """The pieces of a strategy: of each task, or of each trajectory that it goes on from if it reads these.

    Each piece has its own place in the window, and all that it yields is journalled at once.
    """

    blamed: ClassVar[Blamed] = "environment"

    def __init__(
        self,
        name: str,
        strategy: Strategy,
        tables: SideTables,
        actors: Actors,
        window: int,
        *,
        reads: type[Task] | type[Trajectory] = Task,
        sides: Sequence[str] = (),
    ) -> None:
        super().__init__(name, reads, Trajectory, window)
        self.sides = tuple(sides)
        self._strategy = strategy
        self._tables = tables
        self._actors = actors
        self._policies: dict[str, Policy] = {}
        self._budgets: dict[str, Budget] = {}

    async def open(self) -> None:
        """Load tasks and environments and make the policies."""
        self._tables.load()
        if getattr(self._strategy, "constrain", "none") == "admissible":
            check_admissible("constrain: admissible", {each.family for each in self._tables.environments.all()})
        self._policies = make_policies(self._actors.policies)

    async def close(self) -> None:
        """Wait for environments that are being closed, and close the policies."""
        await environments_closed()
        for policy in self._policies.values():
            await policy.close()
        self._policies = {}

    def exhausted(self) -> str | None:
        """The budget that is spent, if one is."""
        return exhausted(self._policies.values())

    def count(self, record: Task | Trajectory) -> int:
        """Pieces of a record that is wanted; one that is not selected, or will be refused, is one, too."""
        if not self.wanted(record):
            return 0
        return 1 if self._tables.not_selected(record) else max(1, self._strategy.count(record))

    def wanted(self, record: Task | Trajectory) -> bool:
        """Whether a task, or that of a trajectory, is among those to be played."""
        actors = self._actors
        return actors.split in (None, record.split) and chosen(str(record.task_id), actors.share)

    def earlier(self, record: Task | Trajectory) -> tuple[Trajectory, ...]:
        """The trajectories that the strategy goes on from."""
        return (record,) if isinstance(record, Trajectory) else ()

    def annotations(self, record: Task | Trajectory) -> Annotations:
        """What other tables say of the trajectory that the strategy goes on from."""
        del record
        return NOTHING

    def refused(self, record: Task | Trajectory) -> Unused | None:
        """Why a record that is wanted is nothing to work on; it is then one input, and dropped."""
        if self._tables.task(record) is None:
            return Unused("no_task", f"no task {record.task_id!r} in the tables of `tasks`")
        return None

    def units(self, record: Task | Trajectory) -> list[Unit]:
        """One unit per piece, with its exploration; pieces that cannot be begun are numbered."""
        if not self.count(record):
            return []
        refused = self._tables.not_selected(record) or self.refused(record)
        if refused is not None:
            return [Unit([identity(record)], refused)]
        exploration = self._exploration(record)
        if exploration is None:
            return [Unit([f"{identity(record)}/{number}"]) for number in range(self.count(record))]
        return [Unit([trajectory_id], exploration) for trajectory_id in self._strategy.planned(exploration)]

    async def process(self, record: Task | Trajectory, unit: Unit) -> Iterable[Result]:
        """Explore the one piece of ``unit``, or drop what is refused."""
        (trajectory_id,) = unit
        if isinstance(unit.data, Unused):
            letter = Dropped(
                input_id=trajectory_id,
                stage=self.name,
                reason=unit.data.reason,
                blamed="curation" if unit.data.reason == NOT_SELECTED else "input",
                detail=str(unit.data),
            )
            return [Result(input_id=trajectory_id, dropped=letter)]
        if unit.data is None:
            task = self._tables.task(record)
            raise EnvError(f"no environment {task and task.environment_id!r} in the tables of `environments`")
        budget = self._budgets[trajectory_id] = Budget(None, None)
        found = await self._found(metered(unit.data, budget), trajectory_id)
        # Not where an exception passes: ``dropped_measures`` then asks what was spent.
        del self._budgets[trajectory_id]
        trajectories = [each for each in found if isinstance(each, Trajectory)]
        nodes = [each for each in found if isinstance(each, Node)]
        sides = {NODES: nodes} if nodes else {}
        selected = self._tables.selected
        measures = {} if selected is None else dict(selected.measures(identity(record)))
        measures |= stopped_measures(trajectories, budget.usage)
        return [Result(input_id=trajectory_id, outputs=trajectories, sides=sides, measures=measures)]

    def dropped_measures(self, unit: Unit) -> Mapping[str, float]:
        """Tokens and costs of a piece that is dropped, as ``lost_…``."""
        budget = self._budgets.pop(unit[0], None)
        return {f"lost_{name}": value for name, value in tokens_of(budget.usage).items()} if budget is not None else {}

    def measures(self, output: Trajectory) -> Mapping[str, float]:
        """Episodes, successes, turns, tokens and costs."""
        # What a branch copied was counted with the trajectory that it is from.
        own = (item for item in output.content if item.context_operation != "copied")
        turns = {item.turn for item in own if isinstance(item, Action) and item.turn > 0}
        silent = output.extra.get(SILENT)
        return {
            "episodes": 1,
            "success": int(output.outcome.status == "success"),
            "truncated": int(output.outcome.truncated),
            "turns": len(turns),
            **({SILENT: silent} if silent else {}),
            **tokens_of(output.usage),
        }

    def side_measures(self, output: Node) -> Mapping[str, float]:
        """The nodes of a search tree; its root has what the whole of it cost."""
        costs = output.extra.get("costs", {}) if output.parent_id is None else {}
        return {"nodes": 1, **{f"tree_{name}": value for name, value in costs.items()}}

    async def _found(self, exploration: Exploration, trajectory_id: str) -> list[Any]:
        """What a piece yields; if a policy or the environment breaks after a trajectory, what it yielded before.

        The last one then says why it was the last. Where no model can be asked, all of it is to be done again.
        """
        found: list[Any] = []

        async def noted(given: Exploration) -> AsyncIterator[Any]:
            async for each in self._strategy.explore(given, trajectory_id):
                found.append(each)
                yield each

        patience_s = min(CALL_TIMEOUT_S, self._strategy.episode_timeout_s)
        try:
            return await gathered(noted, exploration, blocks(exploration.spec), patience_s)
        except Unreachable:
            raise
        except (PolicyError, EnvError) as error:
            if not found or not isinstance(found[-1], Trajectory):
                raise
            *before, last = found
            return [*before, msgspec.structs.replace(last, extra={**last.extra, STOPPED: error.reason})]

    def _exploration(self, record: Task | Trajectory) -> Exploration | None:
        """What the pieces of a record share, or ``None`` if its environment is not known."""
        task = self._tables.task(record)
        spec = None if task is None else self._tables.environments.get(task.environment_id)
        if task is None or spec is None:
            return None
        return Exploration(
            task=task,
            spec=spec,
            make_environment=lambda: blamed(lambda: make(spec)),
            policies=self._policies,
            entries={role: each.entry for role, each in self._actors.policies.items() if each.entry is not None},
            seed=self._actors.seed,
            round=self._actors.round,
            earlier=self.earlier(record),
            annotations=self.annotations(record),
            refused_s=lambda: refused_s(self._policies.values()),
            plans={},
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_policies": {}}
