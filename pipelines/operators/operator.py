"""The contract of an operator: the parameters of a step, as a recipe gives them, and the operation they make.

An operator is a configuration and nothing else. It names its tables and models by role; the runner opens the tables,
serves the models and passes both to ``operation``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import msgspec
from pydantic import BeforeValidator, Field

from agentmill.pipelines.engine.operation import AnyOperation
from agentmill.pipelines.operators.bounds import Bounds, Rows
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.served_model import ServedModel
from agentmill.schemas.conditions import AnnotationNeed, annotation_needs
from agentmill.schemas.config import Config
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import file_sha256
from agentmill.schemas.model_hub import hub_model, pinned_model
from agentmill.schemas.models import TOKENIZER_FILE, rendering_revision
from agentmill.schemas.records.manifest import MANIFEST_NAME, Manifest
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.tables import Table

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
"""The name of a step, a model or a table in a recipe."""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


TableNames = Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]
"""Names of tables of one role; one alone need not be a list."""

Inputs = Mapping[str, Sequence[Table]]
"""The tables of a step by role, opened."""


class StepContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a step is in its run: the name of its operator, its own name, its folder, seed, round, and models by role.

    ``name`` is unique in the run (``round-01/explored``). ``round`` is that of an ``iterate``, 0 outside of one.
    ``models`` are empty while a run is planned.
    """

    operator: str = ""
    name: str = ""
    folder: Path = Path()
    seed: int = 0
    round: int = 0
    models: Mapping[str, ServedModel] = {}


class Operator(Config):
    """Parameters of an operator that makes one table from others."""

    primary: ClassVar[str]
    """The role of the tables whose rows are worked on; an operator without any makes its own ``seeds``."""

    table_roles: ClassVar[Sequence[str]]
    """The fields that name tables. A field ``from_`` is spelled ``from`` in recipes, and that is its role."""

    model_roles: ClassVar[Mapping[str, str]] = {}
    """The roles of the models it uses, and the fields that name them."""

    scorer_roles: ClassVar[Sequence[str]] = ()
    """The roles of models that score text; all others write it."""

    sides: ClassVar[Sequence[str]] = ()
    """Tables that it writes besides its own: entries of ``SIDES``, which later steps know as ``NAME/SIDE``."""

    tokenizers: ClassVar[Sequence[str]] = ()
    """The fields that name a folder with a tokenizer."""

    verb: ClassVar[str | None] = None
    """The command that runs one step of it alone, ``agentmill VERB`` (``pipelines.cli.stage.VERBS``)."""

    result: ClassVar[str] = MANIFEST_NAME
    """The file in its folder that is there when it is finished."""

    counted: ClassVar[Sequence[str]] = ()
    """The fields that say how many rows it makes, or how long it trains: a preview of a recipe lowers them."""

    defaults_taken: ClassVar[Sequence[str]] = ()
    """Roles of tables that a default of the recipe fills though the operator can do without them."""

    incidental: ClassVar[Sequence[str]] = ()
    """Fields that change how fast the table is made, never what is in it."""

    @classmethod
    def keys_with_defaults(cls, step: Mapping[str, Any]) -> set[str]:
        """The keys for which a ``step`` of a recipe takes the defaults of the recipe: all that it may have."""
        del step
        return {field.alias or name for name, field in cls.model_fields.items()}

    def tables(self) -> dict[str, list[str]]:
        """The names of its input tables by role; roles that are not given are left out."""
        named = {field.rstrip("_"): self.names_of(field) for field in self.table_roles}
        return {role: names for role, names in named.items() if names}

    def names_of(self, field: str) -> list[str]:
        """The tables that a field names."""
        return list(getattr(self, field) or ())

    def naming_rounds(self, rounds: Mapping[str, Sequence[str]]) -> Self:
        """The same operator with ``rounds``, names such as ``explored@all``, replaced by those of the tables they mean.

        So names and tables are one to one.
        """
        named = {field: getattr(self, field) for field in self.table_roles}
        changed = {
            field: [each for name in names for each in rounds.get(name, [name])]
            for field, names in named.items()
            if isinstance(names, list)
        }
        return self.model_copy(update=changed)

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
        """The families of the environments it writes, given those that its primary tables hold; ``None``: not known.

        Raises ``UserError`` for families that it cannot work on.
        """
        return reads

    def check_families(self, families: frozenset[str]) -> None:
        """Raises ``UserError`` for families of its ``environments`` that it cannot work on; called while a run is
        planned, if all of them are known."""
        del families

    def annotation_needs(self) -> Iterator[AnnotationNeed]:
        """The annotations that its parameters ask for."""
        return annotation_needs(self)

    def wants_admissible(self) -> str | None:
        """The parameter, as written, that lets an agent choose among admissible actions only; ``None`` if none does."""
        return None

    def runs_code(self) -> bool:
        """Whether the step itself, apart from environments, runs foreign code, for which it needs the sandbox."""
        return False

    def needs_extra(self) -> str | None:
        """The extra that the step itself needs, apart from environments and models."""
        return None

    def bounds(self, rows: Mapping[str, Rows], models: Mapping[str, ModelConfig]) -> Bounds:
        """What a step of it reads, writes and asks of ``models`` at most, given the ``rows`` of its inputs by role.

        By default it writes a row for each row of its primary tables, and asks nothing. Raises ``UserError`` where it
        can be known that it has nothing to work on.
        """
        del models
        read = rows.get(self.primary, Rows())
        return Bounds(reads=read.n, rows=read)

    def check_rows(self, rows: Mapping[str, Rows]) -> None:
        """Raises ``UserError`` where ``rows``, the most that its inputs can have by role, are too few for it."""
        del rows

    def pinned(self, revisions: MutableMapping[str, str]) -> Self:
        """The same operator with whatever it names that may change elsewhere at one revision.

        ``revisions`` are those that the run has met, by name; new ones are added. Raises ``UserError``.
        """
        named = {field: getattr(self, field) for field in self.tokenizers}
        found = {field: pinned_model(text, revisions) for field, text in named.items() if text is not None}
        changed = {field: text for field, text in found.items() if text != named[field]}
        return self.model_copy(update=changed) if changed else self

    def check_models(self, models: Mapping[str, ModelConfig]) -> None:
        """Raises ``UserError`` for models, by role, that it cannot work with; called while a run is planned."""
        del models

    def seeds(self, context: StepContext) -> list[Record]:
        """The rows of an operator without input tables. Raises ``UserError``."""
        del context
        return []

    def precheck(self, context: StepContext) -> None:
        """Called while a run is planned, for an operator without tables. Raises ``UserError`` for a sure failure."""
        self.seeds(context)

    def check_inputs(self, inputs: Inputs) -> None:
        """Look at the input tables as soon as they are there, which may be hours before it is the turn of its step.

        Raises ``UserError`` for what can be known then to fail.
        """
        del inputs

    def notes(self, manifest: Manifest) -> list[str]:
        """Lines to be read once the table is made: what it holds, and warnings."""
        del manifest
        return []

    def provenance_config(self, context: StepContext) -> JsonObject:
        """What determines the output, except the input tables; stored in the manifest and compared on resume."""
        sampling = {role: self.sampling(role) for role in self.policies()}
        # Tables and models count by what they are and not by their names; sampling is a part of the model's identity.
        hidden = {*self.table_roles, *self.incidental, *self.model_roles.values(), *chain(*sampling.values())}
        parameters = self.model_dump(mode="json", by_alias=True, exclude=hidden)
        models = {role: context.models[role].identity(given) for role, given in sampling.items()}
        for role in models.keys() & set(self.scorer_roles):
            del models[role]["sampling"]  # it samples nothing
        return {**parameters, **self._tokenizer_digests(), **({"models": models} if models else {})}

    def tables_config(self, inputs: Inputs) -> JsonObject:
        """As ``provenance_config``, where the names of the input tables or their order decide about the output."""
        del inputs
        return {}

    def _tokenizer_digests(self) -> JsonObject:
        """Tokenizers in local folders by their content; those on the Hub are named by their commit.

        A reward model reads conversations, so for it the whole folder counts.
        """
        named = {field: getattr(self, field) for field in self.tokenizers}
        local = {field: Path(text) for field, text in named.items() if text is not None and hub_model(text) is None}
        folders = {field: folder for field, folder in local.items() if (folder / TOKENIZER_FILE).is_file()}
        if self.scorer_roles:
            return {field: rendering_revision(folder) for field, folder in folders.items()}
        return {field: file_sha256(folder / TOKENIZER_FILE) for field, folder in folders.items()}

    def sampling(self, role: str) -> JsonObject:
        """Sampling parameters that go before those of the model in this role."""
        del role
        return {}

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The operation, ready to be pickled."""
        raise NotImplementedError


def order_config(tables: Sequence[Table]) -> JsonObject:
    """The order of several input tables, for ``Operator.tables_config``; by digest where two have one name."""
    names = [table.folder.name for table in tables]
    if len(tables) < 2:
        return {}
    return {"order": names if len({*names}) == len(names) else [table.digest for table in tables]}


class WrongRecords(UserError):
    """The tables of ``role`` hold other records than an operator works on; ``mismatch`` says which."""

    def __init__(self, role: str, mismatch: str) -> None:
        super().__init__(f"{role} {mismatch}", ErrorCode.WRONG_RECORD_TYPE)
        self.role, self.mismatch = role, mismatch


def expect(reads: Mapping[str, Sequence[str]], role: str, *wanted: str) -> str:
    """The one record that the tables of ``role`` hold. Raises ``UserError`` if it is none of ``wanted``, or several."""
    held = sorted(set(reads.get(role, ())))
    if len(held) != 1 or held[0] not in wanted:
        found = " and ".join(held) or "nothing"
        # Each table alone would do.
        one = "tables of one kind" if len(held) > 1 and set(held) <= set(wanted) else " or ".join(wanted)
        raise WrongRecords(role, f"holds {found} records, expected {one}")
    return held[0]


def tables_of(inputs: Inputs, role: str) -> list[Table]:
    """The tables of a role; none if it was not given."""
    return list(inputs.get(role, ()))
