"""Variants of questions over a corpus, after ASearcher (arXiv:2508.07976): ``inject`` and ``fuzz``.

``inject`` puts a statement of the corpus about a name in the place of the name. ``fuzz`` makes a number or a year
vague, where no other passage fits the vague question.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import msgspec

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.task import EnvironmentSpec, Lineage, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.environments.search.corpus import read_documents
from agentmill.synthesis.environments.search.environment import Goal, SearchEnvironment
from agentmill.synthesis.environments.search.examples import solution
from agentmill.synthesis.environments.search.sources import read_source
from agentmill.synthesis.generators.admission import admit_task, rejection
from agentmill.synthesis.generators.composition import summed_difficulty
from agentmill.synthesis.generators.generator import GenerationError, check_direction, turns_of_plan
from agentmill.synthesis.generators.pddl_tasks.difficulty import difficulty_of
from agentmill.synthesis.generators.search_tasks.checks import shows_name
from agentmill.synthesis.generators.search_tasks.corpus_facts import CorpusFacts, corpus_facts
from agentmill.synthesis.generators.search_tasks.generator import query_for, top_hit_answers
from agentmill.synthesis.generators.search_tasks.questions import has_name, replaced, unlabelled

TRIES = 20
"""How often a variant is drawn anew before it is given up."""

LONGEST_TITLE = 6
"""In words, of the names that are looked for in a question."""
ONE_PASSAGE = 2
"""The effort of finding one more passage, as ``corpus_tasks`` counts it."""

T = TypeVar("T")

_LETTERS = "ABCDEFGHIJ"
_WORD = re.compile(r"\w[\w’'-]*")
_QUOTE = re.compile(r"“([^”]+)”")
_LABEL = re.compile(r"\[[^\]]+\]")
_EXACT = re.compile(r"(?<![\w.,\[-])\d[\d,]*\d(?![\w\]-]|[.,]\d)")
_YEARS = range(1000, 2100)


class SearchTaskGenerator:
    """Evolves questions over a corpus; they are proposed by ``corpus_tasks``, which has other parameters."""

    def __init__(self, plan_length: tuple[int, int] = (2, 8)) -> None:
        del plan_length
        self._facts: tuple[str, CorpusFacts] | None = None

    async def propose(self, spec: EnvironmentSpec, n: int, seed: int) -> AsyncIterator[Task | GenerationError]:
        """Raises ``UserError``."""
        del spec, n, seed
        raise UserError(
            "`propose` makes no tasks for environments of family search\nuse `corpus_tasks`", ErrorCode.KEY_NOT_FOR_THIS
        )
        yield

    async def evolve(
        self, spec: EnvironmentSpec, parent: Task, direction: str, n: int, seed: int
    ) -> AsyncIterator[Task | GenerationError]:
        """``n`` different variants or failures."""
        check_direction("search", direction)
        try:
            environment, facts = SearchEnvironment(spec), self._facts_of(spec)
            goal = msgspec.convert(parent.goal, Goal)
        except (EnvError, ValueError) as error:
            yield GenerationError("broken_parent", f"task {parent.task_id} cannot be varied: {error}")
            return
        draw: Callable[[Question, random.Random], Variant | None] = injected if direction == "inject" else fuzzed
        seen = {parent.instruction}
        with closing(environment):
            question = Question(parent, goal, facts, environment)
            for number in range(n):
                variant_seed = derive_seed("evolve", parent.task_id, direction, seed, number)
                yield _first(question, direction, draw, variant_seed, seen)

    def _facts_of(self, spec: EnvironmentSpec) -> CorpusFacts:
        """Those of the corpus, kept until another one is wanted. Raises ``ValueError``, ``UserError``."""
        if self._facts is None or self._facts[0] != spec.source:
            self._facts = spec.source, corpus_facts(read_documents(Path(read_source(spec).path)), 0)
        return self._facts[1]


class Question(msgspec.Struct, frozen=True):
    """A question that varies, with its corpus."""

    task: Task
    goal: Goal
    facts: CorpusFacts
    environment: SearchEnvironment


class Variant(msgspec.Struct, frozen=True):
    """Another wording with its solution; ``hidden`` is the name that it no longer tells."""

    instruction: str
    gold: list[AnyAction]
    hidden: str | None = None


def injected(question: Question, chance: random.Random) -> Variant | None:
    """A letter in the place of a name, with a statement about it that holds of nothing else in the corpus."""
    facts, instruction = question.facts, question.task.instruction
    name = _any(sorted(_titles_in(instruction, facts) - {str(answer) for answer in question.goal.answers}), chance)
    letter = next((each for each in _LETTERS if f"[{each}]" not in instruction), None)
    if name is None or letter is None:
        return None
    at = chance.choice(facts.titles[name])
    stated = [each.text for each in facts.sentences[at] if each.spans and each.text not in instruction]
    statement = _any(stated, chance)
    if statement is None:
        return None
    text = replaced(statement, {name: f"[{letter}]"})
    passage = facts.passages[at]
    query = query_for(question.environment, passage.id, [unlabelled(text)])
    if query is None or {document for document, _ in _places(facts, text)} != {passage.document}:
        return None
    before = solution([(query, passage.id)], "")[:-1]
    hidden = replaced(instruction, {name: f"[{letter}]"})
    return Variant(
        f"{hidden}\n\n[{letter}] hides a name. A statement about [{letter}]: “{text}”",
        [*before, *(each for each in question.task.gold or [] if each not in before)],
        name,
    )


def fuzzed(question: Question, chance: random.Random) -> Variant | None:
    """A range in the place of a number or a year in a quoted statement that still holds once, of one document."""
    quote = _any(_QUOTE.findall(question.task.instruction), chance)
    labels = [] if quote is None else [found.span() for found in _LABEL.finditer(quote)]
    exact = [
        found
        for found in _EXACT.finditer(quote or "")
        if not any(begin < found.end() and found.start() < end for begin, end in labels)
    ]
    detail = _any(exact, chance)
    if quote is None or detail is None:
        return None
    least, most = vague_range(detail[0])
    kind = "year" if _is_year(detail[0]) else "number"
    vague = f"{quote[: detail.start()]}[a {kind} from {least:,} to {most:,}]{quote[detail.end() :]}"
    if kind == "year":
        vague = vague.replace(f"{least:,} to {most:,}", f"{least} to {most}")
    pattern = f"{quote[: detail.start()]}[=]{quote[detail.end() :]}"
    gold = _searching(question, detail[0])
    if gold is None or len(_places(question.facts, pattern, (least, most))) != 1:
        return None
    return Variant(question.task.instruction.replace(quote, vague), gold)


def vague_range(number: str) -> tuple[int, int]:
    """The decade of a year, or the numbers with the same first digit and as many digits."""
    value = int(number.replace(",", ""))
    size = 10 if _is_year(number) else 10 ** (len(str(value)) - 1)
    return value // size * size, value // size * size + size - 1


def _is_year(number: str) -> bool:
    return "," not in number and int(number) in _YEARS


def _titles_in(text: str, facts: CorpusFacts) -> set[str]:
    """The titles of documents, as no two have them, that a text names."""
    words = _WORD.findall(text)
    runs = {" ".join(words[at : at + length]) for at in range(len(words)) for length in range(1, LONGEST_TITLE + 1)}
    return {title for title in runs & facts.titles.keys() if has_name(text, title)}


def _places(facts: CorpusFacts, statement: str, between: tuple[int, int] = (0, 0)) -> set[tuple[str, str]]:
    """Where a statement holds: documents, with their text there. Labels match anything, ``[=]`` a number in a range."""
    parts = _LABEL.split(statement)
    labels = ["([\\d,]+)" if label == "[=]" else ".+?" for label in _LABEL.findall(statement)]
    pattern = re.compile("".join(re.escape(part) + label for part, label in zip(parts, [*labels, ""], strict=True)))
    longest, found = max(parts, key=len), set()
    for passage, sentences in zip(facts.passages, facts.sentences, strict=True):
        text = " ".join(sentence.text for sentence in sentences)
        # Most passages are without the longest part, and patterns are slow.
        for match in pattern.finditer(text) if longest in text else ():
            if not match.groups() or between[0] <= int(match[1].replace(",", "") or -1) <= between[1]:
                found.add((passage.document, match[0]))
    return found


def _searching(question: Question, detail: str) -> list[AnyAction] | None:
    """The solution without the detail in its queries, since the agent does not know it; ``None`` if there is none."""
    gold = list(question.task.gold or [])
    for place, (call, after) in enumerate(itertools.pairwise(gold)):
        if not (isinstance(call, ApiAction) and isinstance(after, ApiAction)) or call.function != "search":
            continue
        query, passage = str(call.kwargs["query"]), str(after.kwargs.get("id"))
        if has_name(query, detail):
            known = query_for(question.environment, passage, [replaced(query, {detail: ""})])
            if known is None:
                return None
            gold[place] = ApiAction(function="search", kwargs={**call.kwargs, "query": known})
    return gold


def _any(found: Sequence[T], chance: random.Random) -> T | None:
    return chance.choice(found) if found else None


def _first(
    question: Question,
    direction: str,
    draw: Callable[[Question, random.Random], Variant | None],
    seed: int,
    seen: set[str],
) -> Task | GenerationError:
    for attempt in range(TRIES):
        variant = draw(question, random.Random(derive_seed(seed, attempt)))
        task = None if variant is None or variant.instruction in seen else _task(question, direction, variant)
        if task is not None:
            seen.add(task.instruction)
            return task
    return GenerationError(f"no_{direction}_task", f"no new {direction} variant in {TRIES} tries")


def _task(question: Question, direction: str, variant: Variant) -> Task | None:
    """The task, if it shows no hidden name, if what is hidden is needed, and if it is sure to be admitted."""
    parent, answers = question.task, [str(answer) for answer in question.goal.answers]
    notes = parent.lineage.notes if parent.lineage is not None else {}
    hidden = [*map(str, notes.get("hidden", [])), *([variant.hidden] if variant.hidden else [])]
    if shows_name(variant.instruction, hidden):
        return None
    if variant.hidden and top_hit_answers(question.environment, variant.instruction, answers):
        return None
    more = [difficulty_of(ONE_PASSAGE, None)] if variant.hidden else []
    task = msgspec.structs.replace(
        parent,
        task_id=digest("evolve", parent.task_id, variant.instruction),
        instruction=variant.instruction,
        gold=variant.gold,
        difficulty=summed_difficulty([parent.difficulty, *more], len(variant.gold)),
        max_turns=turns_of_plan(len(variant.gold)),
        structure_digest=digest(direction, parent.structure_digest or parent.task_id, variant.instruction),
        admission=None,
        # Without the seed, which the id does not hold either: two seeds may come to the same task.
        lineage=Lineage(
            operator="evolve", parents=[parent.task_id], notes={**notes, "direction": direction, "hidden": hidden}
        ),
    )
    return task if rejection(admit_task(task, question.environment.spec)[0]) is None else None
