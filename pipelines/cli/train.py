"""``agentmill train TRAINER``: a trainer in a process of its own, so that nothing here imports torch."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from agentmill.pipelines.operators.train import RECORD, Report
from agentmill.pipelines.processes.children import run_module
from agentmill.pipelines.terminal.console import answer, answers, example, say
from agentmill.schemas.config import override, read_yaml

HELP = {
    "sft": (
        "Supervised fine-tuning with TRL, on rows made by export.",
        "FILE names the table of rows, the model to start from and the folder to write",
        "max_steps=20",
    ),
    "dpo": (
        "Direct preference optimization with TRL, on pairs made by export.",
        "FILE names the table of pairs, the model to start from, the reference it is kept close to (by default the"
        " same) and the folder to write",
        "beta=0.5",
    ),
    "kto": (
        "Kahneman-Tversky optimization with TRL, on good and bad rows made by export.",
        "FILE names the table of rows, the model to start from, the reference it is kept close to (by default the"
        " same) and the folder to write",
        "beta=0.5",
    ),
    "reward": (
        "A reward model with TRL, on pairs or on conversations with values made by export.",
        "FILE names the table of rows, the model to start from and the folder to write",
        "margin=true",
    ),
}
"""What a trainer does, what its configuration names, and a change to that."""


class Trained(Report, frozen=True, kw_only=True):
    """A training, as ``training.json`` in its ``model`` has it; that file says more.

    ``read = used + dropped`` rows, and ``written`` examples made of them; ``reasons`` says why rows were dropped.
    """

    model: str = ""
    steps: int
    first_loss: float
    last_loss: float
    last_accuracy: float | None
    warnings: list[str] = []


def trainer_command(trainer: str) -> click.Command:
    """The command of one trainer."""
    does, names, change = HELP[trainer]
    file = f"configs/stages/train_{trainer}.yaml"

    @click.command(
        name=trainer,
        help=f"{does}\n\n{names}; an example is {file}. KEY=VALUE changes it.",
        epilog=example(f"agentmill train {trainer} --config {file} {change}"),
    )
    @click.option(
        "--config", metavar="FILE", required=True, type=click.Path(path_type=Path), help="What to train, and how."
    )
    @click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1)
    @answers(Trained)
    def command(config: Path, overrides: tuple[str, ...], as_json: bool) -> None:
        run_module(f"agentmill.trainers.{trainer}", ["--config", str(config), *overrides])
        model = Path(override(read_yaml(config), overrides)["output"]).expanduser()
        record = msgspec.json.decode((model / RECORD).read_bytes(), type=Trained)
        answer(msgspec.structs.replace(record, model=str(model)), show, as_json)

    return command


def show(trained: Trained) -> None:
    """Print what came of a training."""
    went = (
        f"{trained.steps} steps in {trained.seconds:,.1f} s, loss {trained.first_loss:.4f} to {trained.last_loss:.4f}"
    )
    say(f"{trained.model}: {went}")
    for note in trained.notes:
        say(note)


@click.group(commands=[trainer_command(trainer) for trainer in HELP])
def train() -> None:
    """Train a model on exported rows; a trainer also runs by itself: accelerate launch -m agentmill.trainers.sft …"""
