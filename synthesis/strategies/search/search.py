"""A search on one task: it grows a tree in one environment, and finds values for what it has grown."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Literal

import msgspec

from agentmill.schemas.ids import derive_seed, part_id
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import TextObservation, Trajectory, Usage
from agentmill.schemas.records.verdict import Node
from agentmill.schemas.views.pairing import done
from agentmill.schemas.views.view import Unused
from agentmill.synthesis.environments.environment import Check, Environment
from agentmill.synthesis.policies.policy import ContextOverflow, Policy, Turn
from agentmill.synthesis.policies.reward_model import Score, Scorer, score_of
from agentmill.synthesis.rollouts.call_budget import Budget
from agentmill.synthesis.rollouts.delimiting import delimited, judging_prompt
from agentmill.synthesis.rollouts.episode import Episode
from agentmill.synthesis.rollouts.llm_calls import TRIES, all_of, total, words_if_any
from agentmill.synthesis.rollouts.step import environment_at_fault
from agentmill.synthesis.strategies.branch import history
from agentmill.synthesis.strategies.search.tree import PriorName, SearchNode, logprob_of, set_priors

CRITIC = "critic"
HIGHEST = 10.0

_SCALE = r"(?:\s*\(?(?:from\s+)?\d+\s*(?:-|–|to)\s*\d+\)?(?=\s*:|\s*is\b))?(?:\s+is\b)?"
"""The scale that some say before the score, as in ``Score (0-10): 7``."""
_SCORE = re.compile(rf"score{_SCALE}[^\w-]*(?:-\s+)?(-?\d+(?:\.\d+)?)", re.IGNORECASE)
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*\.?\s*")


async def estimate(critic: Policy, episode: Episode, seed: int) -> float | None:
    """The score of a run so far, in [0, 1]; ``None`` if the critic gives none in ``TRIES`` answers, or cannot read it.

    Raises ``PolicyError`` where the critic cannot be asked, or its budget is spent.
    """
    question = [TextObservation(content=delimited(episode.content), source="user")]
    for attempt in range(TRIES):
        try:
            words, _ = await words_if_any(
                critic,
                episode.plan.trajectory_id,
                judging_prompt("search_critic"),
                question,
                derive_seed(seed, attempt),
            )
        except ContextOverflow:  # the transcript does not get shorter
            return None
        score = None if words is None else read_score(words.content)
        if score is not None:
            return score
    return None


def read_score(text: str) -> float | None:
    """The last ``Score: N``, or the number that a text consists of, from 0 to 10, as a share; ``None`` for others."""
    found = _SCORE.findall(text) or ([alone[1]] if (alone := _NUMBER.fullmatch(text)) else [])
    # Critics weigh before they decide, so the last score counts.
    score = float(found[-1]) if found else None
    return score / HIGHEST if score is not None and 0 <= score <= HIGHEST else None


class StateScores(msgspec.Struct):
    """The scores of a reward model as values of states, in [0, 1].

    The score ``low`` becomes 0 and ``high`` 1, and what is outside is clipped; without them it is the logistic function
    of the score: under the model of Bradley and Terry the chance that the state is preferred to one with the score 0.
    ``clipped`` counts the scores that were clipped.
    """

    scorer: Scorer
    low: float | None
    high: float | None
    clipped: int = 0

    async def estimate(self, episode: Episode) -> float | None:
        """The value of an episode so far; ``None`` where the model gives none: it is too long, or cannot be shown.

        Raises ``PolicyError`` where the model cannot be asked, or the budget is spent.
        """
        plan, frame = episode.plan, episode.frame
        seen = Trajectory(
            trajectory_id=plan.trajectory_id,
            content=episode.content,
            system_prompt=frame.system_prompt,
            tools=frame.tools,
        )
        try:
            found = await score_of(self.scorer, seen, self.scorer.shown.conversation(seen))
        except Unused:
            return None
        return self.value(found.value) if isinstance(found, Score) else None

    def value(self, score: float) -> float:
        """The value of a score."""
        if self.low is not None and self.high is not None:
            place = (score - self.low) / (self.high - self.low)
            self.clipped += not 0 <= place <= 1
            return min(1.0, max(0.0, place))
        # In this form neither end overflows.
        return 0.5 * (1.0 + math.tanh(0.5 * score))


Estimate = Callable[[Episode, int], Awaitable[float | None]]
"""The value of an episode so far, given a seed; ``None`` where there is none."""

ValueName = Literal["rollout", "environment", "critic", "scorer"]
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
        self, growing: Growing, episode: Episode, environment: Environment, estimate: Estimate | None, budget: Budget
    ) -> None:
        self.growing = growing
        self.environment = environment
        self._estimate = estimate
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
        for turn in drawn:
            self._child(node, turn)
        node.expanded = True
        set_priors(node, self.growing.priors)
        return node.children

    async def evaluate(self, nodes: Sequence[SearchNode]) -> None:
        """Find a value for each of ``nodes`` that has none, and back it up. Raises ``BudgetSpent``.

        A node to which critic or scorer give no value stays without a value, and nothing is backed up.
        """
        unknown = [node for node in nodes if not node.visits and not node.unscored]
        question = [node for node in unknown if self._estimate is not None and not node.ended]
        for node, found in zip(question, await all_of([self._estimated(node) for node in question]), strict=True):
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
            with environment_at_fault():
                node.check = self.environment.check()
        return node.check

    async def _rolled_out(self, node: SearchNode) -> SearchNode:
        """The node in which the run ends, if the actor goes on from ``node``; the nodes on the way stay in the tree."""
        while not node.ended:
            for turn in await self._draw(node, 1):
                child = self._child(node, turn)
                set_priors(node, self.growing.priors)
                node = child
        return node

    async def _draw(self, node: SearchNode, wanted: int) -> list[Turn]:
        """Turns that the actor may take from here; none if that ends the run here."""
        if wanted < 1:
            return []
        self._enter(node)
        # Numbered on from what was drawn: the same seed would draw the same turn again.
        numbers = range(node.drawn, node.drawn + self.budget.calls_of(wanted))
        seed = node.episode.plan.seed
        drawn = await node.episode.draw([derive_seed(seed, node.number, number) for number in numbers])
        if isinstance(drawn, str):
            node.reason = drawn
            return []
        node.drawn += len(drawn)
        return drawn

    def _child(self, node: SearchNode, turn: Turn) -> SearchNode:
        """The child that a turn leads to."""
        deed = done(turn.actions, range(len(turn.actions)))
        child = node.child(deed)
        if child is None:
            self.budget.turn()
            self._enter(node)
            episode = node.episode.fork()
            reason = episode.execute(turn)
            if reason is None and not episode.terminated and episode.turn >= episode.plan.max_turns:
                reason = "max_turns"
            child = self._node(node, episode, reason=reason, deed=deed, logprob=logprob_of(turn))
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
        with environment_at_fault():
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
        """How many nodes critic or scorer gave no value."""
        return sum(node.unscored for node in self.nodes)

    async def _estimated(self, node: SearchNode) -> float | None:
        assert self._estimate is not None
        return await self._estimate(node.episode, derive_seed(node.episode.plan.seed, node.number, CRITIC))

    def _enter(self, node: SearchNode) -> None:
        with environment_at_fault():
            self.environment.restore(node.snapshot)


LeafName = Literal["ended", "all"]


def harvest(search: Search, leaves: LeafName, about: JsonObject) -> Iterator[Trajectory | Node]:
    """The runs that ended, or all of them, successes first and the better before the worse; then all nodes.

    ``about`` describes the whole tree; it is in ``extra`` of the root.
    """
    owners: dict[int, Trajectory] = {}
    wanted = [
        node
        for node in search.nodes
        if not node.children and (node.ended or (leaves == "all" and node.parent is not None))
    ]
    # The first run of a tree owns what others share with it, so the best one is whole.
    wanted.sort(key=lambda leaf: (not search.checked(leaf).passed, -search.worth(leaf), leaf.number))
    for attempt, leaf in enumerate(wanted):
        run = _run(search, leaf, attempt, owners)
        owners |= {node.number: run for node in leaf.path() if node.number not in owners}
        yield run
    for node in search.nodes:
        yield _record(node, owners.get(node.number), about if node.parent is None else {})


def _run(search: Search, leaf: SearchNode, attempt: int, owners: dict[int, Trajectory]) -> Trajectory:
    """The run that ends in a leaf, with what it shares with the run it branches off from marked as copied."""
    own = [node for node in leaf.path() if node.number not in owners]
    reason = leaf.reason if leaf.ended else "search_ended"
    played = leaf.episode.trajectory(reason, search.checked(leaf))
    run = msgspec.structs.replace(
        played,
        trajectory_id=part_id(played.trajectory_id, str(attempt)),
        attempt=attempt,
        usage=functools.reduce(total, (node.episode.usage for node in own), Usage()),
    )
    fork = own[-1].parent
    if fork is None:
        return run
    branch_turn = fork.episode.turn + 1
    copied = history(played, branch_turn)
    return msgspec.structs.replace(
        run,
        parent_id=owners[fork.number].trajectory_id,
        branch_turn=branch_turn,
        content=[*copied, *played.content[len(copied) :]],
    )


def _record(node: SearchNode, owner: Trajectory | None, about: JsonObject) -> Node:
    tree_id = node.episode.plan.trajectory_id
    turn = {
        "draws": node.draws or None,
        "estimate": node.estimate,
        "reason": node.reason,
        "unscored": node.unscored or None,
    }
    return Node(
        node_id=_node_id(tree_id, node),
        tree_id=tree_id,
        parent_id=None if node.parent is None else _node_id(tree_id, node.parent),
        trajectory_id=None if owner is None else owner.trajectory_id,
        turn=node.episode.turn,
        visits=node.visits,
        q=node.q,
        prior=node.prior,
        state_digest=node.state_digest,
        terminal=node.ended,
        extra={**{name: value for name, value in turn.items() if value is not None}, **about},
    )


def _node_id(tree_id: str, node: SearchNode) -> str:
    """Sorted by id, the nodes of a tree stand in the order they were made."""
    return f"{tree_id}-{node.number:06d}"
