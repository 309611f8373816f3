"""Reward models in a recipe: how a step names one, where one may be used, and what is refused while planning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.recipes.parts import Part
from agentmill.pipelines.recipes.plan import Plan
from agentmill.pipelines.recipes.precheck import check_dry
from tests.errors import user_error
from tests.model import tiny_model
from tests.pipelines.recipes.test_plan import CHECK, SAMPLE, SFT, WORLD, plan_of

PAIRS = {"operator": "trajectory_pairs", "from": "explored", "as": "pairs"}
TRAIN = {"operator": "train_reward", "rows": "pairs", "model": "actor", "as": "judging"}
SCORE = {"operator": "scorer", "of": "explored", "scorer": "judging", "as": "scores"}
PICK = {"operator": "pick", "of": "explored", "by": "best", "score": "verdict:scorer", "verdicts": "scores"}
TRAINED = [*WORLD, SAMPLE, PAIRS, TRAIN]
SEARCH = {**SAMPLE, "operator": "tree_search", "value": "scorer", "scorer": "judging", "as": "trees"}


def models(**more: Any) -> dict[str, Any]:
    return {"actor": {"policy": "vllm", "model": str(tiny_model())}, **more}


def reward_model(folder: Path) -> Path:
    """A folder that looks like one that was trained."""
    folder.mkdir(exist_ok=True)
    for path in tiny_model().iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["LlamaForSequenceClassification"]}))
    return folder


def planned(folder: Path, *steps: dict[str, Any], **more: Any) -> Plan:
    return plan_of(folder, list(steps), models=models(**more))


@pytest.mark.parametrize("step", [SCORE, SEARCH])
def test_a_reward_model_is_named_by_the_step_that_trained_it(step: dict[str, Any], tmp_path: Path) -> None:
    sampling = {"actor": {"policy": "vllm", "model": str(tiny_model()), "sampling": {"temperature": 0.5}}}
    plan = planned(tmp_path, *TRAINED, step, **sampling)
    scorer = plan.steps[-1].models["scorer"]
    assert (scorer.model, scorer.policy, scorer.scores) == (str(tmp_path / "run" / "judging"), "vllm", True)
    assert scorer.sampling.model_fields_set == set()
    assert plan.steps[2].models["actor"].sampling.temperature == 0.5
    check_dry(plan)


def test_its_scores_are_known_to_later_steps(tmp_path: Path) -> None:
    assert planned(tmp_path, *TRAINED, SCORE, PICK).steps[-1].name == "pick"
    with user_error("annotation-missing", "verdict:judge", "scorer"):
        planned(tmp_path, *TRAINED, SCORE, {**PICK, "score": "verdict:judge"})


def test_a_reward_model_does_not_act_in_the_place_of_what_it_was_trained_from(tmp_path: Path) -> None:
    with user_error("model-not-trained-yet", "'actor'"):
        planned(tmp_path, *TRAINED, {**SAMPLE, "policy": "actor@last", "as": "more"})


ACTING: list[dict[str, Any]] = [
    {**SAMPLE, "policy": "judging", "as": "more"},
    {**SEARCH, "policy": "judging"},
    {**SEARCH, "value": "critic", "critic": "judging", "scorer": None},
    {"operator": "judge", "of": "explored", "judges": "judging", "criteria": "Good."},
]


@pytest.mark.parametrize("step", ACTING)
def test_a_reward_model_cannot_act(step: dict[str, Any], tmp_path: Path) -> None:
    with user_error("model-of-wrong-kind", "'judging' is a reward model", "cannot act") as refused:
        planned(tmp_path, *TRAINED, {name: value for name, value in step.items() if value is not None})
    assert len(str(refused.value).splitlines()) == 2
    declared = {"judging": {"policy": "vllm", "model": str(reward_model(tmp_path / "rm"))}}
    with user_error("model-of-wrong-kind", "'judging' is a reward model"):
        planned(
            tmp_path, *WORLD, SAMPLE, {name: value for name, value in step.items() if value is not None}, **declared
        )


def test_a_reward_model_is_trained_further_only_as_one(tmp_path: Path) -> None:
    again = {**TRAIN, "model": "judging", "as": "better"}
    assert planned(tmp_path, *TRAINED, again).steps[-1].models["model"].scores is True
    with user_error("model-of-wrong-kind", "'judging' is a reward model", "`model`"):
        planned(tmp_path, *TRAINED, SFT, {"operator": "train_sft", "rows": "rows", "model": "judging"})


@pytest.mark.parametrize("step", [SCORE, SEARCH])
def test_a_model_that_writes_cannot_score(step: dict[str, Any], tmp_path: Path) -> None:
    for name, more in (
        ("actor", {}),
        ("bundled", {"bundled": {"policy": "vllm", "model": "bundled:smollm2-135m-instruct"}}),
    ):
        with user_error("model-of-wrong-kind", f"{name!r} writes text and cannot score", "train_reward") as refused:
            planned(tmp_path, *WORLD, SAMPLE, {**step, "scorer": name}, **more)
        assert len(str(refused.value).splitlines()) == 2
    tuned = [SFT, {"operator": "train_sft", "rows": "rows", "model": "actor", "as": "tuned"}]
    for name in ("tuned", "actor@last"):
        with user_error("model-of-wrong-kind", f"{name!r} writes text"):
            planned(tmp_path, *WORLD, SAMPLE, *tuned, {**step, "scorer": name})
    with user_error("model-of-wrong-kind", "'planner' has the policy 'expert'"):
        planned(tmp_path, *WORLD, SAMPLE, {**step, "scorer": "planner"}, planner={"policy": "expert"})


def test_a_declared_reward_model_is_known_by_its_files(tmp_path: Path) -> None:
    judging = {"policy": "vllm", "model": str(reward_model(tmp_path / "rm"))}
    plan = planned(tmp_path, *WORLD, SAMPLE, SCORE, judging=judging)
    assert plan.steps[-1].models["scorer"].scores is True
    remote = {"policy": "vllm", "model": "rm", "endpoints": ["http://127.0.0.1:1/v1"]}
    with user_error("needs-another-key", "`tokenizer` is missing"):
        planned(tmp_path, *WORLD, SAMPLE, SCORE, judging=remote)
    step = {**SCORE, "tokenizer": judging["model"]}
    assert planned(tmp_path, *WORLD, SAMPLE, step, judging=remote).steps[-1].models["scorer"].scores is None
    with user_error("tokenizer-missing", "nowhere"):
        check_dry(planned(tmp_path, *WORLD, SAMPLE, {**SCORE, "tokenizer": "nowhere"}, judging=remote))
    (tmp_path / "rm" / "config.json").write_text("{")
    with user_error("damaged-file", "config.json"):
        planned(tmp_path, *WORLD, SAMPLE, SCORE, judging=judging)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"sampling": {"temperature": 0}}, "`sampling`"),
        ({"extra_body": {"a": 1}}, "`extra_body`"),
        ({"server": {"tool_call_parser": "hermes"}}, "`server.tool_call_parser`"),
    ],
)
def test_a_scorer_has_no_way_to_write(given: dict[str, Any], named: str, tmp_path: Path) -> None:
    judging = {"policy": "vllm", "model": str(reward_model(tmp_path / "rm")), **given}
    with user_error("key-not-for-this", "'judging'", named):
        planned(tmp_path, *WORLD, SAMPLE, SCORE, judging=judging)


def test_an_adapter_cannot_score(tmp_path: Path) -> None:
    adapter = {**TRAIN, "lora": {"rank": 4, "merge": False}}
    with user_error("model-of-wrong-kind", "'judging'", "lora.merge"):
        planned(tmp_path, *WORLD, SAMPLE, PAIRS, adapter, SCORE)


def test_the_newest_of_an_iteration_scores(tmp_path: Path) -> None:
    body = [{**SAMPLE}, {**CHECK}, PAIRS, TRAIN, SCORE]
    plan = planned(
        tmp_path, *WORLD, {"operator": "iterate", "rounds": 2, "steps": body}, {**SCORE, "as": "last_scores"}
    )
    folders = [str(step.models["scorer"].model) for step in plan.steps if "scorer" in step.models]
    assert [Path(folder).parts[-2:] for folder in folders] == [
        ("round-01", "judging"),
        ("round-02", "judging"),
        ("round-02", "judging"),
    ]


@pytest.mark.parametrize("step", [SCORE, SEARCH])
def test_an_expert_that_errs_stands_in_for_the_reward_model_that_is_trained_from_it(
    step: dict[str, Any], tmp_path: Path
) -> None:
    given = {"models": {"actor": {"policy": "expert", "mistakes": 0.3}}}
    plan = plan_of(tmp_path, [*TRAINED, step], part=Part(only="data"), **given)
    assert "judging" in plan.left_out
    assert plan.steps[-1].name not in plan.left_out
    assert plan.steps[-1].models["scorer"].stands_in
    with user_error("model-of-wrong-kind", "has the policy 'expert' and cannot score"):
        plan_of(tmp_path, [*TRAINED, step], part=Part(only="data"), models={"actor": {"policy": "expert"}})
