"""What every test shares: the checkout on the path, and one hypothesis profile that is the same in every run."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import polars  # noqa: F401
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

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
