"""Data sets on the Hugging Face Hub: which of their files hold a split, read where they lie.

An address (``agentmill.schemas.hub``) with a path names a file, a folder or a glob; without one, the data files that
``datasets`` finds for a configuration and a split, by the data set's card or by the names of its files. Files are read
through ranges of bytes, none of them whole but JSON documents, and nothing of a data set is ever run.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.hub import SCHEME, Address, hub_errors, is_address, parse, pin
from agentmill.schemas.ids import digest
from agentmill.schemas.records.manifest import write_atomically
from agentmill.schemas.records.raw_input import IN_FOLDERS, RawPart
from agentmill.schemas.records.record import JsonObject

__all__ = ["Address", "Selection", "content", "data_files", "is_address", "opened", "parse", "pin", "pinned", "size"]

_READ_AHEAD_BYTES = 1 << 20


class Selection(NamedTuple):
    """Which configuration and split of a data set; ``None``: the only one, or its default."""

    config: str | None = None
    split: str | None = None


def pinned(place: str, revisions: MutableMapping[str, str]) -> str:
    """``place``, if it is on the Hub at the commit in ``revisions``; a new one is noted there. Raises ``UserError``."""
    if not is_address(place):
        return place
    address = parse(place)
    if address.pinned:
        return str(address)
    name = str(address._replace(path=""))
    if name not in revisions:
        revisions[name] = str(pin(address).revision)
    return str(address._replace(revision=revisions[name]))


def data_files(address: Address, selection: Selection) -> list[str]:
    """The addresses of the files that ``address`` means, pinned, in their order. Raises ``UserError``."""
    address = pin(address)
    with hub_errors(str(address)):
        return _matches(address) if address.path else _of_split(address, selection)


def size(path: str) -> int:
    """How many bytes the file at the address ``path`` has."""
    return int(_files().info(path)["size"])


def opened(path: str) -> BinaryIO:
    """The file at the pinned address ``path``, to be read in ranges; network errors pass after a few retries."""
    return cast(BinaryIO, io.BufferedReader(_files().open(path, "rb"), _READ_AHEAD_BYTES))


def content(path: str) -> bytes:
    """All of the file at the pinned address ``path``."""
    return bytes(_files().cat_file(path))


def _files() -> Any:
    from huggingface_hub import HfFileSystem

    return HfFileSystem()


def _matches(address: Address) -> list[str]:
    files, path = _files(), str(address).removeprefix(SCHEME)
    if files.isdir(path):
        names = [each["name"] for each in files.ls(path) if each["type"] == "file"]
        found = [each for each in names if PurePosixPath(each).suffix.lower() in IN_FOLDERS]
    else:
        found = [path] if files.isfile(path) else [each for each in files.glob(path) if files.isfile(each)]
    found = [each for each in found if not PurePosixPath(each).name.startswith(".")]
    if not found:
        root = str(address._replace(path="")).removeprefix(SCHEME)
        names = [each.removeprefix(f"{root}/") for each in files.find(root)]
        raise UserError(
            f"no file matches {address}.{near_match(address.path, names)} It has {_listed(names)}",
            ErrorCode.NO_FILE_MATCHES,
        )
    return [f"{SCHEME}{each}" for each in sorted(found)]


def _of_split(address: Address, selection: Selection) -> list[str]:
    splits = _splits(address, selection.config)
    if selection.split is None and len(splits) > 1:
        raise UserError(
            f"{address} has several splits; name the one to read with split: ({_listed(splits)})",
            ErrorCode.SEVERAL_MATCH,
        )
    split = selection.split or next(iter(splits))
    if split not in splits:
        raise UserError(
            f"{address} has no split {split!r}; it has {_listed(splits)}.{near_match(split, splits)}",
            ErrorCode.UNKNOWN_NAME,
        )
    return [str(each) for each in splits[split]]


def _splits(address: Address, config: str | None) -> Mapping[str, Sequence[str]]:
    """The data files of a configuration, by split."""
    from datasets import get_dataset_config_names, load_dataset_builder

    try:
        builder = load_dataset_builder(address.repo, config, revision=address.revision)
    except ValueError as error:  # a configuration that is not there, or none of several
        names = get_dataset_config_names(address.repo, revision=address.revision)
        if config in names or (config is None and len(names) < 2):
            raise UserError(f"{address}: {' '.join(str(error).split())}", ErrorCode.HUB_DATA_UNREADABLE) from None
        if config is None:
            raise UserError(
                f"{address} has several configurations; name one with config: ({_listed(names)})",
                ErrorCode.SEVERAL_MATCH,
            ) from None
        near = near_match(config, names)
        raise UserError(
            f"{address} has no configuration {config!r}; it has {_listed(names)}.{near}", ErrorCode.UNKNOWN_NAME
        ) from None
    if not builder.config.data_files:
        raise UserError(
            f"{address} holds no data files; name them by their path: {address}/data/*.jsonl", ErrorCode.NO_FILE_MATCHES
        )
    return {str(split): files for split, files in builder.config.data_files.items()}


def _listed(names: Mapping[str, object] | Sequence[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "") or "none"


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
