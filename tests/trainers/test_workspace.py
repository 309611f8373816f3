"""How a training goes on after a stop, and how its model appears."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

import pytest
from safetensors import SafetensorError

from agentmill.trainers import workspace as module
from agentmill.trainers.workspace import Workspace, space_errors
from tests.errors import user_error

Usage = namedtuple("Usage", "total used free")


def checkpoint(workspace: Workspace, step: int, complete: bool = True) -> Path:
    folder = workspace.folder / f"checkpoint-{step}"
    folder.mkdir()
    (folder / "weights").write_bytes(b"x")
    if complete:
        workspace.mark_complete(step)
    return folder


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = Workspace(tmp_path / "tuned", {"seed": 0})
    made.prepare(resume=True)
    return made


def test_an_incomplete_checkpoint_does_not_count_and_goes(workspace: Workspace) -> None:
    checkpoint(workspace, 4)
    checkpoint(workspace, 10)
    torn = checkpoint(workspace, 12, complete=False)
    assert workspace.latest_checkpoint() == workspace.folder / "checkpoint-10"
    workspace.prepare(resume=True)
    assert not torn.exists()
    assert workspace.latest_checkpoint() == workspace.folder / "checkpoint-10"


def test_starting_over_forgets_the_checkpoints(workspace: Workspace) -> None:
    checkpoint(workspace, 4)
    workspace.prepare(resume=False)
    assert workspace.latest_checkpoint() is None


def test_checkpoints_of_another_training_are_not_touched(workspace: Workspace) -> None:
    checkpoint(workspace, 4)
    other = Workspace(workspace.output, {"seed": 1})
    with user_error("made-differently", "seed: 0 -> 1", "output"):
        other.check()
    assert workspace.latest_checkpoint() is not None


def test_a_training_that_never_came_to_a_checkpoint_is_in_nobodys_way(workspace: Workspace) -> None:
    other = Workspace(workspace.output, {"seed": 1})
    other.check()
    other.prepare(resume=True)
    checkpoint(other, 2)
    with user_error("made-differently", "seed: 1 -> 0"):
        workspace.check()


def test_the_output_appears_whole_and_the_rest_goes(workspace: Workspace) -> None:
    workspace.model.mkdir()
    (workspace.model / "training.json").write_text('{"identity": {"seed": 0}}')
    assert not workspace.finished()
    workspace.publish()
    assert workspace.finished()
    assert not workspace.folder.exists()


def test_a_foreign_folder_is_not_overwritten(workspace: Workspace) -> None:
    workspace.output.mkdir()
    with user_error("output-not-ours", "output"):
        workspace.finished()


def test_too_little_space_is_told_before(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: Usage(10, 9, 10**9))
    workspace.require_space(10**9)
    with user_error("no-space", "1.0", "2.5"):
        workspace.require_space(2_500_000_000)


@pytest.mark.parametrize("error", [RuntimeError("PytorchStreamWriter failed writing file"), SafetensorError("I/O")])
def test_a_full_device_is_told_while_it_fills(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: Usage(10, 10, 0))
    with user_error("no-space"), space_errors(tmp_path / "work"):
        raise error
    monkeypatch.undo()
    with pytest.raises(type(error)), space_errors(tmp_path / "work"):
        raise error
