"""Run the data half of every shipped recipe without a model, and write ``configs/recipes/status.yaml``.

    python benchmarks/recipes.py [NAME …] [--preview N] [--whole]

An expert that errs stands in for every model that samples, and a few short conversations for general rows, where the
recipe names a table of them that is not there. A recipe that ends well has the status ``data``; with
``--whole`` recipes are run as they are, trainings included, and then have the status ``whole``. ``make recipes`` does
that in small, with ``--preview 3``. What is run lies in a temporary folder.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.shipped import STATUS, STATUSES, UNTRIED, recipe_files
from agentmill.pipelines.serving.models import SAMPLED
from agentmill.schemas.config import dump_yaml, read_yaml
from agentmill.schemas.records.rows import Message, SftRow

GENERAL, N_GENERAL = "general_rows", 400
STAND_IN = "{policy: expert, mistakes: 0.3}"
HEAD = """\
# Which recipes were run from their start to their end: `data` without a model, or `whole`, in small. Written by
# benchmarks/recipes.py.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--preview", type=int)
    parser.add_argument("--whole", action="store_true")
    given = parser.parse_args()
    files = recipe_files()
    table = next(iter(files.values())).with_name(STATUS)
    statuses = {name: status for name, status in read_yaml(table).items() if name in files} if table.exists() else {}
    for name in given.names or files:
        done = run(name, files[name], given.preview, given.whole)
        # A small model may solve nothing to go on from; that says nothing against the data half.
        before = statuses.get(name, UNTRIED) if given.whole else UNTRIED
        statuses[name] = STATUSES[1 if given.whole else 0] if done else before
        print(f"{name}: {statuses[name]}{'' if done else ', and this time it did not end'}", flush=True)
        table.write_text(HEAD + dump_yaml(dict(sorted(statuses.items()))), encoding="utf-8")


def run(name: str, file: Path, preview: int | None, whole: bool) -> bool:
    """Whether a recipe, or its data half, runs to its end."""
    recipe = read_recipe(file, ())
    stand_ins = [f"models.{entry}={STAND_IN}" for entry, config in recipe.models.items() if config.policy in SAMPLED]
    options = [] if whole else [*stand_ins, "--only", "data"]
    small = [] if preview is None else ["--preview", str(preview)]
    program = str(Path(sys.executable).with_name("agentmill"))
    with TemporaryDirectory() as folder:
        absent = GENERAL in recipe.data and not Path(recipe.data[GENERAL]).exists()
        # Not in runs/: what an earlier version of a recipe left there would be refused as made differently.
        given = [f"run_dir={folder}/{name}"]
        if absent:
            given.append(f"data.{GENERAL}={general_rows(Path(folder) / GENERAL)}")
        return subprocess.run([program, "run", name, *options, *small, *given], check=False).returncode == 0


def general_rows(folder: Path) -> Path:
    """A table of short conversations, as training rows."""
    messages = [Message(role="user", content="Hello."), Message(role="assistant", content="Hello!", train=True)]
    seed_table(
        folder,
        [
            SftRow(row_id=f"g{n:04}", trajectory_id=f"general{n:04}", view="sft", view_parameters={}, messages=messages)
            for n in range(N_GENERAL)
        ],
    )
    return folder


if __name__ == "__main__":
    main()
