"""The folder of a run: what is not ours there stays, and the commands that are printed lead to it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from agentmill.pipelines.recipes.run_folder import resume_command
from agentmill.pipelines.report.page import resume
from agentmill.pipelines.runs.run import read_run
from agentmill.pipelines.runs.tables import check_finished
from tests.errors import user_error
from tests.pipelines.cli.tables import agentmill

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


def test_the_rest_of_a_part_has_the_parameters_of_the_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, recipe = tmp_path / "run", write(tmp_path / "mine.yaml", tmp_path / "run")
    with recipe.open("a", encoding="utf-8") as file:
        file.write("  - {operator: admit, of: worlds, as: admitted}\n")

    def rest(*options: str) -> object:
        assert agentmill("run", recipe, "--until", "worlds", "--json", *options) == 0
        return json.loads(capsys.readouterr().out)["rest"]

    assert rest() == f"agentmill run {run}/recipe.yaml"
    # Nothing is made, so the recipe that lies there has no limit.
    assert rest("steps.admitted.max_expansions=9") == "the same command without --only, --until and --skip"
    assert agentmill("run", recipe) == 0
    capsys.readouterr()
    assert rest() is None
    assert agentmill("run", recipe, "--until", "worlds") == 0
    assert "not finished" not in capsys.readouterr().out
