"""What a user reads, and the exit code, when a training cannot begin."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from agentmill.schemas.config import dump_yaml, read_yaml
from agentmill.schemas.records.rows import PreferenceRow
from agentmill.schemas.records.task import Task
from agentmill.trainers.dpo import main as dpo_main
from agentmill.trainers.sft import main
from tests.builders import task
from tests.trainers.tables import assistant, pair, row, turns, user, write_table


def refused(capsys: pytest.CaptureFixture[str], config: Path, *overrides: str) -> str:
    assert main(["--config", str(config), *overrides]) == 2
    said = capsys.readouterr().err.strip()
    assert "Traceback" not in said
    assert len(said.splitlines()) <= 3
    return said


def test_configuration(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no configuration" in refused(capsys, tmp_path / "other.yaml")
    assert "Did you mean 'learning_rate'?" in refused(capsys, config, "learning_rat=1")
    assert "batch_size: expected" in refused(capsys, config, "batch_size=many")
    assert "Did you mean 'bf16'?" in refused(capsys, config, "precision=bf61")


def test_rows(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no table at" in refused(capsys, config, f"rows={tmp_path / 'none'}")
    (tmp_path / "unfinished" / "data").mkdir(parents=True)
    assert "it has no manifest.json" in refused(capsys, config, f"rows={tmp_path / 'unfinished'}")
    tasks = write_table(tmp_path / "tasks", [task()], Task)
    assert "is a table of Task, expected SftRow" in refused(capsys, config, f"rows={tasks}")
    empty = write_table(tmp_path / "empty", [])
    assert "holds no rows; look at why with `agentmill inspect" in refused(capsys, config, f"rows={empty}")
    torn = write_table(tmp_path / "torn", [turns(1)])
    shard = torn / "data" / "part-00000.parquet"
    shard.write_bytes(b"x" * shard.stat().st_size)
    assert "is no readable Parquet file" in refused(capsys, config, f"rows={torn}")


def test_rows_that_cannot_be_trained_on(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    silent = write_table(tmp_path / "silent", [row([user("Go."), assistant("fly", train=False)])])
    said = refused(capsys, config, f"rows={silent}")
    assert "none of the 1 rows of" in said
    assert "(1 no_loss)" in said
    assert "(14 too_long): 58.3%, more than max_dropped=5.0%" in refused(capsys, config, "max_length=16")


def test_rows_that_teach_nothing(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    none = [row([user("Go."), assistant("fly", weight=0)], f"r{place}") for place in range(8)]
    table = write_table(tmp_path / "none", none)
    assert main(["--config", str(config), f"rows={table}"]) == 2
    assert "all 8 rows have the weight 0" in capsys.readouterr().err
    one = write_table(tmp_path / "one", [*none, row([user("Go."), assistant("fly")], "r8")])
    assert main(["--config", str(config), f"rows={one}", "max_steps=1", f"output={tmp_path / 'tuned'}"]) == 0

    pairs = write_table(tmp_path / "pairs", [pair(f"p{place}", weight=0) for place in range(8)], PreferenceRow)
    settings = read_yaml(config)
    other = tmp_path / "dpo.yaml"
    kept = {key: settings[key] for key in ("model", "max_steps", "batch_size")}
    other.write_text(dump_yaml({**kept, "rows": str(pairs), "output": str(tmp_path / "preferring")}))
    assert dpo_main(["--config", str(other)]) == 2
    assert "all 8 rows have the weight 0" in capsys.readouterr().err


def test_templates_that_are_none(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("")
    assert f"the chat template {file} is empty" in refused(capsys, config, f"chat_template={file}")
    file.write_text("{% for message in messages %}{{ message.content }}")
    assert "the chat template is no Jinja template: Unexpected end" in refused(capsys, config, f"chat_template={file}")


def test_model(config: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "does not exist; expected a transformers model folder" in refused(capsys, config, f"model={tmp_path / 'no'}")
    assert "holds no config.json" in refused(capsys, config, f"model={tmp_path}")
    assert "Did you mean bundled:smollm2-135m-instruct?" in refused(capsys, config, "model=smollm2-135m-instruct")
    assert "unknown bundled model 'smollm2'" in refused(capsys, config, "model=bundled:smollm2")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    kind = refused(capsys, config, f"model={tmp_path / 'adapter'}")
    assert "is an adapter of the kind None; expected a LoRA adapter" in kind

    plain = Path(shutil.copytree(model, tmp_path / "plain"))
    (plain / "chat_template.jinja").unlink()
    assert "has no chat template" in refused(capsys, config, f"model={plain}")


def test_lora_layers(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--config", str(config), "lora={target_modules: [query_proj]}"])
    said = capsys.readouterr().err
    assert "lora.target_modules: no layer 'query_proj'; known: down_proj, gate_proj" in said
    assert "lm_head" not in said


def test_output(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "notes.txt").write_text("mine")
    assert "exists and is no model of ours" in refused(capsys, config)
    (tmp_path / "tuned" / "training.json").write_text(json.dumps({"identity": {"processes": 8}}))
    assert "comes from another training (trainer: (absent) -> sft" in refused(capsys, config)
    assert (tmp_path / "tuned" / "notes.txt").read_text() == "mine"


def test_an_interrupt_says_how_to_go_on(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("agentmill.trainers.sft.train_model", interrupted)
    assert main(["--config", str(config)]) == 130
    assert "interrupted; the same command continues from the last checkpoint" in capsys.readouterr().err
