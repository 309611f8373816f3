"""Start, tokens per second and peak memory by the size of the model and of the rows, against a plain TRL script.

    python benchmarks/bench_sizes.py [--rounds 3] [--only 135M:2048x16 …]

The arms, and how they take turns, are those of ``bench_sft.py``; ``liger`` is ours with Liger's kernels, on a GPU. A
case is a model, the most tokens of a row, and the rows of a batch. Rows have between half as many tokens and all. The
model of 135 M parameters is the bundled one. The others have random weights and the shape of Qwen3-0.6B and -1.7B with
the tokenizer of the bundled one; what they cost does not depend on what they learn. All weights are trained, in fp32
with bf16 arithmetic where there is any, without gradient checkpointing.

The start is the time from the loaded modules to the end of the first step. Memory is that of the GPU where there is
one, and else of the process. Both are of a process with few rows; for many see ``bench_token_shards.py``.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench_sft import Arm, running, take_turns, trajectory
from machine import describe

from agentmill.trainers.model_io import model_folder
from tests.trainers.tables import write_table

BUNDLED, LARGEST = "135M", "1.5B"
SHAPES = {"0.5B": (1024, 3072, 28, 16, 8), "1.5B": (2048, 6144, 28, 16, 8)}
"""Width, width of the feed-forward layers, layers, and heads of queries and of keys."""

TURN = 27
START = 220
"""Tokens of a turn, and of what comes before the first."""

BATCHES = 4


class Case(NamedTuple):
    """A model, the most tokens of a row, and the rows of a batch."""

    size: str
    tokens: int
    batch_size: int

    def __str__(self) -> str:
        return f"{self.size}:{self.tokens}x{self.batch_size}"


ON_CPU = (Case("135M", 512, 8), Case("135M", 1024, 4), Case("135M", 2048, 2))
ON_GPU = (Case("135M", 512, 32), Case("135M", 2048, 16), Case("0.5B", 2048, 8), Case("1.5B", 2048, 4))


def make_model(size: str, folder: Path) -> None:
    """Write a model with random weights."""
    import torch
    from transformers import AutoConfig, Qwen3Config, Qwen3ForCausalLM

    width, inner, layers, heads, key_heads = SHAPES[size]
    bundled = model_folder("bundled:smollm2-135m-instruct")
    config = AutoConfig.from_pretrained(bundled)
    made = Qwen3Config(
        vocab_size=config.vocab_size,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        head_dim=128,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
        dtype="bfloat16",
    )
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(made).to(torch.bfloat16)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(bundled / name, folder / name)


def write_rows(folder: Path, case: Case) -> None:
    """Rows for so many batches."""
    chance, turns = random.Random(0), (case.tokens - START) // TURN
    number = BATCHES * case.batch_size
    write_table(folder, [trajectory(each, chance.randint(turns // 2, turns), 10, chance) for each in range(number)])


def measure(case: Case, arms: Sequence[str], rounds: int, folder: Path) -> list[Arm]:
    """The arms after so many rounds."""
    rows, model = folder / f"rows {case}", folder / case.size
    write_rows(rows, case)
    if case.size != BUNDLED and not model.exists():
        subprocess.run([sys.executable, __file__, "--make", case.size, str(model)], check=True)
    name = "bundled:smollm2-135m-instruct" if case.size == BUNDLED else str(model)
    options = [f"--model={model_folder(name)}", f"--max-length={case.tokens}", f"--batch-size={case.batch_size}"]
    with running(arms, [*options, "--rows", str(rows)], folder) as found:
        # Where a GPU sees a length for the first time, it makes room for it.
        take_turns(found, rounds, untimed=1)
    return found


def show(case: Case, arms: Sequence[Arm]) -> None:
    """A line for each arm, with its ratio to that of TRL."""
    plain = next(arm for arm in arms if arm.name == "TRL")
    for arm in arms:
        rates, gib = arm.rates("seconds"), arm.turns[-1]["gib"]
        ratio = statistics.median(one / other for one, other in zip(rates, plain.rates("seconds"), strict=True))
        print(
            f"{case!s:16}{arm.parameters / 1e6:8,.0f}{arm.tokens / arm.steps:13,.0f}  {arm.name:6}"
            f"{arm.start['seconds']:8.1f}{statistics.median(rates):11,.0f}{min(rates):9,.0f}{max(rates):9,.0f}{gib:9.2f}"
            f"{ratio:8.2f}{gib / plain.turns[-1]['gib']:8.2f}",
            flush=True,
        )


def gpu_name() -> str:
    """The first GPU; empty where there is none."""
    if not shutil.which("nvidia-smi"):
        return ""
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.partition(" (")[0]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", metavar="CASE", help="by default those for a GPU, where there is one")
    parser.add_argument("--make", nargs=2, metavar=("SIZE", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if given.make:
        make_model(given.make[0], Path(given.make[1]))
        return
    gpu = gpu_name()
    cases = {str(case): case for case in (*ON_CPU, *ON_GPU)}
    chosen = [cases[name] for name in given.only or map(str, ON_GPU if gpu else ON_CPU)]
    print(f"{describe('trl', 'transformers', 'torch')}\n{gpu or 'no GPU'}")
    print(
        f"{'case':16}{'M param':>8}{'tokens/step':>13}  {'arm':6}{'start s':>8}{'tokens/s':>11}{'least':>9}{'most':>9}"
        f"{'GiB':>9}"
        f"{'/ TRL':>8}{'/ TRL':>8}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as made:
        for case in chosen:
            # Three of the largest do not fit one GPU of 80 GB.
            arms = ("ours", "TRL", "liger") if gpu and case.size != LARGEST else ("ours", "TRL")
            show(case, measure(case, arms, given.rounds, Path(made)))


if __name__ == "__main__":
    main()
