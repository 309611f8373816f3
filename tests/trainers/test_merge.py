"""A whole model out of an adapter: the same as if the training had merged it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from agentmill.trainers.merge import main
from agentmill.trainers.sft import main as sft_main
from tests.model import tiny_adapter

torch.set_num_threads(1)


@pytest.fixture
def adapter(config: Path, tmp_path: Path) -> Path:
    assert sft_main(["--config", str(config), "lora={rank: 4, merge: false}", "max_steps=2"]) == 0
    return tmp_path / "tuned"


def test_it_is_what_the_training_would_have_merged(adapter: Path, config: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    merged, wanted = tmp_path / "merged", tmp_path / "wanted"
    assert main([str(adapter), "--out", str(merged)]) == 0
    assert sft_main(["--config", str(config), "lora={rank: 4, merge: true}", "max_steps=2", f"output={wanted}"]) == 0
    made, trained = ({path.name for path in folder.iterdir()} for folder in (merged, wanted))
    assert made == trained
    found, expected = (AutoModelForCausalLM.from_pretrained(each).state_dict() for each in (merged, wanted))
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        assert weight.dtype == torch.bfloat16
        assert torch.equal(weight, expected[name]), name
    assert "library_name: transformers" in (merged / "README.md").read_text()
    assert sft_main(["--config", str(config), f"model={merged}", "max_steps=1", f"output={tmp_path / 'more'}"]) == 0


def test_an_adapter_of_others_needs_its_base(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "merged"
    assert main([str(tiny_adapter()), "--out", str(output)]) == 2
    assert "give the model with agentmill merge --base" in capsys.readouterr().err
    assert main([str(tiny_adapter()), "--out", str(output), "--base", str(model)]) == 0
    assert (output / "chat_template.jinja").read_bytes() == (model / "chat_template.jinja").read_bytes()


def test_mistakes(adapter: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Path(shutil.copytree(model, tmp_path / "other"))
    (other / "generation_config.json").write_text("{}")
    for arguments, message in (
        ([str(model), "--out", str(tmp_path / "x")], "holds no adapter_config.json"),
        ([str(adapter), "--out", str(adapter)], "exists already"),
        ([str(adapter), "--out", str(tmp_path / "x"), "--base", str(other)], "and the adapter was trained on"),
        ([str(adapter), "--out", str(tmp_path / "x"), "--base", str(tmp_path)], "holds no config.json"),
    ):
        assert main(arguments) == 2
        said = capsys.readouterr().err
        assert message in said
        assert len(said.strip().splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "rows", "train.yaml", "tuned"]
