"""Tasks over a corpus: questions are drawn, checked against the index, and their solutions replayed."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.task import EnvironmentSpec, Lineage, Task
from agentmill.synthesis.environments import make
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.environments.search.corpus import read_documents
from agentmill.synthesis.environments.search.environment import RESULTS, SEPARATOR, SearchEnvironment
from agentmill.synthesis.environments.search.examples import solution
from agentmill.synthesis.environments.search.sources import read_source
from agentmill.synthesis.generators.generator import GenerationError, different_tasks, turns_of_plan
from agentmill.synthesis.generators.pddl_tasks.difficulty import difficulty_of
from agentmill.synthesis.generators.search_tasks.checks import ANSWER_SHOWN, shows_answer, shows_name
from agentmill.synthesis.generators.search_tasks.corpus_facts import CorpusFacts, corpus_facts
from agentmill.synthesis.generators.search_tasks.questions import DRAWS, LEAST_DEPTH, Draft, Method
from agentmill.synthesis.generators.trial import Solution, try_task

OPERATOR = "corpus_tasks"
TRIES = 60
"""How often a question is drawn anew before it is given up."""

NAME_SHOWN, NOT_FOUND, TOP_HIT = "name_shown", "not_found", "top_hit_answers"
GOLD_REJECTED, REPEATED = "gold_rejected", "repeated"
"""Why drawn questions are refused, as ``ANSWER_SHOWN``."""
CHECKED_WALKS = "checked_walks"
"""How many walks came as far as the check of the first hit."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for: ``methods`` in turn, of a ``depth`` in a range; ``see``: whether passages must be seen."""

    methods: tuple[Method, ...] = ("mask", "walk", "width")
    depth: tuple[int, int] = (1, 3)
    see: bool = False

    def range_of(self, method: Method) -> tuple[int, int]:
        """The depths of a method."""
        return max(self.depth[0], LEAST_DEPTH[method]), self.depth[1]


class CorpusTaskMaker:
    """The tasks of one environment. ``counts`` holds documents read and left out, and drawn questions refused."""

    def __init__(self, spec: EnvironmentSpec, wanted: Wanted, seed: int) -> None:
        self._spec = spec
        self._wanted = wanted
        self._seed = seed
        self._seen: set[str] = set()
        self.counts: Counter[str] = Counter()

    def propose(self, n: int) -> Iterator[Task | GenerationError]:
        """``n`` different tasks or failures; all fail alike where the corpus has changed or has nothing to ask for."""
        try:
            environment = make(self._spec)
            found = corpus_facts(read_documents(Path(read_source(self._spec).path)), self._seed)
        except (EnvError, UserError, ValueError) as error:
            yield from [GenerationError("broken_environment", str(error))] * n
            return
        self.counts.update(documents=found.documents, documents_not_read=found.unused)
        if not found.has_facts():
            detail = "the corpus holds no date, number, name or title that could be masked; give texts with such facts"
            yield from [GenerationError("nothing_to_mask", detail)] * n
            return
        assert isinstance(environment, SearchEnvironment)
        with contextlib.closing(environment):
            least, most = self._wanted.depth
            wanted = f"method {' or '.join(self._wanted.methods)} and depth {least} to {most}"
            yield from different_tasks(
                lambda number: self._task(found, environment, number), n, wanted, TRIES, "depth or method"
            )

    def _task(self, found: CorpusFacts, environment: SearchEnvironment, number: int) -> Task | GenerationError:
        method = self._wanted.methods[number % len(self._wanted.methods)]
        seed = derive_seed(OPERATOR, self._spec.environment_id, self._seed, number)
        chance = random.Random(seed)
        for _ in range(TRIES):
            draft = DRAWS[method](found, chance.randint(*self._wanted.range_of(method)), chance)
            made = None if draft is None else self._checked(draft, environment, seed)
            if made is not None:
                return made
        return GenerationError("no_new_task", f"no new question of method {method} in {TRIES} draws")

    def _checked(self, draft: Draft, environment: SearchEnvironment, seed: int) -> Task | None:
        """The task of a draft, or ``None`` with the reason counted."""
        key = digest(self._spec.environment_id, draft.answers, sorted(hop.passage for hop in draft.hops))
        reason = self._fault(draft, key, environment)
        queries = [query_for(environment, hop.passage, hop.queries) for hop in draft.hops] if reason is None else []
        found = [query for query in queries if query is not None]
        if reason is None and len(found) < len(draft.hops):
            reason = NOT_FOUND
        if reason is None:
            task = self._built(draft, found, key, seed)
            if all(check.passed for check in try_task(task, self._spec, Solution(task.gold, task.difficulty))):
                self._seen.add(key)
                return task
            reason = GOLD_REJECTED
        self.counts[reason] += 1
        return None

    def _fault(self, draft: Draft, key: str, environment: SearchEnvironment) -> str | None:
        """Why a question is refused whatever its solution."""
        if key in self._seen:
            return REPEATED
        if shows_answer(draft.instruction, draft.answers):
            return ANSWER_SHOWN
        if shows_name(draft.instruction, draft.hidden):
            return NAME_SHOWN
        if draft.method == "walk":
            self.counts[CHECKED_WALKS] += 1
            if top_hit_answers(environment, draft.instruction, draft.answers):
                return TOP_HIT
        return None

    def _built(self, draft: Draft, queries: Sequence[str], key: str, seed: int) -> Task:
        sources = [hop.passage for hop in draft.hops]
        gold = solution(list(zip(queries, sources, strict=True)), f"{SEPARATOR} ".join(draft.answers))
        several = len(draft.answers) > 1
        notes = {"method": draft.method, "depth": draft.depth, "sources": sources, "hidden": list(draft.hidden)}
        return Task(
            task_id=digest(OPERATOR, self._spec.environment_id, key, seed),
            environment_id=self._spec.environment_id,
            instruction=draft.instruction,
            goal={
                "answer": list(draft.answers) if several else draft.answers[0],
                **({"every": True} if several else {}),
                **({"seen": sources} if self._wanted.see else {}),
            },
            gold=gold,
            # Masks and passages make it harder alike: each is one more thing to find.
            difficulty=msgspec.structs.replace(difficulty_of(2 * draft.depth, None), plan_length=len(gold)),
            skills=[draft.method],
            max_turns=turns_of_plan(len(gold)),
            structure_digest=key,
            lineage=Lineage(operator=OPERATOR, seed=seed, notes=notes),
        )


def top_hit_answers(environment: SearchEnvironment, instruction: str, answers: Sequence[str]) -> bool:
    """Whether the first passage that the bare instruction finds has the answers, so that no step between is needed."""
    hits = environment.index.search(instruction, 1)
    found = environment.index.open(hits[0].id) if hits else None
    return found is not None and all(shows_answer(f"{found.title} {found.text}", [answer]) for answer in answers)


def query_for(environment: SearchEnvironment, passage: str, queries: Sequence[str]) -> str | None:
    """The first query whose results show the passage."""
    for query in queries:
        if passage in [hit.id for hit in environment.index.search(query, RESULTS)]:
            return query
    return None
