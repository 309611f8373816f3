"""Files of tools: which are read, and why others are refused."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentmill.schemas.config import parse_document
from agentmill.synthesis.generators.tool_graph.domains import find_domains
from agentmill.synthesis.generators.tool_graph.function_tools import function_list, read_functions
from agentmill.synthesis.generators.tool_graph.given_tools import Field, Specification, ToolError
from agentmill.synthesis.generators.tool_graph.json_schema import SchemaReader
from agentmill.synthesis.generators.tool_graph.openapi import read_openapi
from agentmill.synthesis.generators.tool_graph.specifications import MOST_TOOLS, bundled, read_specifications
from tests.errors import user_error

TOOL = {
    "name": "list_users",
    "description": "Lists.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def kinds(schema: dict[str, Any], document: Any = None) -> dict[str, str]:
    return {field.name: field.kind for field in SchemaReader(document or schema).fields(schema)}


def test_fields_have_the_type_bounds_and_choices_of_their_schemas() -> None:
    schema = {
        "properties": {
            "a": {"type": "integer", "minimum": 1.2, "maximum": 9},
            "b": {"type": ["string", "null"], "enum": ["x", "x", "y", None], "example": "y", "format": "word"},
            "c": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            "d": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
            "e": {"enum": [3, 5]},
            "f": {"type": "array", "items": {"type": "string"}},
            "g": {},
            "h": True,
        },
        "required": ["a"],
    }
    a, b, *others = SchemaReader(schema).fields(schema)
    assert a == Field(name="a", kind="integer", least=2, most=9, required=True)
    assert b == Field(name="b", kind="string", form="word", values=("x", "y"), examples=("y",))
    assert [each.kind for each in others] == ["boolean", "nested", "integer", "nested", "unknown", "unknown"]
    assert (others[2].least, others[2].most, others[2].values) == (3, 5, ("3", "5"))
    huge = {"properties": {"a": {"type": "integer", "minimum": -(10**400), "maximum": 10**400}}}
    assert [(each.least, each.most) for each in SchemaReader(huge).fields(huge)] == [(-(10**9), 10**9)]


def test_choices_of_numbers_constants_and_ranges_of_decimals_are_kept() -> None:
    schema = {
        "properties": {
            "size": {"type": "integer", "enum": [5, 1, 2, 100]},
            "level": {"type": "integer", "enum": [3, 1, 2]},
            "kind": {"const": "led"},
            "opacity": {"type": "number", "minimum": 0.1, "maximum": 0.9},
        }
    }
    size, level, kind, opacity = SchemaReader(schema).fields(schema)
    assert size.values == ("1", "2", "5", "100")
    assert (level.least, level.most, level.values) == (1, 3, ())
    assert (kind.kind, kind.values) == ("string", ("led",))
    assert (opacity.least, opacity.most) == (0, 1)


def test_references_and_all_of_are_resolved_within_the_document() -> None:
    document = {
        "base": {"properties": {"id": {"type": "integer"}}, "required": ["id"]},
        "a/b~c": {"type": "string"},
        "list": [{"type": "number"}],
    }
    parts = [{"$ref": "#/base"}, {"properties": {"x": {"$ref": "#/a~1b~0c"}, "y": {"$ref": "#/list/0"}}}]
    assert kinds({"allOf": parts}, document) == {"id": "integer", "x": "string", "y": "number"}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$ref": "#/nowhere"}, "dangling_ref"),
        ({"$ref": "#/list/7"}, "dangling_ref"),
        ({"$ref": "other.yaml#/x"}, "foreign_ref"),
        ({"$ref": 5}, "foreign_ref"),
        ({"$ref": "#/a"}, "circular_ref"),
        ({"$ref": "#/all"}, "circular_ref"),
        ({"properties": [1]}, "malformed"),
        (["string"], "malformed"),
    ],
)
def test_a_schema_that_cannot_be_read_has_a_reason(schema: Any, reason: str) -> None:
    document = {"a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}, "all": {"allOf": [{"$ref": "#/all"}]}, "list": []}
    with pytest.raises(ToolError) as caught:
        SchemaReader(document).fields(schema)
    assert caught.value.reason == reason


def test_a_schema_that_contains_itself_is_read() -> None:
    node = {"properties": {"id": {"type": "integer"}, "inner": {"$ref": "#"}}}
    assert kinds(node) == {"id": "integer", "inner": "nested"}


def test_rows_are_found_in_lists_and_envelopes_but_not_within_rows() -> None:
    row = {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "tags": {"type": "array", "items": {"properties": {"t": {}}}}},
    }
    rows = {"type": "array", "items": row}

    def names(schema: dict[str, Any]) -> list[str]:
        return [field.name for field in SchemaReader(schema).row(schema)]

    page = {"properties": {"items": rows, "total": {"type": "integer"}}}
    for schema in (row, rows, page, {"properties": {"data": page}}):
        assert names(schema) == ["id", "tags"]
    assert names({"type": "string"}) == []


def test_function_tools_are_read_in_every_style() -> None:
    schema = TOOL["parameters"]
    styles: list[Any] = [
        [TOOL],
        [{"type": "function", "function": TOOL}],
        {"tools": [{"name": "list_users", "inputSchema": schema}]},
        {"functions": [{"name": "list_users", "input_schema": schema}]},
        {"jsonrpc": "2.0", "result": {"tools": [{"name": "list_users", "inputSchema": schema}]}},
        TOOL,
        {"title": "list_users", **TOOL["parameters"]},  # type: ignore[dict-item]
    ]
    for style in styles:
        entries = function_list(style)
        assert entries is not None
        (tool,) = read_functions(entries, "f").tools
        assert (tool.tool_id, tool.name, [each.name for each in tool.arguments]) == (
            "f/list_users",
            "list_users",
            ["city"],
        )
    assert function_list({"some": "thing"}) is None
    assert function_list("text") is None


def test_a_text_that_an_mcp_server_wraps_is_no_row() -> None:
    wrapped = {"name": "x", "outputSchema": {"properties": {"result": {"type": "string"}}}}
    assert [tool.result for tool in read_functions([wrapped, {"name": "y"}], "f").tools] == [(), None]


def test_operations_have_parameters_of_path_query_and_body_and_a_row() -> None:
    body = {"properties": {"name": {"type": "string"}, "id": {"type": "string"}}, "required": ["name"]}
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Shop"},
        "paths": {
            "/users/{id}": {
                "parameters": [{"name": "id", "in": "path", "schema": {"type": "integer"}}],
                "patch": {
                    "summary": "Changes a user.",
                    "parameters": [
                        {"name": "dry", "in": "query", "schema": {"type": "boolean"}},
                        {"name": "X-Key", "in": "header", "required": True},
                    ],
                    "requestBody": {"content": {"application/json": {"schema": body}}},
                    "responses": {
                        "404": {"content": {"application/json": {"schema": {"properties": {"code": {}}}}}},
                        "200": {"content": {"application/problem+json; x=1": {"schema": body}}},
                    },
                },
                "head": {},
            }
        },
    }
    found = read_openapi(document, "f.yaml")
    (tool,) = found.tools
    assert (found.about, tool.tool_id, tool.description) == ("Shop", "f.yaml/patch /users/{id}", "Changes a user.")
    assert [(each.name, each.kind, each.required, each.in_path) for each in tool.arguments] == [
        ("id", "integer", True, True),
        ("dry", "boolean", False, False),
        ("name", "string", True, False),
    ]
    assert [each.name for each in tool.result or ()] == ["name", "id"]
    assert tool.left_out == ("X-Key",)


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        ({"parameters": [{"$ref": "#/gone"}]}, "dangling_ref"),
        ({"parameters": {"a": 1}}, "malformed"),
        ({"parameters": [{"in": "query"}]}, "malformed"),
        ({"requestBody": {"required": True, "content": {"text/plain": {"schema": {}}}}}, "nested_argument"),
        (
            {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "array"}}}}},
            "nested_argument",
        ),
        (7, "malformed"),
    ],
)
def test_an_operation_that_cannot_be_read_is_counted_and_others_are_read(operation: Any, reason: str) -> None:
    paths = {"/a": {"post": operation, "get": {"operationId": "ok"}}}
    found = read_openapi({"openapi": "3.0.0", "paths": paths}, "f")
    assert [tool.name for tool in found.tools] == ["ok"]
    assert [each.reason for each in found.unusable] == [reason]


JUNK = [
    None,
    True,
    5,
    "",
    "x",
    [],
    [1],
    {},
    {"a": 1},
    {"$ref": "#"},
    {"allOf": 5},
    {"properties": []},
    {"enum": [1, "é\0"]},
]


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document."""
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def test_whatever_is_broken_every_tool_is_made_or_counted() -> None:
    hotel = parse_document(bundled()["hotel"].read_text(encoding="utf-8"), "hotel")
    for seed in range(150):
        chance, document = random.Random(seed), copy.deepcopy(hotel)
        *path, last = chance.choice([each for each in places(document) if each[0] != "openapi" and len(each) > 1])
        at = document
        for key in path:
            at = at[key]
        at[last] = chance.choice(JUNK)
        found = read_openapi(document, "f")
        counted = [len(each.tools) + len(each.unusable) for each in find_domains([found], 40)]
        assert sum(counted) == len(found.tools) + len(found.unusable)


def write(path: Path, document: Any) -> str:
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return str(path)


def named(found: list[Specification]) -> list[str]:
    return [tool.tool_id for each in found for tool in each.tools]


def test_files_folders_and_shipped_specifications_are_read(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    write(tmp_path / "more/b.json", [TOOL])
    write(tmp_path / "more/a.yml", "tools:\n- {name: make_user, parameters: {properties: {}}}\n")
    write(tmp_path / "more/readme.txt", "no tools")
    single = write(tmp_path / "c.json", {**TOOL, "name": "single"})
    found = read_specifications([str(tmp_path / "more"), single])
    assert named(found) == ["a.yml/make_user", "b.json/list_users", "c.json/single"]
    assert sorted(bundled()) == ["hotel", "parcels"]
    assert len(named(read_specifications(["bundled:hotel", "bundled:parcels"]))) == 30


def test_status_codes_of_yaml_need_no_quotes(tmp_path: Path) -> None:
    response = "{content: {application/json: {schema: {properties: {id: {}}}}}}"
    text = f"openapi: 3.0.0\npaths:\n  /a:\n    get:\n      responses:\n        200: {response}\n"
    (found,) = read_specifications([write(tmp_path / "a.yaml", text)])
    assert [each.name for each in found.tools[0].result or ()] == ["id"]


@pytest.mark.parametrize(
    ("name", "document", "code", "words"),
    [
        ("a.json", {"swagger": "2.0"}, "file-kind-unknown", ("OpenAPI 2.0", "convert it")),
        ("a.json", {"openapi": "4.0"}, "file-kind-unknown", ("OpenAPI 4.0",)),
        ("a.json", {"openapi": "3.0.0"}, "no-records", ("has no `paths`",)),
        ("a.json", {"openapi": "3.0.0", "paths": {"/a": {}}}, "no-records", ("holds no tool",)),
        ("a.json", [], "no-records", ("holds no tool",)),
        ("a.json", {"what": 1}, "file-kind-unknown", ("is no specification", "OpenAPI 3 document")),
        ("a.json", "{", "damaged-file", ("line 1: no JSON",)),
        ("a.json", "[" * 200_000, "damaged-file", ("nested too deep",)),
        ("a.yaml", "a: [", "not-yaml", ("line 1",)),
        ("a.yaml", "x: &x [*x]", "not-yaml", ("alias",)),
        ("a.txt", "tools", "file-kind-unknown", ("no .json or .yaml file",)),
        ("a.json", [TOOL] * (MOST_TOOLS + 1), "number-out-of-range", ("2,001 tools", "split them")),
        ("a.yaml", "#" * (2 * 2**20 + 1), "file-too-large", ("2 MiB", "as JSON")),
    ],
)
def test_a_file_that_is_no_specification_is_refused(
    tmp_path: Path, name: str, document: Any, code: str, words: tuple[str, ...]
) -> None:
    with user_error(code, *words):
        read_specifications([write(tmp_path / name, document)])


def test_what_is_missing_or_given_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "tools.json", [TOOL])
    with user_error("no-such-file", "Did you mean 'tools.json'"):
        read_specifications([str(tmp_path / "tool.json")])
    with user_error("given-twice", "leave one of them out"):
        read_specifications([path, path])
    with user_error("unknown-name", "Did you mean 'hotel'"):
        read_specifications(["bundled:hotels"])
    (tmp_path / "empty").mkdir()
    with user_error("no-file-matches", "holds no .json or .yaml file"):
        read_specifications([str(tmp_path / "empty")])
