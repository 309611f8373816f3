"""What the tests of the trainers share: the tiny model, one thread, and the settings of a short training."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from agentmill.schemas.config import dump_yaml
from agentmill.schemas.records.rows import PreferenceRow, UnpairedRow
from tests.model import tiny_model
from tests.trainers.tables import pairs, rows, unpaired_rows, write_table
from tests.trainers.template_families import TEMPLATE_CASES, TemplateCase

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


@pytest.fixture(scope="session")
def speakers(tokenizer: Any) -> dict[str, tuple[TemplateCase, Any]]:
    """Each template with a tokenizer that has it."""
    made = {name: make() for name, make in TEMPLATE_CASES.items()}
    return {name: (case_of_template, case_of_template.tokenizer(tokenizer)) for name, case_of_template in made.items()}


@pytest.fixture
def dpo_config(tmp_path: Path, model: Path) -> Path:
    """A configuration of eight short steps on 16 pairs."""
    return _written(tmp_path, model, write_table(tmp_path / "rows", pairs(), PreferenceRow))


@pytest.fixture
def kto_config(tmp_path: Path, model: Path) -> Path:
    """A configuration of eight short steps on 16 rows, half of them good."""
    return _written(tmp_path, model, write_table(tmp_path / "rows", unpaired_rows(), UnpairedRow))


def _written(folder: Path, model: Path, table: Path, learning_rate: float = 3e-4) -> Path:
    settings = {
        "rows": str(table),
        "model": str(model),
        "output": str(folder / "tuned"),
        "max_steps": 8,
        "batch_size": 4,
        "learning_rate": learning_rate,
        "save_steps": 2,
    }
    path = folder / "train.yaml"
    path.write_text(dump_yaml(settings))
    return path


@pytest.fixture
def config(tmp_path: Path, model: Path) -> Path:
    """A configuration of eight short steps on 24 rows."""
    return _written(tmp_path, model, write_table(tmp_path / "rows", rows()), learning_rate=2e-3)
