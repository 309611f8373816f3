"""Operators in which policies act: the parameters that all of them share, and one operator per registered strategy."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import msgspec
from pydantic import Field, create_model, model_validator

from agentmill.pipelines.engine.operation import AnyOperation
from agentmill.pipelines.operators.annotations import check_constrained
from agentmill.pipelines.operators.bounds import (
    Bounds,
    Most,
    Rows,
    asked_of,
    for_words,
    least,
    mapped,
    most,
    of_share,
    product,
)
from agentmill.pipelines.operators.lookup import Lookup
from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.rollout_operation import Actors, Rollout, SideTables
from agentmill.pipelines.operators.selection import SelectionParameters
from agentmill.pipelines.operators.splits import check_chosen, check_split
from agentmill.pipelines.serving.models import SAMPLED, ModelConfig
from agentmill.pipelines.serving.served_model import ServedModel
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.verdict import TaskSelection
from agentmill.synthesis.policies.mistakes import EXPERT
from agentmill.synthesis.policies.policy import PolicySettings
from agentmill.synthesis.policies.reward_model import SCORER
from agentmill.synthesis.rollouts.parameters import EpisodeParameters
from agentmill.synthesis.rollouts.strategy import Strategy
from agentmill.synthesis.strategies.sample import Sample
from agentmill.synthesis.strategies.search.search import CRITIC

HELPERS = ("summarizer", CRITIC, SCORER)
"""Roles that take no turn."""


def is_planner(model: ModelConfig) -> bool:
    """Whether a model is an expert that never errs: it keeps to its plan, and writes no words."""
    return model.policy == EXPERT and not model.stands_in


def refuse_planners(models: Mapping[str, ModelConfig], verb: str) -> None:
    """Raises ``UserError`` for a planner among models that are to write."""
    if any(is_planner(config) for config in models.values()):
        raise UserError(f"the policy `expert` plans and cannot {verb}; name a model", ErrorCode.KEY_NOT_FOR_THIS)


def stand_in_notes(manifest: Manifest, instead: str) -> list[str]:
    """A warning of experts that stand in for models that write; ``instead`` says what comes of them."""
    models: Any = manifest.config.get("models") or {}
    roles = ", ".join(role for role, model in models.items() if model.get("policy") == EXPERT)
    return [f"warning: an expert that errs stands in for {roles}: {instead}"] if roles else []


class Acting(EpisodeParameters, Operator):
    """Episodes by a policy. An operator of a strategy inherits the parameters of the strategy, too."""

    strategy_type: ClassVar[type[EpisodeParameters]]
    model_roles: ClassVar[Mapping[str, str]] = {"actor": "policy", "summarizer": "summarizer"}
    incidental: ClassVar[Sequence[str]] = ("window",)
    scaffold_of_parents: ClassVar[bool] = False
    """Whether episodes are played in the scaffold of the trajectory that they go on from."""

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

    def drawing(self, models: Mapping[str, ModelConfig]) -> list[str]:
        """The roles in ``models`` of which one must draw for several episodes of one prompt to differ."""
        return [role for role in models if role not in HELPERS]

    def choosing(self, models: Mapping[str, ModelConfig]) -> list[str]:
        """The roles in ``models`` that choose among the admissible actions, where there is a choice."""
        return self.drawing(models)

    def check_models(self, models: Mapping[str, ModelConfig]) -> None:
        """Raises ``UserError`` where the draws of a model on one prompt would all be the same.

        Also for an expert that is to answer without tools, or to write notes: it knows actions, and no words; and for a
        model that is to choose among admissible actions behind an API that has no words for that.
        """
        self._check_choosing(models)
        if isinstance(self, Sample) and self.tools == "none" and is_planner(models["actor"]):
            raise UserError(
                f"`tools: none` asks for an answer in words, and the expert {self.policy!r} has none: "
                "name a model as `policy`",
                ErrorCode.KEY_NOT_FOR_THIS,
            )
        text = self.scaffold == "text" and not self.scaffold_of_parents
        if text and any(config.thoughts for config in models.values()):
            raise UserError(
                "`thoughts` of an expert go before its actions, and `scaffold: text` asks for commands alone\n"
                "give the step `scaffold: react` or `scaffold: tools`, or name an expert without thoughts",
                ErrorCode.NEEDS_ANOTHER_KEY,
            )
        self._check_notes(models.get("actor"))
        self._check_draws(models)

    def _check_notes(self, actor: ModelConfig | None) -> None:
        # Where recorded turns follow, nobody acts.
        if self.context == "notes" and self.summarizer is None and actor is not None and is_planner(actor):
            raise UserError(
                f"the expert {self.policy!r} acts and cannot write: name a `summarizer` for `context: notes`",
                ErrorCode.NEEDS_ANOTHER_KEY,
            )

    def _check_draws(self, models: Mapping[str, ModelConfig]) -> None:
        parameter, n = self.draws()
        drawing = self.drawing(models)
        sampled = [
            {**config.extra_body, **config.sampling.model_dump(), **self.sampling(role)}
            for role, config in models.items()
            if role in drawing and config.policy in SAMPLED
        ]
        likeliest = [each["temperature"] == 0 or each["top_k"] == 1 for each in sampled]
        seeded = [each.get("seed") is not None for each in sampled]
        # pass@k, best-of-n, pairs and trees over equal draws look like results and mean nothing, so this is no warning.
        if n > 1 and sampled and all(map(any, zip(likeliest, seeded, strict=True))):
            what = "turns" if parameter == "branching" else "episodes"
            makes = f"makes {n} equal {what}, since"
            why, instead = (
                (
                    f"temperature 0 {makes} only the likeliest token is taken",
                    "give a temperature above 0 (here, or in the model's sampling)",
                )
                if any(likeliest)
                else (f"a seed in `extra_body` {makes} all are drawn alike", "leave the seed out")
            )
            raise UserError(f"{parameter}: {n} with {why}\n{instead}, or {parameter}: 1", ErrorCode.DRAWS_EQUAL)

    def _check_choosing(self, models: Mapping[str, ModelConfig]) -> None:
        wanted = self.wants_admissible()
        unable = [role for role in self.choosing(models) if models[role].policy == "openai"]
        if wanted and unable:
            raise UserError(
                f"`{wanted}`: policy 'openai' (role {unable[0]}) cannot choose among given answers; `vllm` can\n"
                "leave it out, or, where the endpoint is a server of vLLM, set `policy: vllm`",
                ErrorCode.KEY_NOT_FOR_THIS,
            )

    def draws(self) -> tuple[str, int]:
        """The parameter that lets a model act several times on the same prompt, and how often."""
        return "k", getattr(self, "k", 1)

    def bounds(self, rows: Mapping[str, Rows], models: Mapping[str, ModelConfig]) -> Bounds:
        """As ``Operator.bounds``: the pieces of each record that is played, each of so many episodes.

        Raises ``UserError`` for a split that has none.
        """
        read = rows[self.primary]
        check_split(read, self.split)
        played = of_share(read.of_split(self.split), self.share)
        turns = self.most_turns(rows, models.get("actor"))
        pieces, of_a_piece = self.pieces(rows), self.episodes_of_piece(turns)
        inputs, episodes = product(played, mapped(pieces, lambda n: max(1, n))), product(played, pieces, of_a_piece)
        splits = None if self.split is None or episodes is None else {self.split: episodes}
        per_record = msgspec.structs.replace(read.times(product(pieces, of_a_piece)), turns=turns, plan=None)
        made = per_record if splits is None else msgspec.structs.replace(per_record, splits=splits)
        calls = {role: product(played, pieces, n) for role, n in self.calls_of_piece(turns).items()}
        return Bounds(
            reads=inputs,
            rows=msgspec.structs.replace(made, n=episodes),
            sides={side: Rows(n=product(inputs, self.side_rows(turns))) for side in self.sides},
            episodes=episodes,
            asked=asked_of(models, calls, self.sampling, self.scorer_roles),
            factors={
                "tasks" if self.primary == "tasks" else "trajectories": played,
                "attempts": pieces,
                "episodes": of_a_piece,
                "turns": turns,
            },
        )

    def pieces(self, rows: Mapping[str, Rows]) -> Most:
        """The most pieces that the strategy plans for one record."""
        del rows
        return int(getattr(self, "k", 1))

    def episodes_of_piece(self, turns: Most) -> Most:
        """The most episodes of one piece, each of so many ``turns``."""
        del turns
        return 1

    def side_rows(self, turns: Most) -> Most:
        """The most rows of a side table for one piece."""
        del turns
        return None

    def calls_of_piece(self, turns: Most) -> dict[str, Most]:
        """The most calls of models by role for one piece: a turn of an episode each, and what is summed up."""
        return {"actor": turns, **self._summaries(turns)}

    def _summaries(self, turns: Most) -> dict[str, Most]:
        """The calls of who sums up turns, or writes notes, before each turn."""
        if self.context not in ("fold", "notes"):
            return {}
        # A context that is still too long is summed up again with half as many turns left.
        calls = product(for_words(turns), self.keep_turns.bit_length() + 1)
        return {"actor" if self.summarizer is None else "summarizer": calls}

    def most_turns(self, rows: Mapping[str, Rows], actor: ModelConfig | None) -> Most:
        """The most turns of an episode: those that are given, those of the tasks, for a planner those of its plan.

        Where another agent went no plan is known, and the turns of an episode that is gone on from are repeated.
        """
        if getattr(self, "tools", "all") == "none":
            return 1
        tasks = rows["tasks"]
        limit = self.max_turns or tasks.turns
        if self.primary != "tasks":
            return most([rows[self.primary].turns, limit])
        return least(limit, tasks.plan if actor is not None and is_planner(actor) else None)

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
        actor = context.models.get("actor")
        self._check_notes(None if actor is None else actor.config)
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
