"""The code uses one name for one idea: identifiers that the glossary retires are not defined in the places they had."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from agentmill.schemas.config import read_yaml

ROOT = Path(__file__).resolve().parents[1]
TERMS = read_yaml(ROOT / "docs/glossary.yaml")["terms"]
RETIRED = {name: entry["term"] for entry in TERMS for name in entry.get("retired", [])}
OTHERS = {
    # The same word for another idea, which is the term of its field.
    ("Choice", "synthesis/policies/completion.py"),
    ("Line", "schemas/formats/toolbench.py"),
    ("Line", "schemas/views/tree_view.py"),
    ("Contents", "synthesis/environments/toolbox/database.py"),
    ("Script", "synthesis/policies/scripted.py"),
    ("metered", "synthesis/rollouts/call_budget.py"),
    ("metered", "synthesis/environments/codegym/problem.py"),
    ("survey", "synthesis/generators/pddl_procedural/cores.py"),
    # Parameters of recipes, and columns of tables that were made with them.
    ("told", "schemas/views/roles.py"),
    ("told", "synthesis/rollouts/roles.py"),
    ("told", "synthesis/generators/codegym_procedural/composition.py"),
}


def defined(source: str) -> set[str]:
    """All names that a module defines: of classes, functions, parameters, variables and attributes."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
    return names | {name.lstrip("_") for name in names}


MODULES = [path for room in ("schemas", "synthesis", "pipelines", "trainers") for path in (ROOT / room).rglob("*.py")]


def test_no_module_defines_a_retired_name() -> None:
    found = {
        (name, str(path.relative_to(ROOT)))
        for path in MODULES
        if "data" not in path.relative_to(ROOT).parts  # programs of environments, whose texts are data
        for name in defined(path.read_text(encoding="utf-8")) & RETIRED.keys()
    }
    assert {(name, path, RETIRED[name]) for name, path in found - OTHERS} == set()
    assert found == OTHERS, "an exception that is none any more"


def test_the_test_itself_sees() -> None:
    source = "class Said: ...\nasync def metered(talk):\n    self._world = lost = recall(1)"
    assert defined(source) >= {"Said", "lost", "metered", "talk", "world", "_world"}
    assert "recall" not in defined(source)


@pytest.mark.parametrize("entry", TERMS, ids=lambda entry: entry["term"])
def test_an_entry_has_a_term_and_a_meaning(entry: dict[str, object]) -> None:
    assert {"term", "means"} <= entry.keys() <= {"term", "means", "retired"}
