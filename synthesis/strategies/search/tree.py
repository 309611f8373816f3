"""A search tree: nodes are moments of a run, edges the turns between them, with the statistics of Monte-Carlo search.

Selection is UCT (Kocsis and Szepesvári, "Bandit based Monte-Carlo planning", ECML 2006) or PUCT as in AlphaZero
(arXiv:1712.01815), for values in any range: ``c`` is to match it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from agentmill.synthesis.environments.environment import Check
from agentmill.synthesis.policies.policy import PolicyError, Turn
from agentmill.synthesis.rollouts.episode import Episode

SelectionName = Literal["puct", "uct"]
PriorName = Literal["uniform", "frequency", "logprob"]


@dataclass(eq=False)
class SearchNode:
    """A moment: ``episode`` is what was played until then, ``snapshot`` the environment.

    ``number`` counts the nodes of a tree in the order they were made; ``deed`` tells what its turn does apart from
    what its siblings do, ``draws`` how often the actor said that, ``logprob`` how likely it was the first time.
    ``drawn`` turns were drawn from here. ``reason`` is what cut the run short here, ``check`` what the environment says
    of the state if it was asked. ``estimate`` is the value that this very state was given, if it was; ``unscored`` says
    that the critic was asked for one and gave none; ``entered`` counts how often the search went there all the same.
    """

    number: int
    parent: SearchNode | None
    episode: Episode
    snapshot: bytes
    state_digest: str
    deed: str = ""
    draws: int = 0
    logprob: float | None = None
    prior: float | None = None
    reason: str | None = None
    check: Check | None = None
    drawn: int = 0
    expanded: bool = False
    visits: int = 0
    total: float = 0.0
    estimate: float | None = None
    unscored: bool = False
    entered: int = 0
    children: list[SearchNode] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether nothing can follow."""
        return self.episode.terminated or self.reason is not None

    @property
    def tries(self) -> int:
        """How often the search was here, with a value or without."""
        return self.visits + self.entered

    @property
    def q(self) -> float | None:
        """The mean of all values found here and below, if there is one."""
        return self.total / self.visits if self.visits else None

    def child(self, deed: str) -> SearchNode | None:
        """The child that does ``deed``."""
        return next((child for child in self.children if child.deed == deed), None)

    def path(self) -> Iterator[SearchNode]:
        """The node, its parent, and so on up to the root."""
        node: SearchNode | None = self
        while node is not None:
            yield node
            node = node.parent

    def backup(self, value: float) -> None:
        """Let a value that was found here count for it and all above it."""
        for node in self.path():
            node.visits += 1
            node.total += value


def select(node: SearchNode, rule: SelectionName, c: float) -> SearchNode:
    """The child to go to; of equals the one that was made first. ``node`` must have children.

    UCT: unvisited ones first, the likeliest before the others; then the largest Q + c sqrt(ln N / n). PUCT: the largest
    Q + c P sqrt(N) / (1 + n), where Q is 0 until something is known. A state without a score has the Q of its
    parent.
    """
    # Never 0, of which there is no logarithm.
    tried = max(1, sum(child.tries for child in node.children))

    def urgency(child: SearchNode) -> tuple[float, float]:
        prior = child.prior or 0.0
        q = next((each.q for each in child.path() if each.q is not None), None) if child.unscored else child.q
        if rule == "puct":
            return (q or 0.0) + c * prior * math.sqrt(tried) / (1 + child.tries), 0.0
        if not child.tries:
            return math.inf, prior
        return (q or 0.0) + c * math.sqrt(math.log(tried) / child.tries), 0.0

    return max(node.children, key=urgency)


def set_priors(node: SearchNode, name: PriorName) -> None:
    """Give the children of a node their priors, which sum to 1.

    ``frequency``: the share of draws that said it. ``logprob``: the probability of the sampled tokens, as a share of
    that of all children. Raises ``PolicyError`` (``no_logprobs``) where there are none.
    """
    if not node.children:
        return
    weights = [1.0] * len(node.children)
    if name == "frequency":
        weights = [float(child.draws) for child in node.children]
    elif name == "logprob":
        known = [child.logprob for child in node.children if child.logprob is not None]
        if len(known) < len(weights):
            raise PolicyError("no_logprobs", "`priors: logprob` needs a policy that gives log-probabilities, as vllm")
        # Less the largest: probabilities of whole turns are too small for a float.
        weights = [math.exp(each - max(known)) for each in known]
    for child, weight in zip(node.children, weights, strict=True):
        child.prior = weight / sum(weights)


def logprob_of(turn: Turn) -> float | None:
    """The natural logarithm of the probability of a turn's tokens, if they are known."""
    tokens = turn.actions[0].tokens
    return sum(tokens.logprobs) if tokens is not None and tokens.logprobs else None
