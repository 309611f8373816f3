"""apigen_mt and agentscaler: tasks from chains of calls over given tools, which a simulated user asks for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agentmill.schemas.records.trajectory import ApiAction
from tests.pipelines.cli.tables import agentmill
from tests.recipes.data_half import STAND_IN, rows

USER = "models.user={policy: expert, mistakes: 0}"
SMALL = ["steps.proposed_tasks.n=4"]


def run(folder: Path, name: str, *overrides: str) -> Path:
    given = [USER, f"run_dir={folder / 'run'}", *SMALL, *overrides]
    assert agentmill("run", name, "--only", "data", *given) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def apigen_mt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    overrides = (STAND_IN.replace("0.4", "0.2"), "steps.chains.n=12", "steps.chained.n=6")
    return run(tmp_path_factory.mktemp("apigen_mt"), "apigen_mt", *overrides)


def test_apigen_mt_joins_tasks_about_one_thing(apigen_mt: Path) -> None:
    single = {task.task_id: task for task in rows(apigen_mt / "single_tasks")}
    joined = rows(apigen_mt / "joined_tasks")
    assert joined
    for task in joined:
        parts = [single[each] for each in task.lineage.parents]
        assert len(parts) in (2, 3)
        values = [{str(value) for call in calls_of(part.gold) for value in call.kwargs.values()} for part in parts]
        assert all(any(one & other for other in values if other is not one) for one in values)


def calls_of(items: Any) -> list[ApiAction]:
    return [item for item in items or [] if isinstance(item, ApiAction) and item.function != "finish"]


def test_apigen_mt_tells_the_user_alone_and_every_value_was_said_before(apigen_mt: Path) -> None:
    tasks = {task.task_id: task for name in ("single_tasks", "joined_tasks") for task in rows(apigen_mt / name)}
    conversations = {each.trajectory_id: each for each in rows(apigen_mt / "conversations")}
    made = rows(apigen_mt / "rows")
    assert 0 < len(made) < len(conversations)
    values = 0
    for row in made:
        known, task = "", tasks[row.task_id]
        assert conversations[row.trajectory_id].outcome.status == "success"
        *calls, _ = [call for message in row.messages for call in message.tool_calls]
        for message in row.messages:
            if message.role != "assistant":
                assert task.instruction not in (message.content or "")
                known += f"\n{message.content}".casefold()
            for call in message.tool_calls:
                for value in json.loads(call.arguments).values() if call in calls else ():
                    values += 1
                    assert re.search(rf"(?<![\w.]){re.escape(str(value).casefold())}(?!\w)", known), (call, value)
    assert values > 10


def test_agentscaler_learns_all_domains_before_one_and_keeps_errors_of_tools(tmp_path: Path) -> None:
    folder = run(tmp_path, "agentscaler", "models.teacher={policy: expert, mistakes: 0.3}", "steps.walks.n=12")
    played = {each.trajectory_id: each for each in rows(folder / "conversations")}
    general, vertical = (
        {row.trajectory_id for row in rows(folder / f"{name}_rows")} for name in ("general", "vertical")
    )
    assert set() < vertical < general
    called = {key: {call.function for call in calls_of(played[key].content)} for key in general}
    assert {key for key in general if any("booking" in name for name in called[key])} == vertical
    assert all(played[key].outcome.status == "success" for key in general)
    assert any(getattr(item, "error", False) for key in general for item in played[key].content)
