"""The recipes and sketches that the package ships: by name, with the papers they follow and how far they were tried.

A sketch is a recipe that is only planned: it shows that a method can be written, and was never run.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from agentmill.pipelines.recipes.short_forms import SKETCHES, every_step, shipped, written_out
from agentmill.schemas.config import packaged, read_yaml
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, nearest

SUFFIXES = (".yaml", ".yml")
STATUS = "status.yaml"
"""The file next to the recipes with the status of each; ``benchmarks/recipes.py`` writes it."""

UNTRIED, PLANNED = "untried", "planned"
STATUSES = ("data", "whole", UNTRIED, PLANNED)
"""What of a recipe was run from its start to its end: the data half without a model, all of it, or neither. A sketch
is only planned."""


class RecipeCard(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe in a list: the paper it follows, how many steps it has in all, and how far it was tried."""

    name: str
    paper: str
    steps: int
    status: str


def recipe_files() -> dict[str, Path]:
    """The files of the shipped recipes by name."""
    return {path.stem: path for path in sorted(shipped().glob("*.yaml")) if path.name != STATUS}


def sketch_files() -> dict[str, Path]:
    """The files of the sketches by name."""
    return {path.stem: path for path in sorted((shipped() / SKETCHES).glob("*.yaml"))}


def recipe_file(given: Path) -> Path:
    """The file of a recipe: ``given``, NAME.yaml here, a shipped one, or a sketch.

    Raises ``UserError`` for an unknown name.
    """
    if packaged(given).is_file() or given.suffix in SUFFIXES or len(given.parts) != 1:
        return given
    here = given.with_name(f"{given.name}.yaml")
    if here.is_file():
        return here
    files = {**sketch_files(), **recipe_files()}
    if given.name not in files:
        # These have a path and no name, though the documentation speaks of them by it.
        configs = {path.stem: str(Path("configs", path.name)) for path in shipped().parent.glob("*.yaml")}
        close = nearest(given.name, configs if given.name in configs else [*files, *configs])
        hint = "" if close is None else f" Did you mean {configs.get(close, close)!r}?"
        raise UserError(
            f"there is no recipe called {given}.{hint}\n`agentmill list recipes` shows those that have a name",
            ErrorCode.NO_SUCH_FILE,
        )
    return files[given.name]


def recipe_cards() -> list[RecipeCard]:
    """All shipped recipes, then the sketches. Raises ``UserError`` for a file that is none."""
    status_file = shipped() / STATUS
    statuses = read_yaml(status_file) if status_file.exists() else {}
    recipes = [card(name, path, str(statuses.get(name, UNTRIED))) for name, path in recipe_files().items()]
    return [*recipes, *(card(name, path, PLANNED) for name, path in sketch_files().items())]


def card(name: str, path: Path, status: str) -> RecipeCard:
    """The card of a recipe file."""
    data = read_yaml(path)
    paper = data.get("paper") or {}
    title = " ".join(str(paper[key]) for key in ("title", "arxiv") if key in paper)
    steps = list(every_step(written_out(data, path.parent)["steps"]))
    return RecipeCard(name=name, paper=title, steps=len(steps), status=status)
