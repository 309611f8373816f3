"""``first_error`` against errors that ``inject`` made: how often the decisive error is found, by family and kind.

    PYTHONPATH=. .venv/bin/python benchmarks/bench_first_error.py [--environments 40] [--families pddl toolbox codegym]

Procedural environments are proposed and admitted, and tasks of them; an expert solves each, and ``--k`` errors are
injected into each success, after which the recorded turns follow. What is then a failure is to be found: an expert
corrects each turn by each edit, and the earliest correction that succeeds names the error. The truth is the turn that
was changed. For ``pddl`` the same is done with successes of an agent that takes every fifth action by chance, so that
what the expert would do is not what was done; and with an expert that goes on after each correction (``search: last``),
for comparison, which finds only errors that cannot be undone.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from machine import describe

from agentmill.schemas.records.trajectory import AnyAction, MessageAction
from agentmill.synthesis.policies import POLICIES
from agentmill.synthesis.policies.policy import Conversation, PolicySettings, Turn
from agentmill.synthesis.policies.scripted import ExpertPolicy
from agentmill.synthesis.strategies.inject import INJECTED
from agentmill.synthesis.strategies.wrong_turns import ERROR_KINDS
from tests.pipelines.engine.stages import rows_of
from tests.pipelines.operators.steps import model, run

TARGET = 0.95
ON = {"tasks": "tasks", "environments": "environments"}
PLANS = {"pddl": [3, 10], "toolbox": [2, 8], "codegym": [3, 12]}
CHANCE = 0.2
"""How often the careless agent takes an admissible action by chance."""


class Careless(ExpertPolicy):
    """The expert, but for some actions that it takes by chance; by the seed of the turn."""

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__(settings)
        self.name = "careless"

    async def act(self, conversation: Conversation) -> Turn:
        """An action of the plan, or any."""
        chance, environment = random.Random(conversation.seed), conversation.environment
        assert environment is not None
        if chance.random() >= CHANCE:
            return await super().act(conversation)
        call = chance.choice(environment.admissible())
        action: AnyAction = call if conversation.tools else MessageAction(content=environment.command(call))
        return Turn(actions=[action])


def tasks_of(family: str, environments: int, folder: Path) -> None:
    """Admitted environments with their tasks."""
    run(folder, "spec_env", "proposed", family=family, backend="procedural", n=environments)
    run(folder, "admit", "environments", of="proposed")
    run(folder, "propose", "drafts", of="environments", n=2, plan_length=PLANS[family])
    run(folder, "admit", "tasks", of="drafts", environments="environments")


def found(folder: Path, name: str, k: int, search: str = "earliest") -> Counter[tuple[str, str]]:
    """Inject errors into the successes ``name`` and search them; counts by kind: injected, flipped, found …"""
    bad = f"{name}_bad"
    if not (folder / bad).exists():
        run(folder, "inject", bad, of=name, k=k, **ON)
    experts = {"actor": model("expert"), "teacher": model("expert")}
    how: dict[str, Any] = (
        {"then": "recorded", "edits": ["replace", "insert", "remove"], "distinct": True} if search == "earliest" else {}
    )
    fixed, located = f"{bad}_{search}", f"{bad}_{search}_found"
    run(folder, "check_outcome", f"{fixed}_verdicts", of=bad, **ON)
    failures = {"verdicts": f"{fixed}_verdicts", "where": "failure"}
    run(folder, "branch", fixed, experts, policy="p", teacher="t", of=bad, **how, **failures, **ON)
    run(folder, "first_error", located, of=bad, by="counterfactual", branches=fixed, search=search)
    truth = {row.trajectory_id: row.extra[INJECTED] for row in rows_of(folder / bad)}
    flips = {(row.parent_id, row.branch_turn) for row in rows_of(folder / fixed) if row.outcome.status == "success"}
    counts: Counter[tuple[str, str]] = Counter()
    for verdict in rows_of(folder / located):
        kind, turn = truth[verdict.trajectory_id]["kind"], truth[verdict.trajectory_id]["turn"]
        counts[kind, "injected"] += 1
        counts[kind, "flipped"] += verdict.reason != "success"
        counts[kind, "found"] += verdict.evidence.get("turn") == turn
        counts[kind, "among"] += verdict.reason != "success" and (verdict.trajectory_id, turn) in flips
        counts[kind, "unknown"] += verdict.status != "scored" and verdict.reason != "success"
    return counts


def report(title: str, counts: Counter[tuple[str, str]]) -> float:
    """Print a table, and return the share that was found of all that flipped."""
    print(f"  {title}")
    totals: Counter[str] = Counter()
    for kind in ERROR_KINDS:
        row = {column: counts[kind, column] for column in ("injected", "flipped", "found", "among", "unknown")}
        totals.update(row)
        if row["injected"]:
            print(f"    {kind:13}{line(row)}")
    print(f"    {'all':13}{line(totals)}", flush=True)
    return totals["found"] / max(1, totals["flipped"])


def line(row: dict[str, int] | Counter[str]) -> str:
    """The figures of a row."""
    share = f"{row['found'] / row['flipped']:.1%}" if row["flipped"] else "-"
    return (
        f"{row['injected']:6} injected {row['flipped']:6} flip the outcome {row['found']:6} found ({share})"
        f" {row['among']:6} among those whose correction succeeds {row['unknown']:4} unknown"
    )


def main() -> None:
    """Measure, and exit with 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=int, default=40)
    parser.add_argument("--k", type=int, default=6)
    parser.add_argument("--families", nargs="+", default=list(PLANS), choices=list(PLANS))
    given = parser.parse_args()
    print(describe())
    shares = []
    POLICIES._entries["careless"] = "bench_first_error:Careless"
    for family in given.families:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            tasks_of(family, given.environments, folder)
            run(folder, "expert", "shown", {"actor": model("expert")}, policy="p", **ON)
            shares.append(report(f"{family}, demonstrations of the expert", found(folder, "shown", given.k)))
            if family == "pddl":
                run(folder, "sample", "careless", {"actor": model("careless")}, policy="p", k=2, **ON)
                report("pddl, a careless agent", found(folder, "careless", given.k))
                report("pddl, the expert goes on (search: last)", found(folder, "shown", given.k, "last"))
        print(f"  {time.monotonic() - began:.0f} s", flush=True)
    print(f"found by family: {', '.join(f'{share:.1%}' for share in shares)} (target {TARGET:.0%} each)")
    sys.exit(any(share < TARGET for share in shares))


if __name__ == "__main__":
    main()
