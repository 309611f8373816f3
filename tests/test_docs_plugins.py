"""The examples of ``docs/plugins.md``, added to a copy of the project: they conform, and the recipe of them runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from agentmill.schemas.tables import Table
from tests.pages import ROOT, blocks_of

COPIED = ("agentmill", "configs", "schemas", "synthesis", "pipelines", "trainers", "tests", "pyproject.toml")
CONFORMANCE = (
    "tests/synthesis/environments/test_conformance.py",
    "tests/synthesis/strategies/test_conformance.py",
    "tests/schemas/test_format.py",
    "tests/pipelines/operators/test_operator.py",
    "tests/schemas/views/test_view.py",
)
ADDED = ("dial", "persist", "moves", "label_repeats", "brief", "answers")
PLAIN = ("synthesis/verifiers/brief.py", "schemas/views/answers.py", "synthesis/strategies/persist.py")
"""What a first plug-in is: one file of at most 40 lines, and a line in a table."""


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the files of the page, and with its changes to other files."""
    folder = tmp_path_factory.mktemp("extended")
    for name in COPIED:
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, folder / name)
        else:
            shutil.copytree(ROOT / name, folder / name, symlinks=True)
    for program in blocks_of("plugins.md", "python"):
        place = program.partition("\n")[0].removeprefix("# ")
        assert not (folder / place).exists(), place
        (folder / place).write_text(program)
    for change in blocks_of("plugins.md", "diff"):
        apply(change, folder)
    (recipe,) = blocks_of("plugins.md", "yaml")
    (folder / "dials.yaml").write_text(recipe)
    return folder


def apply(change: str, folder: Path) -> None:
    """Carry out a change that begins with ``+++ PATH``; the lines that stay, or go, are there as they are shown."""
    head, *lines = change.splitlines(keepends=True)
    path = folder / head.removeprefix("+++ ").strip()
    before = "".join(line[1:] for line in lines if line[0] in " -")
    after = "".join(line[1:] for line in lines if line[0] in " +")
    text = path.read_text()
    assert text.count(before) == 1, change
    path.write_text(text.replace(before, after))


def python(folder: Path, *arguments: str) -> str:
    """What Python says in ``folder``, where the packages are those of the copy."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_examples_pass_the_conformance_tests(extended: Path) -> None:
    said = python(extended, "-m", "pytest", "-v", "-k", " or ".join(ADDED), *CONFORMANCE)
    passed = [line for line in said.splitlines() if "PASSED" in line]
    for name in ADDED:
        assert any(f"[{name}" in line for line in passed), said


@pytest.mark.parametrize("place", PLAIN)
def test_a_first_plugin_is_short(place: str) -> None:
    [program] = [each for each in blocks_of("plugins.md", "python") if each.startswith(f"# {place}\n")]
    assert len(program.splitlines()) - 1 <= 40
    assert sum(f"{Path(place).stem}:" in change for change in blocks_of("plugins.md", "diff")) == 1


def test_the_recipe_of_the_examples_runs(extended: Path) -> None:
    python(extended, "make_dials.py")
    python(extended, "-c", "from agentmill.pipelines.cli.main import main; main()", "run", "dials.yaml")
    tables = {
        name: Table.open(extended / "runs/dials" / name)
        for name in ("explored", "brevity", "repeats", "rows", "answers")
    }
    assert [row.text for row in tables["answers"].rows()] == ["turn up"]
    (trajectory,) = tables["explored"].rows()
    assert (trajectory.generation.strategy, trajectory.outcome.status) == ("persist", "success")
    assert sorted((verdict.passed, verdict.score) for verdict in tables["brevity"].rows()) == [
        (False, 0.5),
        (True, 1.0),
    ]
    assert Counter(each.value for each in tables["repeats"].rows()) == {"new": 3, "repeated": 3}
    trained = {row.trajectory_id: [each.train for each in row.messages] for row in tables["rows"].rows()}
    assert sum(trained[trajectory.trajectory_id]) == 2


def test_the_format_of_the_examples_says_what_it_cannot_hold(extended: Path) -> None:
    code = """
import sys, msgspec
from agentmill.schemas.formats import FORMATS
from agentmill.schemas.format import Origin
from tests.builders import tool_trajectory
moves = FORMATS.load("moves")()
written = moves.write(tool_trajectory())
read = moves.read(msgspec.json.encode({**written.document, "more": 1}), Origin("d"))
sys.stdout.buffer.write(msgspec.json.encode([written.document, written.losses, read.trajectory.extra]))
"""
    document, losses, extra = msgspec.json.decode(python(extended, "-c", code))
    assert document["moves"][1] == {"call": "look", "with": {"where": "box"}}
    assert {"tools", "system_prompt", "outcome", "content.tool_call_id"} <= set(losses)
    assert extra == {"moves": {"more": 1}}
