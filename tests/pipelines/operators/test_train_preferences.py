"""The training steps of a recipe that learn what is better, with the real trainers on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentmill.schemas.config import read_yaml
from agentmill.schemas.records.rows import PreferenceRow, ScorerRow, UnpairedRow
from tests.model import tiny_model
from tests.pipelines.cli.tables import MODELS, agentmill, write_recipe
from tests.trainers.scoring import scored_rows
from tests.trainers.tables import pairs, unpaired_rows, write_table

pytestmark = pytest.mark.slow

SHORT = {"max_steps": 1, "batch_size": 2, "save_steps": 1}
DPO = {"operator": "train_dpo", "rows": "pairs", "model": "actor", "loss_type": ["sigmoid", "sft"], "as": "preferring"}
KTO = {"operator": "train_kto", "rows": "labelled", "model": "actor@last", "reference": "actor@base", "as": "choosing"}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the other core to others."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def recipe(folder: Path, *steps: dict[str, object]) -> Path:
    data = {
        "pairs": str(write_table(folder / "pairs", pairs(4), PreferenceRow)),
        "scored": str(write_table(folder / "scored", scored_rows(4), ScorerRow)),
        "labelled": str(write_table(folder / "labelled", unpaired_rows(4), UnpairedRow)),
    }
    models = {**MODELS, "actor": {"policy": "vllm", "model": str(tiny_model())}}
    return write_recipe(folder, *steps, models=models, data=data)


def test_one_training_after_the_other(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = recipe(tmp_path, DPO | SHORT, KTO | SHORT)
    assert agentmill("run", path) == 0
    assert capfd.readouterr().err.count("mask self-test passed") == 2
    config = read_yaml(tmp_path / "run/trainings/choosing/config.yaml")
    assert (config["model"], config["reference"]) == (str(tmp_path / "run/preferring"), str(tiny_model()))
    assert "reference" not in read_yaml(tmp_path / "run/trainings/preferring/config.yaml")
    record = json.loads((tmp_path / "run/choosing/training.json").read_bytes())
    assert record["identity"]["reference_revision"] != record["base_revision"]
    assert agentmill("run", path, "steps.choosing.reference=actor@last") == 2
    assert "reference.revision" in capfd.readouterr().err


def test_mistakes_are_told_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert agentmill("run", recipe(tmp_path, DPO | {"rows": "labelled"})) == 2
    assert "rows holds UnpairedRow records, expected PreferenceRow" in capsys.readouterr().err
    assert agentmill("run", recipe(tmp_path, KTO | {"model": "actor", "reference": "planner"})) == 2
    assert "model 'planner' cannot be a reference" in capsys.readouterr().err
    assert agentmill("run", recipe(tmp_path, DPO | {"loss_type": ["sigmoids"]})) == 2
    assert "Did you mean 'sigmoid'?" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("rows", "option"), [("pairs", {"margin": True}), ("scored", {})])
def test_a_reward_model_is_no_version_of_the_model_it_starts_from(
    rows: str, option: dict[str, object], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    step = {"operator": "train_reward", "rows": rows, "model": "actor", "lora": {"rank": 4}, "as": "judging", **option}
    path = recipe(tmp_path, step | SHORT)
    assert agentmill("run", path) == 0
    folder = tmp_path / "run/judging"
    assert json.loads((folder / "config.json").read_bytes())["architectures"] == ["LlamaForSequenceClassification"]
    assert json.loads((tmp_path / "run/summary.json").read_bytes())["stages"]["judging"]["used"] == 4
    assert agentmill("run", recipe(tmp_path, step | SHORT, DPO | {"model": "actor@last"})) == 2
    assert "no step before this one trains 'actor'" in capfd.readouterr().err
    assert agentmill("run", recipe(tmp_path, step | {"rows": "labelled"})) == 2
    assert "rows holds UnpairedRow records, expected PreferenceRow or ScorerRow" in capfd.readouterr().err
