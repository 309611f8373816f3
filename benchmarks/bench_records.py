"""Records: decoding with validation against the same classes in pydantic, and the write path against pyarrow alone.

"The same classes" are the same annotations, so the union of items is a plain union, as in the reference models of the
Agent Data Protocol. A union that is told its discriminator is printed beside it: pydantic's best case.
Times are processor seconds of the best of several rounds, taken in turns, so that other work on the machine weighs
on both sides alike.
"""

from __future__ import annotations

import functools
import operator
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from machine import describe
from msgspec import inspect
from pydantic import BaseModel, ConfigDict, Field, create_model

from agentmill.schemas.arrow.convert import arrow_schema, to_arrow
from agentmill.schemas.records.trajectory import (
    ApiAction,
    Generation,
    MessageAction,
    Outcome,
    TextObservation,
    Trajectory,
    TurnTokens,
)
from agentmill.schemas.tables import read_shard, write_shard

ROUNDS = 5
TARGET_DECODE = 4.0
TARGET_WRITE = 0.4


def trajectories(count: int, turns: int, words: int) -> list[Trajectory]:
    """Runs with ``turns`` turns, calls and messages by turns, whose observations have ``words`` words."""
    choose = random.Random(0)
    vocabulary = [f"word{index}" for index in range(5_000)]

    def text(length: int) -> str:
        return " ".join(choose.choices(vocabulary, k=length))

    def tokens(turn: int) -> TurnTokens:
        prompt_ids, sampled_ids = ([choose.randrange(49_152) for _ in range(n)] for n in (words, 20))
        logprobs = [-choose.random() for _ in sampled_ids]
        return TurnTokens(prompt_ids=prompt_ids, sampled_ids=sampled_ids, logprobs=logprobs, segment_start=turn == 1)

    def run(index: int) -> Trajectory:
        content: list[Any] = [TextObservation(content=text(40), source="user")]
        for turn in range(1, turns + 1):
            call = f"call{turn:03d}00" if turn % 2 else None
            if call:
                kwargs = {"command": text(15), "timeout_s": 2.5, "flags": ["a", "b"], "limits": {"lines": None}}
                content.append(ApiAction(function="run", kwargs=kwargs, turn=turn, tool_call_id=call))
            else:
                content.append(MessageAction(content=text(15), turn=turn, tokens=tokens(turn)))
            content.append(TextObservation(content=text(words), source="environment", turn=turn, tool_call_id=call))
        generation = Generation(
            model="m",
            revision="r",
            policy="p",
            strategy="s",
            scaffold="text",
            sampling={"temperature": 0.7},
            seed=index,
        )
        return Trajectory(
            trajectory_id=f"{index:032x}",
            content=content,
            system_prompt=text(60),
            outcome=Outcome(status="success", reward=1.0),
            generation=generation,
        )

    return [run(index) for index in range(count)]


@functools.cache
def pydantic_class(record_type: type[msgspec.Struct], discriminated: bool) -> type[BaseModel]:
    """The same class in pydantic: same fields, types and defaults, frozen, unknown fields forbidden."""
    info = inspect.type_info(record_type)
    assert isinstance(info, inspect.StructType)
    fields: dict[str, Any] = {
        field.name: (_annotation(field.type, discriminated), _default(field, discriminated)) for field in info.fields
    }
    if info.tag_field:
        fields[info.tag_field] = (Literal[info.tag], info.tag)
    return create_model(record_type.__name__, __config__=ConfigDict(extra="forbid", frozen=True), **fields)


def _default(field: inspect.Field, discriminated: bool) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return Field(default_factory=field.default_factory)
    if isinstance(field.default, msgspec.Struct):
        return pydantic_class(type(field.default), discriminated)()
    return ... if field.required else field.default


def _annotation(info: inspect.Type, discriminated: bool) -> Any:
    plain = {inspect.StrType: str, inspect.IntType: int, inspect.FloatType: float, inspect.BoolType: bool}
    if type(info) in plain:
        return plain[type(info)]
    if isinstance(info, inspect.LiteralType):
        return Literal[info.values]
    if isinstance(info, inspect.ListType):
        return list[_annotation(info.item_type, discriminated)]  # type: ignore[misc]
    if isinstance(info, inspect.TupleType):
        return tuple[tuple(_annotation(item, discriminated) for item in info.item_types)]
    if isinstance(info, inspect.DictType):
        return dict[str, Any]
    if isinstance(info, inspect.StructType):
        return pydantic_class(info.cls, discriminated)
    if isinstance(info, inspect.NoneType):
        return None
    assert isinstance(info, inspect.UnionType)
    union = functools.reduce(operator.or_, (_annotation(item, discriminated) for item in info.types))
    return Annotated[union, Field(discriminator="class_")] if discriminated and len(info.types) > 2 else union


def best(*jobs: Callable[[], object]) -> list[float]:
    """Processor seconds of the best of ``ROUNDS`` rounds of each job, taken in turns."""
    times = [[0.0] * ROUNDS for _ in jobs]
    for turn in range(ROUNDS):
        for job, taken in zip(jobs, times, strict=True):
            start = time.process_time()
            job()
            taken[turn] = time.process_time() - start
    return [min(taken) for taken in times]


def decoding(runs: list[Trajectory]) -> float:
    """Print MB/s of both sides; the ratio."""
    texts = [msgspec.json.encode(run) for run in runs]
    decoder = msgspec.json.Decoder(Trajectory)
    plain, discriminated = (pydantic_class(Trajectory, told) for told in (False, True))
    for model in (plain, discriminated):
        assert model.model_validate_json(texts[0]).model_dump(mode="json") == msgspec.json.decode(texts[0])
    assert decoder.decode(texts[0]) == runs[0]
    ours, theirs, theirs_told = best(
        lambda: [decoder.decode(text) for text in texts],
        lambda: [plain.model_validate_json(text) for text in texts],
        lambda: [discriminated.model_validate_json(text) for text in texts],
    )
    size = sum(map(len, texts)) / 1e6
    print(
        f"  decode+validate {size / ours:5.0f} MB/s, pydantic {size / theirs:4.0f} MB/s:"
        f" ratio {theirs / ours:.1f} (target {TARGET_DECODE:g});"
        f" with a discriminator {size / theirs_told:4.0f} MB/s: {theirs_told / ours:.1f}"
    )
    return theirs / ours


def writing(runs: list[Trajectory], folder: Path) -> float:
    """Print rows/s of our write path, checks included, and of pyarrow alone on prebuilt rows; the ratio."""
    schema = arrow_schema(Trajectory)
    rows = to_arrow(runs, Trajectory).to_pylist()
    path = folder / "table/data/part-00000.parquet"
    ours, alone, reading = best(
        lambda: write_shard(path, runs, Trajectory),
        lambda: pq.write_table(pa.Table.from_pylist(rows, schema), folder / "alone.parquet", compression="zstd"),
        lambda: read_shard(path, Trajectory),
    )
    assert read_shard(path, Trajectory) == runs
    print(
        f"  write {len(runs) / ours:6.0f} rows/s, pyarrow alone {len(runs) / alone:6.0f} rows/s:"
        f" ratio {alone / ours:.2f} (target {TARGET_WRITE:g}); read {len(runs) / reading:6.0f} rows/s"
    )
    return alone / ours


def main() -> int:
    print(describe("msgspec", "pydantic", "pyarrow"))
    reached = []
    with tempfile.TemporaryDirectory() as folder:
        for count, turns, words in ((1_000, 4, 12), (200, 20, 150), (100, 50, 350)):
            runs = trajectories(count, turns, words)
            size = sum(len(msgspec.json.encode(run)) for run in runs) / count / 1e3
            print(f"{count} trajectories of {turns} turns, {size:.0f} kB each")
            reached += [decoding(runs) >= TARGET_DECODE, writing(runs, Path(folder)) >= TARGET_WRITE]
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
