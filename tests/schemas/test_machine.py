"""What a machine allows a process; its memory is tested with that of the sandboxes."""

from __future__ import annotations

import resource

import pytest

from agentmill.schemas.machine import allow_open_files


@pytest.mark.parametrize(
    ("limits", "raised"),
    [
        ((1024, 1_048_576), [(4096, 1_048_576)]),
        ((1024, 2048), [(2048, 2048)]),
        ((1024, resource.RLIM_INFINITY), [(4096, resource.RLIM_INFINITY)]),
        ((20_000, 20_000), []),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), []),
    ],
)
def test_enough_files_may_be_open(
    limits: tuple[int, int], raised: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: done.append(wanted))
    allow_open_files.cache_clear()
    allow_open_files()
    assert done == raised
