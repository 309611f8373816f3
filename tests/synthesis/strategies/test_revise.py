"""Trying again: what the next attempt is told, when it stops, and how error turns are marked."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from agentmill.schemas.config import validate
from agentmill.schemas.records.task import Lineage
from agentmill.schemas.records.trajectory import Action, MessageAction, TextObservation, Trajectory, Usage
from agentmill.schemas.views.annotations import NOTHING
from agentmill.schemas.views.sft import Sft
from agentmill.schemas.views.tree import Reflection
from agentmill.schemas.views.unpaired import Unpaired
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.policies.policy import ContextOverflow, Conversation, PolicyError, PolicySettings, Turn
from agentmill.synthesis.policies.scripted import ScriptedPolicy
from agentmill.synthesis.strategies.revise import Revise
from agentmill.synthesis.strategies.sample import Sample
from agentmill.synthesis.verifiers.check_outcome import CheckOutcome
from tests.errors import user_error
from tests.ruin_environment import RuinEnvironment, Sayer, gambler, ruin_task
from tests.synthesis.strategies.exploring import commands, exploration, explore, only
from tests.vault_environment import Cracker, VaultEnvironment, vault_task


def sayer(*turns: str) -> Sayer:
    return Sayer(PolicySettings(policy="sayer", turns=list(turns)))


def learner(conversation: Conversation) -> Turn:
    """Loses until its own reflection is in its prompt; asked in words, it reflects."""
    said = [item.content for item in conversation.content if isinstance(item, MessageAction | TextObservation)]
    if "what went wrong" in said[-1]:
        return Turn(actions=[MessageAction(content="Always go right.")], usage=Usage(completion_tokens=10))
    knows = any("Always go right." in text for text in said)
    return Turn(actions=[MessageAction(content="right" if knows else "left")], usage=Usage(completion_tokens=1))


def scripted(script: Any) -> ScriptedPolicy:
    return ScriptedPolicy(PolicySettings(policy="scripted"), script)


def words(trajectory: Trajectory, turn: int = 0) -> str:
    return "\n".join(str(getattr(item, "content", "")) for item in trajectory.content if item.turn == turn)


async def test_the_kind_of_a_twin_is_kept() -> None:
    twin = replace(ruin_task(), lineage=Lineage(operator="contrast", notes={"contrast": "silent"}))
    found = await explore(Revise(attempts=2, feedback="env"), exploration(twin, actor=sayer("left", "left")))
    assert [each.extra["contrast"] for each in found] == ["silent", "silent"]
    assert found[1].extra["revises"] == [found[0].trajectory_id]


async def test_a_retry_succeeds_by_its_own_reflection_and_then_it_stops() -> None:
    first, second = await explore(Revise(attempts=5, feedback="self"), exploration(actor=scripted(learner)))
    assert [first.outcome.status, second.outcome.status] == ["failure", "success"]
    assert (first.parent_id, second.parent_id) == (None, first.trajectory_id)
    assert (first.attempt, second.attempt, second.branch_turn) == (0, 1, None)
    assert second.extra == {"revises": [first.trajectory_id]}
    [reflection] = [item for item in second.content if item.role == "reflector"]
    assert isinstance(reflection, MessageAction)
    assert (reflection.turn, reflection.content) == (0, "Always go right.")
    assert "Attempt 1:\nThe number is 2.\n> left\nThe number is 1.\n> left\nThe number is 0." in words(second)
    assert "This was a failure (the world ended it)." in words(second)
    assert commands(second) == ["right", "right"]
    assert second.usage.completion_tokens == 12
    assert first.generation is not None
    assert second.generation is not None
    assert second.generation.seed == first.generation.seed, "the same world again"
    assert (await CheckOutcome().verify(ruin_task(), second, RuinEnvironment())).passed is True


async def test_without_success_it_stops_after_so_many_attempts() -> None:
    found = await explore(Revise(attempts=3), exploration(actor=gambler(0.0)))
    assert [each.attempt for each in found] == [0, 1, 2]
    assert [each.parent_id for each in found] == [None, *(each.trajectory_id for each in found[:-1])]
    assert "Attempt 2:" in words(found[2])
    assert "Attempt 1:" not in words(found[2]), "an attempt is told without what it was told itself"


@pytest.mark.parametrize(("advice", "status"), [("Go right at once.", "success"), ("Good luck.", "failure")])
async def test_the_advice_of_a_critic_decides(advice: str, status: str) -> None:
    actor, critic = gambler(1.0, "Go right at once."), sayer(advice)
    failed = await only(Sample(), exploration(actor=actor))
    assert failed.outcome.status == "failure"
    again = await only(Revise(feedback="critic"), exploration(earlier=(failed,), actor=actor, critic=critic))
    assert again.outcome.status == status
    assert again.parent_id == failed.trajectory_id
    [said] = [item for item in again.content if item.role == "critic"]
    assert isinstance(said, TextObservation)
    assert (said.content, said.source, said.turn) == (advice, "agent", 0)
    asked = critic.asked[0].content
    assert ruin_task().instruction in asked[0].content  # type: ignore[union-attr]
    assert '{"role":"assistant","content":"left"}' in asked[0].content  # type: ignore[union-attr]


async def test_the_prompt_shows_the_best_attempts_and_the_best_one_last() -> None:
    lived = await explore(Sample(k=3), exploration(actor=gambler(0.0)))
    earlier = tuple(
        msgspec.structs.replace(each, outcome=msgspec.structs.replace(each.outcome, reward=reward))
        for each, reward in zip(lived, (0.5, 0.9, 0.1), strict=True)
    )
    again = await only(Revise(pool="best", pool_size=2), exploration(earlier=earlier, actor=gambler(0.0)))
    assert again.extra["revises"] == [earlier[0].trajectory_id, earlier[1].trajectory_id]
    assert words(again).index("Attempt 1:") < words(again).index("Attempt 2:")
    assert (again.parent_id, again.attempt) == (earlier[2].trajectory_id, 3)


def cracker(*guesses: str) -> Cracker:
    return Cracker(PolicySettings(policy="cracker", revision=" ".join(guesses), turns=list(guesses)))


@pytest.mark.parametrize(
    ("parameters", "solved"),
    [
        ({}, False),
        ({"pool": "best", "pool_size": 2}, False),
        ({"aim": "refine", "pool": "best", "pool_size": 2}, False),
        ({"aim": "recombine", "pool": "best", "pool_size": 2}, True),
    ],
)
async def test_two_halves_of_a_solution_are_put_together_by_recombination_alone(
    parameters: dict[str, Any], solved: bool
) -> None:
    """Two dials, each of which one of the failed attempts found; the third attempt knows what its prompt tells it."""
    task, actor = vault_task("ad"), cracker("ab", "cd", "xy")
    lived = [
        replace(run, attempt=n)
        for n, run in enumerate(
            [
                await only(Sample(), exploration(task, world=VaultEnvironment, actor=cracker(guess)))
                for guess in ("ab", "cd")
            ]
        )
    ]
    assert [(commands(run), run.outcome.status, run.outcome.reward) for run in lived] == [
        (["try 1 a", "try 2 b"], "failure", 0.5),
        (["try 1 c", "try 2 d"], "failure", 0.5),
    ]
    run = await only(Revise(**parameters), exploration(task, world=VaultEnvironment, earlier=tuple(lived), actor=actor))
    assert (run.outcome.status == "success") == solved
    assert (commands(run) == ["try 1 a", "try 2 d"]) == solved
    if solved:
        assert run.extra == {"revises": [each.trajectory_id for each in lived], "aim": "recombine"}
        assert run.parent_id == lived[1].trajectory_id
        assert (await CheckOutcome().verify(task, run, VaultEnvironment())).passed is True


@pytest.mark.parametrize(
    ("aim", "words"), [("recombine", "which part of which attempt"), ("refine", "were not needed")]
)
async def test_critics_and_the_agent_itself_are_asked_by_the_aim(aim: str, words: str) -> None:
    task, asked = vault_task("ad"), []

    def asks(conversation: Conversation) -> Turn:
        asked.append(
            "\n".join([conversation.system_prompt, *(str(getattr(i, "content", "")) for i in conversation.content)])
        )
        return Turn(actions=[MessageAction(content="try 1 a")])

    runs = await explore(Sample(k=2), exploration(task, world=VaultEnvironment, actor=cracker("ab")))
    for feedback, expected in (("critic", words.replace("part of", "parts of")), ("self", words)):
        asked.clear()
        strategy = Revise(aim=aim, feedback=feedback, pool="best", pool_size=2)  # type: ignore[arg-type]
        explored = exploration(
            task, world=VaultEnvironment, earlier=tuple(runs), actor=scripted(asks), critic=scripted(asks)
        )
        run = await only(strategy, explored)
        assert expected in asked[0]
        assert "Attempt 1:" in asked[0]
        assert "Attempt 2:" in asked[0]
        assert run.extra["aim"] == aim


async def test_recombination_needs_two_attempts_and_revises_until_there_are() -> None:
    task, actor = vault_task("ad"), cracker("ab", "cd", "xy")
    strategy = Revise(aim="recombine", pool="best", pool_size=2, attempts=5)
    runs = await explore(strategy, exploration(task, world=VaultEnvironment, actor=actor))
    assert [commands(run) for run in runs] == [["try 1 a", "try 2 b"], ["try 1 a", "try 2 d"]]
    assert [run.extra for run in runs] == [{}, {"revises": [runs[0].trajectory_id]}]


async def test_a_success_is_refined_as_often_as_asked() -> None:
    solved = await only(Sample(), exploration(actor=gambler(1.0)))
    critic = sayer("Take fewer steps.")
    strategy = Revise(aim="refine", attempts=2, feedback="critic")
    found = await explore(strategy, exploration(earlier=(solved,), actor=gambler(1.0), critic=critic))
    assert [each.outcome.status for each in found] == ["success", "success"]
    assert [each.extra["aim"] for each in found] == ["refine", "refine"]
    assert all("which of its steps were not needed" in each.system_prompt for each in critic.asked)
    assert found[1].extra["revises"] == [found[0].trajectory_id]


async def test_a_solved_task_is_not_tried_again() -> None:
    solved = await only(Sample(), exploration(actor=gambler(1.0)))
    assert await explore(Revise(attempts=2), exploration(earlier=(solved,), actor=gambler(1.0))) == []


async def test_a_step_is_revised_where_it_was_refused() -> None:
    """The corrected action follows in the same episode, from the same state; the error turn is marked."""

    def corrects(conversation: Conversation) -> Turn:
        last = conversation.content[-1]
        assert isinstance(last, TextObservation)
        told = "corrected action" in last.content
        return Turn(actions=[MessageAction(content="right" if told else "go right")])

    run = await only(Revise(level="step"), exploration(actor=scripted(corrects)))
    assert commands(run) == ["go right", "right", "go right", "right"]
    assert [item.error for item in run.content if isinstance(item, Action)] == [True, False, True, False]
    assert [item.state_digest for item in run.content if item.turn == 1] == [None, "number-2", None]
    assert run.outcome.status == "success"
    assert (await CheckOutcome().verify(ruin_task(), run, RuinEnvironment())).passed is True
    (row,) = Sft(loss="not_error").make_rows(run, NOTHING)
    assert [(message.content, message.train) for message in row.messages if message.role == "assistant"] == [
        ("go right", False),
        ("right", True),
        ("go right", False),
        ("right", True),
    ]
    rows = Reflection().make_rows(run, NOTHING)
    assert [[message.content for message in each.messages if message.train] for each in rows] == [["right"], ["right"]]


async def test_a_critic_corrects_steps_and_limits_hold() -> None:
    critic = sayer("Say right.")
    run = await only(
        Revise(level="step", feedback="critic", max_invalid=2),
        exploration(actor=scripted(lambda _: Turn(actions=[MessageAction(content="fly")])), critic=critic),
    )
    assert run.outcome.reason == "invalid_actions"
    assert [item.error for item in run.content if isinstance(item, Action)] == [True, True]
    assert [item.content for item in run.content if item.role == "critic"] == ["Say right."]  # type: ignore[union-attr]
    assert len(critic.asked) == 1, "nobody is left to correct after the last turn"


async def test_a_history_that_is_too_long_ends_the_chain_and_loses_nothing() -> None:
    def narrow(conversation: Conversation) -> Turn:
        if any("Attempt 2:" in str(getattr(item, "content", "")) for item in conversation.content):
            raise ContextOverflow("too long")
        return (
            learner(conversation) if len(conversation.content) == 3 else Turn(actions=[MessageAction(content="left")])
        )

    actor = scripted(narrow)
    found, error = await lived_until(Revise(attempts=4, feedback="self"), exploration(actor=actor))
    assert [each.attempt for each in found] == [0, 1]
    assert isinstance(error, ContextOverflow)
    with pytest.raises(ContextOverflow):
        await explore(Revise(feedback="self"), exploration(earlier=tuple(found), actor=actor))


@pytest.mark.parametrize("error", [PolicyError("script_ended", "no more"), EnvError("it rains in")])
@pytest.mark.parametrize("fails_in", [1, 2, 3])
async def test_attempts_come_as_they_are_lived_whatever_breaks_later(fails_in: int, error: Exception) -> None:
    actor = scripted(lambda conversation: failing(conversation, fails_in, error))
    found, raised = await lived_until(Revise(attempts=4), exploration(actor=actor))
    assert raised is error
    assert [each.attempt for each in found] == list(range(fails_in - 1))


async def lived_until(strategy: Revise, explored: Any) -> tuple[list[Trajectory], Exception]:
    """What a chain yields, and what ends it."""
    found: list[Trajectory] = []
    [piece] = strategy.planned(explored)
    chain = strategy.explore(explored, piece)
    while True:
        try:
            found.append(await anext(chain))
        except (PolicyError, EnvError, StopAsyncIteration) as error:
            return found, error


def failing(conversation: Conversation, attempt: int, error: Exception) -> Turn:
    """Loses, and fails in the attempt of this number, in whose prompt is the one before."""
    tried = [item for item in conversation.content if "Attempt " in str(getattr(item, "content", ""))]
    number = 1 + max((int(str(item.content).split("Attempt ")[1][0]) for item in tried), default=0)  # type: ignore[union-attr]
    if number == attempt:
        raise error
    return Turn(actions=[MessageAction(content="left")])


async def test_a_critic_that_cannot_read_it_all_ends_the_episode() -> None:
    def overwhelmed(conversation: Conversation) -> Turn:
        raise ContextOverflow("too long to correct")

    actor = scripted(lambda _: Turn(actions=[MessageAction(content="fly")]))
    run = await only(Revise(level="step", feedback="critic"), exploration(actor=actor, critic=scripted(overwhelmed)))
    assert (run.outcome.truncated, run.outcome.reason, commands(run)) == (True, "context_overflow", ["fly"])


async def test_ids_tell_critics_and_the_attempts_that_are_shown_apart() -> None:
    actor = gambler(0.0)
    critics = [ScriptedPolicy(PolicySettings(policy="scripted", name=name)) for name in ("a", "b")]
    lived = await explore(Sample(k=3), exploration(actor=actor))
    for level in ("episode", "step"):
        strategy = Revise(level=level, feedback="critic")  # type: ignore[arg-type]
        one, other = [strategy.planned(exploration(earlier=(lived[0],), actor=actor, critic=each)) for each in critics]
        assert one != other
        unasked = [Revise().planned(exploration(earlier=(lived[0],), actor=actor, critic=each)) for each in critics]
        assert unasked[0] == unasked[1]
    best = Revise(pool="best", pool_size=2)
    two, three = [best.planned(exploration(earlier=each, actor=actor)) for each in (tuple(lived[1:]), tuple(lived))]
    assert two == three, "the same two are shown"
    [other] = best.planned(exploration(earlier=(lived[0], lived[2]), actor=actor))
    assert two != [other]


async def test_a_reflection_is_learnt_only_where_it_is_asked_for() -> None:
    """It was sampled from another prompt than that of the row."""
    _, run = await explore(Revise(attempts=2, feedback="self"), exploration(actor=scripted(learner)))

    def learnt(view: Any) -> list[str]:
        return [message.content for row in view.make_rows(run, NOTHING) for message in trained(row) if message.train]

    assert learnt(Sft()) == ["right", "right"]
    assert learnt(Sft(rows="step")) == ["right", "right"]
    assert learnt(Sft(role="reflector")) == ["Always go right."]
    assert learnt(Unpaired()) == ["right", "right"]
    (row,) = Sft().make_rows(run, NOTHING)
    told = [(message.role, message.content) for message in row.messages]
    assert ("assistant", "Always go right.") in told, "it stays where the agent saw it"


def trained(row: Any) -> list[Any]:
    return list(getattr(row, "messages", None) or row.completion)


async def test_who_is_asked_for_words_and_gives_none_is_blamed() -> None:
    actor = scripted(lambda _: Turn(actions=[MessageAction(content=" ")]))
    [first], error = await lived_until(Revise(attempts=2, feedback="self"), exploration(actor=actor))
    assert getattr(error, "reason", None) == "empty_response"
    with pytest.raises(PolicyError, match="returned an empty response"):
        await explore(Revise(feedback="self"), exploration(earlier=(first,), actor=actor))


@pytest.mark.parametrize("level", ["episode", "step"])
async def test_a_silent_critic_is_replaced_by_the_environment_and_counted(level: Any) -> None:
    failed = await only(Sample(), exploration(actor=gambler(0.0)))
    actor = ScriptedPolicy(PolicySettings(policy="scripted", turns=["jump", "right", "right"]))
    earlier = (failed,) if level == "episode" else ()
    run = await only(
        Revise(level=level, feedback="critic"), exploration(earlier=earlier, actor=actor, critic=sayer(" "))
    )
    assert run.outcome.status == "success"
    assert run.extra["silent_critic"] == 1
    assert [item.source for item in run.content if item.role == "silent_critic"] == ["user"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"level": "step", "feedback": "self"}, ("rule-broken", "feedback: self", "level: episode")),
        ({"pool_size": 2}, ("rule-broken", "pool_size", "pool: best")),
        ({"aim": "recombine"}, ("rule-broken", "aim: recombine", "pool: best", "pool_size", "2")),
        ({"aim": "refine", "level": "step"}, ("rule-broken", "aim: refine", "level: episode")),
    ],
)
def test_mistakes_in_parameters_are_explained(parameters: dict[str, Any], message: tuple[str, ...]) -> None:
    with user_error(*message):
        validate(Revise, parameters, "step revise")
