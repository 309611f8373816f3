"""Admission: sound worlds and tasks pass, and every defect is found under its own name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentmill.schemas.records.task import AdmissionReport, EnvironmentSpec, Lineage, Task
from agentmill.schemas.records.trajectory import ApiAction
from agentmill.synthesis.environments.gymnasium_text.examples import EXAMPLES as GAMES
from agentmill.synthesis.environments.pddl.planner import PlanLimits
from agentmill.synthesis.generators.admission import (
    AdmissionLimits,
    admit_environment,
    admit_task,
    environment_digest,
    rejection,
    task_digest,
)
from tests.synthesis.generators.environments import ferry, with_predicate

PROBLEM = """(define (problem p) (:domain ferry)
  (:objects north south - port taxi van - car)
  (:init {init})
  (:goal (and {goal})))"""
START = "(docked north) (parked taxi north) (parked van south)"


def ferry_task(goal: str = "(parked taxi south)", init: str = START, **fields: Any) -> Task:
    values = {"initial_state": {"problem": PROBLEM.format(init=init, goal=goal)}, **fields}
    return Task(task_id="t1", environment_id="ferry", instruction="Goal: the taxi is parked at south.", **values)


def reason(report: AdmissionReport) -> str | None:
    failed = rejection(report)
    return failed.name if failed else None


def move(function: str, **arguments: str) -> ApiAction:
    return ApiAction(function=function, kwargs=arguments)


def test_seed_world_of_the_prompt_is_admitted_with_every_check_passed() -> None:
    report = admit_environment(ferry())
    assert [check.name for check in report.checks if check.passed] == [
        "syntax",
        "wording",
        "unused_predicate",
        "no_probe",
        "ambiguous_text",
        "noop_action",
        "unreachable_action",
        "unsolvable_probe",
    ]
    assert reason(report) is None


TEXTS = ferry().parameters["action_text"]
DEFECTS: dict[str, EnvironmentSpec] = {
    "syntax": ferry({"(docked ?from)": "(dockd ?from)"}),
    "wording": ferry(action_text={name: text for name, text in TEXTS.items() if name != "sail"}),
    "unused_predicate": with_predicate(
        ferry({"(full))\n  (:action": "(full) (rainy))\n  (:action"}), "rainy", "it rains"
    ),
    "no_probe": ferry(problems={"example": PROBLEM.format(init="(docked moon)", goal="(full)")}),
    "ambiguous_text": ferry(action_text={**TEXTS, "debark": "board {0} at {1}"}),
    "noop_action": ferry({"(and (docked ?from) (not (docked ?to)))": "(docked ?from)"}),
    "unreachable_action": ferry({"(docked ?p) (aboard ?c))": "(docked ?p) (aboard ?c) (parked ?c ?p))"}),
    "unsolvable_probe": ferry(problems={"example": PROBLEM.format(init=START, goal="(full)"), "goals": {"boarded": 1}}),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_defects_of_worlds_are_found_by_name(defect: str) -> None:
    report = admit_environment(DEFECTS[defect])
    failed = rejection(report)
    assert failed is not None
    assert failed.name == defect
    assert failed.detail
    assert report.checks[-1] == failed


def test_two_facts_that_read_alike_are_ambiguous() -> None:
    texts = {**ferry().parameters["predicate_text"], "full": "the ferry is at north"}
    report = admit_environment(ferry(predicate_text=texts))
    failed = rejection(report)
    assert failed is not None
    assert (failed.name, failed.detail) == ("ambiguous_text", "two facts read 'the ferry is at north'")


def test_repairs_are_taken_from_the_lineage() -> None:
    lineage = Lineage(operator="spec_env", notes={"repairs": 2})
    assert admit_environment(msgspec.structs.replace(ferry(), lineage=lineage)).repairs == 2


def test_a_sound_task_gets_gold_and_difficulty() -> None:
    report, gold, difficulty = admit_task(ferry_task(), ferry())
    assert reason(report) is None
    assert gold == [
        move("board", c="taxi", p="north"),
        move("sail", **{"from": "north", "to": "south"}),
        move("debark", c="taxi", p="south"),
    ]
    assert difficulty is not None
    assert difficulty.plan_length == 3
    assert difficulty.expansions is not None
    assert 3 <= difficulty.expansions <= 12


def test_own_gold_is_kept_though_it_is_longer() -> None:
    way = move("sail", **{"from": "north", "to": "south"})
    back = move("sail", **{"from": "south", "to": "north"})
    _, plan, _ = admit_task(ferry_task(), ferry())
    own = [way, back, *(plan or [])]
    report, gold, difficulty = admit_task(ferry_task(gold=own), ferry())
    assert reason(report) is None
    assert gold == own
    assert difficulty is not None
    assert difficulty.plan_length == 3


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (ferry_task(goal="(parked bike south)"), "syntax"),
        (ferry_task(goal="(docked north)"), "solved_at_start"),
        (ferry_task(goal="(docked north) (docked south)"), "unsolvable"),
        (ferry_task(gold=[move("board", c="van", p="north")]), "gold_rejected"),
        (ferry_task(gold=[move("board", c="taxi", p="north")]), "gold_rejected"),
        (ferry_task(initial_state={}), "syntax"),
    ],
)
def test_defects_of_tasks_are_found_by_name(task: Task, expected: str) -> None:
    report, gold, difficulty = admit_task(task, ferry())
    assert reason(report) == expected
    assert (gold, difficulty) == (None, None)


def test_a_gold_is_played_in_the_turns_of_its_task() -> None:
    short = msgspec.structs.replace(ferry_task(), max_turns=2)
    report, _, _ = admit_task(short, ferry())
    assert reason(report) == "gold_rejected"
    assert admit_task(msgspec.structs.replace(short, max_turns=3), ferry())[1] is not None


def test_a_gold_that_is_given_needs_no_planner() -> None:
    few = AdmissionLimits(plan=PlanLimits(max_expansions=2, optimal_expansions=1))
    task = ferry_task()
    _, plan, _ = admit_task(task, ferry())
    report, gold, _ = admit_task(msgspec.structs.replace(task, gold=plan), ferry(), few)
    assert (reason(report), gold) == (None, plan)


def test_giving_up_is_not_proof() -> None:
    few = AdmissionLimits(plan=PlanLimits(max_expansions=2, optimal_expansions=1))
    report, _, _ = admit_task(ferry_task(goal="(parked taxi south) (parked van north)"), ferry(), few)
    assert reason(report) == "planner_limit"


def test_too_many_objects_are_refused_before_the_search() -> None:
    cars = " ".join(f"car{number}" for number in range(3_000))
    ports = " ".join(f"port{number}" for number in range(60))
    problem = f"""(define (problem p) (:domain ferry) (:objects {ports} - port {cars} - car)
      (:init (docked port1)) (:goal (and (full))))"""
    report, _, _ = admit_task(ferry_task(initial_state={"problem": problem}), ferry())
    assert reason(report) == "grounding"


def test_structure_is_filled_in_where_it_is_missing() -> None:
    task = ferry_task()
    renamed = msgspec.structs.replace(
        task, initial_state={"problem": task.initial_state["problem"].replace("taxi", "bus").replace("van", "taxi")}
    )
    assert task_digest(task, ferry()) == task_digest(renamed, ferry())
    assert task_digest(task, ferry()) != task_digest(ferry_task(goal="(aboard taxi)"), ferry())
    assert environment_digest(ferry()) == environment_digest(ferry({"aboard": "loaded"}))
    assert environment_digest(DEFECTS["syntax"]) is None
    assert task_digest(msgspec.structs.replace(task, structure_digest="d"), ferry()) == "d"


@pytest.mark.parametrize(("spec", "task"), GAMES, ids=lambda each: getattr(each, "name", ""))
def test_games_are_admitted_by_playing_them(spec: EnvironmentSpec, task: Task) -> None:
    assert reason(admit_environment(spec)) is None
    report, gold, _ = admit_task(task, spec)
    assert reason(report) is None
    assert [check.name for check in report.checks] == ["broken", "null_accepted", "gold_rejected", "nondeterministic"]
    certain = spec.name in ("frozen-lake", "cliff", "taxi")
    assert (gold is not None) == certain


def test_a_game_that_does_not_exist_is_broken() -> None:
    spec, task = GAMES[0]
    missing = msgspec.structs.replace(spec, source="NoSuchGame-v1")
    assert reason(admit_environment(missing)) == "broken"
    assert reason(admit_task(task, missing)[0]) == "broken"
    assert reason(admit_task(msgspec.structs.replace(task, initial_state={"state": {"s": 99}}), spec)[0]) == "broken"


def test_a_game_whose_gold_does_not_win_is_rejected() -> None:
    spec, task = GAMES[0]
    hopeless = msgspec.structs.replace(task, gold=[move("left")])
    assert reason(admit_task(hopeless, spec)[0]) == "gold_rejected"
