"""``spec_env``: environments, each written from one piece of inspiration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec
from pydantic import Field, field_validator, model_validator

from agentmill.pipelines.engine.operation import AnyOperation, AsyncOperation, Blamed, Result, Unit, identity
from agentmill.pipelines.operators.bounds import Bounds, Rows, asked_of
from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext, TableNames
from agentmill.pipelines.operators.splits import check_held_out, falls_in
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.config import UserPath, at_home
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.ids import derive_seed
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.task import EnvironmentSpec, Inspiration
from agentmill.synthesis.environments.search.sources import INVENTED, invented_corpora
from agentmill.synthesis.generators import ENVIRONMENT_GENERATORS
from agentmill.synthesis.generators.generator import EnvironmentGenerator
from agentmill.synthesis.generators.inspirations import built_in, read_inspirations
from agentmill.synthesis.generators.search_procedural.generator import FAMILY as SEARCH
from agentmill.synthesis.generators.search_procedural.generator import corpora
from agentmill.synthesis.policies import make_policy
from agentmill.synthesis.policies.policy import Policy, PolicySettings, exhausted

TRAIN, HELD_OUT = "train", "held_out"
"""The splits of environments: those whose tasks are trained on, and those whose tasks are all held out."""


class SpecEnv(Operator):
    """Environments proposed from inspiration texts, by a grammar or by a model."""

    primary: ClassVar[str] = ""
    verb: ClassVar[str | None] = "synthesize"
    table_roles: ClassVar[Sequence[str]] = ()
    model_roles: ClassVar[Mapping[str, str]] = {"generator": "policy"}
    counted: ClassVar[Sequence[str]] = ("n",)
    incidental: ClassVar[Sequence[str]] = ("inspiration", "window")

    family: str = Field(default="pddl", description="the family of the environments")
    backend: Literal["procedural", "llm"] = Field(default="procedural", description="who writes them")
    n: int = Field(default=24, ge=1, description="how many are proposed")
    held_out: float = Field(default=0.0, ge=0, lt=1, description="share set aside, to be unseen in training")
    inspiration: UserPath | None = Field(
        default=None, description="a .jsonl or text file; by default a few built-in texts"
    )
    corpus: TableNames | None = Field(
        default=None,
        description="of family search: a folder of texts, a .jsonl or .parquet file, a list of these, or invented:N for"
        " n corpora of N invented articles each",
    )
    policy: str | None = Field(default=None, description="the model of backend llm")
    repairs: int = Field(default=3, ge=0, description="rounds in which backend llm may repair a faulty environment")
    seed: int | None = Field(default=None, description="by default derived from that of the run")
    window: int = Field(default=16, ge=1, description="environments in the making at once per worker")

    @field_validator("family")
    @classmethod
    def _has_a_generator(cls, family: str) -> str:
        known = sorted({name.rpartition("_")[0] for name in ENVIRONMENT_GENERATORS})
        if family not in known:
            raise ValueError(f"unknown family {family!r}; known: {', '.join(known)}.{near_match(family, known)}")
        return family

    @model_validator(mode="after")
    def _a_model_for_llm(self) -> SpecEnv:
        if (self.backend == "llm") != (self.policy is not None):
            raise ValueError("`backend: llm` needs `policy`, an entry of models; `procedural` takes none")
        if self.backend == "procedural" and "repairs" in self.model_fields_set:
            raise ValueError("`repairs` goes with `backend: llm`; procedural environments are not repaired")
        if f"{self.family}_{self.backend}" not in ENVIRONMENT_GENERATORS:
            raise ValueError(f"there is no `backend: {self.backend}` for family {self.family}")
        return self

    @model_validator(mode="before")
    @classmethod
    def _one_for_each_corpus(cls, given: Any) -> Any:
        """One corpus makes one environment, so ``n`` is the number of corpora unless fewer are wanted.

        Of ``invented:ARTICLES`` there are ``n``.
        """
        if not isinstance(given, dict) or (given.get("family") != SEARCH and not given.get("corpus")):
            return given
        if given.get("family") != SEARCH:
            raise ValueError("`corpus` goes with `family: search`; other environments are made from `inspiration`")
        corpus = given.get("corpus")
        paths = [corpus] if isinstance(corpus, str) else corpus
        if not isinstance(paths, list) or not paths:
            raise ValueError(
                "`family: search` needs `corpus`: a folder of .txt or .md files, a .jsonl or .parquet file, or"
                " invented:N for N invented articles"
            )
        if given.get("inspiration") is not None:
            raise ValueError("`inspiration` does not go with `family: search`, which is made from `corpus`")
        n = given.get("n", len(paths))
        if isinstance(corpus, str) and corpus.startswith(INVENTED) and isinstance(n, int):
            paths = invented_corpora(corpus, n)
        if isinstance(n, int) and n > len(paths):
            raise ValueError(f"`n` is {n}, but {len(paths)} corpora make {len(paths)} environments; leave it out")
        return {**given, "corpus": [at_home(each) if isinstance(each, str) else each for each in paths], "n": n}

    @model_validator(mode="after")
    def _some_held_out(self) -> SpecEnv:
        try:
            check_held_out(self.n, self.held_out, "environments")
        except UserError as error:
            raise ValueError(str(error)) from error
        return self

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Environments, from no table."""
        del reads
        return "EnvironmentSpec"

    def families(self, reads: frozenset[str] | None) -> frozenset[str]:
        """The one family."""
        del reads
        return frozenset([self.family])

    def bounds(self, rows: Mapping[str, Rows], models: Mapping[str, ModelConfig]) -> Bounds:
        """As ``Operator.bounds``: each proposal is asked for once, and for each of its repairs."""
        del rows
        aside = sum(falls_in(number, self.held_out) for number in range(self.n))
        calls = {"generator": self.n * (1 + self.repairs)}
        return Bounds(
            reads=self.n,
            rows=Rows(n=self.n, splits={TRAIN: self.n - aside, HELD_OUT: aside}),
            asked=asked_of(models, calls, self.sampling),
        )

    def seeds(self, context: StepContext) -> list[Record]:
        """The inspirations, as many of them as are needed."""
        del context
        if self.corpus is not None:
            return list(corpora(self.corpus))
        texts = built_in() if self.inspiration is None else read_inspirations(Path(self.inspiration))
        return list(texts[: self.n])

    def provenance_config(self, context: StepContext) -> JsonObject:
        """As ``Operator.provenance_config``, with the seed that holds."""
        given = super().provenance_config(context)
        # The corpora are the seeds; without the key, tables of before there were any are found again.
        given.pop("corpus")
        return {**given, "seed": self._seed(context)}

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The proposals."""
        del inputs
        settings = {role: model.settings({}) for role, model in context.models.items()}
        places = {identity(text): place for place, text in enumerate(self.seeds(context))}
        proposals = Proposals(places=places, n=self.n, held_out=self.held_out, seed=self._seed(context))
        return Specification(self.family, proposals, settings.get("generator"), self.repairs, self.window)

    def _seed(self, context: StepContext) -> int:
        return context.seed if self.seed is None else self.seed


class Proposals(msgspec.Struct, frozen=True, kw_only=True):
    """``n`` proposals that take inspirations in turn, round after round; ``held_out`` of them are set aside.

    ``places`` holds the place of each inspiration in a round, by its id.
    """

    places: dict[str, int]
    n: int
    held_out: float
    seed: int

    def of(self, inspiration_id: str) -> range:
        """The numbers of the proposals that an inspiration gives."""
        return range(self.places[inspiration_id], self.n, len(self.places))

    def split(self, number: int) -> str:
        """The split of a proposal."""
        return HELD_OUT if falls_in(number, self.held_out) else TRAIN


class Specification(AsyncOperation[Inspiration, EnvironmentSpec]):
    """One proposal per unit, called ``INSPIRATION/NUMBER``."""

    blamed: ClassVar[Blamed] = "generator"
    chunk_rows: ClassVar[int] = 50

    def __init__(
        self, family: str, proposals: Proposals, settings: PolicySettings | None, repairs: int, window: int
    ) -> None:
        super().__init__("spec_env", Inspiration, EnvironmentSpec, window)
        self._family = family
        self._proposals = proposals
        self._settings = settings
        self._repairs = repairs
        self._policy: Policy | None = None
        self._generator: EnvironmentGenerator | None = None

    async def open(self) -> None:
        """Make the generator, and the policy if it asks a model."""
        if self._settings is None:
            self._generator = ENVIRONMENT_GENERATORS.load(f"{self._family}_procedural")()
        else:
            self._policy = make_policy(self._settings)
            self._generator = ENVIRONMENT_GENERATORS.load(f"{self._family}_llm")(self._policy, repairs=self._repairs)

    async def close(self) -> None:
        """Close the policy."""
        if self._policy is not None:
            await self._policy.close()

    def exhausted(self) -> str | None:
        """The budget that is spent, if one is."""
        return exhausted([self._policy] if self._policy is not None else [])

    def count(self, record: Inspiration) -> int:
        """Proposals that an inspiration gives."""
        return len(self._proposals.of(record.inspiration_id))

    def units(self, record: Inspiration) -> list[Unit]:
        """One per proposal."""
        numbers = self._proposals.of(record.inspiration_id)
        return [Unit([f"{record.inspiration_id}/{number}"], number) for number in numbers]

    async def process(self, record: Inspiration, unit: Unit) -> Iterable[Result]:
        """The environment of a proposal, in its split."""
        assert self._generator is not None
        number: int = unit.data
        # Ids of what is written come from the seed: without the entry, two models of one name would share them.
        author = [] if self._settings is None or self._settings.entry is None else [self._settings.entry]
        spec = await self._generator.propose(record, derive_seed(self._proposals.seed, number, *author))
        placed = msgspec.structs.replace(spec, split=self._proposals.split(number))
        return [Result(input_id=unit[0], outputs=[placed])]
