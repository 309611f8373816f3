"""``revise``: trying again after feedback, with what was tried before in the prompt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from agentmill.pipelines.engine.operation import AnyOperation
from agentmill.pipelines.operators.bounds import Most, Rows, for_words, product
from agentmill.pipelines.operators.operator import Inputs, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.rollout import Episodes
from agentmill.pipelines.operators.rollout_operation import STOPPED, Actors, Rollout, SideTables
from agentmill.pipelines.operators.trajectory_index import TrajectoryIndex
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.views.roles import several_agents
from agentmill.schemas.views.view import Unused
from agentmill.synthesis.rollouts.parameters import EpisodeParameters
from agentmill.synthesis.strategies.revise import Revise as ReviseStrategy


class Revise(Episodes, ReviseStrategy):
    """New attempts at tasks after feedback on earlier ones, or episodes in which invalid actions are corrected."""

    strategy_type: ClassVar[type[EpisodeParameters]] = ReviseStrategy
    table_roles: ClassVar[Sequence[str]] = ("tasks", "of", "environments", "selections")
    model_roles: ClassVar[Mapping[str, str]] = {**Episodes.model_roles, "critic": "critic"}

    of: TableNames | None = Field(
        default=None, description="tables of earlier attempts at them; by default the first attempt is made here, too"
    )
    critic: str | None = Field(default=None, description="the model that gives feedback, for feedback: critic")

    @model_validator(mode="after")
    def _what_it_needs(self) -> Self:
        if (self.feedback == "critic") != (self.critic is not None):
            raise ValueError("`feedback: critic` and `critic` go together")
        if self.level == "step" and self.of:
            raise ValueError("`of` goes with `level: episode`; on level step all happens in one episode")
        if self.aim == "recombine" and not self.of and self.attempts < 3:
            raise ValueError("without `of` two attempts come before what is recombined: give `attempts: 3` or more")
        if self.level == "episode" and not self.of and self.attempts < 2:
            raise ValueError("without `of` the first attempt counts, so nothing is revised: give `attempts: 2` or more")
        return self

    def draws(self) -> tuple[str, int]:
        """The episodes of level step; later attempts of level episode have another prompt."""
        return "attempts", self.attempts if self.level == "step" else 1

    def pieces(self, rows: Mapping[str, Rows]) -> Most:
        """One chain of attempts; on level step as many episodes."""
        del rows
        return self.attempts if self.level == "step" else 1

    def episodes_of_piece(self, turns: Most) -> Most:
        """The attempts of a chain."""
        del turns
        return 1 if self.level == "step" else self.attempts

    def calls_of_piece(self, turns: Most) -> dict[str, Most]:
        """With the feedback on each attempt, or on level step on each turn."""
        attempts = self.episodes_of_piece(turns)
        calls = {role: product(attempts, n) for role, n in super().calls_of_piece(turns).items()}
        feedback = for_words(turns if self.level == "step" else attempts)
        if self.feedback == "critic":
            calls["critic"] = feedback
        if self.feedback == "self":
            calls["actor"] = None if calls["actor"] is None or feedback is None else calls["actor"] + feedback
        return calls

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Trajectories, from tasks."""
        if "of" in reads:
            expect(reads, "of", "Trajectory")
        return super().writes(reads)

    def notes(self, manifest: Manifest) -> list[str]:
        """A warning of chains that a failure ended, whose earlier attempts are there."""
        stopped = {
            name.removeprefix(f"{STOPPED}."): n
            for name, n in manifest.metrics.items()
            if name.startswith(f"{STOPPED}.")
        }
        if not stopped:
            return super().notes(manifest)
        reasons = ", ".join(f"{reason} {n:,.0f}" for reason, n in sorted(stopped.items()))
        chains = f"warning: {sum(stopped.values()):,.0f} chains of attempts were ended by a failure ({reasons})"
        return [*super().notes(manifest), f"{chains}; the attempts before it are kept"]

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The attempts."""
        strategy, tables = self.strategy(), self.side_tables(inputs)
        assert isinstance(strategy, ReviseStrategy)
        attempts = TrajectoryIndex(tables_of(inputs, "of")) if self.of else None
        return Revising(context.operator, strategy, tables, self.actors(context), self.window_of(context), attempts)


class Revising(Rollout):
    """One input per task, or per episode on level ``step``; a task that an earlier attempt solved is dropped."""

    def __init__(
        self,
        name: str,
        strategy: ReviseStrategy,
        tables: SideTables,
        actors: Actors,
        window: int,
        attempts: TrajectoryIndex | None,
    ) -> None:
        super().__init__(name, strategy, tables, actors, window)
        self._refines = strategy.aim == "refine"
        self._attempts = attempts
        self._forget()

    async def open(self) -> None:
        """As ``Rollout.open``, and find the attempts at each task."""
        await super().open()
        self._forget()
        for attempt in self._attempts.scan() if self._attempts is not None else ():
            self._by_task[attempt.task_id].append((attempt.attempt, attempt.trajectory_id))
            if several := several_agents(attempt):
                self._several[attempt.task_id] = several
            if attempt.outcome.status == "success":
                self._solved.add(attempt.task_id)

    def earlier(self, record: Any) -> tuple[Trajectory, ...]:
        """The attempts at a task, in order."""
        if self._attempts is None:
            return ()
        return tuple(self._attempts.get(name) for _, name in sorted(self._by_task[record.task_id]))

    def refused(self, record: Any) -> Unused | None:
        """Solved, not tried although it should have been, or tried by several agents, too."""
        if self._attempts is None:
            return super().refused(record)
        if record.task_id not in self._by_task:
            return Unused("no_attempt", "there is no attempt at it in the tables of `of`")
        if several := self._several.get(record.task_id):
            return several
        if record.task_id in self._solved and not self._refines:
            return Unused("solved", "an earlier attempt succeeded")
        return super().refused(record)

    def _forget(self) -> None:
        self._by_task: dict[str | None, list[tuple[int, str]]] = defaultdict(list)
        self._solved: set[str | None] = set()
        self._several: dict[str | None, Unused] = {}

    def __getstate__(self) -> dict[str, Any]:
        found = ("_by_task", "_solved", "_several")
        return {name: value for name, value in super().__getstate__().items() if name not in found}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()
