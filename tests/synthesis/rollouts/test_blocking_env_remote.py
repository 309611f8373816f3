"""A policy asked from another event loop: answers, errors, and ends on either side."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Iterator

import pytest

from agentmill.schemas.records.trajectory import MessageAction
from agentmill.synthesis.policies.policy import Conversation, Policy, PolicyError, PolicySettings, Turn
from agentmill.synthesis.policies.scripted import ScriptedPolicy
from agentmill.synthesis.rollouts.blocking_env import RemotePolicy

ASKED = Conversation(episode_id="e", system_prompt="Count.", content=(), tools=[], seed=0)


class Slow(ScriptedPolicy):
    """Says at once that it was begun, and answers never."""

    def __init__(self) -> None:
        super().__init__(PolicySettings(policy="scripted"), lambda _: Turn(actions=[]))
        self.begun, self.cancelled = threading.Event(), threading.Event()

    async def act(self, conversation: Conversation) -> Turn:
        self.begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return Turn(actions=[])


@contextlib.contextmanager
def home() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def policy(choose: Turn | Exception) -> Policy:
    def say(_: Conversation) -> Turn:
        if isinstance(choose, Exception):
            raise choose
        return choose

    return ScriptedPolicy(PolicySettings(policy="scripted"), say)


def test_turns_and_errors_come_across() -> None:
    said = Turn(actions=[MessageAction(content="add 1")])
    with home() as loop:
        assert asyncio.run(RemotePolicy(policy(said), loop).act(ASKED)) == said
        with pytest.raises(PolicyError, match="it is odd"):
            asyncio.run(RemotePolicy(policy(PolicyError("odd", "it is odd")), loop).act(ASKED))


def test_who_stops_waiting_stops_the_asking() -> None:
    slow = Slow()

    async def ask() -> None:
        asking = asyncio.create_task(RemotePolicy(slow, loop).act(ASKED))
        await asyncio.to_thread(slow.begun.wait, 10)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    with home() as loop:
        asyncio.run(ask())
        assert slow.cancelled.wait(10)


@pytest.mark.parametrize("closed", [True, False])
def test_nothing_is_begun_where_the_loop_is_over(closed: bool) -> None:
    """A coroutine that was made and never awaited would be a warning, and so a failure here."""
    over = asyncio.new_event_loop()
    if closed:
        over.close()
    asked = RemotePolicy(Slow(), over).act(ASKED)
    with pytest.raises(RuntimeError if closed else TimeoutError):
        asyncio.run(asyncio.wait_for(asked, 0.1))
    over.close()
    gc.collect()
