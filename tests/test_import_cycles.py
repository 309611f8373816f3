"""No module and no folder imports, by whatever way, one that imports it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("schemas", "synthesis", "pipelines", "trainers")
SOURCES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for room in ROOMS
    for path in (ROOT / room).rglob("*.py")
}


def imports(sources: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Each pair of modules, by their paths, of which the first imports the second, be it in a function."""
    paths = {"agentmill." + path[:-3].replace("/", ".").removesuffix(".__init__"): path for path in sources}
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    found = paths.get(f"{node.module}.{alias.name}", paths.get(node.module))
                    if found not in (None, path):
                        yield path, str(found)


def in_order(sources: dict[str, str], of: Callable[[str], str]) -> list[str]:
    """What modules belong to, each after all that it needs. Raises ``CycleError``. A folder may use those above it."""
    graph: TopologicalSorter[str] = TopologicalSorter()
    for importing, imported in imports(sources):
        one, other = of(importing), of(imported)
        if other not in (one, *map(str, PurePosixPath(one).parents)):
            graph.add(one, other)
    return list(graph.static_order())


def folder(path: str) -> str:
    return str(PurePosixPath(path).parent)


def module(path: str) -> str:
    return path


@pytest.mark.parametrize("of", [module, folder])
def test_nothing_is_imported_by_what_it_imports(of: Callable[[str], str]) -> None:
    assert len(in_order(SOURCES, of)) > 30


def test_the_test_itself_sees() -> None:
    sources = {
        "pipelines/a/one.py": "from agentmill.pipelines.b import two",
        "pipelines/b/two.py": "def f():\n    from agentmill.pipelines.a.three import x",
        "pipelines/a/three.py": "x = 1",
    }
    assert in_order(sources, module)[0] == "pipelines/a/three.py"
    with pytest.raises(CycleError):
        in_order(sources, folder)
    sources["pipelines/a/three.py"] = "from agentmill.pipelines.a.one import y"
    with pytest.raises(CycleError):
        in_order(sources, module)
