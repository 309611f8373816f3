"""The contract of a stage: the parameters of an operator, as a recipe step gives them, and the operation they make.

A stage is a configuration and nothing else. Which tables and models its step names it says by role; whoever runs it
resolves them and hands them back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from itertools import chain
from typing import Annotated, Any, ClassVar, Self

import msgspec
from pydantic import BeforeValidator, Field

from agentmill.pipelines.engine.operation import Operation
from agentmill.pipelines.serving.endpoints import Endpoint
from agentmill.pipelines.serving.models import ModelConfig, model_folder
from agentmill.schemas.conditions import Asked, asked
from agentmill.schemas.config import Config
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.models import model_revision
from agentmill.schemas.records.manifest import MANIFEST_NAME, Manifest
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.tables import Table
from agentmill.synthesis.policies.policy import PolicySettings

WINDOW_PER_SEQUENCE = 2
DEFAULT_WINDOW = 64
TURNS_PER_MINUTE = 4


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


TableNames = Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]
"""Names of tables of one role; one alone need not be a list."""

Inputs = Mapping[str, Sequence[Table]]
"""The tables of a step by role, opened."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model that a step uses. ``revision`` tells its weights; ``endpoints`` are known only while it is served.

    ``workers`` worker processes share its limits, and the ``ledger`` of what it has cost, by ``step``.
    """

    config: ModelConfig
    revision: str | None = None
    endpoints: list[Endpoint] = []
    workers: int = 1
    ledger: str | None = None
    step: str = ""

    @classmethod
    def of(cls, config: ModelConfig, workers: int = 1, ledger: str | None = None) -> Model:
        """A model as configured, not served yet; the files of one that we will serve are read for its revision."""
        managed = config.managed and config.model is not None
        revision = model_revision(model_folder(str(config.model))) if managed else None
        return cls(config=config, revision=revision, workers=workers, ledger=ledger)

    @property
    def window(self) -> int:
        """How many episodes in flight keep it busy: twice what its servers work on at once, since some are in a world.

        Of other people's endpoints that is known if ``limits`` say so; else it is ``DEFAULT_WINDOW`` for each. Behind
        limits no more than these let take four turns a minute each: time runs on for what queues.
        """
        servers = max(1, len(self.endpoints or self.config.endpoints))
        if self.config.managed:
            return WINDOW_PER_SEQUENCE * self.config.server.sequences * servers
        limits = self.config.limits.share(self.workers)
        concurrent = WINDOW_PER_SEQUENCE * (limits.max_concurrent or 0) or DEFAULT_WINDOW * servers
        paced = (limits.requests_per_minute or math.inf) / TURNS_PER_MINUTE
        return int(max(1, min(concurrent, paced)))

    def settings(self, sampling: Mapping[str, Any]) -> PolicySettings:
        """The policy as data; entries of ``sampling`` go before those of the config."""
        settings = self.config.settings(self.endpoints, self.revision, sampling)
        return msgspec.structs.replace(
            settings, limits=settings.limits.share(self.workers), ledger=self.ledger, step=self.step
        )

    def identity(self, sampling: Mapping[str, Any]) -> JsonObject:
        """What of it decides what it makes, ids included: not where it is served, nor how patiently it is asked."""
        settings = self.settings(sampling)
        fields = ("policy", "entry", "name", "revision", "sampling", "turns")
        server = self.config.server.identity() if self.config.managed else {}
        given = {"headers": settings.headers, "server": server}
        known = {field: getattr(settings, field) for field in fields}
        return {**known, **{name: value for name, value in given.items() if value}}


class StageContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage gets from the run it is part of: its seed, its models by role, and the round of an ``iterate``."""

    seed: int = 0
    models: Mapping[str, Model] = {}
    round: int = 0


class Stage(Config):
    """Parameters of an operator that makes one table from others."""

    primary: ClassVar[str]
    """The role of the tables whose rows are worked on; a stage without any makes its own ``seeds``."""

    table_roles: ClassVar[Sequence[str]]
    """The fields that name tables. A field ``from_`` is spelled ``from`` in recipes, and that is its role."""

    model_roles: ClassVar[Mapping[str, str]] = {}
    """The roles of the models it uses, and the fields that name them."""

    sides: ClassVar[Sequence[str]] = ()
    """Tables that it writes beside its own: entries of ``SIDES``, which later steps know as ``NAME/SIDE``."""

    tokenizers: ClassVar[Sequence[str]] = ()
    """The fields that name a folder with a tokenizer."""

    result: ClassVar[str] = MANIFEST_NAME
    """The file in its folder that is there when it is finished."""

    incidental: ClassVar[Sequence[str]] = ()
    """Fields that change how fast the table is made, never what is in it."""

    def tables(self) -> dict[str, list[str]]:
        """The names of its input tables by role; roles that are not given are left out."""
        named = {field.rstrip("_"): self.names_of(field) for field in self.table_roles}
        return {role: names for role, names in named.items() if names}

    def names_of(self, field: str) -> list[str]:
        """The tables that a field names."""
        return list(getattr(self, field) or ())

    def policies(self) -> dict[str, str]:
        """The models it uses, by role, as the recipe calls them; roles that are not given are left out."""
        named = {role: getattr(self, field) for role, field in self.model_roles.items()}
        return {role: name for role, name in named.items() if name is not None}

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """The name of the record it writes, given those it reads by role.

        Raises ``UserError`` for tables that it cannot work on.
        """
        raise NotImplementedError

    def annotations(self) -> Sequence[str] | None:
        """The names of the verdicts, labels, values or selections that its table holds; ``None``: not known before."""
        return None

    def families(self, reads: frozenset[str] | None) -> frozenset[str] | None:
        """The families of the environments it writes, given those that its primary tables hold; ``None``: not known."""
        return reads

    def asked(self) -> Iterator[Asked]:
        """The annotations that its parameters ask for."""
        return asked(self)

    def wants_admissible(self) -> str | None:
        """The parameter, as written, that lets an agent choose among admissible actions only; ``None`` if none does."""
        return None

    def pinned(self, revisions: MutableMapping[str, str]) -> Self:
        """The same stage with whatever it names that may change elsewhere at one revision.

        ``revisions`` are those that the run has met, by name; new ones are added. Raises ``UserError``.
        """
        del revisions
        return self

    def check_models(self, models: Mapping[str, ModelConfig]) -> None:
        """Raises ``UserError`` for models, by role, that it cannot work with; called while a run is planned."""
        del models

    def seeds(self, context: StageContext) -> list[Record]:
        """The rows of a stage without input tables. Raises ``UserError``."""
        del context
        return []

    def foresee(self, context: StageContext) -> None:
        """For a stage without input tables: raises ``UserError`` for what fails for certain, while a run is planned."""
        self.seeds(context)

    def examine(self, inputs: Inputs) -> None:
        """Look at the input tables as soon as they are there, which may be hours before it is this stage's turn.

        Raises ``UserError`` for what can be known then to fail.
        """
        del inputs

    def notes(self, manifest: Manifest) -> list[str]:
        """Lines to be read once the table is made: what it holds, and warnings."""
        del manifest
        return []

    def settled(self, context: StageContext) -> JsonObject:
        """All that decides what is in the table, but for its input tables; this goes into the manifest."""
        sampling = {role: self.sampling(role) for role in self.policies()}
        hidden = {*self.table_roles, *self.incidental, *self.model_roles.values(), *chain(*sampling.values())}
        parameters = self.model_dump(mode="json", by_alias=True, exclude=hidden)
        models = {role: context.models[role].identity(given) for role, given in sampling.items()}
        return {**parameters, **({"models": models} if models else {})}

    def sampling(self, role: str) -> JsonObject:
        """Sampling parameters that go before those of the model in this role."""
        del role
        return {}

    def operation(self, inputs: Inputs, context: StageContext) -> Operation:
        """The operation, ready to be pickled."""
        raise NotImplementedError


def expect(reads: Mapping[str, Sequence[str]], role: str, *wanted: str) -> str:
    """The one record that the tables of ``role`` hold. Raises ``UserError`` if it is none of ``wanted``, or several."""
    held = sorted(set(reads.get(role, ())))
    if len(held) != 1 or held[0] not in wanted:
        found = " and ".join(held) or "nothing"
        raise UserError(f"{role} holds {found} records, expected {' or '.join(wanted)}", ErrorCode.WRONG_RECORD_TYPE)
    return held[0]


def tables_of(inputs: Inputs, role: str) -> list[Table]:
    """The tables of a role; none if it was not given."""
    return list(inputs.get(role, ()))
