"""``agentmill list KIND``."""

from __future__ import annotations

import click

from agentmill.pipelines.operators.registry import KINDS, described
from agentmill.pipelines.recipes.shipped import RecipeCard, recipe_cards
from agentmill.pipelines.terminal.console import Row, answer, answers, example, say, table
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match

RECIPES = "recipes"


@click.command(name="list", epilog=example("agentmill list", "agentmill list operators", "agentmill list recipes"))
@click.argument("kind", metavar="[KIND]", required=False)
@answers(dict[str, dict[str, str]], list[RecipeCard])
def list_(kind: str | None, as_json: bool) -> None:
    """List what can be named in a recipe, with a line on each.

    KIND is one of operators, environments, generators, policies, strategies, verifiers, views, pair_views,
    family_views, formats, dialects. Without KIND all of them are listed. With the KIND recipes it lists the recipes
    and sketches that can be run by their names, with the paper that each follows and how far it was tried.
    """
    if kind == RECIPES:
        answer(recipe_cards(), show_recipes, as_json)
        return
    if kind is not None and kind not in KINDS:
        known = sorted([*KINDS, RECIPES])
        raise UserError(
            f"unknown kind {kind!r}; known: {', '.join(known)}.{near_match(kind, known)}", ErrorCode.UNKNOWN_NAME
        )
    answer({each: described(each) for each in ([kind] if kind else KINDS)}, show, as_json)


def show_recipes(cards: list[RecipeCard]) -> None:
    """Print the recipes for people."""
    rows: list[Row] = [[card.name, card.paper or "-", card.steps, card.status] for card in cards]
    table(RECIPES, ["name", "paper", "steps", "status"], rows)
    say("status data: its data half was run without a model; whole: all of it, in small; planned: a sketch, never run")
    say("run one: agentmill run NAME; a sketch may name files of yours in data/")


def show(found: dict[str, dict[str, str]]) -> None:
    """Print names and descriptions for people."""
    for kind, names in found.items():
        table(kind, ["name", "what it is"], list(names.items()))
