"""From a table of labelled rows to a model folder, and what a user reads when that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agentmill.schemas.records.rows import UnpairedRow
from agentmill.trainers.kto import main
from tests.trainers.tables import assistant, side, unpaired, unpaired_rows, write_table
from tests.trainers.test_dpo import record_of
from tests.trainers.test_resume import checkpoints, curve, kill_at_checkpoint

pytestmark = pytest.mark.slow

torch.set_num_threads(1)


def refused(capsys: pytest.CaptureFixture[str], config: Path, *overrides: str) -> str:
    assert main(["--config", str(config), *overrides]) == 2
    said = capsys.readouterr().err.strip()
    assert "Traceback" not in said
    assert len(said.splitlines()) <= 3
    return said


def test_a_training_leaves_a_whole_model(kto_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(kto_config), "recipe=steve", "learning_rate=1e-3"]) == 0
    said = capsys.readouterr().err
    assert "rows: read 16 = used 16 + dropped 0; 16 rows" in said
    assert "labels: 8 good, weighing 8.0, and 8 bad, weighing 8.0" in said
    record = record_of(tmp_path / "tuned")
    assert record["roles"]["tool"]["loss"] == 0 < record["roles"]["tool"]["tokens"]
    assert record["first_loss"] == pytest.approx(0.5, abs=1e-4)
    assert record["last_loss"] < 0.47
    assert record["drift"]["margin"] > 0
    assert record["drift"]["kl"] >= 0
    card = (tmp_path / "tuned" / "README.md").read_text()
    for fact in ("Kahneman-Tversky optimization of", "- kto", "steve", "KL estimate", "desirable_weight: 1.0"):
        assert fact in card
    assert main(["--config", str(kto_config), "learning_rate=1e-3"]) == 0
    assert "nothing to do" in capsys.readouterr().err


def test_a_killed_training_ends_as_an_unbroken_one(kto_config: Path, tmp_path: Path) -> None:
    options = ["max_steps=12", "lora={rank: 4, dropout: 0.1}", "save_steps=3"]
    kill_at_checkpoint(kto_config, 9, *options, trainer="kto")
    assert checkpoints(tmp_path / ".tuned.work")[-1] == 6
    assert not (tmp_path / "tuned").exists()
    assert main(["--config", str(kto_config), *options]) == 0
    assert main(["--config", str(kto_config), *options, f"output={tmp_path / 'unbroken'}"]) == 0
    broken, unbroken = curve(tmp_path / "tuned"), curve(tmp_path / "unbroken")
    assert [point["step"] for point in broken] == list(range(1, 13))
    for key in ("loss", "kl", "grad_norm", "learning_rate", "tokens", "loss_tokens"):
        assert [point[key] for point in broken] == pytest.approx([point[key] for point in unbroken], rel=1e-3, abs=1e-4)


def test_without_an_estimate_of_the_distance_a_batch_may_be_one_row(kto_config: Path, tmp_path: Path) -> None:
    options = ["loss_type=apo_zero_unpaired", "batch_size=1", "max_steps=4", "precision=bf16"]
    assert main(["--config", str(kto_config), *options]) == 0
    points = curve(tmp_path / "tuned")
    assert {point["margin"] for point in points} == {None}
    assert {point["kl"] for point in points} == {None}
    assert [point["chosen_logp"] is None for point in points] == [
        point["rejected_logp"] is not None for point in points
    ]


def test_weights_and_long_rows(kto_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*unpaired_rows(8), unpaired("heavy", False, weight=4.0), unpaired("long", True, 40)]
    rows.append(unpaired("silent", True, completion=[*side(1, "box")[:-1], assistant("x", train=False)]))
    table = write_table(tmp_path / "mixed", rows, UnpairedRow)
    given = [f"rows={table}", "max_steps=2", "desirable_weight=0.5", "max_dropped=0.1"]
    assert main(["--config", str(kto_config), *given]) == 0
    said = capsys.readouterr().err
    assert "labels: 5 good, weighing 2.5, and 5 bad, weighing 8.0" in said
    assert "desirable_weight=1.6 would balance them" in said
    assert record_of(tmp_path / "tuned")["reasons"] == {"too_long": 1}


def test_mistakes_are_told_at_once(kto_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write_table(tmp_path / "good", [row for row in unpaired_rows() if row.label], UnpairedRow)
    assert "all 8 rows" in (said := refused(capsys, kto_config, f"rows={good}"))
    assert "have the label true" in said
    few = write_table(tmp_path / "few", unpaired_rows(3), UnpairedRow)
    message = refused(capsys, kto_config, f"rows={few}")
    assert "3 rows are fewer than go into a batch (4)" in message
    assert "set batch_size to 3 or export more" in message
    assert "batch_size: expected 2 or more, since KTO" in refused(capsys, kto_config, "batch_size=1")
    assert "desirable_weight: expected" in refused(capsys, kto_config, "desirable_weight=0")
