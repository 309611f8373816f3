"""The contract of an environment: a task's environment, stepped by actions, with a state that can be branched and
checked.

``agentmill.synthesis.environments.conformance`` checks it; every registered family passes that suite.
"""

from __future__ import annotations

from typing import Any, Protocol

import jsonschema
from referencing.jsonschema import EMPTY_REGISTRY

from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction, AnyObservation, ApiAction, TextObservation, Tool
from agentmill.synthesis.environments.schema_validator import Validator


class EnvError(Exception):
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
    """What an illegal action comes to. Half characters (lone surrogates) that it quotes become ``?``."""
    plain = why.encode(errors="replace").decode()
    return Transition(observation=TextObservation(content=plain, source="environment"), error=True)


UNMET = "unmet"
"""In the evidence of a ``Check``: sentences (without a full stop) that do not hold yet, where the family can tell."""


class Check(Record):
    """What the environment's own checker says of the current state: ``score`` in [0, 1], the share of the goal met."""

    passed: bool
    score: float
    evidence: JsonObject = {}


class Environment(Protocol):
    """One live environment. Built from a spec by ``Family(spec)``; not thread-safe; ``close`` may be called twice."""

    spec: EnvironmentSpec
    tools: list[Tool]
    """The actions as functions, for agents that call tools."""

    rules: str
    """What a newcomer must know, in natural language: how the environment works and how each command is written."""

    def reset(self, task: Task, seed: int) -> AnyObservation:
        """Start ``task`` anew and say what is seen. Same task and seed, same environment. Raises ``EnvError``."""

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
    """What a table of environments names: it builds live environments from specs, and has instances to check it by.

    A family whose environments wait for something (a browser, a container, a server) says so by an attribute
    ``blocking = True``; its episodes are then played in threads, each environment in one. One that runs code actions in
    Python says so by ``runs_code = True``; all others refuse them. One whose ``admissible`` does not list all legal
    actions says so by ``lists_admissible = False``: no agent can be held to a list that leaves actions out. ``extra``
    is the extra of the package that a family needs, ``sandboxed = True`` says that it runs code in a sandbox; both are
    looked at before a run starts.
    """

    def __call__(self, spec: EnvironmentSpec) -> Environment:
        """An environment of ``spec``, not yet reset. Raises ``EnvError``."""

    def examples(self) -> list[tuple[EnvironmentSpec, Task]]:
        """A few small environments, each with a solvable task that is not solved at the start."""


def misfit(call: ApiAction, tool: Tool) -> str | None:
    """What a declared tool does not take of the arguments of a call; ``None`` if it takes them.

    A schema that is none takes all but text that is no JSON. References to elsewhere are not followed.
    """
    if call.raw_arguments is not None:
        return "the arguments must be a JSON object"
    return misfit_value(call.kwargs, tool.parameters)


def misfit_value(value: Any, schema: JsonObject) -> str | None:
    """Where ``value`` does not fit a JSON Schema; ``None`` if it does, or if the schema is none."""
    try:
        Validator(schema, registry=EMPTY_REGISTRY).validate(value)
    except jsonschema.ValidationError as error:
        return str(error.message)
    except Exception:  # noqa: BLE001  whatever a foreign schema may provoke: it says nothing of the value
        return None
    return None


def tidy(command: str) -> str:
    """A command without what does not count: white space around and between, wrapping quotes, a full stop."""
    return unwrapped(" ".join(command.split()))


def unwrapped(command: str) -> str:
    """A command without white space, quotes and full stops around it; what is between stays as it is."""
    text, before = command.strip(), ""
    # Wrappings come nested, as a quoted command in backticks with a full stop.
    while text != before:
        before = text
        text = text.rstrip(" .!;,")
        if len(text) > 1 and text[0] == text[-1] and text[0] in "`'\"*":
            text = text[1:-1].strip()
    return text
