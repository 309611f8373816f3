"""Domains of given tools as toolboxes without rows, with every tool that is left out and the reason.

After AgentScaler (arXiv:2509.13311), which groups tools by the dependencies between their parameters, and makes a
database for each domain. There a model judges edges and writes the tools; here names, types and HTTP methods decide.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import msgspec

from agentmill.schemas.records.record import JsonObject
from agentmill.synthesis.environments.toolbox.toolbox import Toolbox
from agentmill.synthesis.generators.tool_graph.given_tools import GivenTool, Specification, ToolError, Unusable
from agentmill.synthesis.generators.tool_graph.graph import count_edges, domains_of, edges_of
from agentmill.synthesis.generators.tool_graph.naming import safe
from agentmill.synthesis.generators.tool_graph.resources import Understood, understand
from agentmill.synthesis.generators.tool_graph.tables import Sheet, sheet_of
from agentmill.synthesis.generators.tool_graph.toolbox_tools import MOST_DESCRIPTION, Made, make_tool
from agentmill.synthesis.generators.toolbox_probe import unshown_keys

EDGES_NOTED = 500
"""Edges that the notes of an environment list; the metric counts all."""


class Domain(msgspec.Struct, frozen=True):
    """A toolbox without rows, or none; the ids of its tools, and those that it could have had.

    ``forms`` and ``examples`` tell of texts, by ``"table.column"``; ``notes`` go into the lineage, ``counts`` into the
    manifest.
    """

    toolbox: Toolbox | None
    tools: tuple[str, ...] = ()
    unusable: tuple[Unusable, ...] = ()
    forms: dict[str, str] = {}
    examples: dict[str, tuple[str, ...]] = {}
    notes: JsonObject = {}
    counts: dict[str, int] = {}


def find_domains(specifications: Sequence[Specification], most_tools: int) -> list[Domain]:
    """The domains of all tools, those with a toolbox first; every tool is in one, made or ``unusable``."""
    given, unusable, about = _different(specifications)
    understood: list[Understood] = []
    for each in understand(given):
        if isinstance(each, Understood):
            understood.append(each)
        else:
            unusable.append(_unusable(each[0], each[1]))
    groups, cut = domains_of(understood, most_tools)
    found: list[Domain] = []
    for group in groups:
        domain = _domain(group, about[group[0].tool.tool_id])
        if domain.toolbox is None:
            unusable += domain.unusable
        else:
            over = {"domains_over_most_tools": 1} if len(group) > most_tools else {}
            found.append(msgspec.structs.replace(domain, counts={**domain.counts, **over}))
    if found and cut:
        first = found[0]
        found[0] = msgspec.structs.replace(first, counts={**first.counts, "edges_between_domains": cut})
    return [*found, Domain(None, unusable=tuple(unusable))] if unusable else found


def _different(specifications: Sequence[Specification]) -> tuple[list[GivenTool], list[Unusable], dict[str, str]]:
    """The tools of different names, with different ids; and by these what their specifications are about."""
    tools: dict[str, GivenTool] = {}
    about: dict[str, str] = {}
    unusable: list[Unusable] = []
    ids: set[str] = set()

    def own(tool_id: str) -> str:
        free = next(
            each
            for number in itertools.count(1)
            if (each := f"{tool_id}#{number}" if number > 1 else tool_id) not in ids
        )
        ids.add(free)
        return free

    for specification in specifications:
        for tool in specification.tools:
            named, first = msgspec.structs.replace(tool, tool_id=own(tool.tool_id)), tools.get(safe(tool.name))
            if first is None:
                tools[safe(tool.name)] = named
                about[named.tool_id] = specification.about
            else:
                detail = f"{first.tool_id} has the name {safe(tool.name)}, too, and comes before it"
                unusable.append(Unusable(named.tool_id, "name_twice", detail))
        unusable += [Unusable(own(each.tool_id), each.reason, each.detail) for each in specification.unusable]
    return list(tools.values()), unusable, about


def _domain(group: Sequence[Understood], about: str) -> Domain:
    """The toolbox of tools that belong together; ``None`` if none of them can be made."""
    unusable: list[Unusable] = []
    left = list(group)
    while left:
        nouns = list(dict.fromkeys(tool.noun for tool in left))
        # Columns from all tools, as one that cannot be made may tell of rows; references to what is left.
        sheets = {noun: sheet_of(noun, [tool for tool in group if tool.noun == noun], nouns) for noun in nouns}
        made: dict[str, Made] = {}
        wrong: list[Unusable] = []
        for tool in left:
            try:
                made[tool.tool.tool_id] = make_tool(tool, sheets)
            except ToolError as error:
                wrong.append(_unusable(tool.tool, error))
        toolbox = _toolbox(about, sheets, list(made.values()))
        unshown = unshown_keys(toolbox)
        for tool_id, each in made.items():
            if each.tool.name in unshown:
                tables = ", ".join(sorted(unshown[each.tool.name]))
                wrong.append(Unusable(tool_id, "unreachable_key", f"it takes a key of {tables}, which no tool shows"))
        if not wrong:
            return _described(group, left, toolbox, sheets, made, unusable)
        unusable += wrong
        left = [tool for tool in left if tool.tool.tool_id not in {each.tool_id for each in wrong}]
    return Domain(None, unusable=tuple(unusable))


def _toolbox(about: str, sheets: dict[str, Sheet], made: Sequence[Made]) -> Toolbox:
    tables = [sheet.table for sheet in sheets.values()]
    kept = [table.name.strip("_").replace("_", " ") for table in tables]
    listed = " and ".join(filter(None, [", ".join(kept[:-1]), kept[-1]]))
    service = f"the service {' '.join(about.split())[:80]}" if about.strip() else "a service"
    return Toolbox(
        about=f"You help people who use {service}. It keeps {listed}.",
        tables=tuple(tables),
        rows={},
        tools=tuple(each.tool for each in made),
    )


def _described(
    group: Sequence[Understood],
    left: Sequence[Understood],
    toolbox: Toolbox,
    sheets: dict[str, Sheet],
    made: dict[str, Made],
    unusable: Sequence[Unusable],
) -> Domain:
    """The domain with what it changes of the specification."""
    parts = [
        (f"{sheet.table.name}.{name}", part.field) for sheet in sheets.values() for name, part in sheet.parts.items()
    ]
    changes: dict[str, dict[str, list[str]]] = {
        "arguments_left_out": {each.tool.name: list(each.left_out) for each in made.values()},
        "arguments_required": {each.tool.name: list(each.now_required) for each in made.values()},
        "fields_left_out": {sheet.table.name: sheet.left_out for sheet in sheets.values()},
        "types_changed": {sheet.table.name: sheet.changed for sheet in sheets.values()},
    }
    names = {old: new for each in made.values() for old, new in each.renamed.items()}
    assumed = [tool.tool.name for tool in left if tool.assumed]
    counts = {
        **{name: sum(map(len, listed.values())) for name, listed in changes.items()},
        **Counter(f"tools_{tool.effect}" for tool in left),
        "descriptions_cut": sum(len(" ".join(tool.tool.description.split())) > MOST_DESCRIPTION for tool in left),
        "edges": count_edges(group).total(),
        "names_changed": len(names),
        "results_assumed": len(assumed),
        "tables": len(sheets),
    }
    edges = itertools.islice(edges_of(group), EDGES_NOTED)
    return Domain(
        toolbox=toolbox,
        tools=tuple(made),
        unusable=tuple(unusable),
        forms={path: field.form for path, field in parts if field.form},
        examples={path: field.examples for path, field in parts if field.examples},
        notes={
            "edges": [f"{each.source} -> {each.target}: {each.field}" for each in edges],
            "names_changed": names,
            "results_assumed": assumed,
            **{name: {key: held for key, held in listed.items() if held} for name, listed in changes.items()},
        },
        counts={name: count for name, count in sorted(counts.items()) if count},
    )


def _unusable(tool: GivenTool, error: ToolError) -> Unusable:
    return Unusable(tool.tool_id, error.reason, error.detail)
