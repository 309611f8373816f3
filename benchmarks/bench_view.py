"""A view of 100,000 trajectories: how long it takes to write, to open in real Chromium, and to filter.

A page counts as open when its first rows are drawn: from the start of the navigation, as the browser's own clock has
it. A filter or a search counts from the event to the second frame after it, which is when what changed has been
painted. Each is the median of several, the slowest beside it.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from bench_records import trajectories
from machine import describe
from playwright.sync_api import Browser, Page

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.schemas.records.trajectory import Generation, Outcome, OutcomeStatus, Trajectory, Usage
from agentmill.schemas.records.verdict import Verdict
from tests.pipelines.view.browser import NAMES, WIDE, chromium, drawn, executable, opened

ROWS = 100_000
PER_TABLE = 5_000
ROUNDS = 5
TARGET_OPEN_S = 2.0
TARGET_FILTER_S = 0.2
STATUSES: tuple[OutcomeStatus, ...] = ("success", "failure", "unknown")
TIMED = """(change) => new Promise((resolve) => {
  const start = performance.now();
  const element = document.querySelector(change.at);
  element.value = change.value;
  element.dispatchEvent(new Event(change.event, { bubbles: true }));
  requestAnimationFrame(() => requestAnimationFrame(() => resolve((performance.now() - start) / 1000)));
})"""
CHANGES = (
    {"at": "#facet-outcome", "event": "change", "value": "=failure"},
    {"at": "#facet-environment", "event": "change", "value": "=world 7"},
    {"at": "#facet-environment", "event": "change", "value": "*"},
    {"at": "#facet-verdict", "event": "change", "value": "=check_outcome: failed"},
    {"at": "#facet-outcome", "event": "change", "value": "*"},
    {"at": "#facet-verdict", "event": "change", "value": "*"},
    {"at": "#search", "event": "input", "value": "word12 model-3"},
    {"at": "#search", "event": "input", "value": ""},
)


def run(index: int, like: Trajectory) -> Trajectory:
    """One of the trajectories: 500 environments, 20,000 tasks, 4 models."""
    made = Generation(
        model=f"model-{index % 4}",
        revision=None,
        policy="actor",
        strategy="sample",
        scaffold="text",
        sampling={},
        seed=index,
        round=index % 3,
    )
    return msgspec.structs.replace(
        like,
        trajectory_id=f"{index * 2654435761 % 2**64:032x}",
        task_id=f"{index % 20_000:032x}",
        environment_id=f"world {index % 500}",
        outcome=Outcome(status=STATUSES[index % 3], reward=float(index % 3 == 0)),
        generation=made,
        usage=Usage(prompt_tokens=index % 9_000, completion_tokens=index % 700, seconds=index % 97 / 10),
    )


def verdict(each: Trajectory) -> Verdict:
    """What is said of it."""
    won = each.outcome.status == "success"
    return Verdict(
        trajectory_id=each.trajectory_id,
        name="check_outcome",
        status="scored",
        judge="environment",
        score=float(won),
        passed=won,
    )


def write_run(folder: Path) -> None:
    """A run of many tables, each with its verdicts."""
    likes = trajectories(200, 6, 30)
    for start in range(0, ROWS, PER_TABLE):
        rows = [run(index, likes[index % len(likes)]) for index in range(start, start + PER_TABLE)]
        name = f"explored-{start // PER_TABLE:02d}"
        seed_table(folder / name, rows)
        seed_table(folder / f"{name}-verdicts", [verdict(each) for each in rows])


def painted_s(page: Page) -> float:
    """Seconds from the start of the navigation to the second frame from now."""
    now = (
        "new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now()))))"
    )
    return float(page.evaluate(now)) / 1000


def open_s(browser: Browser, url: str) -> float:
    """How long a list takes to be there, in a browser that has nothing of it."""
    context = browser.new_context(viewport={"width": WIDE[0], "height": WIDE[1]})
    page = context.new_page()
    opened(page, url)
    taken = painted_s(page)
    assert page.inner_text(".count") == f"{ROWS:,} of {ROWS:,} trajectories"
    context.close()
    return taken


def filter_s(browser: Browser, url: str) -> list[float]:
    """How long each of ``CHANGES`` takes, in turns."""
    page = browser.new_page()
    opened(page, url)
    return [float(page.evaluate(TIMED, change)) for _ in range(ROUNDS) for change in CHANGES]


def turn_s(browser: Browser, url: str) -> float:
    """How long a trajectory takes to be there from the list, its data file included."""
    page = browser.new_page()
    opened(page, url)
    start = time.perf_counter()
    page.evaluate("location.hash = `#/run/${agentmill.view.index.runs.ids[54321]}`")
    drawn(page)
    return time.perf_counter() - start


def told(what: str, taken: list[float], target: float) -> bool:
    """Print a figure; whether it is good enough."""
    middle = statistics.median(taken)
    print(f"  {what}: {middle:.3f} s, slowest {max(taken):.3f} s (target {target:g} s)")
    return middle <= target


def write_view(run_folder: Path, folder: Path) -> None:
    """Write the view in a process of its own, whose memory can be told."""
    arguments = ["view", str(run_folder), "--out", str(folder), "--no-serve"]
    code = f"import sys; from agentmill.pipelines.cli.main import invoke; sys.exit(invoke({arguments!r}))"
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    taken = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    size = sum(file.stat().st_size for file in folder.glob("data/*")) / 1e6
    index = (folder / "data/index.js").stat().st_size / 1e6
    print(f"  {ROWS:,} trajectories written in {taken:.1f} s with at most {memory:,.0f} MiB of memory")
    print(f"  {size:,.0f} MB of data, of these {index:.1f} MB index")


def main() -> int:
    """Write and measure."""
    path = executable()
    if path is None:
        print(f"left out: none of {', '.join(NAMES)} is on the path, and AGENTMILL_BROWSER names none")
        return 0
    print(describe("playwright", "pyarrow"))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_run(root / "run")
        write_view(root / "run", root / "view")
        url = (root / "view/index.html").as_uri()
        with chromium(path) as browser:
            print(f"  Chromium {browser.version}, headless")
            good = told("opened", [open_s(browser, url) for _ in range(ROUNDS)], TARGET_OPEN_S)
            good &= told("filtered or searched", filter_s(browser, url), TARGET_FILTER_S)
            good &= told("a trajectory from the list", [turn_s(browser, url) for _ in range(ROUNDS)], TARGET_OPEN_S)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
