"""The contract of an environment: a task's world, stepped by actions, with a state that can be branched and checked.

``synthesis.environments.conformance`` checks it; every registered family passes that suite.
"""

from __future__ import annotations

from typing import Protocol

from schemas.record import JsonObject, Record
from schemas.task import EnvironmentSpec, Task
from schemas.trajectory import AnyAction, AnyObservation, ApiAction, TextObservation, Tool


class WorldError(Exception):
    """The environment itself is broken: its spec, its task or its code. Never raised for an action of the agent."""

    reason = "world_error"
    """A short code that is counted."""


class Transition(Record):
    """The result of one step. ``terminated``: goal reached or lost; ``truncated``: a limit of the environment's own.

    ``error`` is true for an illegal action, which changes nothing; the observation then says what would be legal.
    """

    observation: AnyObservation
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    error: bool = False


def refusal(why: str) -> Transition:
    """What an illegal action comes to. Half characters (lone surrogates) that it quotes are told as ``?``."""
    said = why.encode(errors="replace").decode()
    return Transition(observation=TextObservation(content=said, source="environment"), error=True)


class Check(Record):
    """What the environment's own checker says of the current state: ``score`` in [0, 1], the share of the goal met."""

    passed: bool
    score: float
    evidence: JsonObject = {}


class Environment(Protocol):
    """One live world. Built from a spec by ``Family(spec)``; not thread-safe; ``close`` may be called twice."""

    spec: EnvironmentSpec
    tools: list[Tool]
    """The actions as functions, for agents that call tools."""

    rules: str
    """What a newcomer must know, in natural language: how the world works and how each command is written."""

    def reset(self, task: Task, seed: int) -> AnyObservation:
        """Start ``task`` anew and say what is seen. Same task and seed, same world. Raises ``WorldError``."""

    def step(self, action: AnyAction) -> Transition:
        """Apply an ``ApiAction`` (a call of one of ``tools``) or a ``MessageAction`` (a command as text)."""

    def state_digest(self) -> str:
        """Digest of the whole state, the same in every process; equal states have equal digests."""

    def snapshot(self) -> bytes:
        """The state as plain bytes (never a pickle), for ``restore`` on any instance reset to the same task."""

    def restore(self, snapshot: bytes) -> None:
        """Return to a snapshot; ``state_digest`` is then what it was."""

    def check(self) -> Check:
        """Judge the current state by the task's goal."""

    def admissible(self) -> list[ApiAction]:
        """The actions that are legal now, in a fixed order; some or none if the family cannot tell all of them."""

    def command(self, action: ApiAction) -> str:
        """``action`` as the text command that ``step`` accepts in a ``MessageAction``."""

    def expert(self) -> ApiAction | None:
        """The next action of a good plan from the current state, or ``None`` if there is none or none is known."""

    def close(self) -> None:
        """Free what is held. Safe to call twice, and before ``reset``."""


class Family(Protocol):
    """What a table of environments names: it builds live worlds from specs, and has instances to check it by.

    A family whose worlds wait for something (a browser, a container, a server) says so by an attribute
    ``blocking = True``; its episodes are then lived in threads, each world in one. One that runs code actions in Python
    says so by ``runs_code = True``; all others refuse them. One whose ``admissible`` does not list all legal actions
    says so by ``lists_admissible = False``: no agent can be held to a list that leaves actions out. ``extra`` is the
    extra of the package that a family needs, ``sandboxed = True`` says that it runs code in a sandbox; both are looked
    at before a run starts.
    """

    def __call__(self, spec: EnvironmentSpec) -> Environment:
        """A world of ``spec``, not yet reset. Raises ``WorldError``."""

    def examples(self) -> list[tuple[EnvironmentSpec, Task]]:
        """A few small environments, each with a solvable task that is not solved at the start."""
