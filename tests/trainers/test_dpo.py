"""From a table of pairs to a model folder, and what a user reads when that cannot be."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig as PeftLoraConfig
from peft import get_peft_model

from agentmill.schemas.models import model_revision
from agentmill.schemas.records.rows import PreferenceRow, UnpairedRow
from agentmill.trainers import train_loop
from agentmill.trainers.adapters import load_adapter, load_merged
from agentmill.trainers.dpo import main
from agentmill.trainers.model_io import load_weights
from agentmill.trainers.preference_data import encode_pair
from agentmill.trainers.tokenization import RowError
from tests.errors import shows, user_error
from tests.model import tiny_model
from tests.trainers.tables import answered, assistant, pair, pairs, side, unpaired_rows, user, write_table
from tests.trainers.test_resume import checkpoints, curve, kill_at_checkpoint

pytestmark = pytest.mark.slow

torch.set_num_threads(1)


def record_of(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "training.json").read_bytes())
    return record


def refused(capsys: pytest.CaptureFixture[str], config: Path, *overrides: str) -> str:
    assert main(["--config", str(config), *overrides]) == 2
    said = capsys.readouterr().err.strip()
    assert "Traceback" not in said
    assert len(said.splitlines()) <= 3
    return said


def test_a_training_leaves_a_whole_model(
    dpo_config: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(dpo_config), "recipe=eto"]) == 0
    said = capsys.readouterr().err
    assert "rows: read 16 = used 16 + dropped 0; 16 pairs" in said
    assert "tool 0 of" in said
    assert "the chosen side" not in said

    record = record_of(tmp_path / "tuned")
    assert record["identity"]["reference_revision"] == record["base_revision"] == model_revision(model)
    assert record["counts"] == {"read": 16, "used": 16, "dropped": 0, "written": 16}
    assert record["roles"]["tool"]["loss"] == 0 < record["roles"]["tool"]["tokens"]
    assert [point["step"] for point in record["loss_curve"]] == list(range(1, 9))
    assert record["first_loss"] == pytest.approx(0.6931, abs=1e-3)
    assert record["last_loss"] < record["first_loss"] - 0.05
    assert record["last_accuracy"] == 1
    assert record["drift"]["margin"] == record["loss_curve"][-1]["margin"] > 0
    assert record["warnings"] == []

    card = (tmp_path / "tuned" / "README.md").read_text()
    for fact in (
        "Direct preference optimization of",
        "- dpo",
        "`trajectory_pairs`",
        "eto",
        "in 16 pairs",
        "against the",
    ):
        assert fact in card
    assert "Supervised" not in card
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows", "train.yaml", "tuned"]
    assert main(["--config", str(dpo_config)]) == 0
    assert "nothing to do" in capsys.readouterr().err
    assert "settings.beta: 0.1 -> 0.5" in refused(capsys, dpo_config, "beta=0.5")


def test_a_killed_training_ends_as_an_unbroken_one(dpo_config: Path, tmp_path: Path) -> None:
    options = ["max_steps=10", "lora={rank: 4, dropout: 0.1}", "gradient_accumulation=2", "save_steps=3"]
    kill_at_checkpoint(dpo_config, 6, *options, trainer="dpo")
    assert checkpoints(tmp_path / ".tuned.work")[-1] == 3
    assert not (tmp_path / "tuned").exists()
    assert main(["--config", str(dpo_config), *options]) == 0
    assert main(["--config", str(dpo_config), *options, f"output={tmp_path / 'unbroken'}"]) == 0
    broken, unbroken = curve(tmp_path / "tuned"), curve(tmp_path / "unbroken")
    assert [point["step"] for point in broken] == list(range(1, 11))
    for key in ("loss", "margin", "chosen_change", "grad_norm", "learning_rate", "tokens", "loss_tokens"):
        assert [point[key] for point in broken] == pytest.approx([point[key] for point in unbroken], rel=1e-3, abs=1e-5)


def test_the_reference_may_be_another_model(dpo_config: Path, tmp_path: Path) -> None:
    assert main(["--config", str(dpo_config)]) == 0
    later = [f"model={tmp_path / 'tuned'}", "max_steps=2", "learning_rate=1e-6", "save_steps=null"]
    assert main(["--config", str(dpo_config), *later, f"output={tmp_path / 'next'}"]) == 0
    assert curve(tmp_path / "next")[0]["margin"] == 0
    for lora in ("lora=null", "lora={rank: 4, merge: true}"):
        first = [f"reference={record_of(tmp_path / 'tuned')['settings']['model']}", lora]
        assert main(["--config", str(dpo_config), *later, *first, f"output={tmp_path / 'first'}"]) == 0
        assert curve(tmp_path / "first")[0]["margin"] > 0.1
        shutil.rmtree(tmp_path / "first")


@pytest.mark.parametrize(
    "overrides",
    [
        ["loss_type=[sigmoid, sft]", "loss_weights=[1, 0.2]", "precision=bf16"],
        ["loss_type=[robust]", "label_smoothing=0.1", "gradient_checkpointing=true"],
        ["loss_type=[aot, ipo]", "max_steps=null", "epochs=1.5", "save_steps=null"],
    ],
)
def test_options(overrides: list[str], dpo_config: Path, tmp_path: Path) -> None:
    assert main(["--config", str(dpo_config), "max_steps=2", *overrides]) == 0
    assert len(curve(tmp_path / "tuned")) == (6 if "epochs=1.5" in overrides else 2)


def test_far_from_the_reference_is_warned_of(
    dpo_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(dpo_config), "learning_rate=0.05", "max_steps=12"]) == 0
    assert capsys.readouterr().err.count("warning: at step") == 1
    record = record_of(tmp_path / "tuned")
    assert "nats per token less likely" in record["warnings"][0]
    assert "**Warning:** at step" in (tmp_path / "tuned" / "README.md").read_text()


def test_rows_that_cannot_be_trained_on_are_counted(dpo_config: Path, tmp_path: Path) -> None:
    good = pairs(8)
    silent = [assistant("no", train=False)]
    bad = [
        pair("b1", rejected=silent),
        pair("b2", prompt=[]),
        pair("b3", prompt=[user("Go."), assistant("I do")]),
        pair("b4", chosen=side(1, "box"), rejected=side(1, "box")),
        pair("b5", chosen=side(40, "box")),
        pair("b6", chosen=[assistant("a", weight=0.5)]),
    ]
    table = write_table(tmp_path / "mixed", [*good, *bad], PreferenceRow)
    assert main(["--config", str(dpo_config), f"rows={table}", "max_steps=1", "max_dropped=1"]) == 0
    record = record_of(tmp_path / "tuned")
    assert record["counts"] == {"read": 14, "used": 8, "dropped": 6, "written": 8}
    reasons = ("no_loss", "no_prompt", "loss_in_prompt", "same", "too_long", "message_weight")
    assert record["reasons"] == dict.fromkeys(reasons, 1)


def test_why_a_pair_cannot_be_trained_on(tokenizer: Any) -> None:
    with pytest.raises(RowError, match=r"p1/rejected: no assistant message of the row is trained"):
        encode_pair(pair(rejected=[assistant("no", train=False)]), tokenizer, 512)
    with pytest.raises(RowError, match=r"p1/rejected: \d+ tokens, more than max_length 64"):
        encode_pair(pair(), tokenizer, 64)
    with pytest.raises(RowError, match="only assistant messages"):
        encode_pair(pair(chosen=[user("x"), assistant("y")], rejected=[_trained(answered("z"))]), tokenizer, 512)


def _trained(message: Any) -> Any:
    import msgspec

    return msgspec.structs.replace(message, train=True)


def test_mistakes_are_told_at_once(
    dpo_config: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = write_table(tmp_path / "empty", [], PreferenceRow)
    assert "holds no rows" in refused(capsys, dpo_config, f"rows={empty}")
    unpaired = write_table(tmp_path / "unpaired", unpaired_rows(), UnpairedRow)
    said = refused(capsys, dpo_config, f"rows={unpaired}")
    assert "is a table of UnpairedRow, expected PreferenceRow" in said
    assert "(16 too_long)" in refused(capsys, dpo_config, "max_length=32")
    assert "Did you mean 'sigmoid'?" in refused(capsys, dpo_config, "loss_type=[sigmoidd]")
    assert "loss_weights has 2 weights for 1 losses" in refused(capsys, dpo_config, "loss_weights=[1, 2]")
    assert "needs label_smoothing" in refused(capsys, dpo_config, "loss_type=[exo_pair]")
    assert "has no effect on the losses sigmoid" in refused(capsys, dpo_config, "label_smoothing=0.1")
    weighted = write_table(tmp_path / "weighted", [pair(weight=2.0)], PreferenceRow)
    assert "sorts the pairs of a batch" in refused(capsys, dpo_config, f"rows={weighted}", "loss_type=[aot]")

    assert "does not exist" in refused(capsys, dpo_config, f"reference={tmp_path / 'none'}")
    other = Path(shutil.copytree(model, tmp_path / "other"))
    configuration = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(configuration | {"vocab_size": 2048}))
    assert "has another tokenizer than the model" in refused(capsys, dpo_config, f"reference={other}")
    (other / "config.json").write_text(json.dumps(configuration))
    (other / "chat_template.jinja").unlink()
    assert "has no chat template" in refused(capsys, dpo_config, f"model={other}")


def test_a_training_ends_at_a_limit_and_says_why(
    dpo_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(dpo_config)]) == 0
    whole = record_of(tmp_path / "tuned")
    assert whole["stopped"] is None
    assert all(point["entropy"] > 0 for point in whole["loss_curve"])
    margins = [point["margin"] for point in whole["loss_curve"]]
    limit = (margins[2] + max(margins[:2])) / 2
    assert max(margins[:2]) < limit < margins[2], "the third step is the first beyond it"
    options = [f"stop_when={{margin: {limit}, window: 1}}", f"output={tmp_path / 'ended'}"]
    assert main(["--config", str(dpo_config), *options]) == 0
    ended = record_of(tmp_path / "ended")
    assert "the training ends at step 3: margin is" in capsys.readouterr().err
    assert (ended["steps"], len(ended["loss_curve"])) == (3, 3)
    assert ended["stopped"].startswith("at step 3: margin is")
    assert "ended early at step 3" in (tmp_path / "ended" / "README.md").read_text()
    assert [point["loss"] for point in ended["loss_curve"]] == [point["loss"] for point in whole["loss_curve"][:3]]


def test_a_training_that_was_killed_after_it_had_ended_at_a_limit_makes_no_further_step(
    dpo_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    options = ["stop_when={chosen_change: -1.0e-9, window: 2}", "learning_rate=0.1", "save_steps=2"]
    monkeypatch.setattr(train_loop, "write_model", killed)
    assert main(["--config", str(dpo_config), *options]) == 130
    monkeypatch.undo()
    assert main(["--config", str(dpo_config), *options]) == 0
    ended = record_of(tmp_path / "tuned")
    assert (ended["steps"], len(ended["loss_curve"])) == (2, 2)
    assert ended["stopped"].startswith("at step 2: chosen_change is")


def foreign_adapter(folder: Path, **config: Any) -> Path:
    """An adapter by PEFT alone, whose weights are not at their start."""
    torch.manual_seed(0)
    base = load_weights(tiny_model(), "CAUSAL_LM", torch.float32)
    config = {"target_modules": ["q_proj"], **config}
    adapted = get_peft_model(base, PeftLoraConfig(r=4, task_type="CAUSAL_LM", **config))
    for weight in adapted.parameters():
        if weight.requires_grad:
            weight.data += 0.1 * torch.randn_like(weight)
    adapted.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": ["q_proj", "embed_tokens"]},
        {"trainable_token_indices": list(range(200, 800))},
        {"init_lora_weights": "pissa"},
        {"init_lora_weights": "olora"},
    ],
)
@pytest.mark.filterwarnings("ignore:Model with:UserWarning")
def test_the_reference_of_an_adapter_is_the_adapter_in_all(
    dpo_config: Path, tmp_path: Path, config: dict[str, Any]
) -> None:
    adapter, ids = foreign_adapter(tmp_path / "adapter", **config), torch.arange(12)[None]
    with torch.no_grad():
        start = load_adapter(load_weights(tiny_model(), "CAUSAL_LM", torch.float32), adapter, 0.0)
        wanted = start.eval()(input_ids=ids).logits
    changes = [
        f"model={adapter}",
        f"base={tiny_model()}",
        "max_steps=1",
        "learning_rate=1.0e-9",
        "precision=fp32",
        "save_dtype=fp32",
    ]
    assert main(["--config", str(dpo_config), *changes]) == 0
    assert record_of(tmp_path / "tuned")["first_loss"] == pytest.approx(math.log(2), abs=1e-5)
    with torch.no_grad():
        found = load_weights(tmp_path / "tuned", "CAUSAL_LM", torch.float32).eval()(input_ids=ids).logits
    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)
    # What was trained is that model, too.
    whole = [f"model={tmp_path / 'tuned'}", "max_steps=1", "precision=fp32", f"output={tmp_path / 'again'}"]
    assert main(["--config", str(dpo_config), *whole]) == 0
    first, again = (record_of(tmp_path / name)["loss_curve"][0]["chosen_logp"] for name in ("tuned", "again"))
    assert first == pytest.approx(again, abs=0.01)


def test_adapters_with_biases_are_refused_before_the_training(
    dpo_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    biased, low_rank = tmp_path / "biased", tmp_path / "lora_bias"
    for adapter, config, words in (
        (biased, {"bias": "lora_only"}, ("bias: lora_only", "agentmill merge")),
        (low_rank, {"lora_bias": True}, ("q_proj", "lora.merge: false")),
    ):
        changes = [f"model={foreign_adapter(adapter, **config)}", f"base={tiny_model()}"]
        assert main(["--config", str(dpo_config), *changes]) == 2
        assert shows(capsys.readouterr().err, "lora-differs", *words)
    with user_error("lora-differs", "q_proj"):
        load_merged(tiny_model(), low_rank, "CAUSAL_LM")
