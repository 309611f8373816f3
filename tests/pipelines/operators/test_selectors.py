"""What holds for every selector: independent ones go together in any order, a second run does nothing, all are counted.

A new selector is a line of ``SELECTORS``; ``test_every_selector_has_a_case`` asks for it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.pipelines.operators.selection import LEFT_OUT
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Selection
from agentmill.schemas.tables import Table
from tests.builders import agent_message, instruction, outcome, seen, trajectory
from tests.pipelines.engine.stages import bytes_of, rows_of, write_table
from tests.pipelines.operators.steps import job, run

SELECTORS: dict[str, dict[str, Any]] = {
    "filter": {"of": "runs", "where": [{"field": "outcome.status", "equals": "success"}]},
    "pick": {"of": "runs", "by": "shortest", "k": 2},
    "dedup": {"of": "runs", "on": "text"},
    "difficulty_band": {"of": "runs", "at_least": 0.2, "at_most": 0.9},
    "mix": {"from": "runs", "size": 20},
    "select_diverse": {"of": "runs", "size": 7, "features": ["text"]},
    "split": {"of": "runs", "by": "task", "shares": {"train": 0.5, "test": 0.5}, "keep": "train", "leaks": "off"},
    "decontaminate": {"of": "runs", "against": "held_out"},
    "replay": {"of": "runs", "new": "held_out", "cap": 12},
}
"""Parameters of each selector with which it keeps some trajectories of ``runs`` and leaves others out."""

NO_SELECTORS = ("quality", "redact", "diagnose")
"""Operators of curation that write no selections of trajectories; also selectors that cannot do with ``runs`` alone."""

WORDS = [f"Carry the {name} lamp to the shelf above the {name} stove, then close its door." for name in ("red", "blue")]
TRAJECTORIES = [
    trajectory(
        f"t{number:02d}",
        task_id=f"task{number % 6}",
        attempt=number // 6,
        outcome=outcome("success" if number % 6 == 0 or (number % 5 and number % 6 != 1) else "failure"),
        content=[
            instruction(WORDS[number % 2]),
            *(
                item
                for turn in range(1, 2 + number % 4)
                for item in (agent_message(f"take {number % 7} of {turn}", turn), seen("taken", turn))
            ),
        ],
    )
    for number in range(30)
]


def write_benchmark(folder: Path) -> None:
    """A benchmark with one of the two instructions."""
    task = trajectory("b", task_id="other", content=[instruction(WORDS[0])])
    write_table(folder / "held_out", [[task]], Trajectory)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 trajectories of six tasks in three shards, and the table of every selector."""
    folder = tmp_path_factory.mktemp("selectors")
    write_table(folder / "runs", [TRAJECTORIES[start::3] for start in range(3)], Trajectory)
    write_benchmark(folder)
    for name, parameters in SELECTORS.items():
        run(folder, name, name, **parameters)
    return folder


def kept(folder: Path, name: str) -> set[str]:
    """The trajectories that a selector keeps."""
    return {row.trajectory_id for row in rows_of(folder / name) if row.kept}


def test_every_selector_has_a_case() -> None:
    curating = {name for name in OPERATORS if getattr(OPERATORS.load(name), "verb", None) == "curate"}
    assert curating - {*NO_SELECTORS} == {*SELECTORS}


@pytest.mark.parametrize("name", SELECTORS)
def test_kept_and_left_out_by_reason_are_what_was_read(name: str, folder: Path) -> None:
    rows = rows_of(folder / name)
    reasons = Counter(row.reason for row in rows if not row.kept)
    assert all(isinstance(row, Selection) for row in rows)
    assert sorted(row.trajectory_id for row in rows) == [each.trajectory_id for each in TRAJECTORIES]
    assert 0 < len(kept(folder, name)) < len(TRAJECTORIES)
    assert None not in reasons
    assert len(kept(folder, name)) + sum(reasons.values()) == len(TRAJECTORIES)
    metrics = Table.open(folder / name).manifest.metrics
    counted = {each.removeprefix(LEFT_OUT): n for each, n in metrics.items() if each.startswith(LEFT_OUT)}
    codes = Counter(row.reason.partition(":")[0] for row in rows if not row.kept)
    assert (metrics["kept"], counted) == (len(kept(folder, name)), codes)


@pytest.mark.parametrize("name", SELECTORS)
def test_a_second_run_finds_its_table_and_a_new_one_is_equal(name: str, folder: Path) -> None:
    again = job(folder, name, name, **SELECTORS[name])
    before = bytes_of(folder / name)
    manifest = again.finished()
    assert manifest is not None
    assert manifest.counts.read == len(TRAJECTORIES)
    assert bytes_of(folder / name) == before
    run(folder, name, f"{name}_again", **SELECTORS[name])
    assert bytes_of(folder / f"{name}_again") == before


@pytest.mark.parametrize("name", SELECTORS)
def test_shards_and_their_order_do_not_matter(name: str, folder: Path, tmp_path: Path) -> None:
    write_table(tmp_path / "runs", [TRAJECTORIES[20:], TRAJECTORIES[:1], TRAJECTORIES[1:20]], Trajectory)
    write_benchmark(tmp_path)
    run(tmp_path, name, name, **SELECTORS[name])
    assert kept(tmp_path, name) == kept(folder, name)


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(SELECTORS, 2)])
def test_independent_selectors_give_the_same_rows_in_any_order(one: str, other: str, folder: Path) -> None:
    tables = [[one, other], [other, one]]
    for number, selections in enumerate(tables):
        run(folder, "sft", f"{one}_{other}_{number}", **{"from": "runs"}, selections=selections)
    made = [bytes_of(folder / f"{one}_{other}_{number}") for number in range(2)]
    data = [{name: content for name, content in files.items() if name.startswith("data/")} for files in made]
    assert data[0] == data[1]
    rows = [rows_of(folder / f"{one}_{other}_{number}") for number in range(2)]
    assert rows[0] == rows[1]
    assert {row.trajectory_id for row in rows[0]} == kept(folder, one) & kept(folder, other)


@pytest.mark.parametrize("name", [name for name in SELECTORS if "selections" in OPERATORS.load(name).model_fields])
def test_a_selector_after_a_filter_takes_only_what_that_keeps(name: str, folder: Path) -> None:
    after = f"{name}_after_filter"
    run(folder, name, after, **SELECTORS[name], selections="filter")
    assert kept(folder, after) <= kept(folder, "filter")
    for number, selections in enumerate([[after], ["filter", after], [after, "filter"]]):
        run(folder, "sft", f"{after}_{number}", **{"from": "runs"}, selections=selections)
    rows = [rows_of(folder / f"{after}_{number}") for number in range(3)]
    assert rows[0] == rows[1] == rows[2]
    assert {row.trajectory_id for row in rows[0]} == kept(folder, after)
