"""``tool_graph``: toolboxes from given tool specifications, one for each domain of tools that depend on each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import msgspec
from pydantic import Field, model_validator

from agentmill.pipelines.engine.errors import dead_letter
from agentmill.pipelines.engine.operation import AnyOperation, Result, RowOperation, Unit
from agentmill.pipelines.operators.bounds import Bounds, Rows
from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext, TableNames
from agentmill.pipelines.operators.spec_env import HELD_OUT, TRAIN
from agentmill.pipelines.operators.splits import check_held_out, falls_in
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.task import EnvironmentSpec, Inspiration
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.tool_graph.domains import Domain, find_domains
from agentmill.synthesis.generators.tool_graph.generator import FAMILY, domain_of, inspiration_of, propose
from agentmill.synthesis.generators.tool_graph.given_tools import Unusable
from agentmill.synthesis.generators.tool_graph.mcp_server import ask_server, name_of
from agentmill.synthesis.generators.tool_graph.specifications import check_number, read_specifications

LEAST_ROWS, MOST_ROWS = 4, 25
REASONS_SHOWN = 3


class ToolGraph(Operator):
    """Toolboxes from OpenAPI documents, lists of function tools and MCP servers, without a model."""

    primary: ClassVar[str] = ""
    verb: ClassVar[str | None] = "synthesize"
    table_roles: ClassVar[Sequence[str]] = ()

    specs: TableNames | None = Field(
        default=None,
        description="files or folders of OpenAPI 3 or of function tools, or bundled:hotel, bundled:parcels",
    )
    mcp: TableNames | None = Field(
        default=None, description="an MCP server that is asked for its tools: its URL, or its command with arguments"
    )
    most_tools: int = Field(default=40, ge=2, description="a domain of more tools is divided into communities")
    rows: int = Field(default=16, ge=LEAST_ROWS, le=MOST_ROWS, description="rows of each table")
    held_out: float = Field(
        default=0.0, ge=0, lt=1, description="share of the domains set aside, to be unseen in training"
    )
    seed: int | None = Field(default=None, description="by default derived from that of the run")

    @model_validator(mode="after")
    def _some_tools(self) -> ToolGraph:
        if not self.specs and not self.mcp:
            raise ValueError(
                "`specs` or `mcp` is needed: files of tool specifications, or a server that lists its tools"
            )
        return self

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Environments, from no table."""
        del reads
        return "EnvironmentSpec"

    def families(self, reads: frozenset[str] | None) -> frozenset[str]:
        """The one family."""
        del reads
        return frozenset([FAMILY])

    def bounds(self, rows: Mapping[str, Rows], models: Mapping[str, ModelConfig]) -> Bounds:
        """As ``Operator.bounds``: the tools and domains, unknown where a server must be asked for them."""
        del rows, models
        if self.mcp:
            return Bounds(reads=None, rows=Rows())
        domains = self._domains()
        made = sum(each.toolbox is not None for each in domains)
        aside = sum(falls_in(number, self.held_out) for number in range(made))
        splits: dict[str | None, int] = {TRAIN: made - aside, HELD_OUT: aside}
        return Bounds(reads=sum(map(_size, domains)), rows=Rows(n=made, splits=splits))

    def needs_extra(self) -> str | None:
        """The client of MCP, where a server is asked."""
        return "mcp" if self.mcp else None

    def precheck(self, context: StepContext) -> None:
        """Read the files; a server is not asked before it is the turn of the step."""
        if not self.mcp:
            self.seeds(context)
        elif self.specs:
            read_specifications(self.specs)

    def seeds(self, context: StepContext) -> list[Record]:
        """The domains. Raises ``UserError`` if there is none, or if ``held_out`` sets none aside."""
        del context
        domains = self._domains()
        made = sum(each.toolbox is not None for each in domains)
        if not made:
            raise UserError(
                f"none of {sum(map(_size, domains)):,} tools can be made: {_listed(domains[-1].unusable)}\n"
                "name tools that list, show, make, change or remove rows which a field such as `id` identifies",
                ErrorCode.NOTHING_TO_DO,
            )
        check_held_out(made, self.held_out, "domains", "more specifications")
        return [inspiration_of(each) for each in domains]

    def provenance_config(self, context: StepContext) -> JsonObject:
        """As ``Operator.provenance_config``, with the seed that holds; specifications count by what they hold."""
        given = super().provenance_config(context)
        for key in ("specs", "mcp"):
            given.pop(key)
        return {**given, "seed": self._seed(context)}

    def notes(self, manifest: Manifest) -> list[str]:
        """How many tools became how many environments, and what was left out or guessed."""
        counts, found = manifest.counts, manifest.metrics
        notes = [
            f"{counts.used:,} of {counts.read:,} tools in {counts.written:,} environments;"
            f" {found.get('edges', 0):,.0f} edges, {found.get('tables', 0):,.0f} tables"
        ]
        if manifest.reasons:
            reasons = ", ".join(f"{reason} {n}" for reason, n in manifest.reasons.items())
            notes.append(f"warning: {counts.dropped:,} tools could not be made ({reasons}); the dead letters tell why")
        for metric, sentence in _WARNINGS.items():
            if count := found.get(metric):
                notes.append(f"warning: {count:,.0f} {sentence}")
        return notes

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The making of environments."""
        del inputs
        return ToolboxMaking(self.rows, self.held_out, self._seed(context), self._order(context))

    def _order(self, context: StepContext) -> list[str]:
        """The ids of the domains that have a toolbox, in order."""
        found = [each for each in self.seeds(context) if isinstance(each, Inspiration)]
        return [each.inspiration_id for each in found if domain_of(each).toolbox is not None]

    def _domains(self) -> list[Domain]:
        found = read_specifications(self.specs) if self.specs else []
        if self.mcp:
            server = tuple(self.mcp)
            found.append(ask_server(server))
            check_number(found, name_of(server))
        return find_domains(found, self.most_tools)

    def _seed(self, context: StepContext) -> int:
        return context.seed if self.seed is None else self.seed


_WARNINGS = {
    "results_assumed": "tools have no result in the specification, or one that is no row; they answer with all columns",
    "arguments_left_out": "arguments are left out: optional ones of reading tools, nested ones, headers",
    "fields_left_out": "fields of results are left out: nested ones, and those of very wide rows",
    "edges_between_domains": "edges between domains are cut, since a domain has at most `most_tools` tools",
    "domains_over_most_tools": "domains have more than `most_tools` tools and cannot be divided",
}
"""What a note says of a metric."""


class ToolboxMaking(RowOperation[Inspiration, EnvironmentSpec]):
    """One record per domain, one input per tool: the first tool of a domain brings its environment."""

    many: ClassVar[bool] = True

    def __init__(self, rows: int, held_out: float, seed: int, order: Sequence[str]) -> None:
        super().__init__("tool_graph", Inspiration, EnvironmentSpec)
        self._rows = rows
        self._held_out = held_out
        self._seed = seed
        self._order = list(order)

    def units(self, record: Inspiration) -> Iterable[Unit]:
        """All tools of a domain, made or not."""
        domain = domain_of(record)
        return [Unit([*domain.tools, *(each.tool_id for each in domain.unusable)])]

    def count(self, record: Inspiration) -> int:
        """Tools of a domain."""
        return _size(domain_of(record))

    def process(self, record: Inspiration, unit: Unit) -> Iterable[Result]:
        """The environment of a domain, with its tools; each of the others as a dead letter."""
        del unit
        domain, environment = domain_of(record), propose(record, self._rows, self._seed)
        results = [Result(input_id=tool_id) for tool_id in domain.tools]
        if environment is not None:
            aside = falls_in(self._order.index(record.inspiration_id), self._held_out)
            placed = msgspec.structs.replace(environment, split=HELD_OUT if aside else TRAIN)
            measures = {name: float(count) for name, count in domain.counts.items()}
            results[0] = Result(input_id=domain.tools[0], outputs=[placed], measures=measures)
        return [*results, *(self._dropped(each) for each in domain.unusable)]

    def _dropped(self, tool: Unusable) -> Result:
        error = GenerationError(tool.reason, tool.detail)
        return Result(input_id=tool.tool_id, dropped=dead_letter(error, tool.tool_id, self, {"tool": tool.tool_id}))


def _size(domain: Domain) -> int:
    return len(domain.tools) + len(domain.unusable)


def _listed(unusable: Sequence[Unusable]) -> str:
    """The first reasons in words."""
    return "; ".join(f"{each.tool_id}: {each.detail}" for each in unusable[:REASONS_SHOWN])
