"""Verdicts, labels and values of several tables, indexed by trajectory."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.operators.annotations import AnnotationIndex
from agentmill.pipelines.operators.step_estimates import Trees
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.verdict import Label, Node, Value
from agentmill.schemas.tables import Table
from agentmill.schemas.views.annotations import NOTHING
from agentmill.synthesis.step_values import steps_of
from tests.builders import trajectory, verdict
from tests.errors import user_error
from tests.pipelines.engine.stages import rows_of
from tests.pipelines.operators.steps import run


def label(value: str, item: int | None = None) -> Label:
    return Label(trajectory_id="t1", name="kind", value=value, labeller="rule", item=item)


def value(number: float, n: int = 5) -> Value:
    return Value(trajectory_id="t1", name="mc", value=number, estimator="mc", n=n, item=2)


def said(folder: Path, role: str, *tables: list[Record]) -> AnnotationIndex:
    made = [seed_table(folder / f"table{number}", rows) for number, rows in enumerate(tables)]
    found = AnnotationIndex({role: made})
    found.load()
    return found


def test_tables_add_up(tmp_path: Path) -> None:
    tables = [verdict(), verdict("t2", False)], [verdict(name="judge", passed=False)], [verdict()]
    found = said(tmp_path, "verdicts", *map(list, tables)).of("t1")
    assert {name: each.passed for (_, name), each in found.verdicts.items()} == {"check_outcome": True, "judge": False}


def test_workers_read_the_tables_themselves(tmp_path: Path) -> None:
    found = said(tmp_path, "verdicts", [verdict()])
    sent = pickle.loads(pickle.dumps(found))
    assert sent.of("t1") == NOTHING
    sent.load()
    assert sent.of("t1") == found.of("t1") != NOTHING


def test_one_name_may_be_of_the_whole_and_of_several_items(tmp_path: Path) -> None:
    found = said(tmp_path, "labels", [label("good"), label("bad", 2)], [label("fair", 4)]).of("t1")
    assert {item: each.value for (item, _), each in found.labels.items()} == {None: "good", 2: "bad", 4: "fair"}


@pytest.mark.parametrize(
    ("role", "one", "other", "of"),
    [
        (
            "verdicts",
            verdict(passed=True),
            verdict(passed=False),
            "Verdict records for 'check_outcome' of trajectory t1",
        ),
        (
            "verdicts",
            verdict(item=2),
            verdict(item=2, judge="m"),
            "Verdict records for 'check_outcome' of trajectory t1, item 2",
        ),
        ("labels", label("good", 2), label("bad", 2), "Label records for 'kind' of trajectory t1, item 2"),
        ("values", value(0.5), value(0.25), "Value records for 'mc' of trajectory t1, item 2"),
        ("values", value(0.5), value(0.5, n=1), "Value records for 'mc' of trajectory t1, item 2"),
    ],
)
def test_different_records_of_one_name_are_refused(
    role: str, one: Record, other: Record, of: str, tmp_path: Path
) -> None:
    for rows in ([one, other], [other, one]):
        with pytest.raises(UserError) as refused:
            said(tmp_path, role, *([row] for row in rows))
        assert f"{tmp_path}/table0 and {tmp_path}/table1 hold different {of}; expected one" in str(refused.value)
    with user_error("records-conflict", f"{tmp_path}/table0"):
        said(tmp_path, role, [one, other])


def test_a_node_that_two_tables_hold_counts_once(tmp_path: Path) -> None:
    node = Node(node_id="n", tree_id="t", parent_id=None, trajectory_id="t1", turn=1, visits=4, q=0.5)
    tables = [seed_table(tmp_path / name, [node]) for name in ("one", "two")]
    found = Trees(tables, 1.0)
    found.load()
    one = found.estimates(trajectory(), steps_of(trajectory()), NOTHING)
    assert (one[2].value, one[2].n) == (0.5, 4)
    other = Node(node_id="n", tree_id="t", parent_id=None, trajectory_id="t1", turn=1, visits=4, q=0.75)
    twice = Trees([tables[0], seed_table(tmp_path / "three", [other])], 1.0)
    with user_error("records-conflict", "Node"):
        twice.load()


def test_counts_of_quality_are_asked_by_conditions(tmp_path: Path) -> None:
    seed_table(tmp_path / "runs", [trajectory("t1"), trajectory("t2", content=[])])
    run(tmp_path, "quality", "counts", of="runs")
    found = AnnotationIndex({"quality": [Table.open(tmp_path / "counts")]})
    found.load()
    counted = found.of("t1").quality
    assert counted is not None
    assert (counted.errors, counted.turns) == (1, 2)
    where = [{"quality": "errors", "at_least": 1}]
    run(tmp_path, "filter", "kept", of="runs", quality="counts", where=where)
    assert [(row.trajectory_id, row.kept, row.reason) for row in rows_of(tmp_path / "kept")] == [
        ("t1", True, None),
        ("t2", False, "errors"),
    ]
    with user_error("needs-another-key", "`quality`"):
        run(tmp_path, "filter", "none", of="runs", where=where)


def test_two_different_counts_of_one_trajectory_are_refused(tmp_path: Path) -> None:
    for name, record in {"a": trajectory("t1"), "b": trajectory("t1", content=[])}.items():
        seed_table(tmp_path / name, [record])
        run(tmp_path, "quality", f"counts-{name}", of=name)
    index = AnnotationIndex({"quality": [Table.open(tmp_path / f"counts-{name}") for name in "ab"]})
    with user_error("records-conflict", "trajectory t1"):
        index.load()
