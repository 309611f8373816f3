"""Code templates of coding problems: all are used, and what is made of them compiles and is clean."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from functools import cache
from itertools import cycle
from pathlib import Path

import pytest

from agentmill.synthesis.environments.codegym.problem import Problem, read_problem, write_problem
from agentmill.synthesis.generators.codegym_procedural import puzzles
from agentmill.synthesis.generators.codegym_procedural.composition import (
    COLLECTIONS,
    PACKAGE,
    accesses,
    compose,
    questions,
    readings,
    themes,
)
from agentmill.synthesis.generators.data_files import data_folder, read_table

PARTS = ("instances", "code", "solution", "oracle")
THEME = themes()[0]
KINDS = (
    *(puzzles.network, puzzles.maze, puzzles.search, puzzles.arrangement),
    *(puzzles.counter, puzzles.lock, puzzles.scales, puzzles.orders),
)


@cache
def problems() -> dict[str, Problem]:
    """Problems by name, with every part and every variant at least once."""
    made = {}
    asked = [question for collection in COLLECTIONS for question in questions(collection)]
    reads, ways = cycle(readings()), cycle(accesses())
    for number in range(3 * len(asked)):
        question = asked[number % len(asked)]
        reading = next(each for each in reads if question.collection in each.fits)
        access = next(each for each in ways if each.ordered or not (question.ordered or reading.ordered))
        name = "-".join([access.name, reading.name, question.name])
        made[name] = compose(access, reading, question, THEME)
    for kind in KINDS:
        for seed in range(120):
            problem, parts = kind(THEME, random.Random(seed))
            made["-".join(parts)] = problem
    return made


def test_every_template_is_used() -> None:
    used = {part for name in problems() for part in name.split("-")}
    catalogue = read_table(PACKAGE, "catalogue.yaml")
    variants = read_table(PACKAGE, "variants.yaml")
    assert {name for names in [*catalogue.values(), *variants.values()] for name in names} <= used


def test_every_template_is_python() -> None:
    folder = Path(str(data_folder(PACKAGE)))
    paths = sorted(folder.rglob("*.py"))
    assert len(paths) > 100
    for path in paths:
        compile(path.read_text(), str(path), "exec")


def test_every_problem_compiles_and_its_tools_fit() -> None:
    for name, problem in problems().items():
        assert read_problem(write_problem(problem)) == problem, name
        for part in PARTS:
            compile(getattr(problem, part), f"{name}.{part}", "exec")


def test_no_placeholder_is_left() -> None:
    for name, problem in problems().items():
        tools = [text for tool in problem.tools for text in (tool.name, tool.description, str(tool.parameters))]
        texts = [problem.about, problem.question, *tools, *(getattr(problem, part) for part in PARTS)]
        assert re.findall(r"(?<![\"'\w])[A-Z]{2,}(?![\"'\w])", "\n".join(texts)) == [], name


def test_every_problem_is_clean_under_ruff(tmp_path: Path) -> None:
    pytest.importorskip("ruff")
    for name, problem in problems().items():
        for part in PARTS:
            (tmp_path / f"{name}.{part}.py").write_text(getattr(problem, part))
    # F841: what is told of an input gets a name where it is drawn, whether the rest of the drawing needs it or not.
    rules = ["--isolated", "--select", "E4,E7,E9,F,PLE", "--ignore", "F841", "--config", 'builtins=["Refused"]']
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise", *rules, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
