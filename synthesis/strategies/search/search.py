"""A search on one task: it grows a tree in one environment, and finds values for what it has grown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from schemas.ids import derive_seed
from schemas.views.sameness import done
from synthesis.environments.environment import Check, Environment
from synthesis.policies.policy import Policy, Turn
from synthesis.strategies.asking import all_of
from synthesis.strategies.budget import Budget
from synthesis.strategies.episode import Episode
from synthesis.strategies.search.critic import CRITIC, estimate
from synthesis.strategies.search.tree import PriorName, SearchNode, logprob_of, set_priors
from synthesis.strategies.stepping import world_at_fault

ValueName = Literal["rollout", "environment", "critic"]
ReturnName = Literal["success", "progress", "reward"]


class Growing(msgspec.Struct, frozen=True, kw_only=True):
    """How a tree grows, until when, and what its nodes are worth: parameters of ``tree_search``."""

    branching: int
    priors: PriorName
    value: ValueName
    returns: ReturnName
    until_solved: bool


class Search:
    """The tree and the environment it grows in. ``root`` is the start of the task, where the environment is.

    Seeds of turns depend on the episode's seed and the number of the node: a larger budget goes on with the same tree.
    """

    def __init__(
        self, growing: Growing, episode: Episode, environment: Environment, critic: Policy | None, budget: Budget
    ) -> None:
        self.growing = growing
        self.environment = environment
        self.critic = critic
        self.budget = budget
        self.nodes: list[SearchNode] = []
        self.satisfied = False
        """Whether a run has reached the goal, and that is all that is wanted."""
        self.root = self._node(None, episode)

    async def expand(self, node: SearchNode) -> Sequence[SearchNode]:
        """Draw turns from a node until there were ``branching``, and live them; turns that do the same are one child.

        Returns its children; none if it turns out that nothing can follow. Raises ``BudgetSpent``.
        """
        drawn = await self._draw(node, self.growing.branching - node.drawn)
        for said in drawn:
            self._child(node, said)
        node.expanded = True
        set_priors(node, self.growing.priors)
        return node.children

    async def evaluate(self, nodes: Sequence[SearchNode]) -> None:
        """Find a value for each of ``nodes`` that has none, and back it up. Raises ``BudgetSpent``.

        A node that the critic does not score stays without a value, and nothing is backed up.
        """
        unknown = [node for node in nodes if not node.visits and not node.unscored]
        asked = [node for node in unknown if self.growing.value == "critic" and not node.ended]
        for node, found in zip(asked, await all_of([self._criticism(node) for node in asked]), strict=True):
            node.estimate, node.unscored = found, found is None
        for node in unknown:
            if node.unscored:
                continue
            if node.estimate is None:
                end = await self._rolled_out(node) if self.growing.value == "rollout" else node
                node.estimate = self.worth(end)
            node.backup(node.estimate)

    def worth(self, node: SearchNode) -> float:
        """What a run is worth that ends in this state."""
        if self.growing.returns == "reward":
            return node.episode.reward
        check = self.checked(node)
        return float(check.passed) if self.growing.returns == "success" else check.score

    def checked(self, node: SearchNode) -> Check:
        """What the environment says of the state of a node; it is asked once."""
        if node.check is None:
            self._enter(node)
            with world_at_fault():
                node.check = self.environment.check()
        return node.check

    async def _rolled_out(self, node: SearchNode) -> SearchNode:
        """The node in which the run ends, if the actor goes on from ``node``; the nodes on the way stay in the tree."""
        while not node.ended:
            for said in await self._draw(node, 1):
                child = self._child(node, said)
                set_priors(node, self.growing.priors)
                node = child
        return node

    async def _draw(self, node: SearchNode, wanted: int) -> list[Turn]:
        """Turns that the actor may take from here; none if that ends the run here."""
        if wanted < 1:
            return []
        self._enter(node)
        numbers = range(node.drawn, node.drawn + self.budget.calls_of(wanted))
        seed = node.episode.plan.seed
        drawn = await node.episode.draw([derive_seed(seed, node.number, number) for number in numbers])
        if isinstance(drawn, str):
            node.reason = drawn
            return []
        node.drawn += len(drawn)
        return drawn

    def _child(self, node: SearchNode, said: Turn) -> SearchNode:
        """The child that a turn leads to."""
        deed = done(said.actions, range(len(said.actions)))
        child = node.child(deed)
        if child is None:
            self.budget.turn()
            self._enter(node)
            episode = node.episode.fork()
            reason = episode.live(said)
            if reason is None and not episode.terminated and episode.turn >= episode.plan.max_turns:
                reason = "max_turns"
            child = self._node(node, episode, reason=reason, deed=deed, logprob=logprob_of(said))
            node.children.append(child)
            if child.ended and self.checked(child).passed:
                self.satisfied = self.growing.until_solved
        child.draws += 1
        return child

    def _node(
        self,
        parent: SearchNode | None,
        episode: Episode,
        *,
        reason: str | None = None,
        deed: str = "",
        logprob: float | None = None,
    ) -> SearchNode:
        """A node for the moment that the environment is at."""
        with world_at_fault():
            snapshot, state_digest = self.environment.snapshot(), self.environment.state_digest()
        node = SearchNode(
            number=len(self.nodes),
            parent=parent,
            episode=episode,
            snapshot=snapshot,
            state_digest=state_digest,
            deed=deed,
            logprob=logprob,
            reason=reason,
        )
        self.nodes.append(node)
        return node

    @property
    def unscored(self) -> int:
        """How many nodes the critic was asked about in vain."""
        return sum(node.unscored for node in self.nodes)

    async def _criticism(self, node: SearchNode) -> float | None:
        assert self.critic is not None
        return await estimate(self.critic, node.episode, derive_seed(node.episode.plan.seed, node.number, CRITIC))

    def _enter(self, node: SearchNode) -> None:
        with world_at_fault():
            self.environment.restore(node.snapshot)
