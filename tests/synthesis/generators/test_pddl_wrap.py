"""Renamed planning environments: the same steps, states and rewards under other names, and no trace of the old ones."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import ApiAction, MessageAction
from agentmill.synthesis.environments import make
from agentmill.synthesis.environments.conformance import check_environment
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.environments.pddl.examples import EXAMPLES
from agentmill.synthesis.environments.pddl.reader import read_domain, read_problem
from agentmill.synthesis.environments.pddl.structure import domain_structure, task_structure
from agentmill.synthesis.generators.admission import admit_environment, admit_task, rejection
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.pddl_procedural.generator import propose
from agentmill.synthesis.generators.pddl_tasks.generator import PddlTaskGenerator
from agentmill.synthesis.generators.pddl_wrap.wrap import rename_action, wrap_environment, wrap_task
from agentmill.synthesis.generators.renaming.lexicon import all_invented, forms
from agentmill.synthesis.generators.renaming.renaming import Style, renaming_of, texts_in, words_of
from agentmill.synthesis.generators.wrapping import Wrapper, Wrapping
from tests.synthesis.generators.environments import ferry, inspiration
from tests.synthesis.generators.renamed import (
    GROUPED,
    NAMES,
    STYLES,
    Pair,
    remaining,
    renaming_of_pair,
    walk,
    wrapped,
    wrapped_pair,
)
from tests.synthesis.generators.test_renaming import own_words

pytestmark = pytest.mark.slow

TEXTS = ("lock", "cook a meal", "write a book", "launch a rocket", "plant crops", "repair software")
SPECS = [propose(inspiration(text, text), seed) for seed, text in enumerate(TEXTS)]
environment = partial(wrapped, Wrapper(wrap_environment, wrap_task))
renamed = partial(wrapped_pair, Wrapper(wrap_environment, wrap_task))


@pytest.fixture
async def pairs() -> list[Pair]:
    found = [(spec, task) for spec in SPECS async for task in PddlTaskGenerator().propose(spec, 3, 0)]
    made = [(spec, task) for spec, task in found if isinstance(task, Task)]
    return [*made, *EXAMPLES]


@pytest.mark.parametrize("wrapping", GROUPED, ids=lambda each: f"{each.rename}-{each.names}")
def test_random_walks_come_to_the_same(pairs: list[Pair], wrapping: Wrapping) -> None:
    legal = [walk(pair, renamed(pair, wrapping), rename_action, seed, 20) for pair in pairs for seed in range(3)]
    assert len(legal) >= 45
    assert sum(legal) > 250


@pytest.mark.parametrize("style", STYLES)
def test_solutions_hold_and_nothing_remains_of_the_old_names(pairs: list[Pair], style: Style) -> None:
    own = own_words("pddl")
    for pair in pairs:
        spec, task = new = renamed(pair, Wrapping(rename=style))
        renaming = renaming_of_pair(new)
        old = {form for word in renaming.words for form in forms(word)}
        assert remaining(old, new, own) == set()
        domain = read_domain(pair[0].source)
        named = [*(action.name for action in domain.actions), *(name for name, _ in domain.types)]
        named += [item.name for action in domain.actions for item in action.parameters]
        assert words_of(named) <= old
        if pair[1].gold:
            assert rejection(admit_task(task, spec)[0]) is None
            assert task.max_turns == pair[1].max_turns


def test_environments_are_the_same_up_to_names(pairs: list[Pair]) -> None:
    for spec, task in pairs:
        new, renamed_task = renamed((spec, task), Wrapping(rename="words"))
        old_domain, domain = read_domain(spec.source), read_domain(new.source)
        assert domain_structure(domain) == domain_structure(old_domain)
        problems = [
            read_problem(each.initial_state["problem"], of) for each, of in ((task, old_domain), (renamed_task, domain))
        ]
        assert task_structure(old_domain, problems[0]) == task_structure(domain, problems[1])
        assert new.structure_digest == spec.structure_digest
        assert renamed_task.structure_digest == task.structure_digest
        old_names = {action.name for action in old_domain.actions}
        assert not old_names & {action.name for action in domain.actions}
        assert len({action.name for action in domain.actions}) == len(old_names)


@pytest.mark.parametrize(
    ("pair", "style"), [*zip(EXAMPLES, STYLES, strict=True)], ids=[spec.environment_id for spec, _ in EXAMPLES]
)
def test_renamed_examples_conform(pair: Pair, style: Style) -> None:
    spec, task = renamed(pair, Wrapping(rename=style))
    assert [finding for finding in check_environment(spec, task) if not finding.passed] == []


async def test_tasks_are_proposed_in_renamed_environments() -> None:
    for spec in [*SPECS, ferry()]:
        new = environment(spec, Wrapping(rename="words"))
        assert rejection(admit_environment(new)) is None
        tasks = [task async for task in PddlTaskGenerator().propose(new, 2, 0)]
        assert all(isinstance(task, Task) for task in tasks)
        assert (
            not words_of([spec.parameters["problems"].get("example", "")])
            & {*renaming_of(new.lineage).words}
            & {*texts_in(new.parameters)}
        )


def test_what_is_renamed_depends_on_names() -> None:
    pair = EXAMPLES[0]
    old = make(pair[0]).tools
    made = {names: make(environment(pair[0], Wrapping(rename="words", names=names))).tools for names in NAMES}
    shown = {
        names: ([tool.name for tool in tools], [*tools[0].parameters["properties"]]) for names, tools in made.items()
    }
    before = [tool.name for tool in old], [*old[0].parameters["properties"]]
    assert shown["actions"][1] == before[1]
    assert shown["objects"][0] == before[0]
    assert not {*shown["actions"][0]} & {*before[0]}
    assert not {*shown["objects"][1]} & {*before[1]}
    assert not {*shown["all"][0], *shown["all"][1]} & {*before[0], *before[1]}


def test_seeds_give_other_names_and_a_seed_the_same() -> None:
    made = [environment(SPECS[1], Wrapping(rename="words"), seed) for seed in (0, 1, 2, 0)]
    assert made[0] == made[3]
    assert len({spec.source for spec in made}) == len({spec.environment_id for spec in made}) == 3


def test_lineage_holds_what_undoes_it(pairs: list[Pair]) -> None:
    old_spec, old_task = EXAMPLES[0]
    spec, task = renamed((old_spec, old_task), Wrapping(rename="words"), 4)
    assert spec.lineage
    assert (spec.lineage.operator, spec.lineage.parents, spec.lineage.seed) == ("wrap_env", ["pddl-warehouse"], 4)
    assert spec.lineage.notes["wrapping"] == {"rename": "words"}
    assert task.lineage
    assert (task.lineage.parents, task.environment_id) == (["pddl-warehouse-tidy"], spec.environment_id)
    back = renaming_of_pair((spec, task)).inverse()
    assert back.text(task.instruction) == old_task.instruction
    assert "crate" in task.lineage.notes["renaming"]["words"]
    assert "crate" in spec.lineage.notes["renaming"]["words"]
    assert "rob" not in spec.lineage.notes["renaming"]["words"]


def test_denials_stay_sentences() -> None:
    spec, _ = renamed(EXAMPLES[0], Wrapping(rename="symbols"))
    texts = spec.parameters["denial_text"]
    carried = renaming_of(spec.lineage).text("carry")
    assert [text for text in texts.values() if f"does not {carried}" in text] != []


def test_single_letters_are_renamed_where_they_are_no_words() -> None:
    spec, task = EXAMPLES[1]
    text = task.initial_state["problem"].replace("red", "a").replace("green", "b1")
    lettered = msgspec.structs.replace(
        task, initial_state={"problem": text}, instruction="Build a tower: b1 on blue, and blue on a."
    )
    new, renamed_task = renamed((spec, lettered), Wrapping(rename="words"))
    renaming = renaming_of_pair((new, renamed_task))
    assert renaming.kept == ("a",)
    assert {item.name for item in read_domain(new.source).actions[0].parameters} == {f"?{renaming.identifiers['x']}"}
    assert renamed_task.instruction.endswith(" on a.")
    assert "b1" not in renamed_task.instruction
    assert walk((spec, lettered), (new, renamed_task), rename_action, 0, 15)


def test_names_without_a_synonym_get_some_name() -> None:
    source = EXAMPLES[1][0].source.replace("unstack", "dezorple").replace("put-down", "undo-up")
    parameters = {**EXAMPLES[1][0].parameters}
    parameters["action_text"] = {
        "pick-up": "pick up {0}",
        "undo-up": "put down {0}",
        "stack": "stack {0} on {1}",
        "dezorple": "dezorple {0} from {1}",
    }
    spec = msgspec.structs.replace(EXAMPLES[1][0], source=source, parameters=parameters)
    for style in STYLES:
        new, task = renamed((spec, EXAMPLES[1][1]), Wrapping(rename=style))
        name = renaming_of(new.lineage).words["dezorple"]
        assert (name in {*all_invented()}) == (style == "symbols")
        assert f"{name} {{0}} from {{1}}" in new.parameters["action_text"].values()
        assert walk((spec, EXAMPLES[1][1]), (new, task), rename_action, 1, 15)


def test_renamed_twice_no_old_name_comes_back() -> None:
    for seed in range(6):
        first = renamed(EXAMPLES[0], Wrapping(rename="words"), seed)
        second = renamed(first, Wrapping(rename="words"), seed + 1)
        one, two = renaming_of_pair(first), renaming_of_pair(second)
        assert not {*one.words} & {*two.words.values()}
        assert walk(first, second, rename_action, seed, 15)


def test_commands_and_strange_actions_of_a_solution_are_mapped() -> None:
    renaming = renaming_of(environment(EXAMPLES[0][0], Wrapping(rename="words")).lineage)
    moved = rename_action(MessageAction(content="let rob lift crate1 in depot"), renaming)
    assert isinstance(moved, MessageAction)
    assert "lift" not in moved.content
    assert rename_action(ApiAction(function="lift", kwargs={"p": 3}), renaming) != ApiAction(
        function="lift", kwargs={"p": 3}
    )


def test_what_cannot_be_renamed_says_why() -> None:
    spec, task = EXAMPLES[0]
    made = wrap_environment(spec, Wrapping(rename="words", twins=2, hints=True), 0)
    assert isinstance(made, GenerationError)
    assert (made.reason, "`twins`, `hints`" in made.detail) == ("no_wrapper", True)
    with pytest.raises(EnvError, match="pddl-warehouse"):
        wrap_environment(msgspec.structs.replace(spec, source="(define (domain d))"), Wrapping(rename="words"), 0)
    new = environment(spec, Wrapping(rename="words"))
    broken = msgspec.structs.replace(task, initial_state={})
    with pytest.raises(EnvError, match="pddl-warehouse-tidy"):
        wrap_task(broken, new, Wrapping(rename="words"), 0)
    wrong = [ApiAction(function="lift", kwargs={"r": "rob", "c": "crate1", "p": "dock"})]
    rejected = wrap_task(msgspec.structs.replace(task, gold=wrong), new, Wrapping(rename="words"), 0)
    assert isinstance(rejected, GenerationError)
    assert rejected.reason == "gold_rejected"


@pytest.mark.parametrize("style", STYLES)
def test_environments_have_names_of_their_own(style: Style) -> None:
    """Else a word would mean the same in all of them."""
    twins = [msgspec.structs.replace(SPECS[0], environment_id=name) for name in ("one", "two")]
    first, second = (renaming_of(environment(twin, Wrapping(rename=style)).lineage).words for twin in twins)
    assert first.keys() == second.keys()
    same = [word for word in first if first[word] == second[word]]
    assert len(same) < len(first) / 2
