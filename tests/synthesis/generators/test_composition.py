"""Tasks made of several: played, checked by one goal, and refused where the parts do not go together."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing

import msgspec
import pytest

from agentmill.schemas.records.task import Difficulty, EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import ApiAction
from agentmill.synthesis.environments import make
from agentmill.synthesis.environments.toolbox.changes import changes
from agentmill.synthesis.environments.toolbox.environment import ToolboxEnvironment
from agentmill.synthesis.environments.toolbox.examples import LIBRARY
from agentmill.synthesis.environments.toolbox.goal import Answer, Goal
from agentmill.synthesis.generators.admission import admit_task, rejection
from agentmill.synthesis.generators.composition import (
    CompositionMaker,
    Draft,
    How,
    Wanted,
    summed_difficulty,
)
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.pddl_tasks.composition import PddlComposer
from agentmill.synthesis.generators.toolbox_tasks.composition import ToolboxComposer, entities
from agentmill.synthesis.generators.toolbox_tasks.live_toolbox import plain
from tests.synthesis.environments.examples import BLOCKS_SPEC

(LIBRARY_SPEC, RETURN), (WRAPPED_SPEC, HIDDEN) = ToolboxEnvironment.examples()


def call(function: str, **kwargs: str | int) -> ApiAction:
    return ApiAction(function=function, kwargs=kwargs)


def errand(task_id: str, request: str, *calls: ApiAction, answer: Answer | None = None, split: str = "train") -> Task:
    """A task of the library whose goal is what its calls come to."""
    with closing(ToolboxEnvironment(LIBRARY_SPEC)) as environment:
        environment.reset(Task(task_id="", environment_id="toolbox-library", instruction=""), 0)
        before = environment.database.contents()
        for each in calls:
            assert not environment.step(each).error
        state = changes(LIBRARY, before, environment.database.contents())
    answers = () if answer is None else (answer,)
    finish = call("finish", answer="" if answer is None else str(answer.value))
    return Task(
        task_id=task_id,
        environment_id="toolbox-library",
        instruction=f"Please {request}.",
        goal=plain(Goal(states=(state,), answers=answers)),
        gold=[*calls, finish],
        difficulty=Difficulty(level=0.2, plan_length=len(calls) + 1),
        split=split,
    )


WINTER_BACK = errand("a", "take back loan number 2", call("take_back", loan_id=2))
STONES_TO_MIA = errand("b", "lend book number 1 to member number 3", call("lend_book", member_id=3, book_id=1))
SALT_TO_MIA = errand("c", "lend book number 3 to member number 3", call("lend_book", member_id=3, book_id=3))
SALT_TO_JOE = errand("d", "lend book number 3 to member number 2", call("lend_book", member_id=2, book_id=3))
STONES_BACK = errand("e", "take back loan number 4", call("take_back", loan_id=4))
POINTS = errand(
    "f", "tell me the points of the member named Ida Holm", call("find_member", name="Ida Holm"), answer=Answer(12)
)
CITY = errand(
    "g",
    "tell me the city of the member named Joe Stern",
    call("find_member", name="Joe Stern"),
    answer=Answer("Graz", ("Lisbon", "Oslo")),
)
STATUS = errand(
    "h",
    "tell me the status of loan number 2 of member number 2",
    call("list_loans", member_id=2),
    answer=Answer("open", ("returned",)),
)
ERRANDS = [WINTER_BACK, STONES_TO_MIA, SALT_TO_MIA, POINTS, CITY, STATUS]


def composed(*parts: Task, how: How = "sequence", seed: int = 0) -> Draft:
    with closing(ToolboxComposer(LIBRARY_SPEC, parts)) as composer:
        return composer.compose(how, parts, random.Random(seed))


def refusal(*parts: Task) -> str:
    with pytest.raises(GenerationError) as caught:
        composed(*parts)
    return caught.value.reason


def test_a_sequence_asks_for_all_parts_in_order_and_its_goal_is_what_they_come_to() -> None:
    draft = composed(CITY, WINTER_BACK, POINTS)
    assert draft.instruction == (
        "Please tell me the city of the member named Joe Stern. Then take back loan number 2. Then tell me the points"
        " of the member named Ida Holm."
    )
    assert [each.function for each in draft.gold if isinstance(each, ApiAction)] == [
        "find_member",
        "take_back",
        "find_member",
        "finish",
    ]
    assert draft.gold[-1] == call("finish", answer="Graz; 12")
    assert [each["value"] for each in draft.goal["answers"]] == ["Graz", 12]
    assert draft.goal["states"] == [
        {"updated": {"books": {"2": {"copies": 1}}, "loans": {"2": {"status": "returned"}}}}
    ]


def test_the_composed_goal_refuses_each_part_alone() -> None:
    draft = composed(CITY, WINTER_BACK)
    task = Task("t", "toolbox-library", draft.instruction, draft.initial_state, draft.goal, gold=draft.gold)
    assert rejection(admit_task(task, LIBRARY_SPEC)[0]) is None
    with closing(make(LIBRARY_SPEC)) as environment:
        for part in (CITY, WINTER_BACK):
            environment.reset(task, 0)
            for action in part.gold or []:
                environment.step(action)
            assert not environment.check().passed


def test_look_ups_are_not_repeated_and_changes_are() -> None:
    again = errand("i", "give the points of Ida Holm", call("find_member", name="Ida Holm"), STATUS.gold[0])  # type: ignore[index, arg-type]
    functions = [each.function for each in composed(POINTS, again).gold if isinstance(each, ApiAction)]
    assert functions == ["find_member", "list_loans", "finish"]


def test_reorder_lists_the_parts_otherwise_than_they_are_done() -> None:
    draft = composed(CITY, WINTER_BACK, how="reorder")
    assert draft.instruction.splitlines() == [
        "Do the following in the order (b), (a), and give answers in that order, too.",
        "(a) Please take back loan number 2.",
        "(b) Please tell me the city of the member named Joe Stern.",
    ]
    sequence = composed(CITY, WINTER_BACK)
    assert (draft.gold, draft.goal) == (sequence.gold, sequence.goal)
    assert draft.structure != sequence.structure
    three = {composed(CITY, WINTER_BACK, POINTS, how="reorder", seed=seed).instruction[:44] for seed in range(30)}
    assert len(three) == 5
    assert "Do the following in the order (a), (b), (c)"[:44] not in three


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ((SALT_TO_MIA, SALT_TO_JOE), "call_refused"),  # there is one copy
        ((STONES_BACK, STONES_TO_MIA), "undone"),  # the number of copies is what it was
        ((WINTER_BACK, STATUS), "other_answer"),
        ((CITY, CITY), "same_answer"),
        ((POINTS, errand("j", "take back loan number 12", STATUS.gold[0])), "answer_shown"),  # type: ignore[index, arg-type]
    ],
)
def test_parts_that_do_not_go_together_are_refused(parts: Sequence[Task], reason: str) -> None:
    assert refusal(*parts) == reason


def test_the_other_order_may_go() -> None:
    assert composed(STATUS, WINTER_BACK).goal["answers"] == STATUS.goal["answers"]


def test_recombined_parts_are_about_one_row() -> None:
    assert entities(STONES_TO_MIA, LIBRARY) == {("members", 3), ("books", 1)}
    assert entities(POINTS, LIBRARY) == {("members.name", "Ida Holm")}
    with closing(ToolboxComposer(LIBRARY_SPEC, ERRANDS)) as composer:
        assert composer.next_parts("recombine", [STONES_TO_MIA]) == [STONES_TO_MIA, SALT_TO_MIA]
        assert composer.next_parts("sequence", [STONES_TO_MIA]) == ERRANDS
    draft = composed(STONES_TO_MIA, SALT_TO_MIA, how="recombine")
    assert draft.notes == {"shared": ["members 3"]}


def test_slots_of_requests_are_numbered_through() -> None:
    """Parts with the same names of slots keep their own values."""
    drawn = [
        msgspec.structs.replace(
            part,
            initial_state={"request": {"template": template, "slots": {"s1": {"label": "x", "text": text}}}},
            instruction=template.replace("{s1}", text),
        )
        for part, template, text in (
            (CITY, "Please tell me the city of the member named {s1}.", "Joe Stern"),
            (POINTS, "Please tell me the points of the member named {s1}.", "Ida Holm"),
        )
    ]
    draft = composed(*drawn)
    assert draft.initial_state["request"]["slots"] == {
        "s1": {"label": "x", "text": "Joe Stern"},
        "s2": {"label": "x", "text": "Ida Holm"},
    }
    assert draft.instruction == composed(CITY, POINTS).instruction


def test_details_that_are_kept_back_and_several_ends_are_no_parts() -> None:
    with closing(ToolboxComposer(WRAPPED_SPEC, [HIDDEN])) as composer:
        assert composer.unfit(HIDDEN) == "hidden_details"
        assert composer.unfit(RETURN) is None
        assert composer.unfit(msgspec.structs.replace(RETURN, goal={"states": [{}, {}]})) == "several_ends"
        assert composer.unfit(msgspec.structs.replace(RETURN, goal={"states": 1})) == "broken_goal"
        assert composer.unfit(msgspec.structs.replace(RETURN, goal={"decline": "no_tool"})) == "declined"


def blocks(task_id: str, *goal: str, objects: str = "red green blue") -> Task:
    """Red lies on green, and blue by itself; other objects are nowhere."""
    problem = (
        f"(define (problem p) (:domain blocks) (:objects {objects}) (:init (on red green) (on-table green)"
        f" (on-table blue) (clear red) (clear blue) (hand-empty)) (:goal (and {' '.join(goal)})))"
    )
    gold = [ApiAction(function="unstack", kwargs={})]
    return Task(task_id, "pddl-blocks", "", {"problem": problem}, gold=gold, split="train")


def stacked(*parts: Task) -> Draft:
    composer = PddlComposer(BLOCKS_SPEC, parts)
    assert [composer.unfit(part) for part in parts] == [None] * len(parts)
    return composer.compose("sequence", parts, random.Random(0))


def test_a_later_goal_is_reached_from_where_the_earlier_one_was() -> None:
    draft = stacked(blocks("a", "(on-table red)"), blocks("b", "(on green blue)"))
    assert draft.instruction == "Goal: red is on the table and green is on blue."
    done = [(each.function, *each.kwargs.values()) for each in draft.gold if isinstance(each, ApiAction)]
    assert done == [("unstack", "red", "green"), ("put-down", "red"), ("pick-up", "green"), ("stack", "green", "blue")]
    task = Task("t", "pddl-blocks", draft.instruction, draft.initial_state, gold=draft.gold)
    report, gold, _ = admit_task(task, BLOCKS_SPEC)
    assert (rejection(report), gold) == (None, draft.gold)


@pytest.mark.parametrize(
    ("goals", "reason"),
    [
        (("(on red blue)", "(clear blue)"), "undone"),
        (("(held red)", "(clear green)"), "nothing_left"),
    ],
)
def test_goals_that_do_not_go_together_are_refused(goals: tuple[str, str], reason: str) -> None:
    with pytest.raises(GenerationError) as caught:
        stacked(*(blocks(goal, goal) for goal in goals))
    assert caught.value.reason == reason


def test_goals_about_objects_that_the_first_part_lacks_are_refused() -> None:
    white = blocks("b", "(clear white)", objects="red green blue white")
    with pytest.raises(GenerationError, match="white") as caught:
        stacked(blocks("a", "(on-table red)"), white)
    assert caught.value.reason == "other_objects"
    unreadable = Task("t", "pddl-blocks", "", {})
    assert PddlComposer(BLOCKS_SPEC, [unreadable]).unfit(unreadable) == "broken_problem"


def made(
    tasks: Sequence[Task],
    n: int,
    *how: How,
    spec: EnvironmentSpec = LIBRARY_SPEC,
    parts: tuple[int, int] = (2, 2),
    tries: int = 20,
    seed: int = 0,
) -> tuple[list[Task], list[GenerationError], dict[str, int]]:
    maker = CompositionMaker(
        ToolboxComposer, spec, tasks, Wanted(how=how or ("sequence",), parts=parts, tries=tries), seed
    )
    found = list(maker.propose(n))
    assert len(found) == n
    tasks_made = [each for each in found if isinstance(each, Task)]
    return tasks_made, [each for each in found if isinstance(each, GenerationError)], dict(maker.counts)


def test_composed_tasks_differ_are_admitted_and_carry_their_parts() -> None:
    tasks, failures, counts = made(ERRANDS, 6, "sequence", "reorder")
    assert failures == []
    assert [task.lineage.notes["how"] for task in tasks if task.lineage] == ["sequence", "reorder"] * 3
    assert len({task.structure_digest for task in tasks}) == len({task.task_id for task in tasks}) == 6
    known = {task.task_id: task for task in ERRANDS}
    for task in tasks:
        assert task.lineage is not None
        parts = [known[each] for each in task.lineage.parents]
        assert len(parts) == 2
        assert all(part.instruction.removeprefix("Please ") in task.instruction for part in parts)
        assert task.difficulty == Difficulty(level=0.3333, plan_length=len(task.gold or []))
        assert rejection(admit_task(task, LIBRARY_SPEC)[0]) is None
    assert counts.keys() <= {"other_answer", "answer_shown", "guess_accepted", "empty_answer_accepted", "repeated"}


def test_parts_are_of_one_split_and_their_order_in_tables_does_not_matter() -> None:
    tasks = [
        msgspec.structs.replace(task, split=split)
        for task, split in zip(
            ERRANDS, ["train", "train", "train", "held_out_tasks", "held_out_tasks", "train"], strict=True
        )
    ]
    split_of = {task.task_id: task.split for task in tasks}
    found, _, _ = made(tasks, 8)
    assert {task.split for task in found} == {"train", "held_out_tasks"}
    for task in found:
        assert task.lineage is not None
        assert {split_of[each] for each in task.lineage.parents} == {task.split}
    assert made(tasks[::-1], 8)[0] == found
    assert [task.task_id for task in made(tasks, 8, seed=1)[0]] != [task.task_id for task in found]


def test_tasks_that_two_seeds_come_to_are_equal() -> None:
    one, two = ({task.task_id: task for task in made(ERRANDS, 8, seed=seed)[0]} for seed in (0, 1))
    both = one.keys() & two.keys()
    assert both
    assert all(one[task_id] == two[task_id] for task_id in both)


def test_parts_tries_and_what_is_refused_are_counted() -> None:
    tasks, failures, counts = made([WINTER_BACK, CITY], 5)
    assert len(tasks) == 2, "in either order"
    assert {each.reason for each in failures} == {"too_few_tasks"}
    assert "lower n to 2 or change parts or how" in str(failures[0])
    assert counts["repeated"] >= 100
    assert made([WINTER_BACK, CITY], 5, tries=1)[2].get("repeated", 0) <= 10
    _, failures, counts = made([WINTER_BACK, CITY], 1, parts=(3, 3))
    assert (len(failures), set(counts)) == (1, {"no_parts"})
    unsolved = msgspec.structs.replace(POINTS, gold=None)
    assert made([unsolved, SALT_TO_MIA, CITY], 1)[2] == {"unfit.no_solution": 1}
    long, _, _ = made(ERRANDS, 3, parts=(3, 3))
    assert {len(task.lineage.parents) for task in long if task.lineage} == {3}


def test_tasks_of_a_broken_environment_fail_alike() -> None:
    broken = msgspec.structs.replace(LIBRARY_SPEC, source="{}")
    assert [each.reason for each in made(ERRANDS, 2, spec=broken)[1]] == ["broken_environment"] * 2


def test_efforts_add_up() -> None:
    half, quarter = Difficulty(level=0.5), Difficulty(level=0.25)
    assert summed_difficulty([half, half], 7) == Difficulty(level=0.6667, plan_length=7)
    assert summed_difficulty([half, quarter], 7) == Difficulty(level=0.5714, plan_length=7)
    assert summed_difficulty([half, None], 7) is None
    assert summed_difficulty([half, Difficulty(level=1.0)], 7) == Difficulty(level=1.0, plan_length=7)
