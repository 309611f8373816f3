"""Environments that may block (a browser, a container, a foreign process), kept off the event loop.

An episode in such an environment is played in a thread of a bounded pool, on an event loop of its own; only the turns
of models are taken on the loop that all episodes share, which therefore never waits for an environment. All calls of an
environment come from one thread. A call that does not come back is given up: the thread is abandoned and replaced, and
its environment is not touched again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from typing import Any, TypeVar

import msgspec

from agentmill.schemas.machine import allow_open_files
from agentmill.schemas.records.rows import Message
from agentmill.synthesis.environments.environment import EnvError, Environment
from agentmill.synthesis.policies.policy import Conversation, Policy, Turn
from agentmill.synthesis.policies.reward_model import Score, Scorer
from agentmill.synthesis.rollouts.strategy import Exploration

T = TypeVar("T")


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
        plain = msgspec.structs.replace(conversation, environment=None)
        return await self._asked(lambda: self._policy.act(plain))

    async def _asked(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        answered: Future[T] = Future()

        def begin() -> None:
            if not answered.cancelled():
                task = self._loop.create_task(ask())
                task.add_done_callback(lambda done: _pass_result(done, answered))
                answered.add_done_callback(lambda waiting: self._give_up(task) if waiting.cancelled() else None)

        self._loop.call_soon_threadsafe(begin)
        return await asyncio.wrap_future(answered)

    def _give_up(self, task: asyncio.Task[T]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(task.cancel)

    async def close(self) -> None:
        """Nothing: whoever made the policy closes it."""


class RemoteScorer(RemotePolicy):
    """A reward model, asked in the same way."""

    def __init__(self, scorer: Scorer, policy: Policy, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(policy, loop)
        self.shown = scorer.shown
        self._scorer = scorer

    async def score(self, episode_id: str, messages: Sequence[Message], functions: str | None) -> Score:
        """As ``Scorer.score``."""
        return await self._asked(lambda: self._scorer.score(episode_id, messages, functions))


def remote(policies: Mapping[str, Policy]) -> dict[str, Policy]:
    """Policies for another thread. One without a model only computes, and may need the environment: it goes along."""
    loop = asyncio.get_running_loop()
    return {role: policy if policy.model is None else _remote(policy, loop) for role, policy in policies.items()}


def _remote(policy: Policy, loop: asyncio.AbstractEventLoop) -> RemotePolicy:
    return RemoteScorer(policy, policy, loop) if isinstance(policy, Scorer) else RemotePolicy(policy, loop)


def _pass_result(done: asyncio.Task[T], answered: Future[T]) -> None:
    """Tell how a task ended, to whoever still waits."""
    error = None if done.cancelled() else done.exception()
    with contextlib.suppress(InvalidStateError):  # nobody waits any more
        if done.cancelled():
            answered.cancel()
        elif error is not None:
            answered.set_exception(error)
        else:
            answered.set_result(done.result())


Listen = Callable[[Environment], Environment]
"""Gives an environment back whose calls are noticed."""

THREADS = 256
"""Episodes in environments that block, in flight per process. A thread that waits takes 46 KB, and three open files."""

CALL_TIMEOUT_S = 300.0
"""A call that takes longer is given up."""

CLOSING_S = 10.0
"""How long environments that were given up are waited for in the end: what they hold may outlive the process."""

BEATS = 8
"""Seconds between checks that the loop of an episode is alive; each check wakes a thread."""


class EnvTimeout(EnvError):
    """The environment did not come back from a call."""

    reason = "world_timeout"


class Pool:
    """At most ``size`` threads, not counting abandoned ones.

    They are daemons, so that one that hangs for ever does not keep the process from ending.
    """

    def __init__(self, size: int) -> None:
        self.abandoned = 0
        """Threads that were given up and have not come back."""
        self._size = size
        self._threads = 0
        self._idle = 0
        self._waiting: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._given_up: set[Future[Any]] = set()
        self._changed = threading.Condition()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have ``work`` done as soon as a thread is free."""
        future: Future[T] = Future()
        with self._changed:
            self._waiting.append((work, future))
            self._staff()
            self._changed.notify()
        return future

    def abandon(self, future: Future[Any]) -> None:
        """Give up work; a thread that is busy with it is replaced until it comes back."""
        with self._changed:
            if not future.cancel() and future.running():
                self._given_up.add(future)
                self.abandoned += 1
                self._threads -= 1
                self._staff()

    def drain(self, timeout_s: float) -> None:
        """Wait until all work that was given up has come back, for at most ``timeout_s``."""
        with self._changed:
            given_up = set(self._given_up)
        wait(given_up, timeout_s)

    def _staff(self) -> None:
        """Start a thread for work that waits, if there may be one more."""
        if len(self._waiting) > self._idle and self._threads < self._size:
            self._threads += 1
            threading.Thread(target=self._run, name="world", daemon=True).start()

    def _run(self) -> None:
        needed = True
        while needed:
            with self._changed:
                self._idle += 1
                while not self._waiting:
                    self._changed.wait()
                self._idle -= 1
                work, future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                _do(work, future)
            with self._changed:
                needed = self._is_needed(future)

    def _is_needed(self, future: Future[Any]) -> bool:
        """Whether a thread that is done with ``future`` goes on; one that was replaced may be one too many."""
        if future not in self._given_up:
            return True
        self._given_up.remove(future)
        self.abandoned -= 1
        if self._threads == self._size:
            return False
        self._threads += 1
        return True


POOL = Pool(THREADS)


async def gathered(
    explore: Callable[[Exploration], AsyncIterator[T]], exploration: Exploration, blocking: bool, patience_s: float
) -> list[T]:
    """All that ``explore(exploration)`` yields; in a thread of the pool if its environments are ``blocking``.

    Raises what it raises, and ``EnvTimeout`` if an environment does not come back for more than ``patience_s``.
    """
    if not blocking:
        return [each async for each in explore(exploration)]
    policies = remote(exploration.policies)

    async def gather(listen: Listen) -> list[T]:
        given = msgspec.structs.replace(
            exploration, policies=policies, make_environment=lambda: listen(exploration.make_environment())
        )
        return [each async for each in explore(given)]

    return await run_blocking(gather, patience_s)


async def run_blocking(work: Callable[[Listen], Coroutine[Any, Any, T]], patience_s: float) -> T:
    """What ``work`` gives, done in a thread of the pool; it lets what it is given listen to the environments that it
    makes.

    Raises what it raises, and ``EnvTimeout`` if a call does not come back for more than ``patience_s``.
    """
    # The loops of all threads and their connections exceed the usual limit.
    allow_open_files()
    call = BlockingCall(work)
    future = POOL.submit(call.run)
    waiting = asyncio.wrap_future(future)
    try:
        while not waiting.done():
            await asyncio.wait([waiting], timeout=patience_s / BEATS)
            if not waiting.done() and call.silent_s() > patience_s:
                raise EnvTimeout(f"timeout: the environment has not come back from a call for {patience_s:g} s")
        result: T = waiting.result()
        return result
    finally:
        if not waiting.done():
            call.cancel()
            POOL.abandon(future)
            waiting.cancel()


async def environments_closed() -> None:
    """Wait until the environments of what was given up are closed, for at most ``CLOSING_S``."""
    await asyncio.to_thread(POOL.drain, CLOSING_S)


class BlockingCall:
    """Work on an event loop of its own, watched from another thread."""

    def __init__(self, work: Callable[[Listen], Coroutine[Any, Any, Any]]) -> None:
        self._work = work
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._answered_at = 0.0
        self._cancelled = False

    def run(self) -> Any:
        """What it gives. For the thread that does it.

        ``asyncio.run`` would look through the tasks of all threads in the end; this does so only where it broke off.
        """
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(self._done())
        except BaseException:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left))
            raise
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def silent_s(self) -> float:
        """For how long its loop has not answered, and no call of an environment has begun; asks the loop again."""
        self._notify(self._answer)
        return 0.0 if self._loop is None else time.monotonic() - self._answered_at

    def cancel(self) -> None:
        """Cancel it as soon as its loop answers, or before it has one."""
        self._cancelled = True
        if self._task is not None:
            self._notify(self._task.cancel)

    async def _done(self) -> Any:
        self._task, self._answered_at = asyncio.current_task(), time.monotonic()
        self._loop = asyncio.get_running_loop()
        if self._cancelled:  # asked last, so that whoever cancels later finds the task
            raise asyncio.CancelledError
        return await self._work(self._listen)

    def _listen(self, environment: Environment) -> Environment:
        reporting: Any = ReportingEnvironment(environment, self._answer)
        return reporting  # type: ignore[no-any-return]

    def _notify(self, what: Callable[[], Any]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed, for all is done
                self._loop.call_soon_threadsafe(what)

    def _answer(self) -> None:
        self._answered_at = time.monotonic()


class ReportingEnvironment:
    """An environment that reports each call that begins: many may follow each other without a pause for the loop."""

    def __init__(self, environment: Environment, on_call: Callable[[], None]) -> None:
        self._environment = environment
        self._notify = on_call

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._environment, name)
        if not callable(found):
            return found

        def called(*given: Any, **named: Any) -> Any:
            self._notify()
            return found(*given, **named)

        return called


def _do(work: Callable[[], T], future: Future[T]) -> None:
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
        future.set_exception(error)
    else:
        future.set_result(result)
