"""Runs on web pages: Go-Browse's step rows, Mind2Web's demonstrations, and BrowserGym's calls."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable
from typing import Any

import pytest

from schemas.arrow import from_arrow, to_arrow
from schemas.formats.adp import Adp
from schemas.formats.browser_calls import browser_action
from schemas.formats.format import FormatError, Origin, Read
from schemas.formats.go_browse import GoBrowse
from schemas.formats.mind2web import Mind2Web
from schemas.trajectory import (
    ApiAction,
    CodeAction,
    MessageAction,
    Outcome,
    TextObservation,
    Trajectory,
    WebObservation,
)
from tests.schemas.formats.adp_rules import broken
from tests.schemas.formats.leaves import held, leaves
from tests.schemas.formats.log_records import GO_BROWSE, MIND2WEB, TASK


def read(format_: Any, record: Any) -> Read:
    found: Read = format_.read(json.dumps(record).encode(), Origin("d"))
    return found


def words(texts: Iterable[str]) -> set[str]:
    return {word for text in texts for word in re.findall(r"\w+", text)}


def changed(place: int, **step: Any) -> list[Any]:
    """Go-Browse's rows with other values in one step."""
    rows = copy.deepcopy(GO_BROWSE)
    rows[place]["step_data"].update(step)
    return rows


@pytest.mark.parametrize(
    ("text", "function", "kwargs"),
    [
        ("click('149')", "click", {"bid": "149"}),
        ("fill('158', \"it's, (a) town\")", "fill", {"bid": "158", "value": "it's, (a) town"}),
        ("scroll(0, -200.5)\n", "scroll", {"delta_x": 0, "delta_y": -200.5}),
        ("select_option('9', ['a', 'b'])", "select_option", {"bid": "9", "options": ["a", "b"]}),
        ("click('1', modifiers=['Control'])", "click", {"bid": "1", "modifiers": ["Control"]}),
        ("noop()", "noop", {}),
        ("fly(to='box')", "fly", {"to": "box"}),
    ],
)
def test_a_call_with_plain_values_is_a_call(text: str, function: str, kwargs: dict[str, Any]) -> None:
    assert browser_action(text) == ApiAction(function=function, kwargs=kwargs)


@pytest.mark.parametrize(
    "text",
    [
        *("click(bid)", "click('1'); click('2')", "click('1', bid='1')", "click('1'", "page.click('1')", "fly('box')"),
        *(
            "noop(*[1])",
            "noop(**{'wait_ms': 1})",
            "noop(1e999)",
            "noop(b'')",
            "goto('\\ud800')",
            "noop(" * 2000,
            "\x00",
        ),
        "__import__('os').system('true')",
    ],
)
def test_anything_else_stays_code(text: str) -> None:
    assert browser_action(text) == CodeAction(language="python", content=text)


def test_steps_of_go_browse_are_a_run() -> None:
    found = read(GoBrowse(), GO_BROWSE)
    task, page, click, after, fill = found.trajectory.content
    assert task == TextObservation(content=TASK, source="user")
    assert page == WebObservation(axtree="[0] link 'Find'", html="<a bid='0'>")
    assert isinstance(click, ApiAction)
    assert (click.function, click.kwargs, click.description, click.turn) == ("click", {"bid": "149"}, "Look.", 1)
    assert isinstance(after, WebObservation)
    assert (after.tool_call_id, after.turn, after.error) == (click.tool_call_id, 1, True)
    assert (fill.tool_call_id, fill.turn) == (None, 2)
    assert found.trajectory.outcome == Outcome(status="failure", reward=0.0)
    kept = found.trajectory.extra["go_browse"]
    assert kept["traj_data"] == {"misc": {}, "response": "N/A", "traj_num": 3}
    assert kept["content"]["3"] == {"axtree_visible_only_txt": "[1] link", "last_action_error": "no such element"}
    assert kept["content"]["4"] == {"misc": {"model_usage": {"total_tokens": 7}}}
    assert found.remarks == {"unanswered_call": 1}
    assert not found.losses


def test_what_a_step_says_otherwise_is_kept() -> None:
    row = {**GO_BROWSE[0], "graph_data": {"domain": "shop"}}
    assert read(GoBrowse(), [GO_BROWSE[0], row]).trajectory.extra["go_browse"]["content"]["3"]["graph_data"] == {
        "domain": "shop"
    }
    found = read(GoBrowse(), changed(0, action="Well: click", thought=None)).trajectory
    assert found.extra["go_browse"]["content"]["2"]["action"] == "Well: click"
    assert found.extra["go_browse"]["content"]["3"]["last_action"] == GO_BROWSE[1]["step_data"]["obs"]["last_action"]
    silent = read(GoBrowse(), changed(1, parsed_action="", action="I give up.", thought=None)).trajectory
    assert silent.content[-1] == MessageAction(content="I give up.", turn=2)
    ended = read(GoBrowse(), changed(1, parsed_action=None, action=None, thought=None)).trajectory
    assert [type(item) for item in ended.content[-2:]] == [ApiAction, WebObservation]
    for refused in ([], [{}], changed(0, parsed_action=5, action=5, thought=5)[:1]):
        with pytest.raises(FormatError, match="invalid"):
            read(GoBrowse(), refused)


def test_a_demonstration_of_mind2web_is_a_run() -> None:
    found = read(Mind2Web(), MIND2WEB)
    task, page, click, after, typed = found.trajectory.content
    assert task == TextObservation(content=TASK, source="user")
    assert page == WebObservation(html="<input backend_node_id=1>")
    assert isinstance(click, ApiAction)
    assert (click.function, click.kwargs, click.description) == ("CLICK", {"backend_node_id": "1"}, None)
    assert (after.tool_call_id, after.turn) == (click.tool_call_id, 1)
    assert isinstance(typed, ApiAction)
    assert (typed.function, typed.kwargs) == ("TYPE", {"backend_node_id": "2", "value": "floor"})
    assert found.trajectory.outcome == Outcome()
    kept = found.trajectory.extra["mind2web"]
    assert kept["action_reprs"] == MIND2WEB["action_reprs"]
    assert kept["content"]["3"]["neg_candidates"] == MIND2WEB["actions"][1]["neg_candidates"]
    assert kept["content"]["4"] == {"original_op": "TYPE"}
    for refused in ({"actions": []}, {"actions": [{}]}, {**MIND2WEB, "actions": None}):
        with pytest.raises(FormatError, match="invalid"):
            read(Mind2Web(), refused)


@pytest.mark.parametrize(("format_", "record"), [(GoBrowse(), GO_BROWSE), (Mind2Web(), MIND2WEB)])
def test_nothing_is_lost_and_runs_are_sound_in_tables_and_in_adp(format_: Any, record: Any) -> None:
    run = read(format_, record).trajectory
    assert words(leaves(record)) <= words(held([run]))
    assert from_arrow(to_arrow([run], Trajectory), Trajectory) == [run]
    assert broken(Adp().write(run).document, "1.5") == []
