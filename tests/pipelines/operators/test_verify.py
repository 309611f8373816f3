"""Verification: parameters reach the verifier; an environment that hangs in a replay costs one verdict."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from pydantic import Field

from agentmill.pipelines.operators import verify
from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import MessageAction, Trajectory
from agentmill.schemas.records.verdict import Verdict
from agentmill.schemas.tables import Counts, Table
from agentmill.synthesis.environments import ENVIRONMENTS
from agentmill.synthesis.environments.environment import Environment
from agentmill.synthesis.rollouts import blocking_env as apart
from agentmill.synthesis.verifiers import VERIFIERS
from agentmill.synthesis.verifiers.verifier import Verifier
from tests.builders import trajectory
from tests.errors import user_error
from tests.pipelines.engine.stages import dropped_of, rows_of, write_table
from tests.pipelines.operators.steps import model, run, stage
from tests.ruin_environment import SPEC, RuinEnvironment, registered, ruin_task

ON = {"tasks": "tasks", "environments": "environments"}


class Stuck(RuinEnvironment):
    """Hangs at every step from 3; notes who calls it."""

    blocking: ClassVar[bool] = True
    released: ClassVar[threading.Event] = threading.Event()
    callers: ClassVar[set[str]] = set()

    def step(self, action: Any) -> Any:
        self.callers.add(threading.current_thread().name)
        if self.number == 3:
            self.released.wait(60)
        return super().step(action)


class Dead(RuinEnvironment):
    """Hangs at every step until it is released."""

    blocking: ClassVar[bool] = True
    released: ClassVar[threading.Event] = threading.Event()

    def step(self, action: Any) -> Any:
        self.released.wait(60)
        return super().step(action)


@pytest.fixture
def lost(tmp_path: Path) -> Iterator[Path]:
    """Runs that go left from 1, 2, 3 and 4 until they lose."""
    write_table(tmp_path / "tasks", [[ruin_task(start, 5) for start in (1, 2, 3, 4)]], Task)
    write_table(tmp_path / "environments", [[SPEC]], EnvironmentSpec)
    with registered():
        actor = {"actor": model("gambler", turns=["0.0"])}
        run(tmp_path, "sample", "lost", actor, policy="p", **ON)
        yield tmp_path


def test_a_world_that_hangs_in_a_replay_costs_its_verdict_and_no_other(
    lost: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "POOL", apart.Pool(8))
    monkeypatch.setattr(apart, "CLOSING_S", 0.1)
    monkeypatch.setattr(verify, "CALL_TIMEOUT_S", 0.5)
    monkeypatch.setitem(ENVIRONMENTS._entries, "ruin", f"{__name__}:Stuck")
    manifest = run(lost, "check_outcome", "verdicts", of="lost", **ON)
    Stuck.released.set()
    assert manifest.counts == Counts(read=4, used=2, dropped=2, written=2)
    assert manifest.reasons == {"world_timeout": 2}
    assert {letter.blamed for letter in dropped_of(lost / "verdicts")} == {"environment"}
    assert {(verdict.status, verdict.passed) for verdict in rows_of(lost / "verdicts")} == {("scored", False)}
    assert Stuck.callers == {"world"}


def test_worlds_that_all_hang_end_the_stage(lost: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "POOL", apart.Pool(8))
    monkeypatch.setattr(apart, "CLOSING_S", 0.1)
    monkeypatch.setattr(verify, "CALL_TIMEOUT_S", 0.3)
    monkeypatch.setattr(verify, "HUNG_IN_A_ROW", 3)
    monkeypatch.setitem(ENVIRONMENTS._entries, "ruin", f"{__name__}:Dead")
    with user_error("replays-hang", "3"):
        run(lost, "check_outcome", "verdicts", of="lost", **ON)
    Dead.released.set()
    assert run(lost, "check_outcome", "verdicts", of="lost", **ON).counts.written == 4


class Mentions(Verifier):
    """Passed by a trajectory whose last message holds a word; needs neither tasks nor environments."""

    name: str = "mentions"
    word: str = Field(description="what the last message has to hold")
    case: bool = Field(True, description="whether upper and lower case differ")

    async def verify(
        self, task: Task | None, trajectory: Trajectory, environment: Environment | None = None
    ) -> Verdict:
        assert task is None
        assert environment is None
        answer = next((each.content for each in reversed(trajectory.content) if isinstance(each, MessageAction)), "")
        found = self.word in answer if self.case else self.word.lower() in answer.lower()
        return Verdict(
            trajectory_id=trajectory.trajectory_id, name=self.name, status="scored", judge="rule", passed=found
        )


@pytest.fixture
def mentions(monkeypatch: pytest.MonkeyPatch) -> None:
    """``Mentions`` is registered as a verifier, and thereby as an operator."""
    for registry in (VERIFIERS, OPERATORS):
        monkeypatch.setitem(registry._entries, "mentions", f"{__name__}:Mentions")


@pytest.mark.usefixtures("mentions")
def test_parameters_reach_the_verifier_and_no_environments_are_needed(tmp_path: Path) -> None:
    write_table(
        tmp_path / "answers", [[trajectory(content=[MessageAction(content="It is Paris.", turn=1)])]], Trajectory
    )
    passed = {}
    for name, parameters in {
        "exact": {"word": "paris"},
        "folded": {"word": "paris", "case": False},
        "renamed": {"word": "Paris", "name": "names_the_city"},
    }.items():
        run(tmp_path, "mentions", name, of="answers", **parameters)
        (verdict,) = rows_of(tmp_path / name)
        passed[verdict.name, name] = verdict.passed
        assert parameters.items() <= Table.open(tmp_path / name).manifest.config.items()
    assert passed == {("mentions", "exact"): False, ("mentions", "folded"): True, ("names_the_city", "renamed"): True}


@pytest.mark.usefixtures("mentions")
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"word": "x", "cas": False}, ("unknown-key", "'cas'", "case")),
        ({}, ("missing-key",)),
        ({"word": "x", "case": "perhaps"}, ("invalid-value", "case", "perhaps")),
        ({"word": "x", "environments": "environments"}, ("unknown-key", "environments")),
        ({"word": "x", "name": ""}, ("invalid-value", "name")),
    ],
)
def test_parameters_that_the_verifier_does_not_have_are_refused(
    parameters: dict[str, Any], message: tuple[str, ...]
) -> None:
    with user_error(*message):
        stage("mentions", of="answers", **parameters)


def test_check_outcome_needs_tasks_and_environments() -> None:
    with user_error("missing-key", "check_outcome"):
        stage("check_outcome", of="x", tasks="tasks")
    with user_error("unknown-key", "threshold"):
        stage("check_outcome", of="x", tasks="tasks", environments="environments", threshold=0.5)


def test_verdicts_that_say_nothing_are_reported(tmp_path: Path) -> None:
    write_table(tmp_path / "tasks", [[ruin_task(1, 5)]], Task)
    write_table(tmp_path / "environments", [[SPEC]], EnvironmentSpec)
    write_table(tmp_path / "others", [[msgspec.structs.replace(SPEC, environment_id="other")]], EnvironmentSpec)
    with registered():
        run(tmp_path, "sample", "runs", {"actor": model("gambler", turns=["0.0"])}, policy="p", **ON)
        given: dict[str, Any] = {"of": "runs", "tasks": "tasks"}
        known = run(tmp_path, "check_outcome", "known", **given, environments="environments")
        unknown = run(tmp_path, "check_outcome", "unknown", **given, environments="others")
    step = stage("check_outcome", **given, environments="others")
    assert step.notes(known) == []
    assert unknown.metrics == {"passed": 0, "unscored": 1, "unscored.no_environment": 1}
    assert step.notes(unknown) == ["warning: of 1 verdicts 1 are unscored (no_environment 1)"]


class Broken(Mentions):
    """Speaks of an item that there is not."""

    async def verify(
        self, task: Task | None, trajectory: Trajectory, environment: Environment | None = None
    ) -> Verdict:
        verdict = await super().verify(task, trajectory, environment)
        return msgspec.structs.replace(verdict, item=99)


def test_a_verdict_on_an_item_that_there_is_not_is_dropped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for registry in (VERIFIERS, OPERATORS):
        monkeypatch.setitem(registry._entries, "broken", f"{__name__}:Broken")
    write_table(tmp_path / "answers", [[trajectory()]], Trajectory)
    manifest = run(tmp_path, "broken", "verdicts", of="answers", word="x")
    assert manifest.reasons == {"bad_verdict": 1}
    [letter] = dropped_of(tmp_path / "verdicts")
    assert (letter.blamed, letter.detail) == ("verifier", "Broken: 'mentions' is about item 99 of 6")


RULES = [
    {"id": "says_box", "at_least": 1, "of": {"message": "box"}},
    {"id": "no_fly", "never": {"message": "fly"}},
]


def test_parts_and_labels_of_a_verifier_are_asked_by_conditions(tmp_path: Path) -> None:
    still = trajectory("t2", content=[MessageAction(content="put ball into box", turn=1)])
    write_table(tmp_path / "runs", [[trajectory("t1"), still]], Trajectory)
    manifest = run(tmp_path, "check_rules", "rules", of="runs", rules=RULES)
    assert manifest.counts == Counts(read=2, used=2, dropped=0, written=6)
    assert manifest.metrics == {"scored": 2, "passed": 1, "failed.no_fly": 1, "labels": 1}
    assert stage("check_rules", of="runs", rules=RULES).annotations() == [
        "check_rules",
        "check_rules/says_box",
        "check_rules/no_fly",
    ]
    [label] = rows_of(tmp_path / "rules/labels")
    assert (label.trajectory_id, label.name, label.item) == ("t1", "check_rules/no_fly", 2)
    kept = {}
    for name, where in {
        "by_part": [{"verdict": "check_rules/no_fly", "passed": True}],
        "by_score": [{"verdict": "check_rules", "at_least": 0.5}],
    }.items():
        run(tmp_path, "filter", name, of="runs", verdicts="rules", where=where)
        kept[name] = [row.trajectory_id for row in rows_of(tmp_path / name) if row.kept]
    assert kept == {"by_part": ["t2"], "by_score": ["t1", "t2"]}
    loss = {
        "by_label": {"labels": "rules/labels", "steps": [{"label": "check_rules/no_fly", "equals": "violated"}]},
        "by_step": {"verdicts": "steps", "steps": [{"verdict": "check_rules", "passed": True}]},
    }
    run(tmp_path, "check_rules", "steps", of="runs", rules=RULES, per_step=True)
    trained = {}
    for name, parameters in loss.items():
        run(tmp_path, "sft", name, **{"from": "runs", **parameters})
        rows = rows_of(tmp_path / name)
        trained[name] = [message.content for row in rows for message in row.messages if message.train]
    assert trained == {"by_label": ["fly to box"], "by_step": ["put ball into box", "put ball into box"]}


def test_a_parameter_that_is_called_as_a_table_is_refused() -> None:
    class Taken(Mentions):
        of: str = ""

    with pytest.raises(TypeError, match="Taken has the parameters of, which name tables"):
        verify.operator_of(Taken)
