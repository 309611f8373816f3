"""Trainings as child processes: what they refuse keeps its code."""

from __future__ import annotations

from pathlib import Path

from agentmill.pipelines.processes.children import run_module
from tests.errors import user_error


def test_a_mistake_that_a_child_finds_keeps_its_code(tmp_path: Path) -> None:
    with user_error("not-an-adapter", "python -m agentmill.trainers.merge", tmp_path):
        run_module("agentmill.trainers.merge", [str(tmp_path), "--out", str(tmp_path / "out")])


def test_arguments_that_a_child_does_not_know_have_a_code(tmp_path: Path) -> None:
    with user_error("training-refused", "--no-such-option"):
        run_module("agentmill.trainers.merge", [str(tmp_path), "--no-such-option"])
