"""The time that an episode or a search may take. While a provider refuses everybody it stands still."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def within(timeout_s: float, work: Awaitable[T], refused_s: Callable[[], float]) -> T:
    """What ``work`` gives within ``timeout_s``, not counting the seconds by which ``refused_s()`` has grown since.

    Raises what it raises, and ``TimeoutError``.
    """
    ends_at = time.monotonic() - refused_s() + timeout_s
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            left_s = ends_at + refused_s() - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            await asyncio.wait([task], timeout=left_s)
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
