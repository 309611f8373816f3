"""How a training goes on after a stop, and how its model appears."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from safetensors import SafetensorError

from agentmill.schemas import tables
from agentmill.schemas.monitoring import DriftLimits
from agentmill.schemas.records.rows import PreferenceRow
from agentmill.schemas.tables import Table
from agentmill.trainers import run_dir
from agentmill.trainers.command import DpoSettings
from agentmill.trainers.run_dir import WorkFolder, set_up_training, space_errors
from tests.errors import user_error
from tests.trainers.tables import pairs, write_table

Usage = namedtuple("Usage", "total used free")


def checkpoint(work: WorkFolder, step: int, complete: bool = True) -> Path:
    folder = work.folder / f"checkpoint-{step}"
    folder.mkdir()
    (folder / "weights").write_bytes(b"x")
    if complete:
        work.mark_complete(step)
    return folder


@pytest.fixture
def work(tmp_path: Path) -> WorkFolder:
    made = WorkFolder(tmp_path / "tuned", {"seed": 0})
    made.prepare(resume=True)
    return made


def test_an_incomplete_checkpoint_does_not_count_and_goes(work: WorkFolder) -> None:
    checkpoint(work, 4)
    checkpoint(work, 10)
    torn = checkpoint(work, 12, complete=False)
    assert work.latest_checkpoint() == work.folder / "checkpoint-10"
    work.prepare(resume=True)
    assert not torn.exists()
    assert work.latest_checkpoint() == work.folder / "checkpoint-10"


@pytest.mark.parametrize("content", [None, b"", b"xx"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    work: WorkFolder, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier, damaged = checkpoint(work, 4), checkpoint(work, 10)
    (earlier / "rng_state_1.pth").write_bytes(b"later")  # another process may write it after the mark
    if content is None:
        (damaged / "weights").unlink()
    else:
        (damaged / "weights").write_bytes(content)
    assert work.latest_checkpoint() == earlier
    work.prepare(resume=True)
    assert not damaged.exists()
    assert f"{damaged} is damaged" in capsys.readouterr().err
    # One of before sizes were kept.
    (earlier / "weights").write_bytes(b"")
    (earlier / "complete").write_bytes(b"")
    assert work.latest_checkpoint() == earlier
    (earlier / "complete").write_bytes(b"{")
    assert work.latest_checkpoint() is None
    # Also the only one does not go without a word.
    work.prepare(resume=True)
    assert f"{earlier} is damaged" in capsys.readouterr().err
    assert not earlier.exists()


@pytest.mark.parametrize("content", ['{"tr', "[]", '{"a": 1}'])
def test_a_damaged_identity_is_named(work: WorkFolder, content: str) -> None:
    checkpoint(work, 4)
    work.output.mkdir()
    (work.output / "training.json").write_text(content)
    with user_error("damaged-file", "training.json", str(work.output)):
        work.finished()
    (work.folder / "identity.json").write_text(content)
    with user_error("made-differently" if content.endswith("1}") else "damaged-file", str(work.folder)):
        work.check()


def test_starting_over_forgets_the_checkpoints(work: WorkFolder) -> None:
    checkpoint(work, 4)
    work.prepare(resume=False)
    assert work.latest_checkpoint() is None


def test_checkpoints_of_another_training_are_not_touched(work: WorkFolder) -> None:
    checkpoint(work, 4)
    other = WorkFolder(work.output, {"seed": 1})
    with user_error("made-differently", "seed: 0 -> 1", "output"):
        other.check()
    assert work.latest_checkpoint() is not None


def test_a_checkpoint_does_not_go_on_in_another_arithmetic(work: WorkFolder) -> None:
    begun = WorkFolder(work.output, {"seed": 0, "precision": "fp32"})
    # Of a training from before it was recorded.
    checkpoint(work, 4)
    begun.check()
    begun.prepare(resume=True)
    machine = {"processes": 1, "sharding": None}
    other = WorkFolder(work.output, {"seed": 0, "precision": "bf16"})
    with user_error("made-differently", "precision: fp32 -> bf16"):
        other.check()
    # A finished model is what it is.
    work.output.mkdir()
    (work.output / "training.json").write_text(
        '{"identity": {"seed": 0, "precision": "fp32", "processes": 2, "sharding": "fsdp"}}'
    )
    assert WorkFolder(work.output, {"seed": 0, "precision": "bf16", **machine}).finished()


@pytest.mark.parametrize(
    ("stop_when", "begun", "continued", "same"),
    [
        (None, {}, {"log_steps": 10, "save_steps": 3}, True),
        (DriftLimits(margin=4.0), {}, {"log_steps": 10}, False),
        (DriftLimits(margin=4.0), {}, {"save_steps": 3}, True),
        (DriftLimits(margin=4.0), {"log_steps": 10}, {"log_steps": 10, "save_steps": 3}, False),
    ],
)
def test_the_points_of_the_curve_count_where_they_end_a_training(
    tmp_path: Path,
    model: Path,
    stop_when: DriftLimits | None,
    begun: dict[str, int],
    continued: dict[str, int],
    same: bool,
) -> None:
    table = Table.open(write_table(tmp_path / "rows", pairs(), PreferenceRow))
    given = {"rows": "r", "model": "m", "output": str(tmp_path / "tuned"), "stop_when": stop_when}
    first, other = (
        set_up_training("dpo", DpoSettings(**given, **{"log_steps": 1, **steps}), table, model)
        for steps in (begun, continued)
    )
    assert first is not None
    assert other is not None
    assert (first.work.identity == other.work.identity) == same


def test_tokens_without_embeddings_are_a_warning(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Table.open(write_table(tmp_path / "rows", pairs(), PreferenceRow))
    settings = DpoSettings(rows="r", model="m", output=str(tmp_path / "tuned"))
    set_up_training("dpo", settings, table, model)
    assert "embeddings" not in capsys.readouterr().err
    small = shutil.copytree(model, tmp_path / "small")
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps({**config, "vocab_size": 7}))
    set_up_training("dpo", settings, table, small)
    assert "embeddings for 7" in capsys.readouterr().err


def test_a_training_that_never_came_to_a_checkpoint_is_in_nobodys_way(work: WorkFolder) -> None:
    other = WorkFolder(work.output, {"seed": 1})
    other.check()
    other.prepare(resume=True)
    checkpoint(other, 2)
    with user_error("made-differently", "seed: 1 -> 0"):
        work.check()


def test_the_output_appears_whole_and_the_rest_goes(work: WorkFolder) -> None:
    work.model.mkdir()
    (work.model / "training.json").write_text('{"identity": {"seed": 0}}')
    assert not work.finished()
    work.publish()
    assert work.finished()
    assert not work.folder.exists()


def test_a_foreign_folder_is_not_overwritten(work: WorkFolder) -> None:
    work.output.mkdir()
    with user_error("output-not-ours", "output"):
        work.finished()


def test_too_little_space_is_told_before(work: WorkFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_dir.shutil, "disk_usage", lambda _: Usage(10, 9, 10**9))
    work.require_space(10**9)
    with user_error("no-space", "1.0", "2.5"):
        work.require_space(2_500_000_000)


@pytest.mark.parametrize("error", [RuntimeError("PytorchStreamWriter failed writing file"), SafetensorError("I/O")])
def test_a_full_device_is_told_while_it_fills(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_dir.shutil, "disk_usage", lambda _: Usage(10, 10, 0))
    with user_error("no-space"), space_errors(tmp_path / "work"):
        raise error
    monkeypatch.undo()
    with pytest.raises(type(error)), space_errors(tmp_path / "work"):
        raise error


def test_a_kill_while_a_training_is_removed_leaves_nothing_to_go_on_from(
    work: WorkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what is left of it, without its identity, would be taken for a part of the next training."""
    checkpoint(work, 4)

    def killed(folder: Path) -> None:
        (folder / "identity.json").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(tables.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        work.prepare(resume=False)
    monkeypatch.undo()
    other = WorkFolder(work.output, {"seed": 1})
    other.check()
    assert other.latest_checkpoint() is None
    other.prepare(resume=True)
    assert sorted(path.name for path in work.output.parent.iterdir()) == [".tuned.work"]


def test_what_a_kill_left_of_a_finished_training_goes_with_the_next_command(
    work: WorkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.model.mkdir()
    (work.model / "training.json").write_text('{"identity": {"seed": 0}}')
    work.tokens.mkdir()
    (work.tokens / "tokens.json").write_text("")
    monkeypatch.setattr(WorkFolder, "_clear", lambda _: None)
    work.publish()
    monkeypatch.undo()
    assert work.folder.exists()
    assert work.finished()
    assert [path.name for path in work.output.parent.iterdir()] == ["tuned"]
