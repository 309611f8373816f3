"""The ``sample`` stage on a real vLLM server against the bare server, and against Beam's own handler.

The bare client replays the episodes that were just sampled: the same token ids as prompts, answers forced to the same
lengths, turn after turn, as many episodes at once, no environment, and nothing asked for but the text. Both have the
server's prefix cache, but not each other's prefixes. Output tokens per second, by the wall, in turns. A move in the
world takes ``LATENCY_MS`` in the mean, log-normal, about what a shell command or a page takes; the bare client has no
world to wait for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import aiohttp

from agentmill.pipelines.engine.runner import quiet_beam
from agentmill.pipelines.serving.endpoints import Endpoint
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.server_config import ServerConfig
from agentmill.pipelines.serving.servers import serve
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Action, Trajectory
from agentmill.schemas.tables import Table
from tests.simulated.environment import task
from tests.simulated.stage import sampling

BARE_TARGET = 0.90
GATHER_TARGET = 1.5
MODEL = "bundled:smollm2-135m-instruct"
SEQUENCES = 16
WINDOW = 2 * SEQUENCES
TURNS = 8
MAX_TOKENS = 32
LATENCY_MS = 100.0
ROUNDS = 2


def real(episodes: int, folder: Path) -> list[bool]:
    """Print the figures of all three; whether the targets are met."""
    config = ModelConfig(policy="vllm", model=MODEL, server=ServerConfig(max_num_seqs=SEQUENCES))
    with serve(config, folder) as (endpoint, *_):
        ours_per_s(endpoint, folder / "warm", SEQUENCES, 0)
        ours, bare = [], []
        for number in range(1, ROUNDS + 1):
            speed, runs = ours_per_s(endpoint, folder / f"round-{number}", episodes, number)
            ours.append(speed)
            bare.append(asyncio.run(bare_per_s(endpoint, runs)))
            print(f"  round {number}: {ours[-1]:.0f} tokens/s against {bare[-1]:.0f} of the bare client")
        theirs = gathered_per_s(endpoint, episodes)
    ratio, gain = max(ours) / max(bare), max(ours) / theirs
    print(
        f"  {episodes} episodes of {TURNS} turns, {WINDOW} in flight on {SEQUENCES} sequences, {LATENCY_MS:.0f} ms a"
        f" move: ratio to the bare client"
        f" {ratio:.3f} (target {BARE_TARGET}); Beam's handler {theirs:.0f} tokens/s, ratio {gain:.2f} (target"
        f" {GATHER_TARGET})"
    )
    return [ratio >= BARE_TARGET, gain >= GATHER_TARGET]


def corridors(episodes: int) -> list[Task]:
    """Tasks so long that hardly one ends within ``TURNS`` turns."""
    return [task(index, moves=40.0, latency_ms=LATENCY_MS) for index in range(episodes)]


def ours_per_s(endpoint: Endpoint, folder: Path, episodes: int, seed: int) -> tuple[float, list[Trajectory]]:
    """Output tokens per second of the whole stage, and what it sampled."""
    tasks = corridors(episodes)
    limits = {"max_turns": TURNS, "max_invalid": None, "max_tokens": MAX_TOKENS}
    job = sampling(folder, tasks, endpoint, {**limits, "window": WINDOW, "seed": seed})
    began = time.monotonic()
    manifest = job.run()
    seconds = time.monotonic() - began
    assert manifest.counts.used == episodes, manifest.reasons
    return manifest.metrics["completion_tokens"] / seconds, list(Table.open(job.folder).rows())


async def bare_per_s(endpoint: Endpoint, runs: Sequence[Trajectory]) -> float:
    """Output tokens per second of a client that does nothing else."""
    places = asyncio.Semaphore(WINDOW)
    connector, patience = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=patience) as session:
        began = time.monotonic()
        made = await asyncio.gather(*(replay(session, endpoint, run, places) for run in runs))
        return sum(made) / (time.monotonic() - began)


async def replay(session: aiohttp.ClientSession, endpoint: Endpoint, run: Trajectory, places: asyncio.Semaphore) -> int:
    """Ask for the turns of a run again; the tokens that came."""
    made = 0
    async with places:
        for prompt, length in requests_of(run):
            body = {
                "model": endpoint.model,
                "prompt": prompt,
                "max_tokens": length,
                "min_tokens": length,
                "ignore_eos": True,
                "temperature": 1.0,
                "cache_salt": "replay",
            }
            async with session.post(f"{endpoint.base_url}/completions", json=body) as response:
                answered = await response.json()
            if answered["usage"]["completion_tokens"] != length:
                raise RuntimeError(f"{answered['usage']} where {length} tokens were asked for")
            made += length
    return made


def requests_of(run: Trajectory) -> Iterator[tuple[list[int], int]]:
    """(prompt, tokens sampled) of each turn."""
    sequence: list[int] = []
    for item in run.content:
        if isinstance(item, Action) and item.tokens is not None:
            start = [] if item.tokens.segment_start else sequence
            prompt = start + item.tokens.prompt_ids
            yield prompt, len(item.tokens.sampled_ids)
            sequence = prompt + item.tokens.sampled_ids


def gathered_per_s(endpoint: Endpoint, episodes: int) -> float:
    """Output tokens per second of Beam's handler, turn by turn, in batches as large as our window."""
    with quiet_beam():
        from gather_turns import gather_turns

        tasks = corridors(episodes)
        began = time.monotonic()
        batching = {"min_batch_size": min(WINDOW, episodes), "max_batch_size": WINDOW}
        walks = gather_turns(tasks, endpoint, TURNS, {"max_tokens": MAX_TOKENS, "temperature": 1.0}, **batching)
        return sum(walk.answer_tokens for walk in walks) / (time.monotonic() - began)
