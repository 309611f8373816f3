"""What every test shares: the checkout on the path, and one hypothesis profile that is the same in every run.

Where code cannot be isolated, as in many containers, tests that need the sandbox are left out and say why; with
``AGENTMILL_REQUIRE_SANDBOX`` they fail.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path

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

# A script's background jobs are started with interrupts ignored, and so would be all that tests start and interrupt.
# Polars puts a handler of its own in the place of Python's, under which blocking calls go on; so it is imported before.
signal.signal(signal.SIGINT, signal.default_int_handler)


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
