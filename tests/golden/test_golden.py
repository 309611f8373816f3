"""What recipes, readers and trainings make stays as it is: digests of every table and of every batch.

A change that is meant is written with ``AGENTMILL_WRITE_GOLDEN=1 pytest tests/golden`` and told in the CHANGELOG. Where
AGENTMILL_SAMPLES names no folder, the digests of the samples are neither compared nor written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from agentmill.pipelines.chaos.digests import rows_digest
from agentmill.pipelines.cli.main import invoke
from agentmill.schemas.config import dump_yaml
from agentmill.schemas.records.manifest import MANIFEST_NAME
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.rows import PreferenceRow, ScorerRow, SftRow, UnpairedRow
from agentmill.schemas.tables import Table
from agentmill.trainers import dpo, kto, reward, sft
from tests.trainers.scoring import scored_rows
from tests.trainers.tables import pairs, rows, tool_row, turns, unpaired_rows, write_table

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).with_name("digests.json")
SAMPLES = os.environ.get("AGENTMILL_SAMPLES", "")

RECIPES = {
    "line": ["configs/line.yaml"],
    "toolboxes": ["configs/toolboxes.yaml", "steps.proposed_environments.n=12", "steps.proposed_tasks.n=8"],
}
"""Arguments of ``agentmill run``."""

FILES = {
    "adp": ("adp", "adp/*/std.jsonl"),
    "llamafactory": ("llamafactory", "llamafactory/v1_sft_demo.jsonl"),
    "preferences": ("llamafactory", "llamafactory/*dpo*.jsonl"),
    "sharegpt": ("sharegpt", "llamafactory/glaive_toolcall_en_demo.jsonl"),
    "reasoning": ("sharegpt", "llamafactory/reason_tool_use_demo_50.jsonl"),
    "openai": ("openai", "llamafactory/kto_en_demo.jsonl"),
    "swe_agent": ("swe_agent", "swe-agent/*.traj"),
    "toolbench": ("toolbench", "toolbench/*.json"),
}
"""Formats and the real files that are read as such, well or not: what is dropped counts, too."""

LONG = [turns(30, f"l{number}", words=12) for number in range(4)]
TRAININGS: Mapping[str, tuple[Callable[[list[str]], int], list[Record], type[Record], Mapping[str, object]]] = {
    "sft": (sft.main, [*rows(12), tool_row()], SftRow, {}),
    "sft_packed": (sft.main, [*rows(24), tool_row()], SftRow, {"packing": True, "max_length": 256}),
    "sft_windows": (sft.main, [*rows(4), *LONG], SftRow, {"long_rows": "window", "max_length": 300}),
    "dpo": (dpo.main, list(pairs()), PreferenceRow, {}),
    "kto": (kto.main, list(unpaired_rows()), UnpairedRow, {}),
    "reward_pairs": (reward.main, list(pairs()), PreferenceRow, {}),
    "reward_values": (reward.main, list(scored_rows()), ScorerRow, {}),
}
"""Trainings of four steps: the command, its rows, their type, and settings."""


def check(name: str, found: Mapping[str, str]) -> None:
    """Compare ``found`` with what is written under ``name``, or write it."""
    golden = json.loads(GOLDEN.read_bytes()) if GOLDEN.exists() else {}
    if os.environ.get("AGENTMILL_WRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps(golden | {name: found}, indent=1, sort_keys=True) + "\n")
        return
    assert golden[name] == found, f"{name}: other rows than before; see the head of {__file__}"


def digests(run_dir: Path) -> dict[str, str]:
    """A digest of the rows of each table in a run and of what it dropped."""
    folders = [path.parent for path in sorted(run_dir.rglob(MANIFEST_NAME))]
    return {str(folder.relative_to(run_dir)): rows_digest(Table.open(folder))[:16] for folder in folders}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_makes_the_same_tables(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert invoke(["run", *RECIPES[name], f"run_dir={tmp_path / 'run'}"]) == 0
    check(name, digests(tmp_path / "run"))


@pytest.mark.parametrize("family", ["codegym", "interpreter", "pddl", "toolbox"])
def test_a_generator_makes_the_same_environments_and_tasks(family: str, tmp_path: Path) -> None:
    many = {"operator": "spec_env", "family": family, "n": 200, "as": "many"}
    few = {"operator": "spec_env", "family": family, "n": 12, "seed": 1, "as": "few"}
    tasks = {"operator": "propose", "of": "few", "n": 2, "plan_length": [2, 4], "as": "tasks"}
    (tmp_path / "made.yaml").write_text(dump_yaml({"name": "made", "steps": [many, few, tasks]}))
    assert invoke(["run", str(tmp_path / "made.yaml"), f"run_dir={tmp_path / 'run'}"]) == 0
    check(f"generator_{family}", digests(tmp_path / "run"))


@pytest.mark.skipif(not SAMPLES, reason="AGENTMILL_SAMPLES does not name the folder with real records")
@pytest.mark.parametrize("name", [path.stem for path in sorted((ROOT / "configs/datasets").glob("*.yaml"))])
def test_a_profile_reads_the_same_trajectories(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.pipelines.operators.test_normalize_datasets import SAMPLES as FOLDERS

    if name not in FOLDERS:
        pytest.skip("the samples have no record of it")
    monkeypatch.chdir(Path(SAMPLES) / "adp")
    data = f"steps.0.data=[{FOLDERS[name]}/raw.jsonl]"
    assert invoke(["run", str(ROOT / f"configs/datasets/{name}.yaml"), data, f"run_dir={tmp_path / 'run'}"]) == 0
    check(f"profile_{name}", digests(tmp_path / "run"))


@pytest.mark.skipif(not SAMPLES, reason="AGENTMILL_SAMPLES does not name the folder with real records")
@pytest.mark.parametrize("name", FILES)
def test_a_format_reads_the_same_trajectories(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    format_name, pattern = FILES[name]
    monkeypatch.chdir(SAMPLES)
    data = [str(path) for path in sorted(Path().glob(pattern))]
    step = {
        "operator": "normalize",
        "format": format_name,
        "data": data,
        "dataset": "d",
        "licence": "MIT",
        "as": "read",
    }
    (tmp_path / "read.yaml").write_text(dump_yaml({"name": "read", "steps": [step]}))
    assert invoke(["run", str(tmp_path / "read.yaml"), f"run_dir={tmp_path / 'run'}"]) in (0, 1)
    check(f"format_{name}", digests(tmp_path / "run"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_sees_the_same_batches(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import Trainer

    from tests.model import tiny_model

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    hashes: dict[str, Any] = defaultdict(hashlib.sha256)
    step = Trainer.training_step

    def digest_and_train(self: Trainer, model: Any, inputs: dict[str, Any], *rest: Any) -> Any:
        # What the reference makes of the rows is computed, and differs in the last bits between processors.
        for field, tensor in ((name, each) for name, each in inputs.items() if not name.startswith("ref_")):
            hashes[field].update(repr((tensor.dtype, tensor.tolist())).encode())
        return step(self, model, inputs, *rest)

    monkeypatch.setattr(Trainer, "training_step", digest_and_train)
    command, records, record_type, settings = TRAININGS[name]
    given = {
        "rows": str(write_table(tmp_path / "rows", records, record_type)),
        "model": str(tiny_model()),
        "output": str(tmp_path / "tuned"),
        "max_steps": 4,
        "batch_size": 4,
        **settings,
    }
    (tmp_path / "train.yaml").write_text(dump_yaml(given))
    torch.set_num_threads(1)
    assert command(["--config", str(tmp_path / "train.yaml")]) == 0
    check(f"training_{name}", {field: each.hexdigest()[:16] for field, each in hashes.items()})
