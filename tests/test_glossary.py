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
    ("survey", "synthesis/generators/pddl_procedural/cores.py"),
}


def defined(source: str) -> set[str]:
    """The names that a module defines at its top."""
    names = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


MODULES = [path for room in ("schemas", "synthesis", "pipelines", "trainers") for path in (ROOT / room).rglob("*.py")]


def test_no_module_defines_a_retired_name() -> None:
    found = {
        (name, str(path.relative_to(ROOT)))
        for path in MODULES
        for name in defined(path.read_text(encoding="utf-8")) & RETIRED.keys()
    }
    assert {(name, path, RETIRED[name]) for name, path in found - OTHERS} == set()
    assert found == OTHERS, "an exception that is none any more"


def test_the_test_itself_sees() -> None:
    assert defined("class Said: ...\nlost = 1\nasync def metered(): ...") == {"Said", "lost", "metered"}


@pytest.mark.parametrize("entry", TERMS, ids=lambda entry: entry["term"])
def test_an_entry_has_a_term_and_a_meaning(entry: dict[str, object]) -> None:
    assert {"term", "means"} <= entry.keys() <= {"term", "means", "retired"}
