"""Scores at a threshold: rounding decides nothing, and a real difference does."""

from __future__ import annotations

from agentmill.schemas.thresholds import exceeds, reaches


def test_rounding_decides_nothing() -> None:
    assert 0.1 + 0.7 < 0.8
    assert reaches(0.1 + 0.7, 0.8)
    assert 0.1 + 0.2 > 0.3
    assert not exceeds(0.1 + 0.2, 0.3)


def test_a_difference_decides() -> None:
    assert not reaches(0.7999, 0.8)
    assert exceeds(0.3001, 0.3)
    assert not exceeds(2, 2)
    assert not reaches(1, 2)
