"""The folders import each other along the arrows only, always by ``agentmill.…``, and foreign packages do no harm."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("schemas", "synthesis", "pipelines", "trainers")
MAY_IMPORT = {
    "schemas": {"schemas"},
    "synthesis": {"schemas", "synthesis"},
    "pipelines": {"schemas", "synthesis", "pipelines"},
    "trainers": {"schemas", "trainers"},
}
ONLY_IN = {
    "apache_beam": {"pipelines"},
    "torch": {"trainers"},
    "trl": {"trainers"},
    "transformers": {"trainers"},
    "peft": {"trainers"},
    "accelerate": {"trainers"},
    "vllm": set(),
}
COME_WITH_OTHERS = {"pydantic_core", "referencing", "safetensors", "yaml"}
"""Parts of pydantic, jsonschema, transformers and huggingface_hub by names of their own."""
MODULES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def imported(source: str) -> Iterator[tuple[int, str]]:
    """Every import of a module with its line: in functions, under ``TYPE_CHECKING``, and by name through importlib."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." * node.level + (node.module or "")
        elif isinstance(node, ast.Call) and _name(node.func) in ("import_module", "__import__"):
            argument = node.args[0] if node.args else None
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield node.lineno, argument.value


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def against_the_arrows(room: str, source: str) -> list[str]:
    """The imports in ``source`` that a module of ``room`` may not have."""
    found = []
    for line, module in imported(source):
        top, _, rest = module.partition(".")
        bare = top == "" or top in ROOMS
        foreign = top == "agentmill" and rest.split(".")[0] not in MAY_IMPORT[room]
        if bare or foreign or room not in ONLY_IN.get(top, {room}):
            found.append(f"line {line}: {module}")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_import_follows_the_arrows(path: Path) -> None:
    assert against_the_arrows(path.relative_to(ROOT).parts[0], path.read_text()) == []


def test_no_module_is_named_without_its_package() -> None:
    """Nor in a text by which Python finds it: ``trainers.sft`` would be found in a checkout only."""
    bare = re.compile(rf"""["'](?:{"|".join(ROOMS)})\.[\w{{]""")
    found = [f"{path.relative_to(ROOT)}: {line}" for path in MODULES for line in path.read_text().splitlines()]
    assert [line for line in found if bare.search(line)] == []


def test_every_room_was_looked_at() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in MODULES} == set(ROOMS)
    assert len(MODULES) > 20


@pytest.mark.parametrize(
    ("room", "source", "found"),
    [
        ("schemas", "import agentmill.synthesis.policies", ["line 1: agentmill.synthesis.policies"]),
        ("schemas", "def f():\n    from agentmill.pipelines import chaos", ["line 2: agentmill.pipelines"]),
        ("schemas", "from schemas import tables", ["line 1: schemas"]),
        ("schemas", "import agentmill", ["line 1: agentmill"]),
        ("trainers", "def f():\n    import apache_beam as beam", ["line 2: apache_beam"]),
        ("pipelines", "if TYPE_CHECKING:\n    import torch", ["line 2: torch"]),
        (
            "pipelines",
            "import importlib\nimportlib.import_module('agentmill.trainers.sft')",
            ["line 2: agentmill.trainers.sft"],
        ),
        ("pipelines", "import vllm", ["line 1: vllm"]),
        ("schemas", "from . import record", ["line 1: ."]),
        ("pipelines", "import agentmill.schemas, agentmill.synthesis, apache_beam, json", []),
        ("trainers", "import torch, trl, agentmill.schemas.tables", []),
    ],
)
def test_the_test_itself_sees(room: str, source: str, found: list[str]) -> None:
    assert against_the_arrows(room, source) == found


def test_every_package_that_is_imported_is_declared() -> None:
    """What an import is from stands among the dependencies or in an extra other than that of development."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [required for extra, required in project["optional-dependencies"].items() if extra != "dev"]
    declared = {_distribution(each) for required in (project["dependencies"], *extras) for each in required}
    providers = packages_distributions()
    known = {*sys.stdlib_module_names, "agentmill", *COME_WITH_OTHERS}
    tops = {module.split(".")[0] for path in MODULES for _, module in imported(path.read_text())} - known
    assert {top for top in tops if declared.isdisjoint(map(_distribution, providers.get(top, [top])))} == set()


def _distribution(requirement: str) -> str:
    """The normalized name in a requirement."""
    return re.split(r"[^\w.-]", requirement)[0].replace("_", "-").lower()


def test_foreign_packages_in_the_folder_are_not_taken_for_ours(tmp_path: Path) -> None:
    """With ``PYTHONSAFEPATH=1`` the folder that a child process starts in is not on its path."""
    for name in ("agentmill", *ROOMS):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('a foreign package')")
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    environment.pop("PYTHONPATH", None)
    code = "import agentmill.schemas as a; print(a.__path__[0])"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    assert Path(run.stdout.strip()).resolve() == ROOT / "schemas"


def test_our_own_children_are_started_so() -> None:
    """A module that starts Python says ``PYTHONSAFEPATH`` or ``-P``, or takes the environment of a plan."""
    safe = ("PYTHONSAFEPATH", "-P", "plan.environment")
    starting = [path for path in MODULES if "sys.executable" in path.read_text()]
    careless = [path for path in starting if not any(word in path.read_text() for word in safe)]
    assert [str(path.relative_to(ROOT)) for path in careless] == []
