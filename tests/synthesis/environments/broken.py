"""Environments that break the contract in one point each; what they break is in ``BREAKS``."""

from __future__ import annotations

import random

import msgspec

from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, CodeAction, MessageAction, TextObservation
from agentmill.synthesis.environments.environment import Check, Transition
from agentmill.synthesis.environments.pddl.environment import PddlEnvironment


class Mute(PddlEnvironment):
    def reset(self, task: Task, seed: int) -> TextObservation:
        return msgspec.structs.replace(super().reset(task, seed), content=" ")


class Unseeded(PddlEnvironment):
    def reset(self, task: Task, seed: int) -> TextObservation:
        return msgspec.structs.replace(super().reset(task, seed), content=f"Welcome, guest {random.random()}.")


class Forgetful(PddlEnvironment):
    """The second reset of an instance goes on from where the first episode ended."""

    def reset(self, task: Task, seed: int) -> TextObservation:
        ended_in = self._state
        observation = super().reset(task, seed)
        self._state = ended_in or self._state
        return observation


class HashedDigest(PddlEnvironment):
    def state_digest(self) -> str:
        return f"{hash(super().state_digest()):x}"


class LossyRestore(PddlEnvironment):
    def restore(self, snapshot: bytes) -> None:
        del snapshot


class Pickled(PddlEnvironment):
    def snapshot(self) -> bytes:
        return b"\x80" + super().snapshot()

    def restore(self, snapshot: bytes) -> None:
        super().restore(snapshot[1:])


class BothEnds(PddlEnvironment):
    def step(self, action: AnyAction) -> Transition:
        return msgspec.structs.replace(super().step(action), terminated=True, truncated=True)


class Tolerant(PddlEnvironment):
    def step(self, action: AnyAction) -> Transition:
        return msgspec.structs.replace(super().step(action), error=False)


class Curt(PddlEnvironment):
    def step(self, action: AnyAction) -> Transition:
        transition = super().step(action)
        no = TextObservation(content="No.", source="environment")
        return msgspec.structs.replace(transition, observation=no) if transition.error else transition


class Punishing(PddlEnvironment):
    """An illegal action moves the world on."""

    def step(self, action: AnyAction) -> Transition:
        transition = super().step(action)
        if transition.error:
            super().step(self.admissible()[0])
        return transition


class Programmable(PddlEnvironment):
    """Takes Python for granted."""

    def step(self, action: AnyAction) -> Transition:
        transition = super().step(action)
        taken = isinstance(action, CodeAction) and action.language == "python"
        return msgspec.structs.replace(transition, error=False) if taken else transition


class Overpromising(PddlEnvironment):
    def admissible(self) -> list[ApiAction]:
        return [
            ApiAction(function=tool.name, kwargs=dict.fromkeys(tool.parameters["required"], "depot"))
            for tool in self.tools
        ]


class Illiterate(PddlEnvironment):
    def step(self, action: AnyAction) -> Transition:
        if isinstance(action, MessageAction):
            action = msgspec.structs.replace(action, content=action.content.replace("rob", "bob"))
        return super().step(action)


class Lost(PddlEnvironment):
    """The expert walks to and fro."""

    def expert(self) -> ApiAction | None:
        return self.admissible()[0]


class Generous(PddlEnvironment):
    def check(self) -> Check:
        return Check(passed=True, score=1.0)


class Unbounded(PddlEnvironment):
    def check(self) -> Check:
        return msgspec.structs.replace(super().check(), score=-1.0)


class Observed(PddlEnvironment):
    """Asking the expert takes its advice."""

    def expert(self) -> ApiAction | None:
        action = super().expert()
        if action is not None:
            self.step(action)
        return action


class OnceClosed(PddlEnvironment):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise OSError("already closed")
        self.closed = True


class Crashing(PddlEnvironment):
    def admissible(self) -> list[ApiAction]:
        raise ZeroDivisionError("no actions today")


BREAKS = {
    "Mute": "is_introduced",
    "Unseeded": "same_seed_same_world",
    "Forgetful": "same_seed_same_world",
    "HashedDigest": "same_in_every_process",
    "LossyRestore": "snapshot_restores",
    "Pickled": "snapshot_restores",
    "BothEnds": "ends_are_told_apart",
    "Tolerant": "illegal_actions_are_refused",
    "Curt": "illegal_actions_are_refused",
    "Programmable": "illegal_actions_are_refused",
    "Punishing": "illegal_actions_are_refused",
    "Overpromising": "admissible_actions_are_legal",
    "Illiterate": "commands_are_read",
    "Lost": "expert_succeeds",
    "Generous": "doing_nothing_is_no_solution",
    "Unbounded": "doing_nothing_is_no_solution",
    "Observed": "looking_changes_nothing",
    "OnceClosed": "closes_twice",
}
