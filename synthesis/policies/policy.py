"""The contract of a policy: given what an agent has seen and done, its next turn."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Protocol

import msgspec

from agentmill.schemas.dialects.tool_text import ToolFormat
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import RAISE_OR_WAIT, UserError
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.trajectory import AnyAction, AnyItem, Tool, Usage
from agentmill.synthesis.environments.environment import Environment
from agentmill.synthesis.policies.cost import Budget, Prices, Spending
from agentmill.synthesis.policies.rate_limit import Limits


class Review(msgspec.Struct, frozen=True):
    """What a reviewer is asked about: actions that a message with the text ``veto`` prevents."""

    veto: str
    proposed: tuple[AnyAction, ...]


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy may look at. ``environment`` is for experts only; a model policy never touches it.

    ``choices`` are the only texts the turn may consist of, where the strategy constrains it. ``seed`` is this turn's.
    ``episode_id`` is the same for all turns of an episode: a policy with several servers sends them to the same one,
    whose prefix cache then holds the turns before. Without ``tools`` the agent is to write a command as text;
    ``tool_format`` is how it is shown tools, its calls and their results, and writes calls itself. With
    ``answer_schema``, a JSON Schema, the turn is to be one JSON object that fits it. ``review`` is for experts, too: a
    model reads in its prompt and in ``content`` what it is asked about. ``stand_in`` is the answer of an expert that is
    asked in the place of a model which plays the environment.
    """

    episode_id: str
    system_prompt: str
    content: tuple[AnyItem, ...]
    tools: list[Tool]
    seed: int
    tool_format: ToolFormat = "native"
    choices: list[str] | None = None
    answer_schema: JsonObject | None = None
    review: Review | None = None
    environment: Environment | None = None
    stand_in: Callable[[], str] | None = None


class Turn(Record):
    """One turn of an agent: its actions (at least one), in order. The first may carry ``tokens``."""

    actions: list[AnyAction]
    finish_reason: str = "stop"
    usage: Usage = Usage()


class PolicyError(Exception):
    """No turn could be had. ``reason`` is a short code: ``unreachable``, ``timeout``, ``malformed``, ``refused`` …"""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class ContextOverflow(PolicyError):
    """The conversation is longer than the model's context; the episode ends truncated, not as an error."""

    def __init__(self, detail: str) -> None:
        super().__init__("context_overflow", detail)


class Unreachable(PolicyError):
    """No endpoint of the model can be connected to. It ends the stage: the episodes are not at fault, and wait."""

    def __init__(self, detail: str) -> None:
        super().__init__("unreachable", detail)


class Denied(Unreachable):
    """All endpoints of the model refuse whatever is asked, for now. It ends the stage when what is in flight has ended.

    ``retry_after_s`` is what the provider asks to be left alone for, if it says so.
    """

    def __init__(self, reason: str, detail: str, retry_after_s: float | None = None) -> None:
        PolicyError.__init__(self, reason, detail)
        self.retry_after_s = retry_after_s

    advice: ClassVar[str] = RAISE_OR_WAIT
    """What the user does before the run goes on, for ``LimitReached``."""


class OverBudget(Denied):
    """The model's budget is spent: nothing more is asked in this run."""

    def __init__(self, detail: str) -> None:
        super().__init__("budget_spent", detail)


class Rejected(Denied):
    """The model's server refuses every request of this kind, whatever the conversation: a parameter is wrong."""

    advice = "correct the model's `sampling`, `extra_body` or `headers`,"


class Policy(Protocol):
    """Who acts. One instance serves many episodes at once; what it says depends on the conversation alone."""

    name: str
    model: str | None
    revision: str | None
    sampling: JsonObject
    spending: Spending | None
    """What it has cost, for a policy with a budget. ``act`` raises ``OverBudget`` once it is spent."""

    async def act(self, conversation: Conversation) -> Turn:
        """The next turn. Raises ``PolicyError`` if none can be had, ``ContextOverflow`` if the context is full."""

    async def close(self) -> None:
        """Free connections. Safe to call twice."""


def exhausted(policies: Iterable[Policy]) -> str | None:
    """The first budget among those of ``policies`` that is spent, in words; ``None`` if new episodes may begin."""
    reasons = (policy.spending.exhausted() for policy in policies if policy.spending is not None)
    return next((text for text in reasons if text is not None), None)


class PolicySettings(Record):
    """Which policy, and how it acts.

    ``policy`` names an entry of ``POLICIES``, and ``entry`` one of the recipe's ``models``, by which its spending is
    known. ``name`` and ``revision`` say which model this is, and go into the identity of what it makes.
    ``model`` is the name it is served under at each of ``endpoints`` (base URLs that end in
    ``/v1``). ``sampling`` is merged into each request body. ``api_key_variable`` names the environment variable that
    holds the key. ``headers`` are sent with each request; a value ``env:NAME`` is read from the environment.
    ``turn_timeout_s`` bounds a turn with all its retries, but for the time that a server which cannot be reached is
    waited for, at most ``patience_s``, and a provider that refuses, at most ``limits.patience_s``.
    ``limits`` are those of one worker; ``ledger`` is the file in which the workers of a run share what was spent of
    ``budget``, by ``step``. ``turns`` is the script of ``scripted``. ``tokenizer`` is the folder of the tokenizer
    of a model that scores conversations and makes no turns.
    """

    policy: str
    entry: str | None = None
    name: str | None = None
    revision: str | None = None
    model: str | None = None
    endpoints: list[str] = []
    api_key_variable: str | None = None
    headers: dict[str, str] = {}
    sampling: JsonObject = {}
    turn_timeout_s: float = 300.0
    patience_s: float = 60.0
    max_retries: int = 8
    limits: Limits = Limits()
    prices: Prices | None = None
    budget: Budget | None = None
    ledger: str | None = None
    step: str = ""
    turns: list[str] = []
    tokenizer: str | None = None


FROM_ENVIRONMENT = "env:"
"""How a header begins whose value is that of an environment variable."""


def header_values(headers: Mapping[str, str]) -> dict[str, str]:
    """``headers`` with the values of environment variables. Raises ``UserError`` for one that is not set."""
    values = dict(headers)
    for name, value in headers.items():
        if value.startswith(FROM_ENVIRONMENT):
            variable = value.removeprefix(FROM_ENVIRONMENT)
            values[name] = os.environ.get(variable, "")
            if not values[name]:
                raise UserError(
                    f"the environment variable {variable!r}, named by the header {name!r}, is not set;"
                    f" run: export {variable}=...",
                    ErrorCode.KEY_MISSING,
                )
    return values


def api_key(variable: str | None) -> str | None:
    """The key in an environment variable. Raises ``UserError`` if the variable is named but not set."""
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise UserError(
            f"the environment variable {variable!r}, named by `api_key_variable`, is not set;"
            f" run: export {variable}=...",
            ErrorCode.KEY_MISSING,
        )
    return key
