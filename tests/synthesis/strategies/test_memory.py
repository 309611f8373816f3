"""Exemplars and reflections: which are recalled, that success follows from them alone, and what the row says of it."""

from __future__ import annotations

import math
from math import comb
from typing import Any

import pytest

from agentmill.schemas.config import validate
from agentmill.schemas.records.trajectory import MessageAction, TextObservation, Trajectory, Usage
from agentmill.schemas.views.annotations import NOTHING
from agentmill.schemas.views.sft import Sft
from agentmill.synthesis.policies.policy import Conversation, PolicySettings, Turn
from agentmill.synthesis.policies.scripted import ScriptedPolicy
from agentmill.synthesis.rollouts.retrieval import instruction_of, retold, words_of
from agentmill.synthesis.strategies.memory import Memory
from agentmill.synthesis.strategies.revise import Revise
from agentmill.synthesis.strategies.sample import Sample
from agentmill.synthesis.verifiers.check_outcome import CheckOutcome
from tests.builders import agent_message, instruction, seen, trajectory
from tests.errors import user_error
from tests.ruin_environment import RuinEnvironment, gambler, ruin_task
from tests.synthesis.rollouts.similarity import similarity
from tests.synthesis.strategies.exploring import exploration, explore, library, only

HINT = "go right at once"


def earlier(name: str, words: str = "Do it.", *, hint: bool = False, task_id: str | None = None) -> Trajectory:
    """A run that holds the hint or does not."""
    done = HINT if hint else "nothing of use"
    content = [instruction(words), seen("You are at home.", state_digest="home"), agent_message(done), seen("Done.", 1)]
    return trajectory(name, task_id=task_id or f"task-{name}", content=content)


def memory_of(run: Trajectory) -> str:
    """What is recalled in a run."""
    return "\n".join(str(getattr(item, "content", "")) for item in run.content if item.role == "memory")


@pytest.mark.parametrize(("right", "shots"), [(3, 2), (1, 4), (5, 1)])
async def test_random_exemplars_help_as_often_as_they_must(right: int, shots: int) -> None:
    """Of 10 runs some hold the hint, without which the agent loses: 1 - C(10-r, s) / C(10, s), within 99.9 %."""
    runs = [earlier(f"run{number}", hint=number < right) for number in range(10)]
    helpful = {run.trajectory_id for run in runs[:right]}
    strategy = Memory(k=150, shots=shots, by="random")
    lived = await explore(strategy, exploration(library=library(*runs), actor=gambler(1.0, HINT)))
    for each in lived:
        assert len(set(each.extra["recalls"])) == shots
        assert (each.outcome.status == "success") == bool(helpful & set(each.extra["recalls"]))
        assert (HINT in memory_of(each)) == (each.outcome.status == "success")
    value, won = 1 - comb(10 - right, shots) / comb(10, shots), sum(each.outcome.status == "success" for each in lived)
    assert abs(won / 150 - value) < 3.29 * math.sqrt(value * (1 - value) / 150)


async def test_without_a_library_it_is_an_episode_without_memory() -> None:
    run = await only(Memory(), exploration(actor=gambler(1.0, HINT)))
    assert (run.outcome.status, run.extra, len(run.content)) == ("failure", {"recalls": []}, 2 + 2 * 2)


async def test_the_most_similar_are_recalled_and_the_best_stands_last() -> None:
    """The task says: Bring the number to 4, never to 0. By hand: 6/8, 2/11 and 0 of the words."""
    near = earlier("near", "Bring the number to 5, never to 0.")
    middle = earlier("middle", "Bring me the ball from the box.")
    far = earlier("far", "Sing a song.")
    own = earlier("own", ruin_task().instruction, task_id="ruin-2-4")
    words = words_of(ruin_task().instruction)
    assert [round(similarity(words, words_of(instruction_of(run))), 3) for run in (near, middle, far, own)] == [
        round(6 / 8, 3),
        round(2 / 11, 3),
        0.0,
        1.0,
    ]
    shelf = library(far, near, own, middle)
    explored = exploration(library=shelf, actor=gambler(0.0))
    run = await only(Memory(shots=2), explored)
    assert run.extra["recalls"] == ["near", "middle"]
    text = memory_of(run)
    assert text.index("Bring me the ball") < text.index("Bring the number to 5")
    assert (await only(Memory(shots=2, held_out=False), explored)).extra["recalls"] == ["own", "near"]
    assert (await only(Memory(shots=9), explored)).extra["recalls"] == ["near", "middle", "far"]


async def test_no_two_exemplars_are_of_the_same_task() -> None:
    runs = [earlier(f"run{number}", task_id="one" if number < 8 else "two") for number in range(10)]
    for by in ("similar", "random"):
        lived = await explore(Memory(k=20, shots=3, by=by), exploration(library=library(*runs), actor=gambler(0.0)))  # type: ignore[arg-type]
        for run in lived:
            assert sorted("two" if each in ("run8", "run9") else "one" for each in run.extra["recalls"]) == [
                "one",
                "two",
            ]


async def test_what_is_recalled_stands_between_the_task_and_the_world() -> None:
    run = await only(Memory(shots=1), exploration(library=library(earlier("one", hint=True)), actor=gambler(1.0)))
    task, recalled, first, *_ = run.content
    assert isinstance(recalled, TextObservation)
    assert (task.content, first.state_digest) == (ruin_task().instruction, "number-2")  # type: ignore[union-attr]
    assert (recalled.turn, recalled.role, recalled.source) == (0, "memory", "environment")
    assert f"Do it.\nYou are at home.\n> {HINT}\nDone." in recalled.content
    assert run.generation is not None
    assert run.generation.strategy == "memory"
    (row,) = Sft().make_rows(run, NOTHING)
    assert HINT in str(row.messages[1].content), "rows tell the step with what it saw"
    assert [message.content for message in row.messages if message.train] == ["right", "right"]
    assert (await CheckOutcome().verify(ruin_task(), run, RuinEnvironment())).passed is True


async def test_a_run_is_retold_without_what_it_was_told_itself() -> None:
    run = await only(Memory(), exploration(library=library(earlier("one", hint=True)), actor=gambler(1.0)))
    assert (
        retold(run)
        == f"{ruin_task().instruction}\nThe number is 2.\n> right\nThe number is 3.\n> right\nThe number is 4."
    )
    foreign = trajectory(
        "foreign", generation=None, content=[instruction("Go."), seen("Here."), agent_message("go"), seen("There.", 1)]
    )
    assert retold(foreign) == "Go.\nHere.\n> go\nThere."


def learner(conversation: Conversation) -> Turn:
    """Loses until it is told to go right; its reflection says so."""
    told = [str(getattr(item, "content", "")) for item in conversation.content]
    if "what went wrong" in told[-1]:
        return Turn(actions=[MessageAction(content="Always go right.")], usage=Usage(completion_tokens=10))
    return Turn(
        actions=[MessageAction(content="right" if any("Always go right." in each for each in told) else "left")]
    )


async def test_reflections_of_earlier_attempts_help_with_the_same_task_and_others() -> None:
    actor = ScriptedPolicy(PolicySettings(policy="scripted"), learner)
    lost, won = await explore(Revise(attempts=2, feedback="self"), exploration(actor=actor))
    strategy = Memory(kind="reflections", held_out=False)
    assert [strategy.serves(run) for run in (lost, won)] == [False, True]
    shelf = library(*filter(strategy.serves, (lost, won)))
    again = await only(strategy, exploration(library=shelf, actor=actor))
    assert (again.outcome.status, again.extra) == ("success", {"recalls": [won.trajectory_id]})
    assert f"Task: {ruin_task().instruction}\nAlways go right." in memory_of(again)
    assert "> right" not in memory_of(again), "what was learnt, not what was done"
    other = exploration(ruin_task(3, 5), library=shelf, actor=actor)
    assert (await only(Memory(kind="reflections"), other)).outcome.status == "success"
    alone = await only(Memory(kind="reflections"), exploration(library=shelf, actor=actor))
    assert (alone.outcome.status, alone.extra["recalls"]) == ("failure", []), "held out from its own task"


async def test_ids_depend_on_what_is_recalled() -> None:
    one, other = library(earlier("one")), library(earlier("two"))
    planned = [Memory(k=2).planned(exploration(library=each, actor=gambler(0.0))) for each in (one, other, one)]
    assert planned[0] == planned[2] != planned[1]
    assert Memory(k=1).planned(exploration(library=one, actor=gambler(0.0))) == planned[0][:1]
    unlike = Sample().planned(exploration(actor=gambler(0.0)))
    assert set(unlike).isdisjoint(Memory().planned(exploration(actor=gambler(0.0))))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"kind": "exemplar"}, ("invalid-value", "exemplars", "reflections")),
        ({"shots": 0}, ("invalid-value", "shots")),
        ({"shot": 1}, ("unknown-key", "shots")),
    ],
)
def test_mistakes_in_parameters_are_explained(parameters: dict[str, Any], message: tuple[str, ...]) -> None:
    with user_error(*message):
        validate(Memory, parameters, "step memory")
