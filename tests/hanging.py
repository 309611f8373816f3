"""Environments that hang, for tests that do not wait.

The episode of a call that hangs is given up at once, and no other one is, however busy the machine is.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agentmill.pipelines.operators import rollout_operation
from agentmill.synthesis.rollouts import blocking_env
from agentmill.synthesis.rollouts.blocking_env import BlockingCall


@contextmanager
def hanging() -> Iterator[Callable[[], None]]:
    """Yields what an environment calls to hang until the block ends."""
    released = threading.Event()
    calls: dict[int, BlockingCall] = {}
    hung: list[BlockingCall] = []
    run = BlockingCall.run

    def noted(call: BlockingCall) -> Any:
        calls[threading.get_ident()] = call
        return run(call)

    def hang() -> None:
        hung.append(calls[threading.get_ident()])
        released.wait(60)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockingCall, "run", noted)
        patch.setattr(BlockingCall, "silent_s", lambda call: math.inf if call in hung else 0.0)
        patch.setattr(blocking_env, "POOL", blocking_env.Pool(8))
        patch.setattr(blocking_env, "CLOSING_S", 0.1)
        patch.setattr(rollout_operation, "CALL_TIMEOUT_S", 1.0)
        try:
            yield hang
        finally:
            released.set()
