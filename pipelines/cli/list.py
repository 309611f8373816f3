"""``agentmill list KIND``."""

from __future__ import annotations

import click
import msgspec

from pipelines.cli.console import say, table
from pipelines.plugins import KINDS, described


@click.command(name="list")
@click.argument("kind", metavar="KIND", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object of names and descriptions.")
def list_(kind: str | None, as_json: bool) -> None:
    """List what can be named in a recipe.

    KIND is one of operators, environments, generators, policies, strategies, verifiers, views, pair_views,
    family_views, formats, dialects. Without KIND all of them are listed.
    """
    found = {each: described(each) for each in ([kind] if kind else KINDS)}
    if as_json:
        say(msgspec.json.encode(found[kind] if kind else found).decode())
        return
    for each, names in found.items():
        table(each, ["name", "what it is"], list(names.items()))
