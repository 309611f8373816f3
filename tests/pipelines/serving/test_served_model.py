"""A model as a step uses it."""

from __future__ import annotations

import json
from pathlib import Path

from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.served_model import ServedModel
from agentmill.pipelines.serving.server_config import ServerConfig
from agentmill.schemas.models import model_revision
from tests.errors import user_error
from tests.model import tiny_model


def test_an_adapter_of_another_model_does_not_act(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 4}')
    server = ServerConfig(lora={"polite": str(tmp_path)})
    acting = ModelConfig(policy="vllm", model=str(tiny_model()), adapter="polite", server=server)
    revision = model_revision(tiny_model())
    # Adapters of others do not say what they were trained on.
    for record in ({}, {"base_revision": revision}):
        (tmp_path / "training.json").write_text(json.dumps(record))
        assert ServedModel.of(acting).revision == revision
    (tmp_path / "training.json").write_text('{"base_revision": "0123456789abcdef"}')
    with user_error("base-model-differs", str(tmp_path), "0123456789abcdef", revision, str(tiny_model())):
        ServedModel.of(acting)
    # It may be there for others to act with.
    assert ServedModel.of(acting.model_copy(update={"adapter": None})).revision == revision
