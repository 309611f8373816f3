"""How good the estimates are that a training gives before its first step: estimated against real time and memory.

    python benchmarks/bench_training_estimate.py [--model FOLDER] [--steps 200] [--repeat 2] [--shapes short long …]

Each shape is trained as a user would, in a process of its own, and the record of the training has both figures. The
model is a small one with random weights unless another is named. A ratio is the estimate divided by what it was; the
target is 0.8 to 1.2. Time is that of the clock, so what else the machine does in between counts.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from machine import describe

from agentmill.schemas.config import dump_yaml
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.rows import PreferenceRow, SftRow
from tests.model import tiny_model
from tests.trainers.tables import pair, turns, write_table

TARGET = (0.8, 1.2)


class Shape(NamedTuple):
    """A kind of training: its trainer, its rows, and its settings."""

    trainer: str
    rows: Callable[[random.Random], list[Record]]
    settings: dict[str, Any]


def conversations(shortest: int, longest: int) -> Callable[[random.Random], list[Record]]:
    """Rows of so many turns."""
    return lambda chance: [turns(chance.randint(shortest, longest), f"r{number}") for number in range(400)]


SHAPES = {
    "short": Shape("sft", conversations(1, 4), {"batch_size": 8}),
    "long": Shape("sft", conversations(5, 60), {"batch_size": 2}),
    "packing": Shape("sft", conversations(1, 4), {"batch_size": 1, "packing": True, "max_length": 512}),
    "lora": Shape("sft", conversations(5, 60), {"batch_size": 2, "lora": {"rank": 8}}),
    "dpo": Shape("dpo", lambda chance: [pair(f"p{n}", chance.randint(1, 12)) for n in range(400)], {"batch_size": 2}),
}

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16": {"weights": "bf16"},
    "8bit": {"optimizer": "adamw_8bit"},
    "paged": {"optimizer": "paged_adamw_8bit"},
    "recompute": {"gradient_checkpointing": True},
    "liger": {"liger": True},
    "flex": {"attention": "flex_attention"},
    "lora16": {"lora": {"rank": 16}},
    "qlora": {"lora": {"rank": 16, "quantize": "4bit"}},
}
ON_GPU = {name: Shape("sft", conversations(5, 60), {"batch_size": 8, **more}) for name, more in OPTIONS.items()}
"""What is for a GPU, on the same rows; run where it is named."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--shapes", nargs="+", choices=[*SHAPES, *ON_GPU], default=list(SHAPES))
    given = parser.parse_args()
    print(describe("torch", "transformers", "trl"))
    print("shape      estimated      real  ratio | estimated      real  ratio", flush=True)
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        model = given.model or small_model(here / "model")
        for _ in range(given.repeat):
            for name in given.shapes:
                found = trained(here / name, {**SHAPES, **ON_GPU}[name], model, given.steps)
                pairs = [(found[f"estimated_{what}"], found[what]) for what in ("seconds", "memory_gib")]
                ratios += [estimated / real for estimated, real in pairs]
                (time, took), (memory, held) = pairs
                print(
                    f"{name:9} {time:9.0f} s {took:7.0f} s {time / took:6.2f} |"
                    f" {memory:5.2f} GiB {held:5.2f} GiB {memory / held:6.2f}",
                    flush=True,
                )
    good = sum(TARGET[0] <= ratio <= TARGET[1] for ratio in ratios)
    print(f"{good} of {len(ratios)} ratios are from {TARGET[0]} to {TARGET[1]}")


def small_model(folder: Path) -> Path:
    """A model of 5 million random weights with a context of 4,096 tokens."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shutil.copytree(tiny_model(), folder, ignore=shutil.ignore_patterns("adapter"))
    size = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6, "max_position_embeddings": 4096}
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, **size)).save_pretrained(folder)
    return folder


def trained(folder: Path, shape: Shape, model: Path, steps: int) -> dict[str, float]:
    """The estimate in the record of a training."""
    shutil.rmtree(folder, ignore_errors=True)
    records: Sequence[Record] = shape.rows(random.Random(0))
    kind = PreferenceRow if shape.trainer == "dpo" else SftRow
    settings = {
        "rows": str(write_table(folder / "rows", records, kind)),
        "model": str(model),
        "output": str(folder / "tuned"),
        "max_steps": steps,
        "max_length": 4096,
        "log_steps": 10,
        **shape.settings,
    }
    config = folder / "train.yaml"
    config.write_text(dump_yaml(settings))
    command = [sys.executable, "-m", f"agentmill.trainers.{shape.trainer}", "--config", str(config)]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        sys.exit(ended.stderr)
    found: dict[str, float] = json.loads((folder / "tuned" / "training.json").read_bytes())["estimate"]
    if not found:
        sys.exit(f"{steps} steps are too few for an estimate; set more --steps")
    return found


if __name__ == "__main__":
    main()
