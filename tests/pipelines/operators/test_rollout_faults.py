"""Episodes among all that goes wrong at once: each ends in exactly one recorded outcome, and in the right one.

``AGENTMILL_EPISODES`` says how many (``make soak`` asks for many).
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path

from agentmill.schemas.records.task import Task
from agentmill.schemas.tables import Counts, Table
from agentmill.synthesis.policies.policy import PolicySettings
from tests.pipelines.engine.stages import dropped_of
from tests.simulated.answers import Behaviour
from tests.simulated.environment import registered, task
from tests.simulated.expected import outcome
from tests.simulated.server import running
from tests.simulated.stage import sampling

EPISODES = int(os.environ.get("AGENTMILL_EPISODES", "150"))
LIFETIME_S, TURN_TIMEOUT_S = (30.0, 5.0) if EPISODES > 1_000 else (4.0, 3.0)
LOST = {"malformed", "timeout", "world_error"}
BEHAVIOUR = Behaviour(
    slots=16,
    prefill_ms=10.0,
    token_ms=2.0,
    tokens=20.0,
    malformed=0.05,
    hang=0.05,
    busy=0.02,
    context=700,
    lifetime_s=LIFETIME_S,
)


def test_every_episode_ends_in_the_one_outcome_that_is_its_own(tmp_path: Path) -> None:
    tasks = [task(index, latency_ms=5.0, breaks=0.05) for index in range(EPISODES)]
    with registered(), running(BEHAVIOUR, tmp_path / "server", restarts=10_000) as endpoint:
        job = sampling(tmp_path, tasks, endpoint, {"window": 64}, turn_timeout_s=TURN_TIMEOUT_S)
        manifest = job.run()
    ended = {row.trajectory_id: row.outcome.reason or row.outcome.status for row in Table.open(job.folder).rows()}
    dropped = {letter.input_id: letter.reason for letter in dropped_of(job.folder)}
    expected = dict(asyncio.run(outcomes(tasks, job.context.models["actor"].settings({}))))
    assert not ended.keys() & dropped.keys()
    actual = {**ended, **dropped}
    assert actual.keys() == expected.keys()
    other = [actual[each] for each in expected if actual[each] != expected[each]]
    assert set(other) <= {"timeout"}, "only a machine that is too slow may make a difference"
    assert len(other) < EPISODES / 10
    assert set(expected.values()) == {"success", "failure", "context_overflow", *LOST}
    assert manifest.reasons == Counter(dropped.values())
    lost = sum(reason in LOST for reason in actual.values())
    assert manifest.counts == Counts(read=EPISODES, used=EPISODES - lost, dropped=lost, written=EPISODES - lost)
    assert (tmp_path / "server" / "server.log").read_text().count("serving") > 1, "the server never died"


async def outcomes(tasks: list[Task], settings: PolicySettings) -> list[tuple[str, str]]:
    """What should become of each."""
    return [await outcome(each, settings, BEHAVIOUR) for each in tasks]
