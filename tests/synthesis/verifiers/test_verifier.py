"""The contract of verifiers: each registered one keeps it, and what breaks it is refused."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import pytest

from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Label, Verdict
from agentmill.synthesis.environments.environment import Environment
from agentmill.synthesis.verifiers import VERIFIERS
from agentmill.synthesis.verifiers.verifier import (
    Finding,
    Findings,
    ModelVerifier,
    Verifier,
    VerifierError,
    findings,
    listed_at,
)
from tests.builders import task, trajectory
from tests.synthesis.verifiers.known import PARAMETERS, Judging, Scoring, approving, panel, tasks, trajectories


def made(verifier: str, **more: Any) -> Verifier:
    return VERIFIERS.load(verifier)(**PARAMETERS.get(verifier, {}), **more)


async def found_by(verifier: Verifier, given: Task | None, record: Trajectory) -> Findings:
    """What it finds; judges approve of all, and scorers count messages."""
    if isinstance(verifier, ModelVerifier) and verifier.asks_scorer:
        return findings(verifier, record, await verifier.judge(given, record, panel(Scoring(len))))
    if isinstance(verifier, ModelVerifier):
        return findings(verifier, record, await verifier.judge(given, record, panel(Judging(approving))))
    return findings(verifier, record, await verifier.verify(given, record, None))


@pytest.mark.parametrize("name", sorted(VERIFIERS))
async def test_every_verifier_keeps_the_contract(name: str) -> None:
    verifier = pickle.loads(pickle.dumps(made(name)))
    for record in trajectories():
        for given in tasks() if verifier.needs else [None]:
            before = msgspec.msgpack.encode(record)
            found = await found_by(verifier, given, record)
            assert found == await found_by(verifier, given, record), "it is repeatable"
            assert msgspec.msgpack.encode(record) == before, "the trajectory stays as it is"
            of_parts = {each.name for each in found.verdicts if each.item is None} - {verifier.name}
            assert of_parts == {f"{verifier.name}/{part}" for part in verifier.parts()}
            assert all(each.judge for each in found.verdicts)


@pytest.mark.parametrize("name", sorted(VERIFIERS))
async def test_its_verdicts_bear_the_name_of_the_step(name: str) -> None:
    found = await found_by(made(name, name="mine"), task(), trajectories()[0])
    assert found.verdicts[0].name == "mine"
    assert all(each.name.partition("/")[0] == "mine" for each in [*found.verdicts, *found.labels])


class Given(Verifier):
    """Gives what it was told to."""

    writes_labels: ClassVar[bool] = True
    name: str = "given"

    def parts(self) -> Sequence[str]:
        return ["a"]

    async def verify(
        self, task: Task | None, trajectory: Trajectory, environment: Environment | None = None
    ) -> Sequence[Finding]:
        raise NotImplementedError


class Unlabelled(Given):
    """The same without labels."""

    writes_labels: ClassVar[bool] = False


def verdict(name: str = "given", **fields: Any) -> Verdict:
    values = {"trajectory_id": "t1", "judge": "j", "status": "scored", "score": 1.0, **fields}
    return Verdict(name=name, **values)


def label(name: str = "given", **fields: Any) -> Label:
    return Label(**{"trajectory_id": "t1", "name": name, "value": "v", "labeller": "l", "item": 2, **fields})


WHOLE = verdict()


def test_the_whole_comes_first_and_labels_apart() -> None:
    part, step = verdict("given/a"), verdict(item=2)
    found = findings(Given(), trajectory(), [part, label(), step, WHOLE])
    assert (found.verdicts, found.labels) == ([WHOLE, part, step], [label()])
    assert findings(Given(), trajectory(), WHOLE).verdicts == [WHOLE]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "there is no verdict 'given' on the whole"),
        (verdict(item=2), "there is no verdict 'given' on the whole"),
        ([WHOLE, verdict("given/b")], "'given/b' is none of its names: given, given/a"),
        ([WHOLE, verdict("other")], "'other' is none of its names"),
        (verdict(trajectory_id="t2"), "another trajectory, 't2'"),
        ([WHOLE, label(item=6)], "about item 6 of 6"),
        ([WHOLE, label(item=-1)], "about item -1 of 6"),
        ([WHOLE, WHOLE], "two verdicts or labels have one name and item"),
        ([WHOLE, label(), label(value="w")], "two verdicts or labels have one name and item"),
        (verdict(score=None), "neither a score nor passed"),
        (verdict(score=math.nan), "has the score nan"),
        (verdict(status="unscored", score=None), "is unscored, so it has a reason and no score"),
        (verdict(status="error", reason="broke"), "is error, so it has a reason and no score"),
    ],
)
def test_what_breaks_the_contract_is_refused(given: Any, message: str) -> None:
    with pytest.raises(VerifierError, match=message):
        findings(Given(), trajectory(), given)


def test_labels_have_to_be_declared() -> None:
    with pytest.raises(VerifierError, match="does not declare `writes_labels`"):
        findings(Unlabelled(), trajectory(), [WHOLE, label()])


def test_what_stands_in_a_task_is_listed() -> None:
    given = task(goal={"answer": "b", "more": ["c", "d"], "deep": {"er": 1}})
    assert listed_at(given, "goal.answer") == ["b"]
    assert listed_at(given, "goal.more") == ["c", "d"]
    assert listed_at(given, "goal.deep.er") == [1]
    assert listed_at(given, "instruction") == [given.instruction]
    assert listed_at(given, "goal.none") == listed_at(given, "goal.answer.x") == listed_at(None, "goal.answer") == []
