"""``agentmill list KIND``."""

from __future__ import annotations

import click

from agentmill.pipelines.operators.registry import KINDS, described
from agentmill.pipelines.terminal.console import answer, answers, example, table


@click.command(name="list", epilog=example("agentmill list", "agentmill list operators"))
@click.argument("kind", metavar="KIND", required=False)
@answers(dict[str, dict[str, str]])
def list_(kind: str | None, as_json: bool) -> None:
    """List what can be named in a recipe, with a line on each.

    KIND is one of operators, environments, generators, policies, strategies, verifiers, views, pair_views,
    family_views, formats, dialects. Without KIND all of them are listed.
    """
    answer({each: described(each) for each in ([kind] if kind else KINDS)}, show, as_json)


def show(found: dict[str, dict[str, str]]) -> None:
    """Print names and descriptions for people."""
    for kind, names in found.items():
        table(kind, ["name", "what it is"], list(names.items()))
