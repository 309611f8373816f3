"""What a publication would change on the Hub, found without sending anything."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.hub import tables_in
from agentmill.schemas.ids import file_sha256

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

RepoType = Literal["dataset", "model"]

COMMITTED = "agentmill publish: "
"""How the titles of our commits begin; by the last commit of a file we know whether it is ours to change."""

ASKED = 500
"""Paths that the Hub is asked of at once."""

MAIN = "main"
SHA256_DIGITS = 64
SHOWN = 5


class Branch(NamedTuple):
    """Where to on the Hub."""

    repo: str
    repo_type: RepoType
    revision: str


class Remote(msgspec.Struct, frozen=True):
    """What lies on the Hub. ``head`` is the commit that would be followed; ``None``: there is no repository yet.

    ``copied``: the branch is not there yet and will begin with what main holds, so what goes from it is not lost.
    ``files`` has, by path, the sha256 of a large file, or git's blob id of a small one. ``private`` is ``None``
    where there is no repository yet.
    """

    head: str | None = None
    private: bool | None = None
    copied: bool = False
    files: dict[str, str] = {}


class Difference(msgspec.Struct, frozen=True):
    """The paths that a publication adds, changes, leaves as they are and removes."""

    added: list[str]
    changed: list[str]
    unchanged: list[str]
    removed: list[str]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.added or self.changed or self.removed)


class LocalFile(msgspec.Struct, frozen=True):
    """A file to publish: where it lies, or its content; its size, and its sha256 where that is known."""

    source: Path | bytes
    size: int
    sha256: str | None = None

    @classmethod
    def of(cls, source: Path | bytes, sha256: str | None = None) -> LocalFile:
        """A file, measured."""
        return cls(source, len(source) if isinstance(source, bytes) else source.stat().st_size, sha256)


def remote(api: HfApi, branch: Branch) -> Remote:
    """What the Hub holds there. Raises the errors of ``huggingface_hub``, but for what is not there."""
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError
    from huggingface_hub.hf_api import RepoFile

    repo, repo_type, revision = branch
    try:
        # Without the branch first: a repository that is missing and a branch that is missing are two cases.
        info = api.repo_info(repo, repo_type=repo_type)
    except RepositoryNotFoundError:
        return Remote()
    copied = False
    try:
        head = api.repo_info(repo, repo_type=repo_type, revision=revision).sha
    except RevisionNotFoundError:
        head, copied = info.sha, revision != MAIN
    # Of that commit and not of the branch, so that what is pushed meanwhile does not count as seen.
    listed = api.list_repo_tree(repo, repo_type=repo_type, revision=head, recursive=True)
    files = {each.path: content_id(each) for each in listed if isinstance(each, RepoFile)}
    return Remote(head=head, private=info.private, copied=copied, files=files)


def content_id(file: RepoFile) -> str:
    """What identifies the content of a file on the Hub."""
    return file.blob_id if file.lfs is None else file.lfs.sha256


def difference(files: Mapping[str, LocalFile], held: Remote, replaced: Collection[str]) -> Difference:
    """Local ``files`` against what is ``held``; ``replaced`` are paths of files and folders that hold nothing else.

    What somebody else put with them (a LICENSE, ``.gitattributes``) stays.
    """
    there = {path: same(file, held.files[path]) for path, file in files.items() if path in held.files}
    return Difference(
        added=sorted(files.keys() - there.keys()),
        changed=sorted(path for path, equal in there.items() if not equal),
        unchanged=sorted(path for path, equal in there.items() if equal),
        removed=sorted(path for path in held.files if path not in files and lies_in(path, replaced)),
    )


def lies_in(path: str, places: Collection[str]) -> bool:
    """Whether ``path`` is one of ``places``, or is below one."""
    whole = PurePosixPath(path)
    return any(str(each) in places for each in (whole, *whole.parents))


def same(file: LocalFile, held: str) -> bool:
    """Whether a file has the content that the Hub lists, as ``content_id`` does."""
    if len(held) == SHA256_DIGITS:
        return held == (file.sha256 or sha256(file.source))
    return held == blob_id(file)


def sha256(source: Path | bytes) -> str:
    """The hexadecimal SHA-256 of a file or a content."""
    return hashlib.sha256(source).hexdigest() if isinstance(source, bytes) else file_sha256(source)


def blob_id(file: LocalFile) -> str:
    """Git's name for the content of a file, which is read in pieces."""
    begun = hashlib.sha1(b"blob %d\0" % file.size)
    if isinstance(file.source, bytes):
        begun.update(file.source)
        return begun.hexdigest()
    with file.source.open("rb") as handle:
        return hashlib.file_digest(handle, lambda: begun).hexdigest()


def others(api: HfApi, branch: Branch, held: Remote, changes: Difference) -> dict[str, str]:
    """Of the files that would be changed or removed, those that somebody else wrote last, with what they said of it.

    Raises the errors of ``huggingface_hub``.
    """
    from huggingface_hub.hf_api import RepoFile

    paths = [*changes.changed, *changes.removed]
    found = {}
    for first in range(0, len(paths), ASKED):
        asked = paths[first : first + ASKED]
        for each in api.get_paths_info(branch.repo, asked, expand=True, revision=held.head, repo_type=branch.repo_type):
            title = each.last_commit.title if isinstance(each, RepoFile) and each.last_commit else ""
            if not title.startswith(COMMITTED):
                found[each.path] = "".join(filter(str.isprintable, title))
    return found


def check_others_stay(theirs: Mapping[str, str], replace: bool) -> None:
    """Raises ``UserError`` if files of somebody else would be changed or removed, unless that is meant."""
    if theirs and not replace:
        first = [f"{path} ({title})" if title else path for path, title in sorted(theirs.items())]
        more = f" and {len(first) - SHOWN} more" if len(first) > SHOWN else ""
        raise UserError(
            f"somebody else wrote files that would be changed or removed: {', '.join(first[:SHOWN])}{more}\n"
            "publish to another --repo or --revision, or pass --replace if nobody needs them any more",
            ErrorCode.FILES_OF_OTHERS,
        )


def check_visibility(repo: str, held: Remote, private: bool) -> None:
    """Raises ``UserError`` if ``repo`` was to be private and is there already, open to all."""
    if private and held.private is False:
        raise UserError(
            f"{repo} is there already and is public; make it private on its page, or leave out --private",
            ErrorCode.REPO_IS_PUBLIC,
        )


def check_tables_stay(held: Remote, names: Sequence[str], replace: bool) -> None:
    """Raises ``UserError`` if tables would go that this publication does not hold, unless that is meant."""
    gone = sorted({*tables_in(held.files)} - {*names})
    if gone and not replace:
        raise UserError(
            f"the data set holds the tables {', '.join(gone)}, which are not among {', '.join(names)}\n"
            "name them too, publish to another --repo or --revision, or pass --replace to take them away",
            ErrorCode.TABLES_WOULD_GO,
        )
