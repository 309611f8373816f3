"""A run as a recipe with two rounds leaves it, with texts that try to be more than text, and ways to damage it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.operators.evaluate import Play, settle
from agentmill.pipelines.recipes.run_folder import RECIPE, SUMMARY
from agentmill.pipelines.runs.run import read_run
from agentmill.schemas.config import dump_yaml
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.task import Difficulty, Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Dropped, Verdict
from agentmill.schemas.tables import Counts, Table, write_manifest, write_shard
from tests.builders import agent_message, instruction, outcome, seen, spec, task, trajectory, verdict
from tests.pipelines.view.example_run import ATTACK

HOSTILE_REASON = rf"$\frac{{x}}$ {ATTACK}"
"""A formula that is none, beside the attacks."""

ROUNDS = 2
BODY: list[dict[str, Any]] = [
    {"operator": "sample", "policy": "actor@last", "tasks": "tasks", "environments": "worlds", "as": "explored"},
    {"operator": "check_outcome", "of": "explored", "tasks": "tasks", "environments": "worlds", "as": "verdicts"},
    {"operator": "sft", "from": "explored", "verdicts": "verdicts", "as": "rows"},
    {"operator": "train_sft", "rows": "rows", "model": "actor@last", "as": "tuned"},
    {
        "operator": "evaluate",
        "models": {"base": "actor@base", "tuned": "actor@last"},
        "tasks": "tasks",
        "environments": "worlds",
        "splits": ["held_out_tasks"],
        "as": "evaluation",
    },
]
STEPS: list[dict[str, Any]] = [
    {"operator": "spec_env", "family": "pddl", "backend": "procedural", "n": 2, "as": "worlds"},
    {"operator": "propose", "of": "worlds", "n": 3, "as": "tasks"},
    {"operator": "iterate", "rounds": ROUNDS, "steps": BODY},
]
MODELS = {"actor": {"policy": "vllm", "model": "bundled:smollm2-135m-instruct"}}


def write_recipe(root: Path, steps: Sequence[Mapping[str, Any]], **changes: Any) -> Path:
    """The recipe of a run, in its folder ``root``."""
    root.mkdir(parents=True, exist_ok=True)
    recipe = {"name": "small", "seed": 7, "run_dir": str(root), "models": MODELS, **changes, "steps": list(steps)}
    (root / RECIPE).write_text(dump_yaml(recipe), encoding="utf-8")
    return root


def end(root: Path) -> None:
    """Leave the summary that a run leaves at its end."""
    (root / SUMMARY).write_bytes(msgspec.json.encode(read_run(root).summary()))


def write_table(folder: Path, rows: Sequence[Record], dropped: Sequence[Dropped] = (), **metrics: float) -> Table:
    """A table with dead letters and figures; without ``rows`` it is one of tasks, and empty."""
    table = seed_table(folder, rows or [task()])
    files = table.manifest.files if rows else [write_shard(table.shards()[0], [], Task)]
    letters = [write_shard(folder / "dropped/part-00000.parquet", dropped, Dropped)] if dropped else []
    manifest = msgspec.structs.replace(
        table.manifest,
        files=files,
        counts=Counts(read=len(rows) + len(dropped), used=len(rows), dropped=len(dropped), written=len(rows)),
        reasons=dict(Counter(letter.reason for letter in dropped)),
        dropped_files=letters,
        seconds=1.5,
        metrics=metrics,
    )
    write_manifest(folder, manifest)
    return Table.open(folder)


def run_of(trajectory_id: str, won: bool, turns: int, environment_id: str = "env1") -> Trajectory:
    """A trajectory of so many turns."""
    said_and_seen = [
        each for turn in range(1, turns + 1) for each in (agent_message("look", turn), seen("A room.", turn))
    ]
    return trajectory(
        trajectory_id,
        content=[instruction(), *said_and_seen],
        outcome=outcome("success" if won else "failure"),
        environment_id=environment_id,
        task_id=trajectory_id,
    )


def letter(number: int, reason: str, **fields: Any) -> Dropped:
    """A dead letter."""
    return Dropped(input_id=f"i{number}", stage="explored", reason=reason, blamed="policy", **fields)


def write_run(root: Path) -> Path:
    """The whole run: of two worlds, five tasks, and four episodes in each round."""
    write_recipe(root, STEPS)
    write_table(root / "worlds", [spec(), spec("env-hostile", name=ATTACK)])
    levels = [Difficulty(level=level, plan_length=plan) for level, plan in ((0.0, 1), (0.31, 4), (1.0, 9))]
    known = [task(f"task{n}", difficulty=each) for n, each in enumerate(levels)]
    write_table(root / "tasks", [*known, task("task3"), task("task4")])
    for number in range(1, ROUNDS + 1):
        write_round(root / f"round-{number:02d}", number)
    end(root)
    return root


def write_round(root: Path, number: int) -> None:
    """One round: its first has half of the successes of its second."""
    runs = [run_of(f"r{number}-{n}", n < 2 * number - 1, 1 + n, "env1" if n else "env-hostile") for n in range(4)]
    letters = [
        letter(0, HOSTILE_REASON, detail=ATTACK, input={ATTACK: "x" * 50_000}),
        *(letter(n, "unreachable", detail=f"try {n}") for n in range(1, 6)),
    ]
    figures = {"prompt_tokens": 900.0, "completion_tokens": 100.0, "lost_prompt_tokens": 30.0, "cost_usd": 0.25}
    write_table(root / "explored", runs, letters, **figures, success=1.0)
    write_table(root / "verdicts", [verdict(each.trajectory_id, each.outcome.status == "success") for each in runs])
    write_table(root / "rows", known_rows(runs))
    training = {"counts": {"read": 4, "used": 3, "dropped": 1, "written": 3}, "reasons": {"too_long": 1}}
    (root / "tuned").mkdir(parents=True)
    (root / "tuned/training.json").write_bytes(
        msgspec.json.encode({**training, "seconds": 60.5, "steps": 10, "tokens": 4_000, "first_loss": 2.5})
    )
    compare(root / "evaluation", {"base": 0, "tuned": number})


def known_rows(runs: Sequence[Trajectory]) -> list[Verdict]:
    """Rows of any record; a report does not look into those for training."""
    return [verdict(each.trajectory_id, name="row") for each in runs]


def compare(folder: Path, successes: Mapping[str, int]) -> None:
    """An evaluation of models on three tasks, made as ``evaluate`` makes it."""
    tables = {}
    for model, won in successes.items():
        place = folder / "held_out_tasks" / model
        runs = [run_of(f"{model}{n}", n < won, 2) for n in range(3)]
        runs = [msgspec.structs.replace(each, task_id=f"held{n}") for n, each in enumerate(runs)]
        verdicts = [verdict(each.trajectory_id, each.outcome.status == "success") for each in runs]
        tables[Play("held_out_tasks", model, model, False)] = (
            write_table(place / "trajectories", runs, completion_tokens=40.0),
            write_table(place / "verdicts", verdicts),
        )
    settle(folder, tables, list(successes))
