"""``answer_match``: texts as SQuAD compares them, numbers within a tolerance, several gold answers."""

from __future__ import annotations

from typing import Any

import pytest

from agentmill.schemas.records.verdict import Verdict
from agentmill.synthesis.verifiers.answer_match import AnswerMatch, answer_key, f1
from tests.builders import agent_message, called, instruction, seen, task, trajectory


async def judged(text: str, gold: Any, **parameters: Any) -> Verdict:
    record = trajectory(content=[instruction(), agent_message(text)])
    return await AnswerMatch.model_validate(parameters).verify(task(goal={"answer": gold}), record)


@pytest.mark.parametrize(
    ("text", "gold", "parameters", "score"),
    [
        ("The  Eiffel Tower!", "eiffel tower", {}, 1),
        ("eiffel", "eiffel tower", {}, 0),
        ("Eiffel tower", "eiffel tower", {"normalise": False}, 0),
        ("It is the Eiffel Tower.", "eiffel tower", {"method": "contains"}, 1),
        ("It is the Eiffel Towers.", "eiffel tower", {"method": "contains"}, 0),
        ("It is in room 15.", "room 1.5", {"method": "contains"}, 0),
        ("It is in room 1.5.", "room 1.5", {"method": "contains"}, 1),
        ("It has 5 degrees.", "-5 degrees", {"method": "contains"}, 0),
        ("It has -5 degrees.", "-5 degrees", {"method": "contains"}, 1),
        ("red blue", "red green", {"method": "f1"}, 0.5),
        ("Paris", ["Rome", "Paris"], {}, 1),
        ("Paris and Rome", ["Rome", "Paris"], {"method": "contains", "every": True}, 1),
        ("Paris", ["Rome", "Paris"], {"method": "contains", "every": True}, 0.5),
        ("1,234.50", 1234.5, {}, 1),
        ("$1234.5", "1234.50", {}, 1),
        ("It costs 1234.5 dollars.", 1234.5, {}, 1),
        ("between 3 and 5", 5, {}, 0),
        ("between 3 and 5", 5, {"method": "contains"}, 1),
        ("3.142", 3.14159, {}, 0),
        ("3.142", 3.14159, {"tolerance": 0.001}, 1),
        ("0.0000001", 0, {"tolerance": 1e-6}, 1),
        ("-2", 2, {}, 0),
        ("two", 2, {}, 0),
        ("Answer: 4\nAnswer: 5", "5", {"extract": r"Answer: (\d)"}, 1),
        ("Answer: 4\nAnswer: 5", "4", {"extract": r"Answer: (\d)"}, 0),
        ("...", "A", {}, 0),
        ("(a)", "A", {}, 1),
        ("The answer is A.", "A", {"method": "contains"}, 1),
        ("The answer is B.", "A", {"method": "contains"}, 0),
        ("A", "A", {"method": "f1"}, 1),
        ("...", "A", {"method": "f1"}, 0),
        ("?", "?", {}, 1),
        ("!", "?", {}, 0),
        ("15 km", "1.5 km", {}, 0),
        ("1,500 km", "1500 km", {}, 1),
        ("5 degrees", "-5 degrees", {}, 0),
        ("F16", "F-16", {}, 1),
        ("-$1,234.50", -1234.5, {}, 1),
        ("-$1,234.50", 1234.5, {}, 0),
        ("It is -€ 5.", "-5", {}, 1),
        ("$5", "-$5", {}, 0),
        ("$5 loss", "-$5 loss", {}, 0),
        ("\N{MINUS SIGN}5", -5, {}, 1),
        ("\N{MINUS SIGN}5", 5, {}, 0),
        ("- $5", 5, {}, 1),
        ("$3-$5", 5, {"method": "contains"}, 1),
        ("3-5", 3, {}, 0),
        ("COVID-19", 19, {}, 0),
        ("ID-77 is it", "ID-77", {"extract": r"ID-\d+"}, 1),
        ("10.0.1.12", "10.0.11.2", {}, 0),
        ("10.0.11.2", "10.0.11.2", {}, 1),
        ("v2.0.11", "v2.0.1.1", {}, 0),
        ("host 10.0.1.12 is up", "10.0.11.2", {"method": "contains"}, 0),
        ("host 10.0.11.2 is up", "10.0.11.2", {"method": "contains"}, 1),
        (".5", 0.5, {}, 1),
        ("-.5", -0.5, {}, 1),
        ("0.5", ".5", {}, 1),
        ("1.5 km", "15 km", {"method": "f1"}, 0.5),
        ("1.5 km", "1.5 km", {"method": "f1"}, 1),
        ("-5 degrees", "5 degrees", {"method": "f1"}, 0.5),
        ("10.0.1.12 is up", "10.0.11.2 is up", {"method": "f1"}, 2 / 3),
        ("1000001", 1000002, {}, 0),
        ("1000001", 1000002, {"tolerance": 1e-6}, 1),
        ("1000000.4", 1000000, {}, 1),
    ],
)
async def test_known_answers(text: str, gold: Any, parameters: dict[str, Any], score: float) -> None:
    verdict = await judged(text, gold, **parameters)
    assert (verdict.status, verdict.score, verdict.passed) == ("scored", score, score == 1)


async def test_who_says_nothing_fails_and_a_task_without_answer_says_nothing() -> None:
    silent = await judged(" ", "x")
    assert (silent.status, silent.passed, silent.reason) == ("scored", False, "no_answer")
    assert (await judged("x", "x", extract="Answer: (.*)")).reason == "no_answer"
    for gold in (None, [], "", True, {"a": 1}):
        unknown = await judged("x", gold)
        assert (unknown.status, unknown.reason, unknown.score) == ("unscored", "no_gold", None)


async def test_the_answer_may_be_a_call_and_the_gold_elsewhere() -> None:
    content = [called("submit", 1, value="no"), seen("", 1), called("submit", 2, value=42), agent_message("Bye.", 3)]
    record = trajectory(content=content)
    answering = {"answer": {"tool": "submit"}, "gold": "initial_state.answer"}
    verifier = AnswerMatch.model_validate(answering)
    verdict = await verifier.verify(task(initial_state={"answer": 42}), record)
    assert (verdict.passed, verdict.evidence) == (True, {"answer": "42", "item": 2, "gold": ["42"]})
    none = await verifier.verify(task(initial_state={"answer": 42}), trajectory(content=[agent_message("42")]))
    assert none.reason == "no_answer"


async def test_texts_deep_in_the_arguments_of_a_call_are_its_answer() -> None:
    verifier = AnswerMatch.model_validate({"answer": {"tool": "submit"}})
    for answer in (["Paris"], {"city": {"name": "Paris"}, "sure": True}):
        record = trajectory(content=[called("submit", 1, answer=answer)])
        assert (await verifier.verify(task(goal={"answer": "Paris"}), record)).passed is True


async def test_a_share_may_pass() -> None:
    assert (await judged("red blue", "red green", method="f1", pass_at=0.5)).passed is True


def test_f1_of_words() -> None:
    assert f1(["a", "b", "b"], ["b", "c"]) == pytest.approx(0.4)
    assert (f1([], []), f1(["a"], [])) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("The  Eiffel Tower!", "eiffel tower", True),
        ("$1,234.50", "1234.5", True),
        ("3.0", "30", False),
        ("-2", "2", False),
        ("0", "-0", True),
        ("It is 1.5", "It is 15", False),
        ("-$5 total", "$5 total", False),
        ("\N{MINUS SIGN}$5", "-5", True),
        ("It is 1,500.", "it is 1500", True),
        # Choices, of which SQuAD's normalisation leaves nothing.
        ("A", "(a).", True),
        ("A", "B", False),
        ("?", "!", False),
        ("1e999", "2e999", True),
        ("1e999", "-1e999", False),
        ("10.0.1.12", "10.0.11.2", False),
        (".5", "0.5", True),
    ],
)
def test_answers_that_mean_the_same_have_one_key(one: str, other: str, same: bool) -> None:
    assert (answer_key(one) == answer_key(other)) is same


def test_blank_text_has_no_key() -> None:
    assert answer_key(" \n") is None
