"""The struct types of this process, which several threads decode at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

import msgspec

_lock = threading.Lock()
_prepared: set[type[msgspec.Struct]] = set()


def prepare_struct_types() -> None:
    """Have msgspec look at the fields of all struct types that are defined so far. Call it before threads decode them.

    msgspec does so when a type is first decoded. A second thread that decodes the type before this is finished reads
    what is not there yet, and the process dies of a segmentation fault (msgspec 0.22).
    """
    with _lock:
        for each in set(subclasses(msgspec.Struct)) - _prepared:
            # Types that nothing decodes may hold what msgspec cannot decode.
            with suppress(Exception):
                msgspec.json.Decoder(each)
            _prepared.add(each)


def subclasses(base: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    """All classes that are derived from ``base``, at any depth."""
    for each in base.__subclasses__():
        yield each
        yield from subclasses(each)
