"""Policies asked from another thread than that of the event loop they were made in."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError

import msgspec

from synthesis.policies.policy import Conversation, Policy, Turn


class RemotePolicy:
    """A policy that acts on the event loop it was made in, asked from another one.

    Nothing is begun where that loop is over: a coroutine made here would never be awaited.
    """

    def __init__(self, policy: Policy, loop: asyncio.AbstractEventLoop) -> None:
        self.name = policy.name
        self.model = policy.model
        self.revision = policy.revision
        self.sampling = policy.sampling
        self.spending = policy.spending
        self._policy = policy
        self._loop = loop

    async def act(self, conversation: Conversation) -> Turn:
        """As ``Policy.act``, without the environment, which is at home here."""
        told = msgspec.structs.replace(conversation, environment=None)
        answered: Future[Turn] = Future()

        def begin() -> None:
            if not answered.cancelled():
                task = self._loop.create_task(self._policy.act(told))
                task.add_done_callback(lambda done: _hand_over(done, answered))
                answered.add_done_callback(lambda waiting: self._give_up(task) if waiting.cancelled() else None)

        self._loop.call_soon_threadsafe(begin)
        return await asyncio.wrap_future(answered)

    def _give_up(self, task: asyncio.Task[Turn]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(task.cancel)

    async def close(self) -> None:
        """Nothing: whoever made the policy closes it."""


def remote(policies: Mapping[str, Policy]) -> dict[str, Policy]:
    """Policies for another thread. One without a model only computes, and may need the environment: it goes along."""
    loop = asyncio.get_running_loop()
    return {role: policy if policy.model is None else RemotePolicy(policy, loop) for role, policy in policies.items()}


def _hand_over(done: asyncio.Task[Turn], answered: Future[Turn]) -> None:
    """Tell how a task ended, to whoever still waits."""
    error = None if done.cancelled() else done.exception()
    with contextlib.suppress(InvalidStateError):  # nobody waits any more
        if done.cancelled():
            answered.cancel()
        elif error is not None:
            answered.set_exception(error)
        else:
            answered.set_result(done.result())
