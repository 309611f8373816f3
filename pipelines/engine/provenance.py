"""What a table is made by, and whether the table that is in a folder was made by the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path

import msgspec

from agentmill.pipelines.engine.operation import SIDES
from agentmill.schemas.config import config_digest, differences
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.manifest import MANIFEST_NAME, TEMPORARY_FOLDER
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.tables import Manifest, Table, entries, read_manifest

WORK = ".work"
SEEDS = ".seeds"
CLEARING = f"{WORK}/clearing"
"""A file that is there while a table is being removed."""

_SIDE = rf"(?:(?:{'|'.join(SIDES)})/)?"
_SHARD = rf"{_SIDE}(?:data|dropped)/part-\d+\.parquet"
_SCRATCH = rf"{_SIDE}(?:{'|'.join(map(re.escape, (WORK, SEEDS, TEMPORARY_FOLDER)))})/.*"
_NUMBER = re.compile(r"#\d+$")
"""At the end of the name of an input: which of several tables of one name it is. Names in a recipe have no ``#``."""
_EARLIER_NUMBER = re.compile(r"-(?=\d+$)")
"""What earlier versions wrote for the ``#``."""
_SEED_DIGESTS = re.compile(r"seeds: [0-9a-f]{32} -> [0-9a-f]{32}")
_OURS = re.compile(rf"{_SIDE}{re.escape(MANIFEST_NAME)}|{_SHARD}|{_SCRATCH}", re.DOTALL)


def check_ours(folder: Path, elsewhere: str = "choose another run_dir or name (as: …)") -> None:
    """Raises ``UserError`` unless ``folder`` is missing, empty, or a table of ours, finished or not, and no more.

    A table has a manifest or the plan of an attempt. A link is never ours, wherever it leads. ``elsewhere`` is the
    advice of how to name another place.
    """
    if folder.is_symlink():
        raise UserError(
            f"{folder} is a link; expected the folder of a table: {elsewhere}, or remove it",
            ErrorCode.OUTPUT_NOT_OURS,
        )
    if folder.exists() and not folder.is_dir():
        raise UserError(
            f"{folder} is a file; expected the folder of a table: {elsewhere}, or remove it",
            ErrorCode.NOT_A_FOLDER,
        )
    begun = (folder / MANIFEST_NAME).exists() or (folder / CLEARING).exists() or any(plans(folder))
    for name in entries(folder):
        # Where no table was begun, a shard by one of our names may still be the user's.
        if not _OURS.fullmatch(name) or not (begun or re.fullmatch(_SCRATCH, name)):
            raise UserError(
                f"{folder} holds {name!r}, which is no part of a table that was begun there\n"
                f"nothing was changed: {elsewhere}, or move what is there",
                ErrorCode.OUTPUT_NOT_OURS,
            )


def plans(folder: Path) -> Iterator[Path]:
    """The plans of attempts at the table in ``folder``; earlier versions had one right in the folder of attempts."""
    yield from (folder / WORK).glob("*/plan.json")
    yield from (folder / WORK).glob("plan.json")


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Operator, configuration and input digests of a table: equal for tables that are made the same way."""

    operator: str
    config: JsonObject
    inputs: dict[str, str]

    @property
    def config_digest(self) -> str:
        """Digest of ``config``."""
        return config_digest(self.config)


def provenance(operator: str, config: JsonObject, inputs: Mapping[str, Sequence[Table]]) -> Provenance:
    """The provenance of a table made by ``operator`` from ``inputs`` by role; tables go by name, not by place."""
    digests: dict[str, str] = {}
    for role, tables in inputs.items():
        for table in tables:
            name = f"{role}/{table.folder.name}"
            # Two tables of one name and role, as of two rounds: both count.
            keys = chain([name], (f"{name}#{number}" for number in count(1)))
            digests[next(key for key in keys if digests.get(key, table.digest) == table.digest)] = table.digest
    return Provenance(operator=operator, config=config, inputs=digests)


def finished(folder: Path, wanted: Provenance, replace: bool = False) -> Manifest | None:
    """The manifest in ``folder`` if its table was made as ``wanted``; ``None`` if it is to be made.

    A table that was made differently is to be made anew if ``replace``. Raises ``UserError`` otherwise, and if the
    folder holds something else.
    """
    if not (folder / MANIFEST_NAME).exists():
        check_ours(folder)
        return None
    manifest = read_manifest(folder)
    held = Provenance(operator=manifest.operator, config=manifest.config, inputs=manifest.inputs)
    changes = changed(held, wanted)
    if not changes:
        return manifest
    if replace:
        check_ours(folder)
        return None
    raise UserError(
        f"{folder} was made differently: {shown(changes)}\n"
        "run again with --replace to make it (and what follows from it) anew, or with another run_dir=…",
        ErrorCode.MADE_DIFFERENTLY,
    )


def shown(changes: Sequence[str]) -> str:
    """What differs, for a message: the first few, and how many more there are."""
    return "; ".join(changes[:4]) + (f"; and {len(changes) - 4} more" if len(changes) > 4 else "")


def changed(held: Provenance, wanted: Provenance) -> list[str]:
    """What differs, as ``"n: 8 -> 12"``."""
    operator = [] if held.operator == wanted.operator else [f"operator: {held.operator} -> {wanted.operator}"]
    config = differences(held.config, wanted.config) if held.config_digest != wanted.config_digest else []
    # Two digests show nobody that a file has changed.
    records = "seeds (the records, or the file, that it starts from): changed"
    config = [_SEED_DIGESTS.sub(records, each) for each in config]
    held_inputs = _numbered_anew(held.inputs, wanted.inputs)
    names = sorted({*held_inputs, *wanted.inputs})
    changes = {name: _change(held_inputs, wanted.inputs, name) for name in names}
    inputs = [f"input {name}: {change}" for name, change in changes.items() if change]
    return operator + config + inputs


def _change(held: Mapping[str, str], wanted: Mapping[str, str], name: str) -> str:
    if held.get(name) == wanted.get(name) or _digests(held, name) == _digests(wanted, name):
        return ""
    if name not in held:
        return "new"
    return "other rows" if name in wanted else "gone"


def _digests(inputs: Mapping[str, str], key: str) -> list[str]:
    """The digests of all tables of one name, which may be given in any order, as tables of other names may."""
    return sorted(digest for each, digest in inputs.items() if unnumbered(each) == unnumbered(key))


def unnumbered(key: str) -> str:
    """The role and the name of an input, without the number that tables of one name have."""
    return _NUMBER.sub("", key)


def _numbered_anew(held: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """``held`` with the keys that an earlier version wrote as ``NAME-1``, where no table is called so."""
    numbered = {key for key in held if key not in wanted and _EARLIER_NUMBER.split(key)[0] in held}
    return {_EARLIER_NUMBER.sub("#", key) if key in numbered else key: digest for key, digest in held.items()}


class Verified:
    """Files whose digests were compared by this process; each is read once for as long as it does not change."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[int, int, str]] = {}

    def check(self, table: Table) -> None:
        """Raises ``UserError`` unless the rows of ``table`` are those that its manifest lists, byte for byte."""
        for path, file in zip(table.shards(), table.manifest.files, strict=True):
            status = path.stat()
            seen = (status.st_size, status.st_mtime_ns, file.sha256)
            if self._seen.get(path) != seen:
                try:
                    file.check(path)
                except UserError as error:
                    raise UserError(
                        f"{error}\nput the file back, or delete {table.folder} and run again what makes it", error.code
                    ) from error
                self._seen[path] = seen
