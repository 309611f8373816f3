"""What a recipe may say, and what a user reads who says it wrong. Nothing is started here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.parts import WHOLE, Part
from agentmill.pipelines.recipes.plan import Plan, make_plan
from agentmill.pipelines.recipes.runner import resolved
from agentmill.schemas.config import dump_yaml
from agentmill.schemas.records.verdict import Label
from tests.builders import spec, task, trajectory
from tests.errors import user_error

ROOT = Path(__file__).resolve().parents[3]
SPEC_ENV = {"operator": "spec_env", "n": 2, "as": "environments"}
PROPOSE = {"operator": "propose", "of": "environments", "n": 2, "as": "tasks"}
SAMPLE = {"operator": "sample", "policy": "actor", "tasks": "tasks", "environments": "environments", "as": "explored"}
SFT = {"operator": "sft", "from": "explored", "as": "rows"}
TRAIN = {"operator": "train_sft", "rows": "rows", "model": "actor", "as": "tuned"}
WORLD = [SPEC_ENV, PROPOSE]
CHECK = {
    "operator": "check_outcome",
    "of": "explored",
    "tasks": "tasks",
    "environments": "environments",
    "as": "verdicts",
}
JUDGED = [*WORLD, SAMPLE, CHECK]
TWICE = {**CHECK, "of": ["explored@all", "explored"]}
PICK = {"operator": "pick", "of": "explored", "verdicts": "verdicts"}
VALUES = {"operator": "step_value", "of": "explored", "method": "broadcast", "name": "v", "as": "values"}
EVALUATE = {"operator": "evaluate", "models": {"a": "actor"}, "tasks": "tasks", "environments": "environments"}


def select(**condition: Any) -> dict[str, Any]:
    return {"operator": "filter", "of": "explored", "verdicts": "verdicts", "where": [condition]}


def toolboxes(family: str = "toolbox") -> list[dict[str, Any]]:
    """Environments of ``family``, admitted, with tasks."""
    admit = {"operator": "admit", "of": "proposed", "as": "environments"}
    return [{**SPEC_ENV, "family": family, "as": "proposed"}, admit, PROPOSE]


def plan_of(folder: Path, steps: list[dict[str, Any]], *overrides: str, part: Part = WHOLE, **changes: Any) -> Plan:
    models = {"actor": {"policy": "vllm", "model": "bundled:smollm2-135m-instruct"}, "planner": {"policy": "expert"}}
    data = {"name": "test", "run_dir": str(folder / "run"), "models": models, "steps": steps, **changes}
    path = folder / "recipe.yaml"
    path.write_text(dump_yaml(data), encoding="utf-8")
    return make_plan(read_recipe(path, overrides), part)


def test_steps_are_resolved_in_order(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, [*WORLD, SAMPLE])
    assert [step.name for step in plan.steps] == ["environments", "tasks", "explored"]
    explored = plan.steps[2]
    assert explored.folder == tmp_path / "run" / "explored"
    assert [output.folder.name for output in explored.inputs["tasks"]] == ["tasks"]
    assert explored.models["actor"].model == "bundled:smollm2-135m-instruct"
    assert not (tmp_path / "run").exists()


def test_the_output_is_called_like_the_operator_where_nothing_else_is_said(tmp_path: Path) -> None:
    step = {"operator": "spec_env", "n": 2}
    assert [each.name for each in plan_of(tmp_path, [step]).steps] == ["spec_env"]


def test_seeds_differ_by_step_and_by_run_and_not_otherwise(tmp_path: Path) -> None:
    one, same, other = (plan_of(tmp_path, WORLD, f"seed={seed}").steps for seed in (1, 1, 2))
    assert [step.context.seed for step in one] == [step.context.seed for step in same]
    assert len({*(step.context.seed for step in [*one, *other])}) == 4


def test_overrides_by_position_by_name_and_at_the_top(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, WORLD, "steps.0.n=5", "steps.tasks.n=7", "run_dir=elsewhere", "seed=3")
    assert [getattr(step.parameters, "n", None) for step in plan.steps] == [5, 7]
    assert (plan.run_dir, plan.recipe.seed) == (Path("elsewhere"), 3)


def test_a_step_whose_name_begins_with_a_digit_is_overridden_by_name(tmp_path: Path) -> None:
    step = {"operator": "spec_env", "n": 2, "as": "2envs"}
    assert plan_of(tmp_path, [step], "steps.2envs.n=3").steps[0].parameters.n == 3  # type: ignore[attr-defined]


def test_data_names_tables_made_elsewhere(tmp_path: Path) -> None:
    seed_table(tmp_path / "worlds", [spec()])
    seed_table(tmp_path / "chores", [task()])
    data = {"environments": str(tmp_path / "worlds"), "tasks": str(tmp_path / "chores")}
    plan = plan_of(tmp_path, [SAMPLE], data=data)
    assert [output.record for output in plan.steps[0].inputs["tasks"]] == ["Task"]


def test_paths_in_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    seed_table(tmp_path / "worlds", [spec()])
    plan = plan_of(tmp_path, [PROPOSE], "run_dir=~/runs/x", data={"environments": "~/worlds"})
    assert (plan.run_dir, plan.data) == (tmp_path / "runs/x", {"environments": tmp_path / "worlds"})
    # A published run has its recipe with it.
    assert {"run_dir": "~/runs/x", "data": {"environments": "~/worlds"}}.items() <= resolved(plan.recipe).items()
    with user_error("rule-broken", "run_dir", "~nobody-here/x"):
        plan_of(tmp_path, [PROPOSE], "run_dir=~nobody-here/x")


def test_last_is_the_newest_model_trained_from_the_declared_one(tmp_path: Path) -> None:
    evaluate = {"operator": "evaluate", "models": {"base": "actor@base", "tuned": "actor@last"}, "tasks": "tasks"}
    plan = plan_of(tmp_path, [*WORLD, SAMPLE, SFT, TRAIN, {**evaluate, "environments": "environments"}])
    models = plan.steps[-1].models
    assert models["base"].model == "bundled:smollm2-135m-instruct"
    assert models["tuned"].model == str(tmp_path / "run" / "tuned")
    assert models["tuned"].server == models["base"].server


def test_iterate_repeats_its_steps_with_the_newest_model_and_outputs(tmp_path: Path) -> None:
    body = [{**SAMPLE, "policy": "actor@last"}, SFT, {**TRAIN, "model": "actor@last"}]
    after = {"operator": "sft", "from": "explored", "as": "final_rows"}
    plan = plan_of(tmp_path, [*WORLD, {"operator": "iterate", "rounds": 2, "steps": body}, after])
    assert [step.name for step in plan.steps[2:]] == [
        *("round-01/explored", "round-01/rows", "round-01/tuned"),
        *("round-02/explored", "round-02/rows", "round-02/tuned"),
        "final_rows",
    ]
    first, second = plan.steps[2], plan.steps[5]
    assert (first.context.round, second.context.round) == (1, 2)
    assert first.models["actor"].model == "bundled:smollm2-135m-instruct"
    assert second.models["actor"].model == str(tmp_path / "run/round-01/tuned")
    assert plan.steps[7].models["model"].model == str(tmp_path / "run/round-01/tuned")
    assert plan.steps[-1].inputs["from"][0].folder == tmp_path / "run/round-02/explored"


def test_the_routes_of_a_fork_start_from_the_same_and_are_told_apart_after_it(tmp_path: Path) -> None:
    short = [{**TRAIN, "model": "actor@last", "max_steps": 5}]
    explore = {**SAMPLE, "policy": "actor@last"}
    long = [{"operator": "iterate", "rounds": 2, "steps": [explore, SFT, {**TRAIN, "model": "actor@last"}]}]
    models = {"before": "actor@last", "short": "actor@short", "long": "actor@long"}
    after = [
        {"operator": "evaluate", "models": models, "tasks": "tasks", "environments": "environments"},
        {"operator": "sft", "from": ["explored", "long/explored"], "as": "all_rows"},
    ]
    fork = {"operator": "fork", "routes": {"short": short, "long": long}}
    plan = plan_of(tmp_path, [*WORLD, SAMPLE, SFT, TRAIN, fork, *after])
    steps, run = {step.name: step for step in plan.steps}, tmp_path / "run"
    assert [name for name in steps if "/" in name] == [
        "short/tuned",
        *(f"long/round-0{number}/{name}" for number in (1, 2) for name in ("explored", "rows", "tuned")),
    ]
    assert steps["long/round-01/explored"].models["actor"].model == str(run / "tuned")
    assert steps["long/round-02/explored"].models["actor"].model == str(run / "long/round-01/tuned")
    found = {name: model.model for name, model in steps["evaluate"].models.items()}
    ends = {"before": "tuned", "short": "short/tuned", "long": "long/round-02/tuned"}
    assert found == {name: str(run / end) for name, end in ends.items()}
    sources = [output.folder for output in steps["all_rows"].inputs["from"]]
    assert sources == [run / "explored", run / "long/round-02/explored"]


def fork(*steps: dict[str, Any], other: str = "b") -> dict[str, Any]:
    return {"operator": "fork", "routes": {"a": list(steps), other: [{**SPEC_ENV, "as": "there"}]}}


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([{"operator": "smaple"}], ("unknown-name", "steps.0", "smaple", "sample")),
        ([{"as": "x"}], ("missing-key", "steps.0")),
        ([{**SPEC_ENV, "m": 3}], ("unknown-key", "steps.0", "'m'")),
        ([{**SPEC_ENV, "n": "many"}], ("invalid-value", "steps.0", "many")),
        ([{**SPEC_ENV, "n": 0}], ("invalid-value", "steps.0", "1")),
        ([SPEC_ENV, {**PROPOSE, "of": "enviroments"}], ("unknown-name", "enviroments", "environments")),
        ([PROPOSE, SPEC_ENV], ("unknown-name", "steps.0", "environments")),
        ([SPEC_ENV, SPEC_ENV], ("name-taken", "environments")),
        ([{**SPEC_ENV, "as": "a/b"}], ("name-malformed", "a/b")),
        ([{**SPEC_ENV, "as": "logs"}], ("name-taken", "logs")),
        ([{**SPEC_ENV, "as": "round-02"}], ("name-taken", "round-02")),
        ([*WORLD, {**SAMPLE, "policy": "actr"}], ("unknown-name", "actr", "actor")),
        ([*WORLD, {**SAMPLE, "policy": "actor@first"}], ("unknown-name", "first")),
        ([*WORLD, {**SAMPLE, "policy": "actor@last"}], ("model-not-trained-yet", "actor")),
        ([*WORLD, {**SAMPLE, "tasks": "environments"}], ("wrong-record-type", "EnvironmentSpec", "Task")),
        ([*WORLD, SAMPLE, SFT, {**TRAIN, "model": "planner"}], ("model-of-wrong-kind", "planner")),
        ([*WORLD, SAMPLE, SFT, TRAIN, {**SFT, "from": "tuned", "as": "x"}], ("wrong-record-type", "from")),
        ([{"operator": "iterate", "rounds": 0, "steps": [SPEC_ENV]}], ("invalid-value", "steps.0")),
        (
            [{"operator": "iterate", "rounds": 1, "steps": [{"operator": "iterate"}]}],
            ("steps-nested", "steps", "iterate"),
        ),
        ([{"operator": "iterate", "rounds": 1, "steps": [fork(SPEC_ENV)]}], ("steps-nested", "steps", "iterate")),
        ([{"operator": "fork", "routes": {"a": [SPEC_ENV]}}], ("invalid-value", "steps.0")),
        ([{**SPEC_ENV, "as": "a"}, fork(SPEC_ENV)], ("name-taken", "steps.1", "'a'")),
        ([fork(SPEC_ENV, other="last")], ("name-taken", "steps.0", "last")),
        ([fork(SPEC_ENV), PROPOSE], ("unknown-name", "'environments'", "a/environments", "b/there")),
        ([fork({**SPEC_ENV, "m": 3})], ("unknown-key", "steps.0.routes.a.0", "'m'")),
        ([{**SPEC_ENV, "inspiration": "no/such.txt"}], ("no-such-file", "no/such.txt")),
        ([*WORLD, SAMPLE, {**CHECK, "of": ["explored", "explored"]}], ("given-twice", "steps.3", "explored")),
        (
            [
                *WORLD,
                {"operator": "iterate", "rounds": 2, "steps": [SAMPLE, {**CHECK, "of": ["explored@all", "explored"]}]},
            ],
            ("given-twice", "round-01/explored"),
        ),
        (
            [*WORLD, {**SAMPLE, "policy": "planner", "operator": "expert", "context": "notes"}],
            ("needs-another-key", "steps.2", "summarizer"),
        ),
        ([*JUDGED, select(field="misfits", equals=1)], ("rule-broken", "steps.4", "where.0", "misfits")),
        (
            [*JUDGED, select(verdict="judge", passed=True)],
            ("annotation-missing", "steps.4", "judge", "verdicts"),
        ),
        ([*JUDGED, select(verdict="check_outcom", passed=True)], ("annotation-missing", "check_outcome")),
        ([*JUDGED, select(value="mc", at_least=1)], ("needs-another-key", "where: {value: mc}", "values")),
        ([*JUDGED, {**PICK, "score": "verdict:judge"}], ("annotation-missing", "score: verdict:judge", "'judge'")),
        ([*JUDGED, {**PICK, "score": "passed:judge"}], ("annotation-missing", "score: passed:judge", "'judge'")),
        (
            [*JUDGED, {**SFT, "verdicts": "verdicts", "where": "success", "verdict": "judge"}],
            ("annotation-missing", "where: success"),
        ),
        (
            [*JUDGED, VALUES, {**SFT, "values": "values", "weight": "value:mc"}],
            ("annotation-missing", "'mc'"),
        ),
        (
            [*JUDGED, VALUES, {**SFT, "values": "values", "copied": [{"value": "mc", "at_least": 0}]}],
            ("annotation-missing", "copied: {value: mc}"),
        ),
        (
            [*toolboxes(), {**SAMPLE, "constrain": "admissible"}],
            ("actions-not-listed", "constrain: admissible", "toolbox"),
        ),
        ([*toolboxes("codegym"), {**SAMPLE, "constrain": "admissible"}], ("actions-not-listed", "codegym")),
        (
            [*toolboxes("interpreter"), {**EVALUATE, "constrained": ["a"]}],
            ("actions-not-listed", "constrained: a", "interpreter"),
        ),
    ],
)
def test_mistakes_in_steps(tmp_path: Path, steps: list[dict[str, Any]], message: tuple[str, ...]) -> None:
    with user_error(*message) as caught:
        plan_of(tmp_path, steps)
    assert len(str(caught.value).splitlines()) <= 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sed": 1}, ("unknown-key", "sed", "seed")),
        ({"seed": "one"}, ("invalid-value", "seed", "one")),
        ({"name": "a b"}, ("invalid-value", "name", "a b")),
        ({"steps": []}, ("invalid-value", "steps")),
        ({"runner": {"name": "DirectRunner"}}, ("invalid-value", "runner.name")),
        ({"models": {"actor": {"policy": "vlm", "model": "x"}}}, ("rule-broken", "vlm", "vllm")),
        ({"data": {"tasks": "no/such/table"}}, ("table-missing", "data.tasks", "no/such/table")),
    ],
)
def test_mistakes_around_the_steps(tmp_path: Path, changes: dict[str, Any], message: tuple[str, ...]) -> None:
    with user_error(*message):
        plan_of(tmp_path, changes.pop("steps", WORLD), **changes)


def test_an_override_makes_a_part_that_the_recipe_lacks(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, WORLD, "runner.name=multi_threading", "runner.workers=2")
    assert (plan.recipe.runner.name, plan.recipe.runner.workers) == ("multi_threading", 2)
    with user_error("unknown-key", "runer"):
        plan_of(tmp_path, WORLD, "runer.name=embedded")


NORMALIZE = {"operator": "normalize", "dataset": "small", "licence": "MIT"}


def test_names_and_folders_in_overrides_are_text_also_where_yaml_reads_a_number(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, WORLD, "name=7", "run_dir=2024")
    assert (plan.recipe.name, plan.run_dir) == ("7", Path("2024"))
    assert plan_of(tmp_path, WORLD, 'run_dir="2024"').run_dir == Path("2024")
    with user_error("invalid-value", "run_dir", "''"):
        plan_of(tmp_path, WORLD, "run_dir=")


@pytest.mark.parametrize(
    ("step", "key", "file", "text"),
    [
        ({**NORMALIZE, "format": "openai"}, "data", "runs.jsonl", '{"messages": []}\n'),
        ({"operator": "spec_env", "n": 1}, "inspiration", "texts.txt", "A text.\n"),
        ({"operator": "spec_env", "family": "search"}, "corpus", "articles.jsonl", '{"id": "a", "text": "a b"}\n'),
    ],
)
def test_paths_in_steps_may_begin_with_the_home_of_the_user(
    step: dict[str, Any], key: str, file: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / file).write_text(text)
    given = f"~/{file}" if key == "inspiration" else [f"~/{file}"]
    plan = plan_of(tmp_path, [{**step, key: given}])
    assert str(tmp_path / file) in getattr(plan.steps[0].parameters, key)
    # A published run has its recipe with it.
    assert resolved(plan.recipe)["steps"] == [{**step, key: given}]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("steps.task.n=1", ("unknown-name", "'task'", "tasks")),
        ("steps.9.n=1", ("unknown-key", "steps.9.n=1")),
        ("seed", ("override-malformed", "seed")),
        ("modles.actor.policy=x", ("unknown-key", "modles", "models")),
    ],
)
def test_mistakes_in_overrides(tmp_path: Path, override: str, message: tuple[str, ...]) -> None:
    with user_error(*message):
        plan_of(tmp_path, WORLD, override)


def test_a_table_of_another_record_is_refused(tmp_path: Path) -> None:
    seed_table(tmp_path / "t", [trajectory()])
    with user_error("wrong-record-type", "Trajectory", "EnvironmentSpec"):
        plan_of(tmp_path, [{**PROPOSE, "of": "given"}], data={"given": str(tmp_path / "t")})


def test_names_that_a_step_writes_can_be_asked_for(tmp_path: Path) -> None:
    asked = {"values": "values", "verdicts": "verdicts", "weight": "value:v", "where": "success", "as": "weighted"}
    steps = [*JUDGED, VALUES, {**SFT, **asked}, {**PICK, "score": "passed:check_outcome"}]
    plan = plan_of(tmp_path, [*steps, {**SAMPLE, "constrain": "admissible", "as": "constrained"}])
    assert [step.name for step in plan.steps[5:]] == ["weighted", "pick", "constrained"]


def test_names_in_the_scores_of_combine_are_found(tmp_path: Path) -> None:
    combine = {"operator": "combine", "of": "explored", "verdicts": "verdicts", "as": "combined"}
    scores = [{"score": "passed:check_outcome", "weight": 2, "veto": True}, {"score": "reward"}]
    picked = {**PICK, "verdicts": "combined", "score": "verdict:combine"}
    assert plan_of(tmp_path, [*JUDGED, {**combine, "scores": scores}, picked]).steps[-1].name == "pick"
    with user_error("annotation-missing", "scores.score: verdict:judge", "check_outcome"):
        plan_of(tmp_path, [*JUDGED, {**combine, "scores": [*scores, {"score": "verdict:judge"}]}])


def test_a_verifier_writes_verdicts_of_the_name_it_is_given(tmp_path: Path) -> None:
    named = [*WORLD, SAMPLE, {**CHECK, "name": "goal"}]
    assert plan_of(tmp_path, [*named, {**PICK, "score": "passed:goal"}]).steps[-1].name == "pick"
    with user_error("annotation-missing", "check_outcome"):
        plan_of(tmp_path, [*named, {**PICK, "score": "passed:check_outcome"}])


def test_names_in_tables_made_elsewhere_are_read_from_them(tmp_path: Path) -> None:
    seed_table(tmp_path / "runs", [trajectory()])
    seed_table(tmp_path / "labels", [Label(trajectory_id="t1", name="quality", value="good", labeller="me")])
    data = {"explored": str(tmp_path / "runs"), "labels": str(tmp_path / "labels")}
    step = {"operator": "filter", "of": "explored", "labels": "labels"}
    plan = plan_of(tmp_path, [{**step, "where": [{"label": "quality", "equals": "good"}]}], data=data)
    assert plan.steps[0].inputs["labels"][0].names == {"quality"}
    with user_error("annotation-missing", "qualty", "quality"):
        plan_of(tmp_path, [{**step, "where": [{"label": "qualty", "equals": "good"}]}], data=data)


def test_families_of_tables_made_elsewhere_are_read_from_them(tmp_path: Path) -> None:
    seed_table(tmp_path / "worlds", [spec(), spec("env2", family="toolbox")])
    seed_table(tmp_path / "chores", [task()])
    data = {"environments": str(tmp_path / "worlds"), "tasks": str(tmp_path / "chores")}
    assert plan_of(tmp_path, [SAMPLE], data=data).steps[0].inputs["environments"][0].families == {"pddl", "toolbox"}
    with user_error("actions-not-listed", "toolbox"):
        plan_of(tmp_path, [{**SAMPLE, "constrain": "admissible"}], data=data)


def test_the_quickstart_is_a_valid_recipe() -> None:
    quickstart = Path(__file__).resolve().parents[3] / "configs/quickstart.yaml"
    names = [step.name for step in make_plan(read_recipe(quickstart, [])).steps]
    assert names[-3:] == ["rows", "tuned", "evaluation"]


EXPLORE = {**SAMPLE, "policy": "actor"}
LOOP = [{**SAMPLE, "policy": "actor@last"}, SFT, {**TRAIN, "model": "actor@last"}]


def loop(*steps: dict[str, Any], rounds: int = 3, **parameters: Any) -> dict[str, Any]:
    return {"operator": "iterate", "rounds": rounds, "steps": list(steps), **parameters}


def folders_of(plan: Plan, step: str, role: str = "from") -> list[str]:
    """The input tables of a step, by their places in the run."""
    found = next(each for each in plan.steps if each.name == step)
    return [str(output.folder.relative_to(plan.run_dir)) for output in found.inputs[role]]


def test_tables_of_earlier_rounds_and_of_all(tmp_path: Path) -> None:
    body = [{**SAMPLE, "policy": "actor"}, {**SFT, "from": ["explored@all"]}]
    previous = {**SFT, "from": ["explored", "explored@previous"], "as": "pair"}
    after = [
        {**SFT, "from": ["explored@all"], "as": "every"},
        {**SFT, "from": ["explored@1", "explored@round-03"], "as": "some"},
    ]
    plan = plan_of(tmp_path, [*WORLD, loop(*body, previous), *after])
    assert folders_of(plan, "round-01/rows") == ["round-01/explored"]
    assert folders_of(plan, "round-02/rows") == ["round-01/explored", "round-02/explored"]
    assert folders_of(plan, "round-01/pair") == ["round-01/explored"]
    assert folders_of(plan, "round-03/pair") == ["round-03/explored", "round-02/explored"]
    assert folders_of(plan, "every") == [f"round-0{number}/explored" for number in (1, 2, 3)]
    assert folders_of(plan, "some") == ["round-01/explored", "round-03/explored"]


def test_tables_at_the_side_of_one_that_the_loop_makes_may_be_missing_in_its_first_round(tmp_path: Path) -> None:
    search = {"operator": "tree_search", "policy": "actor", "tasks": "tasks", "environments": "environments"}
    value = {"operator": "step_value", "method": "tree", "of": ["first", "found@previous"], "as": "worth"}
    nodes = ["first/nodes", "found/nodes@previous"]
    body = [{**value, "nodes": nodes}, {**search, "as": "found"}]
    plan = plan_of(tmp_path, [*WORLD, {**search, "as": "first"}, loop(*body)])
    assert folders_of(plan, "round-01/worth", "nodes") == ["first/nodes"]
    assert folders_of(plan, "round-02/worth", "nodes") == ["first/nodes", "round-01/found/nodes"]


def test_a_mixture_of_all_rounds_has_a_name_and_a_weight_for_each(tmp_path: Path) -> None:
    body = [{**EXPLORE}, SFT]
    seeds = {**SFT, "from": "explored", "as": "seeds"}
    mix = {"operator": "mix", "from": ["seeds", "rows@all"], "weights": {"seeds": 0.4, "rows@all": 0.6}, "as": "mixed"}
    plan = plan_of(tmp_path, [*WORLD, loop(*body), seeds, mix])
    assert folders_of(plan, "mixed") == ["seeds", *(f"round-0{number}/rows" for number in (1, 2, 3))]
    weights = getattr(plan.steps[-1].parameters, "weights", None)
    assert weights == pytest.approx({"seeds": 0.4, "rows@1": 0.2, "rows@2": 0.2, "rows@3": 0.2})
    assert plan.steps[-1].parameters.tables()["from"] == list(weights or ())


def test_rounds_of_a_loop_in_a_route_are_named_with_the_route(tmp_path: Path) -> None:
    routes = {"a": [loop(EXPLORE)], "b": [{**SPEC_ENV, "as": "there"}]}
    fork = {"operator": "fork", "routes": routes}
    plan = plan_of(tmp_path, [*WORLD, fork, {**SFT, "from": ["a/explored@2"]}])
    assert folders_of(plan, "rows") == ["a/round-02/explored"]


def test_a_loop_with_a_name_is_a_folder_so_that_there_may_be_several(tmp_path: Path) -> None:
    one, two = (
        loop(EXPLORE, **{"as": "one"}),
        loop(EXPLORE, rounds=1, **{"as": "two"}),
    )
    plan = plan_of(tmp_path, [*WORLD, one, two, {**SFT, "from": ["explored@all"]}])
    assert [step.name for step in plan.steps][2:-1] == [
        *(f"one/round-0{number}/explored" for number in (1, 2, 3)),
        "two/round-01/explored",
    ]
    assert folders_of(plan, "rows") == ["two/round-01/explored"]


def test_models_of_a_round_and_of_the_best_one(tmp_path: Path) -> None:
    models = {"first": "actor@round-01", "best": "actor@best", "last": "actor@last"}
    evaluation = {**EVALUATE, "models": {"now": "actor@last"}, "as": "evaluation"}
    steps = [*WORLD, loop(*LOOP, evaluation, until={"metric": "evaluation.success"}), {**EVALUATE, "models": models}]
    run = tmp_path / "run"

    def found(plan: Plan) -> dict[str, str]:
        return {name: str(Path(str(model.model)).relative_to(run)) for name, model in plan.steps[-1].models.items()}

    before = plan_of(tmp_path, steps)
    assert found(before) == {"first": "round-01/tuned", "best": "round-03/tuned", "last": "round-03/tuned"}
    for number, success in enumerate((0.3, 0.1), 1):
        folder = run / f"round-0{number}/evaluation"
        folder.mkdir(parents=True)
        measured = {"models": ["now"], "splits": {"a": {"now": {"success": success}}}}
        (folder / "evaluation.json").write_text(json.dumps(measured))
    stopped = plan_of(tmp_path, steps)
    assert found(stopped) == {"first": "round-01/tuned", "best": "round-01/tuned", "last": "round-02/tuned"}
    assert "round-03/explored" not in [step.name for step in stopped.steps]


MEASURED = {**EVALUATE, "models": {"now": "actor@last"}, "as": "evaluation"}
MAY_END = loop(*LOOP, MEASURED, until={"metric": "evaluation.success"})


def test_an_evaluation_of_an_earlier_recipe_does_not_decide_before_it_is_made_anew(tmp_path: Path) -> None:
    for number, success in enumerate((0.3, 0.1), 1):
        folder = tmp_path / f"run/round-0{number}/evaluation"
        folder.mkdir(parents=True)
        measured = {"models": ["now"], "splits": {"a": {"now": {"success": success}}}}
        (folder / "evaluation.json").write_text(json.dumps(measured))
    watched = loop(*LOOP, MEASURED, until={"metric": "evaluation.success", "split": "held_out_tasks"})
    assert "round-03/explored" in [step.name for step in plan_of(tmp_path, [*WORLD, watched]).steps]


def test_rounds_that_until_cannot_leave_out_may_be_named(tmp_path: Path) -> None:
    patient = loop(*LOOP, MEASURED, until={"metric": "evaluation.success", "patience": 2})
    earlier = loop(EXPLORE, **{"as": "earlier"})
    after = [{**SFT, "from": ["explored@3"], "as": "some"}, {**EVALUATE, "models": {"a": "actor@round-03"}}]
    assert folders_of(plan_of(tmp_path, [*WORLD, patient, *after]), "some") == ["round-03/explored"]
    body = [{**EXPLORE, "as": "tried"}, {**MEASURED, "models": {"now": "actor"}}]
    other = loop(*body, until={"metric": "evaluation.success"})
    assert folders_of(plan_of(tmp_path, [*WORLD, earlier, other, after[0]]), "some") == ["earlier/round-03/explored"]


@pytest.mark.parametrize("part", [Part(until="round-03/explored"), Part(skip=("round-03/explored",))])
def test_a_part_may_name_a_round_that_is_not_reached(tmp_path: Path, part: Part) -> None:
    steps = [*WORLD, MAY_END, {**SFT, "as": "after"}]
    assert "round-03/explored" in [each.name for each in plan_of(tmp_path, steps, part=part).steps]
    for number, success in enumerate((0.3, 0.1), 1):
        folder = tmp_path / f"run/round-0{number}/evaluation"
        folder.mkdir(parents=True)
        measured = {"models": ["now"], "splits": {"a": {"now": {"success": success}}}}
        (folder / "evaluation.json").write_text(json.dumps(measured))
    left_out = {} if part.skip else {"after": "after round-02/evaluation"}
    assert plan_of(tmp_path, steps, part=part).left_out == left_out
    with user_error("unknown-name", "round-04/explored"):
        plan_of(tmp_path, steps, part=Part(skip=("round-04/explored",)))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            [loop(EXPLORE), {**SFT, "from": "explored@4"}],
            ("unknown-name", "rows", "'4'", "1, 2, 3"),
        ),
        ([SAMPLE, {**SFT, "from": "explored@1"}], ("unknown-name", "rows", "explored@1", "no iterate")),
        (
            [loop(EXPLORE), {**SFT, "from": "exlored@all"}],
            ("unknown-name", "exlored", "explored"),
        ),
        ([loop(EXPLORE), {**SFT, "from": "explored@previous"}], ("unknown-name", "previous")),
        (
            [loop(EXPLORE, {**SFT, "from": "explored@previous"})],
            ("unknown-name", "round-01/rows", "seeds, explored@previous"),
        ),
        ([loop(EXPLORE), {**SFT, "from": "explored@round-all"}], ("unknown-name", "rows", "'round-all'", "1, 2, 3")),
        ([loop(EXPLORE), {**SFT, "from": "explored@0all"}], ("unknown-name", "rows", "'0all'")),
        ([loop(EXPLORE), {**SFT, "from": "explored@00"}], ("unknown-name", "rows", "'0'")),
        (
            [
                {
                    "operator": "fork",
                    "routes": {
                        "a": [loop(*LOOP)],
                        "b": [loop({**SAMPLE, "policy": "actor@round-01"}, *LOOP[1:])],
                    },
                }
            ],
            ("model-not-trained-yet", "'actor'", "actor@base"),
        ),
        ([loop(*LOOP), {**EVALUATE, "models": {"a": "actor@round-04"}}], ("unknown-name", "round-04", "last")),
        ([loop(*LOOP), {**EVALUATE, "models": {"a": "actor@best"}}], ("unknown-name", "best", "last")),
        ([loop(*LOOP, until={"metric": "evaluation.success"})], ("unknown-name", "until.metric", "evaluation")),
        ([loop(*LOOP, until={"metric": "rows.success"})], ("unknown-name", "until.metric", "'rows'")),
        (
            [loop(*LOOP, MEASURED, until={"metric": "evaluation.success", "split": "held_out_task"})],
            ("unknown-name", "until.split", "'held_out_task'", "held_out_environments, held_out_tasks"),
        ),
        (
            [loop(*LOOP, MEASURED, until={"metric": "evaluation.success", "model": "actor"})],
            ("unknown-name", "until.model", "'actor'", "known: now"),
        ),
        ([MAY_END, {**EVALUATE, "models": {"a": "actor@round-03"}}], ("unknown-name", "round-03", "actor@best")),
        ([MAY_END, {**SFT, "from": "explored@3"}], ("unknown-name", "rows", "'explored@3'", "explored@all")),
        ([SAMPLE, {"operator": "sft", "form": "explored", "as": "rows"}], ("unknown-key", "rows", "'form'")),
    ],
)
def test_mistakes_about_rounds(tmp_path: Path, steps: list[dict[str, Any]], message: tuple[str, ...]) -> None:
    with user_error(*message):
        plan_of(tmp_path, [*WORLD, *steps])


def test_an_unknown_key_is_shown_before_one_that_is_missing(tmp_path: Path) -> None:
    step = {"operator": "sample", "model": "actor", "tasks": "tasks", "environments": "environments"}
    with user_error("unknown-key", "sample", "'model'"):
        plan_of(tmp_path, [*WORLD, step])


def test_steps_in_loops_and_routes_are_overridden_by_name(tmp_path: Path) -> None:
    routes = {"a": [{**SAMPLE, "policy": "actor", "as": "tried"}], "b": [{**SPEC_ENV, "as": "there"}]}
    steps = [*WORLD, loop(EXPLORE, **{"as": "looped"}), {"operator": "fork", "routes": routes}]
    overrides = ["steps.looped.steps.explored.temperature=0.25", "steps.tried.k=4", "steps.fork.routes.b.there.n=9"]
    found = {step.name: step.parameters for step in plan_of(tmp_path, steps, *overrides, "steps.explored.k=2").steps}
    explored = found["looped/round-03/explored"]
    assert (getattr(explored, "temperature", None), getattr(explored, "k", None)) == (0.25, 2)
    assert getattr(found["a/tried"], "k", None) == 4
    assert getattr(found["b/there"], "n", None) == 9
    with user_error("unknown-name", "steps.explred.k=1", "explored"):
        plan_of(tmp_path, steps, "steps.explred.k=1")
    twice = [*WORLD, {"operator": "fork", "routes": {**routes, "c": routes["a"]}}]
    with user_error("unknown-name", "several steps are called 'tried'"):
        plan_of(tmp_path, twice, "steps.tried.k=1")


@pytest.mark.parametrize("name", ["line", "toolboxes", "curation"])
def test_shipped_recipes_without_a_model_can_be_planned(name: str, tmp_path: Path) -> None:
    recipe = read_recipe(ROOT / f"configs/{name}.yaml", [f"run_dir={tmp_path / 'run'}"])
    assert all(not model.managed for step in make_plan(recipe).steps for model in step.models.values())
