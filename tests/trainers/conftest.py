"""What the tests of the trainers share: the tiny model, one thread, and the settings of a short training."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from schemas.config import dump_yaml
from tests.model import tiny_model
from tests.trainers.tables import rows, write_table

# Libraries of others warn of their own futures when they are imported, which no test of ours can mend.
WARNINGS = ("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning", "ignore::ResourceWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for warning in WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def model() -> Path:
    return tiny_model()


@pytest.fixture(scope="session")
def tokenizer(model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


@pytest.fixture
def config(tmp_path: Path, model: Path) -> Path:
    """A configuration of eight short steps on 24 rows."""
    settings = {
        "rows": str(write_table(tmp_path / "rows", rows())),
        "model": str(model),
        "output": str(tmp_path / "tuned"),
        "max_steps": 8,
        "batch_size": 4,
        "learning_rate": 2e-3,
        "save_steps": 2,
    }
    path = tmp_path / "train.yaml"
    path.write_text(dump_yaml(settings))
    return path
