"""Notes in the place of old turns: a code that is seen at turn 1 and needed at turn 9, with three turns in sight."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentmill.schemas.chat import is_mark, shown, to_messages
from agentmill.schemas.config import validate
from agentmill.schemas.records.trajectory import MessageAction, Trajectory
from agentmill.schemas.views.annotations import NOTHING
from agentmill.schemas.views.sft import Sft
from agentmill.schemas.views.view import rows_of
from agentmill.synthesis.policies.policy import PolicySettings
from agentmill.synthesis.strategies.sample import Sample
from agentmill.synthesis.verifiers.check_outcome import CheckOutcome
from tests.errors import user_error
from tests.synthesis.strategies.exploring import commands, exploration, only
from tests.vault_environment import Keeper, VaultEnvironment, vault_task

NOTES: dict[str, Any] = {"context": "notes", "keep_turns": 3}
WINDOW: dict[str, Any] = {"context": "sliding_window", "keep_turns": 3, "context_tokens": 1}
"""A limit that every turn exceeds: three turns are shown, as with notes."""


def keeper(*turns: str) -> Keeper:
    return Keeper(PolicySettings(policy="keeper", turns=list(turns)))


async def lived(actor: Keeper, code: str = "k", **parameters: Any) -> Trajectory:
    return await only(Sample(**parameters), exploration(vault_task(code), world=VaultEnvironment, actor=actor))


def prompts_of(run: Trajectory) -> list[list[int]]:
    """The whole prompt of each turn, put together from the token deltas."""
    found: list[list[int]] = []
    sequence: list[int] = []
    for item in run.content:
        if isinstance(item, MessageAction) and item.tokens is not None:
            sequence = [*([] if item.tokens.segment_start else sequence), *item.tokens.prompt_ids]
            found.append(sequence)
            sequence = [*sequence, *item.tokens.sampled_ids]
    return found


@pytest.mark.parametrize("code", "kxz")
@pytest.mark.parametrize(
    ("parameters", "turns", "status"),
    [({}, (), "success"), (WINDOW, (), "failure"), (NOTES, (), "success"), (NOTES, ("deaf",), "failure")],
)
async def test_what_left_the_context_is_known_by_notes_only(
    parameters: dict[str, Any], turns: tuple[str, ...], status: str, code: str
) -> None:
    run = await lived(keeper(*turns), code, **parameters)
    assert commands(run) == ["look", *["wait"] * 7, f"try 1 {code if status == 'success' else '?'}"]
    assert run.outcome.status == status
    assert (await CheckOutcome().verify(vault_task(code), run, VaultEnvironment())).passed is (status == "success")


async def test_notes_are_written_anew_with_every_turn_that_leaves_and_are_recorded() -> None:
    actor = keeper()
    run = await lived(actor, **NOTES)
    marks = [item for item in run.content if is_mark(item)]
    assert [mark.turn for mark in marks] == [1, 2, 3, 4, 5]
    assert {(mark.role, mark.synthetic, mark.context_operation) for mark in marks} == {("notes", True, "fold")}
    assert [mark.content for mark in marks] == [  # type: ignore[union-attr]
        f"(Turns 1 to {turn} are left out here; your notes: The code is k.)" for turn in (1, 2, 3, 4, 5)
    ]
    assert all("Open the vault." in asked for asked in actor.noted), "who writes notes knows the task"
    assert "look" in actor.noted[0], "and sees what is about to leave"
    assert "look" not in actor.noted[1], "but nothing that has left"
    assert run.usage.completion_tokens == 9 + 5 * 100, "what the notes cost is counted"


async def test_what_each_step_saw_can_be_told_from_the_row() -> None:
    """From the context operations, from the token deltas and from the rows that training sees: all the same."""
    actor = keeper()
    run = await lived(actor, **NOTES)
    steps = [place for place, item in enumerate(run.content) if isinstance(item, MessageAction)]
    assert [shown(run.content[:place]) for place in steps] == actor.contexts
    assert [len({item.turn for item in context} - {0}) for context in actor.contexts] == [0, 1, 2, 3, 3, 3, 3, 3, 3]
    assert prompts_of(run) == actor.prompts
    rows: list[Any] = rows_of(Sft(rows="step"), run, NOTHING)
    told = [row.messages[1 : [message.train for message in row.messages].index(True)] for row in rows]
    seen = [to_messages(None, context) for context in actor.contexts]
    assert [[msgspec.structs.replace(each, train=False) for each in context] for context in told] == seen
    assert [segment.input_ids[: segment.turns[-1].start] for row in rows for segment in row.tokens] == actor.prompts


async def test_another_model_may_keep_the_notes() -> None:
    actor, clerk = keeper("deaf"), keeper()
    explored = exploration(vault_task("k"), world=VaultEnvironment, actor=actor, summarizer=clerk)
    run = await only(Sample(**NOTES), explored)
    assert run.outcome.status == "success"
    assert (len(actor.noted), len(clerk.noted)) == (0, 5)
    other = exploration(vault_task("k"), world=VaultEnvironment, actor=actor)
    assert Sample(**NOTES).planned(explored) != Sample(**NOTES).planned(other), "who keeps them is part of the id"


def test_notes_are_kept_by_turns() -> None:
    with user_error("rule-broken", "context: notes", "keep_turns"):
        validate(Sample, {"context": "notes", "context_tokens": 100}, "step sample")
