"""The end of an episode: the trajectory that it leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.trajectory import Generation, Outcome, Trajectory
from synthesis.environments.environment import Check
from synthesis.policies.policy import Policy

if TYPE_CHECKING:
    from synthesis.strategies.episode import Episode, EpisodePlan


def trajectory_of(episode: Episode, reason: str | None, check: Check) -> Trajectory:
    """What was lived until ``reason`` cut it short, or the world ended it; its status is what ``check`` says."""
    plan = episode.plan
    return Trajectory(
        trajectory_id=plan.trajectory_id,
        content=episode.content,
        task_id=plan.task.task_id,
        environment_id=plan.task.environment_id,
        attempt=plan.attempt,
        parent_id=plan.parent_id,
        branch_turn=plan.branch_turn,
        system_prompt=episode.frame.system_prompt,
        tools=episode.frame.tools,
        outcome=Outcome(
            status="success" if check.passed else "failure",
            reward=episode.reward,
            terminated=episode.terminated,
            truncated=reason is not None,
            reason=reason,
        ),
        generation=generation_of(plan, episode.policy),
        usage=episode.usage,
        split=plan.task.split,
        extra=plan.extra,
    )


def generation_of(plan: EpisodePlan, policy: Policy) -> Generation:
    """How the trajectory of a plan is made by a policy."""
    return Generation(
        model=policy.model,
        revision=policy.revision,
        policy=policy.name,
        strategy=plan.strategy,
        scaffold=plan.scaffold,
        sampling=policy.sampling,
        seed=plan.seed,
        round=plan.round,
    )
