"""``agentmill publish`` to a Hub on the loopback, and reading back what it published."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from huggingface_hub import DatasetCard, ModelCard, constants

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.schemas.tables import Table
from tests.builders import run_of_source, trajectory
from tests.errors import shows
from tests.fake_hub import child, files_of
from tests.pipelines.cli.tables import (
    CHECK,
    COMPARE,
    DEMONSTRATE,
    EXPORT,
    PROGRAM,
    agentmill,
    write_environments,
    write_recipe,
)
from tests.writing_hub import WRITER, WritingHub

# How huggingface_hub 2.4 hands large files to httpx2.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

REPO = "org/small"
READ = """
import json, sys
from pathlib import Path
import datasets
from agentmill.pipelines.recipes.plan import make_plan
from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.schemas.tables import Table
from agentmill.trainers.data import open_rows
from agentmill.schemas.records.rows import SftRow

repo, commit, recipe = sys.argv[1:]
rows = datasets.load_dataset(repo, "rows", revision=commit)
tasks = datasets.load_dataset(repo, "tasks", revision=commit, streaming=True)
default = datasets.load_dataset(repo, revision=commit)
plan = make_plan(read_recipe(Path(recipe), []))
print(json.dumps({
    "rows": {split: list(held["row_id"]) for split, held in rows.items()},
    "tasks": {split: sum(1 for _ in held) for split, held in tasks.items()},
    "default": {split: held.column_names for split, held in default.items()},
    "table": [row.row_id for row in Table.open(f"hf://{repo}@{commit}/rows").rows()],
    "trained": open_rows(f"hf://{repo}@main/rows", SftRow, "sft").digest,
    "step": [output.record for output in plan.steps[0].inputs["of"]],
    "pinned": plan.revisions,
}))
"""


class World(NamedTuple):
    hub: WritingHub
    address: str
    run: Path

    def published(self, name: str) -> dict[str, bytes]:
        """The files of one folder of the data set."""
        return {path: data for path, data in self.hub.files(REPO).items() if path.startswith(f"{name}/")}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the small world: demonstrations, verdicts, rows and an evaluation."""
    folder = tmp_path_factory.mktemp("small")
    write_environments(folder)
    assert agentmill("run", write_recipe(folder, DEMONSTRATE, CHECK, EXPORT, COMPARE)) == 0
    return folder / "run"


@pytest.fixture
def world(run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    hub = WritingHub()
    with hub.served() as address:
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setenv("HF_TOKEN", WRITER)
        yield World(hub, address, run)


def test_a_run_is_published_as_it_is_and_read_back(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["publish", world.run, "--repo", REPO, "--licence", "apache-2.0", "--copy", "adp"]
    assert agentmill(*command, "--dry-run") == 0
    told = capsys.readouterr().out
    assert "+ rows/manifest.json" in told
    assert "dry run: nothing was sent" in told
    assert not world.hub.branches
    assert agentmill(*command) == 0
    commit = world.hub.branches[REPO]["main"]
    assert f"agentmill inspect hf://{REPO}@{commit}/" in capsys.readouterr().out
    for name in ("demonstrations", "verdicts", "rows"):
        assert world.published(name) == files_of(world.run / name, name)
    files = world.hub.files(REPO)
    assert files["recipe.yaml"] == (world.run / "recipe.yaml").read_bytes()
    assert not [path for path in files if path.startswith("evaluation")]
    assert len(files["copies/adp/demonstrations/trajectories.jsonl"].splitlines()) == 2
    assert agentmill(*command) == 0
    assert "nothing to do" in capsys.readouterr().out
    copies = f"hf://{REPO}@{commit}/copies/adp/demonstrations/trajectories.jsonl"
    read = {"operator": "normalize", "data": [copies], "dataset": REPO, "format": "adp", "as": "again"}
    program = [str(PROGRAM), "normalize", "--config", str(write_recipe(tmp_path, read, data={}, models={}))]
    done = child(program, world.address, tmp_path / "home")
    assert done.returncode == 0, done.stderr
    assert Table.open(tmp_path / "run/again").manifest.counts.written == 2

    card = DatasetCard(files["README.md"].decode())
    assert (card.data.license, card.data.size_categories) == ("apache-2.0", ["n<1K"])
    assert [each["config_name"] for each in card.data.configs] == ["rows", "demonstrations", "verdicts"]
    for said in ("no decontamination against benchmarks was run", "episodes as those of sample | 2 | 2 | 0 | 2 |"):
        assert said in card.text
    assert "agentmill run recipe.yaml" in card.text
    assert "{{" not in card.text
    assert files["funnel.svg"].startswith(b"<svg")


def test_what_was_published_is_read_without_code(world: World, tmp_path: Path) -> None:
    """By ``datasets``, as a table, as an input of a recipe's step, and as the rows of a training."""
    assert agentmill("publish", world.run, "--repo", REPO, "--licence", "mit", "--table", "rows") == 0
    assert agentmill("publish", world.run / "verdicts", "--repo", REPO, "--licence", "mit") == 2  # rows would go
    chosen = ["--table", "rows", "--table", "tasks=demonstrations"]
    assert agentmill("publish", world.run, "--repo", REPO, "--licence", "mit", *chosen) == 0
    commit = world.hub.branches[REPO]["main"]
    step = {"operator": "filter", "of": "found", "where": [{"field": "outcome.status", "equals": "success"}]}
    recipe = write_recipe(tmp_path, step, data={"found": f"hf://{REPO}/tasks"}, models={})
    done = child([sys.executable, "-c", READ, REPO, commit, str(recipe)], world.address, tmp_path / "home")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    table = Table.open(world.run / "rows")
    ids = [row.row_id for row in table.rows()]
    assert told["rows"] == {"train": ids}
    assert told["table"] == ids
    assert told["tasks"] == {"train": 2}
    assert "messages" in told["default"]["train"]
    assert told["trained"] == table.digest
    assert told["step"] == ["Trajectory"]
    assert told["pinned"] == {f"hf://datasets/{REPO}": commit}


def test_what_stands_in_the_way_is_told_and_nothing_is_sent(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert agentmill("publish", world.run, "--repo", REPO) == 2
    assert shows(capsys.readouterr().err, "licence-missing", "--licence")
    token = "hf_" + "aBcD" * 9
    seed_table(tmp_path / "leaky", [trajectory("t1", system_prompt=f"use {token}")])
    assert agentmill("publish", tmp_path / "leaky", "--repo", REPO, "--licence", "mit") == 2
    captured = capsys.readouterr()
    assert shows(captured.err, "check-failed", "huggingface_token", "leaky (t1)")
    assert token not in captured.err + captured.out
    seed_table(tmp_path / "foreign", [run_of_source("org/nc", "CC-BY-NC-4.0")])
    assert agentmill("publish", tmp_path / "foreign", "--repo", REPO, "--licence", "mit") == 2
    assert shows(capsys.readouterr().err, "check-failed", "non-commercial", "mit")
    assert agentmill("publish", world.run, "--repo", "small", "--licence", "mit") == 2
    assert shows(capsys.readouterr().err, "value-malformed", "--repo small")
    assert not world.hub.branches


def test_a_tuned_model_is_published_with_its_card(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "tuned"
    folder.mkdir()
    header = "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- agentmill\n---\n\n"
    (folder / "README.md").write_text(f"{header}# tuned\n\nSupervised fine-tuning of `base`.\n")
    for name in ("training.json", "config.json"):
        (folder / name).write_text("{}")
    assert agentmill("publish", folder, "--repo", "org/tuned", "--licence", "mit") == 2  # no weights
    (folder / "model.safetensors").write_bytes(b"weights" * 100)
    command = ["publish", folder, "--repo", "org/tuned", "--licence", "mit", "--base-model", "org/base"]
    assert agentmill(*command) == 0
    files = world.hub.files("org/tuned")
    assert files["model.safetensors"] == b"weights" * 100
    card = ModelCard(files["README.md"].decode())
    assert (card.data.license, card.data.base_model, card.data.library_name) == ("mit", "org/base", "transformers")
    assert "Supervised fine-tuning of `base`." in card.text
    assert 'AutoModelForCausalLM.from_pretrained("org/tuned"' in card.text
