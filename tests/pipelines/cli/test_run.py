"""Whole runs through the command line: what they leave, that they resume, and what bad input is told."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from agentmill.pipelines.processes.identity import locked
from agentmill.pipelines.recipes import stopping
from agentmill.pipelines.recipes.summary import Summary
from agentmill.pipelines.runs.run import read_run
from agentmill.schemas.config import read_yaml
from agentmill.schemas.records.record import SCHEMA_VERSION
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.verdict import Verdict
from agentmill.schemas.tables import Table
from tests.errors import shows
from tests.pipelines.cli.tables import (
    CHECK,
    COMPARE,
    DEMONSTRATE,
    EXPORT,
    agentmill,
    write_environments,
    write_recipe,
)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a whole recipe was run."""
    folder = tmp_path_factory.mktemp("line")
    write_environments(folder, copies=6)
    assert agentmill("run", write_recipe(folder, DEMONSTRATE, CHECK, EXPORT, COMPARE)) == 0
    return folder


def state(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below ``folder`` with its inode and time of change."""
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_the_summary_counts_every_stage(line: Path) -> None:
    summary = msgspec.json.decode((line / "run/summary.json").read_bytes(), type=Summary)
    counts = {name: (each.read, each.used, each.dropped, each.written) for name, each in summary.stages.items()}
    assert counts == {
        "demonstrations": (6, 6, 0, 6),
        "verdicts": (6, 6, 0, 6),
        "rows": (6, 6, 0, 6),
        "evaluation": (36, 36, 0, 36),
    }
    assert all(each.seconds > 0 for each in summary.stages.values())


def test_the_summary_holds_the_evaluation(line: Path) -> None:
    evaluation = json.loads((line / "run/summary.json").read_bytes())["evaluation"]
    assert sorted(evaluation) == ["held_out_environments", "held_out_tasks"]
    for split in evaluation.values():
        assert sorted(split) == ["base", "paired_difference", "tuned", "tuned_constrained"]
        assert (split["base"]["n"], split["base"]["success"], split["base"]["invalid_action_rate"]) == (6, 0.0, 1.0)
        assert (split["tuned"]["n"], split["tuned"]["success"], split["tuned"]["ci95"][1]) == (6, 1.0, 1.0)
        assert split["base"]["turns_per_success"] is None
        assert split["paired_difference"]["value"] == 1.0
        assert split["paired_difference"]["environments"] == 1
        assert split["paired_difference"]["ci95"] == pytest.approx([-0.95, 1.0]), "one environment tells of one only"


def test_seeds_are_run_one_after_the_other_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_environments(tmp_path)
    recipe = write_recipe(tmp_path, COMPARE, seed=3)
    assert agentmill("run", recipe, "--seeds", "2", "--dry-run", "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["run_dir"] == str(tmp_path / "run/seed-3")
    assert plan["run_dirs"] == {str(seed): str(tmp_path / f"run/seed-{seed}") for seed in (3, 4)}
    assert agentmill("run", recipe, "--seeds", "2", "--dry-run") == 0
    assert "the same for 2 seeds" in capsys.readouterr().out
    assert agentmill("run", recipe, "--seeds", "2", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["run_dirs"] == {str(seed): str(tmp_path / f"run/seed-{seed}") for seed in (3, 4)}
    for seed in (3, 4):
        assert json.loads((tmp_path / f"run/seed-{seed}/summary.json").read_bytes())["seed"] == seed
    found = {(each["split"], each["model"]): each for each in result["measures"]}
    tuned = found["held_out_tasks", "tuned"]
    assert (tuned["values"], tuned["mean"], tuned["ci95"]) == ({"3": 1.0, "4": 1.0}, 1.0, None)
    assert agentmill("run", recipe, "--seeds", "2") == 0
    assert "small: success over 2 seeds" in capsys.readouterr().out


def test_a_second_run_does_nothing_and_says_so(line: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = state(line / "run")
    text = (line / "run/summary.json").read_bytes()
    assert agentmill("run", line / "recipe.yaml") == 0
    after = state(line / "run")
    written = {path for path in after if after[path] != before.get(path)}
    assert {Path(path).name for path in written} <= {"summary.json", "recipe.yaml", ".lock"}
    assert (line / "run/summary.json").read_bytes() == text
    assert "nothing to do: all 4 steps of small were done before" in capsys.readouterr().err


def test_the_results_go_to_stdout_and_the_rest_to_stderr(line: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agentmill("run", line / "recipe.yaml")
    printed = capsys.readouterr()
    assert "held_out_tasks: tuned minus base = +100.0 points" in printed.out
    assert "already done" not in printed.out
    assert "demonstrations: already done, 6 rows" in printed.err
    assert "\x1b[" not in printed.out + printed.err


def test_the_saved_recipe_runs(line: Path, tmp_path: Path) -> None:
    saved = line / "run/recipe.yaml"
    assert read_yaml(saved)["run_dir"] == str(line / "run")
    assert agentmill("run", saved, f"run_dir={tmp_path / 'again'}") == 0
    both = [Table.open(folder / "demonstrations").digest for folder in (line / "run", tmp_path / "again")]
    assert both[0] == both[1]


def test_the_commands_to_try_next_work(line: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agentmill("run", line / "recipe.yaml")
    commands = [text.split()[1:] for text in capsys.readouterr().out.splitlines() if text.startswith("  agentmill ")]
    assert [command[0] for command in commands] == ["inspect", "export", "run"]
    assert [agentmill(*command) for command in commands] == [0, 0, 0]


def test_a_changed_parameter_is_refused_and_named_unless_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_environments(tmp_path)
    recipe = write_recipe(tmp_path, DEMONSTRATE, CHECK)
    assert agentmill("run", recipe) == 0
    original = (tmp_path / "run/recipe.yaml").read_bytes()
    assert agentmill("run", recipe, "steps.demonstrations.k=2") == 2
    assert shows(capsys.readouterr().err, "made-differently", "k: 1 -> 2")
    assert (tmp_path / "run/recipe.yaml").read_bytes() == original
    assert agentmill("run", recipe, "steps.demonstrations.k=2", "--replace") == 0
    assert Table.open(tmp_path / "run/verdicts").manifest.counts.read == 4
    assert read_yaml(tmp_path / "run/recipe.yaml")["steps"][0]["k"] == 2


def test_a_run_that_is_changed_has_no_summary_until_it_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_environments(tmp_path)
    summary, recipe, rows = (tmp_path / "run" / name for name in ("summary.json", "recipe.yaml", "rows"))
    assert agentmill("run", write_recipe(tmp_path, DEMONSTRATE)) == 0
    before = summary.read_bytes(), recipe.read_bytes()
    assert agentmill("run", write_recipe(tmp_path, DEMONSTRATE, {**CHECK, "environments": "tasks"})) == 2
    assert (summary.read_bytes(), recipe.read_bytes()) == before
    rows.write_text("in the way of a table")
    assert agentmill("run", write_recipe(tmp_path, DEMONSTRATE, CHECK, EXPORT)) == 2
    assert (summary.read_bytes(), recipe.read_bytes()) == before
    assert not (tmp_path / "run/verdicts").exists()
    with monkeypatch.context() as later:  # it comes there when the run has begun
        later.setattr("agentmill.pipelines.recipes.precheck.check_ours", lambda folder: None)
        assert agentmill("run", write_recipe(tmp_path, DEMONSTRATE, CHECK, EXPORT)) == 2
    assert (tmp_path / "run/verdicts/manifest.json").exists()
    assert not summary.exists()
    assert len(read_yaml(recipe)["steps"]) == 3
    rows.unlink()
    assert agentmill("run", recipe) == 0
    assert set(msgspec.json.decode(summary.read_bytes())["stages"]) == {"demonstrations", "verdicts", "rows"}


def test_iterate_writes_each_round_into_a_folder_of_its_own(tmp_path: Path) -> None:
    write_environments(tmp_path)
    body = {"operator": "iterate", "rounds": 2, "steps": [DEMONSTRATE, CHECK]}
    assert agentmill("run", write_recipe(tmp_path, body, EXPORT)) == 0
    rounds = [list(Table.open(tmp_path / f"run/round-0{number}/demonstrations").rows()) for number in (1, 2)]
    assert [{row.generation.round for row in rows} for rows in rounds] == [{1}, {2}]
    exported = {row.trajectory_id for row in Table.open(tmp_path / "run/rows").rows()}
    assert exported == {row.trajectory_id for row in rounds[1]}


def test_a_loop_ends_when_its_measure_falls_and_what_follows_takes_its_last_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The measures are given, since no model is trained here; all else is real."""
    values = {"round-01": 0.5, "round-02": 0.25, "round-03": 1.0}
    monkeypatch.setattr(stopping, "measured", lambda until, file: [values[file.parent.parent.name]])
    write_environments(tmp_path)
    compare = {**COMPARE, "models": {"planner": "planner"}, "constrained": []}
    until = {"metric": "evaluation.success", "falls": 0.1}
    loop = {"operator": "iterate", "rounds": 3, "until": until, "steps": [DEMONSTRATE, compare]}
    every = {**EXPORT, "from": ["demonstrations@all"], "verdicts": None, "where": "all"}
    recipe = write_recipe(tmp_path, loop, every)
    assert agentmill("run", recipe) == 0
    assert "round-03: not needed, since `until` has ended the loop" in capsys.readouterr().err
    assert not (tmp_path / "run/round-03").exists()
    assert Table.open(tmp_path / "run/rows").manifest.counts.read == 4
    assert agentmill("run", recipe) == 0
    assert "nothing to do: all 5 steps" in capsys.readouterr().err
    assert read_run(tmp_path / "run").finished
    values["round-02"] = 0.75
    assert agentmill("run", recipe, "--replace") == 0
    assert Table.open(tmp_path / "run/rows").manifest.counts.read == 6


def test_fork_writes_each_route_into_a_folder_of_its_own(tmp_path: Path) -> None:
    write_environments(tmp_path)
    routes = {"wide": [{**DEMONSTRATE, "k": 2}], "narrow": [DEMONSTRATE]}
    export = {"operator": "sft", "from": ["wide/demonstrations", "narrow/demonstrations"], "as": "rows"}
    recipe = write_recipe(tmp_path, {"operator": "fork", "routes": routes}, export)
    assert agentmill("run", recipe) == 0
    made = [Table.open(tmp_path / f"run/{route}/demonstrations").manifest.counts.written for route in routes]
    assert made == [4, 2]
    assert Table.open(tmp_path / "run/rows").manifest.counts.written == 6
    assert agentmill("run", tmp_path / "run/recipe.yaml") == 0


def test_a_dry_run_lists_the_steps_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_environments(tmp_path)
    assert agentmill("run", write_recipe(tmp_path, DEMONSTRATE, CHECK), "--dry-run") == 0
    assert "check_outcome" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def fails(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What a user reads whose command is a mistake: at most two lines, and no traceback."""
    assert agentmill(*arguments) == 2
    message = capsys.readouterr().err.partition("agentmill: ")[2].strip()
    assert message
    assert len(message.splitlines()) <= 2
    return message


def test_a_split_without_tasks_is_told_before_the_steps_in_between(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_environments(tmp_path)
    recipe = write_recipe(tmp_path, DEMONSTRATE, {**COMPARE, "splits": ["held_out_tasks", "held_out_worlds"]})
    said = fails(capsys, "run", recipe)
    assert said.startswith("evaluation (evaluate, steps.1): there are no tasks of split 'held_out_worlds' to play")
    assert "Did you mean 'held_out_" in said
    assert not (tmp_path / "run/demonstrations").exists()


def test_a_missing_and_a_malformed_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_environments(tmp_path)
    recipe = write_recipe(tmp_path, DEMONSTRATE)
    assert "Did you mean 'recipe.yaml'?" in fails(capsys, "run", tmp_path / "recpie.yaml")
    recipe.write_text("name: a\nname: b\n", encoding="utf-8")
    assert "line 2: the key 'name' is given twice" in fails(capsys, "run", recipe)
    recipe.write_text("name: [a\n", encoding="utf-8")
    assert "recipe.yaml, line" in fails(capsys, "run", recipe)


def test_an_unknown_key_and_a_wrong_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_environments(tmp_path)
    recipe = write_recipe(tmp_path, {**DEMONSTRATE, "tempratur": 1})
    assert "Did you mean 'temperature'?" in fails(capsys, "run", recipe)
    recipe = write_recipe(tmp_path, DEMONSTRATE)
    assert "expected a valid integer" in fails(capsys, "run", recipe, "steps.0.k=many")


def test_an_inspiration_file_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_environments(tmp_path)
    step = {"operator": "spec_env", "inspiration": str(tmp_path / "texts.jsonl")}
    assert "texts.jsonl" in fails(capsys, "run", write_recipe(tmp_path, step))
    (tmp_path / "texts.jsonl").write_bytes(b"\xff\xfe\x00")
    assert "texts.jsonl" in fails(capsys, "run", write_recipe(tmp_path, step))


def test_an_empty_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_environments(tmp_path)
    step: dict[str, Any] = {**DEMONSTRATE, "split": "test"}
    assert "there are no tasks of split 'test' to play" in fails(capsys, "run", write_recipe(tmp_path, step))
    assert not (tmp_path / "run/demonstrations/manifest.json").exists()
    manifest = json.loads((tmp_path / "tasks/manifest.json").read_bytes())
    manifest.update(files=[], counts={"read": 3, "used": 0, "dropped": 3, "written": 0}, reasons={"unsolvable": 3})
    (tmp_path / "tasks/manifest.json").write_text(json.dumps(manifest))
    message = fails(capsys, "run", write_recipe(tmp_path, DEMONSTRATE))
    assert f"{tmp_path / 'tasks'} holds no rows (dropped: unsolvable 3)" in message


def test_a_table_of_a_newer_schema_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_environments(tmp_path)
    manifest = tmp_path / "tasks/manifest.json"
    manifest.write_text(
        manifest.read_text().replace(f'"schema_version": "{SCHEMA_VERSION}"', '"schema_version": "1.7"')
    )
    assert "written by schema 1.7, this agentmill reads up to" in fails(
        capsys, "run", write_recipe(tmp_path, DEMONSTRATE)
    )


def test_a_parquet_file_of_a_newer_schema_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_environments(tmp_path)
    shard = tmp_path / "tasks/data/part-00000.parquet"
    table = pq.read_table(shard)
    metadata = {**table.schema.metadata, b"agentmill.schema_version": b"1.7"}
    pq.write_table(table.replace_schema_metadata(metadata), shard)
    resize(tmp_path / "tasks", shard)
    message = fails(capsys, "run", write_recipe(tmp_path, DEMONSTRATE))
    assert f"{shard}" in message
    assert "1.7" in message


def test_a_corrupt_parquet_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_environments(tmp_path)
    shard = tmp_path / "tasks/data/part-00000.parquet"
    content = bytearray(shard.read_bytes())
    content[100:600] = os.urandom(500)
    shard.write_bytes(content)
    assert f"{shard} is no readable Parquet file" in fails(capsys, "run", write_recipe(tmp_path, DEMONSTRATE))
    shard.write_bytes(content[:500])
    assert "has 500 bytes, expected" in fails(capsys, "run", write_recipe(tmp_path, DEMONSTRATE))
    assert not (tmp_path / "run/demonstrations/manifest.json").exists()


def resize(folder: Path, shard: Path) -> None:
    """Let the manifest of ``folder`` say what size ``shard`` has."""
    manifest = Table.open(folder).manifest
    files = [msgspec.structs.replace(manifest.files[0], bytes=shard.stat().st_size)]
    (folder / "manifest.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, files=files)))


def test_a_port_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_environments(tmp_path)
    (tmp_path / "model").mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / "model" / name).write_text("{}")
    (tmp_path / "model/chat_template.jinja").write_text("{{ tools }}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        models = {"actor": {"policy": "vllm", "model": str(tmp_path / "model"), "server": {"port": port}}}
        step = {**DEMONSTRATE, "operator": "sample", "policy": "actor"}
        message = fails(capsys, "run", write_recipe(tmp_path, step, models=models))
    assert f"port {port} is in use; give another one as `server.port`" in message


def test_a_run_directory_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_environments(tmp_path)
    recipe = write_recipe(tmp_path, DEMONSTRATE)
    with locked(tmp_path / "run"):
        message = fails(capsys, "run", recipe)
    assert f"is in use by process {os.getpid()}" in message
    assert agentmill("run", recipe) == 0


def test_a_run_directory_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_environments(tmp_path)
    (tmp_path / "run").write_text("a file")
    assert "give another one with run_dir=" in fails(capsys, "run", write_recipe(tmp_path, DEMONSTRATE))


def test_verdicts_and_tasks_can_be_read_by_anyone(line: Path) -> None:
    assert {type(row) for row in Table.open(line / "run/verdicts").rows()} == {Verdict}
    assert {type(row) for row in Table.open(line / "tasks").rows()} == {Task}
