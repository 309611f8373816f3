"""``agentmill train TRAINER``: a trainer in a process of its own, so that nothing here imports torch."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.children import run_module


@click.group()
def train() -> None:
    """Train a model on exported rows. The trainers also run by themselves: accelerate launch -m trainers.sft …"""


@train.command()
@click.option(
    "--config", metavar="FILE", required=True, type=click.Path(path_type=Path), help="What to train, and how."
)
@click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1)
def sft(config: Path, overrides: tuple[str, ...]) -> None:
    """Supervised fine-tuning with TRL, on rows made by export.

    FILE names the table of rows, the model to start from and the folder to write; an example is
    configs/stages/train_sft.yaml. KEY=VALUE changes it, for example max_steps=20.
    """
    run_module("trainers.sft", ["--config", str(config), *overrides])
