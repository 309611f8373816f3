"""What is known of a model folder without loading it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentmill.schemas.models import chat_template, context_length, is_reward_model, model_revision, read_json
from tests.errors import user_error


def model(folder: Path, template: str | list[dict[str, str]] | None = None, **configuration: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(configuration))
    if template is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


@pytest.mark.parametrize(
    ("architectures", "scores"),
    [
        (["LlamaForSequenceClassification"], True),
        (["Qwen3ForSequenceClassification", "Other"], True),
        (["LlamaForCausalLM"], False),
        ([], False),
        (None, False),
    ],
)
def test_a_reward_model_is_known_by_its_architecture(
    architectures: list[str] | None, scores: bool, tmp_path: Path
) -> None:
    assert is_reward_model(model(tmp_path / "m", architectures=architectures)) is scores


def test_of_several_templates_the_one_for_tools_counts(tmp_path: Path) -> None:
    several = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    assert chat_template(model(tmp_path / "m", several)) == "tools"
    assert chat_template(model(tmp_path / "m", several[:1])) == "plain"
    (tmp_path / "m" / "chat_template.jinja").write_text("apart")
    assert chat_template(tmp_path / "m") == "apart"
    assert chat_template(model(tmp_path / "none")) == ""


def test_files_that_are_too_large_are_not_read(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", "{{ tools }}" * 100_000)
    with user_error("file-too-large", "1,100,000"):
        chat_template(folder)
    (folder / "chat_template.jinja").write_text("{{ tools }}" * 100_000)
    with user_error("file-too-large", "chat_template.jinja", "1,048,576"):
        chat_template(folder)
    with (folder / "config.json").open("wb") as file:
        file.truncate(2**26 + 1)
    for look in (is_reward_model, context_length):
        with user_error("file-too-large", "config.json", "67,108,865", "67,108,864"):
            look(folder)


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_damaged_configurations_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with user_error("damaged-file", "config.json", "copy the model folder again"):
        read_json(tmp_path / "config.json")
    assert read_json(tmp_path / "none.json") == {}


def test_the_context_of_a_multimodal_model_is_that_of_its_text(tmp_path: Path) -> None:
    assert context_length(model(tmp_path / "m", max_position_embeddings=64)) == 64
    assert context_length(model(tmp_path / "m", text_config={"max_position_embeddings": 32})) == 32
    assert context_length(model(tmp_path / "m")) is None


def test_the_record_of_a_training_is_no_part_of_the_revision(tmp_path: Path) -> None:
    one = model_revision(model(tmp_path / "m", "a"))
    (tmp_path / "m" / "training.json").write_text("{}")
    assert model_revision(tmp_path / "m") == one
    assert model_revision(model(tmp_path / "m", "b")) != one


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "consolidated.00.pt"])
def test_pickled_weights_are_in_the_revision_where_they_are_loaded(name: str, tmp_path: Path) -> None:
    one, other = (model(tmp_path / each) for each in ("one", "other"))
    for folder in (one, other):
        (folder / name).write_bytes(folder.name.encode())
    assert model_revision(one) != model_revision(other)
    # Both vLLM and transformers take these first.
    for folder in (one, other):
        (folder / "model.safetensors").write_bytes(b"weights")
    assert model_revision(one) == model_revision(other)


def test_what_trainers_leave_is_no_part_of_a_model(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    (folder / "pytorch_model.bin").write_bytes(b"weights")
    before = model_revision(folder)
    for name in ("training_args.bin", "optimizer.pt"):
        (folder / name).write_bytes(b"x")
    assert model_revision(folder) == before
