"""Episodes as ``sample`` lives them: what is recorded, what ends them, who is blamed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agentmill.schemas.config import validate
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import ApiAction, MessageAction, TextObservation, Trajectory, Usage
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.policies import make_policy
from agentmill.synthesis.policies.policy import ContextOverflow, Conversation, Policy, PolicyError, PolicySettings, Turn
from agentmill.synthesis.policies.scripted import ScriptedPolicy
from agentmill.synthesis.rollouts.strategy import Exploration
from agentmill.synthesis.strategies import STRATEGIES
from agentmill.synthesis.strategies.sample import Sample
from tests.counter_environment import SPEC, CounterEnvironment, counting_task
from tests.errors import user_error


def scripted(*turns: str, script: Callable[[Conversation], Turn] | None = None) -> Policy:
    return ScriptedPolicy(PolicySettings(policy="scripted", turns=list(turns)), script)


def exploration(policy: Policy, task: Task | None = None, seed: int = 7, **given: Any) -> Exploration:
    return Exploration(
        task=task or counting_task(),
        spec=SPEC,
        make_environment=CounterEnvironment,
        policies={"actor": policy},
        seed=seed,
        **given,
    )


async def explore(strategy: Sample, explored: Exploration) -> list[Trajectory]:
    pieces = strategy.planned(explored)
    return [trajectory for piece in pieces async for trajectory in strategy.explore(explored, piece)]


async def lived(policy: Policy, task: Task | None = None, **parameters: object) -> Trajectory:
    [trajectory] = await explore(Sample(**parameters), exploration(policy, task))
    return trajectory


async def test_a_text_episode_is_recorded_item_by_item() -> None:
    trajectory = await lived(scripted("add 2", "jump", "add 1"))
    instruction, start, *rest = trajectory.content
    assert instruction == TextObservation(content="Count to 3.", source="user")
    assert start == TextObservation(content="The number is 0.", source="environment", state_digest="number-0")
    assert rest == [
        MessageAction(content="add 2", turn=1),
        TextObservation(content="The number is 2.", source="environment", turn=1, reward=0.0, state_digest="number-2"),
        MessageAction(content="jump", turn=2),
        TextObservation(
            content="Only add 1 and add 2 are possible.",
            source="environment",
            turn=2,
            reward=0.0,
            error=True,
            state_digest="number-2",
        ),
        MessageAction(content="add 1", turn=3),
        TextObservation(content="The number is 3.", source="environment", turn=3, reward=1.0, state_digest="number-3"),
    ]
    outcome = trajectory.outcome
    assert (outcome.status, outcome.reward, outcome.terminated, outcome.truncated, outcome.reason) == (
        "success",
        1.0,
        True,
        False,
        None,
    )
    assert trajectory.tools == []
    assert trajectory.system_prompt == f"{CounterEnvironment().rules}\nReply with one command and nothing else."
    assert (trajectory.task_id, trajectory.environment_id, trajectory.split) == ("count-3", "counter", "train")


@pytest.mark.parametrize(
    ("turns", "parameters", "reason", "status"),
    [
        (["add 2", "add 2"], {}, None, "failure"),
        (["add 1", "add 1"], {"max_turns": 2}, "max_turns", "failure"),
        (["a", "b", "c"], {"max_invalid": 3}, "invalid_actions", "failure"),
        (["x", "x", "add 2", "x", "x", "add 1"], {"max_invalid": 3}, None, "success"),
        (["x"] * 6, {"max_invalid": None}, "max_turns", "failure"),
    ],
)
async def test_what_ends_an_episode(turns: list[str], parameters: dict[str, int], reason: str, status: str) -> None:
    outcome = (await lived(scripted(*turns), **parameters)).outcome
    assert (outcome.reason, outcome.status) == (reason, status)
    assert outcome.truncated == (reason is not None)
    assert outcome.terminated == (reason is None)


async def test_context_overflow_truncates_and_keeps_what_was_lived() -> None:
    def full_at_second(conversation: Conversation) -> Turn:
        if len(conversation.content) > 2:
            raise ContextOverflow("128 tokens")
        return Turn(actions=[MessageAction(content="add 1")])

    trajectory = await lived(scripted(script=full_at_second))
    assert (trajectory.outcome.truncated, trajectory.outcome.reason) == (True, "context_overflow")
    assert len(trajectory.content) == 4


async def test_an_episode_that_takes_too_long_is_truncated() -> None:
    class Slow(ScriptedPolicy):
        async def act(self, conversation: Conversation) -> Turn:
            await asyncio.sleep(60)
            raise AssertionError

    trajectory = await lived(Slow(PolicySettings(policy="scripted")), episode_timeout_s=0.05)
    assert (trajectory.outcome.truncated, trajectory.outcome.reason) == (True, "episode_timeout")


async def test_the_expert_demonstrates_in_commands_and_in_calls() -> None:
    expert = make_policy(PolicySettings(policy="expert"))
    in_text = await lived(expert, counting_task(5))
    assert [item.content for item in in_text.content if isinstance(item, MessageAction)] == ["add 2", "add 2", "add 1"]
    in_calls = await lived(expert, counting_task(5), scaffold="tools")
    called = [item for item in in_calls.content if isinstance(item, ApiAction)]
    assert [call.kwargs for call in called] == [{"amount": 2}, {"amount": 2}, {"amount": 1}]
    assert [call.tool_call_id for call in called] == ["call00100", "call00200", "call00300"]
    assert [tool.name for tool in in_calls.tools] == ["add"]
    assert in_text.outcome.status == in_calls.outcome.status == "success"
    assert in_text.trajectory_id != in_calls.trajectory_id
    assert in_text.usage == Usage()


async def test_parallel_calls_share_a_turn_and_bad_arguments_are_answered() -> None:
    def both(conversation: Conversation) -> Turn:
        bad = ApiAction(function="add", kwargs={}, raw_arguments="[1")
        return Turn(actions=[bad, ApiAction(function="add", kwargs={"amount": 2}), ApiAction(function="x", kwargs={})])

    trajectory = await lived(scripted(script=both), counting_task(2), scaffold="tools")
    actions, observations = trajectory.content[2:5], trajectory.content[5:]
    assert [item.turn for item in [*actions, *observations]] == [1] * 5
    assert [item.tool_call_id for item in observations] == ["call00100", "call00101"]
    assert [item.error for item in observations] == [True, False]
    assert "must be a JSON object, but were: [1" in observations[0].content
    assert trajectory.outcome.status == "success"


async def test_constrained_turns_are_given_the_admissible_commands() -> None:
    seen = []

    def last_of(conversation: Conversation) -> Turn:
        seen.append(conversation.choices)
        assert conversation.choices is not None
        return Turn(actions=[MessageAction(content=conversation.choices[-1])])

    trajectory = await lived(scripted(script=last_of), constrain="admissible")
    assert seen == [["add 1", "add 2"], ["add 1"]]
    assert trajectory.outcome.status == "success"


async def test_usage_is_summed_and_what_nobody_reports_stays_unknown() -> None:
    def counted(conversation: Conversation) -> Turn:
        usage = Usage(prompt_tokens=10, completion_tokens=2, seconds=0.5)
        return Turn(actions=[MessageAction(content="add 1")], usage=usage)

    trajectory = await lived(scripted(script=counted))
    assert trajectory.usage == Usage(prompt_tokens=30, completion_tokens=6, seconds=1.5)


async def test_ids_are_known_before_and_do_not_depend_on_k() -> None:
    explored = exploration(scripted("add 2", "add 1"))
    planned = Sample(k=3).planned(explored)
    assert len(set(planned)) == 3
    assert Sample(k=1).planned(explored) == planned[:1]
    trajectories = await explore(Sample(k=3), explored)
    assert [trajectory.trajectory_id for trajectory in trajectories] == planned
    assert [trajectory.attempt for trajectory in trajectories] == [0, 1, 2]
    assert Sample(k=3).count(explored.task) == 3


@pytest.mark.parametrize(
    "other",
    [
        (Sample(), exploration(scripted(), seed=8)),
        (Sample(), exploration(scripted(), round=1)),
        (Sample(), exploration(scripted(), counting_task(4))),
        (Sample(max_turns=2), exploration(scripted())),
        (Sample(constrain="admissible"), exploration(scripted())),
        (Sample(), exploration(scripted(), entries={"actor": "other"})),
        (Sample(), exploration(make_policy(PolicySettings(policy="scripted", revision="2")))),
        (Sample(), exploration(make_policy(PolicySettings(policy="scripted", name="other")))),
        (Sample(), exploration(make_policy(PolicySettings(policy="scripted", sampling={"temperature": 0.5})))),
    ],
)
def test_whatever_changes_an_episode_changes_its_id(other: tuple[Sample, Exploration]) -> None:
    strategy, explored = other
    assert strategy.planned(explored) != Sample().planned(exploration(scripted()))


async def test_two_policies_meet_the_same_seeds() -> None:
    one = await explore(Sample(k=2), exploration(scripted("add 2", "add 1")))
    other = await explore(Sample(k=2), exploration(make_policy(PolicySettings(policy="expert"))))
    seeds = [trajectory.generation.seed for trajectory in one if trajectory.generation]
    assert seeds == [trajectory.generation.seed for trajectory in other if trajectory.generation]
    assert len(set(seeds)) == 2


@pytest.mark.parametrize(
    ("policy", "task", "error", "message"),
    [
        (scripted("add 1"), counting_task(), PolicyError, "script_ended"),
        (scripted(script=lambda _: 1 // 0), counting_task(), PolicyError, "broken: ZeroDivisionError"),  # type: ignore[arg-type]
        (scripted("add 1"), counting_task(break_at=1), EnvError, "RuntimeError: the gears are stuck"),
        (scripted("add 1"), counting_task(-1), EnvError, "the goal is below the start"),
    ],
)
async def test_who_breaks_is_named(policy: Policy, task: Task, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        await lived(policy, task)


async def test_the_environment_is_closed_whatever_happens() -> None:
    worlds: list[CounterEnvironment] = []

    def make() -> CounterEnvironment:
        worlds.append(CounterEnvironment())
        return worlds[-1]

    policies = {"actor": scripted("add 1")}
    explored = Exploration(task=counting_task(), spec=SPEC, make_environment=make, policies=policies, seed=0)
    with pytest.raises(PolicyError):
        await explore(Sample(), explored)
    assert [world.closed for world in worlds] == [1]


async def test_without_tools_an_agent_sees_the_instruction_alone_and_answers_once() -> None:
    asked = []

    def answering(conversation: Conversation) -> Turn:
        asked.append(conversation)
        return Turn(actions=[MessageAction(content="add 2")], usage=Usage(prompt_tokens=10, completion_tokens=2))

    trajectory = await lived(scripted(script=answering), counting_task(2), tools="none")
    [conversation] = asked
    assert (conversation.tools, conversation.choices) == ([], None)
    assert "add" not in conversation.system_prompt
    assert conversation.content == (TextObservation(content="Count to 2.", source="user"),)
    assert trajectory.content == [*conversation.content, MessageAction(content="add 2", turn=1)]
    assert trajectory.system_prompt == conversation.system_prompt
    outcome = trajectory.outcome
    assert (outcome.status, outcome.reward, outcome.terminated, outcome.reason) == ("unknown", None, True, None)
    assert trajectory.generation is not None
    assert trajectory.generation.scaffold == "closed_book"
    assert trajectory.usage == Usage(prompt_tokens=10, completion_tokens=2)


async def test_without_tools_the_environment_is_neither_reset_nor_acted_upon_and_is_closed() -> None:
    worlds: list[CounterEnvironment] = []

    def make() -> CounterEnvironment:
        worlds.append(CounterEnvironment())
        return worlds[-1]

    call = Turn(actions=[ApiAction(function="add", kwargs={"amount": 2})])
    policies = {"actor": scripted(script=lambda _: call)}
    # A goal below the start breaks a reset.
    explored = Exploration(task=counting_task(-1), spec=SPEC, make_environment=make, policies=policies, seed=0)
    [trajectory] = await explore(Sample(tools="none"), explored)
    assert [(world.steps, world.closed) for world in worlds] == [(0, 1)]
    assert len(trajectory.content) == 2


async def test_without_tools_a_full_context_truncates() -> None:
    def full(conversation: Conversation) -> Turn:
        raise ContextOverflow("128 tokens")

    trajectory = await lived(scripted(script=full), tools="none")
    assert (trajectory.outcome.status, trajectory.outcome.reason) == ("unknown", "context_overflow")


def test_attempts_without_tools_have_ids_of_their_own() -> None:
    explored = exploration(scripted())
    without = Sample(k=2, tools="none").planned(explored)
    assert len({*without, *Sample(k=2).planned(explored)}) == 4
    assert Sample(k=1, tools="none").planned(explored) == without[:1]


@pytest.mark.parametrize(
    "given",
    [{"scaffold": "tools"}, {"max_turns": 3}, {"max_invalid": 1}, {"context": "sliding_window"}],
)
def test_without_tools_what_governs_actions_is_refused(given: dict[str, object]) -> None:
    with user_error("rule-broken", f"`{next(iter(given))}`", "tools: none"):
        validate(Sample, {"tools": "none", **given}, "step sample")


def test_mistakes_in_parameters_are_explained() -> None:
    with user_error("unknown-key", "'max_turn'", "max_turns"):
        validate(STRATEGIES.load("sample"), {"max_turn": 3}, "step sample")
    with user_error("rule-broken", "scaffold: text"):
        validate(Sample, {"constrain": "admissible", "scaffold": "tools"}, "step sample")
