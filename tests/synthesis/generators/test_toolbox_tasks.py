"""Toolboxes from the grammar and their tasks: many structures, all admitted, solutions of the wanted length."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing

import msgspec
import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Inspiration, Task
from agentmill.schemas.records.trajectory import ApiAction
from agentmill.synthesis.environments import make
from agentmill.synthesis.environments.toolbox.examples import LIBRARY
from agentmill.synthesis.environments.toolbox.toolbox import Column, Parameter, Table, Tool, Toolbox
from agentmill.synthesis.environments.toolbox.user import Request
from agentmill.synthesis.generators.admission import admit_environment, admit_task, rejection
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.toolbox_procedural.generator import propose
from agentmill.synthesis.generators.toolbox_tasks.generator import ToolboxTaskGenerator
from agentmill.synthesis.generators.toolbox_tasks.live_toolbox import LiveToolbox
from agentmill.synthesis.generators.toolbox_tasks.operation import OperationSampler
from tests.errors import user_error
from tests.hash_seeds import printed
from tests.synthesis.environments.toolbox.boxes import LIBRARY_SPEC, LIBRARY_TASK, and_tool, spec_of, with_tool
from tests.synthesis.generators.environments import inspiration

SEEDS = 60
WORLDS = [propose(inspiration(), seed) for seed in range(6)]


async def made(tasks: AsyncIterator[Task | GenerationError]) -> list[Task]:
    return [task async for task in tasks if isinstance(task, Task)]


@pytest.fixture(scope="module")
def worlds() -> list[EnvironmentSpec]:
    return [propose(inspiration("Nothing in particular."), seed) for seed in range(SEEDS)]


def test_every_seed_gives_another_structure(worlds: list[EnvironmentSpec]) -> None:
    assert len({spec.structure_digest for spec in worlds}) == SEEDS
    themes = Counter(spec.lineage.notes["theme"] for spec in worlds if spec.lineage)
    assert len(themes) >= 10


def test_almost_all_are_admitted_and_the_rest_has_a_tool_that_its_rows_never_allow(
    worlds: list[EnvironmentSpec],
) -> None:
    reasons = Counter(failed.name for spec in worlds if (failed := rejection(admit_environment(spec))) is not None)
    assert set(reasons) <= {"unreachable_tool"}
    assert reasons.total() <= SEEDS // 20


def test_no_task_is_only_a_question_with_few_values_to_choose_from() -> None:
    tasks = [task for spec in WORLDS for task in ToolboxTaskGenerator((2, 4)).proposals(spec, 30, 0)]
    alone = [
        task.goal["answers"][0].get("others", [])
        for task in tasks
        if isinstance(task, Task) and task.skills == ["look up"] and len(task.goal["answers"]) == 1
    ]
    assert alone
    assert all(len(others) >= 3 for others in alone)


def test_an_inspiration_chooses_the_theme_and_a_seed_the_rest() -> None:
    text = Inspiration(inspiration_id="i9", text="Every patient sees a doctor before the nurse brings medicine.")
    told = [propose(text, seed) for seed in range(5)]
    assert {spec.lineage.notes["theme"] for spec in told if spec.lineage} == {"clinic"}
    assert propose(text, 3) == told[3]


@pytest.mark.parametrize("spec", WORLDS, ids=lambda spec: spec.name)
async def test_tasks_are_new_solvable_and_of_the_wanted_length(spec: EnvironmentSpec) -> None:
    tasks = await made(ToolboxTaskGenerator((3, 6)).propose(spec, 8, 0))
    assert len(tasks) == 8 == len({task.structure_digest for task in tasks})
    for task in tasks:
        report, gold, _ = admit_task(task, spec)
        failed = rejection(report)
        assert failed is None or failed.name in ("unneeded_call", "guess_accepted", "wrong_argument_accepted")
        assert 3 <= len(task.gold or []) <= 6
        assert gold == (task.gold if failed is None else None)
        assert task.difficulty is not None
        assert task.difficulty.plan_length == len(task.gold or [])
        assert task.max_turns > 2 * len(task.gold or [])


async def test_most_tasks_are_admitted() -> None:
    pairs = [(spec, task) for spec in WORLDS for task in await made(ToolboxTaskGenerator().propose(spec, 10, 1))]
    admitted = [task for spec, task in pairs if rejection(admit_task(task, spec)[0]) is None]
    assert len(admitted) >= 0.95 * len(pairs) > 50
    levels = {round(task.difficulty.level, 1) for task in admitted if task.difficulty}
    assert {0.3, 0.4} <= levels
    assert all(0 < level < 1 for level in levels)


async def test_keys_of_a_call_come_from_the_calls_before_it() -> None:
    """Most solutions hold a chain: a key that one call shows and the user did not say is what another one takes."""
    chained = 0
    tasks = [(spec, task) for spec in WORLDS for task in await made(ToolboxTaskGenerator((4, 8)).propose(spec, 5, 0))]
    for spec, task in tasks:
        environment = make(spec)
        environment.reset(task, 0)
        heard: list[str] = []
        for action in task.gold or []:
            assert isinstance(action, ApiAction)
            keys = [value for name, value in action.kwargs.items() if name.endswith("_id")]
            chained += any(f'_id":{key}' in text for key in keys for text in heard)
            heard.append(str(getattr(environment.step(action).observation, "content", "")))
    assert chained >= len(tasks)


@pytest.mark.parametrize("direction", ["easier", "harder", "other"])
async def test_variants_lie_on_the_side_they_were_asked_for(direction: str) -> None:
    found = []
    for spec in WORLDS[:4]:
        parent = (await made(ToolboxTaskGenerator((4, 5)).propose(spec, 1, 3)))[0]
        parent = msgspec.structs.replace(parent, split="held_out_tasks")
        for task in await made(ToolboxTaskGenerator().evolve(spec, parent, direction, 2, 0)):
            before, now = len(parent.gold or []), len(task.gold or [])
            assert {"easier": now < before, "harder": before < now <= before + 6, "other": now == before}[direction]
            assert task.instruction != parent.instruction
            assert task.split == "held_out_tasks"
            assert task.lineage is not None
            assert task.lineage.parents == [parent.task_id]
            environment = make(spec)
            environment.reset(task, 0)
            assert not any(environment.step(action).error for action in task.gold or [])
            assert environment.check().passed
            found.append(task)
    assert len(found) >= 4


async def test_a_variant_of_a_harder_variant_keeps_all_requests_before_its_last() -> None:
    longer = easier = 0
    for spec in WORLDS[:4]:
        for parent in await made(ToolboxTaskGenerator((2, 4)).propose(spec, 2, 3)):
            for harder in await made(ToolboxTaskGenerator().evolve(spec, parent, "harder", 1, 0)):
                for again in await made(ToolboxTaskGenerator().evolve(spec, harder, "harder", 2, 1)):
                    assert again.instruction.startswith(f"{harder.instruction} Then ")
                    longer += 1
                for less in await made(ToolboxTaskGenerator().evolve(spec, harder, "easier", 1, 1)):
                    assert harder.instruction.startswith(less.instruction)
                    easier += 1
    assert longer >= 3
    assert easier >= 1


async def test_a_hand_written_toolbox_gets_tasks_too() -> None:
    tasks = await made(ToolboxTaskGenerator((2, 5)).propose(LIBRARY_SPEC, 6, 0))
    assert len(tasks) == 6
    assert all(task.environment_id == LIBRARY_SPEC.environment_id for task in tasks)


async def test_broken_input_is_a_failure_among_the_values_and_mistakes_of_the_user_are_named() -> None:
    broken = msgspec.structs.replace(LIBRARY_SPEC, source="{}")
    failures = [each async for each in ToolboxTaskGenerator().propose(broken, 3, 0)]
    assert [getattr(failure, "reason", None) for failure in failures] == ["broken_environment"]
    foreign = [each async for each in ToolboxTaskGenerator().evolve(LIBRARY_SPEC, LIBRARY_TASK, "harder", 1, 0)]
    assert [getattr(failure, "reason", None) for failure in foreign] == ["broken_parent"]
    with user_error("unknown-name", "hardest"):
        await made(ToolboxTaskGenerator().evolve(LIBRARY_SPEC, LIBRARY_TASK, "hardest", 1, 0))
    with user_error("range-empty", "5", "2"):
        ToolboxTaskGenerator((5, 2))


def test_worlds_and_tasks_do_not_depend_on_the_hash_seed() -> None:
    script = (
        "import asyncio\n"
        "from agentmill.schemas.ids import digest\n"
        "from agentmill.synthesis.generators.toolbox_procedural.generator import propose\n"
        "from agentmill.synthesis.generators.toolbox_tasks.generator import ToolboxTaskGenerator\n"
        "from agentmill.synthesis.generators.toolbox_wrap.wrap import wrap_environment, wrap_task\n"
        "from agentmill.synthesis.generators.wrapping import Wrapping\n"
        "from tests.synthesis.generators.environments import inspiration\n"
        "async def main():\n"
        "    specs = [propose(inspiration(), seed) for seed in range(4)]\n"
        "    tasks = [(s, t) for s in specs async for t in ToolboxTaskGenerator().propose(s, 3, 1)]\n"
        "    w = Wrapping(2, 3, 2, 1, 0.3)\n"
        "    wrapped = [wrap_task(t, wrap_environment(s, w, 0), w, 0) for s, t in tasks]\n"
        "    print(digest(specs, tasks, [str(t) if isinstance(t, Exception) else t for t in wrapped]))\n"
        "asyncio.run(main())\n"
    )
    [told] = printed(script)
    assert len(told.strip()) == 32


OPEN_LOANS = "SELECT loan_id, book_id, status FROM loans WHERE member_id = :member_id AND status = 'open'"
BY_STATUS = "SELECT status, count(*) AS books FROM loans WHERE member_id = :member_id GROUP BY status"


def asked(toolbox: Toolbox) -> list[str]:
    """What users of a toolbox ask."""
    with closing(LiveToolbox(spec_of(toolbox))) as world:
        drawn = [OperationSampler(world, random.Random(seed), {}).question() for seed in range(120)]
    return [Request(each.phrase.template, each.phrase.slots).text() for each in drawn if each is not None]


def test_nobody_asks_for_all_by_a_tool_that_shows_some() -> None:
    whole, some = asked(LIBRARY), asked(with_tool("list_loans", returns=f"{OPEN_LOANS} ORDER BY loan_id"))
    for words in ("the number of loans of", "the loan of the member"):
        assert any(words in text for text in whole)
    assert not any("the number of loans" in text for text in some)
    assert not any("the loan of the member named Ida Holm" in text for text in some)
    assert any("loan" in text for text in some)


def test_nobody_asks_for_a_number_that_is_one_of_several() -> None:
    columns = {"status": "loans.status", "books": ""}
    tallied = msgspec.structs.replace(
        LIBRARY.tools[2], name="tally", returns=f"{BY_STATUS} ORDER BY status", columns=columns
    )
    alone = msgspec.structs.replace(tallied, returns=BY_STATUS.replace("status, count", "count").partition(" GROUP")[0])
    alone = msgspec.structs.replace(alone, columns={"books": ""})
    assert not any("the books of the member named Ida Holm" in text for text in asked(and_tool(tallied)))
    assert any("the books of the member named Ida Holm" in text for text in asked(and_tool(alone)))


def transfers(condition: str) -> Toolbox:
    """Accounts, and transfers between them, which a tool lists by ``condition``."""
    accounts = Table("accounts", "account", (Column("account_id", "integer"), Column("name", "text", unique=True)))
    between = Table(
        "transfers",
        "transfer",
        (
            Column("transfer_id", "integer"),
            Column("source_id", "integer", label="source account", references="accounts"),
            Column("target_id", "integer", references="accounts"),
            Column("amount", "integer", least=1, most=90),
            Column("memo", "text", unique=True),
        ),
    )
    names = ("rent", "food", "books", "travel")
    rows = [
        (number, 1 + number % 4, 1 + (number * 7 + number // 4) % 4, 10 + number, f"memo {number}")
        for number in range(1, 13)
    ]
    listing = f"SELECT transfer_id, amount, memo FROM transfers WHERE {condition} ORDER BY transfer_id"
    return Toolbox(
        about="You keep accounts.",
        tables=(accounts, between),
        rows={"accounts": list(enumerate(names, start=1)), "transfers": rows},
        tools=(
            Tool(
                name="find_account",
                description="Finds an account.",
                parameters=(Parameter("name", "accounts.name"),),
                returns="SELECT account_id FROM accounts WHERE name = :name ORDER BY account_id",
                columns={"account_id": "accounts.account_id"},
            ),
            Tool(
                name="list_transfers",
                description="Lists transfers.",
                parameters=(Parameter("account_id", "accounts.account_id"),),
                returns=listing,
                columns={
                    "transfer_id": "transfers.transfer_id",
                    "amount": "transfers.amount",
                    "memo": "transfers.memo",
                },
            ),
            Tool(
                name="find_transfer",
                description="Finds transfers by what was paid.",
                parameters=(Parameter("amount", "transfers.amount"),),
                returns="SELECT transfer_id, source_id, target_id FROM transfers WHERE amount = :amount ORDER BY 1",
                columns={
                    "transfer_id": "transfers.transfer_id",
                    "source_id": "transfers.source_id",
                    "target_id": "transfers.target_id",
                },
            ),
            Tool(
                name="rename",
                description="Gives an account another name.",
                parameters=(Parameter("account_id", "accounts.account_id"), Parameter("name", "accounts.name")),
                writes=("UPDATE accounts SET name = :name WHERE account_id = :account_id",),
                returns="SELECT account_id, name FROM accounts WHERE account_id = :account_id",
                columns={"account_id": "accounts.account_id", "name": "accounts.name"},
                request="rename {account_id} to {name}",
            ),
        ),
    )


def test_of_two_references_to_a_table_the_one_that_is_meant_is_named() -> None:
    out, both = asked(transfers("source_id = :account_id")), asked(transfers(":account_id IN (source_id, target_id)"))
    for texts in (out, both):
        assert not any("transfer of the account" in text or "the account of the transfer" in text for text in texts)
        assert any("the transfer whose source account is the account named" in text for text in texts)
    for words in (
        "number of transfers whose source account is the source account of the transfer with ",
        "number of transfers whose source account is the target of the transfer with ",
    ):
        assert any(words in text for text in out)
    assert not any("transfers whose target is" in text for text in out)
    assert not any("number of transfers" in text for text in both)
