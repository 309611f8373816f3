"""Commands on recipes that start nothing: plan, show, diff, new, and recipes by name."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Never

import pytest

from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.shipped import STATUSES, recipe_files, sketch_files
from agentmill.schemas.config import parse_yaml, read_yaml
from tests.errors import shows
from tests.pipelines.cli.tables import agentmill


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_recipes_are_listed_with_paper_steps_and_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert agentmill("list", "recipes", "--json") == 0
    cards = {card["name"]: card for card in json.loads(capsys.readouterr().out)}
    assert set(recipe_files()) >= {"eto", "agentgen", "fireact"}
    assert set(cards) == {*recipe_files(), *sketch_files()}
    assert cards["rise"]["status"] == "planned"
    assert (
        cards["eto"]["paper"] == "Trial and Error: Exploration-Based Trajectory Optimization for LLM Agents 2403.02502"
    )
    assert cards["eto"]["steps"] == 14, "four of them make the environments, four are in the loop"
    assert all(card["status"] in STATUSES for card in cards.values())
    assert cards["eto"]["status"] == "data"
    assert agentmill("list", "recipes") == 0
    assert "2403.02502" in capsys.readouterr().out


def test_a_recipe_is_found_by_its_name_and_one_letter_off_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert agentmill("run", "eto", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["run_dir"] == "runs/eto"
    for command in ("run", "plan"):
        assert agentmill(command, "etoo") == 2
        assert shows(capsys.readouterr().err, "no-such-file", "etoo", "Did you mean 'eto'?")
    Path("eto").mkdir()
    assert agentmill("plan", "eto") == 0, "a folder of that name is no recipe"
    Path("eto.yaml").write_text("name: mine\nsteps: [{spec_env: environments, n: 2}]\n", encoding="utf-8")
    assert read_recipe(Path("eto"), ()).name == "mine"


def test_plan_shows_bounds_for_people_and_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert agentmill("plan", "eto", "steps.proposed_tasks.n=3", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["name"], found["run_dir"], found["episodes"]) == ("eto", "runs/eto", 24 + 2 * 24 + 2 * (6 + 6))
    assert not Path("runs").exists()
    assert agentmill("plan", "eto", "steps.proposed_tasks.n=3", "--until", "loop/round-01/explored") == 0
    printed = capsys.readouterr().out
    assert "In all at most 48 episodes and 432 calls of models." in printed
    assert "left out (after loop/round-01/explored): " in printed


def test_show_writes_the_long_form_which_is_a_recipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert agentmill("show", "recipe", "eto", "models.actor={policy: expert, mistakes: 0.3}") == 0
    text = capsys.readouterr().out
    data = parse_yaml(text, "shown")
    assert "include" not in data
    assert data["models"]["actor"] == {"policy": "expert", "mistakes": 0.3}
    assert data["steps"][4] == {"operator": "expert", "as": "demonstrations", "policy": "planner"} | {
        "tasks": "tasks",
        "environments": "environments",
        "split": "train",
    }
    (tmp_path / "long.yaml").write_text(text, encoding="utf-8")
    assert agentmill("diff", "eto", "long.yaml", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == found["added"] == found["removed"] == []
    assert any(change.startswith("models.actor.policy: vllm -> expert") for change in found["settings"])


def test_diff_names_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert agentmill("diff", "eto", "fireact") == 0
    printed = capsys.readouterr().out.splitlines()
    assert "- step loop/pairs" in printed
    assert "+ step reflected" in printed
    assert any(line.startswith("  step evaluation: splits") for line in printed)
    assert agentmill("diff", "eto", "eto") == 0
    assert "no difference" in capsys.readouterr().out


def test_a_new_recipe_is_commented_and_can_be_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert agentmill("new", "mine") == 0
    assert "agentmill run mine.yaml --preview 5" in capsys.readouterr().out
    assert read_yaml("mine.yaml")["name"] == "mine"
    assert "# " in Path("mine.yaml").read_text(encoding="utf-8")
    small = ["steps.proposed_environments.n=3", "steps.proposed_environments.held_out=0", "steps.proposed_tasks.n=3"]
    assert agentmill("run", "mine", *small) == 0
    assert Path("runs/mine/summary.json").exists()
    assert agentmill("new", "mine") == 2
    assert shows(capsys.readouterr().err, "name-taken", "mine.yaml")


@pytest.mark.parametrize("name", ["123", "null", "1e5"])
def test_a_name_that_yaml_reads_as_something_else_is_a_name(name: str) -> None:
    assert agentmill("new", name) == 0
    assert read_yaml(f"{name}.yaml")["name"] == name


@pytest.mark.parametrize("name", ["eto", "rise"])
def test_a_new_recipe_hides_no_shipped_one(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert agentmill("new", name) == 2
    assert shows(capsys.readouterr().err, "name-taken", f"agentmill new my-{name} --from {name}")
    assert not Path(f"{name}.yaml").exists()


def test_a_new_recipe_where_nothing_can_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(path: Path, *_: object, **__: object) -> Never:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    # Modes of folders do not hold for root, as whom tests may run.
    monkeypatch.setattr(Path, "write_text", denied)
    assert agentmill("new", "mine") == 2
    assert shows(capsys.readouterr().err, "not-writable", "mine.yaml cannot be written (Permission denied)")


STEPS = "steps:\n  - {spec_env: e, family: pddl, backend: procedural, n: 4}\n"


@pytest.mark.parametrize(
    "text",
    [
        f"{STEPS}name: last\nrun_dir: runs/last",
        f'"name": quoted\n"run_dir": \'runs/q\' # mine\n{STEPS}',
        f"name: wrap\nrun_dir:\n  runs/wrap\n{STEPS}",
        "{name: flow, run_dir: runs/flow, steps: [{spec_env: e, family: pddl, backend: procedural, n: 4}]}\n",
        f"\ufeffname: windows\r\n{STEPS}",
    ],
)
def test_a_copy_never_runs_where_its_original_does(text: str) -> None:
    Path("origin.yaml").write_text(text, encoding="utf-8", newline="")
    assert agentmill("new", "copy", "--from", "origin.yaml") == 0
    assert read_yaml("copy.yaml")["name"] == "copy"
    assert read_recipe(Path("copy.yaml"), ()).run_dir == "runs/copy"
    assert ("# mine" in Path("copy.yaml").read_text(encoding="utf-8")) == ("# mine" in text)


def test_a_copy_that_would_run_where_its_original_does_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    text = f"<<: {{name: merged, run_dir: runs/merged}}\n{STEPS}"
    Path("origin.yaml").write_text(text, encoding="utf-8")
    assert agentmill("new", "copy", "--from", "origin.yaml") == 2
    assert shows(capsys.readouterr().err, "name-malformed", "origin.yaml", "by hand")
    assert not Path("copy.yaml").exists()


def test_a_new_recipe_from_another_one_keeps_its_comments(capsys: pytest.CaptureFixture[str]) -> None:
    assert agentmill("new", "other", "--from", "eto", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"file": "other.yaml"}
    assert Path("other.yaml").read_text(encoding="utf-8").startswith("# Imitate an expert")
    assert agentmill("diff", "eto", "other") == 0
    assert "no difference" in capsys.readouterr().out
    assert agentmill("new", "no/name") == 2
    assert shows(capsys.readouterr().err, "name-malformed", "no/name")
    assert agentmill("new", "third", "--from", "fireac") == 2
    assert shows(capsys.readouterr().err, "no-such-file", "fireac", "fireact")
    assert not Path("third.yaml").exists()
