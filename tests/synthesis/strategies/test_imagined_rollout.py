"""What a writer of runs is told of a fault, what counts of its answer, and that nothing it writes breaks a run."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from agentmill.schemas.arrow.check import check
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Action, MessageAction, Trajectory, Usage
from agentmill.synthesis.environments import DESCRIBED, make
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.policies.policy import Conversation, PolicyError, PolicySettings, Turn
from agentmill.synthesis.policies.scripted import ScriptedPolicy
from agentmill.synthesis.strategies.branch import Branch
from agentmill.synthesis.strategies.imagine import Imagine
from agentmill.synthesis.strategies.imagined_rollout import DETAIL_CHARS, WRITTEN_CHARS, read
from agentmill.synthesis.verifiers.check_outcome import CheckOutcome
from tests.builders import agent_message, tool
from tests.counter_environment import CounterEnvironment, counting_task
from tests.ruin_environment import Sayer
from tests.synthesis.strategies.exploring import explore
from tests.synthesis.strategies.test_imagine import add, exploration, imagined, sayer, turn, written

CLOSING = turn("I am done.", None)


def asked(writer: Sayer, number: int) -> str:
    """What the writer was told anew, the ``number``-th time that it was asked."""
    first, later = (str(writer.asked[each].content[0].content) for each in (0, number))  # type: ignore[union-attr]
    return later.removeprefix(first)


def done(run: Trajectory) -> list[Any]:
    acts = (item for item in run.content if isinstance(item, Action))
    return [getattr(item, "kwargs", None) or getattr(item, "content", None) for item in acts]


@pytest.mark.parametrize("ending", [{}, {"ending": {"status": "triumph"}}])
@pytest.mark.parametrize("check", ["declared", "world"])
async def test_where_only_the_ending_is_faulty_only_the_ending_counts(ending: dict[str, Any], check: str) -> None:
    """A writer that repeats the run, or goes on behind its last word, adds nothing."""
    turns = [add(1), add(2), CLOSING]
    writer = sayer(json.dumps({"turns": turns, **ending}), written(*turns, add(1), CLOSING, status="failure"))
    run = await imagined(writer, scaffold="tools", check=check)
    assert done(run) == [{"amount": 1}, {"amount": 2}, "I am done."]
    assert run.extra["claim"]["status"] == "failure"
    assert [(fault["turn"], fault["reason"]) for fault in run.extra["repaired"]] == [(4, "malformed")]
    assert "Write the ending anew and no turns" in asked(writer, 1)
    assert (await CheckOutcome().verify(counting_task(), run, CounterEnvironment())).passed is True
    with pytest.raises(GenerationError, match="the ending is still faulty after 0 repairs"):
        await imagined(sayer(json.dumps({"turns": turns, **ending})), scaffold="tools", repairs=0)


async def test_a_message_that_nothing_answered_is_not_carried_out_in_place_of_a_call() -> None:
    """To 3 by 1 and 2; the word between them belongs to a turn of its own."""
    run = await imagined(sayer(written(add(1), add(2))), scaffold="tools")
    opening, first, second = run.content[:2], run.content[2:4], run.content[4:]
    moved = [*opening, *first, agent_message("Hm.", 2), *[replace(item, turn=3) for item in second]]
    verdict = await CheckOutcome().verify(counting_task(), replace(run, content=moved), CounterEnvironment())
    assert (verdict.passed, verdict.evidence["number"]) == (True, 3)


async def test_a_history_that_was_imagined_is_carried_out() -> None:
    parent = await imagined(sayer(written(turn("add 2"), turn("add 2"), turn("add 2"))), counting_task(6))
    made = exploration(sayer("add 2"), counting_task(6), earlier=(parent,))
    [branch] = await explore(Branch(turns="last"), made)
    assert [item.state_digest for item in branch.content if getattr(item, "state_digest", None)] == [
        "number-0",
        "number-6",
    ]
    assert (await CheckOutcome().verify(counting_task(6), branch, CounterEnvironment())).passed is True


async def test_a_last_word_to_the_user_is_no_action_upon_the_world() -> None:
    run = await imagined(sayer(written(add(1), add(2), CLOSING)), scaffold="tools", check="world", repairs=0)
    assert done(run) == [{"amount": 1}, {"amount": 2}, "I am done."]
    empty = await imagined(sayer(written(add(1), turn("Done.", ""))), scaffold="tools", check="world", repairs=0)
    assert isinstance(empty.content[-1], MessageAction), "an answer of no words is none"


async def test_the_writer_is_shown_what_does_not_stand() -> None:
    long = "x" * 5000
    writer = sayer(
        written(add(1, "One."), add(3, "Mine.")),
        written(add(2, "Two.")).partition("Two.")[0],
        written(add(long, "Far.")),
        written(add(1, "On.")),
    )
    run = await imagined(writer, scaffold="tools", repairs=3)
    assert [fault["reason"] for fault in run.extra["repaired"]] == ["wrong_arguments", "malformed", "wrong_arguments"]
    assert json.dumps(add(3, "Mine.")) in asked(writer, 1)
    assert '"status"' not in asked(writer, 1)
    assert "add" in asked(writer, 2)
    assert '"amount": 2' in asked(writer, 2)
    assert len(asked(writer, 3)) < DETAIL_CHARS + WRITTEN_CHARS + 500
    assert "xxx" in asked(writer, 3)


BREAKING = {
    "digits": '{"turns": [{"action": "add 1", "observation": "x", "n": ' + "9" * 5000 + "}]}",
    "half a character": r'{"turns":[{"action":"add 1","observation":"x\ud83d"}],"ending":{"status":"success"}}',
    "half a status": r'{"turns":[{"action":"add 1","observation":"x"}],"ending":{"status":"\ud83d"}}',
    "no number": '{"turns":[{"action":{"name":"add","arguments":{"amount":NaN}},"observation":"x"}]}',
    "infinite": '{"turns":[{"action":{"name":"add","arguments":{"amount":1e400}},"observation":"x"}]}',
}


@pytest.mark.parametrize("answer", BREAKING.values(), ids=BREAKING)
async def test_whatever_is_written_is_a_fault_and_no_accident(answer: str) -> None:
    in_words = "add 1" in answer
    writer = sayer(answer, written(turn("add 1") if in_words else add(1)))
    run = await imagined(writer, scaffold="text" if in_words else "tools", repairs=1)
    assert [fault["reason"] for fault in run.extra["repaired"]] == ["malformed"]
    check([run], Trajectory)
    asked(writer, 1).encode()


async def test_numbers_and_lists_that_json_knows_are_kept() -> None:
    """As far as the tool allows them, and its record can be written."""
    free = tool("say", it={})
    shop = EnvironmentSpec(environment_id="shop", family=DESCRIBED, name="shop", source="You talk.", tools=[free])
    task = Task(task_id="talk", environment_id="shop", instruction="Talk.", max_turns=5)
    deep: Any = 1
    for _ in range(190):
        deep = [deep]
    for it in (123456789012345678901234, -(2**70), deep):
        writer = sayer(written(turn({"name": "say", "arguments": {"it": it}})))
        made = exploration(writer, task, spec=shop, make_environment=lambda: make(shop))
        [run] = await explore(Imagine(scaffold="tools", repairs=0), made)
        assert done(run) == [{"it": it}]
        check([run], Trajectory)


async def test_a_word_behind_which_json_breaks_off_is_not_the_last() -> None:
    cut = written(add(1), turn("Hm.", None), add(2)).rpartition('"add"')[0]
    run = await imagined(sayer(cut, written(add(2))), scaffold="tools")
    assert [(fault["turn"], fault["reason"]) for fault in run.extra["repaired"]] == [(2, "no_observation")]
    assert done(run) == [{"amount": 1}, {"amount": 2}]


async def test_a_last_word_stands_where_json_breaks_off_in_the_ending() -> None:
    cut = written(add(1), CLOSING).rpartition('"status"')[0]
    writer = sayer(cut, written(status="failure"))
    run = await imagined(writer, scaffold="tools")
    assert [(fault["turn"], fault["reason"]) for fault in run.extra["repaired"]] == [(3, "malformed")]
    assert "Write the ending anew and no turns" in asked(writer, 1)
    assert (done(run), run.extra["claim"]["status"]) == ([{"amount": 1}, "I am done."], "failure")


def test_braces_before_the_json_do_no_harm() -> None:
    turns = [turn("add 1"), turn("add 2")]
    for preamble in ("<think>Like {this}, or {}?</think>", 'The form is {"turns": [...]}; so: ', '{"plan": [1]} '):
        whole, ending, fault = read(preamble + written(*turns))
        assert (whole, ending["status"], fault) == (turns, "success", None)
        whole, _, broken = read(preamble + written(*turns)[:-50])
        assert whole == turns
        assert broken is not None
        assert "it is no JSON" in broken.detail
    assert read("{" * 100_000)[0] == []


class Closing(CounterEnvironment):
    """Says how often it was closed."""

    count = 0

    def close(self) -> None:
        Closing.count += 1


async def test_repairs_cost_and_the_world_is_closed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([written(turn("add 1"), turn(" ")), written(turn("add 2"))])

    def writes(conversation: Conversation) -> Turn:
        usage = Usage(prompt_tokens=10, completion_tokens=5)
        return Turn(actions=[MessageAction(content=next(answers))], usage=usage)

    monkeypatch.setattr(Closing, "count", 0)
    writer = ScriptedPolicy(PolicySettings(policy="scripted"), writes)
    [run] = await explore(Imagine(), exploration(writer, make_environment=Closing))
    assert run.usage == Usage(prompt_tokens=20, completion_tokens=10)
    assert Closing.count == 1
    with pytest.raises(GenerationError):
        await explore(Imagine(repairs=0), exploration(sayer("no"), make_environment=Closing))
    assert Closing.count == 2


async def test_a_writer_that_takes_too_long_is_given_up() -> None:
    class Slow(Sayer):
        async def act(self, conversation: Conversation) -> Turn:
            await asyncio.sleep(60)
            return await super().act(conversation)

    with pytest.raises(PolicyError, match="not written within") as caught:
        await imagined(Slow(PolicySettings(policy="sayer", turns=["x"])), episode_timeout_s=0.01)
    assert caught.value.reason == "timeout"
