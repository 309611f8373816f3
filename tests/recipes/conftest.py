"""The data that recipes name, for all of their tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pipelines.cli.tables import agentmill
from tests.recipes.data_half import write_general_rows


@pytest.fixture(autouse=True)
def general_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``data/general_rows`` in the working directory: 40 conversations without an environment."""
    monkeypatch.chdir(tmp_path)
    return write_general_rows(tmp_path / "data/general_rows")


@pytest.fixture
def files_of_users(general_rows: Path) -> Path:
    """The folder ``data`` with the files that sketches name: conversations, articles and texts."""
    line = {
        "id": "a",
        "title": "A",
        "text": "Some text.",
        "messages": [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello!"}],
    }
    for name in ("agent", "web", "code", "tools", "articles", "texts"):
        (general_rows.parent / f"{name}.jsonl").write_text(json.dumps(line), encoding="utf-8")
    return general_rows.parent


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Planning environments and tasks, made once."""
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "made.yaml").write_text("name: made\ninclude: [environments/pddl]\nsteps: []\n", encoding="utf-8")
    small = ["proposed_environments.n=4", "proposed_environments.held_out=0.25", "proposed_tasks.n=4"]
    given = [f"run_dir={folder / 'made'}", *(f"steps.{each}" for each in small)]
    assert agentmill("run", folder / "made.yaml", *given) == 0
    return folder / "made"
