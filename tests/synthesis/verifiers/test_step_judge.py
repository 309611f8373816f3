"""``step_judge``: right steps, graded steps, critical steps, by judges whose answers are known."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from msgspec.structs import replace

from agentmill.schemas.config import validate
from agentmill.schemas.records.trajectory import AnyItem, Trajectory
from agentmill.synthesis.policies.policy import Conversation
from agentmill.synthesis.verifiers.step_judge import StepJudge
from agentmill.synthesis.verifiers.verifier import Findings, findings
from tests.builders import agent_message, instruction, seen, trajectory
from tests.errors import user_error
from tests.ruin_environment import win_probability
from tests.synthesis.verifiers.known import Judging, panel, shown

GOAL = 40


def walk(*moves: str, start: int = 20) -> Trajectory:
    """A run of gambler's ruin; the number is what the agent sees."""
    content: list[AnyItem] = [instruction(f"Bring the number to {GOAL}, never to 0."), seen(f"The number is {start}.")]
    number = start
    for turn, move in enumerate(moves, 1):
        number += {"left": -1, "right": 1}[move]
        content += [agent_message(move, turn), seen(f"The number is {number}.", turn)]
    return trajectory(content=content)


async def judged(given: Trajectory, *judges: Judging, **parameters: Any) -> Findings:
    verifier = StepJudge.model_validate(parameters)
    return findings(verifier, given, await verifier.judge(None, given, panel(*judges)))


def by_q(asked: Conversation) -> str:
    """Knows the exact value of the numbers before and after the step, and calls what does not lower it right."""
    before, after = (int(number) for number in re.findall(r"number is (\d+)", shown(asked))[-2:])
    worth = [win_probability(number, GOAL, 0.4) for number in (before, after)]
    return json.dumps({"reasons": f"{worth[1] - worth[0]:+.3g}", "verdict": worth[1] >= worth[0]})


async def test_each_step_is_judged_by_what_it_led_to() -> None:
    judge = Judging(by_q)
    found = await judged(walk("right", "left", "right"), judge)
    whole, *steps = found.verdicts
    assert [(step.item, step.passed) for step in steps] == [(2, True), (4, False), (6, True)]
    assert whole.score == pytest.approx(2 / 3)
    assert (whole.passed, whole.evidence["first_item"], whole.evidence["steps"]) == (False, 4, 3)
    assert whole.evidence["usage"]["prompt_tokens"] == 30
    assert found.labels == []
    text = shown(judge.asked[2])
    assert "The number is 20." in text, "the opening"
    assert text.count("number is") == 3, "the opening, the last observation, and the one after"
    everything = Judging(by_q)
    await judged(walk("right", "left", "right"), everything, context="all")
    assert shown(everything.asked[2]).count("number is") == 4


async def test_grades_and_juries() -> None:
    grades = {"a": 5, "b": 3}
    judges = [
        Judging(lambda asked, name=name: json.dumps({"reasons": name, "verdict": grades[name]}), model=name)  # type: ignore[misc]
        for name in grades
    ]
    whole, step = (await judged(walk("right"), *judges, criterion="score")).verdicts
    assert (step.score, step.passed, step.evidence) == (0.75, True, {"reasons": ["a", "b"]})
    assert whole.judge == "jury:a@0123456789ab,b@0123456789ab"
    assert whole.passed is False
    assert (await judged(walk("right"), *judges, criterion="score", pass_at=0.7)).verdicts[0].passed is True


async def test_steps_without_an_answer_are_unscored() -> None:
    def second_only(asked: Conversation) -> str:
        return by_q(asked) if "number is 22" in shown(asked) else "?"

    whole, first, second = (await judged(walk("right", "right"), Judging(second_only))).verdicts
    assert (first.status, first.reason, second.passed) == ("unscored", "unparsable", True)
    assert (whole.score, whole.evidence["steps"], whole.evidence["unscored_steps"]) == (1.0, 1, 1)
    assert whole.passed is None, "the other step may be wrong"
    half = (await judged(walk("right", "right"), Judging(second_only), pass_at=0.5)).verdicts[0]
    assert half.passed is True, "whatever the other step is"

    def denies_the_first(asked: Conversation) -> str:
        return "?" if "number is 22" in shown(asked) else '{"reasons": "", "verdict": false}'

    wrong = (await judged(walk("right", "right"), Judging(denies_the_first))).verdicts[0]
    assert (wrong.passed, wrong.evidence["unscored_steps"]) == (False, 1)
    none = (await judged(walk("right"), Judging(lambda asked: "?"))).verdicts[0]
    assert (none.status, none.reason) == ("unscored", "unparsable")
    off = await judged(walk("right"), Judging(lambda asked: '{"reasons": "", "verdict": 9}'), criterion="score")
    assert off.verdicts[1].reason == "out_of_range"


async def test_copied_steps_are_judged_where_they_were_taken() -> None:
    given = walk("right", "left")
    content = [replace(item, context_operation="copied") if item.turn < 2 else item for item in given.content]
    branch = replace(given, content=content, parent_id="t0", branch_turn=2)
    assert [step.item for step in (await judged(branch, Judging(by_q))).verdicts[1:]] == [4]
    empty = await judged(trajectory(content=[instruction()]), Judging(by_q))
    assert (empty.verdicts[0].status, empty.verdicts[0].reason) == ("unscored", "no_steps")


def critic(*numbers: int, reasons: str = "so", model: str = "a") -> Judging:
    return Judging(lambda asked: json.dumps({"reasons": reasons, "steps": list(numbers)}), model=model)


async def test_critical_steps_are_labelled_within_the_budget() -> None:
    found = await judged(walk(*["right"] * 10), critic(7, 2, 9, 2, 40, 0), criterion="critical", keep=0.2)
    assert [label.item for label in found.labels if label.value == "critical"] == [4, 14]
    assert {label.value for label in found.labels} == {"critical", "other"}
    assert len(found.labels) == 10
    [whole] = found.verdicts
    assert (whole.score, whole.passed, whole.evidence["over_budget"]) == (0.2, None, 1)
    assert whole.evidence["critical"] == [4, 14]


async def test_of_a_jury_the_steps_count_that_most_name() -> None:
    judges = [critic(1, 2, model="a"), critic(3, 2, model="b"), critic(3, 4, model="c")]
    found = await judged(walk(*["right"] * 10), *judges, criterion="critical", keep=0.2)
    assert found.verdicts[0].evidence["critical"] == [4, 6]


@pytest.mark.parametrize("other", [critic(model="b"), Judging(lambda asked: "none", model="b")])
async def test_a_judge_that_names_nothing_ranks_nothing(other: Judging) -> None:
    judges = [critic(5, 1, 2, model="a"), other]
    alone = await judged(walk(*["right"] * 10), judges[0], criterion="critical", keep=0.1)
    found = await judged(walk(*["right"] * 10), *judges, criterion="critical", keep=0.1)
    assert found.verdicts[0].evidence["critical"] == alone.verdicts[0].evidence["critical"]


@pytest.mark.parametrize(("numbers", "reason"), [((), "no_step_named"), ((99,), "no_step_named")])
async def test_a_judge_that_names_no_step_says_nothing(numbers: tuple[int, ...], reason: str) -> None:
    found = await judged(walk("right"), critic(*numbers), criterion="critical")
    assert (found.verdicts[0].status, found.verdicts[0].reason, found.labels) == ("unscored", reason, [])


@pytest.mark.parametrize("keep", [0.1, 0.3, 0.5])
async def test_a_judge_that_knows_q_marks_the_asked_share_and_the_bottleneck(keep: float) -> None:
    """The bottleneck is the step with the greatest change of the exact value (closed form, Feller XIV.2)."""
    moves = (["right"] * 3 + ["left"]) * 25
    given = walk(*moves, start=2)

    def knows(asked: Conversation) -> str:
        lines = [json.loads(line) for line in shown(asked).splitlines() if line.startswith("{")]
        numbers = [int(found[1]) for line in lines if (found := re.search(r"number is (\d+)", line.get("content", "")))]
        worth = [win_probability(number, 100, 0.4) for number in numbers]
        changes = [abs(after - before) for before, after in itertools.pairwise(worth)]
        ranked = sorted(range(1, len(changes) + 1), key=lambda step: -changes[step - 1])
        return json.dumps({"reasons": "Q", "steps": ranked[: int(re.search(r"at most (\d+)", shown(asked))[1])]})  # type: ignore[index]

    found = await judged(given, Judging(knows), criterion="critical", keep=keep)
    marked = [label.item for label in found.labels if label.value == "critical"]
    assert abs(len(marked) / len(moves) - keep) <= 0.02
    number, worth = 2, [win_probability(2, 100, 0.4)]
    for move in moves:
        number += 1 if move == "right" else -1
        worth.append(win_probability(number, 100, 0.4))
    changes = [abs(after - before) for before, after in itertools.pairwise(worth)]
    assert 2 * (changes.index(max(changes)) + 1) in marked


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"criterion": "right"}, ("invalid-value", "criterion")),
        ({"criterion": "critical", "criteria": "x"}, ("rule-broken", "`criteria` does not go with")),
        ({"criterion": "score", "keep": 0.2}, ("rule-broken", "`keep` does not go with")),
        ({"keep": 0}, ("invalid-value", "keep")),
    ],
)
def test_parameters_that_do_not_go_together(given: dict[str, Any], message: tuple[str, ...]) -> None:
    with user_error(*message):
        validate(StepJudge, given, "step_judge")
