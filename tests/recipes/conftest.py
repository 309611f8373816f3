"""The data that recipes name, for all of their tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipelines.cli.tables import agentmill
from tests.recipes.data_half import write_general_rows


@pytest.fixture(autouse=True)
def general_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``data/general_rows`` in the working directory: 40 conversations without an environment."""
    monkeypatch.chdir(tmp_path)
    return write_general_rows(tmp_path / "data/general_rows")


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Corpora and their indices are kept apart from those of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTMILL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


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
    return environments_of("pddl", tmp_path_factory.mktemp("recipes"), 4)


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Search environments and questions over their corpora, made once."""
    return environments_of("search", tmp_path_factory.mktemp("search_recipes"), 12)


@pytest.fixture(params=["made", "searched"])
def anywhere(request: pytest.FixtureRequest) -> Path:
    """Environments and tasks of one family after the other."""
    found: Path = request.getfixturevalue(request.param)
    return found


def environments_of(family: str, folder: Path, tasks: int) -> Path:
    """The folder of four environments, one of them held out, with so many tasks each."""
    (folder / "made.yaml").write_text(f"name: made\ninclude: [environments/{family}]\nsteps: []\n", encoding="utf-8")
    small = ["proposed_environments.n=4", "proposed_environments.held_out=0.25", f"proposed_tasks.n={tasks}"]
    given = [f"run_dir={folder / 'made'}", *(f"steps.{each}" for each in small)]
    assert agentmill("run", folder / "made.yaml", *given) == 0
    return folder / "made"
