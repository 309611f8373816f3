"""How turns are worded: kept once for a run, and written again to the letter."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmill.schemas.dialects import DIALECTS
from agentmill.schemas.format import Origin
from agentmill.schemas.formats.sharegpt.format import ShareGpt
from agentmill.schemas.messages.surface_text import worded, wording
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, CodeAction, MessageAction, Trajectory
from tests.schemas.formats.test_fuzz import TEXTS
from tests.schemas.records import texts

REACT = ShareGpt(order="as_said", dialect="react")
GO = (
    "Thought: {}\nAction: go[{}]",
    "Thought:\n{}\nAct: go({})",
    'Thought: {}\nAction: go\nAction Input: {{"to": "{}"}}',
)


def read(format_: ShareGpt, said: list[str]) -> Trajectory:
    turns = [{"from": "human", "value": "Go."}, *({"from": "gpt", "value": text} for text in said)]
    return format_.read(msgspec.json.encode({"conversations": turns}), Origin("demo")).trajectory


def said(document: JsonObject) -> list[Any]:
    return [turn["value"] for turn in document["conversations"][1:]]


def test_pieces_are_what_stands_around_what_actions_hold() -> None:
    action = ApiAction(function="go", kwargs={"to": "home", "fast": True, "by": "car"}, description="I am tired.")
    text = "Why: I am tired.\n>>> go(home, True, car)"
    pieces = wording(text, [action])
    assert pieces == ("Why: ", "\n>>> ", "(", ", True, ", ")")
    assert worded(pieces, [action]) == text
    assert worded(pieces, [msgspec.structs.replace(action, function="run")]) == text.replace("go", "run")
    assert worded(pieces, [MessageAction(content="go")]) is None
    assert wording("Why: I am tired.\n>>> go(car, True, home)", [action]) is None


def test_texts_that_begin_alike_are_told_apart() -> None:
    text = "The door of the house is shut. The door of the house is open!"
    found = wording(text, [MessageAction(content="The door of the house is open")])
    assert found == ("The door of the house is shut. ", "!")
    assert wording(text, [MessageAction(content="The door of the house is gone")]) is None


@given(st.lists(st.sampled_from("ab \n"), max_size=9).map("".join), st.lists(st.text("ab", max_size=2), max_size=4))
def test_a_wording_gives_the_text_again(text: str, contents: list[str]) -> None:
    actions: list[AnyAction] = [MessageAction(content=each) for each in contents]
    actions += [CodeAction(language="x", content="b"), ApiAction(function="a", kwargs={}, raw_arguments="")]
    pieces = wording(text, actions)
    assert pieces is None or worded(pieces, actions) == text


@pytest.mark.parametrize("spelled", GO[:2])
def test_what_turns_share_is_noted_once(spelled: str) -> None:
    texts_ = [spelled.format(why, where) for why, where in (("Tired.", "home"), ("Hungry.", "out"), ("", "in"))]
    run = read(REACT, texts_)
    noted = dict(run.extra["sharegpt"]["spelling"])
    assert noted.pop("wording") == list(wording(texts_[0], run.content[1:2]) or ())
    assert noted.keys() == {"3"}
    assert "Tired" not in str(run.extra)
    assert said(REACT.write(run).document) == texts_


def test_the_usual_wording_is_that_of_most_turns() -> None:
    texts_ = [GO[2].format("a", "b"), *(GO[0].format("c", "d"),) * 4, GO[2].format("e", "f"), "Final Answer: g", "Bye."]
    run = read(REACT, texts_)
    assert run.extra["sharegpt"]["spelling"] == {
        "wording": ["Thought: ", "\nAction: ", "[", "]"],
        "1": {"wording": None},
        "6": {"wording": None},
        "7": {"wording": None},
        "8": {"plain": True},
    }
    assert said(REACT.write(run).document) == texts_


def test_the_plainest_wording_is_no_note() -> None:
    assert read(REACT, [GO[2].format("a", "b")] * 2).extra == {}


def test_turns_that_were_changed_are_written_as_what_they_are_now() -> None:
    run = read(REACT, [GO[0].format("a", "b"), GO[0].format("c", "d"), GO[0].format("e", "f")])
    content = [*run.content]
    content[1] = ApiAction(function="go", kwargs={"input": "back"}, description="No.", turn=1)
    content[2] = MessageAction(content="Done.", turn=2)
    content[3] = ApiAction(function="go", kwargs={"input": "x]\nAction: y[z"}, description="e", turn=3)
    written = said(REACT.write(msgspec.structs.replace(run, content=content)).document)
    assert written[:2] == ["Thought: No.\nAction: go[back]", "Final Answer: Done."]
    again = read(REACT, written).content
    assert [action.kwargs for action in again if isinstance(action, ApiAction)] == [
        {"input": "back"},
        {"input": "x]\nAction: y[z"},
    ]


def test_a_wording_that_no_longer_says_the_same_is_left() -> None:
    run = read(REACT, ["Final Answer:A", "Thought: h\nAction: go[x]"])
    assert run.extra["sharegpt"]["spelling"]["wording"] == ["Final ", "nswer:A"]
    first, *rest = run.content[1:]
    content = [msgspec.structs.replace(first, content="42"), msgspec.structs.replace(rest[0], description="We see.")]
    written = said(REACT.write(msgspec.structs.replace(run, content=[run.content[0], *content])).document)
    assert written == ["Final Answer: 42", 'Thought: We see.\nAction: go\nAction Input: {"input": "x"}']


def test_another_dialect_has_its_own_wording() -> None:
    run = read(REACT, [GO[0].format("a", "b"), "Thought: go on.\nAction: go to desk 1"])
    written = said(ShareGpt(order="as_said", dialect="hermes").write(run).document)
    assert written == [
        'a\n<tool_call>\n{"name": "go", "arguments": {"input": "b"}}\n</tool_call>',
        "go on.\ngo to desk 1",
    ]


def test_a_text_that_was_noted_whole_is_written_as_before() -> None:
    run = read(REACT, ["Final Answer: x"])
    noted = msgspec.structs.replace(run, extra={"sharegpt": {"spelling": {"1": {"text": "Final Answer:  x"}}}})
    assert said(REACT.write(noted).document) == ["Final Answer:  x"]


@pytest.mark.parametrize("dialect", DIALECTS)
@given(st.lists(st.one_of(st.sampled_from(tuple(TEXTS.values())), texts), max_size=6))
def test_texts_come_back_to_the_letter(dialect: Any, turns: list[str]) -> None:
    format_ = ShareGpt(order="as_said", dialect=dialect)
    assert said(format_.write(read(format_, turns)).document) == turns
