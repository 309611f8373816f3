"""What every test shares: the checkout on the path, one hypothesis profile, and how files are divided among workers.

Where code cannot be isolated, as in many containers, tests that need the sandbox are left out and say why; with
``AGENTMILL_REQUIRE_SANDBOX`` they fail.

With ``-n`` (pytest-xdist) the tests of a file stay in one worker, which makes the fixtures of the file once.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import polars  # noqa: F401
import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentmill.synthesis.sandbox.limits import SandboxUnavailable

settings.register_profile(
    "agentmill",
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("agentmill")

if "PYTEST_XDIST_WORKER" in os.environ:
    # The other cores are those of the other workers; also for what tests start.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A script's background jobs are started with interrupts ignored, and so would be all that tests start and interrupt.
# Polars puts a handler of its own in the place of Python's, under which blocking calls go on; so it is imported before.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start vLLM and slow ones come first, so that no process is left alone with one in the end."""
    served = {item.path for item in items if item.get_closest_marker("model")}
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in served, item.path not in slow))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores, since a third of the time of tests is waiting for processes that they start."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The unit of work is a file; all files that start vLLM are one, since two servers may not fit into memory."""
    from xdist.scheduler import LoadFileScheduling

    @functools.cache
    def unit(name: str) -> str:
        file = config.rootpath / name
        return "vllm" if file.is_file() and "pytest.mark.model" in file.read_text() else name

    class FileScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit(super()._split_scope(nodeid))

    config.option.loadscopereorder = False  # the order of collection counts
    return FileScheduling(config, log)


def _unless_required() -> Generator[None]:
    try:
        yield
    except SandboxUnavailable as error:
        if os.environ.get("AGENTMILL_REQUIRE_SANDBOX"):
            raise
        pytest.skip(f"no sandbox: {error}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None]:
    """Fixtures may need the sandbox."""
    yield from _unless_required()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """So may tests."""
    yield from _unless_required()
