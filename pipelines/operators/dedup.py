"""``dedup``: of each group of duplicates one trajectory is kept, by text or by structure; the rows stay as they are.

Memory of a worker, besides one row group: with ``near`` about 1.3 kB per trajectory while the groups are found, 1,024
bytes of it for the signature (``agentmill.pipelines.duplicates``); 0.3 kB without ``near``. Afterwards only what is
left out is kept. Every worker reads the tables for itself, as for ``pick``.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from hashlib import blake2b
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np
from pydantic import Field, model_validator

from agentmill.pipelines.duplicates import Groups, Linker, ShingleFile, SignatureTable, similarities, words_of
from agentmill.pipelines.engine import stop
from agentmill.pipelines.engine.operation import AnyOperation, Result, Unit
from agentmill.pipelines.operators.operator import Inputs, StepContext, TableNames, expect, order_config, tables_of
from agentmill.pipelines.operators.pick import turns
from agentmill.pipelines.operators.selection import FilterParameters, SelectionOperation, TrajectoryFilter, kept_notes
from agentmill.pipelines.operators.trajectory_index import stream
from agentmill.pipelines.quality import texts_of
from agentmill.schemas.ids import digest
from agentmill.schemas.record_kinds import ANNOTATION_ROLES
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import AnyItem, ApiAction, CodeAction, MessageAction, Trajectory
from agentmill.schemas.records.verdict import Selection
from agentmill.schemas.tables import Table
from agentmill.schemas.views.annotations import Criterion, score
from agentmill.schemas.views.view import Unused
from agentmill.synthesis.rollouts.step import acts

On = Literal["text", "tools", "actions", "states"]
SHINGLE: Mapping[On, int] = {"text": 5, "tools": 2, "actions": 2, "states": 2}
"""Tokens of a shingle: five words are seldom equal by chance; two actions, or states, keep their order.

Of 20 actions, one that differs changes 2 of 19 shingles of two (similarity 0.81), and 5 of 16 of five (0.52).
"""


class Dedup(FilterParameters):
    """A selection per trajectory: of each group of duplicates, exact or near, one is kept.

    Groups are connected: where a is a duplicate of b and b one of c, one of the three is kept.
    """

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "curate"
    table_roles: ClassVar[Sequence[str]] = ("of", *ANNOTATION_ROLES)

    of: TableNames = Field(description="tables of trajectories")
    on: On = Field(
        default="text",
        description="what is compared: all texts, names of tools, actions (tools with arguments), or digests of states",
    )
    near: float | None = Field(
        default=None,
        ge=0.5,
        le=1,
        description="Jaccard similarity of shingles from which two are duplicates; null: only equal ones are",
    )
    shingle: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="tokens of a shingle: words, tools, actions or states; 5 words, 2 of the others",
    )
    prefer: Literal["first", "score", "shortest"] = Field(
        default="first",
        description="which is kept: of the first table named, the best by score, or that of fewest turns; then by id",
    )
    score: Criterion = Field(default="outcome", description="the best by this, with prefer: score")
    within: Literal["all", "task"] = Field(default="all", description="all are compared, or only those of one task")
    seed: int = Field(default=0, ge=0, lt=2**63, description="of the permutations")
    name: str = Field(default="dedup", description="what the selection is called")

    @model_validator(mode="after")
    def _keys_that_count(self) -> Dedup:
        if self.prefer != "score" and "score" in self.model_fields_set:
            raise ValueError(f"`score: {self.score}` needs `prefer: score`; `prefer: {self.prefer}` asks no score")
        unused = sorted({"shingle", "seed"} & self.model_fields_set) if self.near is None else []
        if unused:
            raise ValueError(
                f"`{unused[0]}` needs `near`, such as `near: 0.8`: equal trajectories are found without shingles"
            )
        return self

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Selections, of trajectories."""
        expect(reads, "of", "Trajectory")
        self.check_filter_needs(reads)
        return "Selection"

    def annotations(self) -> Sequence[str]:
        """Its selections."""
        return [self.name]

    def notes(self, manifest: Manifest) -> list[str]:
        """Warnings where nothing is kept, nothing can be compared, or no trajectory has a task, too."""
        found, every = manifest.metrics, manifest.counts.written
        notes = [*super().notes(manifest), *kept_notes(manifest)]
        if every and found.get("nothing_to_compare") == every:
            notes.append(
                f"warning: none of {every:,} trajectories has anything to compare by `on: {self.on}`; all are kept"
            )
        if every and found.get("without_task") == every:
            notes.append(f"warning: none of {every:,} trajectories has a task, so `within: task` compares none of them")
        return notes

    def tables_config(self, inputs: Inputs) -> JsonObject:
        """The order of the tables where it is what is kept by."""
        return order_config(inputs["of"]) if self.prefer == "first" else {}

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The selections."""
        del context
        return Deduplication(self, self.choice(inputs), tables_of(inputs, "of"))


class Duplicate(msgspec.Struct, frozen=True):
    """A trajectory that is left out for ``kept``; ``similarity`` is theirs, ``None`` if they are equal."""

    kept: str
    similarity: float | None = None

    def reason(self, near: float | None) -> str:
        """The reason of its selection. A member of a group may be less similar to the one kept than to another."""
        if self.similarity is None or near is None:
            return f"duplicate: equal to {self.kept}"
        through = " through others" if self.similarity < near else ""
        return f"near_duplicate: of {self.kept}{through}, Jaccard {self.similarity:.2f}"


class Census:
    """What is kept of each trajectory while groups are found: id, number of its content, and place in the order.

    ``contents`` are the digests of different contents by number; a trajectory that is not compared has content -1.
    """

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.numbers = array("q")
        self.places = array("d")
        self.contents: dict[bytes, int] = {}
        self.scopes = array("Q")

    def add(self, trajectory_id: str, place: float, scope: str, content: bytes | None) -> bool:
        """Add a trajectory; ``content`` is ``None`` where it is not compared. Whether the content is a new one."""
        key = None if content is None else blake2b(scope.encode() + b"\0" + content, digest_size=16).digest()
        new = key is not None and key not in self.contents
        self.ids.append(trajectory_id)
        self.places.append(place)
        self.numbers.append(-1 if key is None else self.contents.setdefault(key, len(self.contents)))
        if new:
            self.scopes.append(int.from_bytes(blake2b(scope.encode(), digest_size=8).digest()))
        return new

    def ranks(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The place of each content in the order of digests, which no order of tables changes."""
        ranks = np.empty(len(self.contents), dtype=np.int64)
        ranks[[number for _, number in sorted(self.contents.items())]] = np.arange(len(ranks))
        return ranks

    def kept(self, groups: Groups) -> Iterator[tuple[int, int]]:
        """Each trajectory that is left out, and the one that is kept of its group, by their places in ``ids``."""
        roots, kept = groups.roots().tolist(), dict[int, int]()
        for each in sorted(range(len(self.ids)), key=lambda place: (self.places[place], self.ids[place])):
            if self.numbers[each] >= 0:
                first = kept.setdefault(roots[self.numbers[each]], each)
                if first != each:
                    yield each, first


class Deduplication(SelectionOperation):
    """One selection per trajectory. ``score`` is the similarity to the one that is kept, 1 if they are equal."""

    def __init__(self, parameters: Dedup, choice: TrajectoryFilter, tables: Sequence[Table]) -> None:
        super().__init__("dedup")
        self._parameters = parameters
        self._size = parameters.shingle or SHINGLE[parameters.on]
        self._choice = choice
        self._shards = [table.shards() for table in tables]
        self._rows = sum(table.manifest.counts.written for table in tables)
        self._tokens = partial(tokens_of, parameters.on)
        self._duplicates: dict[str, Duplicate] = {}
        self._empty: set[str] = set()

    def open(self) -> None:
        """Find the groups. Raises ``UserError`` for tables that cannot be read, or if the device is full."""
        self._choice.load()
        near, census = self._parameters.near, Census()
        table = None if near is None else SignatureTable(self._rows, self._size, self._parameters.seed)
        self._read(census, table)
        if near is None or table is None:
            equal = census.kept(Groups(len(census.contents)))
            self._duplicates = {census.ids[each]: Duplicate(census.ids[kept]) for each, kept in equal}
            return
        signatures = table.signatures()
        linker = Linker(signatures, np.array(census.scopes, dtype=np.uint64), census.ranks(), near)
        for band in range(linker.bands):
            stop.check()
            linker.compare(band)
        with closing(ShingleFile(self._size)) as sets:
            pairs = linker.undecided()
            self._write_sets(census, {*np.unique(pairs).tolist()}, sets)
            for _ in linker.decide(pairs, sets):
                stop.check()
            out = dict(census.kept(linker.groups))
            numbers = {each: (census.numbers[each], census.numbers[kept]) for each, kept in out.items()}
            found = similarities({pair for pair in numbers.values() if pair[0] != pair[1]}, signatures, sets)
        self._duplicates = {
            census.ids[each]: Duplicate(census.ids[kept], found.get(numbers[each])) for each, kept in out.items()
        }

    def process(self, record: Trajectory, unit: Unit) -> Iterable[Result]:
        """The selection of a trajectory."""
        name, measures = record.trajectory_id, dict(self._choice.measures(record.trajectory_id))
        reason, similarity = None, None
        try:
            self._choice.annotations(name)
        except Unused as error:
            reason = error.reason
        else:
            if (found := self._duplicates.get(name)) is not None:
                reason = found.reason(self._parameters.near)
                similarity = 1.0 if found.similarity is None else found.similarity
            elif name in self._empty:
                measures["nothing_to_compare"] = 1
        if self._parameters.within == "task" and record.task_id is None:
            measures["without_task"] = 1
        selection = Selection(
            trajectory_id=name, name=self._parameters.name, kept=reason is None, reason=reason, score=similarity
        )
        return [Result(input_id=unit[0], outputs=[selection], measures=measures)]

    def _read(self, census: Census, table: SignatureTable | None) -> None:
        """Take every trajectory that is chosen into ``census``, and the signature of each new content."""
        for ordinal, shards in enumerate(self._shards):
            for _, trajectory in stream(shards, self._columns()):
                stop.check()
                try:
                    annotations = self._choice.annotations(trajectory.trajectory_id)
                except Unused:
                    census.add(trajectory.trajectory_id, 0.0, "", None)
                    continue
                tokens, place = self._tokens(trajectory), float(ordinal)
                if self._parameters.prefer == "shortest":
                    place = turns(trajectory)
                elif self._parameters.prefer == "score":
                    found = score(self._parameters.score, trajectory, annotations)
                    place = np.inf if found is None else -found
                content = content_of(self._parameters.on, trajectory, tokens) if tokens else None
                if content is None:
                    self._empty.add(trajectory.trajectory_id)
                new = census.add(trajectory.trajectory_id, place, self._scope(trajectory), content)
                if new and table is not None:
                    table.add(tokens)

    def _write_sets(self, census: Census, wanted: set[int], sets: ShingleFile) -> None:
        """Read the trajectories with these contents again, and write their shingles to a file."""
        places: dict[int, int] = {}
        for place, number in enumerate(census.numbers):
            if number in wanted:
                places.setdefault(number, place)
        again = {place: number for number, place in places.items()}
        shards = [path for each in self._shards for path in each]
        for place, trajectory in stream(shards, self._columns(), np.array(sorted(again), dtype=np.int64)):
            stop.check()
            sets.add(again[place], self._tokens(trajectory))
        sets.flush()

    def _columns(self) -> list[str]:
        return ["trajectory_id", "content", "task_id", "system_prompt", "outcome"]

    def _scope(self, trajectory: Trajectory) -> str:
        """Equal for trajectories that are compared; one without a task has none to share."""
        if self._parameters.within == "all":
            return ""
        return f"trajectory {trajectory.trajectory_id}" if trajectory.task_id is None else f"task {trajectory.task_id}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_duplicates": {}, "_empty": set()}


def tokens_of(on: On, trajectory: Trajectory) -> list[bytes]:
    """What shingles are made of: words, tools, actions in canonical form, or digests of states; empty without any.

    The words are those of all texts but the system prompt: it is the same for trajectories that have nothing else in
    common, and often the longest text of all. Without words they are the texts.
    """
    if on == "text":
        texts = list(texts_of(msgspec.structs.replace(trajectory, system_prompt=None)))
        # Signs alone have no words, and may be equal.
        return words_of(texts) or [text.encode(errors="surrogatepass") for text in texts if text.strip()]
    if on == "tools":
        called = (item for item in trajectory.content if acts(item))
        return [_tool(item).encode() for item in called if isinstance(item, ApiAction | CodeAction)]
    if on == "actions":
        return [action_key(item) for item in trajectory.content if acts(item)]
    return [item.state_digest.encode() for item in trajectory.content if item.state_digest is not None]


def _tool(item: ApiAction | CodeAction) -> str:
    """The name of a tool; of code its language."""
    return item.function if isinstance(item, ApiAction) else item.language


def content_of(on: On, trajectory: Trajectory, tokens: Sequence[bytes]) -> bytes:
    """Equal for trajectories that are equal: in all texts, the system prompt too, or in the sequence of ``tokens``."""
    if on == "text":
        return msgspec.json.encode(list(texts_of(trajectory)))
    return msgspec.json.encode(tokens)


def action_key(item: AnyItem) -> bytes:
    """An action without thought or place: the tool and its arguments in canonical JSON, code, or a text."""
    if isinstance(item, ApiAction):
        return digest(item.function, item.kwargs, item.raw_arguments).encode()
    if isinstance(item, CodeAction):
        return digest(item.language, item.content).encode()
    return digest(item.content if isinstance(item, MessageAction) else "").encode()
