"""A coding problem as an environment: a hidden input, tools that look at it and change it, and two programs that solve
it.

``EnvironmentSpec.source`` is its JSON. After CodeGym (arXiv:2509.17325), whose environments are coding problems with
the steps of their solutions lifted into tools. The code is in parts that share an interpreter only where neither learns
what it must not know: ``instances`` invents inputs, ``code`` is the tools, all that an agent reaches, ``solution`` sees
the input and says the answer, and ``oracle`` finds the same answer by tools alone. All of it runs in the sandbox.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

import jsonschema
import msgspec

from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Tool
from agentmill.synthesis.environments.toolbox.calls import function

SUBMIT = "submit"
OUTCOME = "outcome"
"""The function of ``code`` that says what was done, in a problem that has no answer."""

MOST_TOOLS = 16
PARTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "instances": (("draw", "chance", "size"), ("given", "instance")),
    "solution": (("solve", "instance"),),
    "oracle": (("oracle", "call", "given"),),
}
"""The functions that each part of the code must define, with their parameters. ``code`` defines one per tool."""


KEYWORDS = frozenset(
    [
        *("type", "enum", "const", "items", "properties", "required", "additionalProperties"),
        *("title", "description", "examples", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    ]
)
"""What schemas may hold. They are applied outside of the sandbox: none may refer to elsewhere or make a pattern run."""
MOST_DEPTH = 24
"""Of values within values in a schema."""
MOST_NESTED = 200
"""Pieces of code within each other; compilers and digests give up at some depth."""

IMPORTS = frozenset(["bisect", "collections", "functools", "heapq", "itertools", "math", "re", "string"])
"""What an oracle may import."""
_INNER = ("_", "f_", "gi_", "tb_")
"""How attributes begin that lead from a function or an error to what others know."""


class ProblemError(Exception):
    """The problem cannot be used; ``reason`` is a short code, the message says what is wrong, for its author."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ProblemTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool. ``parameters`` are the JSON Schemas of its arguments by name; all are required."""

    name: str
    description: str
    parameters: dict[str, JsonObject] = {}


class Problem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """``about`` says how the environment works, ``question`` what is wanted, with ``$name`` for every name of
    ``given``.

    ``answer`` is the JSON Schema of the answer; without one the agent hands in nothing, and what ``outcome(state)``
    says of the last state is compared. Calls of the ``metered`` tools are limited by the task.
    """

    about: str
    question: str
    tools: tuple[ProblemTool, ...]
    instances: str
    code: str
    solution: str
    oracle: str
    answer: JsonObject | None = None
    metered: tuple[str, ...] = ()

    def schemas(self) -> list[Tool]:
        """What an agent may call, ``submit`` at the end."""
        constants = {} if self.answer is None else {"answer": self.answer}
        ends = "Hands in the answer and ends." if constants else "Says that all is done, and ends."
        return [
            *(function(tool.name, tool.description, tool.parameters) for tool in self.tools),
            function(SUBMIT, ends, constants),
        ]


def read_problem(source: str) -> Problem:
    """Raises ``ProblemError``: ``syntax`` for what is no problem or no Python, ``tools`` for tools that do not fit,
    ``peeking_oracle`` for an oracle that has ways to look at what calls it."""
    try:
        problem = msgspec.json.decode(source, type=Problem)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProblemError("syntax", f"this is no problem: {error}") from None
    for part, functions in PARTS.items():
        defined = _functions(part, getattr(problem, part))
        for name, *parameters in functions:
            if defined.get(name) != parameters:
                raise ProblemError("syntax", f"{part} must define {name}({', '.join(parameters)})")
    _check_oracle(problem.oracle)
    _check_tools(problem, _functions("code", problem.code))
    return problem


def write_problem(problem: Problem) -> str:
    """The JSON that ``read_problem`` reads."""
    return msgspec.json.encode(problem).decode()


def _check_oracle(code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Attribute(attr=name) if name.startswith(_INNER):
                used = [name]
            case ast.Name(id=name) if name.startswith("__"):
                used = [name]
            case ast.Import(names=names):
                used = [each.name for each in names if each.name not in IMPORTS]
            case ast.ImportFrom(module=module, level=level):
                used = [] if module in IMPORTS and not level else [module or "."]
            case _:
                used = []
        if used:
            forbidden = f"oracle must not use {used[0]}; it may import {', '.join(sorted(IMPORTS))}"
            raise ProblemError("peeking_oracle", forbidden)


def _check_tools(problem: Problem, defined: dict[str, list[str]]) -> None:
    names = [tool.name for tool in problem.tools]
    if not 0 < len(names) <= MOST_TOOLS or len({*names, SUBMIT}) != len(names) + 1:
        raise ProblemError("tools", f"there must be 1 to {MOST_TOOLS} tools of different names, none called {SUBMIT}")
    for tool in problem.tools:
        if defined.get(tool.name) != ["state", *tool.parameters]:
            wanted = f"{tool.name}({', '.join(['state', *tool.parameters])})"
            raise ProblemError("tools", f"code must define {wanted}, as tool {tool.name} says")
    if problem.answer is None and defined.get(OUTCOME) != ["state"]:
        raise ProblemError("tools", f"without an answer's schema, code must define {OUTCOME}(state)")
    strangers = set(problem.metered) - set(names)
    if strangers:
        raise ProblemError("tools", f"metered names no tool: {', '.join(sorted(strangers))}")
    for schema in problem.schemas():
        if _depth(schema.parameters) > MOST_DEPTH:
            raise ProblemError("tools", f"the schema of {schema.name} is nested more than {MOST_DEPTH} deep")
        strange = _strange(schema.parameters)
        if strange is not None:
            raise ProblemError(
                "tools", f"the schema of {schema.name} holds {strange}; use {', '.join(sorted(KEYWORDS))}"
            )
        try:
            jsonschema.Draft202012Validator.check_schema(schema.parameters)
        except jsonschema.SchemaError as error:
            raise ProblemError("tools", f"the schema of {schema.name} is none: {error.message}") from None


def _depth(value: object) -> int:
    """How deep JSON values, or nodes of code, lie within each other; without recursion, as they are foreign."""
    level, depth = [value], 0
    while level:
        level, depth = [inner for each in level for inner in _within(each)], depth + 1
    return depth


def _within(value: object) -> Iterable[object]:
    match value:
        case dict():
            return value.values()
        case list():
            return value
        case ast.AST():
            return ast.iter_child_nodes(value)
    return ()


def _strange(schema: object) -> str | None:
    """What a JSON Schema must not hold, if it does."""
    if not isinstance(schema, dict):
        return None
    unknown = next((key for key in schema if key not in KEYWORDS), None)
    if unknown is not None:
        return repr(unknown)
    properties = schema.get("properties")
    within = [*(properties.values() if isinstance(properties, dict) else ()), schema.get("items")]
    found = (_strange(each) for each in [*within, schema.get("additionalProperties")])
    return next((each for each in found if each is not None), None)


def _functions(part: str, code: str) -> dict[str, list[str]]:
    """The names of the functions that a piece of code defines at its top, with the names of their parameters."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ProblemError("syntax", f"{part} is no Python: {error}") from None
    if _depth(tree) > MOST_NESTED:
        raise ProblemError("syntax", f"{part} is nested more than {MOST_NESTED} deep")
    functions = [each for each in tree.body if isinstance(each, ast.FunctionDef)]
    return {each.name: [argument.arg for argument in each.args.args] for each in functions}
