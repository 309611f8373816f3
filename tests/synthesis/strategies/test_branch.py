"""Branches: where they start, what they copy, and that their outcomes estimate a value that is known."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from agentmill.schemas.conditions import Condition
from agentmill.schemas.config import validate
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import ApiAction, MessageAction, Trajectory, TurnTokens, Usage
from agentmill.schemas.records.verdict import Label
from agentmill.schemas.views.annotations import Annotations
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.policies.completion import token_delta
from agentmill.synthesis.policies.policy import Conversation, PolicyError, PolicySettings, Turn
from agentmill.synthesis.policies.scripted import ScriptedPolicy
from agentmill.synthesis.strategies.branch import Branch, first_actions
from agentmill.synthesis.strategies.sample import Sample
from agentmill.synthesis.verifiers.check_outcome import CheckOutcome
from tests.errors import user_error
from tests.ruin_environment import RuinEnvironment, gambler, ruin_task, win_probability
from tests.synthesis.strategies.exploring import commands, exploration, explore, only

WAY = ("right", "left", "jump", "left", "left")
"""2, 3, 2, refused, 1, 0: lost at turn 5."""


def says(*turns: str) -> ScriptedPolicy:
    return ScriptedPolicy(PolicySettings(policy="scripted", turns=list(turns)))


async def lost(*turns: str) -> Trajectory:
    return await only(Sample(), exploration(actor=says(*(turns or WAY))))


async def cut(*turns: str) -> Trajectory:
    """A trajectory of just these turns."""
    return await only(Sample(max_turns=len(turns)), exploration(actor=says(*turns)))


def limited(max_turns: int) -> Task:
    return msgspec.structs.replace(ruin_task(), max_turns=max_turns)


async def test_continuations_estimate_the_known_value_of_each_state() -> None:
    """99.9 % intervals for 150 continuations from each of the states that a run passed."""
    n, p = 150, 0.6
    parent = await lost("right", "left", "left", "left")
    before = [2, 3, 2, 1]
    branches = await explore(Branch(k=n), exploration(earlier=(parent,), actor=gambler(p)))
    assert len(branches) == n * len(before)
    for turn, number in enumerate(before, 1):
        outcomes = [each.outcome.status == "success" for each in branches if each.branch_turn == turn]
        assert len(outcomes) == n
        value = win_probability(number, 4, p)
        assert abs(sum(outcomes) / n - value) < 3.29 * math.sqrt(value * (1 - value) / n), (turn, number)
    assert len({tuple(commands(each)) for each in branches}) > n / 2, "siblings sample differently"


async def test_a_branch_holds_its_history_and_starts_in_the_state_it_ended_in() -> None:
    parent = await lost()
    branch = await only(
        Branch(turns="last"), exploration(earlier=(parent,), actor=says(*WAY[:4], "right", "right", "right"))
    )
    assert (branch.parent_id, branch.branch_turn, branch.attempt) == (parent.trajectory_id, 5, 0)
    assert commands(branch) == ["*right", "*left", "*jump", "*left", "right", "right", "right"]
    copied = [item for item in branch.content if item.context_operation == "copied"]
    assert [msgspec.structs.replace(item, context_operation=None) for item in copied] == parent.content[:-2]
    assert copied[-1].state_digest == "number-1"
    assert branch.content[len(copied) + 1].state_digest == "number-2"
    assert [item.turn for item in branch.content[len(copied) :]] == [5, 5, 6, 6, 7, 7]
    assert (branch.outcome.status, branch.outcome.reward) == ("success", 1.0)
    assert parent.generation is not None
    assert branch.generation == msgspec.structs.replace(parent.generation, strategy="branch")
    verdict = await CheckOutcome().verify(ruin_task(), branch, RuinEnvironment())
    assert verdict.passed is True


@pytest.mark.parametrize(
    ("parameters", "points"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"turns": "last"}, [5]),
        ({"turns": "first_error"}, [3]),
        ({"turns": "every", "n": 2}, [1, 3, 5]),
        ({"turns": "even", "n": 1}, [3]),
        ({"turns": "even", "n": 2}, [2, 3]),
        ({"turns": "even", "n": 9}, [2, 3, 4, 5]),
    ],
)
async def test_points_of_a_run(parameters: dict[str, Any], points: list[int]) -> None:
    parent = await lost()
    strategy = Branch(k=2, depth=1, **parameters)
    assert strategy.points(parent) == points
    assert strategy.count(parent) == 2 * len(points)
    found = await explore(strategy, exploration(earlier=(parent,), actor=gambler(0.5)))
    assert [each.branch_turn for each in found] == sorted(points * 2)
    for each in found:
        assert {item.turn for item in each.content if item.context_operation is None} == {each.branch_turn}
        assert each.outcome.reason in ("depth", None)


async def test_nothing_to_branch_from() -> None:
    flawless = await only(Sample(), exploration(actor=says("right", "right")))
    assert Branch(turns="first_error").count(flawless) == 0
    assert Branch().count(msgspec.structs.replace(flawless, generation=None)) == 0
    assert Branch().count(ruin_task()) == 0


async def test_a_correction_is_followed_by_the_actor_or_by_the_record() -> None:
    """The counterfactual of turn 4: with ``right`` there, the recorded ``left`` of turn 5 does not lose."""
    parent = await lost()
    teacher = gambler(1.0)
    led = await only(Branch(turns="last"), exploration(earlier=(parent,), actor=says(*["left"] * 9), teacher=teacher))
    assert commands(led)[4:] == ["right", "left", "left"]
    assert [item.agent for item in led.content if isinstance(item, MessageAction)][4:] == ["teacher", None, None]
    assert len(teacher.asked) == 1
    *_, replayed, _ = await explore(Branch(then="recorded"), exploration(earlier=(parent,), actor=gambler(1.0)))
    assert commands(replayed) == ["*right", "*left", "*jump", "right", "*left"]
    assert (replayed.content[-1].state_digest, replayed.content[-1].context_operation) == ("number-2", None)
    assert (replayed.outcome.status, replayed.outcome.reason) == ("failure", "recording_ended")
    verdict = await CheckOutcome().verify(ruin_task(), replayed, RuinEnvironment())
    assert (verdict.status, verdict.passed) == ("scored", False)


async def test_edits_undo_a_wrong_a_missing_and_a_needless_turn() -> None:
    """From 2 to 4 by the record but for one edit; 2, 3, refused, 2 is one turn short of it in each way."""
    parent = await cut("right", "jump", "left")
    strategy = Branch(then="recorded", edits=["replace", "insert", "remove"])
    explored = exploration(earlier=(parent,), actor=gambler(0.0), teacher=gambler(1.0))
    found = await explore(strategy, explored)
    assert strategy.count(parent) == len(found) == 8
    assert [(each.branch_turn, each.extra.get("edit", "replace"), *commands(each)) for each in found] == [
        (1, "replace", "right", "*jump", "*left"),
        (1, "insert", "right", "*right"),
        (1, "remove", "*jump", "*left"),
        (2, "replace", "*right", "right"),
        (2, "insert", "*right", "right"),
        (2, "remove", "*right", "*left"),
        (3, "replace", "*right", "*jump", "right"),
        (3, "insert", "*right", "*jump", "right"),
    ]
    assert [each.outcome.status for each in found] == [
        *("failure", "success", "failure"),
        *("success", "success", "failure"),
        *("success", "success"),
    ]
    assert len({each.trajectory_id for each in found}) == 8
    assert Branch(then="recorded").planned(explored)[0] == found[0].trajectory_id, "replacing is what branches were"


async def test_an_inserted_turn_leaves_room_for_all_that_were_recorded() -> None:
    """The parent ended at its limit of turns, and the branch has one more."""
    parent = await cut("jump", "jump", "right")
    strategy = Branch(then="recorded", edits=["insert"])
    found = await explore(strategy, exploration(limited(3), earlier=(parent,), actor=gambler(1.0)))
    assert [commands(each) for each in found] == [
        ["right", "*jump", "*jump", "*right"],
        ["*jump", "right", "*jump", "*right"],
        ["*jump", "*jump", "right", "*right"],
    ]
    assert {each.outcome.status for each in found} == {"success"}


async def test_a_removed_turn_leaves_the_next_one_which_has_to_differ() -> None:
    parent = await cut("jump", "jump", "right")
    explored = exploration(earlier=(parent,), actor=gambler(0.0))
    strategy = Branch(then="recorded", edits=["remove"], distinct=True)
    first, second = strategy.planned(explored)
    with pytest.raises(PolicyError, match="equals_recorded"):
        await only_of(strategy, explored, first)
    assert commands(await only_of(strategy, explored, second)) == ["*jump", "*right"]


async def only_of(strategy: Branch, explored: Any, trajectory_id: str) -> Trajectory:
    [found] = [each async for each in strategy.explore(explored, trajectory_id)]
    return found


async def test_the_actor_goes_on_where_the_corrected_turn_had_ended_the_episode() -> None:
    parent = await lost("left", "left")
    assert parent.outcome.terminated
    teacher = gambler(1.0)
    *_, found = await explore(
        Branch(then="recorded"), exploration(earlier=(parent,), actor=gambler(1.0), teacher=teacher)
    )
    assert commands(found) == ["*left", "right", "right", "right"]
    assert (found.outcome.status, len(teacher.asked)) == ("success", 2)


async def test_a_replay_that_comes_elsewhere_is_refused() -> None:
    parent = await lost()
    with pytest.raises(EnvError, match="item 1: state number-3, recorded was number-2") as caught:
        await explore(Branch(turns="last"), exploration(ruin_task(drift=1), earlier=(parent,), actor=gambler(0.5)))
    assert caught.value.reason == "replay_diverged"


async def test_limits_count_the_whole_history_and_usage_what_is_new() -> None:
    parent = await lost("jump", "jump", "right", "jump", "jump", "left", "left", "left")

    def costly(conversation: Conversation) -> Turn:
        return Turn(actions=[MessageAction(content="jump")], usage=Usage(completion_tokens=3))

    actor = ScriptedPolicy(PolicySettings(policy="scripted"), costly)
    found = await explore(Branch(max_invalid=3, turns="every", n=5), exploration(earlier=(parent,), actor=actor))
    assert [each.branch_turn for each in found] == [1, 6]
    assert [each.outcome.reason for each in found] == ["invalid_actions"] * 2
    assert [commands(each).count("jump") for each in found] == [3, 1]
    assert [each.usage.completion_tokens for each in found] == [9, 3]
    many = await only(Sample(max_invalid=None, max_turns=7), exploration(actor=says(*["jump"] * 7)))
    [late] = await explore(Branch(max_invalid=3, turns="last"), exploration(earlier=(many,), actor=actor))
    assert (late.outcome.reason, late.usage.completion_tokens) == ("invalid_actions", 3)


async def test_a_history_as_long_as_an_episode_may_be_is_no_branch_and_the_record_has_the_turns_it_had() -> None:
    parent = await cut(*["right", "left"] * 6)
    short = exploration(limited(6), earlier=(parent,), actor=says("jump"))
    with pytest.raises(PolicyError, match="history_too_long: turn 12 is beyond max_turns 6"):
        await explore(Branch(turns="last"), short)
    [after] = await explore(Branch(then="recorded", turns="every", n=99), short)
    assert (after.branch_turn, len(commands(after)), after.outcome.reason) == (1, 12, "recording_ended")
    [cut_off] = await explore(Branch(then="recorded", turns="every", n=99, max_turns=9), short)
    assert (len(commands(cut_off)), cut_off.outcome.reason) == (9, "max_turns")
    assert after.trajectory_id == Branch(then="recorded").planned(short)[0]


async def test_a_first_turn_that_was_the_last_allowed_one_is_worth_a_failure() -> None:
    parent = await cut("jump", "jump")
    short = limited(2)
    [first] = await explore(Branch(turns="last", depth=1), exploration(short, earlier=(parent,), actor=gambler(1.0)))
    [found] = await explore(Branch(turns="after_branch"), exploration(short, earlier=(first,), actor=gambler(1.0)))
    assert (found.outcome.status, found.outcome.reason) == ("failure", "max_turns")


async def test_tokens_of_the_history_stay_and_are_extended() -> None:
    def sampled(conversation: Conversation) -> Turn:
        turn = max(item.turn for item in conversation.content) + 1
        prompt = [1, *(100 + number for number in range(1, turn) for _ in "pq")]
        tokens = token_delta(conversation.content, prompt, [100 + turn, 100 + turn], [-0.1, -0.1], "stop")
        return Turn(actions=[MessageAction(content="right" if turn < 2 else "left", tokens=tokens)])

    actor = ScriptedPolicy(PolicySettings(policy="scripted"), sampled)
    parent = await only(Sample(), exploration(actor=actor))
    found = await explore(Branch(turns="last", depth=1), exploration(earlier=(parent,), actor=actor))
    tokens = [item.tokens for item in found[0].content if isinstance(item, MessageAction)]
    assert [token.segment_start for token in tokens if isinstance(token, TurnTokens)] == [
        True,
        *[False] * (len(tokens) - 1),
    ]
    assert tokens == [item.tokens for item in parent.content if isinstance(item, MessageAction)]


async def test_ids_depend_on_what_a_branch_is() -> None:
    parent = await lost()
    explored = exploration(earlier=(parent,), actor=gambler(0.5))
    planned = Branch(k=2).planned(explored)
    assert len(set(planned)) == 10
    assert Branch(k=1).planned(explored) == planned[::2]
    assert Branch(k=2, turns="last").planned(explored) == planned[-2:]
    others = [
        Branch(k=2).planned(exploration(earlier=(parent,), actor=gambler(0.5), seed=8)),
        Branch(k=2).planned(exploration(earlier=(parent,), actor=gambler(0.5), teacher=gambler(1.0))),
        Branch(k=2, depth=1).planned(explored),
        Branch(k=2, then="recorded").planned(explored),
        Sample(k=2).planned(explored),
    ]
    assert not set(planned) & {each for other in others for each in other}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"turns": "even"}, ("rule-broken", "turns: even")),
        ({"n": 3}, ("rule-broken", "turns: even")),
        ({"then": "recorded", "depth": 1}, ("rule-broken", "depth: end")),
        ({"error": {"label": "x", "equals": "y"}}, ("rule-broken", "turns: first_error")),
    ],
)
def test_mistakes_in_parameters_are_explained(parameters: dict[str, Any], message: tuple[str, ...]) -> None:
    with user_error(*message):
        validate(Branch, parameters, "step branch")


def labelled(parent: Trajectory, name: str, values: dict[int, str]) -> Annotations:
    """Labels of the first actions of some turns."""
    steps = first_actions(parent.content)
    said = {
        (steps[turn], name): Label(parent.trajectory_id, name, value, "judge", item=steps[turn])
        for turn, value in values.items()
    }
    return Annotations(labels=said)


async def test_what_another_table_calls_the_first_error() -> None:
    parent = await lost()
    evidence = labelled(parent, "judged", {2: "good", 4: "bad", 5: "bad"})
    strategy = Branch(turns="first_error", error=Condition(label="judged", equals="bad"), k=2)
    assert strategy.points(parent, evidence) == [4]
    found = await explore(strategy, exploration(earlier=(parent,), annotations=evidence, actor=gambler(1.0)))
    assert [each.branch_turn for each in found] == [4, 4]
    assert strategy.points(parent) == []


async def test_given_actions_take_the_place_of_what_was_done() -> None:
    parent = await lost()
    evidence = labelled(parent, "fix", {2: "right", 4: "jump"})
    explored = exploration(earlier=(parent,), annotations=evidence, actor=says(*["left"] * 9))
    first, second = await explore(Branch(given="fix"), explored)
    assert [commands(first)[1:], first.outcome.status] == [["right"], "success"]
    assert [commands(second)[3:5], second.outcome.status] == [["jump", "left"], "failure"]
    assert [item.agent for item in second.content if isinstance(item, MessageAction)][3:5] == ["given", None]
    other = exploration(earlier=(parent,), annotations=labelled(parent, "fix", {2: "left", 4: "jump"}), actor=says())
    planned = Branch(given="fix").planned(explored)
    assert [a == b for a, b in zip(planned, Branch(given="fix").planned(other), strict=True)] == [False, True]


async def test_a_given_call_is_read_as_one() -> None:
    caller = ScriptedPolicy(
        PolicySettings(policy="scripted"), lambda _: Turn(actions=[ApiAction(function="left", kwargs={})])
    )
    parent = await only(Sample(scaffold="tools"), exploration(actor=caller))
    for text, status in (('{"name": "right"}', "success"), ('{"name": "left", "arguments": {}}', "failure")):
        evidence = labelled(parent, "fix", {1: text})
        actor = ScriptedPolicy(
            PolicySettings(policy="scripted"), lambda _: Turn(actions=[ApiAction(function="right", kwargs={})])
        )
        branch = await only(
            Branch(given="fix", max_turns=2), exploration(earlier=(parent,), annotations=evidence, actor=actor)
        )
        assert branch.outcome.status == status
        assert [item.tool_call_id for item in branch.content if isinstance(item, ApiAction)] == [
            "call00100",
            "call00200",
        ]
    broken = exploration(earlier=(parent,), annotations=labelled(parent, "fix", {1: "right"}), actor=caller)
    with pytest.raises(PolicyError, match="the given action 'right' is no call"):
        await explore(Branch(given="fix"), broken)
