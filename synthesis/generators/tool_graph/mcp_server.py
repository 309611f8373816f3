"""The tools of an MCP server, asked by the official client. No tool is called."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.extras import missing_modules_explained
from agentmill.synthesis.generators.tool_graph.function_tools import read_functions
from agentmill.synthesis.generators.tool_graph.given_tools import Specification

PATIENCE_S = 60.0
"""How long a server may take to start and to list its tools."""

MOST_PAGES = 100


@lru_cache(maxsize=8)
def ask_server(server: tuple[str, ...]) -> Specification:
    """The tools of a server: its URL, or the command that starts it, with arguments.

    A process asks a server once, so that all steps of a run see the same tools. Raises ``UserError`` for one that does
    not start, does not answer within ``PATIENCE_S``, or is none.
    """
    with missing_modules_explained():
        import mcp  # noqa: F401
    called = " ".join(server)
    try:
        entries = asyncio.run(asyncio.wait_for(_entries(server), PATIENCE_S))
    except TimeoutError:
        raise _no_answer(called, f"no answer within {PATIENCE_S:g} seconds") from None
    # The client raises what the transport, the process or the protocol raises, also in groups.
    except Exception as error:  # noqa: BLE001
        raise _no_answer(called, _first(error)) from None
    return read_functions(entries, name_of(server), name_of(server))


def is_url(server: tuple[str, ...]) -> bool:
    """Whether a server is named by its address, and not by a command."""
    return len(server) == 1 and server[0].startswith(("http://", "https://"))


def name_of(server: tuple[str, ...]) -> str:
    """What the tools of a server are known by: its host, or the last word of its command, without a path."""
    return urlsplit(server[0]).hostname or "server" if is_url(server) else server[-1].rpartition("/")[2]


async def _entries(server: tuple[str, ...]) -> list[dict[str, Any]]:
    from mcp import Client, StdioServerParameters

    target = server[0] if is_url(server) else StdioServerParameters(command=server[0], args=list(server[1:]))
    found: list[dict[str, Any]] = []
    async with Client(target) as client:
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                return found
    raise _no_answer(name_of(server), f"it has more than {MOST_PAGES} pages of tools")


def _first(error: BaseException) -> str:
    """The first error of a group, in a line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _no_answer(called: str, why: str) -> UserError:
    return UserError(
        f"the MCP server {called} lists no tools: {why}\n"
        "check that the command or the address is right by starting it yourself, or save its tools/list as a file",
        ErrorCode.ENDPOINT_UNREACHABLE,
    )
