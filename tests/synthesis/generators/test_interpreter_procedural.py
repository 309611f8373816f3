"""Tables by chance, questions about them, and that host and sandbox come to the same answers."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import msgspec
import pytest

from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.synthesis.environments.interpreter.environment import LIMITS
from agentmill.synthesis.environments.interpreter.examples import LEDGER, SUM
from agentmill.synthesis.environments.interpreter.source_session import begin
from agentmill.synthesis.generators.admission import admit_environment, admit_task, rejection
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.interpreter_procedural.generator import InterpreterGenerator, propose, scheme_of
from agentmill.synthesis.generators.interpreter_tasks.generator import InterpreterTaskGenerator
from agentmill.synthesis.generators.interpreter_tasks.steps import (
    AtLeast,
    Keep,
    Linked,
    Product,
    Question,
    Unclear,
    wordings,
)
from agentmill.synthesis.sandbox import Pool, Result, Session, backend, pool
from tests.errors import user_error
from tests.synthesis.generators.environments import inspiration


async def _all(made: Any) -> list[Any]:
    return [each async for each in made]


def proposed(spec: EnvironmentSpec, n: int, seed: int = 0, **options: Any) -> list[Any]:
    return asyncio.run(_all(InterpreterTaskGenerator(**options).propose(spec, n, seed)))


@pytest.fixture(scope="module")
def worlds() -> list[EnvironmentSpec]:
    return [propose(inspiration(), seed) for seed in range(30)]


def test_worlds_differ_and_are_admitted(worlds: list[EnvironmentSpec]) -> None:
    assert len({spec.structure_digest for spec in worlds}) >= 20
    assert len({spec.environment_id for spec in worlds}) == 30
    assert len({spec.name for spec in worlds}) >= 5
    assert [rejection(admit_environment(spec)) for spec in worlds[:5]] == [None] * 5
    assert asyncio.run(InterpreterGenerator().propose(inspiration(), 4)) == worlds[4]


def test_a_table_with_the_same_fields_is_the_same_structure(worlds: list[EnvironmentSpec]) -> None:
    schemes = [scheme_of(propose(inspiration(), seed)) for seed in range(200)]
    fields = [(each.table, frozenset(each.options), frozenset(each.ranges)) for each in schemes]
    assert len(set(zip([each.structure() for each in schemes], fields, strict=True))) == len(set(fields))
    assert len({each.structure() for each in schemes}) == len(set(fields)) < 200


def test_no_task_is_shorter_than_wanted(worlds: list[EnvironmentSpec]) -> None:
    for spec in worlds[:6]:
        for each in proposed(spec, 4, plan_length=(9, 12)):
            assert not isinstance(each, Task) or len(each.gold or []) >= 9
    assert not any(isinstance(each, Task) for each in proposed(worlds[0], 4, plan_length=(30, 30)))


def test_inspiration_chooses_what_tables_are_about() -> None:
    text = "A hospital must deliver drugs to every patient."
    assert {propose(inspiration(text), seed).name for seed in range(10)} == {"visits-doctors"}


def test_every_task_is_admitted_and_its_gold_is_as_long_as_wanted(worlds: list[EnvironmentSpec]) -> None:
    kinds, functions = set(), 0
    for spec in worlds[:8]:
        tasks = proposed(spec, 5, plan_length=(2, 6))
        assert len({task.structure_digest for task in tasks}) == 5
        for task in tasks:
            report, gold, difficulty = admit_task(task, spec)
            assert rejection(report) is None, (task.instruction, report)
            assert gold is not None
            assert difficulty is not None
            assert 2 <= len(gold) <= 6
            assert difficulty.plan_length == len(gold)
            functions += "calls" in task.goal
            kinds.update(set(task.skills) & set(wordings().questions))
    assert len(kinds) >= 5
    assert 1 <= functions <= 20


def test_a_wrong_gold_is_rejected(worlds: list[EnvironmentSpec]) -> None:
    task = next(task for task in proposed(worlds[0], 5) if "answer" in task.goal)
    wrong = msgspec.structs.replace(task, goal={"answer": "something else"})
    rejected = rejection(admit_task(wrong, worlds[0])[0])
    assert rejected is not None
    assert rejected.name == "gold_rejected"


def test_same_seed_same_tasks(worlds: list[EnvironmentSpec]) -> None:
    assert proposed(worlds[1], 4, seed=7) == proposed(worlds[1], 4, seed=7)
    assert proposed(worlds[1], 4, seed=7) != proposed(worlds[1], 4, seed=8)


def test_tasks_get_easier_and_harder_by_a_step_or_have_other_steps(worlds: list[EnvironmentSpec]) -> None:
    generator, spec = InterpreterTaskGenerator((4, 4)), worlds[2]
    parent: Task = next(task for task in proposed(spec, 6, plan_length=(4, 4)) if "answer" in task.goal)
    for direction, length in (("easier", 3), ("harder", 5), ("other", 4)):
        made = asyncio.run(_all(generator.evolve(spec, parent, direction, 2, 0)))
        variants = [task for task in made if isinstance(task, Task)]
        assert variants
        for task in variants:
            assert len(task.gold or []) == length
            assert task.lineage is not None
            assert task.lineage.parents == [parent.task_id]
            assert rejection(admit_task(task, spec)[0]) is None


def test_what_cannot_be_made_is_said(worlds: list[EnvironmentSpec]) -> None:
    (failure,) = proposed(LEDGER, 3)
    assert isinstance(failure, GenerationError)
    assert failure.reason == "broken_environment"
    crowded = proposed(worlds[0], 40, plan_length=(2, 2))
    assert [each.reason for each in crowded if isinstance(each, GenerationError)][:1] == ["too_few_tasks"]
    with user_error("range-empty"):
        InterpreterTaskGenerator((1, 1))


ROWS = [
    {"id": "S1", "region": "north", "price": 4, "units": 2, "store": "a"},
    {"id": "S2", "region": "south", "price": 6, "units": 3, "store": "b"},
    {"id": "S3", "region": "north", "price": 8, "units": 1, "store": "a"},
]
TABLES = {"sales": ROWS, "stores": [{"store": "a", "city": "Oslo"}, {"store": "b", "city": "Turin"}]}


def sales() -> Any:
    specs = (propose(inspiration("shop"), seed) for seed in range(50))
    return next(scheme_of(spec) for spec in specs if scheme_of(spec).key == "id")


def test_steps_do_what_they_say() -> None:
    scheme = sales()
    kept = Keep(field="region", option="north").apply(ROWS, TABLES, scheme)
    assert [row["id"] for row in kept] == ["S1", "S3"]
    assert [row["id"] for row in AtLeast(field="price", bound=6).apply(ROWS, TABLES, scheme)] == ["S2", "S3"]
    assert [row["id"] for row in Linked(option="Oslo").apply(ROWS, TABLES, scheme)] == ["S1", "S3"]
    made = Product(field="worth", one="price", other="units").apply(ROWS, TABLES, scheme)
    assert [row["worth"] for row in made] == [8, 18, 8]
    with pytest.raises(Unclear):
        Keep(field="region", option="south").apply(ROWS, TABLES, scheme)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("count", 3),
        ("total", 18),
        ("mean", 6.0),
        ("first", "S3"),
        ("kinds", ["north", "south"]),
        ("tally", {"north": 2, "south": 1}),
        ("leader", "north"),
    ],
)
def test_questions_have_known_answers(kind: str, answer: object) -> None:
    by, of = "region" * (kind in ("kinds", "tally", "leader")), "price" * (kind in ("total", "mean", "first", "leader"))
    question = Question(kind=kind, by=by, of=of)
    assert question.answer(ROWS, sales()) == answer
    assert eval(question.code(sales()), {"rows": ROWS}) == answer


def test_a_task_is_tried_with_one_session_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who holds one and waits for another of the same pool may wait in vain."""
    lone = Pool(backend(), LIMITS, most=1, wait_s=0.05)
    monkeypatch.setattr(
        "agentmill.synthesis.environments.interpreter.environment.pool",
        lambda limits, purpose="": pool(limits, purpose=purpose) if purpose else lone,
    )
    assert [rejection(admit_task(task, LEDGER)[0]) for task in (SUM, SUM)] == [None] * 2
    lone.close()


@pytest.mark.parametrize("failing", range(1, 5))
def test_a_world_that_starts_sometimes_is_rejected_and_holds_no_session(
    failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = Pool(backend(), LIMITS, most=2, wait_s=0.05)
    starts = count(1)

    def sometimes(session: Session, source: str, names: JsonObject) -> Result:
        return begin(session, "1 / 0" if next(starts) == failing else source, names)

    monkeypatch.setattr("agentmill.synthesis.environments.interpreter.environment.pool", lambda limits, purpose="": two)
    monkeypatch.setattr("agentmill.synthesis.environments.interpreter.environment.begin", sometimes)
    failed = rejection(admit_task(SUM, LEDGER)[0])
    assert failed is not None
    assert failed.name == ("broken" if failing == 1 else "nondeterministic")
    assert "does not start" in failed.detail
    with two.session() as free, two.session() as other:
        assert [each.run("1 + 1").value for each in (free, other)] == [2, 2]
    two.close()
