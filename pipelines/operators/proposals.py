"""The making of tasks for environments: by rules, all tasks of one together, or by a model, each on its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from agentmill.pipelines.engine.errors import dead_letter
from agentmill.pipelines.engine.operation import AnyOperation, AsyncOperation, Blamed, Result, Unit
from agentmill.pipelines.operators.spec_env import HELD_OUT, TRAIN
from agentmill.pipelines.operators.splits import chosen, falls_in
from agentmill.pipelines.operators.task_seeds import TaskSeeds
from agentmill.schemas.ids import derive_seed
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.synthesis.generators import TASK_FORMS, TASK_GENERATORS
from agentmill.synthesis.generators.generator import GenerationError, TaskGenerator
from agentmill.synthesis.generators.task_author import TaskAuthor, TaskBrief
from agentmill.synthesis.policies import make_policy
from agentmill.synthesis.policies.policy import Policy, PolicySettings, exhausted
from agentmill.synthesis.rollouts.call_budget import Budget, metered_policy, tokens_of

HELD_OUT_TASKS, HELD_OUT_ENVIRONMENTS = "held_out_tasks", "held_out_environments"
"""The splits of tasks that are set aside: of environments that are trained on, and of others."""

UNSEEDED, WITH_WEAK = "tasks_without_seeds", "tasks_for_weak_skills"
"""Metrics of the manifest: tasks that were asked for without seeds, and with skills that agents lack."""

WITHHELD = "tasks_without_held_out_seeds"
"""The metric of tasks of split ``train`` that were not shown the seeds of their environment that are held out."""

OF_SPLIT = "tasks."
"""Before a split in the metrics of a manifest: so many tasks are in it."""

ENVIRONMENTS_HELD = 4
"""Environments whose tasks are kept in memory until all of them were written."""

Drawn = tuple[list[Task | GenerationError], Mapping[str, float]]
"""The tasks of an environment, ``n`` with failures, and what the manifest counts of their drawing."""


class Numbers(msgspec.Struct, frozen=True, kw_only=True):
    """``n`` tasks per environment and their splits, with the seed that they derive from.

    ``first`` numbers the tasks of train environments: it has the number of the first task of each.
    """

    n: int
    held_out: float
    seed: int
    first: Mapping[str, int]

    def split(self, spec: EnvironmentSpec, number: int) -> str:
        """The split of a task."""
        if spec.split == HELD_OUT:
            return HELD_OUT_ENVIRONMENTS
        held_out = self.held_out and falls_in(self.first[spec.environment_id] + number, self.held_out)
        return HELD_OUT_TASKS if held_out else TRAIN

    def drawn_split(self, spec: EnvironmentSpec, number: int) -> str:
        """The split of a task of an environment that has fewer than ``n``: those it lacks are always its last ones."""
        if spec.split == HELD_OUT:
            return HELD_OUT_ENVIRONMENTS
        return HELD_OUT_TASKS if chosen(f"{self.seed}/{spec.environment_id}/{number}", self.held_out) else TRAIN


class Writing(msgspec.Struct, frozen=True, kw_only=True):
    """How a model writes tasks: ``examples`` seeds each, and skills that pass less often than ``weak``, if given."""

    plan_length: tuple[int, int]
    repairs: int
    examples: int
    weak: float | None


class Proposals(AsyncOperation[EnvironmentSpec, Task]):
    """``n`` inputs per environment, called ``ENVIRONMENT/NUMBER``."""

    blamed: ClassVar[Blamed] = "generator"
    chunk_rows: ClassVar[int] = 50

    def __init__(self, numbers: Numbers, window: int, name: str = "propose") -> None:
        super().__init__(name, EnvironmentSpec, Task, window)
        self._numbers = numbers

    @property
    def _n(self) -> int:
        return self._numbers.n

    def count(self, record: EnvironmentSpec) -> int:
        """Tasks of an environment."""
        del record
        return self._n

    def measures(self, output: Task) -> Mapping[str, float]:
        """Tasks by split."""
        return {f"{OF_SPLIT}{output.split}": 1}


class Proposal(Proposals):
    """Tasks by rules, those of an environment made together."""

    def __init__(self, numbers: Numbers, plan_length: tuple[int, int]) -> None:
        super().__init__(numbers, window=numbers.n)
        self._options = {"plan_length": plan_length}
        self._generators: dict[str, TaskGenerator] = {}

    def units(self, record: EnvironmentSpec) -> list[Unit]:
        """All tasks of an environment in one unit, so that the generator sees to it that they differ."""
        return [Unit(f"{record.environment_id}/{number}" for number in range(self._n))]

    async def process(self, record: EnvironmentSpec, unit: Unit) -> Iterable[Result]:
        """The tasks, each in its split."""
        generator = generator_for(record.family, self._generators, self._options)
        made = await gather(generator.propose(record, self._n, self._numbers.seed), len(unit))
        whole = all(isinstance(each, Task) for each in made)
        split = self._numbers.split if whole else self._numbers.drawn_split
        return [
            result_of(input_id, each, self, split(record, number))
            for number, (input_id, each) in enumerate(zip(unit, made, strict=True))
        ]


class PolicyProposals(Proposals):
    """Tasks that a model has a part in, if there is one; each is a unit of its own. Tokens are counted."""

    def __init__(self, numbers: Numbers, settings: PolicySettings | None, window: int, name: str = "propose") -> None:
        super().__init__(numbers, window, name)
        self._settings = settings
        self._policy: Policy | None = None
        self._budgets: dict[str, Budget] = {}

    async def open(self) -> None:
        """Make the policy."""
        if self._settings is not None:
            self._policy = make_policy(self._settings)

    async def close(self) -> None:
        """Close the policy."""
        if self._policy is not None:
            await self._policy.close()

    def exhausted(self) -> str | None:
        """The budget that is spent, if one is."""
        return exhausted([self._policy] if self._policy is not None else [])

    def units(self, record: EnvironmentSpec) -> list[Unit]:
        """One per task."""
        return [Unit([f"{record.environment_id}/{number}"], number) for number in range(self._n)]

    def dropped_measures(self, unit: Unit) -> Mapping[str, float]:
        """Tokens and costs of a task that no answer could be had for."""
        budget = self._budgets.pop(unit[0], None)
        return {} if budget is None else tokens_of(budget.usage)

    def _counting_policy(self, input_id: str) -> Policy:
        """The policy, whose tokens are counted for a task until ``_tokens`` is asked."""
        assert self._policy is not None
        budget = self._budgets[input_id] = Budget(None, None)
        return metered_policy(self._policy, "generator", budget)

    def _tokens(self, input_id: str) -> dict[str, float]:
        return tokens_of(self._budgets.pop(input_id).usage)


class DrawnProposals(PolicyProposals):
    """Tasks of an environment that are drawn together, so that they differ, and each worded on its own."""

    def __init__(self, numbers: Numbers, settings: PolicySettings | None, window: int, name: str) -> None:
        super().__init__(numbers, settings, window, name)
        self._drawn: dict[str, Drawn] = {}

    def draw(self, record: EnvironmentSpec) -> Drawn:
        """All tasks of an environment, the same at each call."""
        raise NotImplementedError

    def drawn(self, record: EnvironmentSpec) -> Drawn:
        """As ``draw``, kept for the other tasks of the environment."""
        key = record.environment_id
        if key not in self._drawn:
            while len(self._drawn) >= ENVIRONMENTS_HELD:
                del self._drawn[next(iter(self._drawn))]
            self._drawn[key] = self.draw(record)
        return self._drawn[key]


class WrittenProposal(PolicyProposals):
    """Tasks by a model. The manifest counts tokens, seeds and what was not shown of them."""

    def __init__(
        self,
        numbers: Numbers,
        writing: Writing,
        settings: PolicySettings,
        seeds: TaskSeeds | None,
        personas: Sequence[str],
        window: int,
    ) -> None:
        super().__init__(numbers, settings, window)
        self._entry = settings.entry
        self._writing = writing
        self._seeds = seeds
        self._personas = personas

    async def open(self) -> None:
        """Load the seeds and make the policy."""
        if self._seeds is not None:
            self._seeds.load()
        await super().open()

    async def process(self, record: EnvironmentSpec, unit: Unit) -> Iterable[Result]:
        """The task of a number, in its split."""
        (input_id,), number = unit, int(unit.data)
        brief = self._brief(record, number)
        author = TaskAuthor(
            self._counting_policy(input_id),
            TASK_FORMS.load(record.family),
            self._writing.plan_length,
            self._writing.repairs,
        )
        # Ids of what is written come from the seed: without the entry, two models of one name would share them.
        entry = [] if self._entry is None else [self._entry]
        seed = derive_seed("propose", self._numbers.seed, record.environment_id, number, *entry)
        made: Task | GenerationError
        try:
            made = await author.write(record, brief, seed)
        except GenerationError as error:
            made = error
        result = result_of(input_id, made, self, self._numbers.split(record, number))
        measures = {**self._tokens(input_id), **self._seed_measures(record, number, brief)}
        return [msgspec.structs.replace(result, measures=measures)]

    def _brief(self, record: EnvironmentSpec, number: int) -> TaskBrief:
        writing, environment_id = self._writing, record.environment_id
        # Another start for each environment: with few tasks per environment all of them are used.
        start = derive_seed("persona", self._numbers.seed, environment_id)
        persona = self._personas[(start + number) % len(self._personas)] if self._personas else None
        if self._seeds is None:
            return TaskBrief(persona=persona)
        weak = [] if writing.weak is None else self._seeds.weak(environment_id, writing.weak)
        train = self._numbers.split(record, number) == TRAIN
        seeds = self._seeds.of(environment_id, number, writing.examples, train=train)
        return TaskBrief(seeds=seeds, persona=persona, weak=weak)

    def _seed_measures(self, record: EnvironmentSpec, number: int, brief: TaskBrief) -> dict[str, float]:
        measures: dict[str, float] = {"seeds_shown": len(brief.seeds), WITH_WEAK: bool(brief.weak)}
        if self._seeds is not None:
            measures[UNSEEDED] = not brief.seeds
            if self._numbers.split(record, number) == TRAIN:
                measures[WITHHELD] = self._seeds.has_held_out(record.environment_id)
            # Once per environment.
            measures |= {
                f"seeds_{name}": n for name, n in self._seeds.counts(record.environment_id).items() if not number
            }
        return {name: float(value) for name, value in measures.items() if value}


def generator_for(family: str, made: dict[str, TaskGenerator], options: Mapping[str, Any]) -> TaskGenerator:
    """The task generator of a family, made once. Raises ``UserError`` if there is none."""
    if family not in made:
        made[family] = TASK_GENERATORS.load(family)(**options)
    return made[family]


async def gather(made: AsyncIterator[Task | GenerationError], n: int) -> list[Task | GenerationError]:
    """Exactly ``n`` of what a generator makes; where it stops early, its last result is repeated for the rest."""
    found = [each async for each in made][:n]
    last = found[-1] if found and isinstance(found[-1], GenerationError) else None
    return found + [last or GenerationError("not_proposed", "the generator made no more")] * (n - len(found))


def result_of(input_id: str, made: Task | GenerationError, operation: AnyOperation, split: str | None) -> Result:
    """A task in its split, or a dead letter for the failure to make one."""
    if isinstance(made, GenerationError):
        return Result(input_id=input_id, dropped=dead_letter(made, input_id, operation, {}))
    return Result(input_id=input_id, outputs=[msgspec.structs.replace(made, split=split)])
