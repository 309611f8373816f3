"""Tokens per second of our supervised fine-tuning against a plain TRL script, and with packing against without.

The script is ``SFTTrainer`` with ``assistant_only_loss``. Both go once over the same rows, which are as long as those
of the quickstart, with the same batch size and precision, loss on the same tokens. Packing is tried on short rows, with
the same batch size, which counts packs where rows are packed: a step then holds more tokens. With ``batch_size`` 1 it
is what fits where memory holds one sequence of ``max_length``; the larger the batch, the less there is to gain, since
rows of like length share a batch.

Tokens are those of the rows, without padding. Each arm has a process of its own and makes a step that is not timed;
then the two that are compared take turns step by step, so that what else the machine does meets both. A ratio is the
median over the rounds; that of processor time says more where the machine is not ours alone.

Last, each arm makes its first step with ``--many`` rows, one after the other. Its time is without imports.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from machine import describe

from agentmill.schemas.chat import to_template
from agentmill.schemas.records.rows import Message, SftRow
from agentmill.trainers.model_io import model_folder
from tests.trainers.tables import write_table


class Comparison(NamedTuple):
    """Two arms, the rows and the batch size that they share, and what the ratio of the first to the second should be.

    ``least`` is ``None`` where there is no target.
    """

    arms: tuple[str, str]
    rows: str
    batch_size: int
    least: float | None


COMPARISONS = (
    Comparison(("ours", "TRL"), "quickstart", 4, 1.0),
    Comparison(("packed", "not packed"), "short", 1, 1.5),
    Comparison(("packed", "not packed"), "short", 4, None),
)
SIZES = {"quickstart": (12, 7, 10), "short": (24, 2, 2)}
"""The number of rows, and the most turns and facts of one."""
RULES = """Robots carry crates between rooms. Each holds one. A room must be lit to load.
A crate must be sealed to move.
Commands: drive X from Y to Z; let X load Y; let X unload Y; light X; darken X; seal X."""
PLACES = ["attic", "cellar", "hall", "kitchen", "library", "studio"]
CRATES = ["apples", "bolts", "candles", "dishes", "engines"]


def fact(chance: random.Random) -> str:
    """What is the case."""
    return f"the crate of {chance.choice(CRATES)} is in the {chance.choice(PLACES)}"


def trajectory(index: int, n_turns: int, n_facts: int, chance: random.Random) -> SftRow:
    """A plan in so many turns, in a world with so many facts; few facts need few rules."""
    rules = RULES if n_facts > 2 else "Robots carry crates."
    world = "; ".join(fact(chance) for _ in range(n_facts))
    messages = [
        Message(role="system", content=f"{rules}\nReply with one command and nothing else."),
        Message(role="user", content=f"Goal: {fact(chance)}.\nNow {world}."),
    ]
    for _ in range(n_turns):
        one, other = chance.sample(PLACES, 2)
        messages.append(Message(role="assistant", content=f"drive robot from {one} to {other}", train=True))
        messages.append(Message(role="user", content=f"The robot is in the {other}."))
    return SftRow(
        row_id=f"row{index}",
        trajectory_id="t",
        view="generated",
        view_parameters={},
        messages=messages[:-1],
        tools=None,
    )


def write_rows(folder: Path, many: int) -> None:
    for name, (number, turns, facts) in {**SIZES, "many": (many, *SIZES["quickstart"][1:])}.items():
        if not number:
            continue
        chance = random.Random(0)
        rows = [
            trajectory(index, chance.randint(1, turns), chance.randint(1 + facts // 3, facts), chance)
            for index in range(number)
        ]
        write_table(folder / name, rows)


def own_trainer(given: argparse.Namespace, rows_folder: Path) -> Any:
    """Our trainer as ``agentmill.trainers.sft`` makes it."""
    from agentmill.trainers.command import SftSettings
    from agentmill.trainers.data import open_rows, read_rows
    from agentmill.trainers.model_io import load_model, model_folder
    from agentmill.trainers.requirements import choose_precision
    from agentmill.trainers.run_dir import set_up_training
    from agentmill.trainers.sft import sequences, sft_method
    from agentmill.trainers.tokenization import Encoded
    from agentmill.trainers.trl_trainer import make_trainer, trl_arguments

    settings = SftSettings(
        rows=str(rows_folder),
        model=given.model,
        output=str(rows_folder.with_name(f"{given.arm} model")),
        batch_size=given.batch_size,
        max_length=given.max_length,
        packing=given.arm == "packed",
        liger=given.arm == "liger",
        save_steps=None,
    )
    start = set_up_training("sft", settings, open_rows(settings.rows, SftRow, "sft"), model_folder(settings.model))
    assert start is not None
    encode = partial(sequences, tokenizer=start.tokenizer, long_rows="window", max_length=start.max_length)
    rows = read_rows(start, settings, encode, Encoded)
    method = sft_method(settings, rows, start)
    precision = choose_precision("auto")
    arguments = trl_arguments(settings, start, method, precision)
    return make_trainer(settings, start, method, arguments, (load_model(start.base, settings, precision), None))


def plain_trainer(given: argparse.Namespace, rows_folder: Path) -> Any:
    """TRL's trainer as its documentation says."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, PrinterCallback
    from trl import SFTConfig, SFTTrainer

    from agentmill.trainers.data import open_rows
    from agentmill.trainers.model_io import load_tokenizer, model_folder
    from agentmill.trainers.requirements import choose_precision

    base = model_folder(given.model)
    rows = open_rows(str(rows_folder), SftRow, "sft").rows()
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        args=SFTConfig(
            output_dir=str(rows_folder.with_name("plain model")),
            assistant_only_loss=True,
            num_train_epochs=1,
            per_device_train_batch_size=given.batch_size,
            max_length=given.max_length,
            bf16=choose_precision("auto") == "bf16",
            use_cpu=not torch.cuda.is_available(),
            dataloader_pin_memory=torch.cuda.is_available(),
            gradient_checkpointing=False,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list([{"messages": to_template(row.messages)} for row in rows]),
        processing_class=load_tokenizer(base),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def serve(given: argparse.Namespace, folder: Path) -> None:
    """Say what one time over the rows is, then make a step for every line that comes in and say what it took."""
    import trl.trainer.sft_trainer  # noqa: F401  # What both import is not timed.
    from transformers import TrainerCallback
    from transformers.utils import logging

    from agentmill.trainers.peak_memory import peak_bytes, synchronize

    class Clock(TrainerCallback):
        """Waits before each step, and measures it."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if not sys.stdin.readline():
                raise SystemExit
            self.began, self.began_work = synchronize(), time.process_time()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            taken = {"seconds": synchronize() - self.began, "work": time.process_time() - self.began_work}
            print(json.dumps({**taken, "gib": peak_bytes() / 2**30}), flush=True)

    logging.set_verbosity_error()
    make = plain_trainer if given.arm == "TRL" else own_trainer
    begun = synchronize()
    trainer = make(given, folder)
    whole, trainer.args.max_steps = trainer.args.max_steps, 1
    trainer.train()
    print(json.dumps({"seconds": synchronize() - begun, "gib": peak_bytes() / 2**30}), flush=True)
    trainer.args.max_steps = whole
    loaded = [int(batch["attention_mask"].sum()) for batch in trainer.get_train_dataloader()]
    trainer.add_callback(Clock())
    parameters = sum(each.numel() for each in trainer.model.parameters())
    print(json.dumps({"tokens": sum(loaded), "steps": len(loaded), "parameters": parameters}), flush=True)
    while True:
        trainer.train()


class Arm:
    """A process that trains; ``turns`` are the answers of ``serve`` to the steps so far."""

    def __init__(self, name: str, options: Sequence[str], stderr: IO[str]) -> None:
        command = [sys.executable, __file__, "--arm", name, *options]
        self.name, self.stderr = name, stderr
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
        )
        self.turns: list[dict[str, float]] = []

    def started(self) -> dict[str, float]:
        """What it took until the end of its first step."""
        return self._heard()

    def ready(self) -> None:
        """Wait until it can begin, and note what its start took and what one time over the rows is."""
        self.start = self.started()
        plan = self._heard()
        self.tokens, self.steps, self.parameters = plan["tokens"], int(plan["steps"]), plan["parameters"]

    def step(self) -> None:
        """Let it make one more."""
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        self.turns.append(self._heard())

    def rates(self, unit: str) -> list[float]:
        """Tokens per ``seconds`` or ``work``, by round."""
        rounds = [self.turns[start : start + self.steps] for start in range(0, len(self.turns), self.steps)]
        return [self.tokens / sum(turn[unit] for turn in each) for each in rounds]

    def _heard(self) -> dict[str, float]:
        """The next answer. Raises ``RuntimeError`` with what the processes printed if this one is no more."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.stderr.seek(0)
            raise RuntimeError(self.stderr.read()[-4000:])
        return dict(json.loads(line))


@contextmanager
def running(names: Sequence[str], options: Sequence[str], folder: Path) -> Iterator[list[Arm]]:
    """Arms of these names, until the context ends."""
    with (folder / "stderr").open("w+") as stderr:
        arms = [Arm(name, options, stderr) for name in names]
        try:
            yield arms
        finally:
            for arm in arms:
                arm.process.kill()
                arm.process.wait()


def measure(given: argparse.Namespace, compared: Comparison, folder: Path) -> list[Arm]:
    """Both arms, after so many rounds; the one that has made the smaller part of its steps is next."""
    options = [f"--model={given.model}", f"--max-length={given.max_length}", f"--batch-size={compared.batch_size}"]
    with running(compared.arms, [*options, "--rows", str(folder / compared.rows)], folder) as arms:
        take_turns(arms, given.rounds)
    return arms


def take_turns(arms: Sequence[Arm], rounds: int, untimed: int = 0) -> None:
    """Let each go so often over the rows; of these rounds the first are ``untimed``."""
    for arm in arms:
        arm.ready()
    for _ in range((untimed + rounds) * sum(arm.steps for arm in arms)):
        min(arms, key=lambda arm: len(arm.turns) / arm.steps).step()
    for arm in arms:
        del arm.turns[: untimed * arm.steps]


def show_start(given: argparse.Namespace, folder: Path) -> None:
    """What each arm needs until the end of its first step, with many rows."""
    found = []
    for name in ("ours", "TRL"):
        options = [f"--model={given.model}", f"--max-length={given.max_length}", "--batch-size=4"]
        with running([name], [*options, "--rows", str(folder / "many")], folder) as (arm,):
            found.append(arm.started())
    ours, other = found
    print(
        f"first step with {given.many:,} rows: ours {ours['seconds']:.1f} s and {ours['gib']:.2f} GiB,"
        f" TRL {other['seconds']:.1f} s and {other['gib']:.2f} GiB; {other['seconds'] / ours['seconds']:.2f} times"
        " ours",
        flush=True,
    )


def show(compared: Comparison, arms: Sequence[Arm]) -> None:
    """A line for each of two arms, and what the first does against the second."""
    for arm in arms:
        rates, gib = arm.rates("seconds"), arm.turns[-1]["gib"]
        print(
            f"{arm.name:12}{compared.rows:12}{compared.batch_size:6}{arm.steps:7}{arm.tokens / arm.steps:13,.0f}"
            f"{statistics.median(rates):10,.0f}{min(rates):7,.0f}{max(rates):7,.0f}{gib:10.2f}"
        )
    clock, work = (
        [one / other for one, other in zip(*(arm.rates(unit) for arm in arms), strict=True)]
        for unit in ("seconds", "work")
    )
    ratio, least = statistics.median(clock), compared.least
    met = "" if least is None else f"; target {least}: {'met' if ratio >= least else 'MISSED'}"
    print(
        f"{' / '.join(compared.arms)}: {ratio:.2f} ({min(clock):.2f} to {max(clock):.2f}),"
        f" in processor time {statistics.median(work):.2f}{met}",
        flush=True,
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="bundled:smollm2-135m-instruct", help="model folder or bundled:NAME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--many", type=int, default=20_000, help="rows with which the start is measured; 0: it is not")
    for hidden in ("--arm", "--rows", "--batch-size"):
        parser.add_argument(hidden, type=int if hidden == "--batch-size" else str, help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if given.arm:
        serve(given, Path(given.rows))
        return
    threads = os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))
    print(f"{describe('trl', 'transformers', 'torch')}\n{threads} threads each")
    given.model = str(model_folder(given.model))
    print(
        f"{'arm':12}{'rows':12}{'batch':>6}{'steps':>7}{'tokens/step':>13}{'tokens/s':>10}{'least':>7}{'most':>7}"
        f"{'peak GiB':>10}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as made:
        write_rows(Path(made), given.many)
        for compared in COMPARISONS:
            show(compared, measure(given, compared, Path(made)))
        if given.many:
            show_start(given, Path(made))


if __name__ == "__main__":
    main()
