"""The agent of an evaluation: a rollout operator inside of a step, with its own parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentmill.pipelines.operators.memory import WithExamples
from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.pipelines.operators.rollout import Acting
from agentmill.pipelines.operators.tree_search import TreeSearch
from agentmill.schemas.config import validate
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.records.record import JsonObject
from agentmill.synthesis.rollouts.parameters import Attempts
from agentmill.synthesis.strategies.sample import Sample

OPERATOR = "operator"
DEFAULT = "sample"
SET_BY_THE_STEP = ("policy", "tasks", "environments", "split", "share")
"""Parameters of a rollout that follow from the step around it."""

NO_ATTEMPTS = (TreeSearch, WithExamples)
"""A tree search returns the paths of a tree, and no environment answered an imagined or simulated episode."""


def rollout_type(operator: Any) -> type[Acting]:
    """The operator called ``operator``, which plays k episodes of a task. Raises ``UserError`` for any other."""
    if isinstance(operator, str) and operator in OPERATORS:
        found = OPERATORS.load(operator)
        if issubclass(found, Acting) and _plays_episodes(found):
            return found
    known = [name for name in OPERATORS if _plays_episodes(OPERATORS.load(name))]
    raise UserError(
        f"rollout.operator: expected one that plays k episodes per task ({', '.join(known)}), got {operator!r}."
        f"{near_match(str(operator), known)}",
        ErrorCode.UNKNOWN_NAME,
    )


def rollout_keys(rollout: Any) -> set[str]:
    """The parameters that a ``rollout`` may still be given; none where it is not valid, which is reported elsewhere."""
    if not isinstance(rollout, Mapping):
        return set()
    try:
        operator = rollout_type(rollout.get(OPERATOR, DEFAULT))
    except UserError:
        return set()
    return _fields(operator) - {*rollout}


def _fields(operator: type[Acting]) -> set[str]:
    """The parameters of a rollout, but for those that the step around it sets."""
    return {field.alias or name for name, field in operator.model_fields.items()} - {*SET_BY_THE_STEP}


def _plays_episodes(operator: type[Any]) -> bool:
    return issubclass(operator, Acting) and issubclass(operator, Attempts) and not issubclass(operator, NO_ATTEMPTS)


def collect(given: Mapping[str, Any], own: Sequence[str]) -> JsonObject:
    """``given`` with the parameters that are not the step's ``own`` moved into ``rollout``.

    Raises ``UserError`` for a parameter that is known to neither, given twice, or set by the step.
    """
    rollout = given.get("rollout", {})
    if not isinstance(rollout, Mapping):
        raise UserError(f"rollout: expected an operator with its parameters, got {rollout!r}", ErrorCode.INVALID_VALUE)
    flat = {key: value for key, value in given.items() if key not in own}
    for key in flat:
        if key in rollout:
            raise UserError(f"{key!r} is given in the step and in its `rollout`; give it once", ErrorCode.GIVEN_TWICE)
    parameters = {OPERATOR: DEFAULT, **rollout, **flat}
    operator = rollout_type(parameters[OPERATOR])
    fields = _fields(operator)
    for key in parameters:
        if key in SET_BY_THE_STEP:
            raise UserError(
                f"rollout.{key}: the step around it sets this; leave it out here", ErrorCode.KEY_NOT_FOR_THIS
            )
        if key != OPERATOR and key not in fields:
            known = sorted({*fields, *(own if key in flat else ())})
            raise UserError(
                f"unknown key {key!r}; known: {', '.join(known)}.{near_match(key, known)}", ErrorCode.UNKNOWN_KEY
            )
    return {**{key: value for key, value in given.items() if key in own}, "rollout": parameters}


def agent(rollout: Mapping[str, Any], **step: Any) -> Acting:
    """The rollout with the parameters that the ``step`` sets. Raises ``UserError`` for a mistake in one."""
    parameters = {key: value for key, value in rollout.items() if key != OPERATOR}
    made = validate(rollout_type(rollout[OPERATOR]), {**parameters, **step}, str(rollout[OPERATOR]))
    if isinstance(made, Sample) and made.tools == "none":
        raise UserError(
            "`tools: none` gives answers that no environment gets, so `check_outcome` cannot score them;\n"
            "leave it out here, or make the attempts with `sample` and compare them with `answer_match`",
            ErrorCode.KEY_NOT_FOR_THIS,
        )
    return made
