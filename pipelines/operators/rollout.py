"""Operators in which policies act: the parameters that all of them share, and one operator per registered strategy."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, cast

import msgspec
from pydantic import Field, create_model, model_validator

from agentmill.pipelines.engine.operation import AnyOperation
from agentmill.pipelines.operators.annotations import check_constrained
from agentmill.pipelines.operators.lookup import Lookup
from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.rollout_operation import NODES, Actors, Rollout, SideTables
from agentmill.pipelines.operators.selection import SelectionParameters
from agentmill.pipelines.operators.splits import check_chosen
from agentmill.pipelines.serving.models import ModelConfig, check_tokenizer_known
from agentmill.pipelines.serving.served_model import ServedModel
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.verdict import TaskSelection
from agentmill.schemas.views.view import Unused
from agentmill.synthesis.policies.policy import PolicySettings
from agentmill.synthesis.policies.reward_model import SCORER
from agentmill.synthesis.rollouts.parameters import EpisodeParameters
from agentmill.synthesis.rollouts.roles import NotInTask
from agentmill.synthesis.rollouts.step import ACTOR
from agentmill.synthesis.rollouts.strategy import Strategy
from agentmill.synthesis.strategies.multi_agent import MultiAgent as MultiAgentStrategy
from agentmill.synthesis.strategies.sample import Sample
from agentmill.synthesis.strategies.search.search import CRITIC
from agentmill.synthesis.strategies.tree_search import CLIPPED, UNSCORED
from agentmill.synthesis.strategies.tree_search import TreeSearch as TreeSearchStrategy

EXPERT = "expert"
SAMPLED = ("openai", "vllm")
"""The policies whose turns are sampled."""

HELPERS = ("summarizer", CRITIC, SCORER)
"""Roles that take no turn."""


class Acting(EpisodeParameters, Operator):
    """Episodes by a policy. An operator of a strategy inherits the parameters of the strategy, too."""

    strategy_type: ClassVar[type[EpisodeParameters]]
    model_roles: ClassVar[Mapping[str, str]] = {"actor": "policy", "summarizer": "summarizer"}
    incidental: ClassVar[Sequence[str]] = ("window",)

    policy: str = Field(description="the model that acts: an entry of models, @base or @last")
    summarizer: str | None = Field(
        default=None, description="the model that sums up old turns, for context: fold, or notes"
    )
    environments: TableNames = Field(description="tables of the environments of these tasks")
    split: str | None = Field(default=None, description="only tasks of this split; all of them by default")
    share: float = Field(default=1.0, gt=0, le=1, description="of these tasks only so many, chosen by their ids")
    temperature: float | None = Field(default=None, ge=0, description="before the temperature of the model")
    max_tokens: int | None = Field(default=None, ge=1, description="per turn, before that of the model")
    seed: int | None = Field(default=None, description="by default derived from that of the run")
    window: int | None = Field(default=None, ge=1, description="episodes in flight per worker")

    @model_validator(mode="after")
    def _a_summarizer_to_fold(self) -> Acting:
        if self.context != "notes" and (self.context == "fold") != (self.summarizer is not None):
            raise ValueError("`context: fold` and `summarizer` go together")
        return self

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Trajectories, in environments."""
        expect(reads, "environments", "EnvironmentSpec")
        return "Trajectory"

    def check_models(self, models: Mapping[str, ModelConfig]) -> None:
        """Raises ``UserError`` where the draws of a model on one prompt would all be the same.

        Also for an expert that is to answer without tools: it knows actions, and no words.
        """
        if isinstance(self, Sample) and self.tools == "none" and models["actor"].policy == EXPERT:
            raise UserError(
                f"`tools: none` asks for an answer in words, and the expert {self.policy!r} has none: "
                "name a model as `policy`",
                ErrorCode.KEY_NOT_FOR_THIS,
            )
        parameter, n = self.draws()
        sampled = [
            {**config.sampling.model_dump(), **self.sampling(role)}
            for role, config in models.items()
            if role not in HELPERS and config.policy in SAMPLED
        ]
        # pass@k, best-of-n, pairs and trees over equal draws look like results and mean nothing, so this is no warning.
        if n > 1 and sampled and all(each["temperature"] == 0 or each["top_k"] == 1 for each in sampled):
            what = "turns" if parameter == "branching" else "episodes"
            raise UserError(
                f"{parameter}: {n} with temperature 0 makes {n} equal {what}, since only the likeliest token is taken\n"
                f"give a temperature above 0 (here, or in the model's sampling), or {parameter}: 1",
                ErrorCode.DRAWS_EQUAL,
            )

    def draws(self) -> tuple[str, int]:
        """The parameter that lets a model act several times on the same prompt, and how often."""
        return "k", getattr(self, "k", 1)

    def wants_admissible(self) -> str | None:
        """As ``Operator.wants_admissible``."""
        return "constrain: admissible" if self.constrain == "admissible" else None

    def check_inputs(self, inputs: Inputs) -> None:
        """``split`` and ``share`` must leave something to play, ``constrain`` something to choose from."""
        check_constrained(self, inputs)
        tables = inputs[self.primary]
        # A table without rows is refused by the stage, which says what became of them.
        if (self.split is not None or self.share < 1) and any(table.manifest.counts.written for table in tables):
            check_chosen(tables, [self.split], self.share)

    def sampling(self, role: str) -> JsonObject:
        """Temperature and tokens, where given, for who acts."""
        given = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return {name: value for name, value in given.items() if value is not None} if role == "actor" else {}

    def provenance_config(self, context: StepContext) -> JsonObject:
        """As ``Operator.provenance_config``, with the seed and the round that hold.

        Raises ``UserError`` where nobody could write the notes.
        """
        if self.context == "notes" and self.summarizer is None and context.models["actor"].config.policy == EXPERT:
            raise UserError(
                f"the expert {self.policy!r} acts and cannot write: name a `summarizer` for `context: notes`",
                ErrorCode.NEEDS_ANOTHER_KEY,
            )
        return {**super().provenance_config(context), "seed": self._seed(context), "round": context.round}

    def actors(self, context: StepContext) -> Actors:
        """Who acts on what."""
        return Actors(
            policies={role: self.settings(role, model) for role, model in context.models.items()},
            split=self.split,
            share=self.share,
            seed=self._seed(context),
            round=context.round,
        )

    def settings(self, role: str, model: ServedModel) -> PolicySettings:
        """How a model is asked in its role."""
        return model.settings(self.sampling(role))

    def strategy(self) -> Strategy:
        """The strategy with its parameters."""
        values = {name: getattr(self, name) for name in self.strategy_type.model_fields}
        return cast(Strategy, self.strategy_type(**values))

    def side_tables(self, inputs: Inputs) -> SideTables:
        """The environments, and the tasks where it reads trajectories."""
        tasks = Lookup(tables_of(inputs, "tasks"), Task) if self.primary != "tasks" else None
        return SideTables(environments=Lookup(tables_of(inputs, "environments"), EnvironmentSpec), tasks=tasks)

    def window_of(self, context: StepContext) -> int:
        """Episodes in flight, by default as many as the servers of the actor can use."""
        return self.window or context.models["actor"].window

    def _seed(self, context: StepContext) -> int:
        return context.seed if self.seed is None else self.seed


class Episodes(SelectionParameters, Acting):
    """Episodes of tasks. ``operator_of`` makes an operator of any strategy."""

    primary: ClassVar[str] = "tasks"
    verb: ClassVar[str | None] = "rollout"
    table_roles: ClassVar[Sequence[str]] = ("tasks", "environments", "selections")
    selectable: ClassVar[Sequence[str]] = (TaskSelection.__name__,)

    tasks: TableNames = Field(description="tables of tasks")

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Trajectories, from tasks."""
        expect(reads, "tasks", "Task")
        self.check_selections(reads)
        return super().writes(reads)

    def check_inputs(self, inputs: Inputs) -> None:
        """As ``Acting.check_inputs``; selections of tasks must be of these."""
        super().check_inputs(inputs)
        self.selected(inputs, inputs["tasks"], TaskSelection)

    def side_tables(self, inputs: Inputs) -> SideTables:
        """With what decides which tasks are played, too."""
        selected = self.selected(inputs, tables_of(inputs, "tasks"), TaskSelection)
        return msgspec.structs.replace(super().side_tables(inputs), selected=selected)

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The episodes."""
        tables, window = self.side_tables(inputs), self.window_of(context)
        return Rollout(context.operator, self.strategy(), tables, self.actors(context), window, sides=self.sides)


@functools.cache
def operator_of(strategy_type: type[EpisodeParameters]) -> type[Episodes]:
    """The operator of a registered strategy: its fields are parameters of the step."""
    made: type[Episodes] = create_model(
        strategy_type.__name__,
        __base__=cast("tuple[type[Episodes], ...]", (Episodes, strategy_type)),
        __doc__=strategy_type.__doc__,
        __module__=strategy_type.__module__,
    )
    made.strategy_type = strategy_type
    return made


class Expert(Episodes, Sample):
    """Demonstrations by a planner, an oracle or a gold replay: the same episodes as those of sample."""

    strategy_type: ClassVar[type[EpisodeParameters]] = Sample

    policy: str = Field(default="expert", description="an entry of models whose policy is an expert")


class MultiAgent(Episodes, MultiAgentStrategy):
    """Episodes of several agents: planner and actor, actor and critic, agent and simulated user, specialists."""

    strategy_type: ClassVar[type[EpisodeParameters]] = MultiAgentStrategy

    policy: str = Field(description="the model that plays all roles without one in `models`")
    models: dict[str, str] = Field(default={}, description="models of roles that have their own, by role")

    @model_validator(mode="after")
    def _known_roles(self) -> Self:
        names = [role.name for role in self.roles]
        for name in self.models:
            if name == ACTOR:
                raise ValueError(f"`models` names {name!r}, whose model is `policy`")
            if name not in names:
                known = ", ".join(names)
                raise ValueError(f"`models` names {name!r}; the `roles` are {known}.{near_match(name, names)}")
        return self

    def policies(self) -> dict[str, str]:
        """The models by role; those without one of their own are played by that of the actor."""
        return {**super().policies(), **self.models}

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The episodes."""
        strategy, tables = self.strategy(), self.side_tables(inputs)
        assert isinstance(strategy, MultiAgentStrategy)
        return MultiAgentRollout(context.operator, strategy, tables, self.actors(context), self.window_of(context))


class MultiAgentRollout(Rollout):
    """As ``Rollout``; a task without what an agent should know in it is dropped as one input."""

    def __init__(
        self, name: str, strategy: MultiAgentStrategy, tables: SideTables, actors: Actors, window: int
    ) -> None:
        super().__init__(name, strategy, tables, actors, window)
        self._roles = strategy.roles

    def refused(self, record: Any) -> Unused | None:
        """Also a task without what one of the agents should know."""
        try:
            for role in self._roles:
                role.knowledge(record)
        except NotInTask as error:
            return Unused(error.reason, str(error))
        return super().refused(record)


class TreeSearch(Episodes, TreeSearchStrategy):
    """Search trees: the runs that end in them, and a table of nodes with visits, Q and priors."""

    strategy_type: ClassVar[type[EpisodeParameters]] = TreeSearchStrategy
    model_roles: ClassVar[Mapping[str, str]] = {**Acting.model_roles, CRITIC: CRITIC, SCORER: SCORER}
    scorer_roles: ClassVar[Sequence[str]] = (SCORER,)
    tokenizers: ClassVar[Sequence[str]] = ("tokenizer",)
    sides: ClassVar[Sequence[str]] = (NODES,)

    critic: str | None = Field(default=None, description="the model that scores states, for value: critic")
    scorer: str | None = Field(
        default=None,
        description="the reward model that scores states, for value: scorer: an entry of models, or the name of a step "
        "that trained it",
    )
    tokenizer: str | None = Field(
        default=None, description="folder with the tokenizer of a scorer behind endpoints; else that of the model"
    )
    window: int | None = Field(default=None, ge=1, description="trees in flight per worker")

    @model_validator(mode="after")
    def _a_model_to_ask(self) -> Self:
        for role, model in ((CRITIC, self.critic), (SCORER, self.scorer)):
            if (model is None) == (self.value == role):
                raise ValueError(f"`{role}` names the model for `value: {role}`; give both or none")
        if self.tokenizer is not None and self.scorer is None:
            raise ValueError("`tokenizer` is that of a `scorer`; leave it out")
        return self

    def check_models(self, models: Mapping[str, ModelConfig]) -> None:
        """As ``Acting.check_models``. Raises ``UserError`` where it is not clear what tokens the scorer reads."""
        super().check_models(models)
        if SCORER in models:
            check_tokenizer_known(models[SCORER], self.tokenizer)

    def settings(self, role: str, model: ServedModel) -> PolicySettings:
        """As ``Acting.settings``; a scorer is sent tokens."""
        return model.scorer_settings(self.tokenizer) if role == SCORER else super().settings(role, model)

    def draws(self) -> tuple[str, int]:
        """The turns from one state, or else trees."""
        return ("branching", self.branching) if self.branching > 1 else super().draws()

    def notes(self, manifest: Manifest) -> list[str]:
        """Warnings where critic or scorer left states without a value, and where scores were clipped."""
        unscored, clipped, nodes = (
            manifest.metrics.get(name, 0) for name in (f"tree_{UNSCORED}", f"tree_{CLIPPED}", "nodes")
        )
        found = [
            (
                unscored,
                f"warning: the {self.value} gave no score that can be used for {unscored:,.0f} of {nodes:,.0f} states",
            ),
            (clipped, f"warning: {clipped:,.0f} scores lie outside of `score_from` and `score_to`"),
        ]
        return [line for n, line in found if n]

    def window_of(self, context: StepContext) -> int:
        """As many trees as keep the servers as busy as episodes would: each tree asks for several turns at once."""
        together = self.branching if self.window is None else 1
        return max(1, super().window_of(context) // together)
