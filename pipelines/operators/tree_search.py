"""``tree_search``: search trees of tasks, the episodes that end in them, and their nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

from pydantic import Field, model_validator

from agentmill.pipelines.operators.bounds import Most, for_words, least, mapped, product
from agentmill.pipelines.operators.operator import StepContext
from agentmill.pipelines.operators.rollout import Acting, Episodes
from agentmill.pipelines.operators.rollout_operation import NODES
from agentmill.pipelines.serving.models import ModelConfig, check_tokenizer_known
from agentmill.pipelines.serving.served_model import ServedModel
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.manifest import Manifest
from agentmill.synthesis.policies.policy import PolicySettings
from agentmill.synthesis.policies.reward_model import SCORER
from agentmill.synthesis.rollouts.parameters import EpisodeParameters
from agentmill.synthesis.rollouts.step import ACTOR
from agentmill.synthesis.strategies.search.search import CRITIC
from agentmill.synthesis.strategies.tree_search import CLIPPED, UNSCORED
from agentmill.synthesis.strategies.tree_search import TreeSearch as TreeSearchStrategy

WITHOUT_LOGPROBS = ("openai", "expert", "scripted")
"""Policies that give no log-probabilities of what they say."""


class TreeSearch(Episodes, TreeSearchStrategy):
    """k search trees per task: the trajectories that end in them, and a table of nodes with visits, Q and priors."""

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
        if self.priors == "logprob" and models[ACTOR].policy in WITHOUT_LOGPROBS:
            raise UserError(
                f"`priors: logprob` needs log-probabilities; policy {models[ACTOR].policy!r} gives none, `vllm` does"
                "\ntake `priors: frequency`, or, where the endpoint is a server of vLLM, set `policy: vllm`",
                ErrorCode.KEY_NOT_FOR_THIS,
            )
        if SCORER in models:
            check_tokenizer_known(models[SCORER], self.tokenizer)

    def settings(self, role: str, model: ServedModel) -> PolicySettings:
        """As ``Acting.settings``; a scorer is sent tokens."""
        return model.scorer_settings(self.tokenizer) if role == SCORER else super().settings(role, model)

    def draws(self) -> tuple[str, int]:
        """The turns from one state, or else trees."""
        return ("branching", self.branching) if self.branching > 1 else super().draws()

    def episodes_of_piece(self, turns: Most) -> Most:
        """The leaves of a tree: no more than turns that were drawn, and one where none was."""
        return least(self._drawn(turns), self.max_calls, self.max_steps)

    def side_rows(self, turns: Most) -> Most:
        """The nodes of a tree: its root, and one for each turn."""
        drawn = least(self._all_drawn(turns), self.max_calls, self.max_steps)
        return mapped(drawn, lambda n: n + 1)

    def calls_of_piece(self, turns: Most) -> dict[str, Most]:
        """The turns that are drawn, and for each state a score, or three answers of the critic, three times."""
        calls = {"actor": least(self._all_drawn(turns), self.max_calls)}
        if self.critic is not None:
            states = mapped(self._drawn(turns), lambda n: n + 1)
            calls[CRITIC] = least(for_words(for_words(states)), self.max_calls)
        if self.scorer is not None:
            calls[SCORER] = least(mapped(self._drawn(turns), lambda n: n + 1), self.max_calls)
        return {**calls, **self._summaries(calls["actor"])}

    def _drawn(self, turns: Most) -> Most:
        """The most turns that expanding states draws in a tree."""
        if self.method == "beam":
            return product(turns, self.width, self.branching)
        return self.iterations * self.branching

    def _all_drawn(self, turns: Most) -> Most:
        """With those of rollouts, which each go on from a state that was drawn, or from the start."""
        drawn = self._drawn(turns)
        if self.value != "rollout":
            return drawn
        rolled_out = self.iterations if self.method == "mcts" else mapped(drawn, lambda n: n + 1)
        further = product(rolled_out, turns)
        return None if drawn is None or further is None else drawn + further

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
