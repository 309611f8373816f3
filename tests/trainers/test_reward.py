"""From a table of pairs or values to a reward model, and what a user reads when that cannot be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoTokenizer

from agentmill.schemas.config import dump_yaml
from agentmill.schemas.models import model_revision
from agentmill.schemas.records.rows import PreferenceRow, ScorerRow, SftRow
from agentmill.trainers.merge import main as merge_main
from agentmill.trainers.reward import ensure_padding_token, main
from agentmill.trainers.sft import main as sft_main
from tests.trainers.scoring import asked, scored, scored_rows
from tests.trainers.tables import TOOLS, assistant, pair, rows, side, system, user, write_table
from tests.trainers.test_resume import checkpoints, curve, kill_at_checkpoint

pytestmark = pytest.mark.slow

torch.set_num_threads(1)
FUNCTIONS = json.loads(TOOLS)
BOX, DOOR = ([system(), user("Where is the ring?"), *side(2, word)] for word in ("box", "door"))
"""Two searches that are in no table."""


def settled(row_id: str, turns: int, **fields: Any) -> PreferenceRow:
    """A pair of searches of one length, of which the one in the box is better."""
    return pair(row_id, chosen=side(turns, "box"), rejected=side(turns, "door"), **fields)


def written(folder: Path, model: Path, table: Path) -> Path:
    settings = {"rows": str(table), "model": str(model), "output": str(folder / "tuned"), "max_steps": 16}
    path = folder / "train.yaml"
    path.write_text(dump_yaml(settings | {"learning_rate": 2e-3, "save_steps": 2}))
    return path


@pytest.fixture
def pair_config(tmp_path: Path, model: Path) -> Path:
    """Sixteen short steps on 16 pairs."""
    table = write_table(tmp_path / "rows", [settled(f"p{n:03d}", n % 3) for n in range(16)], PreferenceRow)
    return written(tmp_path, model, table)


@pytest.fixture
def value_config(tmp_path: Path, model: Path) -> Path:
    """Sixteen short steps on 24 conversations with one of three values."""
    return written(tmp_path, model, write_table(tmp_path / "rows", scored_rows(24), ScorerRow))


def record_of(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "training.json").read_bytes())
    return record


def refused(capsys: pytest.CaptureFixture[str], config: Path, *overrides: str) -> str:
    assert main(["--config", str(config), *overrides]) == 2
    said = capsys.readouterr().err.strip()
    assert "Traceback" not in said
    assert len(said.splitlines()) <= 5
    return said


@pytest.mark.parametrize("lora", ["lora=null", "lora={rank: 4, merge: true}"])
def test_pairs_make_a_model_that_scores(
    lora: str, pair_config: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(pair_config), lora, "center_rewards_coefficient=0.01", "recipe=rm"]) == 0
    said = capsys.readouterr().err
    assert "rows: read 16 = used 16 + dropped 0; 16 pairs" in said
    assert "mask self-test" not in said
    record = record_of(tmp_path / "tuned")
    assert record["base_revision"] == model_revision(model)
    assert record["counts"] == {"read": 16, "used": 16, "dropped": 0, "written": 16}
    assert record["last_loss"] < record["first_loss"]
    assert record["last_accuracy"] > 0.9
    assert record["drift"]["margin"] == record["loss_curve"][-1]["margin"] > 0
    assert record["loss_curve"][0]["loss_tokens"] == 8

    better, worse = asked(tmp_path / "tuned", [BOX, DOOR], FUNCTIONS)
    assert better > worse + 1
    assert json.loads((tmp_path / "tuned/config.json").read_bytes())["architectures"] == [
        "LlamaForSequenceClassification"
    ]
    card = (tmp_path / "tuned" / "README.md").read_text()
    for fact in (
        "Training as a reward model of",
        "pipeline_tag: text-classification",
        "pairs in the right order",
        "rm",
    ):
        assert fact in card
    assert "never fell" not in card
    assert main(["--config", str(pair_config), lora, "center_rewards_coefficient=0.01"]) == 0
    assert "nothing to do" in capsys.readouterr().err


def test_an_adapter_keeps_the_head_that_scores(pair_config: Path, tmp_path: Path) -> None:
    assert main(["--config", str(pair_config), "lora={rank: 4, merge: false}", "precision=bf16"]) == 0
    from safetensors.torch import load_file

    heads = [
        weight for name, weight in load_file(tmp_path / "tuned/adapter_model.safetensors").items() if "score" in name
    ]
    assert [(each.dtype, tuple(each.shape)) for each in heads] == [(torch.float32, (1, 128))]
    assert merge_main([str(tmp_path / "tuned"), "--out", str(tmp_path / "whole")]) == 0
    better, worse = asked(tmp_path / "whole", [BOX, DOOR], FUNCTIONS)
    assert better > worse + 1


def test_values_are_learnt(value_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(value_config), "max_steps=80", "batch_size=8", "save_steps=null"]) == 0
    said = capsys.readouterr().err
    assert "24 conversations" in said
    assert "values: 0 to 1; to say 0.5 of all would be 0.4082 off (rms)" in said
    record = record_of(tmp_path / "tuned")
    assert record["last_accuracy"] > 0.9
    assert record["drift"]["error"] < 0.15
    shelf = [system(), user("Where is the ring?"), *side(1, "shelf")]
    scores = asked(tmp_path / "tuned", [BOX, shelf, DOOR], FUNCTIONS)
    assert scores == sorted(scores, reverse=True)
    assert scores == pytest.approx([1.0, 0.5, 0.0], abs=0.3)
    assert "scores against the values (root mean square)" in (tmp_path / "tuned" / "README.md").read_text()


@pytest.mark.parametrize(
    ("kind", "killed", "options"),
    [
        ("pair", 6, ["lora={rank: 4, dropout: 0.1}", "gradient_accumulation=2", "save_steps=3"]),
        ("value", 12, ["batch_size=4", "save_steps=4"]),
    ],
)
def test_a_killed_training_ends_as_an_unbroken_one(
    kind: str, killed: int, options: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    config = request.getfixturevalue(f"{kind}_config")
    options = [*options, f"max_steps={killed + 4}", "precision=fp32"]
    kill_at_checkpoint(config, killed, *options, trainer="reward")
    assert checkpoints(tmp_path / ".tuned.work")[-1] == {"pair": 3, "value": 8}[kind]
    assert not (tmp_path / "tuned").exists()
    assert main(["--config", str(config), *options]) == 0
    assert main(["--config", str(config), *options, f"output={tmp_path / 'unbroken'}"]) == 0
    broken, unbroken = curve(tmp_path / "tuned"), curve(tmp_path / "unbroken")
    assert [point["step"] for point in broken] == list(range(1, killed + 5))
    for key in ("loss", "accuracy", "tokens", "margin" if kind == "pair" else "error"):
        assert [point[key] for point in broken] == pytest.approx([point[key] for point in unbroken], rel=1e-3, abs=1e-5)


def test_rows_that_cannot_be_scored_are_counted(value_config: Path, tmp_path: Path) -> None:
    bad = [scored("b1", None), scored("b2", 1.0, turns=40), scored("b3", 1.0, messages=[])]
    table = write_table(tmp_path / "mixed", [*scored_rows(8), *bad], ScorerRow)
    assert main(["--config", str(value_config), f"rows={table}", "max_steps=1", "max_dropped=1"]) == 0
    record = record_of(tmp_path / "tuned")
    assert record["counts"] == {"read": 11, "used": 8, "dropped": 3, "written": 8}
    assert record["reasons"] == {"no_value": 1, "too_long": 1, "no_messages": 1}


def test_pairs_that_cannot_be_compared_are_counted(pair_config: Path, tmp_path: Path) -> None:
    silent = [assistant("no", train=False)]
    table = write_table(
        tmp_path / "mixed",
        [settled("p1", 1), settled("p2", 1, prompt=[]), pair("p3", rejected=silent), pair("b1", chosen=silent,
         rejected=silent), pair("b2", 40)],
        PreferenceRow,
    )  # fmt: skip
    assert main(["--config", str(pair_config), f"rows={table}", "max_steps=1", "batch_size=1", "max_dropped=1"]) == 0
    record = record_of(tmp_path / "tuned")
    assert record["counts"] == {"read": 5, "used": 3, "dropped": 2, "written": 3}
    assert record["reasons"] == {"same": 1, "too_long": 1}


def test_mistakes_are_told_at_once(
    value_config: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sft = write_table(tmp_path / "sft", rows(2), SftRow)
    expected = "is a table of SftRow, expected PreferenceRow or ScorerRow"
    assert expected in refused(capsys, value_config, f"rows={sft}")
    assert "holds no rows" in refused(capsys, value_config, f"rows={write_table(tmp_path / 'none', [], ScorerRow)}")
    assert "margin is about pairs" in refused(capsys, value_config, "margin=true")
    alike = write_table(tmp_path / "alike", [scored("a", 1.0), scored("b", 1.0)], ScorerRow)
    assert "all 2 rows have the value 1" in refused(capsys, value_config, f"rows={alike}")
    assert "(24 too_long)" in refused(capsys, value_config, "max_length=32")
    assert "no layer 'score'" in refused(capsys, value_config, "lora={rank: 4, target_modules: [score]}")

    other = Path(shutil.copytree(model, tmp_path / "other"))
    configuration = msgspec.json.decode((other / "tokenizer_config.json").read_bytes())
    for name in ("pad_token", "eos_token"):
        configuration.pop(name)
    (other / "tokenizer_config.json").write_bytes(msgspec.json.encode(configuration))
    assert "has neither a padding nor an end token" in refused(capsys, value_config, f"model={other}")


def test_padding_is_no_token_that_ends_conversations(model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.pad_token = "<|im_end|>"
    ensure_padding_token(tokenizer, model)
    assert tokenizer.pad_token == "<|im_end|>", "a line end follows it"
    turn = "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>"
    tokenizer.chat_template = f"{{% for message in messages %}}{turn}{{% endfor %}}"
    ensure_padding_token(tokenizer, model)
    assert tokenizer.pad_token not in (None, "<|im_end|>")
    assert tokenizer.pad_token_id is not None


def test_a_model_without_padding_pads_with_its_end(value_config: Path, model: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(model, tmp_path / "other"))
    for name, key in (("tokenizer_config.json", "pad_token"), ("config.json", "pad_token_id")):
        configuration = msgspec.json.decode((other / name).read_bytes())
        configuration.pop(key)
        (other / name).write_bytes(msgspec.json.encode(configuration))
    assert main(["--config", str(value_config), f"model={other}", "lora={rank: 4, merge: true}", "max_steps=2"]) == 0
    assert json.loads((tmp_path / "tuned/config.json").read_bytes())["pad_token_id"] == 2
    alone = [asked(tmp_path / "tuned", [each], FUNCTIONS)[0] for each in (BOX, DOOR[:3])]
    assert asked(tmp_path / "tuned", [BOX, DOOR[:3]], FUNCTIONS) == pytest.approx(alone, abs=1e-4)


def test_a_reward_model_does_not_go_on_with_text(
    pair_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(pair_config), "max_steps=1"]) == 0
    reward = f"model={tmp_path / 'tuned'}"
    capsys.readouterr()
    sft = write_table(tmp_path / "sft", rows(2), SftRow)
    assert sft_main(["--config", str(pair_config), reward, f"rows={sft}", f"output={tmp_path / 'more'}"]) == 2
    assert "holds a reward model" in capsys.readouterr().err
    assert main(["--config", str(pair_config), reward, f"output={tmp_path / 'further'}", "max_steps=1"]) == 0
