"""Checks that an environment keeps the contract of ``agentmill.synthesis.environments.environment``, on one spec and
one task.

Each check is a function over a ``Subject`` that returns what is wrong, or an empty string. An exception inside a check
is a finding like any other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from agentmill.schemas.records.record import Record
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction, AnyObservation, ApiAction, CodeAction, MessageAction
from agentmill.synthesis.environments.environment import Environment, Transition
from agentmill.synthesis.environments.processes import Run, digests_elsewhere, made_by

MAKER = "agentmill.synthesis.environments:make"
"""Where environments come from: ``"package.module:callable"``, so that other processes can make the same."""

WALK_STEPS = 10


class Finding(Record):
    """One check and what it found; ``detail`` is empty where it passed."""

    name: str
    passed: bool
    detail: str = ""


class Subject(Record):
    """What is checked, and how to make one."""

    spec: EnvironmentSpec
    task: Task
    seeds: tuple[int, ...]
    maker: str

    def make(self) -> Environment:
        """A new instance, not yet reset."""
        return made_by(self.maker, self.spec)

    def started(self, seed: int | None = None) -> Environment:
        """A new instance, reset to the task."""
        environment = self.make()
        environment.reset(self.task, self.seeds[0] if seed is None else seed)
        return environment


def check_environment(
    spec: EnvironmentSpec, task: Task, seeds: Sequence[int] = (0, 1, 2), maker: str = MAKER
) -> list[Finding]:
    """Every check of ``CHECKS``, in their order. ``seeds`` must not be empty."""
    subject = Subject(spec=spec, task=task, seeds=tuple(seeds), maker=maker)
    findings = []
    for name, check in CHECKS.items():
        try:
            detail = check(subject)
        except Exception as error:  # noqa: BLE001 - whatever breaks is what a checker is to report
            detail = f"{type(error).__name__}: {error}"
        findings.append(Finding(name=name, passed=not detail, detail=detail))
    return findings


def walk(environment: Environment, seed: int) -> list[AnyAction]:
    """Up to ``WALK_STEPS`` legal actions, taken: by chance, every third one the expert's where there is one."""
    chance = random.Random(seed)
    actions: list[AnyAction] = []
    for number in range(WALK_STEPS):
        advice = environment.expert() if number % 3 == 0 else None
        options = [advice] if advice is not None else environment.admissible()
        if not options:
            break
        action = chance.choice(options)
        actions.append(action)
        if environment.step(action).terminated:
            break
    return actions


def _trace(environment: Environment, actions: Sequence[AnyAction]) -> list[tuple[Transition, str]]:
    return [(environment.step(action), environment.state_digest()) for action in actions]


def _same_seed_same_world(subject: Subject) -> str:
    for seed in subject.seeds:
        actions = walk(subject.started(seed), seed)
        first, second = subject.make(), subject.make()
        if first.reset(subject.task, seed) != second.reset(subject.task, seed):
            return f"seed {seed}: two resets give different observations"
        if first.state_digest() != second.state_digest():
            return f"seed {seed}: two resets have different digests"
        if _trace(first, actions) != _trace(second, actions):
            return f"seed {seed}: the same {len(actions)} actions led to different observations or digests"
        first.reset(subject.task, seed)
        second.reset(subject.task, seed)
        if (
            first.state_digest() != second.state_digest()
            or first.state_digest() != subject.started(seed).state_digest()
        ):
            return f"seed {seed}: a second reset does not start anew"
    return ""


def _same_in_every_process(subject: Subject) -> str:
    actions = walk(subject.started(), 0)
    run = Run(spec=subject.spec, task=subject.task, seed=subject.seeds[0], maker=subject.maker, actions=actions)
    here = run.digests()
    # Two seeds: a set may have the same order by chance under one of them.
    for hash_seed in (1, 2):
        if digests_elsewhere(run, hash_seed) != here:
            return f"the digests differ in a process with PYTHONHASHSEED={hash_seed}"
    return ""


def _snapshot_restores(subject: Subject) -> str:
    straight = subject.started()
    actions = walk(subject.started(), 1)
    half = len(actions) // 2
    _trace(straight, actions[:half])
    digest, snapshot = straight.state_digest(), straight.snapshot()
    # Every pickle of protocol 2 or later begins with this byte.
    if not isinstance(snapshot, bytes) or snapshot.startswith(b"\x80"):
        return "a snapshot is not plain bytes, or is a pickle"
    expected = _trace(straight, actions[half:])
    # A snapshot may rest on what only its own instance remembers.
    for environment, which in ((straight, "the same"), (subject.started(), "another")):
        environment.restore(snapshot)
        if environment.state_digest() != digest:
            return f"{which} instance has another digest after restore"
        if _trace(environment, actions[half:]) != expected:
            return f"{which} instance runs on differently after restore"
    return ""


def _ends_are_told_apart(subject: Subject) -> str:
    for seed in subject.seeds:
        environment = subject.started(seed)
        for number, action in enumerate(walk(subject.started(seed), seed)):
            transition = environment.step(action)
            if transition.terminated and transition.truncated:
                return f"seed {seed}, step {number + 1}: both terminated and truncated"
    return ""


def _illegal_actions_are_refused(subject: Subject) -> str:
    environment = subject.started()
    tools = environment.tools
    attempts: list[AnyAction] = [
        MessageAction(content="xyzzy 12345"),
        MessageAction(content=""),
        ApiAction(function="no_such_function", kwargs={}),
        ApiAction(function=tools[0].name if tools else "none", kwargs={"no_such_argument": 1}),
        CodeAction(language="no_such_language", content="print(1)"),
    ]
    if not getattr(type(environment), "runs_code", False):
        attempts.append(CodeAction(language="python", content="print(1)"))
    for action in attempts:
        before = environment.state_digest(), environment.snapshot()
        transition = environment.step(action)
        if not transition.error or transition.terminated or transition.truncated:
            return f"{action} is not refused"
        if before != (environment.state_digest(), environment.snapshot()):
            return f"{action} changed the state"
        if len(_text(transition.observation).split()) < 3:
            return f"{action} is refused without a word of help: {_text(transition.observation)!r}"
    return ""


def _admissible_actions_are_legal(subject: Subject) -> str:
    environment = subject.started()
    for action in [None, *walk(subject.started(), 2)]:
        if action is not None:
            environment.step(action)
        snapshot, options = environment.snapshot(), environment.admissible()
        # Walks by chance choose by place, so another order would make another run of the same seed.
        if options != environment.admissible():
            return "admissible actions come in another order when asked again"
        for option in options:
            if environment.step(option).error:
                return f"{option.function}({option.kwargs}) is called admissible but refused"
            environment.restore(snapshot)
    return ""


def _commands_are_read(subject: Subject) -> str:
    environment = subject.started()
    for action in [None, *walk(subject.started(), 3)]:
        if action is not None:
            environment.step(action)
        snapshot = environment.snapshot()
        for option in environment.admissible():
            command = environment.command(option)
            called = environment.step(option), environment.state_digest()
            environment.restore(snapshot)
            for text in (command, f"  {command}. ", f"`{command}`"):
                if (environment.step(MessageAction(content=text)), environment.state_digest()) != called:
                    return f"the text {text!r} does not do what {option.function}({option.kwargs}) does"
                environment.restore(snapshot)
    return ""


def _gold_is_accepted(subject: Subject) -> str:
    gold = subject.task.gold
    if gold is None:
        return ""
    # With some seeds chance may defeat even a good plan, so one success is enough.
    for seed in subject.seeds:
        environment = subject.started(seed)
        if not any(transition.error for transition, _ in _trace(environment, gold)) and environment.check().passed:
            return ""
    return "the gold solution fails for every seed"


def _expert_succeeds(subject: Subject) -> str:
    for seed in subject.seeds:
        environment = subject.started(seed)
        if environment.expert() is None:
            return ""
        for _ in range(subject.task.max_turns):
            advice = environment.expert()
            if advice is None or environment.step(advice).terminated:
                break
        if environment.check().passed:
            return ""
    return "the expert fails for every seed"


def _doing_nothing_is_no_solution(subject: Subject) -> str:
    check = subject.started().check()
    if check.passed:
        return "the task is solved at the start"
    return "" if 0.0 <= check.score <= 1.0 else f"the score {check.score} is not in [0, 1]"


def _looking_changes_nothing(subject: Subject) -> str:
    environment = subject.started()
    before = environment.snapshot(), environment.state_digest()
    for action in environment.admissible():
        environment.command(action)
    environment.check()
    environment.expert()
    return (
        ""
        if before == (environment.snapshot(), environment.state_digest())
        else "looking at the environment changed it"
    )


def _closes_twice(subject: Subject) -> str:
    subject.make().close()
    environment = subject.started()
    environment.close()
    environment.close()
    return ""


def _is_introduced(subject: Subject) -> str:
    environment = subject.make()
    if not environment.rules.strip() or not _text(environment.reset(subject.task, subject.seeds[0])).strip():
        return "there are no rules, or nothing is seen at first"
    names = {tool.name for tool in environment.tools}
    for tool in environment.tools:
        if tool.parameters.get("type") != "object":
            return f"the parameters of tool {tool.name!r} are no JSON Schema of an object"
    unknown = [action.function for action in environment.admissible() if action.function not in names]
    return f"{unknown[0]!r} is admissible, but no tool" if unknown else ""


def _text(observation: AnyObservation) -> str:
    return str(getattr(observation, "content", None) or getattr(observation, "axtree", None) or "")


CHECKS: dict[str, Callable[[Subject], str]] = {
    "is_introduced": _is_introduced,
    "same_seed_same_world": _same_seed_same_world,
    "same_in_every_process": _same_in_every_process,
    "snapshot_restores": _snapshot_restores,
    "ends_are_told_apart": _ends_are_told_apart,
    "illegal_actions_are_refused": _illegal_actions_are_refused,
    "admissible_actions_are_legal": _admissible_actions_are_legal,
    "commands_are_read": _commands_are_read,
    "gold_is_accepted": _gold_is_accepted,
    "expert_succeeds": _expert_succeeds,
    "doing_nothing_is_no_solution": _doing_nothing_is_no_solution,
    "looking_changes_nothing": _looking_changes_nothing,
    "closes_twice": _closes_twice,
}
"""All checks by name."""
