"""Short forms of recipes: the operator as a key, included files, defaults, and one word for the tables of a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.plan import make_plan
from agentmill.pipelines.recipes.runner import resolved
from agentmill.pipelines.recipes.short_forms import written_out
from agentmill.schemas.config import dump_yaml
from tests.errors import user_error

FAMILY = """\
models: {planner: {policy: expert}}
defaults: {of: environments}
steps:
  - {spec_env: environments, n: 2}
  - {propose: tasks, n: 2}
"""
RECIPE = """\
name: short
paper: {arxiv: "2403.02502", title: Trial and Error, differs: [a smaller model], outcome: 3 of 4}
include: [families/grid]
defaults: {tasks: tasks, environments: environments, split: train}
models: {actor: {policy: vllm, model: "bundled:smollm2-135m-instruct"}}
steps:
  - {expert: demonstrations, policy: planner}
  - iterate: loop
    rounds: 2
    steps:
      - {sample: explored, policy: actor, split: other}
      - {check_outcome: verdicts, from: explored}
  - {sft: rows, of: [demonstrations, explored]}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "families").mkdir()
    (tmp_path / "families/grid.yaml").write_text(FAMILY)
    (tmp_path / "short.yaml").write_text(RECIPE)
    return tmp_path / "short.yaml"


def steps_of(recipe: Path, *overrides: str) -> list[dict[str, Any]]:
    return read_recipe(recipe, overrides).steps


def test_all_short_forms_are_written_out(recipe: Path) -> None:
    played = {"tasks": "tasks", "environments": "environments"}
    assert steps_of(recipe) == [
        {"operator": "spec_env", "as": "environments", "n": 2},
        {"operator": "propose", "as": "tasks", "n": 2, "of": "environments"},
        {"operator": "expert", "as": "demonstrations", "policy": "planner", **played, "split": "train"},
        {
            "operator": "iterate",
            "as": "loop",
            "rounds": 2,
            "steps": [
                {"operator": "sample", "as": "explored", "policy": "actor", **played, "split": "other"},
                {"operator": "check_outcome", "as": "verdicts", "of": "explored", **played},
            ],
        },
        {"operator": "sft", "as": "rows", "from": ["demonstrations", "explored"]},
    ]


def test_a_short_recipe_makes_the_plan_of_its_long_form(recipe: Path, tmp_path: Path) -> None:
    plan = make_plan(read_recipe(recipe, []))
    assert [step.name for step in plan.steps] == [
        *("environments", "tasks", "demonstrations"),
        *(f"loop/round-0{number}/{name}" for number in (1, 2) for name in ("explored", "verdicts")),
        "rows",
    ]
    assert list(read_recipe(recipe, []).models) == ["planner", "actor"]


def test_the_saved_recipe_is_whole_in_the_order_of_the_author_and_makes_the_same_plan(
    recipe: Path, tmp_path: Path
) -> None:
    whole = resolved(read_recipe(recipe, []))
    assert [key for key in whole if key not in ("run_dir", "seed", "runner")] == ["name", "paper", "models", "steps"]
    assert whole["paper"]["differs"] == ["a smaller model"]
    (tmp_path / "else").mkdir()
    (tmp_path / "else/recipe.yaml").write_text(dump_yaml(whole))
    assert steps_of(tmp_path / "else/recipe.yaml") == steps_of(recipe)


def test_an_override_may_be_a_step_in_short_form(recipe: Path) -> None:
    (found,) = [
        step
        for step in steps_of(recipe, "steps.demonstrations={expert: demonstrations, from: tasks, split: test}")
        if step["operator"] == "expert"
    ]
    assert found["as"] == "demonstrations"
    assert found["split"] == "test"
    assert [step["operator"] for step in steps_of(recipe, "steps=[{spec_env: e, n: 4}]")] == ["spec_env"]


def test_rows_of_a_training_may_be_overridden_with_several_tables(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("name: r\nsteps:\n  - {train_sft: tuned, rows: one, model: m}\n", encoding="utf-8")
    mix, training = steps_of(file, "steps.tuned.rows=[{table: one, weight: 1}, {table: two, weight: 3}]")
    assert (mix["operator"], mix["from"], mix["weights"]) == ("mix", ["one", "two"], {"one": 0.25, "two": 0.75})
    assert (training["rows"], training["model"]) == (mix["as"], "m")


def test_merged_keys_come_after_those_of_the_step(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    common = "&common {policy: bad, split: train}"
    steps = f"  - {{expert: shown, <<: {common}}}\n  - sample: tried\n    <<: *common\n    split: test\n"
    file.write_text(f"name: r\nsteps:\n{steps}", encoding="utf-8")
    assert steps_of(file) == [
        {"operator": "expert", "as": "shown", "policy": "bad", "split": "train"},
        {"operator": "sample", "as": "tried", "policy": "bad", "split": "test"},
    ]


def test_another_family_is_one_override(recipe: Path) -> None:
    (recipe.parent / "families/other.yaml").write_text(FAMILY.replace("n: 2", "n: 7", 1))
    assert steps_of(recipe, "include.0=families/other")[0]["n"] == 7
    assert steps_of(recipe, "defaults.split=validation")[2]["split"] == "validation"


def test_shipped_step_files_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.yaml").write_text("name: r\ninclude: environments/pddl\nsteps: [{dedup: d, of: tasks}]\n")
    assert [step["as"] for step in steps_of(tmp_path / "r.yaml")][-3:] == ["proposed_tasks", "tasks", "d"]


def test_a_default_that_names_a_table_holds_once_it_is_made(tmp_path: Path) -> None:
    data = {
        "defaults": {"environments": "environments"},
        "steps": [
            {"admit": "environments", "of": "proposed"},
            {"admit": "tasks", "of": "more"},
        ],
    }
    first, second = written_out(data, tmp_path)["steps"]
    assert "environments" not in first
    assert second["environments"] == "environments"


def test_a_training_on_several_tables_is_a_mixture_first(tmp_path: Path) -> None:
    train = {"train_sft": "tuned", "model": "actor", "rows": [{"table": "a", "weight": 1}, {"table": "b", "weight": 3}]}
    steps = [{"iterate": "loop", "rounds": 1, "steps": [train]}]
    (loop,) = written_out({"steps": steps}, tmp_path)["steps"]
    assert loop["steps"] == [
        {"operator": "mix", "as": "tuned_rows", "from": ["a", "b"], "weights": {"a": 0.25, "b": 0.75}},
        {"operator": "train_sft", "as": "tuned", "model": "actor", "rows": "tuned_rows"},
    ]
    plain = written_out({"steps": [{"train_sft": "tuned", "rows": ["a", "b@all"]}]}, tmp_path)["steps"]
    assert plain[0] == {"operator": "mix", "as": "tuned_rows", "from": ["a", "b@all"]}
    one = {"operator": "train_sft", "rows": ["a"], "model": "actor"}
    assert written_out({"steps": [one]}, tmp_path)["steps"] == [one]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"table": "a", "weight": 0}, "b"], ("invalid-value", "rows", "weight")),
        ([{"table": "a", "weigth": 1}, "b"], ("invalid-value", "rows", "weigth")),
        (["a", 3], ("invalid-value", "rows", "3")),
        (["a", {"table": "a"}], ("given-twice", "rows")),
    ],
)
def test_rows_that_are_no_tables(tmp_path: Path, rows: list[Any], message: tuple[str, ...]) -> None:
    with user_error(*message):
        written_out({"steps": [{"train_sft": "tuned", "rows": rows}]}, tmp_path)


def test_conditions_on_steps_are_no_steps(tmp_path: Path) -> None:
    step = {"operator": "sft", "from": "explored", "steps": [{"quality": "calls", "at_most": 3}], "as": "rows"}
    assert written_out({"steps": [step]}, tmp_path)["steps"] == [step]


def test_a_default_names_no_table_that_an_operator_can_do_without(tmp_path: Path) -> None:
    data = {
        "data": {"tasks": "t", "runs": "r"},
        "defaults": {"tasks": "tasks"},
        "steps": [{"select_diverse": "chosen", "of": "runs", "size": 2}, {"answer_match": "right", "of": "runs"}],
    }
    chosen, right = written_out(data, tmp_path)["steps"]
    assert "tasks" not in chosen
    assert right["tasks"] == "tasks"


def test_defaults_reach_into_forks_and_know_what_routes_make(tmp_path: Path) -> None:
    routes = {"a": [{"spec_env": "environments"}], "b": [{"admit": "kept", "of": "x"}]}
    data = {
        "defaults": {"environments": "a/environments"},
        "steps": [{"fork": None, "routes": routes}, {"admit": "tasks", "of": "x"}],
    }
    fork, after = written_out(data, tmp_path)["steps"]
    assert "environments" not in fork["routes"]["b"][0]
    assert after["environments"] == "a/environments"


def test_models_are_evaluated_with_the_default_scaffold(tmp_path: Path) -> None:
    """As they are sampled; the step's own, and what it sets itself, go before."""
    evaluate = {"operator": "evaluate", "models": {"a": "b"}}
    steps = [
        {**evaluate, "as": "plain"},
        {**evaluate, "as": "own", "scaffold": "tools"},
        {**evaluate, "as": "inner", "rollout": {"operator": "multi_agent", "scaffold": "tools"}},
        {**evaluate, "as": "wrong", "rollout": "sample"},
    ]
    found = written_out(
        {"defaults": {"scaffold": "react", "split": "train"}, "steps": [{"sample": "x"}, *steps]}, tmp_path
    )
    sample, plain, own, inner, wrong = found["steps"]
    assert (sample["scaffold"], plain["scaffold"], own["scaffold"]) == ("react", "react", "tools")
    assert not any("split" in step for step in (plain, own, inner, wrong))
    assert "scaffold" not in inner
    assert "scaffold" not in wrong


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("include: [families/grid]", "include: [families/gird]"), ("no-such-file", "families/gird", "families/grid")),
        (("include: [families/grid]", "include: {a: 1}"), ("invalid-value", "include")),
        (("split: train}", "splt: train}"), ("unknown-key", "defaults", "'splt'", "split")),
        (
            ("{expert: demonstrations,", "{expert: demonstrations, as: shown,"),
            ("name-taken", "demonstrations", "shown"),
        ),
        (("{expert: demonstrations,", "{expert: [demonstrations],"), ("name-malformed", "expert")),
        (("{expert: demonstrations,", "{exprt: demonstrations,"), ("missing-key", "steps.2", "operator", "'expert'")),
        (("of: [demonstrations, explored]", "of: x, from: y"), ("unknown-key", "rows", "'of'")),
        (('arxiv: "2403.02502"', "arxive: x"), ("unknown-key", "paper", "'arxive'", "arxiv")),
    ],
)
def test_mistakes_name_the_key_and_the_nearest(recipe: Path, change: tuple[str, str], message: tuple[str, ...]) -> None:
    assert change[0] in RECIPE
    recipe.write_text(RECIPE.replace(*change))
    with user_error(*message):
        make_plan(read_recipe(recipe, []))


def test_an_included_file_with_other_keys_is_refused(recipe: Path) -> None:
    (recipe.parent / "families/grid.yaml").write_text(f"seed: 3\n{FAMILY}")
    with user_error("unknown-key", "grid.yaml", "'seed'"):
        read_recipe(recipe, [])


def test_an_operator_with_a_key_of_its_own_name_has_the_long_form(tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text("name: twice\nsteps: [{scorer: scores, of: explored, scorer: judging}]\n", encoding="utf-8")
    with user_error("duplicate-key", "'scorer'", "{operator: scorer, as: NAME, scorer: …}"):
        read_recipe(file, ())
    file.write_text("name: twice\nsteps: [{sample: a, sample: b}]\n", encoding="utf-8")
    with user_error("duplicate-key", "'sample'") as raised:
        read_recipe(file, ())
    assert "\n" not in str(raised.value)
