"""The environment of a domain: its toolbox with seeded rows."""

from __future__ import annotations

import msgspec

from agentmill.schemas.ids import digest
from agentmill.schemas.records.task import EnvironmentSpec, Inspiration, Lineage
from agentmill.synthesis.environments.toolbox.structure import toolbox_structure
from agentmill.synthesis.environments.toolbox.toolbox import write_toolbox
from agentmill.synthesis.generators.tool_graph.domains import Domain
from agentmill.synthesis.generators.tool_graph.tables import with_rows

OPERATOR = "tool_graph"
FAMILY = "toolbox"
NAMED_TABLES = 4
"""Tables in the name of an environment."""


def inspiration_of(domain: Domain) -> Inspiration:
    """The domain as the row that its environment is made from; its id is a digest of the tools."""
    text = msgspec.json.encode(domain).decode()
    return Inspiration(inspiration_id=digest(OPERATOR, text), text=text, source=OPERATOR)


def domain_of(inspiration: Inspiration) -> Domain:
    """The domain of ``inspiration_of``."""
    return msgspec.json.decode(inspiration.text, type=Domain)


def propose(inspiration: Inspiration, rows: int, seed: int) -> EnvironmentSpec | None:
    """The environment of a domain, ``rows`` in each table; same seed, same rows. ``None`` for one without a toolbox."""
    domain = domain_of(inspiration)
    if domain.toolbox is None:
        return None
    tables, filled = with_rows(domain.toolbox.tables, domain.forms, domain.examples, rows, seed)
    toolbox = msgspec.structs.replace(domain.toolbox, tables=tables, rows=filled)
    return EnvironmentSpec(
        environment_id=digest(OPERATOR, inspiration.inspiration_id, rows, seed),
        family=FAMILY,
        name="-".join(table.name for table in tables[:NAMED_TABLES]),
        source=write_toolbox(toolbox),
        structure_digest=toolbox_structure(toolbox),
        lineage=Lineage(
            operator=OPERATOR,
            inspiration=inspiration.inspiration_id,
            seed=seed,
            notes={"tools": list(domain.tools), **domain.notes},
        ),
    )
