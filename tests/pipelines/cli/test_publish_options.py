"""Every option of ``agentmill publish`` does what its help says; a dry run ends as the command would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import DatasetCard, constants

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.publish import publication
from agentmill.schemas.records.record import Record
from tests.builders import run_of_source, task, trajectory, verdict
from tests.errors import shows
from tests.fake_hub import Files, direct
from tests.pipelines.cli.tables import agentmill
from tests.writing_hub import READER, WRITER, WritingHub

# How huggingface_hub 2.4 hands large files to httpx2.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

REPO = "org/small"
TOKEN = "hf_" + "aBcD" * 9


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WritingHub]:
    fake = WritingHub()
    with fake.served() as address:
        direct(monkeypatch, address, tmp_path / "cache")
        monkeypatch.setenv("HF_TOKEN", WRITER)
        yield fake


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    return table(tmp_path, task("a"), task("b", instruction="y"))


def table(folder: Path, *rows: Record) -> Path:
    """The folder of a table."""
    return seed_table(folder / type(rows[0]).__name__.lower(), rows).folder


def publish(path: Path, *options: str, repo: str = REPO) -> int:
    """The exit code."""
    return agentmill("publish", path, "--repo", repo, "--licence", "mit", *options)


def refused(hub: WritingHub, path: Path, *options: str) -> None:
    """The command, and its dry run, refuse and change nothing."""
    before, requests = dict(hub.branches.get(REPO, {})), len(hub.requests)
    assert publish(path, *options, "--dry-run") == 2
    assert publish(path, *options) == 2
    assert hub.branches.get(REPO, {}) == before
    assert not [each for each in hub.requests[requests:] if "/commit/" in each or each.startswith("PUT")]


def card(hub: WritingHub, branch: str = "main") -> Any:
    return DatasetCard(hub.files(REPO, branch)["README.md"].decode())


def test_private_makes_a_private_repository_and_leaves_no_doubt(
    hub: WritingHub, tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert publish(tasks, "--private", "--dry-run") == 0
    assert hub.branches == {}
    assert publish(tasks, "--private") == 0
    assert hub.private == {REPO}
    assert publish(tasks, "--private", "--title", "other") == 0
    hub.private.clear()
    refused(hub, tasks, "--private", "--title", "third")
    refused(hub, tasks, "--private", "--revision", "next")
    assert shows(capsys.readouterr().err, "repo-is-public", REPO)
    assert set(hub.branches[REPO]) == {"main"}


def test_revision_names_a_branch_that_holds_what_is_published(
    hub: WritingHub, tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert publish(tasks) == 0
    main = hub.files(REPO)
    assert publish(tasks, "--revision", "next", "--title", "next") == 0
    assert hub.files(REPO) == main
    assert card(hub, "next").data.pretty_name == "next"
    assert 'revision="next"' in card(hub, "next").text
    hub.push(REPO, {**main, "task/data/part-00001.parquet": b"", "LICENSE": b"MIT"})
    main = hub.files(REPO)
    runs = table(tmp_path / "more", trajectory())
    hub.faults[f"POST /api/datasets/{REPO}/commit"] = [500]
    assert publish(runs, "--revision", "last") == 2
    assert shows(capsys.readouterr().err, "hub-refuses", "the branch last was made")
    assert hub.files(REPO, "last") == main
    refused(hub, runs, "--revision", "last")  # by now it is a branch that is there, perhaps somebody's
    for revision, options in (("last", ["--replace"]), ("other", [])):
        assert publish(runs, "--revision", revision, *options) == 0
        assert hub.files(REPO) == main
        assert {path.partition("/")[0] for path in hub.files(REPO, revision)} == {
            ".gitattributes", "LICENSE", "README.md", "funnel.svg", "outcomes.svg", "trajectory"
        }  # fmt: skip
    capsys.readouterr()
    for revision in ("a/b", "-x", "", hub.branches[REPO]["main"]):
        assert publish(tasks, f"--revision={revision}") == 2
        assert shows(capsys.readouterr().err, "value-malformed", "--revision")


def test_a_branch_that_is_as_main_is_one_that_is_there(
    hub: WritingHub, tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was taken for one that the command makes, and what was in it went without a question."""
    assert publish(tasks) == 0
    hub.push(REPO, {**hub.files(REPO), "README.md": hub.files(REPO)["README.md"] + b"\nread this"}, title="a word")
    hub.branches[REPO]["v1"] = hub.branches[REPO]["main"]
    refused(hub, table(tmp_path, trajectory()), "--revision", "v1")
    assert shows(capsys.readouterr().err, "tables-would-go", "task", "trajectory")
    refused(hub, tasks, "--revision", "v1", "--title", "other")
    assert shows(capsys.readouterr().err, "files-of-others", "README.md (a word)")


def test_a_manifest_of_another_program_makes_no_table_of_its_folder(
    hub: WritingHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = table(tmp_path, trajectory())
    assert publish(runs) == 0
    page: Files = {"web/manifest.json": b'{"name": "a page"}', "web/precious.txt": b"x", "trajectory/notes.txt": b"x"}
    hub.push(REPO, {**hub.files(REPO), **page})
    assert publish(runs, "--title", "other") == 0
    assert publish(runs, "--title", "third", "--replace") == 0
    assert publish(table(tmp_path, task("a")), "--replace") == 0
    assert page.items() < hub.files(REPO).items()
    assert not [path for path in hub.files(REPO) if path.startswith("trajectory/") and path not in page]
    assert publish(runs, "--replace") == 0
    hub.push(REPO, {**hub.files(REPO), "web/data/rows.parquet": b"PAR1"})  # as if it were a table
    monkeypatch.chdir(tmp_path)
    assert agentmill("view", f"hf://{REPO}/trajectory", "--no-serve") == 0
    assert agentmill("view", f"hf://{REPO}", "--no-serve", "--out", "whole") == 0


def test_what_others_wrote_and_other_tables_stay_without_replace(
    hub: WritingHub, tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs: Files = {"README.md": b"# mine", "recipe.yaml": b"x: 1", "copies/x.jsonl": b"{}", "LICENSE": b"MIT"}
    hub.push(REPO, theirs, title="first")
    refused(hub, tasks)
    assert shows(capsys.readouterr().err, "files-of-others", "README.md (first), recipe.yaml (first)")
    assert publish(tasks, "--replace") == 0
    assert set(hub.files(REPO)) & theirs.keys() == {"README.md", "LICENSE", "copies/x.jsonl"}
    assert publish(tasks, "--title", "again") == 0  # by now the card is ours
    runs = table(tmp_path, trajectory())
    refused(hub, runs)
    assert shows(capsys.readouterr().err, "tables-would-go", "task", "trajectory")
    assert publish(runs, "--replace") == 0
    assert not [path for path in hub.files(REPO) if path.startswith("task/")]
    hub.push(REPO, {**hub.files(REPO), "README.md": hub.files(REPO)["README.md"] + b"\nread this"}, title="a word")
    refused(hub, runs)
    assert shows(capsys.readouterr().err, "files-of-others", "README.md (a word)")


def test_what_is_not_fit_is_refused_unless_it_is_allowed(hub: WritingHub, tmp_path: Path) -> None:
    secret = table(tmp_path, trajectory(system_prompt=f"use {TOKEN}"))
    refused(hub, secret, "--allow-leaks")
    assert publish(secret, "--allow-secrets", repo="org/one") == 0
    leaky = table(tmp_path, task("a"), task("a", split="held_out_tasks"))
    refused(hub, leaky, "--allow-secrets")
    assert publish(leaky, "--allow-leaks", repo="org/two") == 0
    for repo, said in (("org/one", "huggingface_token in 1 row"), ("org/two", "task_id a in held_out_tasks, train")):
        assert said in hub.files(repo)["README.md"].decode()
        assert TOKEN not in hub.files(repo)["README.md"].decode()


def test_personal_data_is_told_or_refused(hub: WritingHub, tmp_path: Path) -> None:
    runs = table(tmp_path, trajectory(system_prompt="write to jane@company.org"))
    refused(hub, runs, "--refuse-personal-data")
    assert publish(runs) == 0
    assert "email_address in 1 row" in card(hub).text


def test_the_licence_of_a_silent_source_is_said(
    hub: WritingHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = table(tmp_path, run_of_source("org/silent", None))
    refused(hub, runs)
    assert shows(capsys.readouterr().err, "check-failed", "--source-licence org/silent=LICENCE")
    refused(hub, runs, "--source-licence", "org/silent=cc-by-nc-4.0")
    for wrong in ("mit", "=mit", "org/silent=none"):
        refused(hub, runs, "--source-licence", wrong)
    assert publish(runs, "--source-licence", "org/silent=cc-by-4.0") == 0
    assert "org/silent" in card(hub).text


def test_the_publisher_has_words_of_their_own(hub: WritingHub, tasks: Path) -> None:
    assert publish(tasks, "--title", "Small worlds", "--description", "Two of them.", "--author", "Jane Doe") == 0
    made = card(hub)
    assert made.data.pretty_name == "Small worlds"
    for said in ("# Small worlds\n\nTwo of them.", "title = {Small worlds}", "author = {Jane Doe}"):
        assert said in made.text


def test_tables_are_named_once(hub: WritingHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed_table(tmp_path / "many/x", [task("a")])
    seed_table(tmp_path / "many/y", [task("b", instruction="y")])
    refused(hub, tmp_path / "many", "--table", "a=x", "--table", "a=y")
    assert shows(capsys.readouterr().err, "name-taken", " a;")
    assert publish(tmp_path / "many", "--table", "a=x", "--table", "b=y") == 0
    assert {"a/manifest.json", "b/manifest.json"} < hub.files(REPO).keys()


def test_copies_are_of_trajectories_and_made_of_what_may_go_up(
    hub: WritingHub, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(hub, tasks, "--copy", "adp")
    assert shows(capsys.readouterr().err, "option-not-for-this", tasks, "--copy")
    runs = table(tmp_path, trajectory())
    assert publish(runs, "--copy", "adp", "--copy", "atif") == 0
    assert {path for path in hub.files(REPO) if path.startswith("copies/")} == {
        "copies/adp/trajectory/metadata.json",
        "copies/adp/trajectory/trajectories.jsonl",
        "copies/atif/trajectory/trajectories.jsonl",
    }
    refused(hub, runs, "--copy", "adp")
    assert shows(capsys.readouterr().err, "tables-would-go", "atif")
    refused(hub, runs)
    assert shows(capsys.readouterr().err, "tables-would-go", "--copy adp --copy atif", "--replace")
    assert publish(runs, "--copy", "adp", "--replace") == 0
    assert "copies/adp/trajectory/trajectories.jsonl" in hub.files(REPO)
    assert "copies/atif/trajectory/trajectories.jsonl" not in hub.files(REPO)
    monkeypatch.setattr(publication, "export_documents", None)
    refused(hub, table(tmp_path / "more", trajectory(system_prompt=f"use {TOKEN}")), "--copy", "adp")


def test_options_that_do_not_fit_are_told(
    hub: WritingHub, tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(hub, tasks, "--base-model", "org/base")
    assert shows(capsys.readouterr().err, "option-not-for-this", "--base-model")
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned/training.json").write_text("{}")
    for option in ("--table=x", "--copy=adp", "--title=x", "--author=x", "--allow-leaks"):
        refused(hub, tmp_path / "tuned", option)
        assert shows(capsys.readouterr().err, "option-not-for-this", option.partition("=")[0])


def test_of_an_earlier_model_nothing_stays_that_would_be_loaded(hub: WritingHub, tmp_path: Path) -> None:
    folder = tmp_path / "tuned"
    folder.mkdir()
    (folder / "README.md").write_text("---\nlibrary_name: transformers\n---\n\n# tuned\n")
    for name in (
        "training.json",
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ):
        (folder / name).write_text("{}")
    assert publish(folder) == 0
    hub.push(REPO, {**hub.files(REPO), "model.gguf": b"theirs", "sub/x.safetensors": b"theirs"})
    for path in folder.glob("*.safetensors"):
        path.unlink()
    (folder / "model.safetensors").write_text("weights")
    assert publish(folder, "--description", "Merged.") == 0
    held = hub.files(REPO)
    assert [path for path in held if "safetensors" in path] == ["sub/x.safetensors", "model.safetensors"]
    assert held["model.gguf"] == b"theirs"
    assert "\nMerged.\n" in held["README.md"].decode()
    hub.push(REPO, {**held, "old.safetensors": b"theirs"}, title="weights of mine")
    refused(hub, folder, "--description", "Anew.")


@pytest.mark.parametrize("repo", ["small", "a/b/c", "or g/x", "org/x--y", "org/", "../x", "org/x.git"])
def test_a_name_that_the_hub_would_not_take_is_told_at_once(
    hub: WritingHub, repo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert publish(Path("nowhere"), repo=repo) == 2
    assert shows(capsys.readouterr().err, "value-malformed", f"--repo {repo}: ")
    assert hub.requests == []


@pytest.mark.parametrize(
    ("token", "code"),
    [("hf_wrong", "token-unknown"), (READER, "token-may-not-write"), ("", "token-missing")],
)
def test_a_token_that_does_not_serve_is_told_before_the_checks_and_after_a_dry_run(
    hub: WritingHub,
    tasks: Path,
    token: str,
    code: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    assert publish(tasks) == 2
    captured = capsys.readouterr()
    assert shows(captured.err, code, REPO)
    assert "checks of" not in captured.out
    assert publish(tasks, "--dry-run") == 2
    captured = capsys.readouterr()
    assert shows(captured.err, code, REPO)
    assert "checks of" in captured.out


def test_an_organisation_of_others_and_a_card_that_the_hub_refuses_fail_a_dry_run_too(
    hub: WritingHub, tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.faults["POST /api/validate-yaml"] = [400, 400]
    refused(hub, tasks)
    assert shows(capsys.readouterr().err, "hub-refuses", "a fault")
    assert hub.branches == {}
    hub.orgs = ["else"]
    refused(hub, tasks)
    assert shows(capsys.readouterr().err, "token-may-not-write", " org;")


def test_a_hub_that_is_not_there_fails_a_dry_run_after_the_checks(
    tasks: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("HF_TOKEN", WRITER)
    assert publish(tasks, "--dry-run") == 2
    captured = capsys.readouterr()
    assert "checks of" in captured.out
    assert shows(captured.err, "hub-unreachable", REPO, "nothing was sent")
    assert "kept" not in captured.err


def test_published_tables_are_inspected_exported_and_viewed(
    hub: WritingHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seed_table(tmp_path / "many/runs", [trajectory(), trajectory("t2", system_prompt="other")])
    seed_table(tmp_path / "many/more/runs", [trajectory("t3", system_prompt="third")])
    seed_table(tmp_path / "many/verdicts", [verdict()])
    assert publish(tmp_path / "many") == 0
    commit = hub.branches[REPO]["main"]
    address = f"hf://{REPO}@{commit}"
    assert agentmill("inspect", f"{address}/verdicts") == 0
    assert agentmill("export", f"{address}/runs", "--to", "sft", "--out", tmp_path / "rows") == 0
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert agentmill("view", f"{address}/runs", "--no-serve") == 0
    said = capsys.readouterr()
    assert (said.out, said.err.splitlines()[-1]) == (
        "runs-view/index.html\n",
        "trajectories 2, pairs 0, trees 0, of tables 2",
    )
    assert not (tmp_path / "cache/datasets--org--small/snapshots" / commit / "more/runs/data").exists()
    assert agentmill("view", address, "--no-serve", "--out", "whole") == 0
    said = capsys.readouterr()
    assert (said.out, said.err.splitlines()[-1]) == (
        "whole/index.html\n",
        "trajectories 3, pairs 0, trees 0, of tables 3",
    )
    assert f'"title":"{address}"'.encode() in (tmp_path / "whole/data/index.js").read_bytes()
    assert agentmill("view", f"{address}/run", "--no-serve") == 2
    assert shows(capsys.readouterr().err, "table-missing", "'runs'")
