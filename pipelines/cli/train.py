"""``agentmill train TRAINER``: a trainer in a process of its own, so that nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pipelines.children import run_module


@click.group()
def train() -> None:
    """Train a model on exported rows. The trainers also run by themselves: accelerate launch -m trainers.sft …"""


def configured(command: Callable[..., None]) -> Any:
    """A command of the group that takes a configuration and changes to it."""
    file = click.option(
        "--config", metavar="FILE", required=True, type=click.Path(path_type=Path), help="What to train, and how."
    )
    changes = click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1)
    return train.command()(file(changes(command)))


@configured
def sft(config: Path, overrides: tuple[str, ...]) -> None:
    """Supervised fine-tuning with TRL, on rows made by export.

    FILE names the table of rows, the model to start from and the folder to write; an example is
    configs/stages/train_sft.yaml. KEY=VALUE changes it, for example max_steps=20.
    """
    run_module("trainers.sft", ["--config", str(config), *overrides])


@configured
def dpo(config: Path, overrides: tuple[str, ...]) -> None:
    """Direct preference optimization with TRL, on pairs made by export.

    FILE names the table of pairs, the model to start from, the reference it is kept close to (by default the same) and
    the folder to write; an example is configs/stages/train_dpo.yaml. KEY=VALUE changes it, for example beta=0.5.
    """
    run_module("trainers.dpo", ["--config", str(config), *overrides])


@configured
def kto(config: Path, overrides: tuple[str, ...]) -> None:
    """Kahneman-Tversky optimization with TRL, on good and bad rows made by export.

    FILE names the table of rows, the model to start from, the reference it is kept close to (by default the same) and
    the folder to write; an example is configs/stages/train_kto.yaml. KEY=VALUE changes it, for example beta=0.5.
    """
    run_module("trainers.kto", ["--config", str(config), *overrides])


@configured
def reward(config: Path, overrides: tuple[str, ...]) -> None:
    """A reward model with TRL, on pairs or on conversations with values made by export.

    FILE names the table of rows, the model to start from and the folder to write; an example is
    configs/stages/train_reward.yaml. KEY=VALUE changes it, for example margin=true.
    """
    run_module("trainers.reward", ["--config", str(config), *overrides])
