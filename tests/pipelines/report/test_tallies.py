"""Counts of the rows of tables, spreads, and examples of what was dropped."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmill.pipelines.recipes.outline import Planned
from agentmill.pipelines.report import tallies
from agentmill.pipelines.report.charts import bin_width, binned
from agentmill.pipelines.report.contents import spread
from agentmill.pipelines.tables import dropped
from agentmill.pipelines.untrusted_text import cut, label, visible
from agentmill.pipelines.view.sources import Source
from agentmill.schemas.records.task import Difficulty
from tests.builders import outcome, spec, task, trajectory, verdict
from tests.errors import user_error
from tests.pipelines.report.example_run import letter, run_of, write_table

ROUND_2 = Planned("round-02/explored", "sample", "explored", 2)


def source(folder: Path, name: str, rows: list[Any]) -> Source:
    return Source(name, write_table(folder / name, rows))


def test_trajectories_by_outcome_environment_and_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tallies, "BATCH_ROWS", 2)
    rows = [
        *(run_of(f"a{n}", n == 0, 3) for n in range(3)),
        run_of("b", True, 1, "env2"),
        trajectory("c", environment_id=None, outcome=outcome("unknown"), content=[]),
    ]
    found = tallies.episodes(source(tmp_path, "round-02/explored", rows), ROUND_2)
    assert (found.group, found.round) == ("explored", 2)
    assert found.environments == {"env1": {"success": 1, "failure": 2}, "env2": {"success": 1}, None: {"unknown": 1}}
    assert found.statuses == {"success": 2, "failure": 2, "unknown": 1}
    assert found.turns == {3: 3, 1: 1, 0: 1}


def test_the_tables_of_an_evaluation_go_by_split_and_model(tmp_path: Path) -> None:
    step = Planned("long/evaluation", "evaluate", "long/evaluation")
    for model in ("base", "round-1"):
        name = f"long/evaluation/held_out_tasks/{model}/trajectories"
        found = tallies.episodes(source(tmp_path, name, [trajectory()]), step)
        assert (found.group, found.round) == (f"long/evaluation/held_out_tasks/{model}", 0)


def test_tasks_by_level_and_plan(tmp_path: Path) -> None:
    levels = [0.0, 0.049, 0.05, 0.999, 1.0, 7.0]
    rows = [task(f"t{n}", difficulty=Difficulty(level=level, plan_length=n // 3)) for n, level in enumerate(levels)]
    found = tallies.tasks(source(tmp_path, "tasks", [*rows, task("t9")]))
    assert found.levels == {0: 2, 1: 1, 19: 3, None: 1}
    assert found.plans == {0: 3, 1: 3, None: 1}


def test_verdicts_by_name_and_of_steps_apart(tmp_path: Path) -> None:
    broken = msgspec.structs.replace(verdict("c"), status="error", score=None, passed=None)
    rows = [verdict("a"), verdict("b", passed=False), verdict("a", item=2), broken]
    found = tallies.judged(source(tmp_path, "verdicts", rows))
    name = "check_outcome"
    assert found.verdicts == {
        (name, False, "scored", True): 1,
        (name, False, "scored", False): 1,
        (name, True, "scored", True): 1,
        (name, False, "error", None): 1,
    }


def test_environments_are_named_and_told_apart(tmp_path: Path) -> None:
    worlds = source(tmp_path, "worlds", [spec("abcdefgh-1"), spec("abcdefgh-2"), spec("other")])
    assert tallies.names_of([worlds], ["other", "gone"]) == {"other": "boxes (pddl) other", "gone": "gone"}
    assert list(tallies.names_of([worlds], ["abcdefgh-2", "abcdefgh-1"]).values()) == [
        "boxes (pddl) abcdefgh-2",
        "boxes (pddl) abcdefgh-1",
    ]


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    found = source(tmp_path, "explored", [trajectory()])
    shard = found.table.shards()[0]
    content = bytearray(shard.read_bytes())
    content[4:60] = b"\xff" * 56
    shard.write_bytes(content)
    with user_error("damaged-file", "part-00000.parquet"):
        list(tallies.frames(found.table, {"id": "trajectory_id"}))


def test_examples_of_each_reason_are_few_and_short(tmp_path: Path) -> None:
    letters = [letter(n, "often", input={"text": "y" * 5_000, "nothing": None}) for n in range(450)]
    letters += [letter(900, "once", detail="d" * 3_000), *(letter(n, f"rare {n}") for n in range(1_000, 1_020))]
    found = dropped.reasons("explored", write_table(tmp_path / "explored", [trajectory()], letters))
    assert [(each.reason, each.n, len(each.examples)) for each in found[:2]] == [("often", 450, 2), ("once", 1, 1)]
    assert len(found) == dropped.MOST_REASONS
    assert [each.input_id for each in found[0].examples] == ["i0", "i1"]
    assert found[0].examples[0].input.startswith('{\n  "text": "yyy')
    assert found[0].examples[0].input.endswith(" more characters)")
    assert "nothing" not in found[0].examples[0].input
    assert len(found[0].examples[0].input) < dropped.INPUT_CHARACTERS + 40
    assert found[1].examples[0].detail.endswith(f"… ({3_000 - dropped.DETAIL_CHARACTERS:,} more characters)")


def test_the_first_dead_letters_of_a_reason_are_found_in_any_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dropped, "BATCH_ROWS", 3)
    letters = [letter(n, "late" if n in (7, 8, 9) else "early") for n in range(11)]
    table = write_table(tmp_path / "explored", [trajectory()], letters)
    examples = {each.reason: [example.input_id for example in each.examples] for each in dropped.reasons("x", table)}
    assert examples == {"early": ["i0", "i1"], "late": ["i7", "i8"]}


@given(st.dictionaries(st.integers(0, 300), st.integers(1, 5), min_size=1))
def test_the_spread_of_counts_is_that_of_their_numbers(counts: dict[int, int]) -> None:
    numbers = sorted(Counter(counts).elements())
    found = spread(counts)
    assert found is not None
    assert (found.n, found.least, found.most) == (len(numbers), numbers[0], numbers[-1])
    assert found.median == numbers[(len(numbers) - 1) // 2]
    assert found.mean == pytest.approx(sum(numbers) / len(numbers))


@given(st.dictionaries(st.integers(0, 10_000), st.integers(1, 5), min_size=1))
def test_bins_lose_nothing_and_are_not_too_many(counts: dict[int, int]) -> None:
    width = bin_width(max(counts))
    bins = binned(counts, width)
    assert sum(bins.values()) == sum(counts.values())
    assert max(bins) / width < 41
    assert all(any(low <= value < low + width for low in bins) for value in counts)


def test_text_that_would_change_how_a_page_is_shown() -> None:
    assert visible("a\u202eb\x00\ud800\U000e0041\n\tü漢😀") == "a\\u202eb\\u0000\\ud800\\u{e0041}\n\tü漢😀"
    assert label("a\n b" * 6, 20) == "a ba ba ba ba ba b"
    assert label("begins" + "-" * 50 + "ends", 20) == "begins---…------ends"
    assert cut("x" * 12, 10) == "xxxxxxxxxx… (2 more characters)"
    assert cut("x" * 10, 10) == "x" * 10


def test_an_empty_table_has_no_rows_to_count(tmp_path: Path) -> None:
    empty = Source("tasks", write_table(tmp_path / "tasks", []))
    assert tallies.tasks(empty) == tallies.Tasks("tasks", Counter(), Counter())
