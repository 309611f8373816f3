"""What runs with the base installation alone: packages that only extras bring are hidden from a child process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from agentmill.pipelines.engine.chunks import seed_table
from tests.builders import trajectory
from tests.writing_hub import WRITER, WritingHub

ROOT = Path(__file__).resolve().parents[1]
CHILD = """
import json, sys
from importlib.machinery import PathFinder
hidden = set(json.loads(sys.argv[1]))
class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else super().find_spec(name, path, target)
sys.meta_path[:] = [Hiding if finder is PathFinder else finder for finder in sys.meta_path]
from agentmill.pipelines.cli.main import invoke
print(json.dumps([invoke(command) for command in json.loads(sys.argv[2])]), file=sys.stderr)
"""


def base_packages() -> set[str]:
    """The distributions that ``pip install agentmill`` installs, by their normalized names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting, found = [Requirement(each) for each in project["dependencies"]], set[str]()
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        wanted = waiting.pop()
        if (key := (normalized(wanted.name), frozenset(wanted.extras))) in seen:
            continue
        seen.add(key)
        try:
            needs = [Requirement(each) for each in requires(wanted.name) or []]
        except PackageNotFoundError:
            continue
        found.add(key[0])
        asked = [{"extra": extra} for extra in ("", *wanted.extras)]
        waiting += [each for each in needs if each.marker is None or any(map(each.marker.evaluate, asked))]
    return found


def normalized(name: str) -> str:
    """The name of a distribution as the package index compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def hidden_modules() -> list[str]:
    """The top-level modules of installed packages that are no part of the base installation."""
    base = {*base_packages(), "agentmill"}
    return sorted(top for top, names in packages_distributions().items() if base.isdisjoint(map(normalized, names)))


def run(folder: Path, *commands: list[str]) -> tuple[list[int], str]:
    """The exit codes of ``commands`` in one process with the base installation only, and all it wrote to stderr."""
    named = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    with WritingHub().served() as address:
        done = subprocess.run(
            [sys.executable, "-c", CHILD, json.dumps(hidden_modules()), json.dumps(commands)],
            cwd=folder,
            env={
                **named,
                "PYTHONPATH": str(ROOT),
                "HF_ENDPOINT": address,
                "HF_HOME": str(folder / "hub"),
                "HF_TOKEN": WRITER,
            },
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    *told, codes = done.stderr.splitlines()
    return json.loads(codes), "\n".join(told)


def test_torch_and_vllm_are_no_part_of_the_base_installation() -> None:
    assert {"torch", "transformers", "trl", "vllm", "unified_planning", "gymnasium", "tantivy"} <= set(hidden_modules())


def test_commands_run_with_the_base_installation(tmp_path: Path) -> None:
    seed_table(tmp_path / "seeded", [trajectory()])
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "Hello"}]}) + "\n")
    (tmp_path / "read.yaml").write_text(
        "name: read\nsteps: [{operator: normalize, format: openai, data: [rows.jsonl], dataset: hello, licence: MIT}]\n"
    )
    commands = [
        ["view", "seeded", "--no-serve"],
        ["inspect", "seeded"],
        ["export", "seeded", "--to", "openai", "--out", "exported"],
        ["normalize", "--config", "read.yaml"],
        ["report", "runs/read"],
        ["publish", "runs/read", "--repo", "org/name", "--licence", "mit", "--dry-run"],
        ["run", "configs/quickstart.yaml", "--dry-run"],
    ]
    codes, told = run(tmp_path, *commands)
    failed = [command for command, code in zip(commands, codes, strict=True) if code != 0]
    assert failed == [], told


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["train", "sft", "--config", "configs/stages/train_sft.yaml"], "train"),
        (["merge", "adapter", "--out", "model"], "train"),
        (["run", "configs/line.yaml"], "envs-pddl"),
    ],
)
def test_a_command_that_needs_an_extra_names_it_in_two_lines(tmp_path: Path, command: list[str], extra: str) -> None:
    codes, told = run(tmp_path, command)
    assert codes == [2]
    *_, what, then = told.splitlines()
    assert re.match(r"agentmill: (\w+ \(\w+, steps.*\): )?the Python module '\w+' is not installed; needed for ", what)
    assert then == f"install it with: pip install 'agentmill[{extra}]'"
    assert "Traceback" not in told


def test_a_server_of_tools_needs_an_extra_and_a_file_of_tools_needs_none(tmp_path: Path) -> None:
    step = "- {operator: tool_graph, specs: bundled:hotel, as: proposed"
    (tmp_path / "file.yaml").write_text(f"name: file\nsteps:\n{step}}}\n")
    (tmp_path / "server.yaml").write_text(f"name: server\nsteps:\n{step}, mcp: my-server}}\n")
    codes, shown = run(tmp_path, ["run", "file.yaml"], ["run", "server.yaml", "--dry-run"], ["run", "server.yaml"])
    assert codes == [0, 0, 2], shown
    assert shown.count("pip install 'agentmill[mcp]'") == 2


def test_a_corpus_needs_an_extra_that_is_named_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"id": "a", "text": "Otters live by the river Tamsel."}\n')
    (tmp_path / "search.yaml").write_text(
        "name: search\nsteps:\n- {operator: spec_env, family: search, corpus: corpus.jsonl, as: proposed}\n"
        "- {operator: admit, of: proposed, as: environments}\n"
    )
    codes, shown = run(tmp_path, ["run", "search.yaml"])
    assert codes == [2]
    assert "pip install 'agentmill[envs-search]'" in shown
