"""What a trajectory and its verdict say of one episode, for the statistics of an evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from pipelines.evaluation import Episode, loops
from schemas.trajectory import (
    Action,
    AnyAction,
    ApiAction,
    CodeAction,
    TextObservation,
    Trajectory,
)
from schemas.verdict import Verdict


def episodes_of(trajectories: Iterable[Trajectory], verdicts: Iterable[Verdict]) -> list[Episode]:
    """One episode per trajectory that has a scored verdict; the others tell nothing of the model and are left out."""
    passed = {verdict.trajectory_id: bool(verdict.passed) for verdict in verdicts if verdict.status == "scored"}
    return [
        episode_of(trajectory, passed[trajectory.trajectory_id])
        for trajectory in trajectories
        if trajectory.trajectory_id in passed
    ]


def episode_of(trajectory: Trajectory, success: bool) -> Episode:
    """The episode; the agent's own actions are those of turn 1 and later that were not copied from a parent."""
    own = [item for item in trajectory.content if item.turn > 0 and item.context_operation != "copied"]
    actions = sum(isinstance(item, Action) for item in own)
    refused = sum(item.error for item in own if not isinstance(item, Action))
    return Episode(
        task_id=trajectory.task_id or trajectory.trajectory_id,
        environment_id=trajectory.environment_id or "",
        attempt=trajectory.attempt,
        success=success,
        actions=actions,
        invalid=min(refused, actions),
        turns=len({item.turn for item in own if isinstance(item, Action)}),
        looped=loops(steps(trajectory)),
        truncated=trajectory.outcome.truncated,
        completion_tokens=trajectory.usage.completion_tokens,
    )


def steps(trajectory: Trajectory) -> Iterator[tuple[str, str]]:
    """(state, action) of every action: the state digest that was last seen, or else the text that was."""
    state = ""
    for item in trajectory.content:
        if isinstance(item, Action):
            yield state, words(item)
        elif item.state_digest is not None:
            state = item.state_digest
        elif isinstance(item, TextObservation):
            state = item.content


def words(action: AnyAction) -> str:
    """What an action says, without the thought that led to it."""
    if isinstance(action, ApiAction):
        arguments = msgspec.json.encode(action.kwargs, order="sorted").decode()
        return f"{action.function} {action.raw_arguments or arguments}"
    if isinstance(action, CodeAction):
        return f"{action.language}\n{action.content}"
    return action.content
