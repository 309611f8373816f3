"""What is registered: the kinds of plug-ins, their names, and what each is for in one line."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from schemas.registry import Registry

KINDS = Registry(
    "kind of plug-in",
    {
        "operators": "pipelines.operators:OPERATORS",
        "environments": "synthesis.environments:ENVIRONMENTS",
        "generators": "synthesis.generators:GENERATORS",
        "policies": "synthesis.policies:POLICIES",
        "strategies": "synthesis.strategies:STRATEGIES",
        "verifiers": "synthesis.verifiers:VERIFIERS",
        "views": "schemas.views:VIEWS",
        "pair_views": "schemas.views:PAIR_VIEWS",
        "family_views": "schemas.views:FAMILY_VIEWS",
        "formats": "schemas.formats:FORMATS",
        "dialects": "schemas.formats.dialects:DIALECTS",
    },
)


def described(kind: str) -> dict[str, str]:
    """Name to description of every plug-in of ``kind``. Raises ``UserError`` for an unknown kind."""
    registry: Registry = KINDS.load(kind)
    return {name: description(entry) for name, entry in registry.items()}


def description(entry: str) -> str:
    """First line of the docstring of ``"package.module:attribute"``, or else of its module.

    It is read from the source and nothing of the plug-in is imported, so a listing is quick and works where what a
    plug-in needs is not installed.
    """
    module, _, attribute = entry.partition(":")
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        return ""
    tree = ast.parse(Path(found.origin).read_text(encoding="utf-8"))
    named = (node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef))
    docstring = next((ast.get_docstring(node) for node in named if node.name == attribute), None)
    return (docstring or ast.get_docstring(tree) or "").partition("\n")[0]
