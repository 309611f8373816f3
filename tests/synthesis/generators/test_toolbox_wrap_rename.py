"""Renamed toolboxes: the same calls, rows and rewards under other names, and no trace of the old ones."""

from __future__ import annotations

import json
from functools import partial

import msgspec
import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import ApiAction, CodeAction
from agentmill.synthesis.environments import make
from agentmill.synthesis.environments.conformance import check_environment
from agentmill.synthesis.environments.toolbox.goal import Goal
from agentmill.synthesis.environments.toolbox.structure import toolbox_structure
from agentmill.synthesis.environments.toolbox.toolbox import Column, Parameter, Table, Tool, read_toolbox
from agentmill.synthesis.environments.toolbox.user import Request, Slot
from agentmill.synthesis.generators.admission import admit_environment, admit_task, rejection
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.renaming.lexicon import forms
from agentmill.synthesis.generators.renaming.renaming import Renaming, Style, renaming_of, words_of
from agentmill.synthesis.generators.toolbox_procedural.generator import propose
from agentmill.synthesis.generators.toolbox_tasks.generator import ToolboxTaskGenerator
from agentmill.synthesis.generators.toolbox_wrap.rename import _renamed, rename_action, rename_task, toolbox_renaming
from agentmill.synthesis.generators.toolbox_wrap.wrap import wrap_environment, wrap_task
from agentmill.synthesis.generators.wrapping import Wrapper, Wrapping
from tests.synthesis.environments.toolbox.boxes import (
    LIBRARY_SPEC,
    LIBRARY_TASK,
    WRAPPED_SPEC,
    WRAPPED_TASK,
    and_tool,
    call,
    spec_of,
)
from tests.synthesis.generators.environments import inspiration
from tests.synthesis.generators.renamed import GROUPED, NAMES, STYLES, Pair, remaining, walk, wrapped, wrapped_pair
from tests.synthesis.generators.test_renaming import own_words

pytestmark = pytest.mark.slow

TEXTS = ("lock", "read a book", "a patient", "a music concert", "plant crops")
SPECS = [propose(inspiration(text, text), seed) for seed, text in enumerate(TEXTS)]
environment = partial(wrapped, Wrapper(wrap_environment, wrap_task))
renamed = partial(wrapped_pair, Wrapper(wrap_environment, wrap_task))
LIBRARY: Pair = (LIBRARY_SPEC, LIBRARY_TASK)


@pytest.fixture
async def pairs() -> list[Pair]:
    found = [(spec, task) for spec in SPECS async for task in ToolboxTaskGenerator().propose(spec, 2, 0)]
    return [*[(spec, task) for spec, task in found if isinstance(task, Task)], LIBRARY]


@pytest.mark.parametrize("wrapping", GROUPED, ids=lambda each: f"{each.rename}-{each.names}")
def test_random_walks_come_to_the_same(pairs: list[Pair], wrapping: Wrapping) -> None:
    legal = [walk(pair, renamed(pair, wrapping), rename_action, seed, 8) for pair in pairs for seed in range(3)]
    assert len(legal) >= 30
    assert sum(legal) > 100


@pytest.mark.parametrize("style", STYLES)
def test_solutions_hold_and_nothing_remains_of_the_old_names(pairs: list[Pair], style: Style) -> None:
    own = own_words("toolbox")
    for pair in pairs:
        spec, task = new = renamed(pair, Wrapping(rename=style))
        old = {form for word in renaming_of(spec.lineage).words for form in forms(word)}
        assert remaining(old, new, own) == set()
        toolbox = read_toolbox(pair[0].source)
        named = [each.name for tool in toolbox.tools for each in (tool, *tool.parameters)]
        named += [column.name for table in toolbox.tables for column in table.columns]
        assert {word.lower() for word in words_of([*named, *(table.noun for table in toolbox.tables)])} <= old
        found = [rejection(admit_task(each, of)[0]) for of, each in (pair, new)]
        assert (found[0] and found[0].name) == (found[1] and found[1].name)
        assert (task.max_turns, task.structure_digest) == (pair[1].max_turns, pair[1].structure_digest)
        for each, between in zip(task.gold or [], pair[1].gold or [], strict=True):
            assert each == rename_action(between, renaming_of(spec.lineage))


def test_environments_are_the_same_up_to_names() -> None:
    for spec in SPECS:
        new = environment(spec, Wrapping(rename="words"))
        old_toolbox, toolbox = read_toolbox(spec.source), read_toolbox(new.source)
        assert toolbox_structure(toolbox) == toolbox_structure(old_toolbox) == new.structure_digest
        assert rejection(admit_environment(new)) is None
        assert not {tool.name for tool in toolbox.tools} & {tool.name for tool in old_toolbox.tools}
        assert len({tool.name for tool in toolbox.tools}) == len(old_toolbox.tools)
        assert not {table.name for table in toolbox.tables} & {table.name for table in old_toolbox.tables}


@pytest.mark.parametrize("style", STYLES)
def test_renamed_examples_conform(style: Style) -> None:
    spec, task = renamed(LIBRARY, Wrapping(rename=style))
    assert [finding for finding in check_environment(spec, task) if not finding.passed] == []


def test_what_is_renamed_depends_on_names() -> None:
    made = {
        names: read_toolbox(environment(LIBRARY_SPEC, Wrapping(rename="words", names=names)).source) for names in NAMES
    }
    old = read_toolbox(LIBRARY_SPEC.source)
    lend = {names: toolbox.tools[3] for names, toolbox in made.items()}
    verb, _, noun = lend["actions"].name.partition("_")
    assert (verb != "lend", noun) == (True, "book")
    assert [each.name for each in lend["actions"].parameters] == ["member_id", "book_id"]
    verb, _, noun = lend["objects"].name.partition("_")
    assert (verb, noun != "book") == ("lend", True)
    assert not {each.name for each in lend["objects"].parameters} & {"member_id", "book_id"}
    assert made["actions"].tables[1] == old.tables[1]
    assert not {"book", "lend"} & {*lend["all"].name.split("_")}
    values = [row[1] for row in made["objects"].rows[made["objects"].tables[1].name]]
    assert not {*values} & {"River Stones", "The Long Winter", "Maps of Salt"}
    assert str(values[1]).startswith("The ")


def test_seeds_give_other_names_and_a_seed_the_same() -> None:
    made = [environment(SPECS[1], Wrapping(rename="words"), seed) for seed in (0, 1, 2, 0)]
    assert made[0] == made[3]
    assert len({spec.source for spec in made}) == len({spec.environment_id for spec in made}) == 3


def test_lineage_holds_what_undoes_it() -> None:
    spec, task = renamed(LIBRARY, Wrapping(rename="words"), 3)
    assert spec.lineage
    assert (spec.lineage.parents, spec.lineage.seed) == ([LIBRARY_SPEC.environment_id], 3)
    assert spec.lineage.notes["wrapping"] == {"rename": "words"}
    assert task.lineage
    assert (task.lineage.parents, task.environment_id) == ([LIBRARY_TASK.task_id], spec.environment_id)
    back = renaming_of(spec.lineage).inverse()
    assert back.text(task.instruction) == LIBRARY_TASK.instruction
    assert rename_task(task, back).goal == LIBRARY_TASK.goal
    assert json.loads(back.text(spec.source))["tools"] == json.loads(LIBRARY_SPEC.source)["tools"]


def test_rename_combines_with_the_other_wrappers(pairs: list[Pair]) -> None:
    wrapping = Wrapping(
        twins=3, distractors=3, policy=3, hidden=1, faults=0.3, hints=True, milestones=True, rename="words"
    )
    made = 0
    for pair in pairs[:-1]:
        spec = environment(pair[0], wrapping)
        task = wrap_task(pair[1], spec, wrapping, 0)
        if isinstance(task, GenerationError):
            assert task.reason == "policy_forbids_a_part"
            continue
        made += 1
        assert rejection(admit_task(task, spec)[0]) is None
        assert spec.parameters == {"hints": True, "milestones": True, "faults": 0.3, "user": True}
        assert spec.lineage
        twins = {twin for named in spec.lineage.notes["twins"].values() for twin in named}
        assert twins < {tool.name for tool in make(spec).tools}
        assert {*task.goal.get("forbidden", [])} <= twins
        plain = wrap_environment(pair[0], wrapping.without_rename(), 0)
        assert isinstance(plain, EnvironmentSpec)
        assert len(make(plain).tools) == len(make(spec).tools)
    assert made > 5


def test_a_wrapped_environment_stays_wrapped_when_it_is_renamed() -> None:
    spec, task = renamed((WRAPPED_SPEC, WRAPPED_TASK), Wrapping(rename="words"))
    renaming = renaming_of(spec.lineage)
    assert spec.parameters == WRAPPED_SPEC.parameters
    assert task.goal["asked"] == WRAPPED_TASK.goal["asked"]
    assert task.goal["forbidden"] == [renaming.text("find_book")] != ["find_book"]
    assert "(ask me for the " in task.instruction
    assert task.gold
    asked = getattr(task.gold[0], "kwargs", {})["question"]
    assert asked == renaming.text("What is the name of the member?")
    assert getattr(task.gold[0], "function", "") == "ask_user"


def test_renamed_twice_no_old_name_comes_back() -> None:
    first = renamed(LIBRARY, Wrapping(rename="words"), 0)
    second = renamed(first, Wrapping(rename="words"), 1)
    one, two = renaming_of(first[0].lineage), renaming_of(second[0].lineage)
    assert not {*one.words} & {*two.words.values()}
    assert walk(first, second, rename_action, 0, 12)


def test_values_that_are_compared_by_their_letters_keep_their_names() -> None:
    tool = Tool(
        name="list_stone",
        description="Lists all books.",
        returns="SELECT title, copies FROM books ORDER BY title",
        columns={"title": "books.title", "copies": "books.copies"},
    )
    new = read_toolbox(environment(spec_of(and_tool(tool)), Wrapping(rename="words")).source)
    books = new.rows[new.tables[1].name]
    assert [row[1] for row in books] == ["River Stones", "The Long Winter", "Maps of Salt"]
    assert "Ida Holm" not in [row[1] for row in new.rows[new.tables[0].name]]
    assert new.tools[-1].returns.endswith(new.tables[1].columns[1].name)


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ("name LIKE :name", True),
        ("name < :name", True),
        ("length(name) > 3", True),
        ("name = :name", False),
        ("points < 3 AND name <> :name", False),
        ("max(points, 3) > 2 AND name = :name", False),
        ("coalesce(name, '') > 'dragon'", True),
        (":name < coalesce(name, '')", True),
        ("member_id IN (SELECT member_id FROM members ORDER BY coalesce(points, 0), name)", True),
        ("member_id IN (SELECT member_id FROM members ORDER BY points) AND name = :name", False),
        ("member_id IN (SELECT member_id FROM (SELECT member_id, name AS called FROM members ORDER BY called))", True),
    ],
)
def test_which_comparisons_are_by_letters(condition: str, kept: bool) -> None:
    tool = Tool(
        name="find_someone",
        description="Finds a member.",
        parameters=(Parameter(name="name", column="members.name"),),
        returns=f"SELECT member_id FROM members WHERE {condition} ORDER BY member_id",
        columns={"member_id": "members.member_id"},
    )
    renaming = toolbox_renaming(and_tool(tool), None, "words", "all", 0)
    assert ("Ida Holm" in renaming.kept) == kept
    assert ("ida" in renaming.words) != kept


def test_reasons_to_decline_are_no_words_of_the_toolbox() -> None:
    tool = Tool(
        name="list_tool", description="All.", returns="SELECT title FROM books", columns={"title": "books.title"}
    )
    renaming = toolbox_renaming(and_tool(tool), None, "words", "all", 0)
    assert "tool" in renaming.words
    declined = ApiAction(function="decline", kwargs={"reason": "no_tool"})
    assert rename_action(declined, renaming) == declined
    assert _renamed(Goal(decline="no_tool"), renaming) == Goal(decline="no_tool")


def test_what_a_hidden_detail_is_replaced_by_keeps_its_placeholder() -> None:
    request = Request("Print {a}.", {"a": Slot("label", "Oslo")}, ("a",))
    renamed = _renamed(request, Renaming(words={"label": "ponix", "me": "mux"}))
    assert renamed.text() == "Print (ask mux for the ponix)."


def test_references_to_new_rows_are_made_anew() -> None:
    notes = Table(
        name="notes",
        noun="note",
        columns=(
            Column(name="note_id", type="integer"),
            Column(name="loan_id", type="integer", references="loans"),
        ),
    )
    lend = read_toolbox(LIBRARY_SPEC.source).tool("lend_book")
    noting = msgspec.structs.replace(
        lend, name="lend_noted", writes=(*lend.writes, "INSERT INTO notes (loan_id) VALUES (:new_id)")
    )
    toolbox = and_tool(noting)
    rows = {**toolbox.rows, "notes": [(1, 1)]}
    toolbox = msgspec.structs.replace(toolbox, tables=(*toolbox.tables, notes), rows=rows)
    task = msgspec.structs.replace(
        LIBRARY_TASK,
        goal={},
        gold=[call("lend_noted", member_id=1, book_id=1), call("finish", answer="")],
    )
    live = make(spec_of(toolbox))
    live.reset(task, 0)
    for action in task.gold or []:
        live.step(action)
    # What is unwanted by an empty goal is what has to be wanted.
    facts = [json.loads(fact) for fact in live.check().evidence["unwanted"]]
    inserted = {fact[1]: [fact[2]] for fact in facts if fact[0] == "inserted"}
    updated = {fact[1]: {fact[2]: {fact[3]: fact[4]}} for fact in facts if fact[0] == "updated"}
    assert str(inserted["notes"][0]["loan_id"]).startswith("new loans ")
    wanted = msgspec.structs.replace(task, goal={"states": [{"inserted": inserted, "updated": updated}]})
    spec, renamed_task = renamed((spec_of(toolbox), wanted), Wrapping(rename="words"))
    assert "new loans" not in json.dumps(renamed_task.goal)
    assert {check.name: check.passed for check in admit_task(renamed_task, spec)[0].checks}["gold_rejected"]


def test_what_cannot_be_renamed_says_why() -> None:
    spec = environment(LIBRARY_SPEC, Wrapping(rename="words"))
    wrong = msgspec.structs.replace(LIBRARY_TASK, gold=[call("finish", answer="nothing")])
    rejected = wrap_task(wrong, spec, Wrapping(rename="words"), 0)
    assert isinstance(rejected, GenerationError)
    assert rejected.reason == "gold_rejected"
    code = CodeAction(language="python", content="lend")
    assert rename_action(code, Renaming({"lend": "advance"})) is code
