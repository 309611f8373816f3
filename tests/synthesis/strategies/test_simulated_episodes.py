"""Episodes in an environment that a model plays: equal to the real ones where the model is right, and checked."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from typing import Any

import msgspec
import pytest

from agentmill.schemas.config import validate
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import (
    Action,
    ApiAction,
    MessageAction,
    TextObservation,
    Trajectory,
    Usage,
)
from agentmill.schemas.views.annotations import NOTHING
from agentmill.schemas.views.sft import Sft
from agentmill.schemas.views.view import Unused
from agentmill.schemas.views.world_model import WorldModel
from agentmill.synthesis.environments import DESCRIBED, ENVIRONMENTS, make
from agentmill.synthesis.environments.environment import EnvError, Transition
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.policies import make_policy
from agentmill.synthesis.policies.policy import Conversation, Policy, PolicyError, PolicySettings, Turn
from agentmill.synthesis.policies.scripted import ScriptedPolicy
from agentmill.synthesis.rollouts.strategy import Exploration
from agentmill.synthesis.strategies.sample import Sample
from agentmill.synthesis.strategies.simulated_episodes import Simulate
from agentmill.synthesis.verifiers.check_outcome import CheckOutcome
from tests.builders import agent_message, instruction, seen, tool, trajectory
from tests.errors import user_error
from tests.ruin_environment import RuinEnvironment, Sayer, ruin_task
from tests.synthesis.strategies.exploring import exploration, explore, library, only

SHOP = EnvironmentSpec(
    environment_id="shop",
    family=DESCRIBED,
    name="shop",
    source="You keep a shop.",
    tools=[tool("stock"), tool("sell", it={"type": "string"})],
    parameters={"results": {"stock": {"type": "array", "items": {"type": "string"}}}},
)
SALE = Task(task_id="sale", environment_id="shop", instruction="Sell the hat.", max_turns=4)


def expert(**sampling: Any) -> Policy:
    return make_policy(PolicySettings(policy="expert", sampling=sampling))


def sayer(*answers: str) -> Sayer:
    return Sayer(PolicySettings(policy="sayer", turns=list(answers)))


def answer(observation: str = "Well.", *, error: bool = False, changes: bool = False, end: str = "no") -> str:
    return json.dumps({"observation": observation, "error": error, "changes": changes, "end": end})


def scripted(*turns: Any) -> ScriptedPolicy:
    """An agent that takes these turns: a text, a call, or a list of calls."""

    def script(conversation: Conversation) -> Turn:
        taken = {item.turn for item in conversation.content if isinstance(item, Action)}
        turn = turns[len(taken)]
        actions = [MessageAction(content=turn)] if isinstance(turn, str) else turn if isinstance(turn, list) else [turn]
        return Turn(actions=actions, usage=Usage(prompt_tokens=1))

    return ScriptedPolicy(PolicySettings(policy="scripted"), script)


def call(name: str, **arguments: Any) -> ApiAction:
    return ApiAction(function=name, kwargs=arguments)


def in_shop(actor: Any, simulator: Any, task: Task = SALE, spec: EnvironmentSpec = SHOP) -> Exploration:
    return Exploration(
        task=task,
        spec=spec,
        make_environment=partial(make, spec),
        policies={"actor": actor, "simulator": simulator},
        seed=7,
    )


async def sold(actor: Any, simulator: Any, spec: EnvironmentSpec = SHOP, **parameters: Any) -> Trajectory:
    """The one episode in the shop."""
    return await only(Simulate(scaffold="tools", **parameters), in_shop(actor, simulator, spec=spec))


def observations(run: Trajectory) -> list[TextObservation]:
    return [item for item in run.content if isinstance(item, TextObservation) and item.turn > 0]


def told(run: Trajectory) -> list[str]:
    return [each.content for each in observations(run)]


def comparable(run: Trajectory) -> list[Any]:
    """What was done and seen, without what is marked or known of the real environment alone.

    That it is the user who answers ``ask_user`` is known to the environment alone, too.
    """
    unmarked = {"synthetic": False, "reward": None, "state_digest": None}
    plain = [msgspec.structs.replace(item, **unmarked) for item in run.content]
    return [
        msgspec.structs.replace(item, source="environment") if isinstance(item, TextObservation) and item.turn else item
        for item in plain
    ]


class Replaying:
    """Steps the real environment by the texts of actions that it is given, and writes down its answers."""

    def __init__(self, environment: Any, task: Task, seed: int) -> None:
        self._environment = environment
        self._environment.reset(task, seed)
        self.asked: list[Conversation] = []

    def __call__(self, conversation: Conversation) -> Turn:
        self.asked.append(conversation)
        before = self._environment.state_digest()
        taken: Transition = self._environment.step(MessageAction(content=str(conversation.content[-1].content)))  # type: ignore[union-attr]
        end = "no" if not taken.terminated else "success" if self._environment.check().passed else "failure"
        changes = self._environment.state_digest() != before
        text = answer(str(getattr(taken.observation, "content", "")), error=taken.error, changes=changes, end=end)
        return Turn(actions=[MessageAction(content=text)], usage=Usage(prompt_tokens=10))


async def test_a_simulator_that_replays_the_real_environment_gives_the_trajectory_of_the_real_one() -> None:
    spec, task = ENVIRONMENTS.load("pddl").examples()[0]
    actor = expert(mistakes=0.3)
    made = in_shop(actor, None, task, spec)
    for each in Sample(k=3).planned(made):
        [real] = [run async for run in Sample(k=3).explore(made, each)]
        assert isinstance(real, Trajectory)
        assert real.generation is not None
        replaying = Replaying(make(spec), task, real.generation.seed)
        given = in_shop(actor, ScriptedPolicy(PolicySettings(policy="scripted"), replaying), task, spec)
        strategy = Simulate(k=3)
        [run] = [run async for run in strategy.explore(given, strategy.planned(given)[real.attempt])]
        assert comparable(run) == comparable(real)
        assert run.outcome.truncated == real.outcome.truncated
        assert run.outcome.terminated == real.outcome.terminated
        assert run.extra["claim"]["status"] == (real.outcome.status if real.outcome.terminated else "unfinished")
        assert len(replaying.asked) == run.extra["answers"]["asked"]


@pytest.mark.parametrize("scaffold", ["text", "tools"])
@pytest.mark.parametrize("family", sorted(ENVIRONMENTS))
async def test_an_expert_plays_the_environment_as_it_is(family: str, scaffold: Any) -> None:
    """Without a model on either side the episodes of every family are those of the real environment, but marked."""
    for spec, task in [each for each in ENVIRONMENTS.load(family).examples() if each[0].name != "blackjack"]:
        made = in_shop(expert(), expert(), task, spec)
        real, run = await only(Sample(scaffold=scaffold), made), await only(Simulate(scaffold=scaffold), made)
        assert comparable(run) == comparable(real)
        assert (run.system_prompt, run.tools) == (real.system_prompt, real.tools)
        assert run.extra["claim"]["status"] == real.outcome.status
        assert (run.outcome.status, run.outcome.reward, run.outcome.terminated) == ("unknown", None, True)
        assert [item.synthetic for item in run.content] == [
            not isinstance(item, Action) and item.turn > 0 for item in run.content
        ]
        assert all(item.reward is None for item in run.content)
        verdict = await CheckOutcome().verify(task, run, make(spec))
        assert (verdict.status, verdict.reason) == ("unscored", "no_real_state")


async def test_a_described_environment_is_played_by_the_model_alone() -> None:
    actor = scripted(call("stock"), call("sell", it="hat"), "It is sold.")
    simulator = sayer(answer('["hat"]'), answer("Paid.", changes=True), answer("Thank you.", end="success"))
    run = await sold(actor, simulator)
    assert [item.content for item in run.content if isinstance(item, TextObservation)] == [
        "Sell the hat.",
        '["hat"]',
        "Paid.",
        "Thank you.",
    ]
    assert [each.source for each in observations(run)] == ["environment", "environment", "user"]
    assert run.extra == {
        "simulator": "sayer",
        "claim": {"status": "success"},
        "answers": {"asked": 3},
    }
    assert run.generation is not None
    assert run.generation.strategy == "simulate"
    first, *_, last = simulator.asked
    text = str(first.content[0].content)  # type: ignore[union-attr]
    assert "You keep a shop." in text
    assert '"name":"sell"' in text
    assert '{"stock":{"type":"array","items":{"type":"string"}}}' in text
    assert "The task: Sell the hat." in text
    assert [str(item.content) for item in last.content][1:] == [  # type: ignore[union-attr]
        '{"name": "stock", "arguments": {}}',
        '{"observation":"[\\"hat\\"]","error":false,"changes":false,"end":"no"}',
        '{"name": "sell", "arguments": {"it": "hat"}}',
        '{"observation":"Paid.","error":false,"changes":true,"end":"no"}',
        "It is sold.",
    ]
    assert first.answer_schema is not None
    assert first.tools == []
    verdict = await CheckOutcome().verify(SALE, run, None)
    assert (verdict.status, verdict.reason) == ("unscored", "no_real_state")
    with pytest.raises(Unused):
        WorldModel().make_rows(run, NOTHING)
    (row,) = Sft().make_rows(run, NOTHING)
    assert sum(message.train for message in row.messages) == 3


async def test_calls_that_do_not_fit_are_answered_by_rule_and_reach_no_model() -> None:
    broken = ApiAction(function="sell", kwargs={}, raw_arguments="{it")
    actor = scripted(call("fly"), call("sell", it=3), broken, call("sell", it="hat"))
    simulator = sayer(answer("Paid.", changes=True, end="success"))
    run = await sold(actor, simulator)
    assert [each.error for each in observations(run)] == [True, True, True, False]
    assert told(run)[0] == "There is no tool 'fly'; there are stock, sell."
    assert told(run)[1] == "sell does not take these arguments: 3 is not of type 'string'"
    assert told(run)[2].startswith("The arguments of sell must be a JSON object")
    assert run.extra["answers"] == {"asked": 1, "invalid": 3}
    assert len(simulator.asked) == 1
    assert all(each.synthetic for each in observations(run))


async def test_a_repeated_call_has_the_same_answer_until_something_changes() -> None:
    actor = scripted(call("stock"), call("stock"), call("sell", it="hat"), call("stock"), call("stock"))
    simulator = sayer(answer('["hat"]'), answer("Paid.", changes=True), answer("[]"))
    run = await sold(actor, simulator, max_turns=5)
    assert told(run) == ['["hat"]', '["hat"]', "Paid.", "[]", "[]"]
    assert run.extra["answers"] == {"asked": 3, "repeated": 2}
    states = [each.state_digest for each in observations(run)]
    assert states[0] == states[1] != states[2] == states[3] == states[4]


@pytest.mark.parametrize(
    ("faulty", "reason"),
    [
        ("", "empty"),
        (answer(" "), "empty"),
        (answer("x" * 41), "too_long"),
        ("I do not know.", "malformed"),
        ('{"observation": "Well."}', "malformed"),
        (answer(error=True, changes=True), "contradiction"),
        (answer(error=True, end="failure"), "contradiction"),
        (answer("a hat"), "no_json"),
        (answer('{"hat": 1}'), "other_schema"),
    ],
)
async def test_a_faulty_answer_is_asked_for_again_and_then_ends_the_episode(faulty: str, reason: str) -> None:
    actor = scripted(call("stock"), "Bye.")
    simulator = sayer(faulty, faulty, answer('["hat"]'), answer("Bye.", end="failure"))
    run = await sold(actor, simulator, max_chars=40)
    assert told(run) == ['["hat"]', "Bye."]
    assert run.extra["answers"] == {"asked": 2, reason: 2}
    assert len({each.seed for each in simulator.asked}) == 4
    assert "cannot be used" in str(simulator.asked[1].content[-1].content)  # type: ignore[union-attr]
    assert len(simulator.asked[3].content) == 4, "what was faulty is not kept"
    with pytest.raises(GenerationError) as given_up:
        await sold(actor, sayer(faulty, faulty, answer('["hat"]')), max_chars=40, retries=1)
    assert given_up.value.reason == f"simulator_{reason}"
    assert [each["reason"] for each in given_up.value.history] == [reason, reason]


async def test_half_characters_of_the_agent_are_sent_as_question_marks() -> None:
    simulator = sayer(answer("Paid.", changes=True, end="success"))
    await sold(scripted(call("sell", it="h\ud800t")), simulator)
    assert simulator.asked[0].content[-1].content == '{"name": "sell", "arguments": {"it": "h?t"}}'  # type: ignore[union-attr]
    broken = sayer('{"observation": "\\ud800", "error": false, "changes": false, "end": "no"}')
    with pytest.raises(GenerationError, match="no JSON object"):
        await sold(scripted("Hello."), broken, retries=0)


async def test_an_answer_that_is_cut_off_is_too_long() -> None:
    cut = Turn(actions=[MessageAction(content=answer())], finish_reason="length")
    with pytest.raises(GenerationError) as given_up:
        await sold(scripted("Hello."), ScriptedPolicy(PolicySettings(policy="scripted"), lambda _: cut), retries=0)
    assert given_up.value.reason == "simulator_too_long"


async def test_results_of_tools_without_a_schema_are_json_where_that_is_asked_for() -> None:
    actor, texts = scripted(call("sell", it="hat"), "Bye."), [answer("Paid."), answer("Bye.", end="success")]
    assert told(await sold(actor, sayer(*texts)))[0] == "Paid."
    with pytest.raises(GenerationError) as given_up:
        await sold(actor, sayer(*texts), retries=0, results="json")
    assert given_up.value.reason == "simulator_no_json"
    refused = [answer("Sold out.", error=True), answer("Bye.", end="success")]
    assert told(await sold(actor, sayer(*refused), results="json"))[0] == "Sold out.", "a refusal needs no JSON"
    assert told(await sold(actor, sayer(answer("All sold.", end="success")), results="json")) == ["All sold."]


async def test_the_simulator_answers_at_most_as_many_actions_as_there_are_turns() -> None:
    actor = scripted([call("sell", it=str(n)) for n in range(9)])
    run = await sold(actor, sayer(*[answer("Paid.", changes=True)] * 9), max_turns=3)
    assert (run.outcome.truncated, run.outcome.reason) == (True, "max_turns")
    assert run.extra["answers"] == {"asked": 3}
    assert told(run) == ["Paid."] * 3
    asked = len(run.content)
    several = scripted([call("sell", it=str(n)) for n in range(3)], "Nobody is asked for this.")
    used_up = await sold(several, sayer(*[answer("Paid.", changes=True)] * 3), max_turns=3)
    assert (used_up.outcome.reason, len(used_up.content)) == ("max_turns", asked - 6)
    assert used_up.usage.prompt_tokens == 1


async def test_the_cost_of_both_models_is_that_of_the_trajectory() -> None:
    task = ruin_task(2, 4)
    replaying = Replaying(RuinEnvironment(), task, 0)
    simulator = ScriptedPolicy(PolicySettings(policy="scripted"), replaying)
    run = await only(Simulate(), exploration(task, actor=scripted("right", "right"), simulator=simulator))
    assert run.usage.prompt_tokens == 2 * (1 + 10)


async def test_examples_are_shown_to_the_simulator_and_named() -> None:
    seed = trajectory(
        "seed",
        task_id="other",
        generation=None,
        content=[instruction("Sell."), agent_message("sold"), seen("Paid.", 1)],
    )
    simulator = sayer(answer(end="success"))
    made = msgspec.structs.replace(in_shop(scripted("Hello."), simulator), library=library(seed))
    run = await only(Simulate(), made)
    assert run.extra["recalls"] == ["seed"]
    assert "Sell.\n> sold\nPaid." in str(simulator.asked[0].content[0].content)  # type: ignore[union-attr]


async def test_an_expert_that_errs_as_simulator_gives_other_answers_at_its_rate() -> None:
    """What it draws fits the form, and in part contradicts itself: then it is asked again."""
    task, reasons, right = ruin_task(2, 4), Counter[str](), 0
    made = exploration(task, actor=scripted("right", "right"), simulator=expert(mistakes=0.5))
    strategy = Simulate(k=60, retries=8, max_turns=2)
    for run in await explore(strategy, made):
        reasons.update(run.extra["answers"])
        right += told(run) == ["The number is 3.", "The number is 4."]
    assert reasons["contradiction"] > 10
    assert 0 < right < 60
    sure = exploration(task, actor=scripted("right", "right"), simulator=expert(mistakes=0.0))
    assert told(await only(Simulate(max_turns=2), sure)) == ["The number is 3.", "The number is 4."]


async def test_a_fault_of_the_simulator_is_its_own() -> None:
    def breaks(conversation: Conversation) -> Turn:
        raise PolicyError("timeout", "no answer")

    with pytest.raises(PolicyError, match="timeout"):
        await sold(scripted("Hello."), ScriptedPolicy(PolicySettings(policy="scripted"), breaks))
    with pytest.raises(PolicyError, match="no_environment"):
        await sold(scripted("Hello."), expert())
    strange = msgspec.structs.replace(SHOP, parameters={"results": {"stock": 3}})
    with pytest.raises(EnvError, match="JSON Schema for each tool"):
        await sold(scripted("Hello."), sayer(answer()), spec=strange)


def test_no_list_of_actions_can_be_chosen_from() -> None:
    with user_error("rule-broken", "constrain: admissible", "simulator"):
        validate(Simulate, {"constrain": "admissible"}, "simulate")
