"""The pages in real Chromium, from the disk and served: what is shown, found, compared, and never run."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, Page

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.view.build import build
from agentmill.pipelines.view.serve import address, server
from tests.builders import trajectory
from tests.pipelines.view.browser import NARROW, PATIENCE_S, WIDE, drawn, opened, turned_to
from tests.pipelines.view.example_run import ATTACK, HOSTILE_ID

UNFOLD = "document.querySelectorAll('details').forEach((each) => each.unfold ? each.unfold(true) : each.open = true)"
EVERY_PAGE = (
    "#/",
    "#/run/e1",
    "#/run/d1",
    "#/run/t2",
    f"#/run/{quote(HOSTILE_ID, safe='')}",
    "#/compare/d1/e1",
    f"#/compare/{quote(HOSTILE_ID, safe='')}/t2",
    "#/pairs",
    "#/pair/0",
    "#/trees",
    "#/tree/0/e0",
    f"#/{quote(ATTACK)}",
)


@pytest.fixture(scope="module", params=["disk", "served"])
def base(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """The address of the view, as a file and on loopback."""
    if request.param == "disk":
        yield (folder / "index.html").as_uri()
        return
    with server(folder) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield address(running)
        running.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def disk(folder: Path) -> str:
    """The address of the view as a file."""
    return (folder / "index.html").as_uri()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that must not raise, complain, or ask for anything outside of the view."""
    context = browser.new_context(viewport={"width": WIDE[0], "height": WIDE[1]})
    made = context.new_page()
    made.set_default_timeout(1000 * PATIENCE_S)
    faults: list[str] = []
    made.on("pageerror", lambda error: faults.append(str(error)))
    made.on("console", lambda message: faults.append(message.text))
    made.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
    made.on("request", lambda asked: faults.append(asked.url) if foreign(asked.url) else None)
    yield made
    context.close()
    assert faults == []


def foreign(url: str) -> bool:
    return not url.startswith(("file:///", "http://127.0.0.1:", "about:"))


def rows(page: Page) -> list[str]:
    """The links of the list in sight, in order."""
    return [each.get_attribute("href") or "" for each in page.query_selector_all(".space .row .title a")]


def test_the_list_is_searched_filtered_and_sorted(page: Page, base: str) -> None:
    opened(page, base)
    assert page.title() == "Trajectories · agentmill view"
    assert page.inner_text(".count") == "7 of 7 trajectories"
    page.select_option("#facet-outcome", "=failure")
    assert rows(page) == ["#/run/e1", "#/run/e3"]
    assert page.inner_text("#facet-round option:checked") == "all (2)"
    assert page.inner_text("#told") == "2 of 7 trajectories"
    page.select_option("#facet-round", "=1")
    assert rows(page) == ["#/run/e3"]
    page.click("text=Show all")
    page.select_option("#facet-label", "=")
    assert page.inner_text(".count") == "5 of 7 trajectories"
    page.click("text=Show all")
    page.fill("#search", "TINY e2")
    assert rows(page) == ["#/run/e2"]
    page.fill("#search", "")
    page.click(".row.head .reward button")
    page.click(".row.head .reward button")
    assert rows(page)[:2] == ["#/run/e1", "#/run/e3"]
    assert page.get_attribute(".row.head .reward", "aria-sort") == "ascending"


def test_a_list_has_an_address_and_is_come_back_to(page: Page, base: str) -> None:
    opened(page, base + "#/?outcome=success&model=tiny&sort=turns")
    assert rows(page) == ["#/run/e0", "#/run/e2"]
    page.click("a[href='#/run/e0']")
    drawn(page)
    assert page.get_by_role("link", name="Previous (p)").count() == 0
    page.click("text=Next (n)")
    drawn(page)
    assert page.evaluate("location.hash") == "#/run/e2"
    page.click("text=List (u)")
    drawn(page)
    assert rows(page) == ["#/run/e0", "#/run/e2"]
    assert page.input_value("#facet-model") == "=tiny"


def test_a_trajectory_is_a_conversation_with_what_is_said_of_it(page: Page, base: str) -> None:
    opened(page, base + "#/run/e1")
    assert [each.inner_text().split("\n")[0] for each in page.query_selector_all(".turn h2")] == [
        "Start",
        "Turn 1",
        "Turn 2",
    ]
    chips = {at: page.locator(f"#item-{at} .chip").all_inner_texts() for at in range(6)}
    assert chips[1] == ["state S0"]
    assert chips[2] == ["value mc: 0.375 (rollouts, n 8)"]
    assert chips[3] == ["state S0 → S1"]
    assert chips[4] == ["label critical: yes (judge)"]
    assert chips[5] == ["reward 0", "state S1 → S0 (again)"]
    page.click("#unfold")
    assert page.locator("#item-3 .difference li").all_inner_texts() == ["- The box is empty", "+ The box is open"]
    known = page.inner_text(".known")
    assert "verdict check_outcome: failed, score 0 (environment)" in known
    assert "$0.0012" in known
    assert "1,200" in known
    page.click("text=Tokens by turn")
    assert page.locator(".known tbody tr").first.inner_text().split() == ["1", "4", "2", "-1", "stop"]
    page.locator("summary", has_text="Details").click()
    page.wait_for_selector("text=Put the ball into the box. >> nth=1")
    page.keyboard.press("r")
    assert '"trajectory_id": "e1"' in page.inner_text("#raw pre")


def test_which_items_carry_loss_is_shown(page: Page, disk: str) -> None:
    opened(page, disk + "#/run/d1")
    assert [page.locator(f"#item-{at} .chip.loss").all_inner_texts() for at in (2, 3, 4)] == [
        ["loss × 1"],
        [],
        ["loss × 1"],
    ]
    opened(page, disk + "#/run/e0")
    assert page.locator("#item-2 .chip.loss").all_inner_texts() == ["loss × 1 in 1 of 2 rows"]
    assert page.locator("#item-4 .chip.loss").all_inner_texts() == ["loss × 1"]


def test_calls_and_results_are_folded(page: Page, disk: str) -> None:
    opened(page, disk + "#/run/t2")
    assert page.inner_text("#item-1 summary") == 'look {"where":"box"}'
    assert not page.query_selector("#item-1 pre")
    page.click("#item-4 summary")
    assert page.inner_text("#item-4 pre") == "a ball"
    page.click("text=evidence")
    assert "- missing: loan 9: status lent" in page.inner_text(".known .difference")


def test_two_trajectories_stand_side_by_side_from_where_they_part(page: Page, base: str) -> None:
    opened(page, base)
    boxes = page.locator(".space input")
    boxes.nth(0).check()
    boxes.nth(4).check()
    page.click("text=Compare the two marked")
    drawn(page)
    assert page.evaluate("location.hash") == "#/compare/d1/e1"
    assert page.inner_text(".shared summary") == "The same on both sides: everything up to turn 1"
    parting = page.locator(".parting .columns > section")
    assert [each.split("\n")[0] for each in parting.all_inner_texts()] == ["Turn 2", "Turn 2"]
    assert "put ball into box" in parting.nth(0).inner_text()
    assert "state S1 → S2" in parting.nth(0).inner_text()
    assert "state S1 → S0 (again)" in parting.nth(1).inner_text()


def test_a_pair_shows_both_sides_and_leads_to_the_runs(page: Page, disk: str) -> None:
    opened(page, disk + "#/pairs")
    page.click(".space a")
    drawn(page)
    assert "put ball into box" in page.inner_text(".chosen")
    assert "You look." in page.inner_text(".rejected")
    assert page.locator(".rejected .chip.loss").count() == 1
    page.click("text=Compare the whole runs")
    drawn(page)
    assert page.evaluate("location.hash") == "#/compare/d1/e1"


def test_pairs_are_gone_through_by_keyboard_as_they_were_filtered(page: Page, disk: str) -> None:
    opened(page, disk + "#/pair/0")
    page.keyboard.press("r")
    assert '"row_id": "p1"' in page.inner_text("#raw pre")
    page.keyboard.press("n")
    drawn(page)
    assert page.evaluate("location.hash") == "#/pair/1"
    page.keyboard.press("u")
    drawn(page)
    page.select_option("#pair-view", "=step_pairs")
    page.click(".space a")
    drawn(page)
    assert page.get_by_role("link", name="Previous (p)").count() == 0
    page.keyboard.press("p")
    page.wait_for_timeout(50)
    assert page.evaluate("location.hash") == "#/pair/1"


def test_a_page_from_before_a_view_was_written_again_says_so(browser: Browser, tmp_path: Path) -> None:
    seed_table(tmp_path / "run/explored", [trajectory("a"), trajectory("b")])
    build(tmp_path / "run", tmp_path / "view")
    context = browser.new_context()
    page = context.new_page()
    opened(page, (tmp_path / "view/index.html").as_uri())
    seed_table(tmp_path / "run/before", [trajectory("b")])
    assert build(tmp_path / "run", tmp_path / "view")[1]
    for place in ("#/run/a", "#/compare/a/b"):
        turned_to(page, place)
        assert "this view was written again: reload the page" in page.inner_text("main")
    opened(page, (tmp_path / "view/index.html").as_uri() + "#/run/a")
    assert "Start" in page.inner_text("main")
    context.close()


def test_a_very_long_text_is_laid_out(page: Page, disk: str) -> None:
    opened(page, disk)
    long = "JSON.stringify({ a: 'x\\n'.repeat(4500000) })"
    assert page.evaluate(f"text.pretty({long}).length - {long}.length") == len("\n  " + " " + "\n")


def test_a_tree_is_drawn_and_its_nodes_are_opened(page: Page, disk: str) -> None:
    opened(page, disk + "#/run/e0")
    page.click("text=The search tree it is in")
    drawn(page)
    assert page.locator("svg .node").count() == 5
    assert page.inner_text(".count").startswith("5 nodes, ")
    assert page.locator("main tbody tr").count() == 5
    assert page.locator("svg .edge.on").count() == 2
    node = page.locator("svg .node[data-node=n3]")
    assert node.get_attribute("aria-label") == "turn 2, value 0, 2 visits, an end"
    node.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".known-node .card")
    assert "look" in page.inner_text(".known-node")
    places = page.evaluate("[...document.querySelectorAll('.node')].map((each) => each.getBoundingClientRect().x)")
    assert places[0] < places[1] < places[2]


def test_everything_can_be_reached_by_keyboard(page: Page, disk: str) -> None:
    opened(page, disk)
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#/run/t2"
    page.keyboard.press("x")
    page.keyboard.press("End")
    page.keyboard.press("x")
    page.keyboard.press("c")
    drawn(page)
    assert page.evaluate("location.hash") == "#/compare/t2/e3"
    assert page.evaluate("document.activeElement.id") == "title"
    page.keyboard.press("u")
    drawn(page)
    page.keyboard.press("/")
    page.keyboard.type("e1")
    page.keyboard.press("Escape")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    drawn(page)
    assert page.evaluate("location.hash") == "#/run/e1"
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.id") == "turn-1"
    page.keyboard.press("?")
    assert page.is_visible("#keys")
    page.uncheck("#keys-on")
    page.keyboard.press("Escape")
    page.keyboard.press("u")
    assert page.evaluate("location.hash") == "#/run/e1"


def test_hostile_text_is_shown_and_never_run(page: Page, base: str) -> None:
    opened(page, base)
    for place in EVERY_PAGE:
        turned_to(page, place)
        page.evaluate(UNFOLD)
    turned_to(page, EVERY_PAGE[4])
    page.evaluate(UNFOLD)
    shown = page.inner_text(".conversation")
    assert "<script>window.hacked=1</script>" in shown
    assert "\\u202e evil \u2400\u241b[31m" in shown
    assert '"big": 1152921504606846977' in shown
    assert '"__proto__": {' in page.inner_text("#raw")
    assert "\\ufeff \\u200b\\u00ad\\u009b\\u{e0041}" in shown
    assert "1152921504606846977" in page.inner_text(".known")
    assert "reward 100,000,000,000,000,000" in page.inner_text("#item-5")
    assert not page.evaluate(
        "[...document.querySelectorAll('[title], [aria-label]')].some("
        "(each) => /[\\u202e\\u200b]/.test(`${each.title}${each.ariaLabel}`))"
    )
    page.wait_for_timeout(50)
    assert page.evaluate("[typeof window.hacked, typeof ({}).hacked]") == ["undefined", "undefined"]
    assert page.evaluate("[...document.scripts].every((each) => /^(js|data)\\//.test(each.getAttribute('src')))")
    assert page.locator("img, iframe, object, embed, script:not([src])").count() == 0
    assert not page.evaluate(
        "[...document.querySelectorAll('a')].some((each) => !each.getAttribute('href')?.startsWith('#'))"
    )


def test_a_script_that_slips_in_is_stopped_by_the_policy(browser: Browser, disk: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    opened(page, disk)
    attack = "document.body.innerHTML = '<img src=x onerror=window.hacked=1>'"
    assert page.evaluate(f"() => {{ try {{ {attack} }} catch (error) {{ return error.name }} }}") == "TypeError"
    assert page.evaluate("agentmill.load('../x', 0).catch((error) => error.name)") == "TypeError"
    assert page.evaluate("typeof window.hacked") == "undefined"
    context.close()


def test_a_missing_index_is_said(browser: Browser, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "torn")
    (tmp_path / "torn/data/index.js").unlink()
    context = browser.new_context()
    page = context.new_page()
    opened(page, (tmp_path / "torn/index.html").as_uri())
    assert "data/index.js cannot be read; write the view again" in page.inner_text("main")
    context.close()


def test_a_missing_file_is_said(browser: Browser, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "torn")
    (tmp_path / "torn/data/runs-00000.js").unlink()
    context = browser.new_context()
    page = context.new_page()
    opened(page, (tmp_path / "torn/index.html").as_uri() + "#/run/e1")
    assert "data/runs-00000.js cannot be read; write the view again" in page.inner_text("main")
    context.close()


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_no_page_has_a_serious_fault_of_accessibility(
    browser: Browser, disk: str, size: tuple[int, int], scheme: Literal["light", "dark"]
) -> None:
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    page = context.new_page()
    opened(page, disk)
    page.evaluate(AXE_SCRIPT)
    found = []
    for place in EVERY_PAGE:
        turned_to(page, place)
        page.evaluate(UNFOLD)
        faults = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations)")
        found += [
            (place[:12], fault["id"], [node["html"][:160] for node in fault["nodes"][:2]])
            for fault in faults
            if fault["impact"] in ("serious", "critical")
        ]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), place
    context.close()
    assert found == []
