"""``agentmill plan|show|diff|new``: recipes before they are run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
from ruamel.yaml import YAML

from agentmill.pipelines.cli.run import OVERRIDES, part_options, say_left_out
from agentmill.pipelines.operators.operator import NAME
from agentmill.pipelines.recipes.comparison import RecipeDifference, compared
from agentmill.pipelines.recipes.estimate import Estimate, StepBounds, estimate, shown
from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.parts import Part
from agentmill.pipelines.recipes.plan import make_plan
from agentmill.pipelines.recipes.run_folder import check_is_folder
from agentmill.pipelines.recipes.runner import resolved
from agentmill.pipelines.recipes.shipped import recipe_file, recipe_files, sketch_files
from agentmill.pipelines.terminal.console import Row, answer, answers, example, say, table
from agentmill.schemas.config import dump_yaml, packaged
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.records.manifest import disk_errors

RECIPE = click.argument("recipe", metavar="RECIPE", type=click.Path(path_type=Path))
STARTER = Path("configs/starter.yaml")
"""The file that ``agentmill new`` copies."""


@click.command(epilog=example("agentmill plan eto", "agentmill plan configs/quickstart.yaml steps.proposed_tasks.n=4"))
@RECIPE
@OVERRIDES
@part_options
@answers(Estimate)
def plan(recipe: Path, overrides: tuple[str, ...], part: Part, as_json: bool) -> None:
    """Show what a recipe may take at most: inputs, episodes, calls of models, tokens and dollars. Starts nothing.

    Numbers are upper bounds; what cannot be known before the run is unknown. Requests that are repeated after faults of
    a server are not counted. KEY=VALUE and the options are those of agentmill run.
    """
    made = make_plan(read_recipe(recipe, overrides), part)
    check_is_folder(made.run_dir)
    answer(estimate(made), show_estimate, as_json)


def show_estimate(found: Estimate) -> None:
    """Print the bounds of each step, of each model, and what they rest on."""
    rows: list[Row] = [estimate_row(line) for line in found.steps]
    columns = ["step", "operator", "inputs", "rows", "episodes", "calls", "how"]
    table(f"{found.name}: at most, by step", columns, rows)
    models: list[Row] = [
        [name, shown(each.calls), shown(each.prompt_tokens), shown(each.completion_tokens), dollars(each.cost_usd)]
        for name, each in found.models.items()
    ]
    if models:
        whole = [shown(each) for each in (found.calls, found.prompt_tokens, found.completion_tokens)]
        say()
        columns = ["model", "calls", "prompt tokens", "completion tokens", "USD"]
        table("at most, by model", columns, [*models, ["total", *whole, dollars(found.cost_usd)]])
    say()
    asked = f"{shown(found.calls)} calls of models" if models else "no model is asked"
    say(f"In all at most {shown(found.episodes)} episodes and {asked}.")
    for note in found.notes:
        say(note)
    say_left_out(found.left_out)


def estimate_row(line: StepBounds) -> Row:
    """A step as cells."""
    calls = ", ".join(f"{name} {shown(each.calls)}" for name, each in line.models.items())
    numbers = [shown(line.inputs), shown(line.rows), shown(line.episodes)]
    return [line.name, line.operator, *numbers, calls or "-", line.how or "-"]


def dollars(usd: float | None) -> str:
    """An amount for people."""
    return "unknown" if usd is None else f"{usd:,.2f}"


@click.command(epilog=example("agentmill show recipe eto", "agentmill show recipe eto steps.pairs.min_gap=0.2"))
@click.argument("kind", metavar="recipe")
@click.argument("recipe", metavar="RECIPE", type=click.Path(path_type=Path))
@OVERRIDES
@answers(dict[str, Any])
def show(kind: str, recipe: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show a recipe in its long form, with included files and defaults written out."""
    if kind != "recipe":
        raise UserError(f"unknown kind {kind!r}; known: recipe.{near_match(kind, ['recipe'])}", ErrorCode.UNKNOWN_NAME)
    answer(resolved(read_recipe(recipe, overrides)), lambda data: say(dump_yaml(data).rstrip()), as_json)


@click.command(epilog=example("agentmill diff eto agentgen"))
@click.argument("first", metavar="RECIPE", type=click.Path(path_type=Path))
@click.argument("second", metavar="OTHER", type=click.Path(path_type=Path))
@answers(RecipeDifference)
def diff(first: Path, second: Path, as_json: bool) -> None:
    """Show how two recipes differ, step by step, in their long form."""
    answer(compared(read_recipe(first, ()), read_recipe(second, ())), show_difference, as_json)


def show_difference(found: RecipeDifference) -> None:
    """Print what differs, a line each."""
    if found.is_empty:
        say("no difference but for name, run_dir and paper")
    for change in found.settings:
        say(change)
    for name in found.removed:
        say(f"- step {name}")
    for name in found.added:
        say(f"+ step {name}")
    for each in found.steps:
        for change in each.changes:
            say(f"  step {each.step}: {change}")
    if found.moved:
        say(f"another order: {', '.join(found.moved)}")


class NewRecipe(msgspec.Struct, frozen=True):
    """The file of a new recipe."""

    file: str


@click.command(epilog=example("agentmill new my-recipe", "agentmill new my-eto --from eto"))
@click.argument("name", metavar="NAME")
@click.option("--from", "origin", metavar="RECIPE", type=click.Path(path_type=Path), help="The recipe to copy.")
@answers(NewRecipe)
def new(name: str, origin: Path | None, as_json: bool) -> None:
    """Write a recipe to start from into NAME.yaml, with comments; it runs as it is, without a model."""
    answer(NewRecipe(str(written(name.removesuffix(".yaml"), origin))), show_new, as_json)


def written(name: str, origin: Path | None) -> Path:
    """The file of the new recipe. Raises ``UserError`` for a name that cannot be one, or is taken."""
    file = Path(f"{name}.yaml")
    if not NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is no name of a recipe; expected letters, digits, - and _, for example agentmill new my-recipe",
            ErrorCode.NAME_MALFORMED,
        )
    if name in {**recipe_files(), **sketch_files()}:
        raise UserError(
            f"{name} is a shipped recipe, which a file {file} here would replace\n"
            f"choose another name, or copy it: agentmill new my-{name} --from {name}",
            ErrorCode.NAME_TAKEN,
        )
    if file.exists():
        raise UserError(f"there is a file {file} already; choose another name, or remove it", ErrorCode.NAME_TAKEN)
    source = packaged(STARTER if origin is None else recipe_file(origin))
    read_recipe(source, ())
    text = renamed(source.read_text(encoding="utf-8-sig"), name)
    with disk_errors(file):
        file.write_text(text, encoding="utf-8")
    try:
        copy = read_recipe(file, ())
        if (copy.name, copy.run_dir) != (name, f"runs/{name}"):
            raise UserError(
                f"{source}: its name and run_dir are written in a way that is not changed here\n"
                f"copy it to {file} by hand and change them",
                ErrorCode.NAME_MALFORMED,
            )
    except UserError:
        # Files that the original includes lie next to it.
        file.unlink()
        raise
    return file


def renamed(text: str, name: str) -> str:
    """The text of a recipe with another name and run folder; all else, comments too, is as it was."""
    # In quotes, since YAML reads 123 and null as no text.
    values = {"name": f'"{name}"', "run_dir": f'"runs/{name}"'}
    nodes = {key.value: value for key, value in YAML(typ="safe", pure=True).compose(text).value if key.value in values}
    # From the end on, so that the places before stay right.
    for key, node in sorted(nodes.items(), key=lambda each: -each[1].start_mark.index):
        start, end = node.start_mark.index, node.end_mark.index
        text = f"{text[:start]}{' ' if start == end else ''}{values[key]}{text[end:]}"
    return text if "name" in nodes else f"name: {values['name']}\n{text}"


def show_new(found: NewRecipe) -> None:
    """Print what to do with the file."""
    say(f"wrote {found.file}; try it with:  agentmill run {found.file} --preview 5")
