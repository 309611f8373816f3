"""How long a training takes to its first step, and in how much memory, when its rows are tokens on disk already.

    python benchmarks/bench_token_shards.py [--rows 100000] [--tokens 4000] [--folder FOLDER]

The rows of a small table become tokens, whose files are then replaced by larger ones, so the training finds what it
would have left itself. The new tokens are random, and half of them have loss. The model is tiny, and the training is
ended after its first step. Memory is what the process holds for itself; pages of mapped files are counted apart, since
the system takes them back when it needs memory.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from machine import describe

from agentmill.schemas.records.rows import SftRow
from agentmill.trainers.command import SftSettings
from agentmill.trainers.data import RowCounts, open_rows, read_rows
from agentmill.trainers.run_dir import set_up_training
from agentmill.trainers.sft import sequences
from agentmill.trainers.token_shards import LENGTH, ROW_IDS
from agentmill.trainers.tokenization import Encoded
from tests.model import tiny_model
from tests.pipelines.engine.stages import write_table
from tests.trainers.tables import turns

FILES = 100
STEP = re.compile(rb"step \d+ of")
BATCH = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=4_000)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    print(describe("torch", "trl", "datasets", "pyarrow"))
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        here = Path(folder)
        settings = made(here, given.tokens)
        setup = set_up_training("sft", settings, open_rows(settings.rows, SftRow, "sft"), Path(settings.model))
        assert setup is not None
        encode = partial(sequences, tokenizer=setup.tokenizer, long_rows="window", max_length=setup.max_length)
        read_rows(setup, settings, encode, Encoded)
        size = enlarge(setup.work.tokens, given.rows, given.tokens)
        each = size / given.rows / given.tokens
        print(f"{given.rows:,} rows of {given.tokens:,} tokens: {size / 1e9:.1f} GB, {each:.2f} B a token")
        print(first_step(here / "train.yaml"))


def made(here: Path, tokens: int) -> SftSettings:
    """A table of rows, a model with a long enough context, and the settings of a training on them."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    shards = [[turns(1, str(number))] for number in range(FILES)]
    write_table(here / "rows", shards, SftRow)
    config = LlamaConfig(vocab_size=1024, hidden_size=32, intermediate_size=32, num_hidden_layers=1)
    config.num_attention_heads = config.num_key_value_heads = 2
    config.max_position_embeddings = tokens
    LlamaForCausalLM(config).save_pretrained(here / "model")
    AutoTokenizer.from_pretrained(tiny_model()).save_pretrained(here / "model")
    values = {"rows": str(here / "rows"), "model": str(here / "model"), "output": str(here / "tuned")}
    values |= {"max_length": tokens, "save_steps": None, "batch_size": 1, "max_steps": 1}
    (here / "train.yaml").write_bytes(msgspec.yaml.encode(values))
    return SftSettings.model_validate(values)


def enlarge(folder: Path, rows: int, tokens: int) -> int:
    """Replace the files of tokens in ``folder`` by ones of so many rows in all; returns the bytes."""
    chance, size = np.random.default_rng(0), 0
    for number in range(FILES):
        path = folder / f"{number:05}.arrow"
        with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as read:
            schema = read.schema
        left = rows // FILES
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as stream:
            while left > 0:
                n = min(BATCH, left)
                left -= n
                stream.write_batch(batch(chance, n, tokens, schema))
        size += path.stat().st_size
        counts = folder / f"{number:05}.json"
        found = msgspec.json.decode(counts.read_bytes(), type=RowCounts)
        found.used = found.written = rows // FILES
        found.longest = tokens
        counts.write_bytes(msgspec.json.encode(found))
    return size


def batch(chance: np.random.Generator, n: int, tokens: int, schema: pa.Schema) -> pa.RecordBatch:
    """``n`` rows of random tokens."""
    mask = np.tile(np.arange(tokens) % 2 == 0, n)
    values = {
        "input_ids": chance.integers(10, 1000, n * tokens, dtype=np.int32),
        "mask": mask,
        "weights": np.ones(int(mask.sum()), np.float32),
        ROW_IDS: np.array([f"row{number}" for number in range(n)]),
    }
    offsets = np.arange(n + 1, dtype=np.int32)
    arrays = {
        name: pa.ListArray.from_arrays(pa.array(offsets * (len(each) // n)), pa.array(each))
        for name, each in values.items()
    }
    arrays[LENGTH] = pa.array(np.full(n, tokens, np.int32))
    return pa.record_batch([arrays[field.name].cast(field.type) for field in schema], schema=schema)


def first_step(config: Path) -> str:
    """Start the training, and end it after its first step."""
    started = time.monotonic()
    command = [sys.executable, "-m", "agentmill.trainers.sft", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        peak = dict.fromkeys(("RssAnon", "RssFile"), 0)
        os.set_blocking(process.stderr.fileno(), False)
        printed = b""
        while not STEP.search(printed) and process.poll() is None:
            time.sleep(0.05)
            printed += process.stderr.read() or b""
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in peak:
                    peak[name] = max(peak[name], int(value.split()[0]))
        seconds = time.monotonic() - started
        process.kill()
    if not STEP.search(printed):
        sys.exit(printed.decode())
    own, mapped = (peak[name] / 2**20 for name in ("RssAnon", "RssFile"))
    return f"first step after {seconds:.1f} s; own memory {own:.2f} GiB, mapped files {mapped:.2f} GiB"


if __name__ == "__main__":
    main()
