"""The lines of a ToolBench tree, from the root to each leaf, and the items that their nodes are."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from schemas.formats.arguments import read_arguments
from schemas.formats.format import FormatError
from schemas.formats.transcript import Transcript
from schemas.record import JsonObject
from schemas.trajectory import AnyItem, ApiAction, MessageAction, TextObservation

KINDS = ("Thought", "Action", "Action Input")
ENDED_WELL = (0, 3, 4)
"""Codes of observations that are no errors: a result, an answer, giving up."""
_STRUCTURE = {"node_type", "description", "observation", "children", "depth", "child_count"}


class Line(NamedTuple):
    """The nodes from the child of the root to a leaf; the first ``shared`` of them are those of line ``parent`` too.

    ``fork`` is the type of the node with which the parent goes on.
    """

    nodes: list[JsonObject]
    parent: int | None
    shared: int
    fork: str | None

    def shares(self, place: int) -> bool:
        """Whether the parent has an item, too, that ends with the node at ``place``."""
        longer = (self.nodes[place]["node_type"], self.fork) in (("Thought", "Action"), ("Action", "Action Input"))
        return place < self.shared - longer


def lines(root: JsonObject) -> list[Line]:
    """Every line of the tree, in the order of the search. Raises ``FormatError``: ``unknown_node``, ``invalid``."""
    found: list[Line] = []
    stack: list[tuple[JsonObject, list[JsonObject]]] = [(root, [])]
    owners: dict[int, int] = {}
    while stack:
        node, path = stack.pop()
        _check(node)
        children = node["children"]
        stack += [(child, [*path, child]) for child in reversed(children)]
        if not children:
            shared = next((place for place, each in enumerate(path) if id(each) not in owners), len(path))
            parent = None if not found else owners[id(path[shared - 1])] if shared else 0
            owners |= {id(each): len(found) for each in path[shared:]}
            fork = found[parent].nodes[shared]["node_type"] if parent is not None else None
            found.append(Line(path, parent, shared, fork))
    return found


def said(node: JsonObject) -> JsonObject:
    """What a node says beyond its text and place."""
    known = _STRUCTURE if isinstance(node.get("observation"), str) else _STRUCTURE - {"observation"}
    return {key: value for key, value in node.items() if key not in known and value not in (None, {}, [])}


def read_line(line: Line, transcript: Transcript) -> int:
    """Add the items of a line; the first turn that is its own."""
    return _LineReader(line, transcript).read()


class _LineReader:
    """Walks along a line."""

    def __init__(self, line: Line, transcript: Transcript) -> None:
        self.line = line
        self.transcript = transcript
        self.thoughts: list[int] = []
        self.branch_turn = 0

    def read(self) -> int:
        place = 0
        nodes = self.line.nodes
        while place < len(nodes):
            kind = nodes[place]["node_type"]
            follower = nodes[place + 1]["node_type"] if place + 1 < len(nodes) else None
            if kind == "Thought" and follower == "Action":
                self.thoughts.append(place)
                place += 1
            elif kind == "Thought":
                self._turn(place)
                self._add(MessageAction(content=nodes[place]["description"]), place, {"thought": place})
                place += 1
            elif kind == "Action":
                self._call(place, place + 1 if follower == "Action Input" else None)
                place += 2 if follower == "Action Input" else 1
            else:
                raise FormatError("unknown_node", f"node {place + 1} of a line is an input of no action")
        return self.branch_turn or self.transcript.turn + 1

    def _call(self, place: int, given: int | None) -> None:
        nodes = self.line.nodes
        thought = self.thoughts.pop() if self.thoughts else None
        last = place if given is None else given
        self._turn(last)
        kwargs, raw = read_arguments("" if given is None else nodes[given]["description"])
        rest: JsonObject = {}
        call = ApiAction(
            function=nodes[place]["description"],
            kwargs=kwargs,
            raw_arguments=raw,
            tool_call_id=self.transcript.call_id(None, rest),
            description=nodes[thought]["description"] if thought is not None else None,
        )
        places = {"thought": thought, "action": place, "input": given}
        self._add(call, last, {name: each for name, each in places.items() if each is not None})
        seen = nodes[last].get("observation")
        if isinstance(seen, str):
            code = nodes[last].get("observation_code")
            answer = TextObservation(
                content=seen,
                source="environment",
                tool_call_id=self.transcript.answer(call.tool_call_id, rest),
                error=isinstance(code, int) and code not in ENDED_WELL,
            )
            self._add(answer, last, {})

    def _turn(self, place: int) -> None:
        """Begin a turn that ends with the node at ``place``."""
        self.transcript.turn += 1
        if not self.line.shares(place) and not self.branch_turn:
            self.branch_turn = self.transcript.turn

    def _add(self, item: AnyItem, place: int, places: dict[str, int]) -> None:
        """Add an item that ends with the node at ``place``; what nodes of this line alone say is kept."""
        if self.line.shares(place):
            item = msgspec.structs.replace(item, context_operation="copied")
        own = {name: said(self.line.nodes[each]) for name, each in places.items() if each >= self.line.shared}
        self.transcript.add(item, {name: node for name, node in own.items() if node})


def _check(node: Any) -> None:
    if not isinstance(node, dict) or node.get("node_type") not in KINDS:
        kind = node.get("node_type") if isinstance(node, dict) else node
        raise FormatError("unknown_node", f"a node is of type {kind!r:.60}; known: {', '.join(KINDS)}")
    if not isinstance(node.get("description"), str) or not isinstance(node.get("children"), list):
        raise FormatError("invalid", f"a node has no description or no list of children: {node!r:.80}")
