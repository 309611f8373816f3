"""Wrapped toolboxes: what each wrapper adds, that solutions hold in it, and that its traps do not pay."""

from __future__ import annotations

import random

import msgspec
import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import ApiAction
from agentmill.synthesis.environments import make
from agentmill.synthesis.environments.conformance import check_environment
from agentmill.synthesis.environments.toolbox.database import Database
from agentmill.synthesis.environments.toolbox.environment import FAULT
from agentmill.synthesis.environments.toolbox.examples import LIBRARY
from agentmill.synthesis.environments.toolbox.toolbox import Parameter, Tool, read_toolbox
from agentmill.synthesis.environments.toolbox.user import Request, Slot, hideable, leaks, reply
from agentmill.synthesis.generators.admission import admit_environment, admit_task, rejection
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.toolbox_procedural.generator import propose
from agentmill.synthesis.generators.toolbox_tasks.generator import ToolboxTaskGenerator
from agentmill.synthesis.generators.toolbox_wrap.policy import LEVELS, with_policy
from agentmill.synthesis.generators.toolbox_wrap.twins import twin_kinds, with_twins
from agentmill.synthesis.generators.toolbox_wrap.wrap import wrap_environment, wrap_task
from agentmill.synthesis.generators.wrapping import Wrapping
from tests.synthesis.environments.toolbox.boxes import LIBRARY_TASK, call, spec_of
from tests.synthesis.generators.environments import inspiration

pytestmark = pytest.mark.slow

SPECS = [propose(inspiration(), seed) for seed in range(8)]
ALL = Wrapping(twins=3, distractors=5, policy=3, hidden=2, faults=0.3, hints=True, milestones=True)
HINTS = Wrapping(hints=True)
RENAMED = Wrapping(rename="words")
Pair = tuple[EnvironmentSpec, Task]


@pytest.fixture
async def tasks() -> list[Pair]:
    found = [(spec, task) for spec in SPECS async for task in ToolboxTaskGenerator().propose(spec, 6, 0)]
    made = [(spec, task) for spec, task in found if isinstance(task, Task)]
    return [(spec, task) for spec, task in made if rejection(admit_task(task, spec)[0]) is None]


def wrapped(pairs: list[Pair], wrapping: Wrapping) -> list[Pair]:
    specs = {spec.environment_id: wrap_environment(spec, wrapping, 0) for spec, _ in pairs}
    made = [
        (specs[spec.environment_id], wrap_task(task, specs[spec.environment_id], wrapping, 0)) for spec, task in pairs
    ]
    return [(spec, task) for spec, task in made if isinstance(task, Task)]


@pytest.mark.parametrize(
    "wrapping",
    [
        Wrapping(twins=3),
        Wrapping(distractors=5),
        Wrapping(hidden=2),
        Wrapping(faults=0.4),
        Wrapping(milestones=True),
        ALL,
    ],
)
def test_solutions_hold_in_every_wrapped_world(tasks: list[Pair], wrapping: Wrapping) -> None:
    pairs = wrapped(tasks, wrapping)
    assert len(pairs) >= (0.7 if wrapping.policy else 1.0) * len(tasks)
    assert [failed for spec, task in pairs if (failed := rejection(admit_task(task, spec)[0])) is not None] == []
    assert not {task.task_id for _, task in pairs} & {task.task_id for _, task in tasks}
    admitted = [spec for spec in SPECS if rejection(admit_environment(wrap_environment(spec, wrapping, 0))) is None]
    assert len(admitted) >= len(SPECS) - 3 * bool(wrapping.policy)


def test_a_world_behind_all_wrappers_conforms(tasks: list[Pair]) -> None:
    spec, task = wrapped(tasks, ALL)[0]
    assert [finding for finding in check_environment(spec, task) if not finding.passed] == []


def test_twins_do_not_do_what_is_wanted(tasks: list[Pair]) -> None:
    tried = 0
    for spec, task in wrapped(tasks, Wrapping(twins=9)):
        twins = spec.lineage.notes["twins"] if spec.lineage else {}
        for number, action in enumerate(task.gold or []):
            if isinstance(action, ApiAction) and action.function in twins:
                environment = make(spec)
                environment.reset(task, 0)
                (twin,) = twins[action.function]
                for other in task.gold or []:
                    environment.step(msgspec.structs.replace(action, function=twin) if other is action else other)
                assert not environment.check().passed, (twin, number)
                tried += 1
    assert tried > 20
    assert list(twin_kinds()) == ["preview", "deprecated", "filed"]


def test_hidden_details_are_in_no_text_until_they_are_asked_for(tasks: list[Pair]) -> None:
    pairs = wrapped(tasks, Wrapping(hidden=2))
    hidden = 0
    for spec, task in pairs:
        request = msgspec.convert(task.initial_state["request"], Request)
        assert task.instruction == request.text()
        assert leaks(task.instruction, request, ()) == []
        for name in request.hidden:
            said, asked = reply(request, f"What is the {request.slots[name].label}?")
            assert asked == [name]
            assert request.slots[name].text in said
            assert leaks(said, request, asked) == []
            hidden += 1
        impatient = [action for action in task.gold or [] if getattr(action, "function", "") != "ask_user"]
        environment = make(spec)
        environment.reset(task, 0)
        for action in impatient:
            environment.step(action)
        assert environment.check().passed == (not request.hidden)
    assert hidden > len(pairs)


def test_who_asks_for_everything_gets_nothing() -> None:
    slots = {
        "a": Slot("city", "Oslo"),
        "b": Slot("rank", "3"),
        "c": Slot("first name", "Ada"),
        "d": Slot("last name", "Ada"),
    }
    request = Request("{a} {b} {c} {d}", slots, ("a", "b", "c"))
    assert reply(request, "City, rank and name?")[1] == []
    assert reply(request, "Tell me everything.")[1] == []
    assert reply(request, "Which CITY, and which rank?")[1] == ["a", "b"]
    assert hideable(msgspec.structs.replace(request, hidden=())) == ["a", "b"]
    assert leaks("Ada lives in Oslo.", request, ["a"]) == ["c"]


@pytest.mark.parametrize("label", ["e-mail", "due-date", "price (EUR)", "shipping city"])
def test_whatever_can_be_hidden_can_be_asked_for(label: str) -> None:
    request = Request("Book {a}.", {"a": Slot(label, "Oslo")})
    assert hideable(request) == ["a"]
    assert reply(msgspec.structs.replace(request, hidden=("a",)), f"What is the {label}?")[1] == ["a"]
    assert hideable(Request("Book {a}.", {"a": Slot("?", "Oslo")})) == []


@pytest.mark.parametrize(
    "wrapping", [Wrapping(twins=3), Wrapping(hidden=2), Wrapping(faults=0.3), Wrapping(hints=True)]
)
def test_tasks_that_a_model_wrote_are_wrapped(tasks: list[Pair], wrapping: Wrapping) -> None:
    written = [(spec, msgspec.structs.replace(task, initial_state={})) for spec, task in tasks[:6]]
    assert len(wrapped(written, wrapping)) == 6


def test_faults_are_met_and_the_solution_tries_again(tasks: list[Pair]) -> None:
    pairs = wrapped(tasks, Wrapping(faults=0.4))
    longer = [(spec, task) for spec, task in pairs if len(set(map(str, task.gold or []))) < len(task.gold or [])]
    assert 0.3 * len(pairs) < len(longer)
    spec, task = longer[0]
    environment = make(spec)
    environment.reset(task, 0)
    told = [str(getattr(environment.step(action).observation, "content", "")) for action in task.gold or []]
    assert any(FAULT in text for text in told)


@pytest.mark.parametrize("level", LEVELS)
def test_policies_grow_with_their_level_and_are_rendered_from_their_rules(level: int) -> None:
    toolboxes = [with_policy(read_toolbox(spec.source), level, random.Random(0)) for spec in SPECS]
    for toolbox in toolboxes:
        assert 0 < len(toolbox.rules) <= 2 * level
        assert all(f"{rule.name}. {rule.text}" in toolbox.policy for rule in toolbox.rules)
    text = "\n".join(toolbox.policy for toolbox in toolboxes)
    assert ("unless" in text) == (level >= 2)
    assert ("Terms used above" in text) == (level >= 3)
    assert ("public holidays" in text or "cabinet" in text) == (level >= 4)


def test_what_a_rule_forbids_is_to_be_refused_by_its_name(tasks: list[Pair]) -> None:
    refusals = [
        (spec, task)
        for seed in range(4)
        for spec, task in wrapped(tasks, Wrapping(policy=4, faults=seed / 1000))
        if str((task.goal.get("answers") or [{"value": ""}])[0]["value"]).startswith("rule ")
    ]
    assert refusals
    for spec, task in refusals:
        environment = make(spec)
        environment.reset(task, 0)
        for action in (task.gold or [])[:-1]:
            environment.step(action)
        every = ", ".join(rule.name for rule in read_toolbox(spec.source).rules)
        guess = environment.snapshot()
        environment.step(call("finish", answer=every))
        assert environment.check().passed == (every == task.goal["answers"][0]["value"])
        environment.restore(guess)
        environment.step((task.gold or [])[-1])
        assert environment.check().passed


def test_who_refuses_need_not_ask_for_what_no_call_takes(tasks: list[Pair]) -> None:
    hidden = 0
    for seed in range(4):
        for _, task in wrapped(tasks, Wrapping(policy=4, hidden=2, faults=seed / 1000)):
            request = msgspec.convert(task.initial_state["request"], Request)
            calls = [action for action in task.gold or [] if isinstance(action, ApiAction)]
            taken = {str(value) for action in calls if action.function != "finish" for value in action.kwargs.values()}
            assert {request.slots[name].text for name in request.hidden} <= taken
            hidden += len(request.hidden)
    assert hidden


LOAN_KEY = "loans.loan_id"
MERGE = Tool(
    name="merge_loans",
    description="Merges two loans.",
    parameters=(Parameter(name="loan_id", column=LOAN_KEY), Parameter(name="other_loan_id", column=LOAN_KEY)),
    returns="SELECT 1 AS n",
    columns={"n": ""},
    writes=("DELETE FROM loans WHERE loan_id = :other_loan_id",),
    request="merge {loan_id} with {other_loan_id}",
)


def test_a_rule_about_a_table_holds_for_every_row_of_it_that_a_call_names() -> None:
    loans = LIBRARY.table("loans")
    optional = tuple(msgspec.structs.replace(each, optional=each.name == "status") for each in loans.columns)
    toolbox = msgspec.structs.replace(
        LIBRARY,
        tools=(MERGE,),
        tables=(*LIBRARY.tables[:2], msgspec.structs.replace(loans, columns=optional)),
        rows={**LIBRARY.rows, "loans": [(1, 1, 2, "open"), (2, 2, 2, "returned"), (3, 1, 3, None)]},
    )
    database = Database(toolbox)
    (rule,) = with_policy(toolbox, 1, random.Random(0)).rules
    bad, good = (1, 2) if "open" in rule.text else (2, 1)
    for pair, allowed in {(good, good): 1, (good, 3): 1, (good, bad): 0, (bad, good): 0, (bad, 3): 0}.items():
        arguments = {"loan_id": pair[0], "other_loan_id": pair[1]}
        assert database.holds(rule.query, arguments) == bool(allowed), pair


def test_a_rule_may_name_a_value_with_a_quote() -> None:
    loans = LIBRARY.table("loans")
    quoted = tuple(
        msgspec.structs.replace(each, values=("children's", "o'clock")) if each.name == "status" else each
        for each in loans.columns
    )
    toolbox = msgspec.structs.replace(
        LIBRARY,
        tools=(MERGE,),
        tables=(*LIBRARY.tables[:2], msgspec.structs.replace(loans, columns=quoted)),
        rows={**LIBRARY.rows, "loans": [(1, 1, 2, "children's"), (2, 2, 2, "o'clock")]},
    )
    database = Database(toolbox)
    for level in LEVELS:
        for rule in with_policy(toolbox, level, random.Random(0)).rules:
            database.holds(rule.query, {"loan_id": 1, "other_loan_id": 2})


def test_tools_are_no_twins_because_of_their_names() -> None:
    names = ("request_lend_book", "lend_book_v1")
    tools = [msgspec.structs.replace(LIBRARY.tool("lend_book"), name=name, request="") for name in names]
    toolbox = msgspec.structs.replace(LIBRARY, tools=(*LIBRARY.tools, *tools))
    assert with_twins(toolbox, 0, random.Random(0)) == (toolbox, {})
    made = wrap_task(LIBRARY_TASK, wrap_environment(spec_of(toolbox), HINTS, 0), HINTS, 0)
    assert isinstance(made, Task)
    assert "forbidden" not in made.goal


@pytest.mark.parametrize(
    ("first", "second", "replaced"),
    [
        (Wrapping(faults=0.5, milestones=True), HINTS, "milestones, faults"),
        (Wrapping(twins=9), HINTS, "twins"),
        (Wrapping(twins=9), Wrapping(twins=9), "twins"),
        (Wrapping(hidden=1), HINTS, "user"),
        (Wrapping(policy=2), HINTS, "policy"),
        (Wrapping(policy=1), Wrapping(policy=4), "policy"),
    ],
)
def test_wrappers_that_would_replace_earlier_ones_are_refused(first: Wrapping, second: Wrapping, replaced: str) -> None:
    spec = wrap_environment(SPECS[0], first, 0)
    assert isinstance(spec, EnvironmentSpec)
    for earlier in (spec, wrap_environment(spec, RENAMED, 1)):
        assert isinstance(earlier, EnvironmentSpec)
        made = wrap_environment(earlier, second, 0)
        assert isinstance(made, GenerationError)
        assert made.reason == "wrapped_already"
        assert f"{replaced} already" in str(made)
        assert isinstance(wrap_environment(earlier, RENAMED, 2), EnvironmentSpec)


def test_hidden_details_of_a_person_are_not_told_by_a_later_wrapper(tasks: list[Pair]) -> None:
    person = Wrapping(hidden=1, user="person")
    spec, task = next(pair for pair in wrapped(tasks, person) if pair[1].goal.get("user"))
    refused = wrap_environment(spec, HINTS, 0)
    assert isinstance(refused, GenerationError)
    assert "hidden already" in str(refused)
    renamed = wrap_environment(spec, RENAMED, 0)
    assert isinstance(renamed, EnvironmentSpec)
    found = wrap_task(task, renamed, RENAMED, 0)
    assert isinstance(found, Task)
    hints = wrap_environment(renamed, HINTS, 0)
    assert isinstance(hints, EnvironmentSpec)
    made = wrap_task(found, hints, HINTS, 0)
    assert isinstance(made, GenerationError)
    assert made.reason == "wrapped_already"


def test_wrappers_that_replace_nothing_come_one_after_the_other(tasks: list[Pair]) -> None:
    pairs = tasks[:4]
    for wrapping in (Wrapping(distractors=3), RENAMED, Wrapping(twins=2, hints=True)):
        pairs = wrapped(pairs, wrapping)
    assert len(pairs) == 4
    assert all(spec.parameters["hints"] for spec, _ in pairs)


def test_what_cannot_be_wrapped_says_why() -> None:
    spec = SPECS[0]
    task = Task(
        task_id="t",
        environment_id=spec.environment_id,
        instruction="Please do nothing.",
        initial_state={"request": {"template": "Please do nothing."}},
        goal={"answers": [{"value": 7}]},
        gold=[call("finish", answer="8")],
    )
    made = wrap_task(task, wrap_environment(spec, Wrapping(hints=True), 0), Wrapping(hints=True), 0)
    assert isinstance(made, GenerationError)
    assert made.reason == "gold_rejected"
    assert LIBRARY.rules == ()
