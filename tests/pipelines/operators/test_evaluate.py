"""Models are evaluated as they act: with their own sampling, and through the rollout operator that they act by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.operators.evaluate import RESULT, Evaluate, Play, settle
from agentmill.pipelines.operators.multi_agent import MultiAgent
from agentmill.pipelines.operators.operator import StepContext
from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.pipelines.operators.task_groups import TaskGroups
from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.plan import Plan, make_plan
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.served_model import ServedModel
from agentmill.schemas.config import validate
from agentmill.schemas.tables import Table
from tests.builders import task, trajectory
from tests.errors import user_error
from tests.pipelines.cli.tables import COMPARE, MODELS, agentmill, write_environments, write_recipe
from tests.pipelines.report.example_run import compare

EVALUATE = {"models": {"tuned": "actor"}, "tasks": "tasks", "environments": "environments"}
ROLES = [{"name": "planner"}, {"name": "actor", "acts": True}]
SERVED: dict[str, Any] = {"policy": "openai", "model": "m", "endpoints": ["http://127.0.0.1:1/v1"]}


def evaluate(**parameters: Any) -> Evaluate:
    return validate(Evaluate, {**EVALUATE, **parameters}, "evaluate")


def agent(**parameters: Any) -> Any:
    """The rollout of the model ``tuned`` on the held-out tasks."""
    return evaluate(**parameters)._agent(Play("held_out_tasks", "tuned", "tuned", False))


def sampling(stage: Any, **of_model: Any) -> Any:
    """The sampling of the actor, as the manifest has it."""
    model = ServedModel.of(ModelConfig(**SERVED, sampling=of_model))
    return stage.provenance_config(StepContext(models={"actor": model}))["models"]["actor"]["sampling"]


def plan_of(folder: Path, step: dict[str, Any], **model: Any) -> Plan:
    write_environments(folder)
    models = {**MODELS, "actor": {**SERVED, **model}}
    return make_plan(read_recipe(write_recipe(folder, {**COMPARE, "constrained": [], **step}, models=models), []))


def test_by_default_the_sampling_of_the_model_is_used() -> None:
    assert sampling(agent(), temperature=0.6, top_p=0.9) == {"temperature": 0.6, "top_p": 0.9, "max_tokens": 256}


def test_a_temperature_that_is_given_overrides_that_of_the_model() -> None:
    assert sampling(agent(temperature=0), temperature=0.6)["temperature"] == 0


def test_flat_parameters_are_those_of_sample() -> None:
    stage = agent(k=4, context="sliding_window", keep_turns=2, context_tokens=900, episode_timeout_s=60, window=3)
    assert type(stage) is OPERATORS.load("sample")
    given = (stage.k, stage.context, stage.keep_turns, stage.context_tokens, stage.episode_timeout_s, stage.window)
    assert given == (4, "sliding_window", 2, 900, 60.0, 3)
    assert (stage.split, stage.tasks, stage.policy) == ("held_out_tasks", ["tasks"], "tuned")


def test_every_parameter_of_sample_is_taken() -> None:
    set_by_the_step = {"policy", "tasks", "environments", "split", "share", "constrain"}
    context = {"context": "fold", "summarizer": "writer", "keep_turns": 1, "context_tokens": 9}
    given = {"scaffold": "tools", "max_turns": 3, "max_invalid": 2, "episode_timeout_s": 5.0, "k": 2, "seed": 1}
    given = {**given, **context, "temperature": 0.3, "max_tokens": 9, "window": 1, "selections": {"any": ["s"]}}
    given = {**given, "tools": "all"}
    assert set(given) == set(OPERATORS.load("sample").model_fields) - set_by_the_step
    stage = agent(**given)
    assert stage.tables()["selections"] == ["s"]
    del given["selections"]
    assert {name: getattr(stage, name) for name in given} == given
    assert agent(constrain="admissible").constrain == "admissible"


def test_a_rollout_operator_with_its_own_parameters_plays() -> None:
    stage = agent(rollout={"operator": "multi_agent", "roles": ROLES, "max_messages": 7}, temperature=0.4, share=0.5)
    assert type(stage) is MultiAgent
    assert ([role.name for role in stage.roles], stage.max_messages) == (["planner", "actor"], 7)
    assert (stage.temperature, stage.share) == (0.4, 0.5)


def test_models_of_other_roles_are_those_of_the_rollout(tmp_path: Path) -> None:
    rollout = {"operator": "multi_agent", "roles": ROLES, "models": {"planner": "planner"}}
    (step,) = plan_of(tmp_path, {"models": {"base": "babbler", "planner": "actor"}, "rollout": rollout}).steps
    assert isinstance(step.parameters, Evaluate)
    roles = {name: step.parameters.roles(name, step.models) for name in ("base", "planner")}
    assert {name: found["actor"].policy for name, found in roles.items()} == {"base": "scripted", "planner": "openai"}
    assert {found["planner"].policy for found in roles.values()} == {"expert"}


def test_several_agents_are_evaluated_as_they_act(tmp_path: Path) -> None:
    write_environments(tmp_path, copies=1)
    talker = {"policy": "scripted", "turns": ["go on"] * 40}
    rollout = {"operator": "multi_agent", "roles": ROLES, "models": {"planner": "talker"}, "max_turns": 3}
    step = {**COMPARE, "models": {"tuned": "babbler"}, "constrained": [], "splits": ["held_out_tasks"]}
    recipe = write_recipe(tmp_path, {**step, "rollout": rollout}, models={**MODELS, "talker": talker})
    assert agentmill("run", recipe) == 0
    played = Table.open(tmp_path / "run/evaluation/held_out_tasks/tuned/trajectories")
    assert played.manifest.operator == "multi_agent"
    (trajectory,) = played.rows()
    assert list(trajectory.extra["roles"]) == ["planner", "actor"]
    assert (tmp_path / "run/evaluation/evaluation.json").exists()


def test_results_of_an_earlier_version_are_made_anew(tmp_path: Path) -> None:
    compare(tmp_path, {"base": 1})
    place, file = tmp_path / "held_out_tasks/base", tmp_path / RESULT
    made = msgspec.json.decode(file.read_bytes())
    assert made["splits"]["held_out_tasks"]["base"]["environments"] == 1
    assert made["splits"]["held_out_tasks"]["base"]["unscored"] == 0
    run = Play("held_out_tasks", "base", "base", False)
    tables = {run: (Table.open(place / "trajectories"), Table.open(place / "verdicts"))}
    file.write_bytes(msgspec.json.encode({**made, "splits": {"marked": {}}}))
    assert settle(tmp_path, tables, ["base"]) == {"marked": {}}, "the same tables are not measured twice"
    old = {key: value for key, value in made.items() if key != "intervals"}
    file.write_bytes(msgspec.json.encode({**old, "splits": {"marked": {}}}))
    settle(tmp_path, tables, ["base"])
    assert msgspec.json.decode(file.read_bytes()) == made
    file.write_bytes(b'{"splits": ')
    settle(tmp_path, tables, ["base"])
    assert msgspec.json.decode(file.read_bytes()) == made, "a damaged file is made again"


def test_groups_are_those_of_the_tasks_as_they_are_now(tmp_path: Path) -> None:
    compare(tmp_path, {"base": 1})
    place, run = tmp_path / "held_out_tasks/base", Play("held_out_tasks", "base", "base", False)
    tables = {run: (Table.open(place / "trajectories"), Table.open(place / "verdicts"))}
    for skill in ("look", "open"):
        tasks = [task(f"held{n}", skills=[skill]) for n in range(3)]
        inputs = {"tasks": [seed_table(tmp_path / skill, tasks)]}
        groups = TaskGroups(["skills"], inputs, "tasks", "evaluate")
        groups.load()
        found = settle(tmp_path, tables, ["base"], groups)
        assert [*found["held_out_tasks"]["base"]["by"]["skills"]] == [skill]
    file = tmp_path / RESULT
    made = msgspec.json.decode(file.read_bytes())
    file.write_bytes(msgspec.json.encode({**made, "splits": {"marked": {}}}))
    assert settle(tmp_path, tables, ["base"], groups) == {"marked": {}}, "the same tables are not measured twice"


def test_tables_of_the_rollout_are_inputs_of_the_step() -> None:
    step = evaluate(rollout={"operator": "memory", "from": "earlier", "verdicts": "judged"})
    assert step.tables() == {
        "tasks": ["tasks"],
        "environments": ["environments"],
        "from": ["earlier"],
        "verdicts": ["judged"],
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"temprature": 1}, ("unknown-key", "temprature", "temperature")),
        ({"rollout": {"rolls": []}}, ("unknown-key", "rolls")),
        ({"k": 2, "rollout": {"k": 3}}, ("given-twice", "'k'", "rollout")),
        ({"rollout": {"policy": "actor"}}, ("key-not-for-this", "rollout.policy")),
        ({"rollout": {"operator": "tree_search"}}, ("unknown-name", "tree_search")),
        ({"rollout": {"operator": "multi_agnt"}}, ("unknown-name", "multi_agent")),
        ({"rollout": {"operator": "multi_agent"}}, ("missing-key", "roles")),
        ({"rollout": "sample"}, ("invalid-value", "sample")),
        ({"k": 0}, ("invalid-value", "1", "0")),
        ({"tools": "none"}, ("key-not-for-this", "tools: none", "answer_match")),
        ({"context": "fold"}, ("rule-broken", "context: fold", "summarizer")),
        ({"constrained": ["tuned", "tuned"]}, ("rule-broken", "`constrained` names one twice")),
        ({"splits": ["held_out_tasks", "held_out_tasks"]}, ("rule-broken", "`splits` names one twice")),
        ({"by": ["skills", "difficulty", "skills"]}, ("rule-broken", "`by` names one twice")),
        ({"models": {"a": "base", "b_constrained": "base"}}, ("rule-broken", "'b_constrained'")),
        ({"models": {"a": "base", "paired_difference": "base"}}, ("rule-broken", "'paired_difference'")),
        ({"constrain": "admissible", "constrained": ["tuned"]}, ("rule-broken", "constrained", "admissible")),
    ],
)
def test_mistakes_in_the_rollout_are_refused(given: dict[str, Any], expected: tuple[str, ...]) -> None:
    with user_error(*expected):
        evaluate(**given)


@pytest.mark.parametrize(
    ("step", "model"),
    [
        ({"k": 4, "temperature": 0}, {}),
        ({"k": 4}, {"sampling": {"temperature": 0}}),
        ({"k": 4}, {"sampling": {"top_k": 1}}),
        ({"rollout": {"operator": "multi_agent", "roles": ROLES, "k": 4, "temperature": 0}}, {}),
    ],
)
def test_several_equal_episodes_are_refused_while_planning(
    step: dict[str, Any], model: dict[str, Any], tmp_path: Path
) -> None:
    with user_error("draws-equal", "models.tuned", "4", "0"):
        plan_of(tmp_path, {"models": {"base": "babbler", "tuned": "actor"}, **step}, **model)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ({"operator": "sample", "k": 2}, ("draws-equal", "2", "0")),
        ({"operator": "tree_search"}, ("draws-equal", "4", "0")),
        ({"operator": "tree_search", "branching": 1, "k": 2}, ("draws-equal", "2", "0")),
        (
            {"operator": "revise", "level": "step", "attempts": 3},
            ("draws-equal", "3", "0"),
        ),
    ],
)
def test_equal_draws_of_other_rollouts_are_refused_too(
    step: dict[str, Any], expected: tuple[str, ...], tmp_path: Path
) -> None:
    write_environments(tmp_path)
    given = {"policy": "actor", "tasks": "tasks", "environments": "environments", "temperature": 0}
    recipe = write_recipe(tmp_path, {**given, **step}, models={"actor": SERVED})
    with user_error(*expected):
        make_plan(read_recipe(recipe, []))


def test_several_draws_by_one_seed_are_refused_while_planning(tmp_path: Path) -> None:
    served = {"policy": "openai", "endpoints": ["http://127.0.0.1:9/v1"], "extra_body": {"seed": 7}}
    with user_error("draws-equal", "models.tuned", "k: 4 with a seed in `extra_body`"):
        plan_of(tmp_path, {"models": {"base": "babbler", "tuned": "actor"}, "k": 4}, **served)
    assert plan_of(tmp_path, {"models": {"base": "babbler", "tuned": "actor"}}, **served).steps


@pytest.mark.parametrize(
    "step",
    [
        {"constrained": ["tuned"]},
        {"constrain": "admissible"},
        {"rollout": {"operator": "sample", "constrain": "admissible"}},
    ],
)
def test_models_that_cannot_choose_are_refused_while_planning(step: dict[str, Any], tmp_path: Path) -> None:
    served = {"policy": "openai", "endpoints": ["http://127.0.0.1:9/v1"]}
    with user_error("key-not-for-this", "models.tuned", "constrain: admissible", "cannot choose", "policy: vllm"):
        plan_of(tmp_path, {"models": {"base": "babbler", "tuned": "actor"}, **step}, **served)


def test_a_simulated_user_that_is_sampled_makes_the_episodes_differ(tmp_path: Path) -> None:
    rollout = {"operator": "multi_agent", "roles": ROLES, "models": {"planner": "actor"}, "k": 4, "temperature": 0}
    assert plan_of(tmp_path, {"models": {"tuned": "actor"}, "rollout": rollout}).steps


def test_one_episode_at_temperature_0_and_several_of_a_script_are_fine(tmp_path: Path) -> None:
    assert plan_of(tmp_path / "a", {"models": {"tuned": "actor"}, "temperature": 0}).steps
    assert plan_of(tmp_path / "b", {"models": {"base": "babbler"}, "k": 3, "temperature": 0}).steps


@pytest.mark.parametrize(("step", "refused"), [({"depth": 1}, True), ({}, False), ({"depth": 1, "k": 1}, False)])
def test_equal_first_turns_of_a_teacher_are_refused(step: dict[str, Any], refused: bool, tmp_path: Path) -> None:
    write_environments(tmp_path)
    seed_table(tmp_path / "runs", [trajectory()])
    models = {"actor": SERVED, "teacher": {**SERVED, "sampling": {"temperature": 0}}}
    given = {"policy": "actor", "teacher": "teacher", "tasks": "tasks", "environments": "environments"}
    branch = {"operator": "branch", "of": "runs", "turns": "all", "k": 4, **given, **step}
    recipe = write_recipe(
        tmp_path, branch, models=models, data={name: str(tmp_path / name) for name in ("runs", "tasks", "environments")}
    )
    if refused:
        with user_error("draws-equal", "4", "0"):
            make_plan(read_recipe(recipe, []))
    else:
        assert make_plan(read_recipe(recipe, [])).steps
