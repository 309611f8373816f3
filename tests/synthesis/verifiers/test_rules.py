"""Rules over actions, each form with what keeps it, what breaks it, where, and where it does not apply."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentmill.schemas.config import validate
from agentmill.schemas.records.trajectory import AnyItem, CodeAction, Trajectory
from agentmill.synthesis.verifiers.rules import Rule, last_answer
from tests.builders import agent_message, called, generation, instruction, seen, tool, trajectory
from tests.errors import user_error


def run(*names: str) -> Trajectory:
    """A call per turn: ``name``, ``name!`` that is answered with an error, or ``name=text`` with an argument."""
    content: list[AnyItem] = [instruction("Buy 3 apples for 4.50 each."), seen("Shop.", state_digest="s0")]
    for turn, given in enumerate(names, start=1):
        name, _, text = given.partition("=")
        call_id = f"call{turn}"
        content += [
            called(name.rstrip("!"), turn, call_id, **({"text": text} if text else {})),
            seen("ok", turn, tool_call_id=call_id, error=name.endswith("!"), state_digest=f"s{turn}"),
        ]
    return trajectory(content=content, tools=[tool("a"), tool("b"), tool("submit", text={"type": "string"})])


def item(turn: int) -> int:
    """Where the call of a turn is."""
    return 2 * turn


def broken(rule: dict[str, Any], given: Trajectory) -> list[int | None] | None:
    """The items that break a rule."""
    found = Rule(id="r", **rule).violations(given, "Buy 3 apples for 4.50 each.")
    return None if found is None else [each.item for each in found]


A, B = {"tool": "a"}, {"tool": "b"}


@pytest.mark.parametrize(
    ("rule", "calls", "expected"),
    [
        ({"never": A}, ["b", "b"], []),
        ({"never": A}, ["b", "a", "a"], [item(2), item(3)]),
        ({"never": {"tool": "*"}}, ["b"], [item(1)]),
        ({"never": {"tool": "a", "error": True}}, ["a", "a!"], [item(2)]),
        ({"never": {"tool": "a", "error": False}}, ["a", "a!"], [item(1)]),
        ({"before": [A, B]}, ["a", "b", "b"], []),
        ({"before": [A, B]}, ["b", "a", "b"], [item(1)]),
        ({"before": [A, B]}, ["b", "b"], [item(1), item(2)]),
        ({"before": [A, B]}, ["a"], []),
        ({"before": [A, B]}, [], []),
        ({"after": [A, B]}, ["a", "a", "b"], []),
        ({"after": [A, B]}, ["a", "b", "a"], [item(3)]),
        ({"after": [A, B]}, ["b"], []),
        ({"after": [A, A]}, ["a", "a"], [item(2)]),
        ({"at_least": 2, "of": A}, ["a", "a"], []),
        ({"at_least": 2, "of": A}, ["a"], [None]),
        ({"at_most": 1, "of": A}, ["a"], []),
        ({"at_most": 1, "of": A}, ["a", "b", "a", "a"], [item(3), item(4)]),
        ({"at_most": 0, "of": A}, ["a"], [item(1)]),
        ({"within": 2, "of": A}, ["b", "a"], []),
        ({"within": 2, "of": A}, ["b", "b", "a"], [None]),
        ({"within": 1, "of": B, "since": A}, ["a", "b"], []),
        ({"within": 1, "of": B, "since": A}, ["a", "a", "b"], [item(1)]),
        ({"within": 1, "of": B, "since": A}, ["b"], None),
        ({"never": A, "when": B}, ["a"], None),
        ({"never": A, "when": B}, ["a", "b"], [item(1)]),
        ({"never": A, "when": {"observation": "^ok$"}}, ["a"], [item(1)]),
        ({"repeats": 2}, ["a", "a", "b", "a", "a"], []),
        ({"repeats": 2}, ["a", "a", "a", "a"], [item(3), item(4)]),
        ({"repeats": 1}, ["a", "a!", "a=x", "a"], [item(2)]),
        ({"legal": True}, ["a", "b"], []),
        ({"legal": True}, ["a", "c", "submit"], [item(2)]),
    ],
)
def test_order_and_number(rule: dict[str, Any], calls: list[str], expected: list[int | None] | None) -> None:
    assert broken(rule, run(*calls)) == expected


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        ({"json": True}, '{"a": 1}', []),
        ({"json": True}, 'Sure: {"a": 1}', [item(1)]),
        ({"matches": r"^Answer: \d+$"}, "Answer: 3", []),
        ({"matches": r"^Answer: \d+$"}, "3", [item(1)]),
        ({"lacks": "(?i)sorry"}, "I am Sorry", [item(1)]),
        ({"lacks": "(?i)sorry"}, "Done", []),
        ({"most_words": 2}, "one two", []),
        ({"most_words": 2}, "one two three", [item(1)]),
        ({"least_words": 2}, "one", [item(1)]),
        ({"least_words": 1, "most_words": 3}, "one two", []),
        ({"most_lines": 1}, "one\ntwo", [item(1)]),
        ({"most_lines": 1}, "one\n", []),
        ({"json": True, "most_words": 1}, "[1, 2]", [item(1)]),
    ],
)
def test_the_form_of_the_answer(form: dict[str, Any], text: str, expected: list[int]) -> None:
    given = run()
    given = trajectory(content=[*given.content, agent_message(text, 1)])
    assert broken({"answer": form}, given) == expected


def test_an_answer_that_is_missing_breaks_its_form() -> None:
    assert broken({"answer": {"most_words": 5}}, trajectory(content=[instruction()])) == [None]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3 apples at 4.5", []),
        ("That is 13.50.", [item(1)]),
        ("13.5 and 14", [item(1), item(1)]),
        ("There are 1,200 left", []),
        ("None.", None),
        ("v2 and x3", None),
    ],
)
def test_numbers_of_the_answer_were_seen(text: str, expected: list[int] | None) -> None:
    content = [instruction("Buy."), seen("1200 in stock"), agent_message(text, 1)]
    found = broken({"grounded": "numbers"}, trajectory(content=content))
    assert found == (None if expected is None else [2] * len(expected))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"guest": "Ada Young", "nights": 3}, []),
        ({"guest": "ada young", "rooms": [14, 15]}, [4]),
        ({"guest": "Ada", "nights": 1, "vip": True}, [4]),
        ({"note": {"guest": "Ben"}}, [4]),
        ({"note": "sea view"}, []),
        ({"vip": True}, None),
        ({}, None),
    ],
)
def test_values_in_calls_were_said_before(arguments: dict[str, Any], expected: list[int] | None) -> None:
    content: list[AnyItem] = [
        instruction("Book room 15 for Ben."),
        seen("room 14 is free for 2.1 nights"),
        agent_message("I am Ada Young, 3 nights, sea view", 1, agent="user", role="speaker"),
        agent_message("Ben or room 15?", 1, agent="clerk", role="speaker"),
        msgspec.structs.replace(called("book", 2, "c1", **arguments), agent="clerk", role="actor"),
        msgspec.structs.replace(called("finish", 3, "c2", answer="done, 99"), agent="clerk", role="actor"),
    ]
    roles = {"user": {"system_prompt": "", "person": True}, "clerk": {"system_prompt": "", "acts": True, "told": False}}
    given = trajectory(content=content, extra={"roles": roles}, generation=generation(strategy="multi_agent"))
    assert broken({"grounded": "arguments"}, given) == expected
    with_task = validate(Rule, {"id": "r", "grounded": "arguments"}, "rule").violations(given, "Book room 15 for Ben.")
    assert (with_task and [each.item for each in with_task]) == expected


def test_numbers_in_calls_are_compared_as_numbers() -> None:
    content: list[AnyItem] = [
        seen("It costs $1,250 for 12.50 kg."),
        called("pay", 1, "c1", amount=1250.0, weight=12.5, rate=4),
        called("finish", 2, "c2"),
    ]
    rule = validate(Rule, {"id": "r", "grounded": "arguments"}, "rule")
    assert [each.detail for each in rule.violations(trajectory(content=content)) or []] == ["4 was never seen"]


def test_the_task_grounds_values_where_it_is_known() -> None:
    given = trajectory(content=[called("book", 1, "c1", guest="Ada"), called("finish", 2, "c2")])
    rule = validate(Rule, {"id": "r", "grounded": "arguments"}, "rule")
    assert [each.item for each in rule.violations(given) or []] == [0]
    assert rule.violations(given, "Book for Ada.") == []


def test_turns_that_change_nothing() -> None:
    def states(*digests: str | None) -> Trajectory:
        content: list[AnyItem] = [seen("", state_digest=digests[0])]
        for turn, digest in enumerate(digests[1:], start=1):
            content += [agent_message("go", turn), seen("", turn, state_digest=digest)]
        return trajectory(content=content)

    assert broken({"idle": 0.5}, states("s", "s", "t")) == []
    assert broken({"idle": 0.4}, states("s", "s", "t")) == [1]
    assert broken({"idle": 0.0}, states("s", "s", "t", "t")) == [1, 5]
    assert broken({"idle": 0.5}, states(None, None)) is None


def test_patterns_of_code_arguments_and_messages() -> None:
    content = [
        CodeAction(language="bash", content="rm -rf /tmp/x", turn=1),
        called("write", 2, "c2", path="/etc/passwd", times=2, force=True),
        agent_message("Sorry, I cannot.", 3),
        agent_message("Delete it?", 4, role="proposer"),
    ]
    given = trajectory(content=content)

    def fits(**pattern: Any) -> list[int | None] | None:
        return broken({"never": pattern}, given)

    assert fits(code=r"rm -rf") == fits(code="rm", language="bash") == [0]
    assert fits(code="rm", language="python") == []
    assert fits(tool="write", arguments={"path": "/etc/*"}) == [1]
    assert fits(tool="write", arguments={"path": "/etc/p[a-z]*"}) == [], "brackets are plain characters"
    assert fits(tool="write", arguments={"times": 2, "force": True}) == [1]
    assert fits(tool="write", arguments={"times": True}) == fits(tool="write", arguments={"none": 1}) == []
    assert fits(message="(?i)sorry") == [2]
    assert fits(message="Delete") == [], "what was proposed was not done"
    assert fits(tool="*") == [1]


def test_no_tools_no_legality() -> None:
    assert broken({"legal": True}, trajectory()) is None


def test_the_last_answer_is_a_message_a_call_or_code() -> None:
    assert last_answer(run("a", "submit=done").content) == (item(2), "done")
    assert last_answer([agent_message("Hi", 1), agent_message("Aside", 2, role="speaker")]) == (0, "Hi")
    assert last_answer([]) == (None, "")


def test_flags_of_a_call_are_no_part_of_its_answer() -> None:
    assert last_answer([called("submit", 1, answer="Paris", year=1889, final=True)]) == (0, "Paris\n1889")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({}, ("rule-broken", "no form", "never")),
        ({"never": A, "at_least": 1, "of": A}, ("rule-broken", "never and at_least")),
        ({"never": A, "of": A}, ("rule-broken", "`of` goes with")),
        ({"at_most": 1}, ("rule-broken", "`of` goes with")),
        ({"never": A, "since": B}, ("rule-broken", "`since` goes with `within`")),
        ({"never": {}}, ("rule-broken", "names one of tool, code")),
        ({"never": {"tool": "a", "code": "b"}}, ("rule-broken", "names one of")),
        ({"never": {"message": "a", "arguments": {"x": 1}}}, ("rule-broken", "`arguments` goes with `tool`")),
        ({"never": {"message": "("}}, ("rule-broken", "no regular expression")),
        ({"never": {"tol": "a"}}, ("unknown-key", "'tol'", "tool")),
        ({"nevr": A}, ("unknown-key", "'nevr'", "never")),
        ({"answer": {}}, ("rule-broken", "asks nothing")),
        ({"before": [A]}, ("missing-key",)),
        ({"grounded": "words"}, ("invalid-value", "numbers")),
        ({"idle": 2}, ("invalid-value", "idle")),
    ],
)
def test_the_grammar_refuses_what_it_does_not_know(rule: dict[str, Any], message: tuple[str, ...]) -> None:
    with user_error(*message):
        validate(Rule, {"id": "r", **rule}, "rule")
