"""ToolBench's search trees (arXiv:2307.16789): every line from the root to a leaf is a run, and the lines are a tree.

The first line that was searched is the root of the tree of runs; any other is a branch of the line that it left, holds
its whole history with what it shares marked as copied, and says in ``branch_turn`` where it left. Pruned lines stay:
``pruned`` says where the search stopped looking, not that a line is wrong. A line that answers in a search that ``win``
succeeds, one that gave up fails, of others nothing is known. ``train_messages`` repeat the lines; what the tree does
not show of them (prompts of the search) is kept in ``extra``, and trained on by nobody.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from agentmill.schemas.config import Config
from agentmill.schemas.format import FormatError, Losses, Origin, Raw, Read, Remarks, parse, provenance
from agentmill.schemas.ids import part_id
from agentmill.schemas.messages.calls import link_remarks, read_arguments
from agentmill.schemas.messages.conversation import Transcript
from agentmill.schemas.messages.tools import read_tools
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import (
    AnyItem,
    ApiAction,
    ContextOperation,
    MessageAction,
    Outcome,
    OutcomeStatus,
    Source,
    TextObservation,
    Tool,
    Trajectory,
)

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
        # An item is made of up to three nodes. If the parent goes on with one more of them, its item is another one.
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
        # Reversed, so that the first child is taken from the stack first.
        stack += [(child, [*path, child]) for child in reversed(children)]
        if not children:
            shared = next((place for place, each in enumerate(path) if id(each) not in owners), len(path))
            parent = None if not found else owners[id(path[shared - 1])] if shared else 0
            # By identity: nodes of equal text are common in a search.
            owners |= {id(each): len(found) for each in path[shared:]}
            fork = found[parent].nodes[shared]["node_type"] if parent is not None else None
            found.append(Line(path, parent, shared, fork))
    return found


def node_fields(node: JsonObject) -> JsonObject:
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
        own = {name: node_fields(self.line.nodes[each]) for name, each in places.items() if each >= self.line.shared}
        self.transcript.add(item, {name: node for name, node in own.items() if node})


def _check(node: Any) -> None:
    if not isinstance(node, dict) or node.get("node_type") not in KINDS:
        kind = node.get("node_type") if isinstance(node, dict) else node
        raise FormatError("unknown_node", f"a node is of type {kind!r:.60}; known: {', '.join(KINDS)}")
    if not isinstance(node.get("description"), str) or not isinstance(node.get("children"), list):
        raise FormatError("invalid", f"a node has no description or no list of children: {node!r:.80}")


CONVERTER_VERSION = "1"
NAME = "toolbench"
ANSWERED, GAVE_UP = 3, 4
"""Codes of the last observation of a line that came to an end."""


class ToolBench(Config):
    """ToolBench's answer files: a tree of thoughts and calls for one query, all of its lines. They are only read."""

    def read(self, raw: Raw, origin: Origin) -> Read:
        """The first line, and the others with it.

        Raises ``FormatError``. Reasons: those of ``parse``; ``invalid`` where there is no tree; ``unknown_node``.
        """
        document = parse(raw)
        tree = document.get("tree")
        root = tree.get("tree") if isinstance(tree, dict) else None
        if not isinstance(tree, dict) or not isinstance(root, dict):
            raise FormatError("invalid", f"expected 'tree', an object with the root under 'tree', got {tree!r:.60}")
        answer = document.get("answer_generation")
        answer = dict(answer) if isinstance(answer, dict) else {}
        tools, note, losses = read_tools(answer.pop("function", None), "object")
        system, query = _prompt(answer)
        trajectory_id, source = provenance(raw, origin, NAME, CONVERTER_VERSION)
        search = _Search(trajectory_id, source, tools, system, query, document.get("win"))
        found = lines(root)
        runs = [search.run(found, number) for number in range(len(found))]
        kept = {key: value for key, value in document.items() if key not in ("tree", "answer_generation", "win")}
        kept["tree"] = {key: value for key, value in tree.items() if key != "tree"} | {"root": node_fields(root)}
        if root["description"] or root.get("observation"):
            kept["tree"]["root"] |= {key: root.get(key) for key in ("description", "observation")}
        kept["compare_candidates"] = _candidates(document.get("compare_candidates"), found)
        contexts = answer.pop("train_messages", None)
        kept["answer_generation"] = answer | _unseen(contexts, root, (system, query))
        kept |= {"tools": note} if note else {}
        runs[0].extra[NAME].update(kept)
        return Read(runs[0], Losses(+losses), tuple(runs[1:]), search.remarks)


class _Search:
    """What the lines of a tree have in common."""

    def __init__(
        self, trajectory_id: str, source: Source, tools: list[Tool], system: str | None, query: str | None, win: Any
    ) -> None:
        self.trajectory_id = trajectory_id
        self.source = source
        self.tools = tools
        self.system = system
        self.query = query
        self.win = win
        self.remarks = Remarks()

    def run(self, found: list[Line], number: int) -> Trajectory:
        """The run of the line of that number."""
        line = found[number]
        transcript = Transcript()
        if self.query is not None:
            copied: ContextOperation | None = "copied" if line.parent is not None else None
            transcript.add(TextObservation(content=self.query, source="user", context_operation=copied), {})
        branch_turn = read_line(line, transcript)
        self.remarks += transcript.remarks + link_remarks(transcript.content, self.tools)
        return Trajectory(
            trajectory_id=self._name(number),
            content=transcript.content,
            parent_id=self._name(line.parent) if line.parent is not None else None,
            branch_turn=branch_turn if line.parent is not None else None,
            system_prompt=self.system,
            tools=self.tools,
            outcome=_outcome(line, self.win),
            source=self.source,
            extra={NAME: {"line": number, "win": self.win} | transcript.notes()},
        )

    def _name(self, number: int) -> str:
        return self.trajectory_id if number == 0 else part_id(self.trajectory_id, f"line-{number}")


def _outcome(line: Line, win: Any) -> Outcome:
    leaf = line.nodes[-1] if line.nodes else {}
    code = leaf.get("observation_code")
    status: OutcomeStatus = "unknown"
    if code == ANSWERED and win is True:
        status = "success"
    elif code == GAVE_UP:
        status = "failure"
    ended = code in (ANSWERED, GAVE_UP)
    reason = {ANSWERED: "answered", GAVE_UP: "gave_up"}.get(code) if isinstance(code, int) else None
    pruned = leaf.get("pruned") is True and not ended
    return Outcome(
        status=status, terminated=ended, truncated=pruned, reason=reason if reason or not pruned else "pruned"
    )


def _prompt(answer: JsonObject) -> tuple[str | None, str | None]:
    """The system prompt and what the user asked, as the model saw them; without contexts only the query is known."""
    contexts = answer.get("train_messages")
    first = contexts[0] if isinstance(contexts, list) and contexts and isinstance(contexts[0], list) else []
    texts: dict[str, str] = {}
    for message in first:
        if not isinstance(message, dict) or message.get("role") not in ("system", "user"):
            break
        if isinstance(message.get("content"), str):
            texts.setdefault(message["role"], message["content"])
    query = answer.get("query")
    return texts.get("system"), texts.get("user", query if isinstance(query, str) else None)


def _unseen(contexts: Any, root: JsonObject, prompt: tuple[str | None, ...]) -> JsonObject:
    """Messages that neither the tree nor the prompt shows, by context and place, each where it comes first."""
    if contexts is None:
        return {}
    texts = {*prompt, *_texts(root), None}
    found: JsonObject = {}
    known: list[Any] = []
    for number, context in enumerate(contexts if isinstance(contexts, list) else [contexts]):
        messages = context if isinstance(context, list) else [context]
        for place, message in enumerate(messages):
            if not (place < len(known) and known[place] == message) and not _is_shown(message, texts):
                found.setdefault(str(number), {})[str(place)] = message
        known = messages
    return {"train_messages": found} if found else {}


def _is_shown(message: Any, texts: set[str | None]) -> bool:
    if not isinstance(message, dict) or message.keys() - {"role", "content", "name", "function_call"}:
        return False
    call = message.get("function_call")
    parsed = [message.get("content"), message.get("name")]
    parsed += [call.get("name"), call.get("arguments")] if isinstance(call, dict) else [call]
    return all(text is None or (isinstance(text, str) and text in texts) for text in parsed)


def _texts(root: JsonObject) -> list[str]:
    found: list[str] = []
    stack = [root]
    while stack:
        node = stack.pop()
        found += [node[key] for key in ("description", "observation") if isinstance(node.get(key), str)]
        stack += node["children"]
    return found


def _candidates(candidates: Any, found: list[Line]) -> Any:
    """The lines that were candidates for the answer, by number; what is no line of the tree as it is."""
    if not isinstance(candidates, list):
        return candidates
    bare = [[{key: value for key, value in node.items() if key != "children"} for node in line.nodes] for line in found]
    return [bare.index(each) if each in bare else each for each in candidates]
