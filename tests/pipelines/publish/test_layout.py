"""What is held out is never handed out with what is to be trained on: by ``datasets``, and in copies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from huggingface_hub import DatasetCard

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.publish.bundle import Published
from agentmill.pipelines.publish.layout import configs, split_tables
from agentmill.pipelines.publish.publication import Order, Publication, dataset
from agentmill.pipelines.publish.scan import Scan, scan
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Table
from tests.builders import agent_message, instruction, seen, spec, task, trajectory, verdict
from tests.errors import user_error
from tests.pipelines.engine.stages import write_table

TASKS = [
    task("t0"),
    task("t1", split="held_out_tasks", instruction="Find the box.", gold=[]),
    task("t2", environment_id="env2", split="held_out_environments", instruction="Go home."),
    task("t3", instruction="Stay here."),
]
SPECS = [spec("env1", split="train"), spec("env2", split="held_out", source="(define (domain other))")]


def publication(folder: Path, *tables: str, **order: Any) -> Publication:
    made = Order(path=folder, repo="org/data", licence="apache-2.0", tables=tables, **order)
    return dataset(made, folder / ".scratch")


def downloaded(found: Publication, folder: Path) -> Path:
    """The files of a publication, as the Hub has them."""
    for path, file in found.files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.source if isinstance(file.source, bytes) else file.source.read_bytes())
    return folder


def loaded(folder: Path, *config: str) -> dict[str, list[str]]:
    """The ids that ``load_dataset`` hands out, by split."""
    cache = str(folder.parent / "cache")
    found = datasets.load_dataset(str(folder), *config, cache_dir=cache)
    return {split: list(rows["task_id"]) for split, rows in found.items()}


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A folder with a table of tasks of three splits, in two files, and one of their environments."""
    write_table(tmp_path / "tables/tasks", [TASKS[:3], TASKS[3:]], Task)
    write_table(tmp_path / "tables/environments", [SPECS], EnvironmentSpec)
    return tmp_path / "tables"


def test_the_default_configuration_hands_out_training_tasks_only(mixed: Path, tmp_path: Path) -> None:
    folder = downloaded(publication(mixed, "tasks"), tmp_path / "hub")
    assert loaded(folder) == loaded(folder, "tasks") == {"train": ["t0", "t3"]}
    assert loaded(folder, "tasks.held_out") == {"held_out_environments": ["t2"], "held_out_tasks": ["t1"]}


def test_the_rows_by_split_are_those_of_the_table(mixed: Path, tmp_path: Path) -> None:
    table = Table.open(mixed / "tasks")
    parts = split_tables(table, scan(table, "tasks"), tmp_path / "parts")
    rows = {split: list(each.rows()) for split, each in parts.items()}
    assert rows == {
        "train": [TASKS[0], TASKS[3]],
        "held_out_tasks": [TASKS[1]],
        "held_out_environments": [TASKS[2]],
    }
    again = split_tables(table, scan(table, "tasks"), tmp_path / "again")
    assert [each.digest for each in parts.values()] == [each.digest for each in again.values()]


def test_the_table_itself_goes_up_as_it_is(mixed: Path) -> None:
    found = publication(mixed, "tasks")
    data = {path: file.sha256 for path, file in found.files.items() if path.startswith("tasks/data/")}
    assert data == {f"tasks/data/{file.name}": file.sha256 for file in Table.open(mixed / "tasks").manifest.files}
    assert "tasks/splits" in found.owned, "what an earlier publication left there goes"


def test_the_card_tells_of_the_held_out_configurations(mixed: Path) -> None:
    card = publication(mixed, "tasks", "environments").files["README.md"].source
    assert isinstance(card, bytes)
    found = DatasetCard(card.decode())
    assert {each["config_name"]: each.get("default", False) for each in found.data.configs} == {
        "tasks": True,
        "tasks.held_out": False,
        "environments": False,
        "environments.held_out": False,
    }
    assert "It is in configurations of its own: `tasks.held_out`, `environments.held_out`." in found.text
    assert 'load_dataset("org/data", "tasks", revision="main")' in found.text
    assert '"hf://datasets/org/data@main/tasks/splits/train/*.parquet"' in found.text
    assert "held_out_environments 1, held_out_tasks 1, train 2" in found.text
    assert "There it holds all its splits" in found.text


def test_copies_in_other_formats_are_made_by_split(tmp_path: Path) -> None:
    rows = [run("a", "train"), run("b", "held_out_tasks")]
    write_table(tmp_path / "mixed/played", [rows], Trajectory)
    write_table(tmp_path / "pure/played", [rows[:1], rows[1:]], Trajectory)
    for folder in ("mixed", "pure"):
        found = publication(tmp_path / folder, "played", copies=["adp"]).files
        copies = [path for path in found if path.endswith("trajectories.jsonl")]
        assert copies == [f"copies/adp/played/{split}/trajectories.jsonl" for split in ("held_out_tasks", "train")]
        (line,) = Path(str(found[copies[1]].source)).read_text().splitlines()
        assert json.loads(line)["id"] == "a"


def run(trajectory_id: str, split: str) -> Trajectory:
    """A trajectory of a task of its own, with words of its own."""
    content = [instruction(), agent_message(f"look at {trajectory_id}", 1), seen("A room.", 1)]
    return trajectory(trajectory_id, task_id=trajectory_id, split=split, content=content)


def surveyed(folder: Path, *rows: Record) -> tuple[Published, Scan]:
    table = seed_table(folder, rows)
    return Published(folder.name, table), scan(table, folder.name)


def configured(*found: tuple[Published, Scan]) -> dict[str, bool]:
    """Names of configurations, and whether each is the default."""
    made = configs([each for each, _ in found], {each.name: one for each, one in found})
    return {each["config_name"]: each.get("default", False) for each in made}


def test_a_table_of_held_out_rows_alone_is_never_the_default(tmp_path: Path) -> None:
    held_out = surveyed(tmp_path / "tasks", TASKS[1])
    assert configured(held_out) == {"tasks": False}
    verdicts = surveyed(tmp_path / "verdicts", verdict())
    assert configured(held_out, verdicts) == {"tasks": False, "verdicts": True}, "rows that tell no split"


def test_the_card_names_what_is_held_out_also_where_all_of_a_table_is(tmp_path: Path) -> None:
    for name, rows in (("tasks", TASKS), ("test_tasks", TASKS[1:2])):
        seed_table(tmp_path / "tables" / name, rows)
    found = dataset(Order(path=tmp_path / "tables", repo="org/data", licence="mit"), tmp_path / ".scratch")
    card = found.files["README.md"].source
    assert isinstance(card, bytes)
    assert "in configurations of its own: `tasks.held_out`, `test_tasks`." in card.decode()


def test_a_table_that_is_called_like_a_held_out_configuration_is_refused(tmp_path: Path) -> None:
    tasks = surveyed(tmp_path / "tasks", TASKS[0], TASKS[1])
    other = surveyed(tmp_path / "tasks.held_out", TASKS[1])
    with user_error("name-taken", "tasks.held_out"):
        configured(tasks, other)
