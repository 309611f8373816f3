"""The process in which a chat template is rendered: ``python -P worker.py``, on jinja2 and nothing of ours.

Templates are programs that come with models. Jinja's sandbox keeps them from Python, but not from running for ever or
filling the memory; limits of the kernel on this process do. Frames are a length (eight bytes) and JSON, in and out. A
template that takes too long ends the process by ``SIGALRM``.

The environment is that of ``transformers``, so that a text is the same as from ``apply_chat_template``.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import sys
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

LENGTH = struct.Struct(">Q")
TAKE = "agentmill_take"
"""What templates call ``Starts.take``."""


class Generation(Extension):
    """``{% generation %}``, which marks what a model writes; the mark itself shows nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """As ``Extension.parse``."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_shown"), [], [], body).set_lineno(line)

    def _shown(self, caller: Macro) -> str:
        return caller()


def raise_exception(message: str) -> None:
    """Templates refuse conversations by it."""
    raise jinja2.TemplateError(message)


def tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Jinja's own filter would escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(form: str) -> str:
    """The local time."""
    return datetime.now().strftime(form)


class Starts:
    """Where in the text each message of a conversation starts: how long the text is when a loop takes the message."""

    def __init__(self) -> None:
        self.begin([])

    def begin(self, messages: object) -> None:
        """Begin a text of these messages."""
        self.size = 0
        self._messages = messages if isinstance(messages, list) else []
        self._places = {id(message): place for place, message in enumerate(self._messages)}
        self._found: dict[int, int] = {}

    def take(self, value: object) -> None:
        """Note a value that a loop takes; the last time counts, since loops that only look come first."""
        place = self._places.get(id(value))
        if place is not None:
            self._found.pop(place, None)
            self._found[place] = self.size

    def found(self) -> list[int]:
        """The starts of all messages, -1 for those that no loop took; none if they were not taken in their order."""
        ordered = list(self._found) == sorted(self._found)
        return [self._found.get(place, -1) for place in range(len(self._messages))] if ordered else []


starts = Starts()


class Environment(ImmutableSandboxedEnvironment):
    """As that of ``transformers``; loops also tell ``starts`` what they take, which changes no text."""

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in list(template.find_all(nodes.For)):
            if isinstance(loop.target, nodes.Name):
                taken = nodes.Name(loop.target.name, "load")
                call = nodes.Call(nodes.Name(TAKE, "load"), [taken], [], None, None)
                loop.body.insert(0, nodes.ExprStmt(call).set_lineno(loop.lineno))
        return template


@lru_cache(maxsize=16)
def compiled(source: str) -> jinja2.Template:
    """The template of that source. Raises ``jinja2.TemplateError``."""
    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals.update({"raise_exception": raise_exception, "strftime_now": strftime_now, TAKE: starts.take})
    return environment.from_string(source)


def rendered(source: str, names: dict[str, Any], most: int) -> str:
    """The text, no longer than ``most`` characters. Raises ``OverflowError``, and whatever the template raises."""
    parts = []
    starts.begin(names.get("messages"))
    # In parts, so that a text that grows for ever is stopped before it is whole.
    for part in compiled(source).generate(**names):
        parts.append(part)
        starts.size += len(part)
        if starts.size > most:
            raise OverflowError
    return "".join(parts)


def reply(request: dict[str, Any]) -> dict[str, Any]:
    """The text, or what went wrong: ``limit`` for too large a text, ``memory``, else the exception."""
    try:
        return {"text": rendered(request["source"], request["names"], request["most"]), "starts": starts.found()}
    except MemoryError:
        return {"limit": "memory"}
    except OverflowError as error:
        # Ours has no arguments; a template may overflow by itself.
        return {"limit": "text"} if not error.args else {"kind": "OverflowError", "message": str(error)[:1_000]}
    except Exception as error:  # noqa: BLE001 - a template is a program of others
        return {"kind": type(error).__name__, "message": str(error)[:1_000]}


def serve(timeout_s: float, memory_bytes: int) -> None:
    """Answer requests until standard input closes."""
    source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # Whatever else writes to standard output must not get between the frames.
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    # The default action ends the process even within C code, where a handler in Python would wait.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt from the keyboard is for who asks
    # The limit counts all addresses, those of the interpreter and its libraries too.
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + memory_bytes, held + memory_bytes))
    while head := source.read(LENGTH.size):
        request = json.loads(source.read(LENGTH.unpack(head)[0]))
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        answer = json.dumps(reply(request)).encode()
        signal.setitimer(signal.ITIMER_REAL, 0)
        target.write(LENGTH.pack(len(answer)) + answer)
        target.flush()


if __name__ == "__main__":
    serve(float(sys.argv[1]), int(sys.argv[2]))
