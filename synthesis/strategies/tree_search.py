"""``tree_search``: the turns that a policy might take, tried from the same states and searched by what they are worth.

``mcts``, ``best_first`` and ``beam`` are three orders over the same tree (``search.methods``): Agent Q
(arXiv:2408.07199), R-MCTS (arXiv:2410.02052), Agent-R (arXiv:2501.11425), QLASS (arXiv:2502.02584), tree search of Koh
et al. (arXiv:2407.01476), and with ``beam`` of width 1 the best of n at each step.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from functools import partial
from typing import Any, Literal

from pydantic import Field, model_validator

from agentmill.schemas.ids import digest
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Node
from agentmill.synthesis.policies.reward_model import SCORER, scorer_of
from agentmill.synthesis.rollouts.call_budget import Budget, BudgetSpent, metered
from agentmill.synthesis.rollouts.episode import EpisodePlan, begin
from agentmill.synthesis.rollouts.llm_calls import identity_of
from agentmill.synthesis.rollouts.parameters import Attempts
from agentmill.synthesis.rollouts.step import within
from agentmill.synthesis.rollouts.strategy import Exploration
from agentmill.synthesis.strategies.search.methods import SOLVED, beam, best_first, mcts
from agentmill.synthesis.strategies.search.search import (
    CRITIC,
    Estimate,
    Growing,
    LeafName,
    ReturnName,
    Search,
    StateScores,
    ValueName,
    estimate,
    harvest,
)
from agentmill.synthesis.strategies.search.tree import PriorName, SelectionName

UNSCORED = "unscored_nodes"
"""The cost of a tree that counts the states to which its critic or scorer gave no value."""

CLIPPED = "clipped_scores"
"""The cost of a tree that counts the scores outside of ``score_from`` and ``score_to``."""

MethodName = Literal["mcts", "best_first", "beam"]


class TreeSearch(Attempts):
    """``k`` search trees of a task; a trajectory in them is an episode by the same rules.

    ``episode_timeout_s`` ends a search. ``c`` is to match the range of what a trajectory ``returns``. Some of the
    parameters go with one ``method`` only.
    """

    method: MethodName = Field(default="mcts", description="Monte-Carlo search, best first, or a beam turn by turn")
    branching: int = Field(default=4, ge=1, description="turns drawn from a state; those that do the same are one")
    iterations: int = Field(default=30, ge=1, description="mcts: simulations; best_first: states that are expanded")
    width: int = Field(default=1, ge=1, description="beam: runs kept; 1 is the best of n at each step")
    selection: SelectionName = Field(default="puct", description="mcts: the rule that picks the turn to try next")
    c: float = Field(default=1.0, ge=0, description="mcts: weight of exploration")
    priors: PriorName = Field(
        default="uniform",
        description="of turns: equal, their share of the draws, or that of their probability (vllm)",
    )
    value: ValueName = Field(
        default="rollout",
        description="the value of a state: the return of a rollout, the score of the environment, that of the critic, "
        "or that of the scorer, a reward model",
    )
    score_from: float | None = Field(
        default=None, description="value: scorer: this score is worth 0; by default the logistic function is taken"
    )
    score_to: float | None = Field(default=None, description="value: scorer: this score is worth 1")
    returns: ReturnName = Field(
        default="progress", description="of a run: success (0 or 1), share of the goal, or the sum of its rewards"
    )
    until: Literal["spent", "solved"] = Field(default="spent", description="go on, or end with the first success")
    max_calls: int | None = Field(default=None, ge=1, description="calls of models per tree")
    max_steps: int | None = Field(default=None, ge=1, description="turns per tree")
    leaves: LeafName = Field(default="ended", description="the runs that ended, or those left unfinished, too")
    episode_timeout_s: float = Field(default=7200.0, gt=0, description="seconds that end a search")

    @model_validator(mode="after")
    def _what_fits(self) -> TreeSearch:
        for name, method in (("selection", "mcts"), ("c", "mcts"), ("width", "beam")):
            if self.method != method and self._differs(name):
                raise ValueError(f"`{name}` goes with `method: {method}`")
        if self.method == "beam" and self._differs("iterations"):
            raise ValueError("`iterations` goes with `method: mcts` or `best_first`; a beam ends with its runs")
        scale = (self.score_from, self.score_to)
        if self.value != SCORER and scale != (None, None):
            raise ValueError("`score_from` and `score_to` go with `value: scorer`")
        if (self.score_from is None) is not (self.score_to is None) or (scale[0] is not None and scale[0] == scale[1]):
            raise ValueError("`score_from` and `score_to` are two different scores; give both or none")
        return self

    async def explore(self, exploration: Exploration, trajectory_id: str) -> AsyncIterator[Trajectory | Node]:
        """Yield the runs in the tree with this id, then its nodes."""
        plan = self.plan_of(exploration, trajectory_id)
        budget = Budget(self.max_calls, self.max_steps)
        counted = metered(exploration, budget)
        environment = exploration.make_environment()
        try:
            episode = self.episode(plan, environment, counted, begin(plan, environment))
            scores = self._scores(counted)
            search = Search(self._growing(), episode, environment, self._estimate(counted, scores), budget)
            stopped = await self._searched(search, exploration)
            if search.satisfied:
                stopped = SOLVED
            elif budget.spent:
                stopped = "budget"
            unscored = {UNSCORED: search.unscored} if search.unscored else {}
            clipped = {CLIPPED: scores.clipped} if scores is not None and scores.clipped else {}
            about = {"stopped": stopped, "costs": {**budget.costs(), **unscored, **clipped}}
            for found in harvest(search, self.leaves, about):
                yield found
        finally:
            environment.close()

    async def _searched(self, search: Search, exploration: Exploration) -> str:
        """Search until the end; what ended it."""
        try:
            return await within(self.episode_timeout_s, self._method(search), exploration.refused_s)
        except BudgetSpent:
            return "budget"
        except TimeoutError:
            return "timeout"

    def _method(self, search: Search) -> Coroutine[Any, Any, str]:
        if self.method == "mcts":
            return mcts(search, self.iterations, self.selection, self.c)
        if self.method == "best_first":
            return best_first(search, self.iterations)
        return beam(search, self.width)

    def _scores(self, exploration: Exploration) -> StateScores | None:
        """The scores of the reward model, if it gives values to states."""
        if self.value != SCORER:
            return None
        return StateScores(scorer_of(exploration.policies[SCORER]), self.score_from, self.score_to)

    def _estimate(self, exploration: Exploration, scores: StateScores | None) -> Estimate | None:
        """What gives values to states, if they are not rolled out or checked."""
        if scores is not None:
            return lambda episode, _: scores.estimate(episode)
        return partial(estimate, exploration.policies[CRITIC]) if self.value == CRITIC else None

    def _growing(self) -> Growing:
        return Growing(
            branching=self.branching,
            priors=self.priors,
            value=self.value,
            returns=self.returns,
            until_solved=self.until == "solved",
        )

    def attempt_plan(self, exploration: Exploration, attempt: int) -> EpisodePlan:
        """As ``Attempts.attempt_plan``."""
        critic = exploration.policies[self.value] if self.value in (CRITIC, SCORER) else None
        judge = None if critic is None else identity_of(critic, exploration.entries.get(self.value))
        # Neither decides what a tree is: one counts trees, the other only ends a search.
        excluded = {"k", "episode_timeout_s"}
        # Trees without a scorer keep the ids that they had before there were any.
        excluded |= set() if self.value == SCORER else {"score_from", "score_to"}
        identity = digest(self.model_dump(mode="json", exclude=excluded), judge)
        return self.plan(exploration, "tree_search", identity, attempt=attempt)
