"""``agentmill view RUN|TABLE``."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from pipelines.cli.console import log, say
from pipelines.view.build import build
from pipelines.view.serve import address, server
from pipelines.view.sources import is_table, local
from schemas.hub import is_address, parse


@click.command()
@click.argument("place", metavar="RUN|TABLE")
@click.option("--out", "folder", metavar="FOLDER", type=click.Path(path_type=Path), help="Where to.")
@click.option("--serve/--no-serve", default=True, help="Serve the folder to browsers of this machine until Ctrl-C.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="To serve at; any free one if not given.")
@click.option("--token-ids", is_flag=True, help="Keep the ids and log-probabilities of tokens in the raw JSON.")
def view(place: str, folder: Path | None, serve: bool, port: int, token_ids: bool) -> None:
    """Browse trajectories: one folder of plain HTML, which also opens from the disk without this command.

    RUN is the folder of a run, such as runs/quickstart, with all its tables; TABLE is one of its tables of trajectories
    or pairs. Without --out, the folder is RUN/view or TABLE-view. Both may lie on the Hub: hf://org/name@revision or
    hf://org/name@revision/TABLE; the folder is then NAME-view or TABLE-view, here.
    """
    path = local(place)
    folder = folder or (here(place) if is_address(place) else beside(path))
    whole = folder.resolve()
    shown, made = build(path, whole, token_ids, place if is_address(place) else None)
    counts = f"trajectories {shown.trajectories:,}, pairs {shown.pairs:,}, trees {shown.trees:,}"
    log(f"{counts}, of tables {shown.tables:,}{'' if made else '; nothing to do, the view is up to date'}")
    say(str(folder / "index.html"))
    if serve:
        with server(whole, port) as running:
            say(address(running))
            log("Ctrl-C ends it")
            with suppress(KeyboardInterrupt):
                running.serve_forever()


def here(place: str) -> Path:
    """Where the view of a table or a data set on the Hub goes by itself: into the working directory."""
    address = parse(place)
    return Path(f"{(address.path or address.repo).rpartition('/')[2]}-view")


def beside(path: Path) -> Path:
    """Where a view goes by itself: into its run, or beside its table, since tables hold nothing but their own."""
    if is_table(path):
        whole = path.resolve()
        return (path if path.name == whole.name else whole).with_name(f"{whole.name}-view")
    return path / "view"
