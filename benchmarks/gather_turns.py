"""Episodes on Beam's own handler of vLLM: all of them take a turn, in batches that are each waited for, then the next.

This is what ``RunInference`` offers: ``VLLMChatModelHandler`` gathers the answers to a batch, and the environments of
the batch then step in a ``Map``. The server runs already, and is the same as the one that it is compared on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
import msgspec
from apache_beam.ml.inference.base import KeyedModelHandler, PredictionResult, RunInference
from apache_beam.ml.inference.vllm_inference import OpenAIChatMessage, VLLMChatModelHandler
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from agentmill.pipelines.serving.endpoints import Endpoint
from agentmill.schemas.ids import derive_seed
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import MessageAction
from tests.simulated.environment import SimulatedEnvironment
from tests.simulated.stage import SEED

Messages = tuple[OpenAIChatMessage, ...]


class Walk(msgspec.Struct, frozen=True):
    """An episode between two turns: where it is, and what was said so far."""

    task: Task
    place: bytes
    messages: Messages
    answer_tokens: int = 0
    ended: bool = False


_stepped: list[Walk] = []
"""Where the last step of a pipeline leaves the episodes: the runner works in this process."""


class Running:
    """A server that was started elsewhere, in the place of the one that the handler would start."""

    def __init__(self, port: int) -> None:
        self._port = port

    def get_server_port(self) -> int:
        """Where it listens."""
        return self._port

    def check_connectivity(self) -> None:
        """It is there."""


class AttachedHandler(VLLMChatModelHandler):  # type: ignore[misc]
    """Beam's handler, on a server that runs already."""

    def __init__(self, endpoint: Endpoint, **batching: int) -> None:
        super().__init__(endpoint.model, **batching)
        self._port = int(endpoint.base_url.removesuffix("/v1").rpartition(":")[2])

    def load_model(self) -> Running:
        """The running server."""
        return Running(self._port)

    def share_model_across_processes(self) -> bool:
        """There is one process."""
        return False


def gather_turns(
    tasks: Sequence[Task], endpoint: Endpoint, turns: int, sampling: dict[str, Any], **batching: int
) -> list[Walk]:
    """Take up to ``turns`` turns in each task; the episodes as they ended."""
    walks = [opened(task) for task in tasks]
    ended: list[Walk] = []
    for _ in range(turns):
        walks = one_turn(walks, endpoint, sampling, batching)
        ended += [walk for walk in walks if walk.ended]
        walks = [walk for walk in walks if not walk.ended]
        if not walks:
            break
    return ended + walks


def one_turn(
    walks: Sequence[Walk], endpoint: Endpoint, sampling: dict[str, Any], batching: dict[str, int]
) -> list[Walk]:
    """A pipeline: each episode asks, and its environment steps."""
    handler = KeyedModelHandler(AttachedHandler(endpoint, **batching))
    pipeline = beam.Pipeline(FnApiRunner())
    asked = pipeline | beam.Create([(walk, walk.messages) for walk in walks])
    _ = asked | RunInference(handler, inference_args=sampling) | beam.MapTuple(stepped) | beam.Map(leave)
    _stepped.clear()
    pipeline.run().wait_until_finish()
    if len(_stepped) != len(walks):
        raise RuntimeError(f"{len(_stepped)} of {len(walks)} episodes came back")
    return list(_stepped)


def leave(walk: Walk) -> None:
    """Put ``walk`` where ``one_turn`` finds it."""
    _stepped.append(walk)


def opened(task: Task) -> Walk:
    """An episode at its start."""
    world = SimulatedEnvironment()
    seen = world.reset(task, seed_of(task))
    system = OpenAIChatMessage("system", world.rules)
    return Walk(task, world.snapshot(), (system, OpenAIChatMessage("user", f"{task.instruction}\n{seen.content}")))


def stepped(walk: Walk, result: PredictionResult) -> Walk:
    """The episode after an answer."""
    said = result.inference.choices[0].message.content or ""
    world = SimulatedEnvironment()
    world.reset(walk.task, seed_of(walk.task))
    world.restore(walk.place)
    transition = world.step(MessageAction(content=said))
    seen = transition.observation
    more = (OpenAIChatMessage("assistant", said), OpenAIChatMessage("user", seen.content))
    return Walk(
        walk.task,
        world.snapshot(),
        walk.messages + more,
        walk.answer_tokens + result.inference.usage.completion_tokens,
        transition.terminated,
    )


def seed_of(task: Task) -> int:
    """The seed of the first attempt at a task, as ``sample`` has it."""
    return derive_seed(SEED, 0, task.task_id, 0)


def turns_of(walks: Sequence[Walk]) -> Iterator[int]:
    """How many answers each episode has."""
    return (sum(message.role == "assistant" for message in walk.messages) for walk in walks)
