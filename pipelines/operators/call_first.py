"""``call_first``: tasks for toolboxes from executed chains of calls, with requests by rules or by a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec
from pydantic import Field, field_validator, model_validator

from agentmill.pipelines.engine.operation import AnyOperation, Result, Unit
from agentmill.pipelines.operators.bounds import Bounds, Rows, asked_of, product
from agentmill.pipelines.operators.environment_tasks import EnvironmentTasks
from agentmill.pipelines.operators.lookup import distinct
from agentmill.pipelines.operators.operator import Inputs, StepContext
from agentmill.pipelines.operators.proposals import Drawn, DrawnProposals, Numbers, result_of
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import derive_seed
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.toolbox_tasks.back_translation import BackTranslator
from agentmill.synthesis.generators.toolbox_tasks.call_chains import CallChains
from agentmill.synthesis.policies.policy import PolicySettings

FAMILY = "toolbox"


class CallFirst(EnvironmentTasks):
    """n tasks for each toolbox, each from a chain of calls that was executed before the request was written."""

    length: tuple[int, int] = Field(
        default=(1, 4), description="fewest and most calls of a chain, without the one that ends the episode"
    )
    changing: float = Field(
        default=0.5, ge=0, le=1, description="share of the tasks whose calls change something; the others only read"
    )
    backend: Literal["procedural", "llm"] = Field(
        default="procedural", description="who writes the requests: rules, or a model that is shown calls and results"
    )
    policy: str | None = Field(default=None, description="the model of backend llm")
    repairs: int = Field(default=3, ge=0, description="of llm: rounds in which a faulty request may be repaired")
    window: int = Field(default=16, ge=1, description="tasks in the making at once per worker")

    @field_validator("length")
    @classmethod
    def _ordered(cls, length: tuple[int, int]) -> tuple[int, int]:
        if not 1 <= length[0] <= length[1]:
            raise ValueError(f"{list(length)} is no range; expected [fewest, most] with 1 <= fewest <= most")
        return length

    @model_validator(mode="after")
    def _a_model_for_llm(self) -> CallFirst:
        if (self.backend == "llm") != (self.policy is not None):
            raise ValueError("`backend: llm` needs `policy`, an entry of models; `procedural` takes none")
        if self.backend == "procedural" and "repairs" in self.model_fields_set:
            raise ValueError("`repairs` goes with `backend: llm`; requests by rules have no faults to repair")
        return self

    def bounds(self, rows: Mapping[str, Rows], models: Mapping[str, ModelConfig]) -> Bounds:
        """As ``Operator.bounds``: the tasks of each environment, and of a model the requests and their repairs."""
        # One more action than calls, which ends the episode.
        proposed = self.proposed_rows(rows["of"], self.length[1] + 1)
        calls = {"generator": product(proposed.n, 1 + self.repairs)} if self.policy else {}
        return Bounds(reads=proposed.n, rows=proposed, asked=asked_of(models, calls, self.sampling))

    def check_inputs(self, inputs: Inputs) -> None:
        """As ``EnvironmentTasks.check_inputs``; all environments must be of family ``toolbox``."""
        super().check_inputs(inputs)
        self.families(frozenset[str]().union(*(distinct(table, "family") for table in inputs["of"])))

    def families(self, reads: frozenset[str] | None) -> frozenset[str] | None:
        """As ``Operator.families``. Raises ``UserError`` for other families than ``toolbox``."""
        others = sorted((reads or frozenset()) - {FAMILY})
        if others:
            raise UserError(
                f"call_first needs environments of family {FAMILY}; those of `of` are of family {', '.join(others)}\n"
                "use `propose` for tasks of these, or `corpus_tasks` for those of family search",
                ErrorCode.KEY_NOT_FOR_THIS,
            )
        return reads

    def notes(self, manifest: Manifest) -> list[str]:
        """A warning of tasks that were not made."""
        return self.too_few_notes(
            manifest, f"some environments have too few different chains of {self.length[0]} to {self.length[1]} calls"
        )

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The proposals."""
        settings = context.models["generator"].settings({}) if self.policy else None
        numbers = self.numbers(inputs, context)
        return CallFirstProposals(numbers, self.length, self.changing, settings, self.repairs, self.window)


class CallFirstProposals(DrawnProposals):
    """Chains of an environment, drawn together so that they differ; a model writes each request, if there is one."""

    def __init__(
        self,
        numbers: Numbers,
        length: tuple[int, int],
        changing: float,
        settings: PolicySettings | None,
        repairs: int,
        window: int,
    ) -> None:
        super().__init__(numbers, settings, window, "call_first")
        self._length = length
        self._changing = changing
        self._repairs = repairs

    def draw(self, record: EnvironmentSpec) -> Drawn:
        """The chains of an environment."""
        made = list(CallChains(self._length).proposals(record, self._n, self._changing, self._numbers.seed))
        return made + made[-1:] * (self._n - len(made)), {}

    async def process(self, record: EnvironmentSpec, unit: Unit) -> Iterable[Result]:
        """The task of a number, in its split."""
        (input_id,), number = unit, int(unit.data)
        tasks, _ = self.drawn(record)
        made, measures = tasks[number], dict[str, float]()
        if isinstance(made, Task) and self._policy is not None:
            made = await self._translated(record, made, input_id)
            measures = self._tokens(input_id)
        result = result_of(input_id, made, self, self._numbers.split(record, number))
        return [msgspec.structs.replace(result, measures=measures)]

    async def _translated(self, record: EnvironmentSpec, task: Task, input_id: str) -> Task | GenerationError:
        """The task with a request of the model, or why there is none. Raises ``PolicyError``."""
        translator = BackTranslator(self._counting_policy(input_id), self._repairs)
        try:
            return await translator.write(record, task, derive_seed("call_first", task.task_id))
        except GenerationError as error:
            return error
