"""Tokens per second of our supervised fine-tuning against a plain TRL script, and with packing against without.

The script is ``SFTTrainer`` with ``assistant_only_loss``. Both go once over the same rows, which are as long as those
of the quickstart, with the same batch size and precision, loss on the same tokens. Packing is tried on short rows, with
the same batch size, which counts packs where rows are packed: a step then holds more tokens. With ``batch_size`` 1 it
is what fits where memory holds one sequence of ``max_length``; the larger the batch, the less there is to gain, since
rows of like length share a batch. Tokens are those of the rows, without padding. Each arm has a process of its own and
makes a step that is not timed; then the two that are compared take turns, so that what else the machine does meets
both. A ratio is the median over the rounds; that of processor time says more where the machine is not ours alone.
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
from pathlib import Path
from typing import IO, Any, NamedTuple

from machine import describe

from schemas.chat import to_template
from schemas.rows import Message, SftRow
from tests.trainers.tables import write_table
from trainers.models import model_folder


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


def write_rows(folder: Path) -> None:
    for name, (number, turns, facts) in SIZES.items():
        chance = random.Random(0)
        rows = [
            trajectory(index, chance.randint(1, turns), chance.randint(1 + facts // 3, facts), chance)
            for index in range(number)
        ]
        write_table(folder / name, rows)


def own_trainer(given: argparse.Namespace, rows_folder: Path) -> Any:
    """Our trainer as ``trainers.sft`` makes it."""
    from trainers.fit import choose_precision, load_model, make_trainer, trl_arguments
    from trainers.loss import supervised
    from trainers.models import model_folder
    from trainers.rows import load_rows, open_rows
    from trainers.settings import SftSettings
    from trainers.sft import sequences
    from trainers.start import begin

    settings = SftSettings(
        rows=str(rows_folder),
        model=given.model,
        output=str(rows_folder.with_name(f"{given.arm} model")),
        batch_size=given.batch_size,
        max_length=given.max_length,
        packing=given.arm == "packed",
        save_steps=None,
    )
    start = begin("sft", settings, open_rows(settings.rows, SftRow, "sft"), model_folder(settings.model))
    assert start is not None
    tokenizer, longest = start.tokenizer, start.max_length
    rows = load_rows(start.table, lambda row: sequences(row, tokenizer, "window", longest), tokenizer, seed=0)
    method = supervised(settings, rows, start)
    precision = choose_precision("auto")
    arguments = trl_arguments(settings, start, method, precision)
    return make_trainer(settings, start, method, arguments, (load_model(start.base, None, precision), None))


def plain_trainer(given: argparse.Namespace, rows_folder: Path) -> Any:
    """TRL's trainer as its documentation says."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, PrinterCallback
    from trl import SFTConfig, SFTTrainer

    from trainers.fit import choose_precision
    from trainers.models import model_folder
    from trainers.rows import open_rows
    from trainers.start import load_tokenizer

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
    """Go over the rows once for every line that comes in, and answer with what was measured."""
    from transformers import TrainerCallback
    from transformers.utils import logging

    from trainers.fit import peak_memory_gib

    class Clock(TrainerCallback):
        """Notes when the first step begins and the last one ends."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.began, self.began_work = time.perf_counter(), time.process_time()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.ended, self.ended_work = time.perf_counter(), time.process_time()

    logging.set_verbosity_error()
    clock = Clock()
    trainer = (plain_trainer if given.arm == "TRL" else own_trainer)(given, folder)
    trainer.add_callback(clock)
    whole, trainer.args.max_steps = trainer.args.max_steps, 1
    trainer.train()
    trainer.args.max_steps = whole
    before = trainer.state.log_history[0].get("num_tokens", 0)
    print("{}", flush=True)
    for _ in sys.stdin:
        trainer.train()
        points = [point for point in trainer.state.log_history if "loss" in point]
        if given.arm == "TRL":
            # TRL's count goes on from step to step and from turn to turn.
            tokens, before = points[-1]["num_tokens"] - before, points[-1]["num_tokens"]
        else:
            tokens = sum(point["tokens"] for point in points)
        answer = {
            "tokens": tokens,
            "steps": len(points),
            "rate": tokens / (clock.ended - clock.began),
            "work_rate": tokens / (clock.ended_work - clock.began_work),
            "gib": peak_memory_gib(),
        }
        print(json.dumps(answer), flush=True)


def measure(given: argparse.Namespace, compared: Comparison, folder: Path) -> dict[str, list[dict[str, float]]]:
    """The answers of two arms that take turns."""
    options = [f"--model={given.model}", f"--max-length={given.max_length}", f"--batch-size={compared.batch_size}"]
    processes: dict[str, subprocess.Popen[str]] = {}
    answers: dict[str, list[dict[str, float]]] = {arm: [] for arm in compared.arms}
    with (folder / "said").open("w+") as said:
        try:
            for arm in compared.arms:
                command = [sys.executable, __file__, *options, "--arm", arm, "--rows", str(folder / compared.rows)]
                pipe = subprocess.PIPE
                processes[arm] = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=said, text=True)
                heard(processes[arm], said)
            for _ in range(given.rounds):
                for arm, process in processes.items():
                    assert process.stdin is not None
                    process.stdin.write("\n")
                    process.stdin.flush()
                    answers[arm].append(heard(process, said))
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
    return answers


def heard(process: subprocess.Popen[str], said: IO[str]) -> dict[str, float]:
    """The next answer. Raises ``RuntimeError`` with what the processes said if this one is no more."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        said.seek(0)
        raise RuntimeError(said.read()[-4000:])
    answer: dict[str, float] = json.loads(line)
    return answer


def show(compared: Comparison, answers: dict[str, list[dict[str, float]]]) -> None:
    """A line for each of two arms, and what the first does against the second."""
    for arm, turns in answers.items():
        rates = [turn["rate"] for turn in turns]
        steps, tokens, gib = (turns[-1][name] for name in ("steps", "tokens", "gib"))
        print(
            f"{arm:12}{compared.rows:12}{compared.batch_size:6}{steps:7.0f}{tokens / steps:13,.0f}"
            f"{statistics.median(rates):10,.0f}{min(rates):7,.0f}{max(rates):7,.0f}{gib:10.2f}"
        )
    clock, work = (ratios(compared, answers, name) for name in ("rate", "work_rate"))
    ratio, least = statistics.median(clock), compared.least
    met = "" if least is None else f"; target {least}: {'met' if ratio >= least else 'MISSED'}"
    print(
        f"{' / '.join(compared.arms)}: {ratio:.2f} ({min(clock):.2f} to {max(clock):.2f}),"
        f" in processor time {statistics.median(work):.2f}{met}",
        flush=True,
    )


def ratios(compared: Comparison, answers: dict[str, list[dict[str, float]]], name: str) -> list[float]:
    """Of the first arm to the second, by round."""
    one, other = (answers[arm] for arm in compared.arms)
    return [first[name] / second[name] for first, second in zip(one, other, strict=True)]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="bundled:smollm2-135m-instruct", help="model folder or bundled:NAME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-length", type=int, default=512)
    for hidden in ("--arm", "--rows", "--batch-size"):
        parser.add_argument(hidden, type=int if hidden == "--batch-size" else str, help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if given.arm:
        serve(given, Path(given.rows))
        return
    print(describe("trl", "transformers", "torch"))
    given.model = str(model_folder(given.model))
    print(
        f"{'arm':12}{'rows':12}{'batch':>6}{'steps':>7}{'tokens/step':>13}{'tokens/s':>10}{'least':>7}{'most':>7}"
        f"{'peak GiB':>10}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as made:
        write_rows(Path(made))
        for compared in COMPARISONS:
            show(compared, measure(given, compared, Path(made)))


if __name__ == "__main__":
    main()
