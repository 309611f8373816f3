"""Publishing through the Hub's own client: one commit with everything, or nothing at all; the same command goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfApi, constants

from agentmill.pipelines.publish.difference import (
    Branch,
    LocalFile,
    check_others_stay,
    check_tables_stay,
    check_visibility,
    difference,
    others,
    remote,
    same,
)
from agentmill.pipelines.publish.push import check_token, push, push_errors
from agentmill.schemas.errors import UserError
from tests.errors import user_error
from tests.fake_hub import blob_id
from tests.writing_hub import CUT, LOST, READER, WRITER, WritingHub

# How huggingface_hub 2.4 hands large files to httpx2.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

REPO = "org/data"
MAIN = Branch(REPO, "dataset", "main")
OWNED = {"rows", "recipe.yaml"}
FILES = {
    "README.md": LocalFile.of(b"---\nlicense: mit\n---\n# data\n"),
    "rows/manifest.json": LocalFile.of(b"{}"),
    "rows/data/part-00000.parquet": LocalFile.of(b"PAR1" * 5000),
    "rows/data/part-00001.parquet": LocalFile.of(b"par2" * 5000),
}
CONTENTS = {path: file.source for path, file in FILES.items()}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[WritingHub, str]]:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    fake = WritingHub()
    with fake.served() as address:
        yield fake, address


def publish(
    address: str,
    files: dict[str, LocalFile] = FILES,
    token: str = WRITER,
    revision: str = "main",
    private: bool = False,
) -> str | None:
    """The commit; ``None`` if there was nothing to do."""
    api, branch = HfApi(endpoint=address, token=token), Branch(REPO, "dataset", revision)
    with push_errors(REPO):
        held = remote(api, branch)
    changes = difference(files, held, OWNED)
    return None if changes.empty else push(api, branch, files, changes, held, private)


def contents(fake: WritingHub, branch: str = "main") -> dict[str, bytes]:
    return {path: data for path, data in fake.files(REPO, branch).items() if path != ".gitattributes"}


def test_all_files_appear_in_one_commit_and_again_there_is_nothing_to_do(hub: tuple[WritingHub, str]) -> None:
    fake, address = hub
    assert publish(address) == fake.branches[REPO]["main"]
    assert contents(fake) == CONTENTS
    assert sum("/commit/" in each for each in fake.requests) == 1
    sent = fake.received_bytes
    assert publish(address) is None
    assert sum("/commit/" in each for each in fake.requests) == 1
    assert fake.received_bytes == sent


def test_what_changed_is_sent_and_what_is_gone_is_taken_away(hub: tuple[WritingHub, str]) -> None:
    fake, address = hub
    publish(address)
    fake.push(REPO, {**fake.files(REPO), "LICENSE": b"MIT"})
    sent = fake.received_bytes
    fewer = {path: file for path, file in FILES.items() if "00001" not in path} | {
        "rows/manifest.json": LocalFile.of(b"{ }")
    }
    held = remote(HfApi(endpoint=address, token=WRITER), MAIN)
    changes = difference(fewer, held, OWNED)
    assert (changes.added, changes.changed, changes.removed) == (
        [],
        ["rows/manifest.json"],
        ["rows/data/part-00001.parquet"],
    )
    publish(address, fewer)
    assert contents(fake) == {**{path: file.source for path, file in fewer.items()}, "LICENSE": b"MIT"}
    assert fake.received_bytes == sent


def test_a_branch_is_made_and_main_stays(hub: tuple[WritingHub, str]) -> None:
    fake, address = hub
    publish(address)
    more = {**FILES, "recipe.yaml": LocalFile.of(b"name: x\n")}
    publish(address, more, revision="next")
    assert "recipe.yaml" in contents(fake, "next")
    assert contents(fake) == CONTENTS


def test_a_new_repository_is_private_if_asked_for(hub: tuple[WritingHub, str]) -> None:
    fake, address = hub
    publish(address, private=True)
    assert fake.private == {REPO}
    held = remote(HfApi(endpoint=address), MAIN)
    check_visibility(REPO, held, private=True)
    fake.private.clear()
    with user_error("repo-is-public"):
        check_visibility(REPO, remote(HfApi(endpoint=address), MAIN), private=True)


def test_without_a_wish_a_new_repository_is_as_its_organisation_has_it(hub: tuple[WritingHub, str]) -> None:
    fake, address = hub
    fake.default = "private"
    publish(address)
    assert fake.private == {REPO}


@pytest.mark.parametrize(
    ("fault", "statuses", "expected"),
    [
        ("POST /api/repos/create", [403], ("token-may-not-write",)),
        ("POST /api/datasets/org/data/commit", [409], ("changed-meanwhile",)),
        ("POST /api/datasets/org/data/commit", [412], ("changed-meanwhile",)),
        ("POST /api/datasets/org/data/commit", [503], ("hub-refuses",)),
        ("POST /api/datasets/org/data/commit", [CUT], ("hub-unreachable",)),
        ("POST /api/datasets/org/data/commit", [429], ("hub-refuses", "7")),
        ("PUT /lfs", [400, 400], ("hub-refuses",)),
    ],
)
def test_a_fault_leaves_nothing_to_be_seen_and_the_same_command_goes_on(
    hub: tuple[WritingHub, str], fault: str, statuses: list[int], expected: tuple[str, ...]
) -> None:
    fake, address = hub
    fake.faults[fault] = list(statuses)
    with user_error(*expected) as error:
        publish(address)
    assert "run the same command again" in str(error.value)
    assert WRITER not in str(error.value)
    assert "Signature=signed" not in str(error.value)
    assert REPO not in fake.branches or contents(fake) == {}
    # Of two files that are sent at once, the second may not have begun when the first failed.
    fake.faults.clear()
    assert publish(address)
    assert contents(fake) == CONTENTS
    assert fake.received_bytes == 40_000


@pytest.mark.parametrize("fault", [429, 500, CUT])
def test_an_upload_that_fails_for_a_moment_is_sent_again(hub: tuple[WritingHub, str], fault: int) -> None:
    fake, address = hub
    fake.faults["PUT /lfs"] = [fault]
    assert publish(address)
    assert contents(fake) == CONTENTS


def test_a_commit_whose_answer_was_lost_is_found(hub: tuple[WritingHub, str]) -> None:
    fake, address = hub
    fake.faults["POST /api/datasets/org/data/commit"] = [LOST]
    assert publish(address) == fake.branches[REPO]["main"]
    assert contents(fake) == CONTENTS
    fewer = {path: file for path, file in FILES.items() if "00001" not in path}
    fake.faults["POST /api/datasets/org/data/commit"] = [LOST]
    assert publish(address, fewer) == fake.branches[REPO]["main"]
    assert contents(fake).keys() == fewer.keys()


def test_what_cannot_be_known_is_not_told(hub: tuple[WritingHub, str]) -> None:
    fake, address = hub
    fake.faults["POST /api/datasets/org/data/commit"] = [LOST]
    fake.faults["GET /api/datasets/org/data/tree"] = [403]
    with user_error("hub-unreachable") as error:
        publish(address)
    assert "nothing of it can be seen" not in str(error.value)
    assert contents(fake) == CONTENTS
    assert publish(address) is None


def test_what_arrived_before_a_failure_is_not_sent_again(hub: tuple[WritingHub, str]) -> None:
    fake, address = hub
    fake.faults["POST /api/datasets/org/data/commit"] = [500]
    with pytest.raises(UserError):
        publish(address)
    puts = [each for each in fake.requests if each.startswith("PUT")]
    assert len(puts) == 2
    publish(address)
    assert [each for each in fake.requests if each.startswith("PUT")] == puts


@pytest.mark.parametrize(("token", "expected"), [("hf_wrong", ("token-unknown",)), (READER, ("token-may-not-write",))])
def test_a_token_that_does_not_serve_is_told_and_never_shown(
    hub: tuple[WritingHub, str], token: str, expected: tuple[str, ...]
) -> None:
    fake, address = hub
    with user_error(*expected) as error:
        publish(address, token=token)
    assert token not in str(error.value)
    assert REPO not in fake.branches


def test_a_card_that_the_hub_refuses_stops_everything_before_it_is_sent(hub: tuple[WritingHub, str]) -> None:
    fake, address = hub
    with user_error("hub-refuses", "README.md"):
        publish(address, {**FILES, "README.md": LocalFile.of(b"---\nname: x\n---\n")})
    assert contents(fake) == {}
    assert fake.received_bytes == 0


def test_what_somebody_pushed_meanwhile_is_not_undone(hub: tuple[WritingHub, str]) -> None:
    fake, address = hub
    publish(address)
    api = HfApi(endpoint=address, token=WRITER)
    held = remote(api, MAIN)
    theirs = {**fake.files(REPO), "theirs.txt": b"x"}
    fake.push(REPO, theirs)
    more = {**FILES, "recipe.yaml": LocalFile.of(b"name: x\n")}
    with user_error("changed-meanwhile", "nothing of yours was published"):
        push(api, MAIN, more, difference(more, held, OWNED), held, False)
    assert fake.files(REPO) == theirs
    publish(address, more)
    assert contents(fake)["theirs.txt"] == b"x"


def test_files_that_the_hub_leaves_out_are_named(hub: tuple[WritingHub, str]) -> None:
    fake, address = hub
    name = next(path for path in sorted(FILES) if path.endswith(".parquet"))
    fake.push(REPO, {".gitattributes": b"", ".gitignore": f"{name}\n".encode()})
    with user_error("hub-refuses", f"left out 1 files, such as {name}", ".gitignore"):
        publish(address)
    fake.push(REPO, {**fake.files(REPO), ".gitignore": b"*.tmp\n"})
    publish(address)
    assert name in contents(fake)


def test_a_hub_that_is_not_there(tmp_path: Path) -> None:
    with user_error("hub-unreachable"):
        publish("http://127.0.0.1:1")


def test_tables_that_would_go_are_named_first(hub: tuple[WritingHub, str]) -> None:
    _, address = hub
    publish(address)
    held = remote(HfApi(endpoint=address), MAIN)
    check_tables_stay(held, ["rows", "more"], replace=False)
    check_tables_stay(held, ["more"], replace=True)
    with user_error("tables-would-go", "more"):
        check_tables_stay(held, ["more"], replace=False)


@pytest.mark.parametrize(
    ("token", "expected"),
    [("hf_wrong", ("token-unknown",)), (READER, ("token-may-not-write", "write")), (False, ("token-missing",))],
)
def test_a_token_is_looked_at_before_anything_else(
    hub: tuple[WritingHub, str], token: str | bool, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, address = hub
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere/token")
    check_token(HfApi(endpoint=address, token=WRITER), REPO, "main")
    with user_error(*expected):
        check_token(HfApi(endpoint=address, token=token or None), REPO, "main")


@pytest.mark.parametrize(
    ("repo", "scopes", "serves"),
    [
        ("org/data", None, True),
        ("jane/data", None, True),
        ("Org/data", None, True),
        ("else/data", None, False),
        ("org/data", [], False),
        ("org/data", [("org", "repo.write")], True),
        ("org/data", [("org/data", "repo.write")], True),
        ("org/data", [("org", "repo.content.read"), ("jane", "repo.write")], False),
        ("else/data", [("else", "repo.write")], True),
    ],
)
def test_a_token_serves_where_the_hub_says_that_it_may_write(
    hub: tuple[WritingHub, str], repo: str, scopes: list[tuple[str, str]] | None, serves: bool
) -> None:
    fake, address = hub
    api = HfApi(endpoint=address, token=WRITER)
    if scopes is not None:
        fake.scopes = [{"entity": {"name": name}, "permissions": [what]} for name, what in scopes]
    check_token(api, repo, "refs/pr/3")  # to which anybody may write
    if serves:
        check_token(api, repo, "main")
        return
    with user_error("token-may-not-write", repo.partition("/")[0]):
        check_token(api, repo, "main")


@pytest.mark.parametrize(
    ("revision", "private", "left"),
    [
        ("main", False, "the repository was made, is public and holds nothing yet"),
        ("main", True, "the repository was made, is private and holds nothing yet"),
        ("next", False, "the repository was made, is public and holds nothing yet"),
    ],
)
def test_a_repository_that_was_made_for_nothing_is_told(
    hub: tuple[WritingHub, str], revision: str, private: bool, left: str
) -> None:
    fake, address = hub
    fake.faults["POST /api/datasets/org/data/commit"] = [403]
    with user_error("token-may-not-write", left) as error:
        publish(address, revision=revision, private=private)
    assert "nothing of it can be seen" not in str(error.value)
    assert contents(fake) == {}
    assert publish(address, revision=revision, private=private)
    assert contents(fake, revision) == CONTENTS


def test_a_branch_that_was_made_for_nothing_is_told_and_is_then_one_that_is_there(hub: tuple[WritingHub, str]) -> None:
    fake, address = hub
    publish(address)
    api, branch = HfApi(endpoint=address, token=WRITER), Branch(REPO, "dataset", "next")
    assert remote(api, branch).copied
    fake.faults["POST /api/datasets/org/data/commit"] = [500]
    with user_error("hub-refuses", "next"):
        publish(address, {**FILES, "recipe.yaml": LocalFile.of(b"name: x\n")}, revision="next")
    assert fake.branches[REPO]["next"] == fake.branches[REPO]["main"]
    assert not remote(api, branch).copied
    assert not remote(api, MAIN).copied


def test_files_of_somebody_else_are_told_from_ours(hub: tuple[WritingHub, str]) -> None:
    fake, address = hub
    publish(address)
    api = HfApi(endpoint=address, token=WRITER)
    theirs = {**fake.files(REPO), "README.md": b"# mine", "rows/notes.txt": b"x", "LICENSE": b"MIT"}
    fake.push(REPO, theirs, title="Update README.md")
    held = remote(api, MAIN)
    less = {path: file for path, file in FILES.items() if "00001" not in path}
    changes = difference(less, held, OWNED)
    found = others(api, MAIN, held, changes)
    assert found == {"README.md": "Update README.md", "rows/notes.txt": "Update README.md"}
    check_others_stay(found, replace=True)
    check_others_stay({}, replace=False)
    with user_error("files-of-others", "README.md", "rows/notes.txt"):
        check_others_stay(found, replace=False)


@pytest.mark.parametrize("data", [b"", b"x" * 70_000])
def test_a_file_is_compared_by_what_the_hub_tells_of_it(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    for file in (LocalFile.of(data), LocalFile.of(tmp_path / "file"), LocalFile.of(tmp_path / "file", digest)):
        assert same(file, digest)
        assert same(file, blob_id(data))
        assert not same(file, blob_id(data + b"."))
        assert not same(file, "0" * 64)
