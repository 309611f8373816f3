"""Whether calls are as the tools they name declare."""

from __future__ import annotations

import jsonschema
from referencing.jsonschema import EMPTY_REGISTRY

from schemas.trajectory import ApiAction, Tool


def misfit(call: ApiAction, tool: Tool) -> str | None:
    """What a declared tool does not take of the arguments of a call; ``None`` if it takes them.

    A schema that is none takes all but text that is no JSON. References to elsewhere are not followed.
    """
    if call.raw_arguments is not None:
        return "the arguments must be a JSON object"
    try:
        jsonschema.Draft202012Validator(tool.parameters, registry=EMPTY_REGISTRY).validate(call.kwargs)
    except jsonschema.ValidationError as error:
        return str(error.message)
    except Exception:  # noqa: BLE001  whatever a foreign schema may provoke: it says nothing of the call
        return None
    return None
