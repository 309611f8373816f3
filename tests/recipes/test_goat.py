"""goat: tasks are chains of executed calls, every value was given or returned before, and values carry no loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import ApiAction
from agentmill.synthesis.environments import make
from agentmill.trainers.sampled_tokens import encode_row
from tests.model import tiny_model
from tests.pipelines.cli.tables import agentmill
from tests.recipes.data_half import STAND_IN, rows
from tests.trainers.families import tokenizer_of

SMALL = ("proposed_environments.n=3", "proposed_environments.held_out=0", "proposed_tasks.n=5", "chains.n=6")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("goat") / "run"
    writer = STAND_IN.replace("actor", "writer")
    given = [STAND_IN, writer, f"run_dir={path}", *(f"steps.{each}" for each in SMALL)]
    assert agentmill("run", "goat", "--only", "data", *given) == 0
    return path


def results_of(task: Task, spec: EnvironmentSpec) -> tuple[list[str], bool]:
    """What each call of the solution is answered with in the environment, and whether the task is done then."""
    environment = make(spec)
    environment.reset(task, 0)
    found = []
    for action in task.gold or []:
        transition = environment.step(action)
        assert not transition.error
        found.append(str(getattr(transition.observation, "content", "")))
    passed = environment.check().passed
    environment.close()
    return found, passed


def test_goat_replays_its_chains_and_each_value_was_in_the_request_or_returned_before(folder: Path) -> None:
    specs = {spec.environment_id: spec for spec in rows(folder / "environments")}
    tasks = rows(folder / "chain_tasks")
    lengths = set()
    for task in tasks:
        results, passed = results_of(task, specs[task.environment_id])
        assert passed
        *calls, last = [action for action in task.gold or [] if isinstance(action, ApiAction)]
        lengths.add(len(calls))
        assert last.function == "finish"
        known = task.instruction
        for place, call in enumerate(calls):
            assert all(str(value) in known for value in call.kwargs.values()), (task.instruction, call)
            # Each call but the last finds something that a later one takes.
            later = {str(value) for each in calls[place + 1 :] for value in each.kwargs.values()}
            assert place == len(calls) - 1 or any(value in results[place] for value in later)
            known += results[place]
    assert len(tasks) >= 12
    assert lengths <= {1, 2, 3, 4}
    assert len(lengths) > 1


def test_goat_has_thoughts_and_no_loss_on_values_of_arguments(folder: Path) -> None:
    played = {each.trajectory_id for each in rows(folder / "demonstrations") if each.outcome.status == "success"}
    made = rows(folder / "rows")
    assert {row.trajectory_id for row in made} == played
    tokenizer = tokenizer_of("qwen2_5", _tiny())
    for row in made:
        own = [message for message in row.messages if message.role == "assistant"]
        assert all(message.train and message.content for message in own)
        bare = [all(call.arguments == "{}" for call in message.tool_calls) for message in own]
        assert [message.argument_loss == "trained" for message in own] == bare
        text = "".join(loss_of(encode_row(row, tokenizer), tokenizer))
        for call in (call for message in own for call in message.tool_calls):
            assert f'"name": "{call.name}"' in text
            values = [value for value in json.loads(call.arguments).values() if len(str(value)) > 3]
            assert not any(str(value) in text for value in values)


def _tiny() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model())


def loss_of(parts: Any, tokenizer: Any) -> list[str]:
    return [tokenizer.decode(encoded.labels[encoded.mask].tolist()) for _, encoded in parts]
