"""The dependency graph of tools, and the domains that it falls into.

An edge leads from one tool to another where a field of the result of the first is an argument of the second, by name
and type. Names are compared with the resource that they belong to: both identify a row of one resource (``id`` of a
guest and ``guestId``), or both are the same value of the same resource (``email`` of a guest). So ``name`` of a guest
does not lead to ``name`` of a room. Types must be equal; whole and other numbers count as one, and an unknown type as
any. Tools whose specification tells no result count with the whole row of their resource.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import networkx as nx

from agentmill.synthesis.generators.tool_graph.given_tools import Kind
from agentmill.synthesis.generators.tool_graph.naming import snake
from agentmill.synthesis.generators.tool_graph.resources import Part, Understood

RESOLUTIONS = (1, 2, 4, 8)
"""Resolutions of Louvain's method that are tried until one divides a domain; a higher one finds smaller parts."""


class Edge(msgspec.Struct, frozen=True, order=True):
    """Two tools by their ids, and the field that leads from one to the other (``guest.id``, ``guest.email``)."""

    source: str
    target: str
    field: str


def edges_of(tools: Sequence[Understood]) -> Iterator[Edge]:
    """All edges between different tools, in the order of the tools; their number may grow with its square."""
    shown, taken = _shown(tools), _taken(tools)
    takers: dict[str, list[tuple[Understood, Kind]]] = {}
    for tool, wanted in zip(tools, taken, strict=True):
        for name, kind in wanted.items():
            takers.setdefault(name, []).append((tool, kind))
    for tool, given in zip(tools, shown, strict=True):
        for name, kind in given.items():
            for other, wanted_kind in takers.get(name, []):
                if other is not tool and _same(kind, wanted_kind):
                    yield Edge(tool.tool.tool_id, other.tool.tool_id, name)


def count_edges(tools: Sequence[Understood]) -> Counter[tuple[str, str]]:
    """How many edges lead from the tools of one resource to those of another, or of its own, without listing them."""
    shown, taken = _shown(tools), _taken(tools)
    givers: dict[str, Counter[tuple[str, Kind]]] = {}
    takers: dict[str, Counter[tuple[str, Kind]]] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for tool, given, wanted in zip(tools, shown, taken, strict=True):
        for held, fields in ((givers, given), (takers, wanted)):
            for name, kind in fields.items():
                held.setdefault(name, Counter())[tool.noun, kind] += 1
        # A tool has no edge to itself.
        counts[tool.noun, tool.noun] -= sum(
            name in wanted and _same(kind, wanted[name]) for name, kind in given.items()
        )
    for name, giving in givers.items():
        for (one, kind), n in giving.items():
            for (other, wanted_kind), m in takers.get(name, Counter()).items():
                if _same(kind, wanted_kind):
                    counts[one, other] += n * m
    return counts


def domains_of(tools: Sequence[Understood], most_tools: int) -> tuple[list[list[Understood]], int]:
    """The tools of each domain, in the order of the first ones, and the number of edges between domains.

    Tools of one resource stay together. A domain is a connected component; one of more than ``most_tools`` tools is
    divided into the communities that Louvain's method finds (arXiv:0803.0476), until none of them can be divided.
    """
    sizes = Counter(tool.noun for tool in tools)
    weights = count_edges(tools)
    graph = nx.Graph()
    graph.add_nodes_from(sizes)
    for (one, other), weight in weights.items():
        if one != other:
            graph.add_edge(one, other, weight=weight + weights[other, one])
    parts = [part for whole in nx.connected_components(graph) for part in _parts(graph, whole, sizes, most_tools)]
    home = {noun: number for number, part in enumerate(parts) for noun in part}
    domains: dict[int, list[Understood]] = {}
    for tool in tools:
        domains.setdefault(home[tool.noun], []).append(tool)
    cut = sum(weight for (one, other), weight in weights.items() if home[one] != home[other])
    return list(domains.values()), cut


def _parts(graph: nx.Graph, nouns: set[str], sizes: Mapping[str, int], most_tools: int) -> list[set[str]]:
    if sum(sizes[noun] for noun in nouns) <= most_tools or len(nouns) == 1:
        return [nouns]
    # A graph with its nodes in a fixed order: the method goes through them as they come.
    inner = nx.Graph()
    inner.add_nodes_from(sorted(nouns))
    held = graph.subgraph(nouns).edges(data="weight")
    inner.add_weighted_edges_from(sorted((min(one, other), max(one, other), weight) for one, other, weight in held))
    for resolution in RESOLUTIONS:
        found = nx.community.louvain_communities(inner, weight="weight", resolution=resolution, seed=0)
        if len(found) > 1:
            break
    else:
        return [nouns]
    return [part for each in found for part in _parts(graph, set(each), sizes, most_tools)]


def _named(noun: str, parts: Sequence[Part]) -> dict[str, Kind]:
    """Fields by the name that is compared."""
    return {
        f"{part.identifies}.id" if part.identifies else f"{noun}.{snake(part.field.name)}": part.field.kind
        for part in parts
        if part.is_value
    }


def _shown(tools: Sequence[Understood]) -> list[dict[str, Kind]]:
    """The fields of the result of each tool."""
    rows = _rows(tools)
    return [rows[tool.noun] if tool.assumed else _named(tool.noun, tool.result or ()) for tool in tools]


def _taken(tools: Sequence[Understood]) -> list[dict[str, Kind]]:
    """The arguments of each tool."""
    return [_named(tool.noun, tool.arguments) for tool in tools]


def _rows(tools: Sequence[Understood]) -> dict[str, dict[str, Kind]]:
    """All that is known of the rows of each resource, from results and from what is written."""
    rows: dict[str, dict[str, Kind]] = {}
    for tool in tools:
        shown = _named(tool.noun, tool.result or ())
        written = _named(tool.noun, tool.arguments) if tool.effect != "read" else {}
        rows.setdefault(tool.noun, {f"{tool.noun}.id": "unknown"}).update({**written, **shown})
    return rows


def _same(one: Kind, other: Kind) -> bool:
    numbers = ("integer", "number")
    return one == other or "unknown" in (one, other) or (one in numbers and other in numbers)
