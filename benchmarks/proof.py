"""Measure that agents get better: run the recipes of ``configs/proof`` under several seeds, and pool what they measure.

    python benchmarks/proof.py [--seeds 0 1 2] [--only NAME …] [--development] [--preview N] [--data] [--out FOLDER]

Each recipe compares a treatment with its control, and runs into ``FOLDER/seed-N/NAME``; most start from what ``skill``
left there, and ``mixed`` from ``outside``. ``scale`` is run where ``--only`` names it. What is finished is not run
again. ``FOLDER/proof.json`` and ``FOLDER/proof.md`` have every run that was tried. With ``--development`` the seeds are
1000 and up: choices are made on these, and the table is marked as no evidence; then the others are run once.
``--preview`` runs everything in small.
``--data`` runs only what needs no model, into ``FOLDER-data``, with an expert that errs in the place of every model.
"""

from __future__ import annotations

import argparse
import functools
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from pooling import Run, effects, measures, pool
from proof_table import page
from recipes import STAND_IN

from agentmill.pipelines.recipes.estimate import estimate, shown
from agentmill.pipelines.recipes.grammar import Recipe, read_recipe
from agentmill.pipelines.recipes.parts import WHOLE, Part
from agentmill.pipelines.recipes.plan import make_plan
from agentmill.pipelines.recipes.preview import SUFFIX, preview
from agentmill.pipelines.recipes.run_folder import SUMMARY
from agentmill.pipelines.serving.models import SAMPLED
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import digest
from agentmill.schemas.records.manifest import write_atomically

RECIPES = Path(__file__).resolve().parents[1] / "configs/proof"
DEVELOPMENT = 1000
"""The lowest seed on which choices may be made."""

LARGE = ("scale",)
"""Recipes that take hours without a GPU. They are run where they are named."""

ATTEMPTS = "attempts.jsonl"
Program = Callable[[Sequence[str]], int]
"""Runs ``agentmill`` with these arguments, and returns its exit status."""


class Attempt(msgspec.Struct, frozen=True):
    """A run that is begun or goes on, noted before, and again when it is ``finished``.

    ``recipe`` is the digest of its file, so that a change after a look shows.
    """

    seed: int
    name: str
    recipe: str
    finished: bool
    preview: bool = False


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """Recipes by name, run under each of ``seeds`` into ``out``; ``preview`` and ``data`` as the options."""

    files: dict[str, Path]
    seeds: list[int]
    out: Path
    preview: int | None = None
    data: bool = False

    @property
    def development(self) -> bool:
        """Whether choices may be made on what it measures."""
        return min(self.seeds) >= DEVELOPMENT

    @property
    def title(self) -> str:
        """What the files of its results are called."""
        return ("development" if self.development else "proof") + (SUFFIX if self.preview else "")

    def place(self, name: str, seed: int) -> Path:
        """The folder of a run."""
        return self.out / f"seed-{seed}" / (name + (SUFFIX if self.preview else ""))

    def overrides(self, name: str, seed: int) -> list[str]:
        """What a recipe is changed by: its seed and folder, and where it finds what other recipes left."""
        recipe = as_written(self.files[name])
        found = [f"seed={seed}", f"run_dir={self.out / f'seed-{seed}' / name}"]
        found += [f"data.{key}={self.moved(path, seed)}" for key, path in recipe.data.items()]
        for key, model in recipe.models.items():
            if self.data and model.policy in SAMPLED:
                found.append(f"models.{key}={STAND_IN}")
            elif model.model is not None:
                found.append(f"models.{key}.model={self.moved(model.model, seed)}")
        return found

    def moved(self, path: str, seed: int) -> str:
        """A path within the run of a recipe, as it is written there, in the run under ``seed``; others stay."""
        for name, file in self.files.items():
            start = f"{as_written(file).run_dir}/"
            if path.startswith(start):
                return f"{self.place(name, seed)}/{path.removeprefix(start)}"
        return path

    def episodes(self, name: str, seed: int) -> str:
        """The most episodes of a run, as ``agentmill plan`` counts them. Raises ``UserError`` as this does."""
        recipe = read_recipe(self.files[name], self.overrides(name, seed))
        small = recipe if self.preview is None else preview(recipe, self.preview, dry=True)
        return shown(estimate(make_plan(small, Part(only="data") if self.data else WHOLE)).episodes)

    def run(self, name: str, seed: int, program: Program) -> bool:
        """Run a recipe, or find it finished; whether it is finished now."""
        summary = self.place(name, seed) / SUMMARY
        before = summary.exists()
        if not before:
            try:
                print(f"{name}, seed {seed}: up to {self.episodes(name, seed)} episodes", flush=True)
            except UserError as error:
                print(f"{name}, seed {seed}: cannot be run: {error}", file=sys.stderr, flush=True)
                return False
        options = ["--only", "data"] if self.data else []
        options += [] if self.preview is None else ["--preview", str(self.preview)]
        attempt = Attempt(
            seed, name, digest(self.files[name].read_text(encoding="utf-8")), finished=False, preview=bool(self.preview)
        )
        noted = [each.recipe for each in self.attempts() if (each.seed, each.name) == (seed, name)]
        # Before it runs: also a run that is killed, or refused since its recipe was changed, was tried.
        new = not before or noted[-1:] != [attempt.recipe]
        if new:
            self.note(attempt)
        status = program(["run", str(self.files[name]), *options, *self.overrides(name, seed)])
        done = status == 0 and (self.data or summary.exists())
        if new and done:
            self.note(msgspec.structs.replace(attempt, finished=True))
        return done

    def note(self, attempt: Attempt) -> None:
        """Keep what was tried, with what was tried before."""
        self.out.mkdir(parents=True, exist_ok=True)
        with (self.out / ATTEMPTS).open("ab") as file:
            file.write(msgspec.json.encode(attempt) + b"\n")

    def attempts(self) -> list[Attempt]:
        """All that was tried under seeds of this kind."""
        file = self.out / ATTEMPTS
        lines = file.read_bytes().splitlines() if file.exists() else []
        found = [msgspec.json.decode(line, type=Attempt) for line in lines]
        return [
            each
            for each in found
            if (each.seed >= DEVELOPMENT) == self.development and each.preview == bool(self.preview)
        ]

    def runs(self) -> list[Run]:
        """All runs of this kind, also those that were not asked for now."""
        found = []
        for folder in self.out.glob("seed-*/*/"):
            seed, small = folder.parent.name.removeprefix("seed-"), folder.name.endswith(SUFFIX)
            if seed.isdecimal() and small == bool(self.preview) and (int(seed) >= DEVELOPMENT) == self.development:
                name = folder.name.removesuffix(SUFFIX)
                found.append(Run(int(seed), name, folder, finished=(folder / SUMMARY).exists()))
        return sorted(found, key=lambda run: (run.seed, run.name))

    def write(self) -> Path:
        """Pool all finished runs, and write the results as JSON and as a page; the path of the latter."""
        runs, attempts = self.runs(), self.attempts()
        evaluations = pool(run for run in runs if run.finished)
        found = effects(evaluations)
        measured = {f"{each.recipe}/{each.name}": measures(each) for each in evaluations}
        results = {
            "kind": self.title,
            "runs": [{"seed": run.seed, "name": run.name, "finished": run.finished} for run in runs],
            "attempts": attempts,
            "effects": found,
            "measures": measured,
        }
        text = msgspec.json.format(msgspec.json.encode(results), indent=2)
        write_atomically(self.out / f"{self.title}.json", text + b"\n", self.out)
        written = self.out / f"{self.title}.md"
        write_atomically(written, page(self.title, runs, attempts, found, measured).encode(), self.out)
        return written


@functools.cache
def as_written(file: Path) -> Recipe:
    """A recipe without overrides."""
    return read_recipe(file, ())


def needs(files: Mapping[str, Path], name: str) -> list[str]:
    """The recipes from whose runs a recipe takes tables or models."""
    recipe = as_written(files[name])
    paths = [*recipe.data.values(), *(model.model or "" for model in recipe.models.values())]
    starts = {other: f"{as_written(file).run_dir}/" for other, file in files.items()}
    return [other for other, start in starts.items() if any(path.startswith(start) for path in paths)]


def recipe_files() -> dict[str, Path]:
    """The recipes of the proof by name, in an order in which they can be run."""
    files = {path.stem: path for path in sorted(RECIPES.glob("*.yaml"))}
    return dict(sorted(files.items(), key=lambda each: bool(needs(files, each[0]))))


def study_of(arguments: Sequence[str] | None) -> Study:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    files = recipe_files()
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N")
    parser.add_argument("--only", nargs="+", choices=[*files], metavar="NAME")
    parser.add_argument("--development", action="store_true")
    parser.add_argument("--preview", type=int, metavar="N")
    parser.add_argument("--data", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/proof"))
    given = parser.parse_args(arguments)
    first = DEVELOPMENT if given.development else 0
    seeds = given.seeds or [first, first + 1, first + 2]
    if any(seed < 0 or (seed >= DEVELOPMENT) != given.development for seed in seeds):
        expected = f"{DEVELOPMENT} or more" if given.development else f"0 to {DEVELOPMENT - 1}; others: --development"
        parser.error(f"--seeds: expected {expected}, got {' '.join(map(str, seeds))}")
    if given.preview is not None and given.preview < 2:
        parser.error(f"--preview: expected 2 or more, got {given.preview}")
    out = given.out.with_name(f"{given.out.name}-data") if given.data else given.out
    named = given.only or [name for name in files if name not in LARGE]
    wanted = {*named, *(other for name in named for other in needs(files, name))}
    chosen = {name: file for name, file in files.items() if name in wanted}
    return Study(files=chosen, seeds=seeds, out=out, preview=given.preview, data=given.data)


def agentmill(arguments: Sequence[str]) -> int:
    """Run the command of this name."""
    return subprocess.run([Path(sys.executable).with_name("agentmill"), *arguments], check=False).returncode


def run_seed(study: Study, seed: int, program: Program) -> bool:
    """Run all recipes under one seed, but for those that need an unfinished one; whether all are finished."""
    done: dict[str, bool] = {}
    for name in study.files:
        missing = [other for other in needs(study.files, name) if not done[other]]
        if missing:
            print(
                f"{name}, seed {seed}: not run, since {', '.join(missing)} is not finished", file=sys.stderr, flush=True
            )
        done[name] = not missing and study.run(name, seed, program)
    return all(done.values())


def main(arguments: Sequence[str] | None = None, program: Program = agentmill) -> int:
    """Run what the command line asks for; 1 where a run did not end."""
    study = study_of(arguments)
    ended = [run_seed(study, seed, program) for seed in study.seeds]
    if not study.data:
        written = study.write()
        print(written.read_text(encoding="utf-8"))
        print(f"written to {written}, with all measures in {written.with_suffix('.json').name}")
    return 0 if all(ended) else 1


if __name__ == "__main__":
    sys.exit(main())
