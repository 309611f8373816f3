"""Records of steps, as several data sets publish them, are read by a profile alone."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from agentmill.schemas.arrow.convert import from_arrow, to_arrow
from agentmill.schemas.config import validate
from agentmill.schemas.errors import UserError
from agentmill.schemas.format import FormatError, Origin, Read
from agentmill.schemas.formats.steps.format import Steps
from agentmill.schemas.formats.steps.paths import value_at, without
from agentmill.schemas.records.trajectory import (
    ApiAction,
    CodeAction,
    ImageObservation,
    MessageAction,
    Outcome,
    TextObservation,
    Trajectory,
    WebObservation,
)
from tests.errors import user_error
from tests.pipelines.operators.steps import run as run_step
from tests.pipelines.operators.steps import stage
from tests.pipelines.operators.test_normalize import runs_of, write
from tests.schemas.formats.leaves import held, leaves
from tests.schemas.formats.log_records import MIND2WEB
from tests.schemas.formats.test_browsing import words


def read(record: Any, **options: Any) -> Read:
    form: Steps = validate(Steps, options, "options of steps")
    return form.read(json.dumps(record).encode(), Origin("d"))


CLICK_PAGE = {"action_type": "click", "x": 313, "y": 708}
ANDROID: dict[str, Any] = {
    "episode_id": 7,
    "goal": "Open the clock.",
    "screenshots": ["7/0.png", "7/1.png", "7/2.png"],
    "accessibility_trees": ["home", "apps", "clock"],
    "actions": [json.dumps(CLICK_PAGE), json.dumps({"action_type": "open_app", "app_name": "Clock"})],
    "step_instructions": ["Click on the menu.", "Open Clock."],
}
"""An episode in the fields of AndroidControl: lists that go along together, with one screen more than actions."""

ANDROID_OPTIONS: dict[str, Any] = {
    "lists": ["screenshots", "accessibility_trees", "actions", "step_instructions"],
    "goal": "goal",
    "observation": {"axtree": "accessibility_trees", "image": "screenshots"},
    "action": {"name": "actions.action_type", "arguments": "actions"},
    "thought": "step_instructions",
}

OMNIACT: dict[str, Any] = {
    "task": "Highlight the first email",
    "image": "data/desktop/outlook/screen_1.png",
    "box": "data/metadata/outlook/boxes/screen_1.json",
    "script": "pyautogui.moveTo(1563.0, 288.0)\npyautogui.click()",
}
OMNIACT_OPTIONS: dict[str, Any] = {"goal": "task", "observation": {"image": "image"}, "action": {"code": "script"}}

TURKING: list[dict[str, Any]] = [
    {
        "task": "Sentiment",
        "instance": 3,
        "step": 1,
        "html": "<p>Good!</p>",
        "action": "modify_radio(input='q', value='1')",
    },
    {
        "task": "Sentiment",
        "instance": 3,
        "step": 2,
        "html": "<p>Sure?</p>",
        "action": "modify_text(input='why', value='so')",
    },
]
TURKING_OPTIONS: dict[str, Any] = {
    "goal": "task",
    "observation": {"html": "html"},
    "action": {"text": "action"},
    "dialect": "calls",
}

WEBLINX: list[dict[str, Any]] = [
    {
        "demo": "apfyesq",
        "turn": 2,
        "utterances": "[00:07] Find a recipe.",
        "clean_html": "<html data-webtasks-id='a'>",
        "viewport": "746h x 1536w",
        "candidates": "(uid = 67e2) [[tag]] a",
        "action": 'say(speaker="navigator", utterance="Sure.")',
    },
    {
        "demo": "apfyesq",
        "turn": 3,
        "utterances": "[00:07] Find a recipe.",
        "clean_html": "<html data-webtasks-id='b'>",
        "viewport": "746h x 1536w",
        "candidates": "(uid = 67e3) [[tag]] b",
        "action": 'click(uid="67e3")',
    },
]
WEBLINX_OPTIONS: dict[str, Any] = {
    "goal": "utterances",
    "observation": {"html": "clean_html"},
    "action": {"text": "action"},
    "dialect": "calls",
}

NAMES = {"input", "value", "speaker", "utterance"}
"""Of arguments."""

SETS = {
    "android": (ANDROID, ANDROID_OPTIONS),
    "omniact": (OMNIACT, OMNIACT_OPTIONS),
    "turking": (TURKING, TURKING_OPTIONS),
    "weblinx": (WEBLINX, WEBLINX_OPTIONS),
}


@pytest.mark.parametrize("name", SETS)
def test_nothing_is_lost_and_runs_are_sound_in_tables(name: str) -> None:
    record, options = SETS[name]
    found = read(record, **options)
    assert words(leaves(record)) - NAMES <= words(held([found.trajectory]))
    assert from_arrow(to_arrow([found.trajectory], Trajectory), Trajectory) == [found.trajectory]
    assert not any(reason.startswith("no_field") for reason in found.remarks)


def test_lists_that_go_along_together_are_steps() -> None:
    found = read(ANDROID, **ANDROID_OPTIONS)
    goal, home, click, apps, open_app, clock = found.trajectory.content
    assert goal == TextObservation(content="Open the clock.", source="user")
    assert isinstance(home, WebObservation)
    assert home.image_observation == ImageObservation(content="7/0.png", source="environment")
    assert isinstance(click, ApiAction)
    assert (click.function, click.kwargs, click.description) == ("click", {"x": 313, "y": 708}, "Click on the menu.")
    assert isinstance(apps, WebObservation)
    assert (apps.axtree, apps.tool_call_id, apps.turn) == ("apps", click.tool_call_id, 1)
    assert isinstance(open_app, ApiAction)
    assert (open_app.function, open_app.kwargs) == ("open_app", {"app_name": "Clock"})
    assert (clock.tool_call_id, clock.turn) == (open_app.tool_call_id, 2)
    assert found.trajectory.extra == {"steps": {"episode_id": 7}}


def test_a_record_may_be_one_step_of_code() -> None:
    found = read(OMNIACT, **OMNIACT_OPTIONS).trajectory
    goal, screen, script = found.content
    assert goal == TextObservation(content="Highlight the first email", source="user")
    assert screen == ImageObservation(content="data/desktop/outlook/screen_1.png", source="environment")
    assert script == CodeAction(language="python", content=OMNIACT["script"], turn=1)
    assert found.extra == {"steps": {"content": {"1": {"box": OMNIACT["box"]}}}}


def test_rows_of_a_group_are_steps_by_profile(tmp_path: Path) -> None:
    rows = [*reversed(WEBLINX), {**WEBLINX[0], "demo": "other", "action": "load(url='x')"}]
    data = write(tmp_path / "d.jsonl", *rows)
    run_step(
        *(tmp_path, "normalize", "t"),
        data=[data],
        dataset="McGill-NLP/WebLINX",
        format="steps",
        options=WEBLINX_OPTIONS,
        group={"by": ["demo"], "order": "turn"},
        task_id="demo",
    )
    first, other = runs_of(tmp_path / "t")
    assert [each.task_id for each in (first, other)] == ["apfyesq", "other"]
    goal, page, say, after, click = first.content
    assert isinstance(goal, TextObservation)
    assert (goal.content, goal.source) == ("[00:07] Find a recipe.", "user")
    assert isinstance(page, WebObservation)
    assert isinstance(say, ApiAction)
    assert (say.function, say.kwargs) == ("say", {"speaker": "navigator", "utterance": "Sure."})
    assert (after.tool_call_id, after.turn) == (say.tool_call_id, 1)
    assert isinstance(click, ApiAction)
    assert (click.function, click.kwargs, click.turn) == ("click", {"uid": "67e3"}, 2)
    kept = first.extra["steps"]
    assert (kept["demo"], kept["viewport"]) == ("apfyesq", "746h x 1536w")
    assert kept["content"]["3"] == {"turn": 3, "candidates": "(uid = 67e3) [[tag]] b"}


def test_pages_and_calls_of_annotation_tasks() -> None:
    goal, page, radio, after, text = read(TURKING, **TURKING_OPTIONS).trajectory.content
    assert page == WebObservation(html="<p>Good!</p>")
    assert isinstance(radio, ApiAction)
    assert (radio.function, radio.kwargs) == ("modify_radio", {"input": "q", "value": "1"})
    assert isinstance(after, WebObservation)
    assert isinstance(text, ApiAction)
    assert text.kwargs == {"input": "why", "value": "so"}
    assert isinstance(goal, TextObservation)
    assert goal.content == "Sentiment"


def test_thoughts_rewards_errors_and_steps_without_an_action() -> None:
    rows = [
        {"see": "a hall", "do": "go(to='box')", "why": "I look.", "r": 0},
        {"see": "nothing", "bad": "no way", "do": None, "why": "Hm."},
        {"see": "a box", "bad": "", "do": "Found it.", "r": 1.5},
    ]
    options = {
        "observation": {"text": "see", "error": "bad"},
        "action": {"text": "do"},
        "thought": "why",
        "reward": "r",
    }
    found = read(rows, **options, dialect="calls")
    hall, go, nothing, hm, box, last = found.trajectory.content
    assert isinstance(hall, TextObservation)
    assert hall.source == "environment"
    assert (go.description, go.reward) == ("I look.", 0.0) if isinstance(go, ApiAction) else None
    assert (nothing.error, nothing.tool_call_id) == (True, go.tool_call_id)
    assert hm == MessageAction(content="Hm.", turn=2)
    assert not box.error
    assert last == MessageAction(content="Found it.", turn=3, reward=1.5)
    assert found.trajectory.extra["steps"]["content"]["2"] == {"bad": "no way", "do": None}
    assert found.trajectory.outcome == Outcome()


def test_a_thought_with_a_message_is_its_description() -> None:
    rows = [{"see": "a box", "do": "", "say": "The answer is 42.", "why": "I know."}]
    options = {"observation": {"text": "see"}, "action": {"text": "do", "message": "say"}, "thought": "why"}
    message = read(rows, **options, dialect="calls").trajectory.content[-1]
    assert message == MessageAction(content="The answer is 42.", description="I know.", turn=1)


@pytest.mark.parametrize(
    ("cell", "error"), [("False", False), ("0", False), ("None", False), ("no", False), ("E2", True)]
)
def test_cells_without_an_error(cell: str, error: bool) -> None:
    options = {"observation": {"text": "see", "error": "bad"}, "action": {"text": "do"}}
    seen = read([{"see": "a box", "bad": cell, "do": "open"}], **options).trajectory.content[0]
    assert isinstance(seen, TextObservation)
    assert seen.error is error


SEEN_AND_DONE: dict[str, Any] = {"observation": {"text": "see"}, "action": {"text": "do"}}


@pytest.mark.parametrize("name", ["content", "row", "tool_calls"])
def test_a_field_of_the_record_that_is_called_as_notes_is_kept(name: str) -> None:
    record = {name: "mine", "id": 7, "steps": [{"see": "a hall", "do": "go", "n": 1}]}
    extra = read(record, of="steps", **SEEN_AND_DONE).trajectory.extra
    assert extra["steps"] == {"row": {name: "mine", "id": 7}, "content": {"0": {"n": 1}}}


def test_steps_that_show_and_do_nothing_are_kept_with_their_neighbours() -> None:
    rows = [
        {"n": 1, "note": "begin"},
        {"n": 2, "more": "x"},
        {"n": 3, "see": "a hall", "do": "go"},
        {"n": 4, "see": "a box", "do": "stop", "note": "end"},
        {"n": 5, "note": "end"},
        {"n": 6, "n_": "taken"},
    ]
    assert read(rows, **SEEN_AND_DONE).trajectory.extra["steps"]["content"] == {
        "0": {"n": 3, "n__": 1, "note": "begin", "n_": 2, "more": "x"},
        "2": {"n": 4, "note": "end"},
        "3": {"n": 5, "note": "end", "n__": 6, "n_": "taken"},
    }


def test_a_path_that_no_record_has_is_refused(tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", *({**row, "note": None} for row in TURKING))
    given = {"data": [data], "dataset": "d", "format": "steps", "group": {"by": ["task"]}}
    with pytest.raises(UserError) as error:
        run_step(tmp_path, "normalize", "t", **given, options={**TURKING_OPTIONS, "thought": "nte"})
    told = str(error.value).splitlines()
    assert told[0] == "options name 'nte', which is in none of 1 records. Did you mean 'note'?"
    assert len(told) == 2
    run_step(tmp_path, "normalize", "t", **given, options={**TURKING_OPTIONS, "thought": "note"})


def test_values_of_another_kind_are_kept_and_reported(tmp_path: Path) -> None:
    options = {
        "of": "steps",
        "goal": "task",
        "observation": {"text": "see"},
        "action": {"name": "do", "arguments": "with"},
        "thought": "why",
        "reward": "r",
    }
    sound: dict[str, Any] = {"task": "T", "steps": [{"see": "a hall", "do": "tap", "with": {"x": 1}, "r": 1}]}
    odd: dict[str, Any] = {
        "task": [{"text": "T"}],
        "steps": [{"see": {"a": 1}, "do": "tap", "with": "x=1", "why": 7, "r": "0.5"}],
    }
    found = read(odd, **options)
    (step,) = odd["steps"]
    kept = {name: value for name, value in step.items() if name != "do"}
    assert found.trajectory.extra["steps"] == {"task": odd["task"], "content": {"0": kept}}
    assert not any(name.startswith("wrong_kind") for name in read(sound, **options).remarks)
    given = {"dataset": "d", "format": "steps", "options": options}
    both = [write(tmp_path / "both.jsonl", {**sound, "steps": [{**sound["steps"][0], "why": ""}]}, odd)]
    manifest = run_step(tmp_path, "normalize", "both", data=both, **given)
    assert [each.partition(";")[0] for each in stage("normalize", data=both, **given).notes(manifest)[1:]] == [
        f"warning: options name {path!r}, which is no {kind} in 1 records"
        for path, kind in (("r", "number"), ("with", "object"), ("see", "text"), ("task", "text"), ("why", "text"))
    ]
    with user_error("field-missing", "with", "1"):
        run_step(tmp_path, "normalize", "odd", data=[write(tmp_path / "odd.jsonl", odd)], **given)


def test_a_path_that_a_record_lacks_is_counted_and_no_action_at_all_is_refused() -> None:
    found = read(TURKING, **{**TURKING_OPTIONS, "thought": "thougt", "goal": "tsk"})
    assert (found.remarks["no_field.thougt"], found.remarks["no_field.tsk"]) == (1, 1)
    for record in (TURKING, [], {}, [5]):
        with pytest.raises(FormatError, match="invalid"):
            read(record, action={"text": "acton"})
    with pytest.raises(FormatError, match="expected 'screens', a list"):
        read(ANDROID, lists=["screens", "actions"])
    with pytest.raises(FormatError, match="expected 'actons': objects"):
        read(MIND2WEB, of="actons")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action": {}}, ("rule-broken", "action")),
        ({"action": {"text": "a", "code": "b"}}, ("rule-broken", "action", "text")),
        ({"action": {"text": "a", "arguments": "b"}}, ("rule-broken", "name")),
        ({"action": {"name": "a", "arguments": {"b": []}}}, ("rule-broken", "action")),
        ({"action": {"name": "a", "unread": "code"}}, ("rule-broken", "text")),
        ({"of": "a", "lists": ["b"]}, ("rule-broken", "lists")),
        ({"observation": {"htm": "a"}}, ("unknown-key", "html")),
    ],
)
def test_mistakes_in_the_options_are_told(options: dict[str, Any], message: tuple[str, ...]) -> None:
    with user_error(*message):
        read([], **options)


def test_paths_enter_lists_and_json_text() -> None:
    step = {"a": '{"b": [{"k": 1, "v": "x"}, {"k": true, "v": "y"}]}', "c": {"d": 1}}
    assert value_at(step, "a.b.1.v") == "y"
    assert value_at(step, "a.b[k=true].v") == "y"
    assert value_at(step, "a.b[k=1].v") == "x"
    assert value_at(step, "a.b[k=2].v") is None
    assert value_at(step, "a.b.7") is None
    assert without(step, ["c.d", "a.b"]) == {"a": step["a"]}


def test_many_steps_that_show_and_do_nothing_are_kept_in_short_names() -> None:
    idle = [{"obs": None, "action": None, "id": number} for number in range(5_000)]
    began = time.process_time()
    found = read(
        {"steps": [{"obs": "o", "action": "a"}, *idle]},
        of="steps",
        observation={"text": "obs"},
        action={"text": "action"},
    )
    assert time.process_time() - began < 5.0
    kept = json.dumps(found.trajectory.extra)
    assert all(f'": {number}' in kept for number in (0, 1, 4_999))
    assert len(kept) < 200_000


def test_errors_of_screens_and_of_steps_that_show_nothing_are_kept() -> None:
    options = {"of": "steps", "goal": "goal", "observation": {"image": "img", "error": "failed"}}
    steps = [{"img": "1.png", "act": "a", "failed": True}, {"act": "b", "failed": True}, {"img": "2.png", "act": "c"}]
    run = read({"goal": "g", "steps": steps}, action={"text": "act"}, **options).trajectory
    images = [item for item in run.content if isinstance(item, ImageObservation)]
    assert [image.error for image in images] == [True, False]
    assert "failed" in json.dumps(run.extra), "a step that shows nothing has no item for it"
