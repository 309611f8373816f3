"""Stored tokens in rows: those of the segments with loss, each up to the last turn that has some."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentmill.schemas.config import validate
from agentmill.schemas.records.rows import PreferenceRow, RowTokens, SampledTurn, SftRow, UnpairedRow
from agentmill.schemas.records.trajectory import MessageAction, Trajectory, TurnTokens
from agentmill.schemas.views.annotations import NOTHING
from agentmill.schemas.views.pair_view import PairView
from agentmill.schemas.views.pairing import plan
from agentmill.schemas.views.preference import StepPairs, TrajectoryPairs
from agentmill.schemas.views.sft import Sft
from agentmill.schemas.views.unpaired import Unpaired
from tests.builders import agent_message, instruction, outcome, seen, tokens, tool, trajectory

START: dict[str, Any] = {"segment_start": True}


def run(*turns: TurnTokens | None) -> Trajectory:
    """A run whose turns have these tokens; the first one is message 2, after the system prompt and the task."""
    content = [
        item
        for turn, each in enumerate(turns, 1)
        for item in (agent_message(f"go {turn}", turn, tokens=each), seen("ok", turn, error=turn == 2))
    ]
    return trajectory(content=[instruction(), *content])


def rows(made: Trajectory, **parameters: Any) -> list[SftRow]:
    view: Sft = validate(Sft, parameters, "test")
    return view.make_rows(made, NOTHING)


def of(input_ids: list[int], *turns: tuple[int, int, int]) -> RowTokens:
    told = [SampledTurn(message=message, start=start, end=end) for message, start, end in turns]
    return RowTokens(input_ids=input_ids, turns=told, model="tiny", revision="r1")


def test_a_segment_is_the_prompt_and_what_was_sampled_turn_by_turn() -> None:
    (row,) = rows(run(tokens(5, 6, **START), tokens(7, prompt_ids=(3,))))
    assert row.tokens == [of([1, 2, 5, 6, 3, 7], (2, 2, 4), (4, 5, 6))]


def test_a_turn_that_was_cut_off_carries_loss_only_with_its_tokens() -> None:
    cut_off = msgspec.structs.replace(tokens(6), finish_reason="length")
    made = run(tokens(5, **START), cut_off, tokens(7))
    for parameters, learnt in (({}, 3), ({"system_prompts": ["Be brief."]}, 2)):
        (row,) = rows(made, **parameters)
        assert sum(message.train for message in row.messages) == learnt


def test_each_segment_stands_for_itself() -> None:
    made = run(tokens(5, **START), tokens(6), tokens(7, prompt_ids=(9, 9), **START))
    (row,) = rows(made)
    assert row.tokens == [of([1, 2, 5, 1, 2, 6], (2, 2, 3), (4, 5, 6)), of([9, 9, 7], (6, 2, 3))]


def test_what_follows_the_last_loss_is_left_out() -> None:
    made = run(tokens(5, **START), tokens(6), tokens(7, prompt_ids=(9, 9), **START))
    (row,) = rows(made, loss="not_error")
    assert row.tokens == [of([1, 2, 5], (2, 2, 3)), of([9, 9, 7], (6, 2, 3))]
    steps = rows(made, rows="step")
    assert [row.tokens for row in steps] == [
        [of([1, 2, 5], (2, 2, 3))],
        [of([1, 2, 5, 1, 2, 6], (2, 2, 3), (4, 5, 6))],
        [of([9, 9, 7], (6, 2, 3))],
    ]


def test_copied_turns_with_loss_keep_their_tokens() -> None:
    """The first two turns are copied: the one whose loss is asked for is in ``turns`` as it was sampled."""
    made = run(tokens(5, 6, **START), tokens(7, prompt_ids=(3,)), tokens(8, 9, prompt_ids=(4,)))
    content = [
        msgspec.structs.replace(item, context_operation="copied") if item.turn < 3 else item for item in made.content
    ]
    made = msgspec.structs.replace(made, content=content)
    whole = of([1, 2, 5, 6, 3, 7, 4, 8, 9], (2, 2, 4), (4, 5, 6), (6, 7, 9))
    nobodys = {"model": None, "revision": None}  # the run that was copied from may be of another model
    for copied, trained, whose in (("none", [6], {}), ("all", [2, 4, 6], nobodys)):
        (row,) = rows(made, copied=copied)
        assert row.tokens == [msgspec.structs.replace(whole, **whose)]
        assert [place for place, message in enumerate(row.messages) if message.train] == trained
    first, *_ = rows(made, copied="all", rows="step")
    assert first.tokens == [msgspec.structs.replace(of([1, 2, 5, 6], (2, 2, 4)), **nobodys)]


def test_turns_without_tokens_are_in_no_segment() -> None:
    (row,) = rows(run(tokens(5, **START), None, tokens(7)))
    assert row.tokens == [of([1, 2, 5, 1, 2, 7], (2, 2, 3), (6, 5, 6))]
    (row,) = rows(run(tokens(**START), tokens(7)))
    assert row.tokens == [of([1, 2, 1, 2, 7], (4, 4, 5))]
    assert [row.tokens for row in rows(run(None, None))] == [[]]


def test_a_segment_whose_start_is_not_there_is_left_out() -> None:
    (row,) = rows(run(tokens(5), tokens(6, prompt_ids=(8,), **START)))
    assert row.tokens == [of([8, 6], (4, 1, 2))]


@pytest.mark.parametrize(
    "parameters",
    [{"tool_format": "xml"}, {"system_prompts": ["Be brief."]}, {"prefix": {"success": "Solve.", "failure": "Fail."}}],
)
def test_a_run_told_otherwise_than_it_was_lived_has_none(parameters: dict[str, Any]) -> None:
    made = msgspec.structs.replace(run(tokens(5, **START), tokens(6)), tools=[tool("look")])
    assert all(row.tokens for row in rows(made))
    assert [row.tokens for row in rows(made, **parameters)] == [[]]


def unpaired(made: Trajectory, **parameters: Any) -> list[UnpairedRow]:
    view: Unpaired = validate(Unpaired, parameters, "test")
    return view.make_rows(made, NOTHING)


def test_labelled_rows_have_those_of_prompt_and_completion() -> None:
    made = run(tokens(5, **START), tokens(6), tokens(7, prompt_ids=(9, 9), **START))
    (row,) = unpaired(made)
    assert [message.role for message in row.prompt] == ["system", "user"]
    assert row.tokens == [of([1, 2, 5, 1, 2, 6], (2, 2, 3), (4, 5, 6)), of([9, 9, 7], (6, 2, 3))]
    assert [row.tokens for row in unpaired(made, rows="step")] == [
        [of([1, 2, 5], (2, 2, 3))],
        [of([1, 2, 5, 1, 2, 6], (2, 2, 3), (4, 5, 6))],
        [of([9, 9, 7], (6, 2, 3))],
    ]
    assert [row.tokens for row in unpaired(made, system_prompts=["Be brief."])] == [[]]


def pair(view: PairView, good: Trajectory, bad: Trajectory) -> PreferenceRow:
    """The one pair of a success and a failure."""
    bad = msgspec.structs.replace(bad, trajectory_id="bad", outcome=outcome("failure"))
    found = [each for made in (good, bad) for each in view.candidates(made, NOTHING)]
    (planned,) = plan(found, view.rules).pairs
    return view.make_row(planned, good, bad)


def other(*turns: TurnTokens | None) -> Trajectory:
    """As ``run``, but from the second turn on something else is said."""
    made = run(*turns)
    content = [
        msgspec.structs.replace(item, content="stop") if isinstance(item, MessageAction) and item.turn > 1 else item
        for item in made.content
    ]
    return msgspec.structs.replace(made, content=content)


def test_each_side_of_a_pair_has_those_of_its_own_run() -> None:
    good = run(tokens(5, **START), tokens(6))
    bad = other(tokens(3, 4, **START), tokens(7), tokens(8))
    row = pair(TrajectoryPairs(), good, bad)
    assert row.chosen_tokens == [of([1, 2, 5, 1, 2, 6], (2, 2, 3), (4, 5, 6))]
    assert row.rejected_tokens == [of([1, 2, 3, 4, 1, 2, 7, 1, 2, 8], (2, 2, 4), (4, 6, 7), (6, 9, 10))]
    row = pair(TrajectoryPairs(cut_rejected="chosen+0"), good, bad)
    assert row.rejected_tokens == [of([1, 2, 3, 4, 1, 2, 7], (2, 2, 4), (4, 6, 7))]
    row = pair(StepPairs(), good, bad)
    assert [message.content for message in row.prompt][2:] == ["go 1", "ok"]
    assert row.chosen_tokens == [of([1, 2, 5, 1, 2, 6], (2, 2, 3), (4, 5, 6))]
    assert row.rejected_tokens == [of([1, 2, 3, 4, 1, 2, 7], (2, 2, 4), (4, 6, 7))]


def test_a_side_that_nobody_sampled_has_none() -> None:
    row = pair(TrajectoryPairs(), run(tokens(5, **START), tokens(6)), other(None, None))
    assert row.chosen_tokens
    assert row.rejected_tokens == []


@pytest.mark.parametrize("view", [TrajectoryPairs, StepPairs])
def test_pairs_of_runs_told_otherwise_have_none(view: Any) -> None:
    good, bad = run(tokens(5, **START), tokens(6)), other(tokens(5, **START), tokens(7))
    assert pair(view(), good, bad).chosen_tokens
    row = pair(view(system_prompts=["Be brief."]), good, bad)
    assert (row.chosen_tokens, row.rejected_tokens) == ([], [])
