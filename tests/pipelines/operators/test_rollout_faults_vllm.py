"""Episodes on a real vLLM server among all that goes wrong at once: each ends in exactly one recorded outcome.

``AGENTMILL_REAL_EPISODES`` says how many (``make soak`` asks for many); without it the test is left out.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentmill.pipelines.processes.identity import pid_of
from agentmill.pipelines.serving.endpoints import Endpoint, is_healthy
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.server_config import ServerConfig
from agentmill.pipelines.serving.server_process import ServerRecords
from agentmill.pipelines.serving.servers import serve
from agentmill.schemas.tables import Counts, Table
from tests.pipelines.engine.stages import dropped_of
from tests.simulated.answers import Behaviour
from tests.simulated.environment import registered, task
from tests.simulated.relay import relaying
from tests.simulated.stage import sampling

EPISODES = int(os.environ.get("AGENTMILL_REAL_EPISODES", "0"))
MODEL = "bundled:smollm2-135m-instruct"
CONTEXT = 512
LIFETIME_S, TURN_TIMEOUT_S = 30.0, 30.0
BEHAVIOUR = Behaviour(malformed=0.05, hang=0.05, busy=0.02)
PLAYED = {"success", "failure", "context_overflow", "max_turns"}
LOST = {"malformed", "timeout", "world_error"}

pytestmark = [pytest.mark.model, pytest.mark.timeout(3600)]


@pytest.mark.skipif(not EPISODES, reason="AGENTMILL_REAL_EPISODES does not say how many episodes")
def test_every_episode_on_a_real_server_ends_in_one_outcome(tmp_path: Path) -> None:
    tasks = [task(index, moves=12.0, latency_ms=5.0, breaks=0.05) for index in range(EPISODES)]
    config = ModelConfig(
        policy="vllm", model=MODEL, server=ServerConfig(max_model_len=CONTEXT, max_num_seqs=16, restarts=1000)
    )
    parameters = {"window": 12, "max_turns": 8, "max_invalid": None, "max_tokens": 32}
    with registered(), serve(config, tmp_path) as (server, *_), relaying(BEHAVIOUR, server) as endpoint:
        job = sampling(tmp_path, tasks, endpoint, parameters, turn_timeout_s=TURN_TIMEOUT_S, patience_s=600.0)
        with killer(server, tmp_path) as killed:
            manifest = job.run()
    ended = {row.trajectory_id: row.outcome.reason or row.outcome.status for row in Table.open(job.folder).rows()}
    dropped = {letter.input_id: letter.reason for letter in dropped_of(job.folder)}
    print(f"{len(killed)} kills; ended {dict(Counter(ended.values()))}; dropped {dict(Counter(dropped.values()))}")
    assert len(ended) + len(dropped) == EPISODES
    assert not ended.keys() & dropped.keys()
    assert set(ended.values()) <= PLAYED
    assert set(dropped.values()) <= LOST
    assert manifest.reasons == Counter(dropped.values())
    assert manifest.counts == Counts(read=EPISODES, used=len(ended), dropped=len(dropped), written=len(ended))
    assert killed, "the server never died"


@contextlib.contextmanager
def killer(server: Endpoint, run_dir: Path) -> Iterator[list[int]]:
    """Kills the server some seconds after each time that it became healthy. Yields whom it killed."""
    killed: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            if is_healthy(server.base_url) and not over.wait(LIFETIME_S):
                [record] = ServerRecords(run_dir).read()
                os.kill(pid_of(record.leader), signal.SIGKILL)
                killed.append(pid_of(record.leader))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()
