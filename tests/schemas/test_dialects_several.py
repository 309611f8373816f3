"""Several dialects in one profile: the first that reads a turn counts, and every turn is written as it was."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentmill.schemas.config import validate
from agentmill.schemas.dialects.options import WithDialect
from agentmill.schemas.format import FormatError, Origin
from agentmill.schemas.formats.sharegpt.format import ShareGpt
from agentmill.schemas.messages.dialect import write_actions
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, CodeAction, MessageAction
from tests.errors import user_error

BOTH: dict[str, Any] = {
    "dialect": ["react", "fenced"],
    "dialect_options": {"react": {"parameters": {"look": ["what", "where"]}}, "fenced": {"languages": ["bash"]}},
}
REACT = "Thought: hm\nAction: look[box, hall]"
FENCED = "I list them.\n```bash\nls\n```"


def option(**given: Any) -> WithDialect:
    checked: WithDialect = validate(WithDialect, given, "options")
    return checked


def test_the_first_dialect_that_reads_a_turn_counts() -> None:
    chosen_dialect = option(**BOTH).chosen_dialect
    assert chosen_dialect is not None
    found = {text: chosen_dialect.read(text) for text in (REACT, FENCED, "Hi.")}
    look = ApiAction(function="look", kwargs={"what": "box", "where": "hall"}, description="hm")
    assert {text: spoken and spoken.actions for text, spoken in found.items()} == {
        REACT: [look],
        FENCED: [CodeAction(language="bash", content="ls", description="I list them.")],
        "Hi.": None,
    }


@pytest.mark.parametrize(("order", "kind"), [(["execute", "hermes"], CodeAction), (["hermes", "execute"], ApiAction)])
def test_the_order_of_dialects_decides_where_both_read_a_turn(order: list[str], kind: type[AnyAction]) -> None:
    chosen_dialect = option(dialect=order).chosen_dialect
    assert chosen_dialect is not None
    spoken = chosen_dialect.read('<execute>1</execute>\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>')
    assert spoken is not None
    assert [type(action) for action in spoken.actions if not isinstance(action, MessageAction)] == [kind]


def test_turns_of_both_dialects_are_written_as_they_were() -> None:
    said = [("human", "Do."), ("gpt", REACT), ("human", "a box"), ("gpt", FENCED), ("human", "x y"), ("gpt", "Done.")]
    row = {"conversations": [{"from": speaker, "value": text} for speaker, text in said]}
    form: ShareGpt = validate(ShareGpt, BOTH, "options")
    read = form.read(msgspec.json.encode(row), Origin("d"))
    assert [type(item) for item in read.trajectory.content[1::2]] == [ApiAction, CodeAction, MessageAction]
    assert [getattr(item, "source", None) for item in read.trajectory.content[::2]] == ["user", *["environment"] * 2]
    assert form.write(read.trajectory).document == row


@pytest.mark.parametrize("action", [ApiAction(function="f", kwargs={}), CodeAction(language="bash", content="ls")])
def test_a_call_is_written_in_the_first_dialect_that_has_words_for_it(action: AnyAction) -> None:
    chosen_dialect = option(dialect=["execute", "hermes"]).chosen_dialect
    assert chosen_dialect is not None
    text = write_actions(chosen_dialect, [action])
    assert ("<tool_call>" in text) is isinstance(action, ApiAction)
    spoken = chosen_dialect.read(text)
    assert spoken is not None
    assert spoken.actions == [action]


def test_a_call_that_no_dialect_has_words_for_is_refused() -> None:
    chosen_dialect = option(dialect=["execute", "fenced"]).chosen_dialect
    assert chosen_dialect is not None
    with pytest.raises(FormatError, match="unsayable"):
        write_actions(chosen_dialect, [ApiAction(function="f", kwargs={})])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"dialect": ["react", "react"]}, ("rule-broken", "dialect")),
        ({"dialect": []}, ("rule-broken", "dialect")),
        ({"dialect": ["react", "fencd"]}, ("rule-broken", "dialect", "react")),
    ],
)
def test_mistakes_in_a_list_of_dialects_are_told(given: dict[str, Any], words: tuple[str, ...]) -> None:
    with user_error(*words):
        option(**given)


def test_options_of_several_dialects_go_by_name() -> None:
    with user_error("unknown-name", "fenced"):
        _ = option(dialect=["react", "fenced"], dialect_options={"fencd": {}}).chosen_dialect
    with user_error("invalid-value", "fenced", "language"):
        _ = option(dialect=["react", "fenced"], dialect_options={"fenced": {"language": ["bash"]}}).chosen_dialect
