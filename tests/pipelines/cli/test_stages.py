"""The commands of single stages, on the example configurations that are shipped."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from agentmill.pipelines.cli.stage import VERBS, operators_of
from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.plan import make_plan
from agentmill.schemas.config import read_yaml, validate
from agentmill.schemas.records.verdict import Selection
from agentmill.schemas.tables import Table
from agentmill.schemas.views import FAMILY_VIEWS, PAIR_VIEWS, VIEWS
from agentmill.trainers.command import DpoSettings, KtoSettings, RewardSettings, SftSettings
from tests.errors import shows
from tests.pipelines.cli.tables import CHECK, DEMONSTRATE, agentmill, write_environments, write_recipe

STAGES = Path(__file__).resolve().parents[3] / "configs/stages"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with environments, tasks, demonstrations and verdicts on them."""
    folder = tmp_path_factory.mktemp("made")
    write_environments(folder)
    recipe = write_recipe(folder, DEMONSTRATE, CHECK, run_dir=str(folder)).rename(folder / "small.yaml")
    assert agentmill("run", recipe) == 0
    return folder


def test_every_operator_belongs_to_one_command() -> None:
    grouped = [operator for verb in VERBS for operator in operators_of(verb)]
    trainings = ["train_dpo", "train_kto", "train_reward", "train_sft"]
    assert sorted([*grouped, *VIEWS, *PAIR_VIEWS, *FAMILY_VIEWS, *trainings]) == sorted(OPERATORS)


def test_every_command_has_an_example_that_is_a_valid_step(made: Path) -> None:
    tables = {"trajectories": "demonstrations"}
    (made / "raw.jsonl").write_text('{"messages": []}\n')
    for verb in VERBS:
        path = STAGES / f"{verb}.yaml"
        data = read_yaml(path).get("data", {})
        places = [f"data.{name}={made / tables.get(name, name)}" for name in data]
        places += [f"steps.0.data=[{made / 'raw.jsonl'}]"] if verb == "normalize" else []
        plan = make_plan(read_recipe(path, places))
        assert plan.steps[0].context.operator in operators_of(verb)
    assert validate(SftSettings, read_yaml(STAGES / "train_sft.yaml"), "train_sft.yaml").max_steps == 60
    assert validate(DpoSettings, read_yaml(STAGES / "train_dpo.yaml"), "train_dpo.yaml").learning_rate == 1e-6
    assert validate(KtoSettings, read_yaml(STAGES / "train_kto.yaml"), "train_kto.yaml").learning_rate == 1e-6
    assert validate(RewardSettings, read_yaml(STAGES / "train_reward.yaml"), "train_reward.yaml").learning_rate == 1e-5


@pytest.mark.parametrize("path", sorted(STAGES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_belongs_to_the_command_that_it_names(made: Path, path: Path) -> None:
    text, data = path.read_text(), read_yaml(path)
    if "steps" not in data:
        assert f"agentmill train {path.stem.removeprefix('train_')} --config configs/stages/{path.name}" in text
        return
    [verb] = [verb for verb in VERBS if data["steps"][0]["operator"] in operators_of(verb)]
    assert f"agentmill {verb} --config configs/stages/{path.name}" in text
    if verb == "rollout":
        places = [f"data.{name}={made / name}" for name in data["data"]]
        assert len(make_plan(read_recipe(path, places)).steps) == 1


def test_synthesize(tmp_path: Path) -> None:
    assert agentmill(*command("synthesize", tmp_path), "steps.0.n=3", "steps.0.held_out=0.4") == 0
    rows = list(Table.open(tmp_path / "run/proposed_environments").rows())
    assert sorted(row.split for row in rows) == ["held_out", "train", "train"]


def test_rollout(made: Path, tmp_path: Path) -> None:
    expert = ["models={actor: {policy: expert}}", "steps.0.k=2", "steps.0.temperature=null"]
    assert agentmill(*command("rollout", tmp_path), *places(made, "tasks", "environments"), *expert) == 0
    assert Table.open(tmp_path / "run/explored").manifest.counts.written == 4


def test_rollout_of_several_agents(made: Path, tmp_path: Path) -> None:
    """The expert plans, too: it says what it would do."""
    given = ["models={actor: {policy: expert}}", "steps.0.temperature=null", f"run_dir={tmp_path / 'run'}"]
    config = str(STAGES / "multi_agent.yaml")
    assert agentmill("rollout", "--config", config, *places(made, "tasks", "environments"), *given) == 0
    rows = list(Table.open(tmp_path / "run/planned").rows())
    assert {row.outcome.status for row in rows} == {"success"}
    assert all(row.extra["roles"]["planner"]["calls"] >= 1 for row in rows)


def test_verify(made: Path, tmp_path: Path) -> None:
    given = places(made, "tasks", "environments", trajectories="demonstrations")
    assert agentmill(*command("verify", tmp_path), *given) == 0
    assert [row.passed for row in Table.open(tmp_path / "run/verdicts").rows()] == [True, True]


def test_curate(made: Path, tmp_path: Path) -> None:
    given = places(made, "verdicts", trajectories="demonstrations")
    assert agentmill(*command("curate", tmp_path), *given) == 0
    selections: list[Selection] = list(Table.open(tmp_path / "run/selections").rows())
    assert [row.kept for row in selections] == [True, True]


def test_curate_shows_what_is_kept_and_why_the_rest_is_not(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*places(made, "verdicts", trajectories="demonstrations"), "steps.0.where.0.passed=false"]
    assert agentmill(*command("curate", tmp_path), *given) == 0
    assert re.search(r"selection +operator +read +kept +left out +why", capsys.readouterr().out)
    assert agentmill(*command("curate", tmp_path), *given, "--json") == 0
    stage = msgspec.json.decode(capsys.readouterr().out)["summary"]["stages"]["selections"]
    assert (stage["kept"], stage["left_out"]) == (0, {"check_outcome": 2})


def test_evaluate(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expert = ["models={actor: {policy: expert}}"]
    assert agentmill(*command("evaluate", tmp_path), *places(made, "tasks", "environments"), *expert) == 0
    assert "base_constrained" in capsys.readouterr().out


def test_a_step_of_another_command_and_a_whole_recipe_are_refused(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = places(made, "tasks", "environments", trajectories="demonstrations")
    verify = command("verify", tmp_path)
    assert agentmill("rollout", *verify[1:], *given) == 2
    assert shows(capsys.readouterr().err, "step-not-for-command", "agentmill rollout", "expert, imagine")
    recipe = write_recipe(made, DEMONSTRATE, CHECK, run_dir=str(tmp_path / "run")).rename(made / "whole.yaml")
    assert agentmill("rollout", "--config", recipe) == 2
    assert shows(capsys.readouterr().err, "step-not-for-command", f"agentmill run {recipe}")
    assert not (tmp_path / "run").exists()


def command(verb: str, folder: Path) -> list[str]:
    """A stage command on its example, into ``folder/run``."""
    return [verb, "--config", str(STAGES / f"{verb}.yaml"), f"run_dir={folder / 'run'}"]


def places(made: Path, *names: str, **others: str) -> list[str]:
    """Overrides that put tables of ``made`` in the place of those of the example."""
    return [f"data.{name}={made / place}" for name, place in {**dict(zip(names, names, strict=True)), **others}.items()]
