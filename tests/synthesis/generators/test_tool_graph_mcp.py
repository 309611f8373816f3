"""An MCP server is asked for its tools over stdio and over HTTP on loopback, and nothing else."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentmill.synthesis.generators.tool_graph import mcp_server
from agentmill.synthesis.generators.tool_graph.mcp_server import ask_server, name_of
from tests.errors import user_error

SERVER = """
from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel

class Note(BaseModel):
    note_id: int
    title: str

app = MCPServer("notes")

@app.tool()
def list_notes() -> list[Note]:
    "Lists all notes."
    raise SystemExit("a tool was called")

@app.tool()
def delete_note(note_id: int) -> str:
    "Removes a note."
    raise SystemExit("a tool was called")
"""


ENDLESS = """
import asyncio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.types import ListToolsResult, Tool

async def page(context, params):
    return ListToolsResult(tools=[Tool(name="look", input_schema={"type": "object"})], next_cursor="more")

async def main():
    server = Server("endless", on_list_tools=page)
    async with stdio_server() as (reads, writes):
        await server.run(reads, writes, server.create_initialization_options())

asyncio.run(main())
"""
"""A server whose list of tools has no end."""


@pytest.fixture(autouse=True)
def asked_anew() -> None:
    ask_server.cache_clear()


def script(folder: Path, last: str) -> str:
    path = folder / "notes.py"
    path.write_text(f"{SERVER}\n{last}\n", encoding="utf-8")
    return str(path)


@contextmanager
def served_over_http(folder: Path) -> Iterator[str]:
    """The address of the server, in a thread of this process."""
    import uvicorn

    known: dict[str, object] = {}
    exec(compile(Path(script(folder, "web = app.streamable_http_app()")).read_text(), "notes", "exec"), known)
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(known["web"], log_level="critical", ws="none"))  # type: ignore[arg-type]
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([place])))
        thread.start()
        try:
            yield f"http://127.0.0.1:{place.getsockname()[1]}/mcp"
        finally:
            server.should_exit = True
            thread.join()


def test_a_server_that_is_started_lists_its_tools(tmp_path: Path) -> None:
    found = ask_server((sys.executable, script(tmp_path, "app.run()")))
    assert found.about == "notes.py"
    assert [(tool.tool_id, [each.name for each in tool.arguments]) for tool in found.tools] == [
        ("notes.py/list_notes", []),
        ("notes.py/delete_note", ["note_id"]),
    ]
    assert [[each.name for each in tool.result or ()] for tool in found.tools] == [["note_id", "title"], []]
    assert ask_server.cache_info().misses == 1


def test_a_server_with_an_address_lists_its_tools(tmp_path: Path) -> None:
    with served_over_http(tmp_path) as address:
        found = ask_server((address,))
    assert [tool.tool_id for tool in found.tools] == ["127.0.0.1/list_notes", "127.0.0.1/delete_note"]


def test_a_server_that_cannot_be_asked_is_an_error_of_two_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    for server, words in (
        (("no-such-program",), "No such file"),
        (("true",), "closed"),
        (("http://127.0.0.1:9/mcp",), ""),
    ):
        with user_error("endpoint-unreachable", "lists no tools", words):
            ask_server(server)
    monkeypatch.setattr(mcp_server, "PATIENCE_S", 0.5)
    with user_error("endpoint-unreachable", "no answer within 0.5 seconds"):
        ask_server(("sleep", "30"))


def test_a_server_with_too_many_pages_is_refused_and_not_read_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = tmp_path / "endless.py"
    endless.write_text(ENDLESS, encoding="utf-8")
    monkeypatch.setattr(mcp_server, "MOST_PAGES", 3)
    with user_error("endpoint-unreachable", "more than 3 pages of tools"):
        ask_server((sys.executable, str(endless)))


def test_tools_are_known_by_host_or_command() -> None:
    assert name_of(("https://tools.example.org/mcp",)) == "tools.example.org"
    assert name_of(("uvx", "/opt/notes-server")) == "notes-server"
