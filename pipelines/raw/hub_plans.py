"""Plans of data sets on the Hub, kept beside the Hub's own cache.

Planning reads every row, which on the Hub is a transfer of all files; what a pinned address names never changes, so one
plan serves every run and every resumption of it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from schemas.errors import UserError
from schemas.ids import digest
from schemas.manifest import write_atomically
from schemas.raw import RawPart
from schemas.record import JsonObject

logger = logging.getLogger(__name__)

FORM = 2
"""To be raised when parts are cut differently."""


def kept_plan(what: JsonObject) -> list[RawPart] | None:
    """The parts of ``what`` if they were planned before."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(_place(what).read_bytes(), type=list[RawPart])
    return None


def keep_plan(what: JsonObject, parts: Sequence[RawPart]) -> None:
    """Keep ``parts`` as those of ``what``, all that decides them: pinned addresses, and how their rows are cut.

    If they cannot be written, a warning says so: a run needs them only to save a later one the transfer.
    """
    path = _place(what)
    try:
        write_atomically(path, msgspec.json.encode(parts), path.parent)
    except (OSError, UserError) as error:
        logger.warning("the plan is not kept, a later run reads all files once more (%s)", error)


def _place(what: JsonObject) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HOME) / "agentmill" / "plans" / f"{digest('plan', FORM, what)}.json"
