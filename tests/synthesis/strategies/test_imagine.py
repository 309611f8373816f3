"""Runs that a model writes: what stands, what is repaired from where, what is given up, and what is never claimed."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import msgspec
import pytest

from agentmill.schemas.config import validate
from agentmill.schemas.records.task import EnvironmentSpec, Lineage, Task
from agentmill.schemas.records.trajectory import Action, ApiAction, MessageAction, TextObservation, Trajectory, Usage
from agentmill.schemas.views.annotations import NOTHING
from agentmill.schemas.views.sft import Sft
from agentmill.schemas.views.tree import Reflection
from agentmill.schemas.views.view import Unused
from agentmill.schemas.views.world_model import WorldModel
from agentmill.synthesis.environments import DESCRIBED, ENVIRONMENTS, make
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.policies import make_policy
from agentmill.synthesis.policies.policy import Conversation, PolicyError, PolicySettings, Turn
from agentmill.synthesis.policies.scripted import ScriptedPolicy
from agentmill.synthesis.rollouts.strategy import Exploration
from agentmill.synthesis.strategies.imagine import Imagine
from agentmill.synthesis.strategies.imagined_rollout import Fault, read
from agentmill.synthesis.strategies.sample import Sample
from agentmill.synthesis.verifiers.check_outcome import CheckOutcome
from tests.builders import agent_message, instruction, seen, tokens, tool, trajectory
from tests.counter_environment import SPEC, CounterEnvironment, counting_task
from tests.errors import user_error
from tests.ruin_environment import Sayer
from tests.synthesis.strategies.exploring import explore, library


def turn(action: Any, observation: str | None = "Well.", **fields: Any) -> dict[str, Any]:
    return {"action": action, **({} if observation is None else {"observation": observation}), **fields}


def add(amount: Any, observation: str | None = "Well.", **fields: Any) -> dict[str, Any]:
    return turn({"name": "add", "arguments": {"amount": amount}}, observation, **fields)


def written(*turns: Any, status: str = "success") -> str:
    return json.dumps({"turns": turns, "ending": {"status": status, "reason": "so it is"}})


def sayer(*answers: str) -> Sayer:
    return Sayer(PolicySettings(policy="sayer", turns=list(answers)))


def exploration(writer: Any, task: Task | None = None, **fields: Any) -> Exploration:
    given = {"task": task or counting_task(), "spec": SPEC, "make_environment": CounterEnvironment, "seed": 7, **fields}
    return Exploration(policies={"actor": writer}, **given)


async def imagined(writer: Any, task: Task | None = None, **parameters: Any) -> Trajectory:
    [run] = await explore(Imagine(**parameters), exploration(writer, task))
    assert isinstance(run, Trajectory)
    return run


def answers(run: Trajectory) -> list[TextObservation]:
    return [item for item in run.content if isinstance(item, TextObservation) and item.turn > 0]


async def test_a_run_is_recorded_item_by_item_and_only_its_opening_is_real() -> None:
    text = written(turn("add 2", "The number is 2.", thought="Two first."), turn("add 1", "The number is 3."))
    run = await imagined(sayer(text))
    assert run.content == [
        TextObservation(content="Count to 3.", source="user"),
        TextObservation(content="The number is 0.", source="environment", state_digest="number-0"),
        MessageAction(content="add 2", description="Two first.", turn=1),
        TextObservation(content="The number is 2.", source="environment", turn=1, synthetic=True),
        MessageAction(content="add 1", turn=2),
        TextObservation(content="The number is 3.", source="environment", turn=2, synthetic=True),
    ]
    outcome = run.outcome
    assert (outcome.status, outcome.reward, outcome.terminated, outcome.truncated) == ("unknown", None, False, False)
    assert run.extra == {"claim": {"status": "success", "reason": "so it is"}, "mistakes": 0, "repaired": []}
    assert run.generation is not None
    assert (run.generation.strategy, run.generation.policy) == ("imagine", "sayer")


async def test_the_kind_of_a_twin_is_kept() -> None:
    lineage = Lineage(operator="contrast", notes={"contrast": "silent"})
    run = await imagined(sayer(written(turn("add 3"))), msgspec.structs.replace(counting_task(), lineage=lineage))
    assert (run.extra["contrast"], run.extra["mistakes"]) == ("silent", 0)


async def test_calls_have_ids_and_no_item_bears_tokens_that_were_sampled_for_another_text() -> None:
    def writes(conversation: Conversation) -> Turn:
        text = written(add(2), turn("I am done.", None))
        usage = Usage(prompt_tokens=10, completion_tokens=5)
        return Turn(actions=[MessageAction(content=text, tokens=tokens(1, 2, 3))], usage=usage)

    run = await imagined(ScriptedPolicy(PolicySettings(policy="scripted"), writes), scaffold="tools")
    [call, last] = [item for item in run.content if isinstance(item, Action)]
    assert (call.tool_call_id, call.turn, call.tokens) == ("call00100", 1, None)
    assert isinstance(last, MessageAction)
    assert (last.content, last.turn, last.tokens) == ("I am done.", 2, None)
    assert [(each.tool_call_id, each.synthetic) for each in answers(run)] == [("call00100", True)]
    assert run.usage == Usage(prompt_tokens=10, completion_tokens=5)
    assert [declared.name for declared in run.tools] == ["add"]


GOOD = [turn("add 1", "One."), turn("add 1", "Two.")]
CALLS = [add(1, "One."), add(1, "Two.")]
TOOLS = {"scaffold": "tools"}
WORLD = {"check": "world"}
FAULTS: list[tuple[dict[str, Any], str, str, int]] = [
    ({}, "I would rather not.", "malformed", 0),
    ({}, written(*GOOD, turn("add 1"))[:-70], "malformed", 2),
    ({}, written(*GOOD, turn("add 1", feeling="fine")), "malformed", 2),
    ({}, written(*GOOD, turn(7)), "malformed", 2),
    ({}, written(*GOOD, turn(" ")), "malformed", 2),
    ({}, written(*GOOD, add(1)), "malformed", 2),
    ({}, written(), "no_turns", 0),
    ({}, written(*GOOD, turn("add 1", None)), "no_observation", 2),
    ({}, written(GOOD[0], turn("add 1", " "), GOOD[1]), "no_observation", 1),
    (TOOLS, written(CALLS[0], turn("One more?", None), CALLS[1]), "no_observation", 1),
    (TOOLS, written(*CALLS, turn({"name": "subtract", "arguments": {}})), "undeclared_tool", 2),
    (TOOLS, written(CALLS[0], add(3), CALLS[1]), "wrong_arguments", 1),
    (TOOLS, written(CALLS[0], add("1")), "wrong_arguments", 1),
    (WORLD, written(*GOOD, turn("fly")), "illegal_action", 2),
    (WORLD, written(*GOOD, turn("add 1"), turn("add 1")), "after_the_end", 3),
    ({**WORLD, "mistakes": 1}, written(GOOD[0], turn("add 2", error=True)), "no_mistake", 1),
    ({}, written(GOOD[0], turn("fly", error=True)), "unasked_mistake", 1),
    (TOOLS, written(*CALLS, turn({"name": "fly", "arguments": {}}, error=True)), "unasked_mistake", 2),
    ({**TOOLS, **WORLD}, written(CALLS[0], turn("Hello?", "Hello.")), "illegal_action", 1),
]


@pytest.mark.parametrize(("parameters", "faulty", "reason", "stands"), FAULTS)
async def test_a_faulty_turn_is_written_anew_behind_those_that_stand(
    parameters: dict[str, Any], faulty: str, reason: str, stands: int
) -> None:
    """To 3 from 0, by ones; the second answer gives what is missing."""
    rest = [add(1, "Anew.") if "scaffold" in parameters else turn("add 1", "Anew.")] * (3 - stands)
    writer = sayer(faulty, written(*rest))
    run = await imagined(writer, repairs=1, **parameters)
    assert [(fault["turn"], fault["reason"]) for fault in run.extra["repaired"]] == [(stands + 1, reason)]
    assert [each.content for each in answers(run)] == (["One.", "Two.", "Well."][:stands] + ["Anew."] * (3 - stands))
    assert all(each.synthetic for each in answers(run))
    assert (await CheckOutcome().verify(counting_task(), run, CounterEnvironment())).passed is True
    first, second = (str(each.content[0].content) for each in writer.asked)  # type: ignore[union-attr]
    assert second.startswith(first)
    told = second.removeprefix(first)
    assert run.extra["repaired"][0]["fault"] in told
    assert [word in told for word in ("One.", "Two.")] == [stands > 0, stands > 1]
    assert f"write turn {stands + 1} anew" in told
    with pytest.raises(GenerationError) as given_up:
        await imagined(sayer(faulty, faulty), repairs=0, **parameters)
    assert given_up.value.reason == reason
    [kept] = given_up.value.history
    assert (kept["text"], kept["turn"]) == (faulty, stands + 1)


async def test_repairs_are_counted_over_the_whole_run() -> None:
    """Each answer brings the run on by a turn and then fails: 3 turns need 3 answers, hence 2 repairs."""
    step = written(turn("add 1", "On."), turn("add 1", None), turn("add 1"))
    for repairs, good in ((2, True), (1, False)):
        writer = sayer(step, step, written(turn("add 1", "On.")))
        if good:
            run = await imagined(writer, repairs=repairs)
            assert [fault["turn"] for fault in run.extra["repaired"]] == [2, 3]
            assert [each.content for each in answers(run)] == ["On."] * 3
        else:
            with pytest.raises(GenerationError, match="turn 3 is still faulty after 1 repairs"):
                await imagined(writer, repairs=repairs)
        assert len(writer.asked) == repairs + 1
        assert len({each.seed for each in writer.asked}) == repairs + 1


def test_of_broken_json_exactly_the_turns_that_are_whole_are_kept() -> None:
    """Cut behind each character: a turn counts from its closing brace on."""
    turns = [turn('say {"hi"}, ok?', "} [", thought="é\n"), turn({"name": "f", "arguments": {"x": [1, {}]}}), turn("c")]
    text = "Here it is:\n```json\n" + written(*turns)
    ends = [text.index(json.dumps(each)) + len(json.dumps(each)) for each in turns]
    for cut in range(len(text)):
        whole, ending, fault = read(text[:cut])
        assert whole == [each for each, end in zip(turns, ends, strict=True) if end <= cut]
        assert isinstance(fault, Fault)
        assert (fault.reason, ending) == ("malformed", None)
    assert read(text + "\n```")[0] == turns
    assert read(text)[2] is None
    assert read("[" * 100_000)[2] is not None
    assert read('{"turns": ' + "[" * 100_000)[0] == []


async def test_mistakes_are_marked_refused_and_corrected() -> None:
    """AgentRefine: the turn that is wrong carries no loss, the one that corrects it does."""
    text = written(turn("jump", "You cannot.", error=True), turn("add 2"), turn("add 1"))
    writer = sayer(text)
    run = await imagined(writer, mistakes=1, check="world")
    assert [item.error for item in run.content if item.turn > 0] == [True, True, False, False, False, False]
    assert run.extra["mistakes"] == 1
    assert "to make mistakes, 1 in all" in str(writer.asked[0].content[0].content)  # type: ignore[union-attr]
    (row,) = Sft(loss="not_error").make_rows(run, NOTHING)
    assert [(each.content, each.train) for each in row.messages if each.role == "assistant"] == [
        ("jump", False),
        ("add 2", True),
        ("add 1", True),
    ]
    assert Reflection().make_rows(run, NOTHING)
    assert (await CheckOutcome().verify(counting_task(), run, CounterEnvironment())).passed is True


@pytest.mark.parametrize(
    ("actions", "status", "passed", "number"),
    [
        (["add 2", "add 1"], "failure", True, 3),
        (["add 1"], "success", False, 1),
        (["add 2", "fly", "add 1"], "unfinished", True, 3),
        (["add 2", "add 2", "add 1"], "success", False, 4),
        (["add 2", "add 1", "add 2"], "success", True, 3),
    ],
)
async def test_what_is_claimed_is_not_believed_but_done(
    actions: list[str], status: str, passed: bool, number: int
) -> None:
    """The verifier carries the imagined actions out in the real world, until this has ended."""
    run = await imagined(sayer(written(*map(turn, actions), status=status)))
    assert run.outcome.status == "unknown"
    verdict = await CheckOutcome().verify(counting_task(), run, CounterEnvironment())
    assert (verdict.status, verdict.passed, verdict.evidence["number"]) == ("scored", passed, number)


@pytest.mark.parametrize("family", sorted(ENVIRONMENTS))
async def test_every_world_accepts_what_its_expert_does_and_refuses_what_is_no_command(family: str) -> None:
    known = [each for each in ENVIRONMENTS.load(family).examples() if each[0].name != "blackjack"]
    assert len(known) >= 2, "all but one, which no plan is sure to win"
    for spec, task in known:
        world = {"spec": spec, "make_environment": partial(make, spec)}
        expert = make_policy(PolicySettings(policy="expert"))
        [lived] = await explore(Sample(), exploration(expert, task, **world))
        done = [turn(item.content) for item in lived.content if isinstance(item, MessageAction)]
        writer = sayer(written(done[0], turn("fly to the moon"), *done[1:]), written(*done[1:]))
        [run] = await explore(Imagine(check="world"), exploration(writer, task, **world))
        assert [item.content for item in run.content if isinstance(item, MessageAction)] == [
            each["action"] for each in done
        ]
        assert run.content[:2] == lived.content[:2], "it begins in the same world"
        if len(done) > 1:
            assert [(each["turn"], each["reason"]) for each in run.extra["repaired"]] == [(2, "illegal_action")]
        verdict = await CheckOutcome().verify(task, run, make(spec))
        assert (verdict.status, verdict.passed) == ("scored", lived.outcome.status == "success")


async def test_a_world_model_learns_nothing_from_what_a_model_made_up() -> None:
    run = await imagined(sayer(written(turn("add 2"), turn("add 1"))))
    with pytest.raises(Unused):
        WorldModel().make_rows(run, NOTHING)
    (row,) = Sft().make_rows(run, NOTHING)
    assert [message.content for message in row.messages if message.train] == ["add 2", "add 1"]
    assert row.tokens == []


async def test_a_run_that_is_too_long_is_cut() -> None:
    run = await imagined(sayer(written(*[turn("add 1", str(number)) for number in range(1, 10)])), max_turns=4)
    assert [each.content for each in answers(run)] == ["1", "2", "3", "4"]
    assert (run.outcome.truncated, run.outcome.reason, run.extra["claim"]) == (True, "max_turns", None)


async def test_a_world_that_exists_in_words_only_can_be_imagined_and_no_more() -> None:
    spec = EnvironmentSpec(
        environment_id="shop",
        family=DESCRIBED,
        name="shop",
        source="You serve a shop.",
        tools=[tool("look", it={"type": "string"})],
    )
    task = Task(task_id="sell", environment_id="shop", instruction="Sell a hat.", max_turns=5)
    writer = sayer(written(turn({"name": "look", "arguments": {"it": "hat"}}, "A hat.")))
    made = exploration(writer, task, spec=spec, make_environment=lambda: make(spec))
    [run] = await explore(Imagine(scaffold="tools"), made)
    assert (run.system_prompt, [each.name for each in run.tools]) == ("You serve a shop.", ["look"])
    assert run.content[0] == TextObservation(content="Sell a hat.", source="user")
    assert isinstance(run.content[1], ApiAction)
    with pytest.raises(EnvError, match="only described"):
        await explore(Imagine(scaffold="tools", check="world"), made)


async def test_earlier_runs_are_examples() -> None:
    """The writer sees them; which ones is part of the id."""
    shown = trajectory(
        "shown", content=[instruction("Count."), seen("0", state_digest="0"), agent_message("add 9"), seen("9", 1)]
    )
    writer = sayer(written(turn("add 2"), turn("add 1")))
    shelf = library(shown)
    [run] = await explore(Imagine(shots=1), exploration(writer, library=shelf))
    asked = str(writer.asked[0].content[0].content)  # type: ignore[union-attr]
    assert "Count.\n0\n> add 9\n9" in asked
    assert "Count to 3." in asked
    assert run.extra["recalls"] == ["shown"]
    assert run.trajectory_id not in Imagine().planned(exploration(writer))


async def test_k_runs_are_drawn_with_seeds_of_their_own() -> None:
    writer = sayer(written(turn("add 2")))
    runs = await explore(Imagine(k=3), exploration(writer))
    assert [run.attempt for run in runs] == [0, 1, 2]
    assert len({each.seed for each in writer.asked}) == 3
    assert Imagine(k=1).planned(exploration(writer)) == [runs[0].trajectory_id]


async def test_who_breaks_is_named() -> None:
    with pytest.raises(PolicyError, match="returned an empty response"):
        await imagined(sayer(" "))
    with pytest.raises(EnvError, match="the gears are stuck"):
        await imagined(sayer(written(turn("add 1"))), counting_task(break_at=1), check="world")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"context": "notes"}, ("rule-broken", "context")),
        ({"constrain": "admissible"}, ("rule-broken", "constrain")),
        ({"check": "real"}, ("invalid-value", "declared", "world")),
        ({"repair": 2}, ("unknown-key", "repairs")),
    ],
)
def test_mistakes_in_parameters_are_explained(parameters: dict[str, Any], message: tuple[str, ...]) -> None:
    with user_error(*message):
        validate(Imagine, parameters, "step imagine")
