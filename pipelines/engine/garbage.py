"""Python's garbage collector while rows are worked on.

The outputs of a chunk are kept until its shard is written, and the collector, which only finds cycles, would look at
all of them, and at all that is imported, again and again: a tenth of the time of reading. Cycles are rare here.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

RARE = (200_000, 20, 20)
"""Objects that are made before the young ones are looked at, and how often until the older ones are."""


@contextmanager
def rare_collection() -> Iterator[None]:
    """Collect rarely for as long as this lasts. Where threads overlap, the first that ends ends it for all."""
    usual = gc.get_threshold()
    if usual == RARE:
        yield
        return
    gc.set_threshold(*RARE)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
