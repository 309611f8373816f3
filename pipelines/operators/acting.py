"""What all stages in which policies act have in common: who acts, where, how long, and from which seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import Field, model_validator

from agentmill.pipelines.operators.annotations import check_constrained
from agentmill.pipelines.operators.rollout import Actors
from agentmill.pipelines.operators.splits import check_chosen
from agentmill.pipelines.operators.stage import Inputs, Stage, StageContext, TableNames, expect
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.config import Config
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import JsonObject
from agentmill.synthesis.rollouts.parameters import EpisodeParameters

S = TypeVar("S", bound=Config)

EXPERT = "expert"
SAMPLED = ("openai", "vllm")
"""The policies whose turns are sampled."""

HELPERS = ("summarizer", "critic")
"""Roles that take no turn."""


class Acting(EpisodeParameters, Stage):
    """Episodes by a policy, explored by a strategy; the fields that a strategy has, too, are handed on to it."""

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
        """Raises ``UserError`` where the draws of a model on one prompt would all be the same."""
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
        """As ``Stage.wants_admissible``."""
        return "constrain: admissible" if self.constrain == "admissible" else None

    def examine(self, inputs: Inputs) -> None:
        """``split`` and ``share`` must leave something to play, ``constrain`` something to choose from."""
        check_constrained(self, inputs)
        tables = inputs[self.primary]
        if (self.split is not None or self.share < 1) and any(table.manifest.counts.written for table in tables):
            check_chosen(tables, [self.split], self.share)

    def sampling(self, role: str) -> JsonObject:
        """Temperature and tokens, where given, for who acts."""
        given = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return {name: value for name, value in given.items() if value is not None} if role == "actor" else {}

    def settled(self, context: StageContext) -> JsonObject:
        """As ``Stage.settled``, with the seed and the round that hold.

        Raises ``UserError`` where nobody could write the notes.
        """
        if self.context == "notes" and self.summarizer is None and context.models["actor"].config.policy == EXPERT:
            raise UserError(
                f"the expert {self.policy!r} acts and has no words: name a `summarizer` for `context: notes`",
                ErrorCode.NEEDS_ANOTHER_KEY,
            )
        return {**super().settled(context), "seed": self._seed(context), "round": context.round}

    def actors(self, context: StageContext) -> Actors:
        """Who acts on what."""
        return Actors(
            policies={role: model.settings(self.sampling(role)) for role, model in context.models.items()},
            split=self.split,
            share=self.share,
            seed=self._seed(context),
            round=context.round,
        )

    def strategy(self, strategy_type: type[S]) -> S:
        """The strategy, from the fields that it shares with this stage."""
        shared = [name for name in strategy_type.model_fields if name in type(self).model_fields]
        values: dict[str, Any] = {name: getattr(self, name) for name in shared}
        return strategy_type(**values)

    def window_of(self, context: StageContext) -> int:
        """Episodes in flight, by default as many as the servers of the actor can use."""
        return self.window or context.models["actor"].window

    def _seed(self, context: StageContext) -> int:
        return context.seed if self.seed is None else self.seed
