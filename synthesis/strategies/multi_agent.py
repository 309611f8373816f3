"""``multi_agent``: several agents, each with its own prompt, model and view of things, in one episode of a task.

Plan-then-act (AutoAct, arXiv:2401.05268; KwaiAgents, arXiv:2312.04889), an actor and its critic (SiriuS,
arXiv:2502.04780), a simulated user with hidden facts (tau-bench, arXiv:2406.12045; APIGen-MT, arXiv:2504.03601;
MUA-RL, arXiv:2508.18669), agents that exchange what each of them knows (Optima, arXiv:2410.08115), and specialists to
whom one hands over (Chain-of-Agents, arXiv:2508.13167) are lists of roles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from pydantic import Field, model_validator

from agentmill.schemas.ids import digest
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.views.roles import MULTI_AGENT
from agentmill.synthesis.environments.environment import Environment
from agentmill.synthesis.policies.policy import Policy
from agentmill.synthesis.rollouts.episode import EpisodePlan, begin, run_episode
from agentmill.synthesis.rollouts.llm_calls import identity_of
from agentmill.synthesis.rollouts.parameters import Attempts
from agentmill.synthesis.rollouts.roles import Part, Role
from agentmill.synthesis.rollouts.scaffold import frame
from agentmill.synthesis.rollouts.step import ACTOR
from agentmill.synthesis.rollouts.strategy import Exploration
from agentmill.synthesis.rollouts.turn_taking import TurnTaking

UNDECIDED = "undecided_drafts"
"""In ``extra``, and of metrics: choices among drafts that could not be read, so that the first draft was taken."""


class MultiAgent(Attempts):
    """``k`` episodes of a task by the agents of ``roles``.

    ``agentmill.synthesis.rollouts.turn_taking`` says whose turn it is. Each message bears the name of its agent and
    what it was: an action (role ``actor``), words (``speaker``), or an action that was vetoed (``proposer``).
    ``extra.roles`` of the trajectory has the prompt of each agent and what it saw, how often it was asked and what that
    cost; the trajectory's own system prompt is that of the environment, without any role's. ``max_turns`` counts
    actions that were carried out.
    """

    roles: list[Role] = Field(min_length=2, description="the agents, in the order in which they have their turns")
    max_messages: int = Field(default=50, ge=1, description="messages from agent to agent that end an episode")
    max_vetoes: int = Field(default=3, ge=1, description="vetoes in a row, after which an action is carried out")

    @model_validator(mode="after")
    def _roles_that_fit(self) -> MultiAgent:
        names = Counter(role.name.casefold() for role in self.roles)
        for name in (name for name, n in names.items() if n > 1):
            raise ValueError(f"the name {name!r} in `roles` is taken; give each role its own")
        if not any(role.acts for role in self.roles):
            raise ValueError("one of the `roles` needs `acts: true`, or nothing would ever be done")
        if self._differs("max_vetoes") and not any(role.veto is not None for role in self.roles):
            raise ValueError("`max_vetoes` needs a role with a `veto`; leave it out")
        if self.context != "stop":  # what is left out for one would be missing where another is asked about it
            raise ValueError(f"`context: {self.context}` is for one agent alone; with `roles` leave it at `stop`")
        first = next(role for role in self.roles if role.veto is None)
        if not first.told and (first.sees == "dialogue" or not (first.acts or first.sees == "all")):
            raise ValueError(f"role {first.name!r} speaks first and would see nothing; let it be `told`, or come later")
        return self

    async def explore(self, exploration: Exploration, trajectory_id: str) -> AsyncIterator[Trajectory]:
        """Yield the trajectory with this id. Raises ``NotInTask``, too."""
        plan = self.plan_of(exploration, trajectory_id)
        environment = exploration.make_environment()
        try:
            opening = begin(plan, environment)
            parts = self._parts(exploration, environment, plan.seed)
            episode = self.episode(plan, environment, exploration, opening)
            turns = TurnTaking(episode, self.roles, parts, self.max_messages, self.max_vetoes)
            played = await run_episode(episode, turns.play())
            yield msgspec.structs.replace(played, extra={**played.extra, **_roles_of(parts, turns.ended_by)})
        finally:
            environment.close()

    def _parts(self, exploration: Exploration, environment: Environment, seed: int) -> dict[str, Part]:
        """The policies as they play their roles. Raises ``NotInTask``."""
        around, policies, seen = frame(self.scaffold, environment), self._policies(exploration), {}
        for role in self.roles:
            others = [each for each in self.roles if each is not role]
            policy = policies[role.name]
            seen[role.name] = role.perspective(others, around, environment.rules, exploration.task, policy, seed)
        return {role.name: Part(role, policies[role.name], seen) for role in self.roles}

    def _policies(self, exploration: Exploration) -> dict[str, Policy]:
        """Who plays which role: a policy of this name, or else the actor's."""
        known = exploration.policies
        return {role.name: known.get(role.name, known[ACTOR]) for role in self.roles}

    def attempt_plan(self, exploration: Exploration, attempt: int) -> EpisodePlan:
        """As ``Attempts.attempt_plan``."""
        # Without defaults, so that a parameter that is new changes no id.
        parameters = {"roles", "max_messages", "max_vetoes", "scaffold"}
        own = self.model_dump(mode="json", include=parameters, exclude_defaults=True)
        who = {
            name: identity_of(policy, exploration.entries.get(name if name in exploration.policies else ACTOR))
            for name, policy in self._policies(exploration).items()
        }
        identity = digest(own, who)
        return self.plan(exploration, MULTI_AGENT, identity, attempt=attempt)


def _roles_of(parts: dict[str, Part], ended_by: str | None) -> dict[str, Any]:
    """What the trajectory says of its agents apart from their messages."""
    roles = {name: msgspec.to_builtins(part.perspective) for name, part in parts.items()}
    undecided = sum(part.undecided for part in parts.values())
    ended = {} if ended_by is None else {"ended_by": ended_by}
    return {"roles": roles, **ended, **({UNDECIDED: undecided} if undecided else {})}
