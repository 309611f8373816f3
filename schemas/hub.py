"""Addresses of data sets on the Hugging Face Hub, and tables that were published there.

An address is ``hf://datasets/ORG/NAME[@REVISION][/PATH]``; ``datasets/`` may be left out, since nothing else is read. A
pinned address has a commit for a revision: what it names never changes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.records.manifest import MANIFEST_NAME, Manifest, ShardFile, read_manifest

_ACCESS = "if it is private or gated, ask for access on its page and log in with `hf auth login` or HF_TOKEN"


@contextmanager
def hub_errors(address: str, kind: str = "data set") -> Iterator[None]:
    """Raises ``UserError`` where the Hub refuses ``address``, a repository of this ``kind``, or cannot be reached."""
    # Imported when it is needed: the Hub's client takes time to load, and most commands read local tables.
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except UserError:
        raise
    # A subclass of RepositoryNotFoundError, so it comes first.
    except errors.GatedRepoError:
        raise UserError(f"{address} is gated; {_ACCESS}", ErrorCode.HUB_GATED) from None
    except errors.RepositoryNotFoundError:
        raise UserError(
            f"there is no {kind} {address} on the Hub, or it is not to be seen; {_ACCESS}", ErrorCode.HUB_REPO_MISSING
        ) from None
    except errors.RevisionNotFoundError:
        raise UserError(
            f"{address}: there is no such revision; expected a branch, a tag or a commit",
            ErrorCode.HUB_REVISION_MISSING,
        ) from None
    except errors.OfflineModeIsEnabled:
        raise UserError(
            f"{address} cannot be read while HF_HUB_OFFLINE is set; unset it, or name local files",
            ErrorCode.HUB_UNREACHABLE,
        ) from None
    # What the Hub's client makes of a request for a file that fails while others come.
    except errors.LocalEntryNotFoundError as error:
        reason = _first_line(error.__cause__ or error)
        raise UserError(
            f"{address}: the download broke off ({reason}); run the same command again, it goes on",
            ErrorCode.HUB_REFUSES,
        ) from error
    except errors.HFValidationError as error:
        raise UserError(f"{address}: {_first_line(error)}", ErrorCode.HUB_ADDRESS_MALFORMED) from None
    except errors.HfHubHTTPError as error:
        raise UserError(
            f"{address}: the Hub answers {_first_line(error)}; run the same command again", ErrorCode.HUB_REFUSES
        ) from error
    except (httpx2.HTTPError, ConnectionError) as error:
        reason = f"{type(error).__name__}: {_first_line(error)}"
        raise UserError(
            f"{address}: the Hub cannot be reached ({reason}); run again, or name local files",
            ErrorCode.HUB_UNREACHABLE,
        ) from error
    except (FileNotFoundError, RuntimeError) as error:  # what `datasets` raises: no data files, a data set of code …
        raise UserError(f"{address}: {_first_line(error)}", ErrorCode.HUB_DATA_UNREADABLE) from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


SCHEME = "hf://"
_ADDRESS = re.compile(
    r"hf://(?:datasets/)?(?P<repo>(?!datasets/)[\w.-]+/[\w.-]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(?P<path>.*))?"
)
COMMIT = re.compile(r"[0-9a-f]{40}")
TABLE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)*")
"""What a table may be called in a data set; what is called so is in it, and is no pattern."""

_OTHERS = ("models", "spaces", "kernels", "buckets")


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
        return self.revision is not None and COMMIT.fullmatch(self.revision) is not None


def is_address(text: str) -> bool:
    """Whether ``text`` is meant as an address on the Hub."""
    return text.startswith(SCHEME)


def parse(text: str) -> Address:
    """The address in ``text``. Raises ``UserError``."""
    match = _ADDRESS.fullmatch(text)
    if match is None or match["repo"].split("/")[0] in _OTHERS:
        raise UserError(
            f"{text} is no data set on the Hub; expected hf://datasets/ORG/NAME[@REVISION][/PATH]",
            ErrorCode.HUB_ADDRESS_MALFORMED,
        )
    path = (match["path"] or "").rstrip("/")
    # The path becomes a folder of the local cache.
    if path and {"", ".", ".."} & set(path.split("/")):
        raise UserError(
            f"{text}: a path on the Hub has no empty parts, no '.' and no '..'", ErrorCode.HUB_ADDRESS_MALFORMED
        )
    return Address(match["repo"], match["revision"], path)


def pin(address: Address) -> Address:
    """``address`` at the commit that its revision is now. Raises ``UserError``."""
    if address.pinned:
        return address
    from huggingface_hub import HfApi

    with hub_errors(str(address)):
        info = HfApi().dataset_info(address.repo, revision=address.revision)
    return address._replace(revision=str(info.sha))


def tables(address: Address) -> list[str]:
    """The names of the tables of a data set, sorted. Raises ``UserError``."""
    from huggingface_hub import HfApi

    with hub_errors(str(address)):
        return tables_in(HfApi().list_repo_files(address.repo, repo_type="dataset", revision=address.revision))


def tables_in(paths: Iterable[str]) -> list[str]:
    """The names of the tables among the files of a data set, sorted. A manifest at its top is none of ours.

    A table has shards, be they empty: what other programs call ``manifest.json`` makes none of a folder.
    """
    files = [PurePosixPath(path) for path in paths]
    filled = {file.parent.parent for file in files if file.parent.name == "data" and file.suffix == ".parquet"}
    named = {file.parent for file in files if file.name == MANIFEST_NAME}
    return sorted(str(folder) for folder in named & filled if TABLE_NAME.fullmatch(str(folder)))


def fetched(text: str) -> Path:
    """The folder of the published table at the address ``text``, downloaded into the Hub's cache at its commit.

    The path may be left out where a data set has one table only. Every file is what the table's manifest says, by its
    digest. Raises ``UserError``.
    """
    from huggingface_hub import snapshot_download

    keep_pipes_plain()
    address = pin(parse(text))
    address = address if address.path else address._replace(path=_only_table(address))
    folder = fetched_manifest(address)
    manifest = read_manifest(folder)
    if not whole(folder, manifest):
        wanted = [f"{address.path}/{part}/*" for part in ("data", "dropped")]
        with hub_errors(text):
            snapshot_download(address.repo, repo_type="dataset", revision=address.revision, allow_patterns=wanted)
    for path, file in manifest.held():
        if not (folder / path).is_file():
            raise UserError(
                f"{address} has no file {path}, though its manifest names it; it is no whole table",
                ErrorCode.FILE_MISSING,
            )
        _check_download(address, folder, path, file)
    return folder


def _check_download(address: Address, folder: Path, path: str, file: ShardFile) -> None:
    """Raises ``UserError`` for a file that is not what the manifest lists, also when it is downloaded again."""
    from huggingface_hub import hf_hub_download

    try:
        # A download that was cut off, or a cache that was changed, would otherwise be read as the table.
        file.check(folder / path)
    except UserError:
        name = f"{address.path}/{path}"
        with hub_errors(str(address)):
            hf_hub_download(address.repo, name, repo_type="dataset", revision=address.revision, force_download=True)
        file.check(folder / path)


def keep_pipes_plain() -> None:
    """From now on the Hub's client draws no bars where stderr is no terminal."""
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()


def fetched_manifest(address: Address) -> Path:
    """The folder of the published table at the pinned ``address``, with its manifest. Raises ``UserError``."""
    from huggingface_hub import errors, hf_hub_download

    with hub_errors(str(address)):
        try:
            if not TABLE_NAME.fullmatch(address.path):
                raise errors.EntryNotFoundError(address.path)
            name = f"{address.path}/{MANIFEST_NAME}"
            return Path(hf_hub_download(address.repo, name, repo_type="dataset", revision=address.revision)).parent
        except errors.EntryNotFoundError:
            names = tables(address)
            raise UserError(
                f"{address} is no table. {_choices(names)}{near_match(address.path, names)}", ErrorCode.TABLE_MISSING
            ) from None


def cached(address: Address) -> Path | None:
    """The folder of the table at the pinned ``address``, if it was downloaded before; the Hub is not asked."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    repo = repo_folder_name(repo_id=address.repo, repo_type="dataset")
    root = Path(constants.HF_HUB_CACHE) / repo / "snapshots" / str(address.revision)
    held = tables_in(path.relative_to(root).as_posix() for path in root.rglob("*"))
    names = [address.path] if address.path else held
    if len(names) != 1 or names[0] not in held:
        return None
    folder = root / names[0]
    return folder if whole(folder, read_manifest(folder)) else None


def whole(folder: Path, manifest: Manifest) -> bool:
    """Whether all files of the table are there, whatever is in them."""
    return all((folder / path).is_file() for path, _ in manifest.held())


def _only_table(address: Address) -> str:
    names = tables(address)
    if len(names) != 1:
        example = f"; name one: {address}/{names[0]}" if names else ""
        raise UserError(
            f"{address}: {_choices(names)}{example}", ErrorCode.SEVERAL_MATCH if names else ErrorCode.TABLE_MISSING
        )
    return names[0]


def _choices(names: list[str]) -> str:
    return f"tables of that data set: {', '.join(names) or 'none'}."
