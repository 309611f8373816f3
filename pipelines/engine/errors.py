"""The one boundary that says who is at fault for an input that could not be used, and keeps it as a dead letter."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import msgspec

from agentmill.pipelines.engine.operation import AnyOperation, Blamed
from agentmill.schemas.arrow.check import is_too_deep
from agentmill.schemas.extras import missing_extra
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.verdict import Dropped
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.policies.policy import PolicyError
from agentmill.synthesis.verifiers.verifier import VerifierError

LARGEST_INPUT_BYTES = 65_536
"""An input whose JSON is longer is kept as a reference to its shard and row."""


PASSING = frozenset({"timeout", "disconnected", "rate_limited", "server_error", "malformed"})
"""Reasons of a policy, that is of a model server, which another try may not meet."""


class EngineError(Exception):
    """An operation broke its contract, or the engine did: the run must stop."""


def may_pass(letter: Dropped) -> bool:
    """Whether what dropped an input may be gone at another try."""
    return letter.blamed == "policy" and letter.reason in PASSING


def dead_letter(error: Exception, input_id: str, operation: AnyOperation, context: JsonObject) -> Dropped:
    """The dead letter of an input whose processing raised ``error``.

    Raises ``UserError`` where a module of an extra is missing: no input is at fault for that.
    """
    mistake = missing_extra(error)
    if mistake is not None:
        raise mistake from error
    reason, blamed = attribute(error, operation.blamed)
    if isinstance(error, GenerationError) and error.history:
        context = {**context, "history": error.history}
    # A message may quote lone surrogates, which neither JSON nor Arrow can hold.
    detail = describe(error).encode(errors="backslashreplace").decode()
    return Dropped(input_id=input_id, stage=operation.name, reason=reason, blamed=blamed, detail=detail, input=context)


def attribute(error: Exception, default: Blamed) -> tuple[str, Blamed]:
    """(reason, party at fault) of an exception; one that names nobody is the fault of ``default``."""
    if isinstance(error, EnvError):
        return error.reason, "environment"
    if isinstance(error, PolicyError):
        return error.reason, "policy"
    if isinstance(error, GenerationError):
        return error.reason, "generator"
    if isinstance(error, VerifierError):
        return error.reason, "verifier"
    return "unexpected_error", default


def describe(error: Exception) -> str:
    """The message of an expected error; of any other its type and the place it was raised at, too."""
    if isinstance(error, PolicyError | GenerationError):
        return error.detail
    if isinstance(error, EnvError | VerifierError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" (in {frames[-1].name}, {Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def as_context(record: Record, reference: JsonObject) -> JsonObject:
    """``record`` as the input of a dead letter; ``reference`` (its place) if it is large, nested too deeply
    or cannot be JSON."""
    try:
        text = msgspec.json.encode(record)
        if len(text) > LARGEST_INPUT_BYTES:
            return reference
        context: dict[str, Any] = msgspec.json.decode(text)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return reference
    return reference if is_too_deep(context) else context
