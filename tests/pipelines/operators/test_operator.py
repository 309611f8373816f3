"""What holds of every operator that is a stage: it explains itself, and its operation travels to workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from apache_beam.internal import pickler

from agentmill.pipelines.engine.operation import AsyncOperation, Operation
from agentmill.pipelines.operators.operator import Operator, StepContext
from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.pipelines.operators.task_step import TaskStep
from agentmill.pipelines.operators.verify import SIDE_TABLES
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.tables import RECORDS
from agentmill.schemas.views import FAMILY_VIEWS, PAIR_VIEWS, VIEWS
from agentmill.synthesis.strategies import STRATEGIES
from agentmill.synthesis.verifiers import VERIFIERS
from agentmill.synthesis.verifiers.verifier import ModelVerifier, Verifier
from tests.pipelines.operators.steps import model, stage
from tests.synthesis.verifiers.known import PARAMETERS

STAGES = sorted(name for name in OPERATORS if not issubclass(OPERATORS.load(name), TaskStep))

EPISODES = (
    {"policy": "p", "tasks": "t", "environments": "e"},
    {"tasks": ["Task"], "environments": ["EnvironmentSpec"]},
)


def models_of(verifier: type[Verifier]) -> dict[str, str]:
    """The models that a step of this verifier needs."""
    if not issubclass(verifier, ModelVerifier):
        return {}
    return {"scorer" if verifier.asks_scorer else "judges": "m"}


KNOWN: dict[str, tuple[dict[str, Any], dict[str, list[str]]]] = {
    **dict.fromkeys(STRATEGIES, EPISODES),
    **dict.fromkeys((*VIEWS, *PAIR_VIEWS, *FAMILY_VIEWS), ({"from": "x"}, {"from": ["Trajectory"]})),
    "admit": ({"of": "t", "environments": "e"}, {"of": ["Task"], "environments": ["EnvironmentSpec"]}),
    "backfill": (
        {"of": "x", "writer": "m", "alternatives": "y"},
        {"of": ["Trajectory"], "alternatives": ["Trajectory"]},
    ),
    "branch": (
        {"policy": "p", "of": "x", "tasks": "t", "environments": "e"},
        {"of": ["Trajectory"], "tasks": ["Task"], "environments": ["EnvironmentSpec"]},
    ),
    "call_first": ({"of": "e"}, {"of": ["EnvironmentSpec"]}),
    "check_tokens": ({"of": "x", "tokenizer": "m"}, {"of": ["Trajectory"]}),
    "combine": ({"of": "x", "scores": [{"score": "reward"}]}, {"of": ["Trajectory"]}),
    "compose": (
        {"of": "t", "environments": "e", "how": "sequence"},
        {"of": ["Task"], "environments": ["EnvironmentSpec"]},
    ),
    "corpus_tasks": ({"of": "e"}, {"of": ["EnvironmentSpec"]}),
    "decontaminate": ({"of": "x", "against": "t"}, {"of": ["Trajectory"], "against": ["Task"]}),
    "dedup": ({"of": "x", "near": 0.8}, {"of": ["Trajectory"]}),
    "diagnose": ({"of": "t", "attempts": "x"}, {"of": ["Task"], "attempts": ["Trajectory"]}),
    "difficulty_band": (
        {"of": "t", "attempts": "x", "at_least": 0.2},
        {"of": ["Task"], "attempts": ["Trajectory"]},
    ),
    "contrast": ({"of": "e"}, {"of": ["EnvironmentSpec"]}),
    "evolve": ({"of": "t", "environments": "e"}, {"of": ["Task"], "environments": ["EnvironmentSpec"]}),
    "expert": ({"tasks": "t", "environments": "e"}, {"tasks": ["Task"], "environments": ["EnvironmentSpec"]}),
    "filter": ({"of": "x", "where": [{"field": "split", "equals": "train"}]}, {"of": ["Trajectory"]}),
    "first_error": (
        {"of": "x", "by": "counterfactual", "branches": "y"},
        {"of": ["Trajectory"], "branches": ["Trajectory"]},
    ),
    "inject": (
        {"of": "x", "tasks": "t", "environments": "e"},
        {"of": ["Trajectory"], "tasks": ["Task"], "environments": ["EnvironmentSpec"]},
    ),
    "memory": (
        {"policy": "p", "tasks": "t", "environments": "e", "from": "x", "where": "all"},
        {"tasks": ["Task"], "environments": ["EnvironmentSpec"], "from": ["Trajectory"]},
    ),
    "mix": ({"from": "x"}, {"from": ["Trajectory"]}),
    "multi_agent": (
        {
            "policy": "p",
            "models": {"critic": "c"},
            "roles": [{"name": "actor", "acts": True}, {"name": "critic", "veto": "NO"}],
            "tasks": "t",
            "environments": "e",
        },
        {"tasks": ["Task"], "environments": ["EnvironmentSpec"]},
    ),
    "normalize": ({"data": ["x.jsonl"], "dataset": "d", "format": "adp"}, {}),
    "pick": ({"of": "x"}, {"of": ["Trajectory"]}),
    "quality": ({"of": "x"}, {"of": ["Trajectory"]}),
    "propose": ({"of": "e"}, {"of": ["EnvironmentSpec"]}),
    "redact": ({"from": "x"}, {"from": ["SftRow"]}),
    "replay": ({"of": "x", "new": "y"}, {"of": ["Trajectory"], "new": ["Trajectory"]}),
    "revise": (
        {"policy": "p", "tasks": "t", "environments": "e", "attempts": 2},
        {"tasks": ["Task"], "environments": ["EnvironmentSpec"]},
    ),
    "select_diverse": ({"of": "x", "size": 78}, {"of": ["Trajectory"]}),
    "simulate": ({**EPISODES[0], "simulator": "m"}, EPISODES[1]),
    "spec_env": ({}, {}),
    "split": ({"of": "x"}, {"of": ["Trajectory"]}),
    "step_agreement": ({"of": "x", "branches": "b"}, {"of": ["Trajectory"], "branches": ["Trajectory"]}),
    "step_effect": ({"of": "x", "branches": "b"}, {"of": ["Trajectory"], "branches": ["Trajectory"]}),
    "step_value": ({"of": "x", "method": "broadcast"}, {"of": ["Trajectory"]}),
    "tool_graph": ({"specs": "bundled:hotel"}, {}),
    "tool_need": (
        {"of": "x", "attempts": "a", "verdicts": "v", "score": "passed:answer_match"},
        {"of": ["Trajectory"], "attempts": ["Trajectory"], "verdicts": ["Verdict"]},
    ),
    "wrap_env": ({"of": "e", "twins": 2}, {"of": ["EnvironmentSpec"]}),
    **{
        name: (
            {
                "of": "x",
                **dict.fromkeys(VERIFIERS.load(name).needs, "y"),
                **PARAMETERS.get(name, {}),
                **models_of(VERIFIERS.load(name)),
            },
            {"of": ["Trajectory"], **{need: [SIDE_TABLES[need][0]] for need in VERIFIERS.load(name).needs}},
        )
        for name in VERIFIERS
    },
}


def known(name: str) -> Operator:
    return stage(name, **KNOWN[name][0])


@pytest.mark.parametrize("name", STAGES)
def test_it_explains_itself(name: str) -> None:
    kind = OPERATORS.load(name)
    assert (kind.__doc__ or "").strip()
    assert [field for field, info in kind.model_fields.items() if not info.description] == []


@pytest.mark.parametrize("name", STAGES)
def test_roles_are_fields(name: str) -> None:
    step = known(name)
    fields = set(type(step).model_fields)
    assert {*step.table_roles, *step.model_roles.values(), *step.incidental} <= fields
    assert step.tables().keys() == KNOWN[name][1].keys()
    assert step.primary in ("", *(role.rstrip("_") for role in step.table_roles))


@pytest.mark.parametrize("name", STAGES)
def test_it_writes_a_known_record_from_what_it_reads(name: str) -> None:
    assert known(name).writes(KNOWN[name][1]) in RECORDS


@pytest.mark.parametrize("name", STAGES)
def test_it_declares_the_names_of_the_annotations_that_it_writes(name: str) -> None:
    writes_annotations = known(name).writes(KNOWN[name][1]) in (
        "Verdict",
        "Label",
        "Value",
        "Selection",
        "TaskSelection",
    )
    assert bool(known(name).annotations()) is writes_annotations


@pytest.mark.parametrize("name", [name for name in STAGES if name != "admit"])
def test_its_operation_travels(name: str) -> None:
    step = known(name)
    context = StepContext(models={role: model() for role in step.policies()})
    operation = step.operation({}, context)
    assert isinstance(operation, Operation)
    sent = pickler.loads(pickler.dumps(operation))
    assert (sent.name, sent.reads, sent.writes) == (operation.name, operation.reads, operation.writes)
    assert operation.writes.__name__ == step.writes(KNOWN[name][1])
    assert tuple(operation.sides) == tuple(step.sides)
    assert not isinstance(operation, AsyncOperation) or sent.window == operation.window > 0


@pytest.mark.parametrize("operator", ["check_tokens", "mix", "quality"])
def test_a_tokenizer_counts_by_its_content(operator: str, tmp_path: Path) -> None:
    def config(tokenizer: Path | str) -> JsonObject:
        given = {**KNOWN[operator][0], "tokenizer": str(tokenizer)}
        return stage(operator, **given).provenance_config(StepContext())

    folders = [tmp_path / name for name in ("one", "moved", "other")]
    for folder, text in zip(folders, ("{}", "{}", '{"version": "1.0"}'), strict=True):
        folder.mkdir()
        (folder / "tokenizer.json").write_text(text)
    one, moved, other = map(config, folders)
    assert one == moved
    assert {key for key in one if one[key] != other[key]} == {"tokenizer"}
    assert config("org/model@main")["tokenizer"] == "org/model@main"


def test_the_tokenizer_of_a_reward_model_counts_with_how_it_shows_conversations(tmp_path: Path) -> None:
    def config(name: str, **files: str) -> JsonObject:
        for file, text in {"tokenizer.json": "{}", "chat_template.jinja": "A", **files}.items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        given = {"of": "x", "scorer": "m", "tokenizer": str(tmp_path / name)}
        return stage("scorer", **given).provenance_config(StepContext(models={"scorer": model()}))

    record = {"training.json": '{"views": [["pairs", {"role": "user"}]], "seconds": 1}'}
    one = config("one", **record)
    assert one == config("moved", **{"training.json": record["training.json"].replace("1}", "2}")})
    others = (
        {**record, "chat_template.jinja": "B"},
        {**record, "additional_chat_templates/tool_use.jinja": "C"},
        {**record, "tokenizer_config.json": '{"bos_token": "<s>"}'},
        {"training.json": record["training.json"].replace("user", "tool")},
    )
    for number, files in enumerate(others):
        assert config(f"other-{number}", **files) != one
