"""Measure that agents get better: run the recipes of ``configs/proof`` under several seeds, and pool what they measure.

    python benchmarks/proof.py [--seeds 0 1 2] [--only NAME …] [--development] [--preview N] [--data] [--out FOLDER]
    python benchmarks/proof.py --pool FOLDER … [--development] [--preview N] [--out FOLDER]

Each recipe compares a treatment with its control, and runs into ``FOLDER/seed-N/NAME``; most start from what ``skill``
left there, and ``mixed`` from ``outside``. ``scale`` is run where ``--only`` names it. What is finished is not run
again. ``FOLDER/proof.json`` and ``FOLDER/proof.md`` have every run that was tried. With ``--development`` the seeds are
1000 and up: choices are made on these, and the table is marked as no evidence; then the others are run once.
``--preview`` runs everything in small.
``FOLDER/episodes`` keeps what every episode of a finished run came to, so that runs of several machines can be pooled:
``--pool`` runs nothing, and puts what such folders hold to what is in ``--out``.
``--data`` runs only what needs no model, into ``FOLDER-data``, with an expert that errs in the place of every model.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from attempts import ATTEMPTS, Attempt, note, read_attempts
from pooling import Kept, Run, effects, evaluations_of, measures, pool
from proof_table import page
from recipes import STAND_IN

from agentmill.pipelines.recipes.estimate import estimate, shown
from agentmill.pipelines.recipes.grammar import Recipe, read_recipe
from agentmill.pipelines.recipes.parts import WHOLE, Part
from agentmill.pipelines.recipes.plan import make_plan
from agentmill.pipelines.recipes.preview import SUFFIX, preview
from agentmill.pipelines.recipes.run_folder import SUMMARY
from agentmill.pipelines.serving.models import SAMPLED
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import digest
from agentmill.schemas.records.manifest import write_atomically

RECIPES = Path(__file__).resolve().parents[1] / "configs/proof"
DEVELOPMENT = 1000
"""The lowest seed on which choices may be made."""

LARGE = ("scale",)
"""Recipes that take hours without a GPU. They are run where they are named."""

EPISODES = "episodes"
KEPT = ".json.gz"
Program = Callable[[Sequence[str]], int]
"""Runs ``agentmill`` with these arguments, and returns its exit status."""


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """Recipes by name, run under each of ``seeds`` into ``out``; ``preview`` and ``data`` as the options.

    ``pooled`` are folders with the episodes of other runs. Where there are any, nothing is run.
    """

    files: dict[str, Path]
    seeds: list[int]
    out: Path
    preview: int | None = None
    data: bool = False
    pooled: list[Path] = []

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
            note(self.out / ATTEMPTS, attempt)
        status = program(["run", str(self.files[name]), *options, *self.overrides(name, seed)])
        done = status == 0 and (self.data or summary.exists())
        if new and done:
            note(self.out / ATTEMPTS, msgspec.structs.replace(attempt, finished=True))
        return done

    def attempts(self) -> list[Attempt]:
        """All that was tried under seeds of this kind, here and where what is pooled was run. Raises ``UserError``."""
        others = [folder for folder in self.pooled if folder.resolve() != (self.out / EPISODES).resolve()]
        files = [*(folder / ATTEMPTS for folder in others), self.out / ATTEMPTS]
        return [
            each
            for file in files
            for each in read_attempts(file)
            if (each.seed >= DEVELOPMENT) == self.development and each.preview == bool(self.preview)
        ]

    def runs(self) -> list[Run]:
        """All runs of this kind, also those that were not asked for now, and those of which files were kept."""
        found: dict[tuple[int, str], Run] = {}
        for folder in self.out.glob("seed-*/*/"):
            self._add(found, folder.parent.name, folder.name, folder)
        for place in (self.out / EPISODES, *self.pooled):
            for file in sorted(place.glob(f"seed-*/*{KEPT}")):
                self._add(found, file.parent.name, file.name.removesuffix(KEPT), file)
        return sorted(found.values(), key=lambda run: (run.seed, run.name))

    def _add(self, found: dict[tuple[int, str], Run], parent: str, name: str, path: Path) -> None:
        """Take note of a run, or of a file of one of which no finished run is there."""
        seed, small = parent.removeprefix("seed-"), name.endswith(SUFFIX)
        if not seed.isdecimal() or small != bool(self.preview) or (int(seed) >= DEVELOPMENT) != self.development:
            return
        key = (int(seed), name.removesuffix(SUFFIX))
        if path.is_dir():
            found[key] = Run(*key, path, finished=(path / SUMMARY).exists())
        elif key not in found or not found[key].finished:
            found[key] = Run(*key, path, file=path)
        elif path.parents[1] in self.pooled:
            print(f"{key[1]}, seed {key[0]}: {path} is left out, for {found[key].folder} is there", file=sys.stderr)

    def kept(self, run: Run) -> Kept:
        """The episodes of a finished run: those of its tables are kept in a file, and read from it without them.

        Raises ``UserError`` where neither is there.
        """
        if run.file is not None:
            return read_kept(run.file, run)
        file = self.out / EPISODES / f"seed-{run.seed}" / f"{run.folder.name}{KEPT}"
        noted = [each.recipe for each in self.attempts() if each.finished and each.key == (run.seed, run.name)]
        recipe = noted[-1] if noted else digest(self.recipe_text(run.name))
        try:
            found = Kept(seed=run.seed, name=run.name, recipe=recipe, evaluations=evaluations_of(run))
        except UserError as error:
            # A table that the run has read was moved away.
            if not file.exists():
                raise
            print(f"{run.name}, seed {run.seed}: pooled by {file}: {error}", file=sys.stderr, flush=True)
            return read_kept(file, run)
        file.parent.mkdir(parents=True, exist_ok=True)
        # Without the time, so that the same run gives the same file.
        write_atomically(file, gzip.compress(msgspec.json.encode(found), mtime=0), file.parent)
        return found

    def recipe_text(self, name: str) -> str:
        """The recipe of a run as it is now."""
        return (RECIPES / f"{name}.yaml").read_text(encoding="utf-8")

    def write(self) -> tuple[Path, bool]:
        """Pool all finished runs, and write the results as JSON and as a page; the path of the latter.

        Also whether all finished runs could be read; one that could not is left out and named. Raises ``UserError``.
        """
        runs, attempts = self.runs(), self.attempts()
        kept: list[Kept] = []
        for run in (run for run in runs if run.finished):
            try:
                kept.append(self.kept(run))
            except UserError as error:
                print(f"{run.name}, seed {run.seed}: left out: {error}", file=sys.stderr, flush=True)
        self.keep_attempts()
        evaluations = pool(kept)
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
        self.out.mkdir(parents=True, exist_ok=True)
        write_atomically(self.out / f"{self.title}.json", text + b"\n", self.out)
        written = self.out / f"{self.title}.md"
        write_atomically(written, page(self.title, runs, attempts, kept, found, measured).encode(), self.out)
        return written, len(kept) == sum(run.finished for run in runs)

    def keep_attempts(self) -> None:
        """Put all that was tried to what is kept of it, so that it is known where that is pooled."""
        file = self.out / ATTEMPTS
        if file.exists():
            (self.out / EPISODES).mkdir(exist_ok=True)
            write_atomically(self.out / EPISODES / ATTEMPTS, file.read_bytes(), self.out)


def read_kept(file: Path, run: Run) -> Kept:
    """What was kept of a run. Raises ``UserError`` for a file that is damaged, or of another run."""
    try:
        found = msgspec.json.decode(gzip.decompress(file.read_bytes()), type=Kept)
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError) as error:
        raise UserError(f"{file} is damaged ({error}); copy it again", ErrorCode.DAMAGED_FILE) from error
    if (found.seed, found.name) != (run.seed, run.name):
        raise UserError(
            f"{file} is of {found.name} under seed {found.seed}; expected it as seed-{found.seed}/{found.name}{KEPT}",
            ErrorCode.RECORDS_CONFLICT,
        )
    return found


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
    parser.add_argument("--pool", nargs="+", type=Path, default=[], metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=Path("runs/proof"))
    given = parser.parse_args(arguments)
    first = DEVELOPMENT if given.development else 0
    seeds = given.seeds or [first, first + 1, first + 2]
    if any(seed < 0 or (seed >= DEVELOPMENT) != given.development for seed in seeds):
        expected = f"{DEVELOPMENT} or more" if given.development else f"0 to {DEVELOPMENT - 1}; others: --development"
        parser.error(f"--seeds: expected {expected}, got {' '.join(map(str, seeds))}")
    if given.preview is not None and given.preview < 2:
        parser.error(f"--preview: expected 2 or more, got {given.preview}")
    if given.pool and (given.only or given.data or given.seeds):
        parser.error("--pool runs nothing, so it does not go with --seeds, --only and --data")
    empty = [str(folder) for folder in given.pool if not any(folder.glob(f"seed-*/*{KEPT}"))]
    if empty:
        parser.error(
            f"--pool: no seed-N/NAME{KEPT} in {', '.join(empty)}; expected a folder like runs/proof/{EPISODES}"
        )
    out = given.out.with_name(f"{given.out.name}-data") if given.data else given.out
    named = given.only or [name for name in files if name not in LARGE]
    wanted = {*named, *(other for name in named for other in needs(files, name))}
    chosen = {name: file for name, file in files.items() if name in wanted}
    return Study(files=chosen, seeds=seeds, out=out, preview=given.preview, data=given.data, pooled=given.pool)


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
    """Run what the command line asks for; 1 where a run did not end or cannot be read, 2 for a damaged file."""
    study = study_of(arguments)
    try:
        ended = [run_seed(study, seed, program) for seed in study.seeds if not study.pooled]
        if not study.data:
            written, whole = study.write()
            ended.append(whole)
            print(written.read_text(encoding="utf-8"))
            print(f"written to {written}, with all measures in {written.with_suffix('.json').name}")
    except UserError as error:
        print(f"proof.py: {error.labelled()}", file=sys.stderr)
        return 2
    return 0 if all(ended) else 1


if __name__ == "__main__":
    sys.exit(main())
