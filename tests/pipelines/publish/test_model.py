"""What goes up of a tuned model."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pipelines.publish.model import ADAPTER, model
from pipelines.publish.publication import Order
from schemas.errors import UserError

CONFIG = {"base_model_name_or_path": "/home/jane/models/base", "peft_type": "LORA", "r": 8}


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """An adapter as a trainer leaves it: it names its base by where that lies."""
    folder = tmp_path / "tuned"
    folder.mkdir()
    (folder / ADAPTER).write_bytes(msgspec.json.encode(CONFIG))
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    (folder / "training.json").write_text('{"settings": {"model": "/home/jane/models/base"}}')
    (folder / "tokenizer.json").write_text('{"vocab": {"/usr/bin": 1}}')
    (folder / "README.md").write_text("---\nlibrary_name: peft\n---\n\n# tuned\n")
    return folder


def order(folder: Path, base_model: str | None) -> Order:
    return Order(path=folder, repo="org/tuned", licence="mit", base_model=base_model)


def test_an_adapter_is_published_with_the_name_of_its_base_on_the_hub(adapter: Path) -> None:
    found = model(order(adapter, "org/base"))
    published = found.files[ADAPTER].source
    assert isinstance(published, bytes)
    assert msgspec.json.decode(published) == {**CONFIG, "base_model_name_or_path": "org/base"}
    assert msgspec.json.decode((adapter / ADAPTER).read_bytes()) == CONFIG
    assert {each.name: each.items for each in found.checks}["local paths"] == ["local_path in training.json"]


def test_an_adapter_of_a_folder_here_is_of_no_use_elsewhere(adapter: Path) -> None:
    with pytest.raises(UserError, match="say what it adapts on the Hub with --base-model ORG/NAME"):
        model(order(adapter, None))
