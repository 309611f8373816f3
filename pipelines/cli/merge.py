"""``agentmill merge ADAPTER``: a whole model out of an adapter, in a process of its own."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from agentmill.pipelines.processes.children import run_module
from agentmill.pipelines.terminal.console import answer, answers, example, say


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """Where the whole ``model`` is, and the ``adapter`` that it was made of."""

    model: str
    adapter: str


@click.command(epilog=example("agentmill merge runs/actor-lora --out runs/actor"))
@click.argument("adapter", metavar="ADAPTER", type=click.Path(path_type=Path))
@click.option("--out", "folder", metavar="FOLDER", required=True, type=click.Path(path_type=Path), help="Where to.")
@click.option("--base", metavar="MODEL", help="The model it was trained on; by default that of its training.json.")
@click.option("--trust-remote-code", "trusted", is_flag=True, help="Run the code that the model's folder brings.")
@answers(Merged)
def merge(adapter: Path, folder: Path, base: str | None, trusted: bool, as_json: bool) -> None:
    """Write the model that an adapter was trained on, with what it learnt added to the weights.

    ADAPTER is what a training with lora left that did not merge it, or ORG/NAME[@REVISION] on the Hub. The folder can
    be served, and trained further.
    """
    options = [*(["--base", base] if base else []), *(["--trust-remote-code"] if trusted else [])]
    run_module("agentmill.trainers.merge", [str(adapter), "--out", str(folder), *options])
    answer(Merged(model=str(folder), adapter=str(adapter)), lambda merged: say(merged.model), as_json)
