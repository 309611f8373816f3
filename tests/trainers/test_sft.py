"""From a table of rows to a model folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from agentmill.schemas.config import read_yaml
from agentmill.schemas.models import model_revision
from agentmill.schemas.tables import Table
from agentmill.trainers import trl_trainer
from agentmill.trainers.sft import main
from tests.errors import shows
from tests.trainers.tables import rows, tool_row, turns, write_table

pytestmark = pytest.mark.slow

torch.set_num_threads(1)


def record_of(config: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((Path(read_yaml(config)["output"]) / "training.json").read_bytes())
    return record


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from transformers import AutoModelForCausalLM

    return dict(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).named_parameters())


def test_a_training_leaves_a_whole_model(
    config: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(config), "recipe=agentgen"]) == 0
    said = capsys.readouterr().err
    assert "rows: read 24 = used 24 + dropped 0; 24 sequences" in said
    assert "mask self-test passed, tokens with loss: system 0 of" in said
    assert "user 0 of" in said

    record = record_of(config)
    table = Table.open(tmp_path / "rows")
    assert record["rows_digest"] == table.digest
    assert record["base_revision"] == model_revision(model)
    assert record["counts"] == {"read": 24, "used": 24, "dropped": 0, "written": 24}
    assert [point["step"] for point in record["loss_curve"]] == list(range(1, 9))
    assert record["last_loss"] < record["first_loss"] - 1
    assert record["loss_tokens"] == sum(point["loss_tokens"] for point in record["loss_curve"])
    assert record["roles"]["assistant"]["loss"] > 0
    assert record["rows_per_step"] == 4
    assert record["trained_parameters"] == record["parameters"]

    output = tmp_path / "tuned"
    assert json.loads((output / "config.json").read_text())["dtype"] == "bfloat16"
    assert (output / "chat_template.jinja").read_text() == (model / "chat_template.jinja").read_text()
    changed = [name for name, value in weights(output).items() if not torch.equal(value, weights(model)[name])]
    assert len(changed) > 10
    card = (output / "README.md").read_text()
    for fact in (table.digest, record["base_revision"], "agentgen", '`sft` {"rows":"trajectory"}', "learning_rate"):
        assert fact in card
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows", "train.yaml", "tuned"]

    assert main(["--config", str(config)]) == 0
    assert "nothing to do" in capsys.readouterr().err
    assert main(["--config", str(config), "learning_rate=0.1"]) == 2
    assert "settings.learning_rate: 0.002 -> 0.1" in capsys.readouterr().err


def test_an_adapter_and_the_merged_model_say_the_same(config: Path, model: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    lora = ["lora={rank: 4, alpha: 8, target_modules: [q_proj, v_proj], merge: false}", "learning_rate=0.03"]
    assert main(["--config", str(config), *lora]) == 0
    assert main(["--config", str(config), *lora, "lora.merge=true", f"output={tmp_path / 'merged'}"]) == 0
    adapter = json.loads((tmp_path / "tuned" / "adapter_config.json").read_text())
    assert (adapter["r"], adapter["lora_alpha"], sorted(adapter["target_modules"])) == (4, 8, ["q_proj", "v_proj"])
    assert not (tmp_path / "tuned" / "model.safetensors").exists()
    assert record_of(config)["trained_parameters"] == 2 * 4 * (128 + 128 + 128 + 64)

    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = torch.tensor([[1, 5, 9, 30, 2]])
    adapted = PeftModel.from_pretrained(base, tmp_path / "tuned")(ids).logits
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    torch.testing.assert_close(merged(ids).logits, adapted, atol=0.05, rtol=0.05)
    untuned = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)(ids).logits
    assert (adapted - untuned).abs().max() > 0.5


@pytest.mark.parametrize(
    ("epochs", "rows", "one_step", "steps"), [(0.07, 100, 1, 7), (0.55, 100, 5, 11), (1.5, 24, 4, 9), (0.01, 10, 4, 1)]
)
def test_epochs_are_whole_steps(epochs: float, rows: int, one_step: int, steps: int) -> None:
    assert trl_trainer.steps_in(epochs, rows, one_step) == steps


@pytest.mark.parametrize(
    ("overrides", "facts"),
    [
        (["precision=bf16"], {"precision": "bf16"}),
        (["precision=fp32", "gradient_checkpointing=true"], {"precision": "fp32"}),
        (["max_steps=null", "epochs=1.5", "save_steps=null"], {"steps": 9}),
        (["batch_size=2", "gradient_accumulation=2"], {"rows_per_step": 4, "steps": 8}),
        (["lora={dropout: 0.1}", "warmup=0.5", "scheduler=constant", "weight_decay=0.1"], {"steps": 8}),
    ],
)
def test_options(overrides: list[str], facts: dict[str, Any], config: Path) -> None:
    assert main(["--config", str(config), *overrides]) == 0
    record = record_of(config)
    assert {key: record[key] for key in facts} == facts


def test_dynamic_fine_tuning_heeds_likely_tokens(config: Path) -> None:
    assert main(["--config", str(config), "objective=dft"]) == 0
    record = record_of(config)
    assert record["first_loss"] < 0.1
    assert record["last_accuracy"] > record["loss_curve"][0]["accuracy"]


def test_schedules(config: Path) -> None:
    assert main(["--config", str(config), "scheduler=cosine", "warmup=0.25", "learning_rate=0.001"]) == 0
    rates = [point["learning_rate"] for point in record_of(config)["loss_curve"]]
    assert rates[:3] == pytest.approx([0.0, 0.0005, 0.001])
    assert rates[2:] == sorted(rates[2:], reverse=True)


def test_long_rows_are_cut_or_dropped_and_counted(config: Path, tmp_path: Path) -> None:
    write_table(tmp_path / "long", [*rows(6), turns(12, "long", words=12), tool_row()])
    long = [f"rows={tmp_path / 'long'}", "max_length=200", "max_steps=2", "save_steps=null", "max_dropped=1"]
    assert main(["--config", str(config), *long]) == 0
    cut = record_of(config)
    assert cut["counts"]["read"] == cut["counts"]["used"] == 8
    assert cut["counts"]["written"] > 8
    assert main(["--config", str(config), *long, "long_rows=drop", f"output={tmp_path / 'dropped'}"]) == 0
    dropped = json.loads((tmp_path / "dropped" / "training.json").read_bytes())
    assert dropped["counts"] == {"read": 8, "used": 7, "dropped": 1, "written": 7}
    assert dropped["reasons"] == {"too_long": 1}


def test_a_training_that_diverges_leaves_no_model(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(config), "learning_rate=1.0e+30", "warmup=0"]) == 2
    assert shows(capsys.readouterr().err, "training-diverged", "is not written", "lower learning_rate")
    assert not (tmp_path / "tuned").exists()


def test_a_training_that_something_else_ends_leaves_no_model(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupt(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = True

    with_others = trl_trainer.observers
    monkeypatch.setattr(trl_trainer, "observers", lambda *given: [*with_others(*given), Interrupt()])
    assert main(["--config", str(config)]) == 2
    assert shows(capsys.readouterr().err, "training-unfinished", "step 1 of 8")
    assert not (tmp_path / "tuned").exists()


def test_a_model_of_quantized_weights_is_refused_before_rows_are_read(
    config: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quantized = tmp_path / "quantized"
    shutil.copytree(model, quantized)
    configuration = json.loads((quantized / "config.json").read_text())
    configuration["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (quantized / "config.json").write_text(json.dumps(configuration))
    for given in ([], ["lora={rank: 4}"]):
        assert main(["--config", str(config), f"model={quantized}", *given]) == 2
        printed = capsys.readouterr().err
        assert shows(printed, "key-not-for-this", "quantized (bitsandbytes)", "lora.merge: false")
        assert "rows: read" not in printed
