"""The recipes that the package ships: by name, with the papers they follow and how far they were tried."""

from __future__ import annotations

from pathlib import Path

import msgspec

from agentmill.pipelines.recipes.short_forms import every_step, shipped, written_out
from agentmill.schemas.config import packaged, read_yaml
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match

SUFFIXES = (".yaml", ".yml")
STATUS = "status.yaml"
"""The file next to the recipes with the status of each; ``benchmarks/recipes.py`` writes it."""

UNTRIED = "untried"
STATUSES = ("data", "whole", UNTRIED)
"""What of a recipe was run from its start to its end: the data half without a model, all of it, or neither."""


class RecipeCard(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe in a list: the paper it follows, how many steps it has in all, and how far it was tried."""

    name: str
    paper: str
    steps: int
    status: str


def recipe_files() -> dict[str, Path]:
    """The files of the shipped recipes by name."""
    return {path.stem: path for path in sorted(shipped().glob("*.yaml")) if path.name != STATUS}


def recipe_file(given: Path) -> Path:
    """The file of a recipe: ``given``, NAME.yaml here, or a shipped one. Raises ``UserError`` for an unknown name."""
    if packaged(given).is_file() or given.suffix in SUFFIXES or len(given.parts) != 1:
        return given
    here = given.with_name(f"{given.name}.yaml")
    if here.is_file():
        return here
    files = recipe_files()
    if given.name not in files:
        known = ", ".join(files)
        raise UserError(
            f"there is no file {given}, and no recipe of this name; recipes: {known}.{near_match(given.name, files)}",
            ErrorCode.NO_SUCH_FILE,
        )
    return files[given.name]


def recipe_cards() -> list[RecipeCard]:
    """All shipped recipes. Raises ``UserError`` for a file that is none."""
    status_file = shipped() / STATUS
    statuses = read_yaml(status_file) if status_file.exists() else {}
    cards = []
    for name, path in recipe_files().items():
        data = read_yaml(path)
        paper = data.get("paper") or {}
        title = " ".join(str(paper[key]) for key in ("title", "arxiv") if key in paper)
        status = str(statuses.get(name, UNTRIED))
        steps = list(every_step(written_out(data, path.parent)["steps"]))
        cards.append(RecipeCard(name=name, paper=title, steps=len(steps), status=status))
    return cards
