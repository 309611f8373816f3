"""Loss on steps that a branch copied, by what is said of them where they were taken first."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import msgspec

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.operators.lineage import Lineage
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyItem, Trajectory
from agentmill.schemas.records.verdict import Label
from agentmill.schemas.tables import Counts
from tests import ruin_environment
from tests.builders import agent_message, instruction, seen, trajectory
from tests.errors import user_error
from tests.pipelines.engine.stages import rows_of, write_table
from tests.pipelines.operators.steps import job, model, run
from tests.ruin_environment import ruin_task

ON = {"tasks": "tasks", "environments": "environments"}
BENEFICIAL = [{"label": "step", "equals": "beneficial"}]


def turns(name: str, first: int, last: int) -> list[AnyItem]:
    """The turns of a run, two items each; turn n begins at item 2 n - 1."""
    return [
        item for turn in range(first, last + 1) for item in (agent_message(f"{name}{turn}", turn), seen("ok", turn))
    ]


def branched(name: str, parent: Trajectory, at: int, last: int) -> Trajectory:
    """A run that copies what its parent did before turn ``at``, and goes on by itself."""
    copied = [msgspec.structs.replace(item, context_operation="copied") for item in parent.content if item.turn < at]
    content = [*copied, *turns(name, at, last)]
    return trajectory(name, content=content, parent_id=parent.trajectory_id, branch_turn=at)


EXPERT = trajectory("e", content=[instruction(), *turns("e", 1, 4)])
AGENT = branched("a", EXPERT, 3, 5)
SECOND = branched("b", AGENT, 5, 6)


def labelled(name: str, *values: str) -> list[Label]:
    """Labels of the turns of a run, from the first."""
    return [
        Label(trajectory_id=name, name="step", value=value, labeller="judge", item=2 * turn + 1)
        for turn, value in enumerate(values)
    ]


def trained(folder: Path, **parameters: Any) -> dict[str, list[str | None]]:
    """The messages with loss of each run."""
    run(folder, "sft", "rows", **{"from": "runs", "labels": "labels", **parameters})
    return {
        row.trajectory_id: [each.content for each in row.messages if each.train] for row in rows_of(folder / "rows")
    }


def test_the_beneficial_steps_of_an_expert_carry_loss(tmp_path: Path) -> None:
    """EEF: the labels are on the steps of the expert, whose trajectory is not among those that make rows."""
    seed_table(tmp_path / "runs", [AGENT])
    seed_table(tmp_path / "labels", labelled("e", "beneficial", "harmful", "beneficial", "beneficial"))
    assert trained(tmp_path, copied=BENEFICIAL) == {"a": ["e1", "a3", "a4", "a5"]}


def test_steps_of_all_ancestors_are_found_where_they_were_taken(tmp_path: Path) -> None:
    seed_table(tmp_path / "runs", [SECOND, AGENT])
    good, bad = "beneficial", "harmful"
    seed_table(
        tmp_path / "labels", [*labelled("e", bad, good, good, good), *labelled("a", good, bad, bad, good, good)[3:]]
    )
    assert trained(tmp_path, copied=BENEFICIAL) == {"a": ["e2", "a3", "a4", "a5"], "b": ["e2", "a4", "b5", "b6"]}


def test_what_is_said_of_the_step_in_the_branch_counts_first(tmp_path: Path) -> None:
    seed_table(tmp_path / "runs", [AGENT])
    seed_table(tmp_path / "labels", [*labelled("e", "beneficial", "harmful"), *labelled("a", "harmful")])
    assert trained(tmp_path, copied=BENEFICIAL) == {"a": ["a3", "a4", "a5"]}


def test_by_default_copied_steps_carry_no_loss(tmp_path: Path) -> None:
    seed_table(tmp_path / "runs", [AGENT, SECOND])
    seed_table(tmp_path / "labels", labelled("e", "beneficial", "beneficial"))
    assert trained(tmp_path) == {"a": ["a3", "a4", "a5"], "b": ["b5", "b6"]}


def test_a_condition_on_copied_steps_needs_its_table(tmp_path: Path) -> None:
    seed_table(tmp_path / "runs", [AGENT])
    with user_error("needs-another-key", "copied: {label: step}", "labels"):
        job(tmp_path, "sft", "rows", **{"from": "runs"}, copied=BENEFICIAL)


def test_a_circle_of_parents_ends(tmp_path: Path) -> None:
    table = seed_table(
        tmp_path / "runs", [msgspec.structs.replace(EXPERT, parent_id="b", branch_turn=1), AGENT, SECOND]
    )
    lineage: Lineage = pickle.loads(pickle.dumps(Lineage([table])))
    lineage.load()
    assert list(lineage.sources(SECOND)) == [("a", 9), ("e", 5)]


def test_steps_that_lead_to_success_carry_loss_by_their_values(tmp_path: Path) -> None:
    """The chain of EEF: who goes left from 2 of 5 loses, but from where the first step leads it can still be won."""
    write_table(tmp_path / "tasks", [[ruin_task(2, 5)]], Task)
    write_table(tmp_path / "environments", [[ruin_environment.SPEC]], EnvironmentSpec)
    with ruin_environment.registered():
        expert, agent = ({"actor": model("gambler", turns=[p], revision=p)} for p in ("0.0", "1.0"))
        run(tmp_path, "sample", "lost", expert, policy="p", **ON)
        run(tmp_path, "branch", "tried", agent, policy="p", of="lost", **ON)
        run(tmp_path, "check_outcome", "verdicts", of="tried", **ON)
        run(tmp_path, "step_value", "worth", method="mc", of="lost", branches="tried")
    given = {"from": "tried", "verdicts": "verdicts", "where": "success", "values": "worth"}
    for at_least, lengths in ((0.5, [3, 5]), (1.5, [3, 4])):
        made = run(tmp_path, "sft", f"rows{at_least}", **given, copied=[{"value": "step_value", "at_least": at_least}])
        assert made.counts == Counts(read=2, used=2, dropped=0, written=2)
        rows = [[each.content for each in row.messages if each.train] for row in rows_of(tmp_path / f"rows{at_least}")]
        assert sorted(map(len, rows)) == lengths
        assert {texts[0] for texts in rows if len(texts) == 5} <= {"left"}
