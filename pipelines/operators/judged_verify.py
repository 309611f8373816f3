"""Verification by models, judges or a scorer: as many trajectories at a time as their servers take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
from pydantic import Field, field_validator

from agentmill.pipelines.engine.operation import AnyOperation, AsyncOperation, Blamed, Result, Unit
from agentmill.pipelines.operators.bounds import Bounds, Rows, asked_of, product
from agentmill.pipelines.operators.lookup import Lookup
from agentmill.pipelines.operators.operator import Inputs, StepContext, TableNames
from agentmill.pipelines.operators.rollout import refuse_planners, stand_in_notes
from agentmill.pipelines.operators.verify import LABELS, Verify, no_task, verdict_measures
from agentmill.pipelines.serving.models import ModelConfig, check_tokenizer_known
from agentmill.pipelines.serving.served_model import ServedModel
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Verdict
from agentmill.synthesis.policies import make_policies
from agentmill.synthesis.policies.policy import Policy, PolicySettings, exhausted
from agentmill.synthesis.policies.reward_model import SCORER
from agentmill.synthesis.rollouts.call_budget import Budget, metered_policy, tokens_of
from agentmill.synthesis.verifiers.judging import Judge, Panel, judge_name
from agentmill.synthesis.verifiers.verifier import Finding, ModelVerifier, findings

ROLE = "judge"
"""Judges have the roles ``judge1``, ``judge2`` …, in the order of the recipe."""


class ModelVerify(Verify):
    """Verdicts on each trajectory by a verifier that asks models."""

    incidental: ClassVar[Sequence[str]] = ("window",)

    window: int | None = Field(default=None, ge=1, description="trajectories in flight per worker")

    def model_verifier(self) -> ModelVerifier:
        """The verifier with its parameters."""
        made = self.verifier()
        assert isinstance(made, ModelVerifier)
        return made

    def settings(self, models: Mapping[str, ServedModel]) -> dict[str, PolicySettings]:
        """How the models are asked, by role."""
        return {role: model.settings(self.sampling(role)) for role, model in models.items()}

    def seed_of(self, context: StepContext) -> int:
        """The seed that answers derive from."""
        return context.seed

    def notes(self, manifest: Manifest) -> list[str]:
        """As ``Verify.notes``, with a warning of answers that were drawn."""
        return [*super().notes(manifest), *stand_in_notes(manifest, "its answers are drawn, and say nothing")]

    def bounds(self, rows: Mapping[str, Rows], models: Mapping[str, ModelConfig]) -> Bounds:
        """As ``Verify.bounds``, with what each model is asked of each trajectory."""
        found, verifier = super().bounds(rows, models), self.model_verifier()
        read, judges = rows["of"], self.policies()
        answers = product(read.n, verifier.most_answers(read.turns, len(judges)))
        return msgspec.structs.replace(
            found,
            # Verdicts or labels on single steps are as many as there are steps.
            rows=Rows() if verifier.writes_labels else found.rows,
            asked=asked_of(models, dict.fromkeys(judges, answers), self.sampling, self.scorer_roles),
            factors={"trajectories": read.n},
        )

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The verdicts."""
        window = self.window or max((model.window for model in context.models.values()), default=1)
        return Judging(
            self.model_verifier(),
            self.lookup(inputs, "tasks", Task),
            self.settings(context.models),
            self.seed_of(context),
            window,
        )


class ScoredVerify(ModelVerify):
    """The scores of a reward model."""

    model_roles: ClassVar[Mapping[str, str]] = {SCORER: SCORER}
    scorer_roles: ClassVar[Sequence[str]] = (SCORER,)
    tokenizers: ClassVar[Sequence[str]] = ("tokenizer",)

    scorer: str = Field(description="the reward model: an entry of models, or the name of a step that trained it")
    tokenizer: str | None = Field(
        default=None, description="folder with the tokenizer of a model behind endpoints; else that of the model"
    )

    def check_models(self, models: Mapping[str, ModelConfig]) -> None:
        """Raises ``UserError`` where it is not clear what tokens the model reads."""
        check_tokenizer_known(models[SCORER], self.tokenizer)

    def settings(self, models: Mapping[str, ServedModel]) -> dict[str, PolicySettings]:
        """How the reward model is asked."""
        return {role: model.scorer_settings(self.tokenizer) for role, model in models.items()}


class JudgedVerify(ModelVerify):
    """Verdicts of models on each trajectory."""

    judges: TableNames | None = Field(default=None, description="the models that judge: one, or several as a jury")
    temperature: float = Field(default=0.0, ge=0, description="of the judges, before that of the model")
    max_tokens: int = Field(default=1024, ge=1, description="per answer, before that of the model")
    seed: int | None = Field(default=None, description="by default derived from that of the run")

    @field_validator("judges")
    @classmethod
    def _differ(cls, judges: list[str] | None) -> list[str] | None:
        if judges is not None and len(set(judges)) < len(judges):
            raise ValueError(f"`judges` names a model twice: {', '.join(judges)}")
        return judges

    def policies(self) -> dict[str, str]:
        """The judges, by the place in the recipe."""
        return {f"{ROLE}{number}": name for number, name in enumerate(self.judges or (), 1)}

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """As ``Verify.writes``. Raises ``UserError``, also as ``check_judges``."""
        self.check_judges()
        return super().writes(reads)

    def check_judges(self) -> None:
        """Raises ``UserError`` for judges that are missing, or that nothing is asked of."""
        asks = self.model_verifier().asks_models()
        if asks and not self.judges:
            raise UserError("`judges` is missing: name the models that judge", ErrorCode.NEEDS_ANOTHER_KEY)
        if self.judges and not asks:
            raise UserError(
                "`judges` is given, and nothing here is asked of a model; leave it out", ErrorCode.KEY_NOT_FOR_THIS
            )
        if self.judges:
            self.model_verifier().check_judge_count(len(self.judges))

    def check_models(self, models: Mapping[str, ModelConfig]) -> None:
        """Raises ``UserError`` for a judge that cannot write."""
        refuse_planners(models, "judge")

    def sampling(self, role: str) -> JsonObject:
        """Temperature and tokens, as given here."""
        del role
        return {"temperature": self.temperature, "max_tokens": self.max_tokens}

    def provenance_config(self, context: StepContext) -> JsonObject:
        """As ``Operator.provenance_config``, with the seed that holds."""
        given = super().provenance_config(context)
        given.pop("judges", None)  # they are among the models
        return {**given, "seed": self.seed_of(context)}

    def seed_of(self, context: StepContext) -> int:
        """The seed that is given, or that of the step."""
        return context.seed if self.seed is None else self.seed


class Judging(AsyncOperation[Trajectory, Verdict]):
    """The verdicts of a verifier that asks models. What is journalled is not asked again."""

    blamed: ClassVar[Blamed] = "verifier"

    def __init__(
        self,
        verifier: ModelVerifier,
        tasks: Lookup[Task] | None,
        settings: Mapping[str, PolicySettings],
        seed: int,
        window: int,
    ) -> None:
        super().__init__(verifier.name, Trajectory, Verdict, window)
        self.sides = (LABELS,) if verifier.writes_labels else ()
        self._verifier = verifier
        self._tasks = tasks
        self._settings = dict(settings)
        self._seed = seed
        self._policies: dict[str, Policy] = {}
        self._budgets: dict[str, Budget] = {}

    async def open(self) -> None:
        """Load the tasks, if any are needed, and make the judges."""
        if self._tasks is not None:
            self._tasks.load()
        self._policies = make_policies(self._settings)

    async def close(self) -> None:
        """Close the judges."""
        for policy in self._policies.values():
            await policy.close()
        self._policies = {}

    def exhausted(self) -> str | None:
        """The budget that is spent, if one is."""
        return exhausted(self._policies.values())

    async def process(self, record: Trajectory, unit: Unit) -> Iterable[Result]:
        """The verdicts and labels of a trajectory; one whose task is unknown is dropped."""
        (input_id,) = unit
        task = self._tasks.get(record.task_id) if self._tasks is not None else None
        if task is None and self._tasks is not None:
            return [no_task(self.name, input_id, record)]
        budget = self._budgets[input_id] = Budget(None, None)
        judges = [Judge(judge_name(each), metered_policy(each, role, budget)) for role, each in self._policies.items()]
        found = findings(self._verifier, record, await self.found(task, record, Panel(judges, self._seed)))
        del self._budgets[input_id]
        sides = {LABELS: found.labels} if found.labels else {}
        return [Result(input_id=input_id, outputs=found.verdicts, sides=sides)]

    async def found(self, task: Task | None, record: Trajectory, panel: Panel) -> Verdict | Sequence[Finding]:
        """What the verifier writes of a trajectory."""
        return await self._verifier.judge(task, record, panel)

    def dropped_measures(self, unit: Unit) -> Mapping[str, float]:
        """Tokens and costs of a trajectory that is dropped, as ``lost_…``."""
        budget = self._budgets.pop(unit[0], None)
        return {f"lost_{name}": value for name, value in tokens_of(budget.usage).items()} if budget is not None else {}

    def measures(self, output: Verdict) -> Mapping[str, float]:
        """As ``Verification.measures``, with tokens and costs."""
        usage = output.evidence.get("usage", {}) if output.name == self._verifier.name else {}
        return {**verdict_measures(self._verifier.name, output), **usage}

    def side_measures(self, output: Any) -> Mapping[str, float]:
        """How many labels there are."""
        del output
        return {"labels": 1}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_policies": {}}
