"""Contexts that get too long: what the agent is then shown, what is recorded, and that token deltas stay true."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentmill.schemas.chat import is_mark, shown, to_messages
from agentmill.schemas.conditions import Condition
from agentmill.schemas.config import validate
from agentmill.schemas.records.trajectory import AnyItem, MessageAction, TextObservation, Trajectory, Usage
from agentmill.schemas.records.verdict import Label
from agentmill.schemas.views.annotations import NOTHING, Annotations
from agentmill.schemas.views.sft import Sft
from agentmill.schemas.views.unpaired import Unpaired
from agentmill.schemas.views.view import rows_of
from agentmill.synthesis.policies.completion import token_delta
from agentmill.synthesis.policies.policy import ContextOverflow, Conversation, PolicySettings, Turn
from agentmill.synthesis.policies.scripted import ScriptedPolicy
from agentmill.synthesis.rollouts.context_management import ContextPolicy
from agentmill.synthesis.strategies.branch import Branch
from agentmill.synthesis.strategies.sample import Sample
from agentmill.synthesis.verifiers.check_outcome import CheckOutcome
from tests.builders import trajectory
from tests.errors import user_error
from tests.ruin_environment import RuinEnvironment, Sayer, ruin_task
from tests.synthesis.strategies.exploring import commands, exploration, only

TASK = ruin_task(1, 10)


class Narrow:
    """Goes right; refuses more than ``most`` words. Its tokens are the words it is shown, then its answer."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.prompts: list[list[int]] = []
        self.vocabulary: dict[str, int] = {}

    def __call__(self, conversation: Conversation) -> Turn:
        text = [f"{type(item).__name__} {item.content}" for item in conversation.content]  # type: ignore[union-attr]
        prompt = self.ids(" ".join(text))
        if len(prompt) > self.most:
            raise ContextOverflow(f"{len(prompt)} words")
        self.prompts.append(prompt)
        tokens = token_delta(conversation.content, prompt, self.ids("MessageAction right"), [-0.1, -0.1], "stop")
        usage = Usage(prompt_tokens=len(prompt), completion_tokens=2)
        return Turn(actions=[MessageAction(content="right", tokens=tokens)], usage=usage)

    def ids(self, text: str) -> list[int]:
        return [self.vocabulary.setdefault(word, len(self.vocabulary)) for word in text.split()]


async def lived(narrow: Narrow, others: dict[str, Any] | None = None, **parameters: Any) -> Trajectory:
    actor = ScriptedPolicy(PolicySettings(policy="scripted"), narrow)
    return await only(Sample(**parameters), exploration(TASK, actor=actor, **(others or {})))


def segments(trajectory: Trajectory) -> list[list[int]]:
    """Prompt and answer of each turn, put together from the deltas."""
    found: list[list[int]] = []
    sequence: list[int] = []
    for item in trajectory.content:
        if isinstance(item, MessageAction) and item.tokens is not None:
            sequence = [] if item.tokens.segment_start else sequence
            sequence = [*sequence, *item.tokens.prompt_ids]
            found.append(sequence)
            sequence = [*sequence, *item.tokens.sampled_ids]
    return found


async def test_without_a_policy_the_episode_ends() -> None:
    run = await lived(Narrow(40))
    assert run.outcome.reason == "context_overflow"


@pytest.mark.parametrize("limit", [{}, {"context_tokens": 45}])
async def test_a_sliding_window_keeps_the_instruction_and_the_last_turns(limit: dict[str, int]) -> None:
    narrow = Narrow(10_000 if limit else 45)
    run = await lived(narrow, context="sliding_window", keep_turns=3, **limit)
    assert run.outcome.status == "success"
    marks = [item for item in run.content if is_mark(item)]
    assert marks
    assert [item.context_operation for item in marks] == ["condense"] * len(marks)
    assert commands(run) == ["right"] * 9, "nothing that was lived is lost"
    assert segments(run) == narrow.prompts, "the deltas add up to what the model saw and sampled"
    place = run.content.index(marks[0])
    seen = shown(run.content[: place + 1])
    assert [item.turn for item in seen[3:]] == [turn for turn in sorted({item.turn for item in seen[3:]}) for _ in "ao"]
    assert len({item.turn for item in seen[3:]}) == 3
    assert seen[2].content == f"(Turns 1 to {marks[0].turn} are left out here.)"  # type: ignore[union-attr]
    starts = [item.turn for item in run.content if isinstance(item, MessageAction) and item.tokens.segment_start]  # type: ignore[union-attr]
    assert len(starts) == 1 + len(marks)


async def test_a_context_of_fewer_turns_than_shall_stay_is_not_shortened() -> None:
    content: list[AnyItem] = [TextObservation(content="do", source="user")]
    content += [MessageAction(content="right", turn=turn) for turn in (1, 2, 3)]
    growth = ContextPolicy(context="sliding_window")
    assert await growth.shortened(content, 4, None) == (None, Usage())
    mark, _ = await growth.shortened(content, 2, None)
    assert mark is not None
    assert mark.turn == 1


@pytest.mark.parametrize("limit", [{}, {"context_tokens": 30}])
async def test_a_summarizer_that_cannot_read_it_all_ends_the_episode(limit: dict[str, int]) -> None:
    def overwhelmed(conversation: Conversation) -> Turn:
        raise ContextOverflow("too much to sum up")

    summarizer = ScriptedPolicy(PolicySettings(policy="scripted"), overwhelmed)
    run = await lived(Narrow(10_000 if limit else 45), {"summarizer": summarizer}, context="fold", **limit)
    assert (run.outcome.truncated, run.outcome.reason) == (True, "context_overflow")
    assert commands(run)


def test_who_sums_up_is_part_of_the_id() -> None:
    def planned(name: str, **parameters: Any) -> list[str]:
        others = {who: ScriptedPolicy(PolicySettings(policy="scripted", name=who)) for who in ("a", "b")}
        return Sample(**parameters).planned(exploration(TASK, actor=others["a"], summarizer=others[name]))

    assert planned("a", context="fold") != planned("b", context="fold")
    assert planned("a", context="sliding_window") == planned("b", context="sliding_window")


@pytest.mark.parametrize("given", [{"keep_turns": 2}, {"context_tokens": 100}])
def test_what_shortens_nothing_is_refused(given: dict[str, int]) -> None:
    with user_error("rule-broken", next(iter(given)), "goes with", "or"):
        validate(Sample, given, "step sample")
    validate(Sample, {**given, "context": "fold"}, "step sample")


async def test_a_fold_puts_a_summary_in_the_place_of_old_turns() -> None:
    narrow, summarizer = Narrow(45), Sayer(PolicySettings(policy="sayer", turns=["Went right.", "Went on."]))
    run = await lived(narrow, {"summarizer": summarizer}, context="fold", keep_turns=2)
    assert run.outcome.status == "success"
    marks = [item for item in run.content if is_mark(item)]
    assert [item.context_operation for item in marks] == ["fold"] * len(marks)
    assert (marks[0].role, marks[0].synthetic) == ("summarizer", True)
    assert marks[0].content == f"(Turns 1 to {marks[0].turn} in short: Went right.)"  # type: ignore[union-attr]
    asked = [each.content[0].content for each in summarizer.asked]  # type: ignore[union-attr]
    assert asked[0].startswith("> right\nThe number is 2.")
    assert "Went right." in asked[1], "a later summary is made of the earlier one"
    assert segments(run) == narrow.prompts
    assert (await CheckOutcome().verify(TASK, run, RuinEnvironment())).passed is True


@pytest.mark.parametrize("rows", ["trajectory", "step"])
async def test_rows_tell_such_a_run_as_the_agent_saw_it(rows: Any) -> None:
    """Each step carries loss once, behind exactly the messages that it was sampled from, and with these tokens."""
    narrow = Narrow(45)
    run = await lived(narrow, context="sliding_window", keep_turns=3)
    steps = [place for place, item in enumerate(run.content) if isinstance(item, MessageAction)]
    labels = {(place, "number"): Label(run.trajectory_id, "number", str(place), "t", item=place) for place in steps}
    made: list[Any] = rows_of(Sft(rows=rows), run, Annotations(labels=labels))
    assert len({row.row_id for row in made}) == len(made)
    assert sum(message.train for row in made for message in row.messages) == len(steps) == 9
    contexts = []
    for row in made:
        for place, message in enumerate(row.messages):
            if message.train:
                contexts.append(row.messages[1:place])
        sampled = {turn.message for segment in row.tokens for turn in segment.turns}
        assert {place for place, message in enumerate(row.messages) if message.train} <= sampled
    seen = [to_messages(None, shown(run.content[:place])) for place in steps]
    silent = [[msgspec.structs.replace(each, train=False) for each in context] for context in contexts]
    assert silent == seen
    [last] = rows_of(Sft(steps=[Condition(label="number", equals=str(steps[-1]))]), run, Annotations(labels=labels))
    assert [message.train for message in last.messages].count(True) == 1  # type: ignore[attr-defined]


async def test_a_row_about_a_step_names_its_place_in_the_whole_run() -> None:
    run = await lived(Narrow(45), context="sliding_window", keep_turns=3)
    steps = [place for place, item in enumerate(run.content) if isinstance(item, MessageAction)]
    made: list[Any] = rows_of(Unpaired(rows="step"), run, NOTHING)
    assert [row.item for row in made] == steps
    assert sum(map(is_mark, run.content)) > 1


def test_marks_of_other_programs_are_told_as_they_stand() -> None:
    mark = TextObservation(content="less", source="environment", turn=1, context_operation="condense")
    run = trajectory(content=[*trajectory().content, mark], generation=None)
    assert rows_of(Sft(), run, NOTHING) == Sft().make_rows(run, NOTHING)


async def test_a_branch_behind_a_mark_is_shown_what_its_parent_was_shown() -> None:
    narrow = Narrow(45)
    run = await lived(narrow, context="sliding_window", keep_turns=3)
    asked = list(narrow.prompts)
    narrow.prompts.clear()
    actor = ScriptedPolicy(PolicySettings(policy="scripted"), narrow)
    strategy = Branch(turns="last", context="sliding_window", keep_turns=3)
    branch = await only(strategy, exploration(TASK, earlier=(run,), actor=actor))
    assert narrow.prompts == asked[-1:]
    assert segments(branch) == asked


async def test_a_single_turn_that_is_too_long_ends_the_episode() -> None:
    run = await lived(Narrow(16), context="sliding_window")
    assert run.outcome.reason == "context_overflow"
    assert commands(run) == ["right"]


def test_what_is_shown_without_a_mark_is_everything() -> None:
    content: list[AnyItem] = [TextObservation(content="a", source="user"), MessageAction(content="b", turn=1)]
    assert shown(content) == content
