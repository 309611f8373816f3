"""Trials of environments and tasks in the real environment, the same for every family."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from agentmill.schemas.records.task import AdmissionCheck, Difficulty, EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction
from agentmill.synthesis.environments import make
from agentmill.synthesis.environments.environment import EnvError, Environment
from agentmill.synthesis.generators.pddl_tasks.difficulty import difficulty_of

EXPERT_SEEDS = 5
"""Where chance plays a part the expert may lose: it has this many seeds to win with."""


@dataclass
class Solution:
    """What admission found out on the way, as far as it came."""

    gold: list[AnyAction] | None
    difficulty: Difficulty | None


def try_environment(spec: EnvironmentSpec) -> Iterator[AdmissionCheck]:
    """The check ``broken``."""
    try:
        make(spec).close()
        yield AdmissionCheck(name="broken", passed=True)
    except EnvError as error:
        yield AdmissionCheck(name="broken", passed=False, detail=str(error))


def try_task(task: Task, spec: EnvironmentSpec, solution: Solution) -> Iterator[AdmissionCheck]:
    """The checks ``broken``, ``null_accepted``, ``gold_rejected``, ``nondeterministic``; may complete ``solution``."""
    try:
        environment = make(spec)
    except EnvError as error:
        yield AdmissionCheck(name="broken", passed=False, detail=str(error))
        return
    with contextlib.closing(environment):
        yield from _trials(environment, task, spec, solution)


def _trials(
    environment: Environment, task: Task, spec: EnvironmentSpec, solution: Solution
) -> Iterator[AdmissionCheck]:
    try:
        environment.reset(task, 0)
    except EnvError as error:
        yield AdmissionCheck(name="broken", passed=False, detail=str(error))
        return
    yield AdmissionCheck(name="broken", passed=True)
    try:
        nothing_done = environment.check()
        yield AdmissionCheck(name="null_accepted", passed=not nothing_done.passed, detail="doing nothing")
        if solution.gold is None:
            yield _let_expert(environment, task, solution)
        else:
            yield _replay(environment, task, solution.gold)
        yield _twice(environment, spec, task, solution.gold or [])
    except EnvError as error:
        yield AdmissionCheck(name="nondeterministic", passed=False, detail=f"it failed after it had started: {error}")


def _replay(environment: Environment, task: Task, gold: list[AnyAction]) -> AdmissionCheck:
    if len(gold) > task.max_turns:
        detail = f"it takes {len(gold)} actions, and the task has {task.max_turns} turns"
        return AdmissionCheck(name="gold_rejected", passed=False, detail=detail)
    environment.reset(task, 0)
    for number, action in enumerate(gold, start=1):
        transition = environment.step(action)
        if transition.error:
            text = getattr(transition.observation, "content", "")
            return AdmissionCheck(name="gold_rejected", passed=False, detail=f"action {number}: {text}")
    check = environment.check()
    detail = f"{len(gold)} actions" if check.passed else f"not passed after {len(gold)} actions: {check.evidence}"
    return AdmissionCheck(name="gold_rejected", passed=check.passed, detail=detail)


def _let_expert(environment: Environment, task: Task, solution: Solution) -> AdmissionCheck:
    """Play by the expert's advice. What it did becomes the gold only where it wins from another seed as well."""
    for seed in range(EXPERT_SEEDS):
        environment.reset(task, seed)
        done: list[AnyAction] = []
        while len(done) < task.max_turns and (advice := environment.expert()) is not None:
            done.append(advice)
            if environment.step(advice).terminated:
                break
        if environment.check().passed:
            solution.difficulty = solution.difficulty or difficulty_of(len(done), None)
            # With another seed: actions that only one course of chance rewards are no solution.
            environment.reset(task, seed + 1)
            for action in done:
                environment.step(action)
            solution.gold = done if environment.check().passed else None
            return AdmissionCheck(name="gold_rejected", passed=True, detail=f"expert, {len(done)} actions")
        if not done:
            return AdmissionCheck(name="gold_rejected", passed=True, detail="no gold and no expert")
    return AdmissionCheck(name="gold_rejected", passed=False, detail=f"the expert lost with {EXPERT_SEEDS} seeds")


def _twice(environment: Environment, spec: EnvironmentSpec, task: Task, actions: list[AnyAction]) -> AdmissionCheck:
    """Two runs of the same actions from the same seed must not differ."""
    # Another instance, since one could remember what it did the first time.
    same = _seen(environment, task, actions) == _seen(make(spec), task, actions)
    return AdmissionCheck(name="nondeterministic", passed=same, detail=f"{len(actions)} actions, twice")


def _seen(environment: Environment, task: Task, actions: list[AnyAction]) -> list[object]:
    """All that a run shows. It is closed then: two that hold a session of one pool might wait for each other's."""
    with contextlib.closing(environment):
        seen: list[object] = [environment.reset(task, 0), environment.state_digest()]
        for action in actions:
            seen += [environment.step(action), environment.state_digest()]
        return seen
