"""The folder of a run: what is not ours there stays, and the commands that are printed lead to it."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from agentmill.pipelines.recipes.run_folder import resume_command
from agentmill.pipelines.report.page import resume
from agentmill.pipelines.runs.run import read_run
from agentmill.pipelines.runs.tables import check_finished
from tests.errors import user_error
from tests.pipelines.cli.tables import CHECK, DEMONSTRATE, EXPORT, agentmill, write_environments, write_recipe

SPECIFY = "name: {name}\nrun_dir: {run}\nsteps:\n  # what I tried first\n  - {{operator: spec_env, n: 2, as: {step}}}\n"


def write(file: Path, run: Path, name: str = "small", step: str = "worlds") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(SPECIFY.format(name=name, run=run, step=step), encoding="utf-8")
    return file


def test_a_recipe_of_the_user_in_the_run_folder_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    recipe = write(run / "recipe.yaml", run)
    before = recipe.read_text(encoding="utf-8")
    for options in ([], ["--dry-run"], ["--replace"]):
        assert agentmill("run", recipe, *options) == 2
        assert "output-not-ours" in capsys.readouterr().err
    assert recipe.read_text(encoding="utf-8") == before
    assert agentmill("run", recipe.rename(tmp_path / "mine.yaml")) == 0
    assert (tmp_path / "mine.yaml").read_text(encoding="utf-8") == before
    # The copy that a run has left can be run.
    assert agentmill("run", run / "recipe.yaml") == 0


def test_a_summary_that_no_run_has_written_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    recipe = write(tmp_path / "mine.yaml", run)
    run.mkdir()
    (run / "summary.json").write_text("my notes", encoding="utf-8")
    assert agentmill("run", recipe) == 2
    assert "output-not-ours" in capsys.readouterr().err
    assert (run / "summary.json").read_text(encoding="utf-8") == "my notes"


def test_another_recipe_takes_a_run_over_only_where_it_is_told_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert agentmill("run", write(tmp_path / "one.yaml", run)) == 0
    kept = [(run / name).read_bytes() for name in ("recipe.yaml", "summary.json")]
    other = write(tmp_path / "two.yaml", run, name="other", step="places")
    for options in ([], ["--dry-run"]):
        assert agentmill("run", other, *options) == 2
        assert "output-exists" in capsys.readouterr().err
    assert [(run / name).read_bytes() for name in ("recipe.yaml", "summary.json")] == kept
    # A step less, or another name for the same steps, takes nothing away.
    assert agentmill("run", write(tmp_path / "one.yaml", run, step="places")) == 0
    assert agentmill("run", write(tmp_path / "one.yaml", run, name="renamed", step="places")) == 0
    assert agentmill("run", write(tmp_path / "one.yaml", run), "--replace") == 0
    assert json.loads((run / "summary.json").read_text())["name"] == "small"


def test_a_changed_input_file_is_named_as_the_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, recipe, run = tmp_path / "a.jsonl", tmp_path / "mine.yaml", tmp_path / "run"
    step = f"{{operator: normalize, as: read, format: openai, data: ['{data}'], dataset: d, licence: MIT}}"
    recipe.write_text(f"name: small\nrun_dir: {run}\nsteps:\n  - {step}\n", encoding="utf-8")
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    data.write_text(json.dumps({"messages": turns}) + "\n", encoding="utf-8")
    assert agentmill("run", recipe) == 0
    data.write_text(json.dumps({"messages": turns * 2}) + "\n", encoding="utf-8")
    assert agentmill("run", recipe) == 2
    shown = capsys.readouterr().err
    assert "was made differently: seeds (the records, or the file, that it starts from): changed" in shown
    assert agentmill("run", recipe, "--replace") == 0


def test_a_copy_without_hidden_files_is_a_run(tmp_path: Path) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    assert agentmill("run", write(tmp_path / "mine.yaml", run)) == 0
    shutil.copytree(run, copy, ignore=lambda folder, names: [".lock"] if folder == str(run) else [])
    assert not (copy / ".lock").exists()
    assert agentmill("run", copy / "recipe.yaml", f"run_dir={copy}", "--dry-run") == 0
    (copy / "recipe.yaml").unlink()
    assert agentmill("run", tmp_path / "mine.yaml", f"run_dir={copy}", "--dry-run") == 0


def test_all_runs_of_several_seeds_are_looked_at_before_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert agentmill("run", write(tmp_path / "one.yaml", run / "seed-1")) == 0
    other = write(tmp_path / "two.yaml", run, name="other", step="places")
    for options in ([], ["--dry-run"]):
        assert agentmill("run", other, "--seeds", "2", *options) == 2
        assert "output-exists" in capsys.readouterr().err
    assert not (run / "seed-0").exists()


@pytest.mark.parametrize("place", ["file", "file/run"])
@pytest.mark.parametrize("command", [["run"], ["run", "--dry-run"], ["plan"]])
def test_a_run_dir_at_a_file_is_refused(
    command: list[str], place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert agentmill(*command, write(tmp_path / "mine.yaml", tmp_path / place)) == 2
    error = capsys.readouterr().err
    assert "not-a-folder" in error
    assert f"{tmp_path / 'file'} is a file" in error


def test_a_run_that_was_moved_goes_on_where_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, moved = tmp_path / "run", tmp_path / "kept/run"
    assert agentmill("run", write(tmp_path / "mine.yaml", run)) == 0
    assert resume_command(run) == f"agentmill run {run}/recipe.yaml"
    shutil.copytree(run, moved)
    assert agentmill("run", moved / "recipe.yaml") == 2
    assert "needs-another-key" in capsys.readouterr().err
    command = resume_command(moved)
    assert command == f"agentmill run {moved}/recipe.yaml run_dir={moved}"
    (moved / "summary.json").unlink()
    assert resume(read_run(moved)) == command
    with user_error("run-unfinished", command):
        check_finished(moved, {})
    capsys.readouterr()
    assert agentmill(*command.split()[1:]) == 0
    assert "nothing to do" in capsys.readouterr().err
    assert json.loads((moved / "summary.json").read_text())["run_dir"] == str(moved)


@pytest.mark.parametrize("name", ["a #1", "a: b", "[a]", "@a"])
def test_a_moved_run_of_any_name_is_found(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert agentmill("run", write(tmp_path / "mine.yaml", tmp_path / "run")) == 0
    moved = (tmp_path / "run").rename(tmp_path / name)
    assert agentmill(*shlex.split(resume_command(moved))[1:]) == 0
    assert "nothing to do" in capsys.readouterr().err
    other = write(tmp_path / "two.yaml", tmp_path / "run", name="other", step="places")
    assert agentmill("run", other, f"run_dir={moved}") == 2
    assert "output-exists" in capsys.readouterr().err


def test_a_run_dir_counts_from_where_the_run_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert agentmill("synthesize", "--config", write(Path("mine.yaml"), Path("runs/x"))) == 0
    monkeypatch.chdir("runs/x")
    for command in (["run"], ["synthesize", "--config"]):
        assert agentmill(*command, "recipe.yaml") == 2
        error = capsys.readouterr().err
        assert "needs-another-key" in error
        assert f"runs/x, counts from {tmp_path}" in error
    assert agentmill("run", "recipe.yaml", f"run_dir={tmp_path}/runs/x") == 0


def test_a_damaged_recipe_of_a_run_is_no_obstacle(tmp_path: Path) -> None:
    run = tmp_path / "run"
    recipe = write(tmp_path / "mine.yaml", run)
    assert agentmill("run", recipe) == 0
    (run / "recipe.yaml").write_text("name: x\ndata: 3\nsteps: [{operator: spec_env}]\n", encoding="utf-8")
    assert resume_command(run) == f"agentmill run {run}/recipe.yaml"
    assert agentmill("run", recipe) == 0


def test_commands_for_a_folder_with_a_space_are_quoted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_environments(tmp_path)
    folder = tmp_path / "my runs"
    recipe = write_recipe(tmp_path, DEMONSTRATE, CHECK, run_dir=str(folder))
    assert agentmill("run", recipe, "--until", "demonstrations") == 0
    printed = capsys.readouterr().out
    assert f"the rest: agentmill run '{folder}/recipe.yaml'" in printed
    assert "seed=1" not in printed
    commands = [line.strip() for line in printed.splitlines() if line.startswith("  agentmill ")]
    assert [shlex.split(each)[1] for each in commands] == ["inspect", "export"]
    for command in commands:
        assert agentmill(*shlex.split(command)[1:]) == 0


def test_the_rest_of_a_run_with_a_stand_in_is_no_command_that_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_environments(tmp_path)
    train = {"operator": "train_sft", "rows": "rows", "model": "planner"}
    recipe = write_recipe(tmp_path, DEMONSTRATE, CHECK, EXPORT, train)
    assert agentmill("run", recipe, "--only", "data") == 0
    assert "the rest: a recipe that can be run whole (train_sft (train_sft, steps.3)" in capsys.readouterr().out


def test_the_rest_of_a_part_has_the_parameters_of_the_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, recipe = tmp_path / "run", write(tmp_path / "mine.yaml", tmp_path / "run")
    with recipe.open("a", encoding="utf-8") as file:
        file.write("  - {operator: admit, of: worlds, as: admitted}\n")

    def rest(*options: str) -> object:
        assert agentmill("run", recipe, "--until", "worlds", "--json", *options) == 0
        return json.loads(capsys.readouterr().out)["rest"]

    assert rest() == f"agentmill run {run}/recipe.yaml"
    # Nothing is made, so the recipe that lies there has no limit.
    other = "the same command without --only, --until and --skip"
    assert rest("steps.admitted.max_expansions=9") == other
    assert agentmill("run", recipe) == 0
    capsys.readouterr()
    assert rest() is None
    # The summary that lies there is not of this recipe.
    assert rest("steps.admitted.max_expansions=9") == other
    assert agentmill("run", recipe, "--until", "worlds") == 0
    assert "not finished" not in capsys.readouterr().out
