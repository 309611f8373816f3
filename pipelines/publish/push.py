"""Sending a publication: large files first, which nobody sees, then one commit with everything.

A commit names the one it follows, so what somebody else pushed meanwhile is never undone. Large files are stored by
their content: those that arrived before a failure are not sent again by the next attempt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentmill.pipelines.publish.difference import COMMITTED, MAIN, Branch, Difference, LocalFile, Remote, remote, same
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import JsonObject

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.errors import HfHubHTTPError

LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
AGAIN = "nothing of it can be seen on the Hub; run the same command again, what was sent is kept"
UNSENT = "nothing was sent; run the same command again"
EMPTY = "the repository was made, is {seen} and holds nothing yet; run the same command again, what was sent is kept"
BEGUN = "the branch {revision} was made and holds what main does; run the same command again, what was sent is kept"
UNKNOWN = "whether it arrived is not known; run the same command again, which looks, and what was sent is kept"
OTHERS = "nothing of yours was published; look at what is there before you run the same command again"
GITIGNORE = ".gitignore"
STATUSES = {
    401: ErrorCode.TOKEN_UNKNOWN,
    403: ErrorCode.TOKEN_MAY_NOT_WRITE,
    404: ErrorCode.HUB_REPO_MISSING,
    409: ErrorCode.CHANGED_MEANWHILE,
    412: ErrorCode.CHANGED_MEANWHILE,
}
PULL_REQUEST = "refs/pr/"
"""How branches begin to which people write whose repository it is not."""


def check_token(api: HfApi, repo: str, revision: str) -> None:
    """Raises ``UserError`` if there is no token, or the Hub does not know it, or tells that it may not write there.

    What the Hub does not tell of a token, such as the roles in an organisation's groups, is known by writing only.
    """
    with push_errors(repo):
        who = api.whoami()
    if refuses(who, repo, revision):
        raise UserError(f"{repo}: {may_not_write(repo)}; nothing was sent", ErrorCode.TOKEN_MAY_NOT_WRITE)


def refuses(who: JsonObject, repo: str, revision: str) -> bool:
    """Whether a token may not write to a branch for certain, by what the Hub says of ``who`` has it.

    The Hub finds an owner however the letters are cased.
    """
    token = who.get("auth", {}).get("accessToken", {})
    places = {repo.lower(), repo.lower().partition("/")[0]}
    scopes = token.get("fineGrained", {}).get("scoped")  # entities, each with what may be done with what is theirs
    if token.get("role") == "read":
        return True
    if revision.startswith(PULL_REQUEST):
        return False
    if scopes is not None:
        there = [each for each in scopes if each.get("entity", {}).get("name", "").lower() in places]
        return not any("repo.write" in each.get("permissions", []) for each in there)
    return "orgs" in who and not places & {each["name"].lower() for each in (who, *who["orgs"])}


def check_card(branch: Branch, card: LocalFile) -> None:
    """Raises ``UserError`` if the Hub does not take the metadata of a card, which it looks at without a token."""
    from huggingface_hub import RepoCard

    held = card.source if isinstance(card.source, bytes) else card.source.read_bytes()
    with push_errors(branch.repo, "nothing was sent"):
        RepoCard(held.decode()).validate(branch.repo_type)


def push(
    api: HfApi, branch: Branch, files: Mapping[str, LocalFile], changes: Difference, held: Remote, private: bool
) -> str:
    """Make ``branch`` hold ``files``, in one commit; its id. Raises ``UserError``."""
    repo, repo_type, revision = branch
    try:
        with push_errors(repo, ""):
            if held.private is None:  # without a wish, an organisation's own default holds
                api.create_repo(repo, repo_type=repo_type, private=private or None, exist_ok=True)
            if revision != MAIN and (held.copied or held.private is None):
                api.create_branch(repo, repo_type=repo_type, branch=revision, revision=held.head, exist_ok=True)
            # A repository that was just made has a first commit already.
            parent = held.head or str(api.repo_info(repo, repo_type=repo_type, revision=revision).sha)
            commit = api.create_commit(
                repo,
                operations(files, changes),
                commit_message=message(changes),
                repo_type=repo_type,
                revision=revision,
                parent_commit=parent,
            )
    except UserError as error:
        return arrived(api, branch, files, changes, held, error)
    if GITIGNORE in held.files:
        check_all_there(api, branch, changes)
    return str(commit.oid)


def check_all_there(api: HfApi, branch: Branch, changes: Difference) -> None:
    """Raises ``UserError`` for files that the Hub has left out of a commit, which it only logs."""
    with push_errors(branch.repo, "whether all arrived is not known"):
        now = remote(api, branch)
    missing = [path for path in (*changes.added, *changes.changed) if path not in now.files]
    if missing:
        raise UserError(
            f"{branch.repo}: the Hub has left out {len(missing)} files, such as {missing[0]}, which {GITIGNORE} there"
            " names\nremove these lines, or the file, on the Hub, and run the same command again",
            ErrorCode.HUB_REFUSES,
        )


def arrived(
    api: HfApi, branch: Branch, files: Mapping[str, LocalFile], changes: Difference, held: Remote, error: UserError
) -> str:
    """The commit, if the Hub made it although its answer was an ``error``, or was lost.

    Else raises ``UserError``, which says what there is now that was not ``held`` before.
    """
    try:
        with push_errors(branch.repo):
            now = remote(api, branch)
    except UserError:
        raise UserError(f"{error}; {UNKNOWN}", error.code) from None
    there = all(path in now.files and same(files[path], now.files[path]) for path in (*changes.added, *changes.changed))
    if now.head not in (None, held.head) and there and not now.files.keys() & set(changes.removed):
        return str(now.head)
    unseen = OTHERS if error.code == ErrorCode.CHANGED_MEANWHILE else left(branch, held, now)
    raise UserError(f"{error}; {unseen}", error.code) from None


def left(branch: Branch, held: Remote, now: Remote) -> str:
    """What a command that failed left on the Hub, by what was ``held`` before and is ``now``."""
    if held.head is None and now.head is not None:
        return EMPTY.format(seen="private" if now.private else "public")
    if now.head != held.head:
        return UNKNOWN
    return BEGUN.format(revision=branch.revision) if held.copied and not now.copied else AGAIN


def operations(
    files: Mapping[str, LocalFile], changes: Difference
) -> Iterator[CommitOperationAdd | CommitOperationDelete]:
    """What the commit does. A digest that was checked against a manifest is not computed once more."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    for path in changes.removed:
        yield CommitOperationDelete(path, is_folder=False)
    for path in [*changes.added, *changes.changed]:
        addition = CommitOperationAdd(path, files[path].source)
        digest = files[path].sha256
        if digest is not None:
            addition.upload_info.sha256 = bytes.fromhex(digest)
        yield addition


def message(changes: Difference) -> str:
    """The summary of the commit."""
    counts = {"added": changes.added, "changed": changes.changed, "removed": changes.removed}
    return f"{COMMITTED}{', '.join(f'{len(paths)} {what}' for what, paths in counts.items() if paths)}"


@contextmanager
def push_errors(repo: str, tail: str = UNSENT) -> Iterator[None]:
    """Raises ``UserError`` for what the Hub, or the way to it, says of writing to ``repo``; ``tail`` is its end."""
    import httpx2
    from huggingface_hub import errors

    end = f"; {tail}" if tail else ""
    try:
        yield
    except errors.HfHubHTTPError as error:
        raise UserError(f"{repo}: {meant(repo, error)}{end}", code_of(error)) from None
    except errors.LocalTokenNotFoundError:
        raise UserError(f"{repo}: there is no token; {LOG_IN}", ErrorCode.TOKEN_MISSING) from None
    except RuntimeError as error:  # an upload that failed, whatever for
        cause = error.__cause__
        if isinstance(cause, errors.HfHubHTTPError):
            raise UserError(f"{repo}: {meant(repo, cause)}{end}", code_of(cause)) from None
        raise UserError(f"{repo}: {plain(cause or error)}{end}", ErrorCode.HUB_REFUSES) from None
    except (httpx2.HTTPError, ConnectionError, errors.OfflineModeIsEnabled) as error:
        raise UserError(f"{repo}: the Hub cannot be reached ({plain(error)}){end}", ErrorCode.HUB_UNREACHABLE) from None
    except ValueError as error:  # the Hub's own check of the card, and answers that are none
        raise UserError(f"{repo}: {' '.join(str(error).split())}{end}", ErrorCode.HUB_REFUSES) from None


def may_not_write(repo: str) -> str:
    """What is wrong with a token that may only read."""
    return f"the token may not write to {repo.partition('/')[0]}; it needs the role `write` there"


def code_of(error: HfHubHTTPError) -> ErrorCode:
    """The code of a mistake by the HTTP status."""
    return STATUSES.get(error.response.status_code, ErrorCode.HUB_REFUSES)


def meant(repo: str, error: HfHubHTTPError) -> str:
    """What the HTTP status of an error means here."""
    owner = repo.partition("/")[0]
    pause = error.response.headers.get("Retry-After")
    reasons = {
        401: f"the Hub does not know the token; {LOG_IN}",
        403: may_not_write(repo),
        404: f"there is no such repository, or the token may not see it; is {owner} spelt right?",
        409: "somebody else has changed it meanwhile",
        412: "somebody else has changed it meanwhile",
        429: f"the Hub asks for a pause (too many requests); wait {f'{pause} seconds' if pause else 'some minutes'}",
    }
    return reasons.get(error.response.status_code, f"the Hub answers {plain(error)}")


def plain(error: BaseException) -> str:
    """The first line of an error, without what addresses carry behind a question mark: signatures of uploads."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return re.sub(r"\?[^\s')]+", "?…", lines[0].strip()) if lines else type(error).__name__
