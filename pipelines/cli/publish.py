"""``agentmill publish RUN|TABLE|MODEL --repo ORG/NAME``."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import click
import msgspec

from agentmill.pipelines.publish.card import CARD
from agentmill.pipelines.publish.checks import Allowed, Check
from agentmill.pipelines.publish.difference import (
    Difference,
    Remote,
    check_others_stay,
    check_tables_stay,
    check_visibility,
    others,
    remote,
)
from agentmill.pipelines.publish.model import is_model, model
from agentmill.pipelines.publish.publication import COPY_FORMATS, Order, Publication, check_copies_stay, dataset
from agentmill.pipelines.publish.push import check_card, check_token, push, push_errors
from agentmill.pipelines.terminal.console import Row, answer, answers, example, say, table
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.hub import keep_pipes_plain

SHOWN_PATHS = 12
BRANCH = re.compile(r"[A-Za-z0-9][\w.-]*|refs/pr/\d+")
COMMIT = re.compile(r"[0-9a-f]{40}")


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """What was published, or would be. ``commit`` is that of the Hub, none where nothing was sent or had to be."""

    repo: str
    revision: str
    commit: str | None
    dry_run: bool
    tables: list[str]
    files: int
    bytes: int
    checks: list[Check]
    difference: Difference


@click.command(epilog=example("agentmill publish runs/quickstart --repo org/name --licence apache-2.0 --dry-run"))
@click.argument("path", metavar="RUN|TABLE|MODEL", type=click.Path(path_type=Path))
@click.option("--repo", metavar="ORG/NAME", required=True, help="Where to, on the Hub.")
@click.option("--dry-run", is_flag=True, help="Check everything and tell what would change; send nothing.")
@click.option("--private", is_flag=True, help="Make a new repository private; a public one is refused.")
@click.option("--revision", metavar="BRANCH", default="main", show_default=True, help="The branch to write to.")
@click.option(
    "--table",
    "tables",
    metavar="[NAME=]TABLE",
    multiple=True,
    help="Publish only this table of the run, under NAME if given. May be given again.",
)
@click.option("--licence", "--license", metavar="ID", help="The licence to publish under, such as apache-2.0.")
@click.option(
    "--source-licence",
    "source_licences",
    metavar="NAME=ID",
    multiple=True,
    help="The licence of a source that states none, or an unknown one. May be given again.",
)
@click.option(
    "--copy", "copies", type=click.Choice(COPY_FORMATS), multiple=True, help="Trajectories as JSON lines, too."
)
@click.option("--title", help="Of the card; by default the name of the repository.")
@click.option("--description", help="What it is, in a sentence or two, for the card.")
@click.option("--author", help="For the citation; by default the organisation.")
@click.option("--base-model", metavar="ORG/NAME", help="What a tuned model started from, on the Hub.")
@click.option(
    "--replace", is_flag=True, help="Take away other tables and copies on the Hub, and change files that others wrote."
)
@click.option("--allow-secrets", is_flag=True, help="Publish although something looks like a secret.")
@click.option("--allow-leaks", is_flag=True, help="Publish although tasks or texts are in several splits.")
@click.option(
    "--refuse-personal-data", is_flag=True, help="Do not publish where there is any; by default the card states it."
)
@answers(Published)
def publish(path: Path, dry_run: bool, private: bool, replace: bool, as_json: bool, **given: Any) -> None:
    """Publish a run, a table or a tuned model on the Hugging Face Hub.

    Tables go up as they are, with their manifests, a card that is made from these, and the recipe, in one commit. The
    same command goes on after a failure, and does nothing where the Hub holds all of it. A dry run fails where
    something is in the way, as far as the Hub tells it: whether a token may write is known for certain by writing.
    """
    from huggingface_hub import HfApi

    keep_pipes_plain()
    api = HfApi()
    order = ordered(path, given)
    if not dry_run:
        # First, since looking through all rows may take long.
        check_token(api, order.repo, order.revision)
    with tempfile.TemporaryDirectory(prefix="agentmill-publish-") as scratch:
        publication = model(order) if is_model(path) else dataset(order, Path(scratch))
        if not as_json:
            show_checks(publication)
        publication.check()
        with push_errors(order.repo):
            held = remote(api, publication.branch)
        replace = replace or held.copied  # what goes stays on main
        changes = publication.difference(held, replace)
        if not as_json:
            show_difference(publication, changes)
        check_change(api, publication, held, changes, private, replace)
        commit = None
        if dry_run:
            check_token(api, order.repo, order.revision)
        elif not changes.empty:
            commit = push(api, publication.branch, publication.files, changes, held, private)
    answer(published(publication, changes, commit, dry_run), show_end, as_json)


def published(publication: Publication, changes: Difference, commit: str | None, dry_run: bool) -> Published:
    """What is printed of it in the end."""
    return Published(
        repo=publication.branch.repo,
        revision=publication.branch.revision,
        commit=commit,
        dry_run=dry_run,
        tables=publication.tables,
        files=len(publication.files),
        bytes=publication.bytes,
        checks=publication.checks,
        difference=changes,
    )


def ordered(path: Path, given: dict[str, Any]) -> Order:
    """What was asked for. Raises ``UserError``."""
    allowed = Allowed(
        secrets=given.pop("allow_secrets"),
        leaks=given.pop("allow_leaks"),
        personal=not given.pop("refuse_personal_data"),
    )
    check_repo(given["repo"])
    if not BRANCH.fullmatch(given["revision"]) or COMMIT.fullmatch(given["revision"]):
        raise UserError(
            f"--revision {given['revision']}: expected a branch, in letters, digits, '.', '-' and '_'",
            ErrorCode.VALUE_MALFORMED,
        )
    silent = [each.rpartition("=") for each in given.pop("source_licences")]
    if not all(name for name, _, _ in silent):
        raise UserError(
            "--source-licence: expected NAME=ID, for example --source-licence org/data=mit", ErrorCode.VALUE_MALFORMED
        )
    return Order(path=path, source_licences={name: licence for name, _, licence in silent}, allowed=allowed, **given)


def check_repo(repo: str) -> None:
    """Raises ``UserError`` unless the Hub could have a repository of that name."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UserError(f"--repo {repo}: {error}", ErrorCode.VALUE_MALFORMED) from None
    if repo.count("/") != 1:
        raise UserError(
            f"--repo {repo}: expected ORG/NAME, for example --repo my-org/my-data", ErrorCode.VALUE_MALFORMED
        )


def check_change(
    api: Any, publication: Publication, held: Remote, changes: Difference, private: bool, replace: bool
) -> None:
    """Raises ``UserError`` if what would change is not the publisher's to change, or not meant to be open to all."""
    check_visibility(publication.branch.repo, held, private)
    if publication.tables:
        check_tables_stay(held, publication.tables, replace)
        check_copies_stay(held, publication.files, replace)
    with push_errors(publication.branch.repo):
        theirs = others(api, publication.branch, held, changes)
    check_others_stay(theirs, replace)
    if CARD in (*changes.added, *changes.changed):
        check_card(publication.branch, publication.files[CARD])


def show_checks(publication: Publication) -> None:
    """Print what was looked at."""
    rows: list[Row] = [[each.name, each.level, each.detail] for each in publication.checks]
    table(f"checks of {publication.branch.repo}", ["check", "result", "what was found"], rows)


def show_difference(publication: Publication, changes: Difference) -> None:
    """Print what would change."""
    say()
    repo, _, revision = publication.branch
    say(f"{repo}@{revision}: {len(publication.files)} files, {publication.bytes / 1e6:,.2f} MB")
    for sign, paths in (("+", changes.added), ("~", changes.changed), ("-", changes.removed)):
        for path in paths[:SHOWN_PATHS]:
            say(f"  {sign} {path}")
        if len(paths) > SHOWN_PATHS:
            say(f"  {sign} … and {len(paths) - SHOWN_PATHS} more")
    if changes.unchanged:
        say(f"  = {len(changes.unchanged)} files stay as they are")


def show_end(done: Published) -> None:
    """Print where it is, and how to read it."""
    if done.dry_run:
        say(f"dry run: nothing was sent to {done.repo}")
    elif done.commit is None:
        say(f"nothing to do: {done.repo}@{done.revision} holds all of it")
    else:
        say(f"published {done.repo}@{done.revision}, commit {done.commit}. What to try next:")
        if done.tables:
            say(f"  agentmill inspect hf://{done.repo}@{done.commit}/{done.tables[0]}")
        else:
            say(f"  hf download {done.repo} --revision {done.commit}")
