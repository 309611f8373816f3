"""Digests of coding problems that are equal up to renaming; wording, and the order of definitions, do not count."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping, Sequence

from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import AnyAction, ApiAction
from agentmill.synthesis.environments.codegym.problem import Problem
from agentmill.synthesis.environments.pddl.structure import Structure

_PARTS = ("code", "solution")
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)
_BUILT_IN = frozenset([*dir(builtins), "Refused"])
_WORDS = ("title", "description", "examples")


def problem_structure(problem: Problem) -> str:
    """Digest of the tools, of their code and of the solution; how inputs are drawn, and the oracle, follow from these.

    Names and texts are nodes; what a statement is besides them is the label of a fact over them in order.
    """
    structure = Structure()
    for part in _PARTS:
        for function in ast.parse(getattr(problem, part)).body:
            here = (part, function.lineno)
            structure.node(here, f"{part} {type(function).__name__}")
            for number, statement in enumerate(_statements(function)):
                parts = list(_parts(statement, structure))
                shape = " ".join(each if isinstance(each, str) else "?" for each in parts)
                structure.fact(f"{number} {shape}", here, *(each for each in parts if not isinstance(each, str)))
    for tool in problem.tools:
        node = ("name", tool.name)
        structure.node(node, "name")
        kinds = [_plain(schema) for schema in tool.parameters.values()]
        structure.fact(f"tool {digest(kinds)} {tool.name in problem.metered}", node)
    structure.node("answer", f"answer {None if problem.answer is None else digest(_plain(problem.answer))}")
    return structure.digest()


def task_structure(environment: str, start: JsonObject, gold: Sequence[AnyAction]) -> str:
    """Digest of a task up to renaming of the texts in its initial state; ``environment`` is the problem's digest.

    Texts of the solution that are not in that state are an agent's own, such as a guess, and count as they are.
    """
    names: dict[str, str] = {}
    hidden = _renamed([start.get("instance"), start.get("given")], names)
    calls = [[each.function, _known(each.kwargs, names)] for each in gold if isinstance(each, ApiAction)]
    return digest(environment, hidden, calls)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and all within it, outside first, with what is caught and the cases of a match.

    Texts that stand alone are comments.
    """
    if isinstance(node, _STATEMENTS) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        yield node
    for field in _BLOCKS:
        inner = getattr(node, field, [])
        for each in inner if isinstance(inner, list) else []:
            yield from _statements(each)


def _parts(node: ast.AST, structure: Structure) -> Iterator[str | tuple[str, str]]:
    """What a statement is made of, without the statements within it: words of the language, and nodes for names."""
    yield type(node).__name__
    for field, value in ast.iter_fields(node):
        if field in _BLOCKS and isinstance(value, list):
            yield f"{field} {len(value)}"
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST):
                yield from _parts(each, structure)
            elif isinstance(each, str) and field != "attr" and each not in _BUILT_IN:
                structure.node(("name", each), "name")
                yield ("name", each)
            elif each is not None:
                yield repr(each)


def _plain(schema: JsonObject) -> JsonObject:
    """A JSON Schema without its words."""
    kept = {key: value for key, value in schema.items() if key not in _WORDS}
    return {**kept, "enum": len(kept["enum"])} if "enum" in kept else kept


def _known(value: object, names: Mapping[str, str]) -> object:
    """A value with the texts that have a name replaced by it."""
    if isinstance(value, str):
        return [names[value]] if value in names else value
    if isinstance(value, dict):
        return {key: _known(inner, names) for key, inner in value.items()}
    return [_known(inner, names) for inner in value] if isinstance(value, list) else value


def _renamed(value: object, names: dict[str, str]) -> object:
    if isinstance(value, str):
        return names.setdefault(value, f"text {len(names)}")
    if isinstance(value, dict):
        return [[_renamed(key, names), _renamed(inner, names)] for key, inner in value.items()]
    if isinstance(value, list | tuple):
        return [_renamed(inner, names) for inner in value]
    return value
