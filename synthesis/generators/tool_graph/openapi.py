"""The operations of an OpenAPI 3 document as tools. Servers, security, headers, cookies and callbacks play no part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.synthesis.generators.tool_graph.given_tools import Field, GivenTool, Specification, ToolError, Unusable
from agentmill.synthesis.generators.tool_graph.json_schema import SchemaReader

METHODS = ("get", "post", "put", "patch", "delete")
"""The methods of operations that are tools; the others ask about an address, not for anything at it."""


def is_openapi(document: Any) -> bool:
    """Whether a document names itself one of OpenAPI, or of Swagger, which came before."""
    return isinstance(document, dict) and ("openapi" in document or "swagger" in document)


def read_openapi(document: dict[str, Any], source: str) -> Specification:
    """The tools of an OpenAPI 3 document. Raises ``UserError`` for another version and for one without a path."""
    version = str(document.get("openapi") or document.get("swagger"))
    if "swagger" in document or not version.startswith("3."):
        raise UserError(
            f"{source} is of OpenAPI {version}; expected a version that begins with 3\n"
            "convert it to OpenAPI 3, or list its tools as functions",
            ErrorCode.FILE_KIND_UNKNOWN,
        )
    paths = document.get("paths")
    if not isinstance(paths, dict) or not paths:
        raise UserError(
            f"{source} has no `paths`, so it describes no tool\nname a document with operations", ErrorCode.NO_RECORDS
        )
    info = document.get("info")
    reader = SchemaReader(document)
    tools: list[GivenTool] = []
    unusable: list[Unusable] = []
    for path, item in paths.items():
        for method, operation in _operations(reader, item):
            name = _name(operation, method, path)
            tool_id = f"{source}/{name}"
            try:
                tools.append(_tool(reader, tool_id, name, method, path, item, operation))
            except ToolError as error:
                unusable.append(Unusable(tool_id, error.reason, error.detail))
    about = str(info.get("title") or "") if isinstance(info, dict) else ""
    return Specification(about, tuple(tools), tuple(unusable))


def _operations(reader: SchemaReader, item: Any) -> Iterator[tuple[str, Any]]:
    """The operations at a path; of a path that cannot be read one, so that it is counted."""
    try:
        found = reader.resolve(item)
    except ToolError:
        yield "get", item
        return
    yield from ((method, found[method]) for method in METHODS if method in found)


def _name(operation: Any, method: str, path: str) -> str:
    given = operation.get("operationId") if isinstance(operation, dict) else None
    return given if isinstance(given, str) and given.strip() else f"{method} {path}"


def _tool(
    reader: SchemaReader, tool_id: str, name: str, method: str, path: str, item: Any, operation: Any
) -> GivenTool:
    found, shared = reader.resolve(operation), reader.resolve(item)
    arguments, left_out = _parameters(reader, [shared, found])
    arguments += [each for each in _body(reader, found) if each.name not in {one.name for one in arguments}]
    return GivenTool(
        tool_id=tool_id,
        name=name,
        description=str(found.get("description") or found.get("summary") or ""),
        arguments=tuple(arguments),
        result=_result(reader, found),
        method=method,
        path=path,
        left_out=tuple(left_out),
    )


def _parameters(reader: SchemaReader, levels: list[dict[str, Any]]) -> tuple[list[Field], list[str]]:
    """Those of the path item and of the operation, which go before; and the names of headers and cookies."""
    fields: dict[str, Field] = {}
    left_out: list[str] = []
    for level in levels:
        listed = level.get("parameters") or []
        if not isinstance(listed, list):
            raise ToolError("malformed", "`parameters` is no list")
        for each in map(reader.resolve, listed):
            name, place = each.get("name"), each.get("in")
            if not isinstance(name, str) or not name:
                raise ToolError("malformed", "a parameter has no name")
            if place not in ("path", "query"):
                left_out.append(name)
                continue
            schema = each.get("schema") or _json_schema(each.get("content")) or {}
            examples = {key: each[key] for key in ("example", "examples") if isinstance(each.get(key), str | list)}
            needed = place == "path" or each.get("required") is True
            described = {**examples, **reader.resolve(schema)}
            fields[name] = reader.field(name, described, needed, in_path=place == "path")
    return list(fields.values()), left_out


def _body(reader: SchemaReader, operation: dict[str, Any]) -> list[Field]:
    body = reader.resolve(operation.get("requestBody") or {})
    schema = _json_schema(body.get("content"))
    if schema is None:
        if body.get("required") is True:
            raise ToolError("nested_argument", "its body is required and is no JSON object")
        return []
    found = reader.resolve(schema)
    if "properties" not in found:
        if body.get("required") is True:
            raise ToolError(
                "nested_argument", "its body is a list, a choice of several schemas or an object of any keys"
            )
        return []
    return reader.fields(found)


def _result(reader: SchemaReader, operation: dict[str, Any]) -> tuple[Field, ...] | None:
    """A row of the first successful response with JSON; ``None`` where none has any."""
    responses = operation.get("responses")
    for status, response in sorted(responses.items()) if isinstance(responses, dict) else []:
        if str(status).startswith("2") or status == "default":
            schema = _json_schema(reader.resolve(response).get("content"))
            if schema is not None:
                return reader.row(schema)
    return None


def _json_schema(content: Any) -> Any:
    """The schema of the first kind of content that is JSON, or else a form."""
    kinds = content if isinstance(content, dict) else {}
    for wanted in ("json", "form"):
        for kind, media in kinds.items():
            if wanted in str(kind) and isinstance(media, dict) and media.get("schema") is not None:
                return media["schema"]
    return None
