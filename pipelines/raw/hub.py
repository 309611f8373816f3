"""Data sets on the Hugging Face Hub: which of their files hold a split, read where they lie.

An address is ``hf://datasets/ORG/NAME[@REVISION][/PATH]``; ``datasets/`` may be left out, since nothing else is read.
With a path it names a file, a folder or a glob; without one, the data files that ``datasets`` finds for a configuration
and a split, by the data set's card or by the names of its files. Files are read through ranges of bytes, none of them
whole but JSON documents, and nothing of a data set is ever run.

A pinned address has a commit for a revision: what it names never changes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, BinaryIO, NamedTuple, cast

from pipelines.raw.hub_errors import hub_errors
from schemas.errors import UserError, near_match
from schemas.raw import KINDS

SCHEME = "hf://"
_ADDRESS = re.compile(
    r"hf://(?:datasets/)?(?P<repo>(?!datasets/)[\w.-]+/[\w.-]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(?P<path>.*))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_OTHERS = ("models", "spaces", "kernels", "buckets")
_READ_AHEAD_BYTES = 1 << 20


class Selection(NamedTuple):
    """Which configuration and split of a data set; ``None``: the only one, or its default."""

    config: str | None = None
    split: str | None = None


class Address(NamedTuple):
    """The parts of an address; ``path`` is empty for a data set as a whole."""

    repo: str
    revision: str | None
    path: str

    def __str__(self) -> str:
        revision = "" if self.revision is None else f"@{self.revision}"
        return f"{SCHEME}datasets/{self.repo}{revision}" + (f"/{self.path}" if self.path else "")

    @property
    def pinned(self) -> bool:
        """Whether its revision is a commit."""
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None


def is_address(text: str) -> bool:
    """Whether ``text`` is meant as an address on the Hub."""
    return text.startswith(SCHEME)


def parse(text: str) -> Address:
    """The address in ``text``. Raises ``UserError``."""
    match = _ADDRESS.fullmatch(text)
    if match is None or match["repo"].split("/")[0] in _OTHERS:
        raise UserError(f"{text} is no data set on the Hub; expected hf://datasets/ORG/NAME[@REVISION][/PATH]")
    return Address(match["repo"], match["revision"], (match["path"] or "").strip("/"))


def pin(address: Address) -> Address:
    """``address`` at the commit that its revision is now. Raises ``UserError``."""
    if address.pinned:
        return address
    from huggingface_hub import HfApi

    with hub_errors(str(address)):
        info = HfApi().dataset_info(address.repo, revision=address.revision)
    return address._replace(revision=str(info.sha))


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
        found = [each for each in names if PurePosixPath(each).suffix.lower() in KINDS]
    else:
        found = [path] if files.isfile(path) else [each for each in files.glob(path) if files.isfile(each)]
    found = [each for each in found if not PurePosixPath(each).name.startswith(".")]
    if not found:
        root = str(address._replace(path="")).removeprefix(SCHEME)
        names = [each.removeprefix(f"{root}/") for each in files.find(root)]
        raise UserError(f"no file matches {address}.{near_match(address.path, names)} It has {_listed(names)}")
    return [f"{SCHEME}{each}" for each in sorted(found)]


def _of_split(address: Address, selection: Selection) -> list[str]:
    splits = _splits(address, selection.config)
    if selection.split is None and len(splits) > 1:
        raise UserError(f"{address} has several splits; name the one to read with split: ({_listed(splits)})")
    split = selection.split or next(iter(splits))
    if split not in splits:
        raise UserError(f"{address} has no split {split!r}; it has {_listed(splits)}.{near_match(split, splits)}")
    return [str(each) for each in splits[split]]


def _splits(address: Address, config: str | None) -> Mapping[str, Sequence[str]]:
    """The data files of a configuration, by split."""
    from datasets import get_dataset_config_names, load_dataset_builder

    try:
        builder = load_dataset_builder(address.repo, config, revision=address.revision)
    except ValueError as error:  # a configuration that is not there, or none of several
        names = get_dataset_config_names(address.repo, revision=address.revision)
        if config in names or (config is None and len(names) < 2):
            raise UserError(f"{address}: {' '.join(str(error).split())}") from None
        if config is None:
            raise UserError(f"{address} has several configurations; name one with config: ({_listed(names)})") from None
        near = near_match(config, names)
        raise UserError(f"{address} has no configuration {config!r}; it has {_listed(names)}.{near}") from None
    if not builder.config.data_files:
        raise UserError(f"{address} holds no data files; name them by their path: {address}/data/*.jsonl")
    return {str(split): files for split, files in builder.config.data_files.items()}


def _listed(names: Mapping[str, object] | Sequence[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "") or "none"
