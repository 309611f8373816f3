"""``agentmill view RUN|TABLE``."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from pathlib import Path

import click
import msgspec

from agentmill.pipelines.terminal.console import answer, answers, example, log, say
from agentmill.pipelines.view.build import build
from agentmill.pipelines.view.serve import address, server
from agentmill.pipelines.view.sources import is_table, local
from agentmill.schemas.hub import is_address, parse


class Viewed(msgspec.Struct, frozen=True, kw_only=True):
    """What a view shows, by number, and where: ``index`` is its first page and ``url`` that page, while it is served.

    ``made`` tells whether it was not there, or not up to date, before.
    """

    index: str
    url: str | None
    trajectories: int
    pairs: int
    trees: int
    tables: int
    made: bool


@click.command(epilog=example("agentmill view runs/quickstart", "agentmill view runs/quickstart/explored --no-serve"))
@click.argument("place", metavar="RUN|TABLE")
@click.option("--out", "folder", metavar="FOLDER", type=click.Path(path_type=Path), help="Where to.")
@click.option("--serve/--no-serve", default=True, help="Serve the folder to browsers of this machine until Ctrl-C.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="To serve at; any free one if not given.")
@click.option("--token-ids", is_flag=True, help="Keep the ids and log-probabilities of tokens in the raw JSON.")
@answers(Viewed)
def view(place: str, folder: Path | None, serve: bool, port: int, token_ids: bool, as_json: bool) -> None:
    """Browse trajectories: one folder of plain HTML, which also opens from the disk without this command.

    RUN is the folder of a run, such as runs/quickstart, with all its tables; TABLE is one of its tables of trajectories
    or pairs. Without --out, the folder is RUN/view or TABLE-view. Both may lie on the Hub: hf://org/name@revision or
    hf://org/name@revision/TABLE; the folder is then NAME-view or TABLE-view, here.
    """
    path = local(place)
    folder = folder or (here(place) if is_address(place) else default_folder(path))
    whole = folder.resolve()
    shown, made = build(path, whole, token_ids, place if is_address(place) else None)
    with server(whole, port) if serve else nullcontext() as running:
        viewed = Viewed(
            index=str(folder / "index.html"),
            url=address(running) if running else None,
            trajectories=shown.trajectories,
            pairs=shown.pairs,
            trees=shown.trees,
            tables=shown.tables,
            made=made,
        )
        answer(viewed, show, as_json)
        if running:
            log("Ctrl-C ends it")
            with suppress(KeyboardInterrupt):
                running.serve_forever()


def show(viewed: Viewed) -> None:
    """Print where a view is, and on stderr what it shows."""
    counts = f"trajectories {viewed.trajectories:,}, pairs {viewed.pairs:,}, trees {viewed.trees:,}"
    log(f"{counts}, of tables {viewed.tables:,}{'' if viewed.made else '; nothing to do, the view is up to date'}")
    say(viewed.index)
    if viewed.url:
        say(viewed.url)


def here(place: str) -> Path:
    """Where the view of a table or a data set on the Hub goes by itself: into the working directory."""
    address = parse(place)
    return Path(f"{(address.path or address.repo).rpartition('/')[2]}-view")


def default_folder(path: Path) -> Path:
    """Where a view goes by itself: into its run, or besides its table, since tables hold nothing but their own."""
    if is_table(path):
        whole = path.resolve()
        return (path if path.name == whole.name else whole).with_name(f"{whole.name}-view")
    return path / "view"
