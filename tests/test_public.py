"""The names that ``agentmill`` offers are there, typed, and imported only when they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import agentmill
from agentmill.schemas.tables import Table

SOURCE = Path(agentmill.__file__).read_text()


def test_every_public_name_is_known_to_type_checkers_and_at_run_time() -> None:
    typed = {
        alias.asname: node.module
        for node in ast.walk(ast.parse(SOURCE))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    assert typed == agentmill._PUBLIC
    for name in agentmill.__all__:
        assert getattr(agentmill, name).__name__ == name
    assert agentmill.Table is Table
    assert set(agentmill.__all__) < set(dir(agentmill))


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Tables'; it has .*Table, "):
        _ = agentmill.Tables  # type: ignore[attr-defined]


def test_the_package_is_imported_without_what_it_offers() -> None:
    code = "import sys, agentmill; print(sorted({'pyarrow', 'pydantic', 'apache_beam'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
