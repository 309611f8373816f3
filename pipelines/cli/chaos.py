"""``agentmill chaos RECIPE``."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from agentmill.pipelines.chaos.device import Device
from agentmill.pipelines.chaos.experiment import Experiment, Settings, read_record
from agentmill.pipelines.chaos.fault_run import Tried
from agentmill.pipelines.chaos.faults import FAULTS
from agentmill.pipelines.cli.run import OVERRIDES
from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.plan import make_plan
from agentmill.pipelines.recipes.precheck import check_run
from agentmill.pipelines.recipes.run_folder import check_is_folder
from agentmill.pipelines.terminal.console import answer, answers, example, log, say, table
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError

FAILED = 1
RESULTS = "faults.json"


class Chaos(msgspec.Struct, frozen=True, kw_only=True):
    """What ``agentmill chaos`` tells: every fault that was tried, and the kinds that could not be."""

    recipe: str
    held: int
    tried: list[Tried]
    untried: dict[str, str]


@click.command(
    epilog=example(
        "agentmill chaos configs/line.yaml --faults 30 runner.name=multi_processing runner.workers=2",
        "agentmill chaos configs/line.yaml --fault kill_launcher --fault fill_device",
    )
)
@click.argument("recipe", metavar="RECIPE", type=click.Path(path_type=Path))
@OVERRIDES
@click.option("--faults", type=click.IntRange(min=1), default=30, show_default=True, help="How many faults to try.")
@click.option("--fault", "kinds", type=click.Choice(list(FAULTS)), multiple=True, help="Only faults of this kind.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("runs/chaos"), show_default=True, help="Where runs lie."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed for when and in which order faults come.")
@click.option(
    "--limit", type=float, default=600.0, show_default=True, help="Seconds that the command may take at a time."
)
@click.option(
    "--device-mb", type=click.IntRange(min=8), default=512, show_default=True, help="Size of the small device."
)
@answers(Chaos)
def chaos(
    recipe: Path,
    overrides: tuple[str, ...],
    faults: int,
    kinds: tuple[str, ...],
    out: Path,
    seed: int,
    limit: float,
    device_mb: int,
    as_json: bool,
) -> int:
    """Run a recipe again and again with faults injected, and compare each run with one without faults.

    It kills, pauses and starves the processes of the run, a fault in each step, and starts the same command until it
    ends. Rows, weights and files must be those of the baseline run, no process may be left, every exit code must be
    right and no traceback printed. What went wrong stays in --out. The same command continues an experiment that was
    killed, and with more --faults one that has ended. Exit code 1 if a fault was not survived.
    """
    check_is_folder(out, "--out")
    plan = make_plan(read_recipe(recipe, [*overrides, f"run_dir={out / 'baseline'}"]))
    check_run(plan)
    if out.exists() and any(out.iterdir()) and read_record(out) is None:
        raise UserError(f"--out {out} is not empty; give a new folder, or delete it", ErrorCode.OUTPUT_EXISTS)
    wanted = kinds or tuple(FAULTS)
    untried = untried_kinds(wanted, kinds, out, device_mb)
    chosen = [kind for kind in wanted if kind not in untried]
    settings = Settings(
        folder=out.absolute(),
        faults=faults,
        kinds=chosen,
        seed=seed,
        limit_s=limit,
        device_mb=device_mb if any(FAULTS[kind].needs_device for kind in chosen) else None,
    )
    tried = Experiment(plan, [str(recipe), *overrides], settings, report, log).run()
    untried |= {kind: "it applies to no step" for kind in chosen if kind not in {each.fault for each in tried}}
    result = Chaos(recipe=str(recipe), held=sum(not each.wrong for each in tried), tried=tried, untried=untried)
    (out / RESULTS).write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
    answer(result, show, as_json)
    return FAILED if result.held < len(tried) else 0


def untried_kinds(wanted: tuple[str, ...], asked: tuple[str, ...], out: Path, device_mb: int) -> dict[str, str]:
    """The kinds that this machine does not allow, and why. Raises ``UserError`` if the user ``asked`` for one."""
    if not any(FAULTS[kind].needs_device for kind in wanted):
        return {}
    try:
        with Device(out.absolute() / "probe", device_mb):
            pass
    except UserError as error:
        if any(FAULTS[kind].needs_device for kind in asked):
            raise
        return {kind: str(error).splitlines()[0] for kind in wanted if FAULTS[kind].needs_device}
    finally:
        if (out / "probe").is_dir():
            (out / "probe").rmdir()
    return {}


def report(tried: Tried) -> None:
    """Say how a fault went, as a line of progress."""
    outcome = "; ".join(tried.wrong) if tried.wrong else "held"
    log(f"run {tried.run}: {tried.fault} in {tried.step}: exit code {tried.exit}: {outcome}")


def show(result: Chaos) -> None:
    """Print a row for each kind of fault and a column for each operator: how many were survived, of how many."""
    operators = list(dict.fromkeys(each.operator for each in result.tried))
    kinds = [kind for kind in FAULTS if any(each.fault == kind for each in result.tried)]
    rows = [[kind, *(share(result.tried, kind, operator) for operator in operators)] for kind in kinds]
    table(f"faults survived, of {result.recipe}", ["fault", *operators], rows)
    for kind, why in result.untried.items():
        say(f"not tried: {kind}: {why}")
    say(f"{result.held} of {len(result.tried)} faults were survived")


def share(tried: list[Tried], kind: str, operator: str) -> str:
    """``3/3``: of so many faults of a kind in steps of an operator so many were survived."""
    found = [each for each in tried if (each.fault, each.operator) == (kind, operator)]
    return f"{sum(not each.wrong for each in found)}/{len(found)}" if found else "-"
