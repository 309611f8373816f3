"""The page: what it says of runs of every kind, that it is one file, and that hostile text in it is only text."""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import unicodedata
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, Page

from agentmill.pipelines.recipes.outline import Planned
from agentmill.pipelines.report.page import resume, write_report
from agentmill.pipelines.report.recipe_graph import wired
from agentmill.pipelines.runs.run import Stage, read_run
from agentmill.schemas.records.trajectory import Outcome
from tests.builders import trajectory, verdict
from tests.errors import user_error
from tests.pipelines.report.example_run import BODY, HOSTILE_REASON, STEPS, end, letter, write_recipe, write_table
from tests.pipelines.view.browser import WIDE
from tests.pipelines.view.example_run import ATTACKS

NARROW = (390, 900)
LONG_NAME = "a_name_without_any_end" * 5


class Parsed(HTMLParser):
    """The tags, the attributes and the words of a page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(file.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def said(file: Path) -> str:
    """The words of a page, in one line."""
    return " ".join(" ".join(Parsed(file).texts).split())


def made(root: Path) -> str:
    """The words of the report of a run."""
    write_report(root, root.parent / "page.html")
    return said(root.parent / "page.html")


def test_the_sections_say_what_the_run_has_made(report: Path) -> None:
    words = said(report)
    assert "This run is finished: 12 of 12 steps are done." in words
    assert "worlds spec_env 2 2 0 2 1.5 done tasks propose 5 5 0 5 1.5 done worlds" in words
    assert "round-01/explored sample 10 4 6 4 1.5 done tasks, worlds" in words
    assert "Of 63 inputs of all steps, 14 were dropped." in words
    assert "tasks 5 2 1 4 4.67 9" in words
    assert "round-02/explored 4 1 2 2.5 4" in words
    assert "explored 1 4 1 3 0 25.0 % explored 2 4 3 1 0 75.0 %" in words
    assert "round-01/evaluation, held_out_tasks: tuned minus base = +33.3 points" in words
    assert "held_out_tasks tuned 3 1 66.7 %" in words
    assert "round-01/evaluation, held_out_tasks: warning: only 1 environment; intervals from fewer than 10" in words
    assert "round-01/explored 1.5 900 100 0.25 30 - -" in words
    assert "Episodes cost 0.50 USD by the prices that were given." in words
    assert "what models are asked for elsewhere, as to write environments or to judge, is not counted." in words
    assert "round-02/tuned first_loss 2.5" in words
    assert "round-01/explored unreachable 5" in words
    assert "round-01/tuned too_long 1" in words


def test_it_is_one_file_of_the_same_bytes(run: Path, report: Path, tmp_path: Path) -> None:
    asked = [value for name, value in Parsed(report).attributes if name in ("src", "href")]
    assert {each.partition("base64,")[0] if each.startswith("data:") else each[0] for each in asked} == {
        "data:image/svg+xml;",
        "#",
    }
    write_report(run, tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == report.read_bytes()
    assert report.stat().st_size < 1_500_000


def test_hostile_text_is_cut_and_escaped(report: Path) -> None:
    found = Parsed(report)
    assert found.tags.isdisjoint({"script", "iframe", "object", "embed", "link", "form", "svg"})
    assert {name for name, _ in found.attributes if name.startswith("on")} == set()
    words = "".join(found.texts)
    assert ATTACKS[0] in words
    assert HOSTILE_REASON[:40] in words
    assert "\\u202e evil \\u0000\\u001b[31m \\ufeff \\u200b" in words
    assert "x" * 500 in words
    assert "x" * 2_000 not in words
    assert "(49,3" in words
    assert not any(unicodedata.category(each) in ("Cf", "Zl", "Zp") for each in words)


def test_pictures_hold_names_as_text(report: Path) -> None:
    uris = [value for name, value in Parsed(report).attributes if name == "src"]
    pictures = [ElementTree.fromstring(base64.b64decode(uri.partition("base64,")[2])) for uri in uris]
    texts = [text for picture in pictures for text in picture.itertext()]
    assert any("round-01/explored" in text for text in texts)
    assert any("<script>" in text for text in texts)
    tags = {element.tag.partition("}")[2] for picture in pictures for element in picture.iter()}
    assert tags.isdisjoint({"script", "foreignObject", "image", "a"})
    assert len(pictures) == 12


def test_a_run_of_little_says_what_it_lacks(tmp_path: Path) -> None:
    root = write_recipe(tmp_path / "run", STEPS[:2])
    write_table(root / "worlds", [])
    write_table(root / "tasks", [])
    end(root)
    words = made(root)
    assert "This run is finished: 2 of 2 steps are done." in words
    assert "Nothing was dropped." in words
    assert "This run has made no tasks." in words
    assert "This run has made no trajectories." in words
    assert "This run has no trajectory whose outcome is known." in words
    assert "This run has no evaluation." in words


def test_a_run_that_has_only_read_trajectories(tmp_path: Path) -> None:
    step = {"operator": "normalize", "dataset": "d", "format": "openai", "data": ["x.jsonl"], "as": "read"}
    root = write_recipe(tmp_path / "run", [step])
    letters = [letter(0, "unreadable", input={"text": "]"})]
    rows = [trajectory(f"t{n}", environment_id=None, generation=None, outcome=Outcome()) for n in range(3)]
    write_table(root / "read", rows, letters)
    end(root)
    words = made(root)
    assert "read normalize 4 3 1 3 1.5 done What stayed" in words
    assert "This run has no trajectory whose outcome is known." in words
    assert "read: unreadable (1)" in words


def test_a_run_that_has_not_begun(tmp_path: Path) -> None:
    words = made(write_recipe(tmp_path / "run", STEPS))
    assert "This run is not finished: 0 of 12 steps are done. Not begun: worlds, tasks, round-01/explored" in words
    assert f"It goes on with: agentmill run {tmp_path}/run/recipe.yaml" in words
    assert "No step is done." in words
    assert "The evaluation is not done: round-01/evaluation, round-02/evaluation." in words


def test_a_run_that_was_moved_goes_on_where_it_is(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "moved")
    (tmp_path / "moved/summary.json").unlink()
    words = made(tmp_path / "moved")
    assert "This run is not finished: 12 of 12 steps are done. It is still running, or it was interrupted." in words
    assert f"agentmill run {tmp_path}/moved/recipe.yaml run_dir={tmp_path}/moved" in words


def test_lines_that_meet_are_in_lanes_of_their_own() -> None:
    reads = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"], "e": ["d"]}
    stages = [
        Stage(step=Planned(name, "operator", name, reads=given), state="not begun", tables=[])
        for name, given in reads.items()
    ]
    lanes = {(wire.source, tuple(wire.readers)): wire.lane for wire in wired(stages)}
    assert lanes == {(2, (3,)): 0, (3, (4,)): 0, (0, (1, 2)): 0, (1, (3,)): 1}


def test_nothing_but_a_report_is_written_over(run: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.html"
    mine.write_text("<p>mine")
    with user_error("output-not-ours", "mine.html"):
        write_report(run, mine)
    assert mine.read_text() == "<p>mine"
    mine.write_text("# Notes\n\n    <!doctype html>\n    " + '<meta name="generator" content="agentmill report">')
    with user_error("output-not-ours", "mine.html"):
        write_report(run, mine)
    with user_error("not-a-file", "--out", "report.html"):
        write_report(run, tmp_path)


def test_a_place_that_takes_no_file_is_named(run: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with user_error("not-a-file", "--out"):
        write_report(run, tmp_path / "pipe")
    (tmp_path / "file").write_text("")
    with user_error("not-writable", "file/page.html", "--out"):
        write_report(run, tmp_path / "file/page.html")


def test_the_command_can_be_pasted_whatever_the_folder_is_called(tmp_path: Path) -> None:
    root = write_recipe(tmp_path / "my $run; 3", STEPS[:1], run_dir="runs/elsewhere")
    given = resume(read_run(root))
    assert given is not None
    assert shlex.split(given) == ["agentmill", "run", f"{root}/recipe.yaml", f"run_dir={root}"]


def test_a_search_costs_what_its_trees_cost(tmp_path: Path) -> None:
    root = write_recipe(tmp_path / "run", BODY[:1])
    trees = {"tree_prompt_tokens": 9_000.0, "tree_completion_tokens": 700.0, "tree_cost_usd": 5.0, "tree_turns": 4.0}
    costs = {"prompt_tokens": 300.0, "completion_tokens": 20.0, "cost_usd": 1.0, "lost_completion_tokens": 7.0}
    write_table(root / "explored", [trajectory()], **trees, **costs)
    words = made(root)
    assert "explored 1.5 9,000 700 5 - 7 -" in words
    assert "Episodes cost 5.00 USD" in words
    assert "explored tree_turns 4" in words
    assert "tree_prompt_tokens" not in words


def test_figures_are_left_to_a_section_only_where_that_tells_them(tmp_path: Path) -> None:
    root = write_recipe(tmp_path / "run", [BODY[1]])
    write_table(root / "verdicts", [verdict("a")], turns=12.0, passed=1.0)
    words = made(root)
    assert "verdicts turns 12" in words
    assert "verdicts passed 1" not in words


@pytest.fixture(scope="module")
def wild(tmp_path_factory: pytest.TempPathFactory, run: Path) -> Path:
    """The report of the run with a name that no line can hold, unfinished."""
    root = tmp_path_factory.mktemp("wild") / "run"
    shutil.copytree(run, root)
    steps = [*STEPS, {**BODY[0], "policy": "actor", "as": LONG_NAME}]
    write_recipe(root, steps)
    letters = [letter(n, LONG_NAME * 40, detail=LONG_NAME * 90) for n in range(3)]
    write_table(root / LONG_NAME, [trajectory(environment_id=LONG_NAME)], letters, **{LONG_NAME: 1.0})
    (root / "summary.json").unlink()
    write_report(root, root.parent / "page.html")
    return root.parent / "page.html"


def faults_of(page: Page) -> list[Any]:
    """The rules of accessibility that a page breaks."""
    page.evaluate(AXE_SCRIPT)
    faults = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations)")
    return [(fault["id"], [node["html"][:160] for node in fault["nodes"][:2]]) for fault in faults]


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_every_reader_can_use_it(browser: Browser, report: Path, wild: Path, size: tuple[int, int]) -> None:
    context = browser.new_context(viewport={"width": size[0], "height": size[1]})
    page = context.new_page()
    told: list[str] = []
    page.on("console", lambda message: told.append(message.text))
    page.on("request", lambda request: told.append(request.url) if request.url.startswith("http") else None)
    for file in (report, wild):
        page.goto(file.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("[...document.images].every((image) => image.complete && image.naturalWidth > 0)")
        assert page.evaluate("[...document.images].every((image) => image.alt && image.closest('figure'))")
        assert page.evaluate("typeof window.hacked") == "undefined"
        assert page.locator("script, iframe, object, embed").count() == 0
        assert told == []
        assert faults_of(page) == []
    context.close()


def test_it_can_be_printed(browser: Browser, wild: Path) -> None:
    context = browser.new_context(viewport={"width": 690, "height": 1000})
    page = context.new_page()
    page.emulate_media(media="print")
    page.goto(wild.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert not page.is_visible("nav")
    context.close()


def test_the_stages_of_the_world_are_those_of_its_recipe(run: Path) -> None:
    assert [stage.state for stage in read_run(run).stages] == ["done"] * 12
