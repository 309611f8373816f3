"""Runs on web pages: Go-Browse's step rows and Mind2Web's demonstrations by their profiles, BrowserGym's calls."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable
from typing import Any

import pytest

from agentmill.schemas.arrow.convert import from_arrow, to_arrow
from agentmill.schemas.format import FormatError
from agentmill.schemas.formats.adp.format import Adp
from agentmill.schemas.messages.calls import browser_action
from agentmill.schemas.profiles.profile import ReadRecord
from agentmill.schemas.records.trajectory import (
    ApiAction,
    CodeAction,
    MessageAction,
    Outcome,
    TextObservation,
    Trajectory,
    WebObservation,
)
from tests.pipelines.operators.test_normalize_datasets import DATASETS, profile
from tests.schemas.formats.adp_rules import broken
from tests.schemas.formats.leaves import held, leaves
from tests.schemas.formats.log_records import GO_BROWSE, MIND2WEB, TASK


def read(name: str, record: Any) -> ReadRecord:
    """What the profile of a data set makes of one record."""
    return profile(DATASETS / f"{name}.yaml").reader().read(json.dumps(record).encode(), 0, 0)


def run(name: str, record: Any) -> Trajectory:
    """The one trajectory of a record."""
    (only,) = read(name, record).trajectories
    return only


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
    found = run("go_browse", GO_BROWSE)
    task, page, click, after, fill = found.content
    assert task == TextObservation(content=TASK, source="user")
    assert page == WebObservation(axtree="[0] link 'Find'", html="<a bid='0'>")
    assert isinstance(click, ApiAction)
    assert (click.function, click.kwargs, click.description, click.turn) == ("click", {"bid": "149"}, "Look.", 1)
    assert isinstance(after, WebObservation)
    assert (after.tool_call_id, after.turn, after.error) == (click.tool_call_id, 1, True)
    assert (fill.tool_call_id, fill.turn) == (None, 2)
    assert found.outcome == Outcome(status="failure", reward=0.0)
    assert found.task_id == TASK
    kept = found.extra["steps"]
    assert kept["traj_data"]["traj_num"] == 3
    assert kept["content"]["3"]["step_data"]["obs"]["last_action_error"] == "no such element"
    assert read("go_browse", GO_BROWSE).remarks == {"unanswered_call": 1}


def test_what_a_step_of_go_browse_says_otherwise_is_kept() -> None:
    odd = run("go_browse", changed(0, parsed_action="click(bid)"))
    assert odd.content[2] == CodeAction(
        language="python", content="click(bid)", description="Look.", turn=1, tool_call_id="call_2"
    )
    silent = run("go_browse", changed(1, parsed_action="", action="I give up.", thought=None))
    assert silent.content[-1] == MessageAction(content="I give up.", turn=2)
    ended = run("go_browse", changed(1, parsed_action=None, action=None, thought=None))
    assert [type(item) for item in ended.content[-2:]] == [ApiAction, WebObservation]
    for refused in ([{}], changed(0, parsed_action=5, action=5, thought=5)[:1]):
        with pytest.raises(FormatError, match="invalid"):
            read("go_browse", refused)


def test_a_demonstration_of_mind2web_is_a_run() -> None:
    found = run("mind2web", MIND2WEB)
    task, page, click, after, typed = found.content
    assert task == TextObservation(content=TASK, source="user")
    assert page == WebObservation(html="<input backend_node_id=1>")
    assert isinstance(click, ApiAction)
    assert (click.function, click.kwargs, click.description) == ("CLICK", {"backend_node_id": "1"}, None)
    assert (after.tool_call_id, after.turn) == (click.tool_call_id, 1)
    assert isinstance(typed, ApiAction)
    assert (typed.function, typed.kwargs) == ("TYPE", {"backend_node_id": "2", "value": "floor"})
    assert found.outcome == Outcome()
    kept = found.extra["steps"]
    assert kept["action_reprs"] == MIND2WEB["action_reprs"]
    assert kept["content"]["3"]["neg_candidates"] == MIND2WEB["actions"][1]["neg_candidates"]
    for refused in ({"actions": []}, {"actions": [{}]}, {**MIND2WEB, "actions": None}):
        with pytest.raises(FormatError, match="invalid"):
            read("mind2web", refused)


def test_an_element_of_mind2web_that_is_no_original_target_is_the_first_that_would_do() -> None:
    record = copy.deepcopy(MIND2WEB)
    for step in record["actions"]:
        step["pos_candidates"] = [{"backend_node_id": "7"}, {"backend_node_id": "8"}]
    found = read("mind2web", record)
    calls = [item for item in found.trajectories[0].content if isinstance(item, ApiAction)]
    assert [each.kwargs["backend_node_id"] for each in calls] == ["7", "7"]
    assert not any(name.startswith("no_field") for name in found.remarks)


@pytest.mark.parametrize(("name", "record"), [("go_browse", GO_BROWSE), ("mind2web", MIND2WEB)])
def test_nothing_is_lost_and_runs_are_sound_in_tables_and_in_adp(name: str, record: Any) -> None:
    found = run(name, record)
    assert words(leaves(record)) <= words(held([found]))
    assert from_arrow(to_arrow([found], Trajectory), Trajectory) == [found]
    assert broken(Adp().write(found).document, "1.5") == []
