"""Upper bounds: their arithmetic with what is unknown, and what operators declare."""

from __future__ import annotations

import random

import pytest

from agentmill.pipelines.operators.bounds import Rows, asks, least, most, of_share, product, total, union
from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.pipelines.serving.models import ModelConfig
from tests.pipelines.operators.steps import stage

PLAYED = {"tasks": "tasks", "environments": "environments"}
TASKS = {"tasks": Rows(n=10, splits={"train": 6, "other": 4}, turns=8, plan=3), "environments": Rows(n=2)}
VLLM = ModelConfig(policy="vllm", model="bundled:smollm2-135m-instruct")
EXPERT = ModelConfig(policy="expert")


def test_what_is_unknown_stays_unknown_unless_it_does_not_matter() -> None:
    assert (product(2, None), product(0, None), product(2, 3), product()) == (None, 0, 6, 1)
    assert (total([1, None]), total([1, 2]), most([3, None]), most([3, 5])) == (None, 3, None, 5)
    assert (least(3, None), least(None, None), least(3, 2)) == (3, None, 2)
    both = union([Rows(n=2, splits={"train": 2}, turns=4, plan=1), Rows(n=3, splits={"train": 1, None: 2}, turns=6)])
    assert both == Rows(n=5, splits={"train": 3, None: 2}, turns=6, plan=None)
    assert union([Rows(n=2, splits={"train": 2}), Rows(n=3)]).splits is None
    assert Rows(n=5).of_split("train") == 5, "all rows may be of it, where splits are not known"
    assert Rows(n=5, splits={"train": 2}).of_split("other") == 0


@pytest.mark.parametrize(("n", "share"), [(100, 0.12), (1000, 0.5), (20, 0.9), (5, 0.01)])
def test_a_random_share_is_never_more_than_its_bound(n: int, share: float) -> None:
    bound = of_share(n, share)
    assert bound is not None
    assert n * share <= bound <= n
    chance = random.Random(3)
    assert max(sum(chance.random() < share for _ in range(n)) for _ in range(500)) <= bound
    assert (of_share(n, 1.0), of_share(None, share)) == (n, None)


def test_tokens_follow_from_the_context_and_the_longest_answer() -> None:
    found = asks(VLLM, 10, {"max_tokens": 96})
    assert found is not None
    assert (found.calls, found.prompt_tokens, found.completion_tokens) == (10, 10 * (4096 - 96), 960)
    endpoint = ModelConfig(policy="openai", model="m", endpoints=["http://127.0.0.1:9/v1"], context_window=1000)
    other = asks(endpoint, 2, {})
    assert other is not None
    assert (other.prompt_tokens, other.completion_tokens) == (2000, 512)
    unbounded = asks(endpoint.model_copy(update={"context_window": None}), 2, {})
    assert unbounded is not None
    assert unbounded.prompt_tokens is None
    assert asks(EXPERT, 5, {}) is None


@pytest.mark.parametrize(("given", "n"), [({}, 3), ({"size": 640, "repeat": 10}, 30), ({"size": 20, "repeat": 10}, 20)])
def test_a_mixture_has_each_row_as_often_as_it_may_come(given: dict[str, int], n: int) -> None:
    found = stage("mix", **{"from": "rows"}, **given).bounds({"from": Rows(n=3)}, {})
    assert (found.reads, found.rows.n) == (3, n)


def test_episodes_are_tasks_times_attempts_and_calls_times_turns() -> None:
    found = stage("sample", policy="actor", **PLAYED, k=3, split="train").bounds(TASKS, {"actor": VLLM})
    assert (found.reads, found.episodes, found.rows.n) == (18, 18, 18)
    assert found.asked["actor"].calls == 18 * 8
    assert found.rows == Rows(n=18, splits={"train": 18}, turns=8)
    planned = stage("expert", policy="planner", **PLAYED).bounds(TASKS, {"actor": EXPERT})
    assert (planned.rows.turns, planned.rows.splits) == (3, {"train": 6, "other": 4})
    erring = EXPERT.model_copy(update={"mistakes": 0.3})
    assert stage("expert", policy="planner", **PLAYED).bounds(TASKS, {"actor": erring}).rows.turns == 8
    assert stage("sample", policy="actor", **PLAYED, max_turns=20).bounds(TASKS, {"actor": EXPERT}).rows.turns == 3


def test_summaries_count_with_the_turns() -> None:
    fold = {"context": "fold", "summarizer": "writer", "keep_turns": 2, "context_tokens": 500}
    found = stage("sample", policy="actor", **PLAYED, **fold).bounds(TASKS, {"actor": VLLM, "summarizer": VLLM})
    assert found.asked["actor"].calls == 80
    assert found.asked["summarizer"].calls == 80 * 3 * 3


@pytest.mark.parametrize(
    ("given", "episodes", "nodes", "actor"),
    [
        ({"iterations": 5, "branching": 2}, 10, 10 + 5 * 8 + 1, 10 + 5 * 8),
        ({"iterations": 5, "branching": 2, "max_calls": 7}, 7, 8, 7),
        ({"method": "beam", "branching": 2, "value": "environment"}, 8 * 2, 8 * 2 + 1, 8 * 2),
    ],
)
def test_a_tree_has_no_more_leaves_than_turns_that_were_drawn(
    given: dict[str, object], episodes: int, nodes: int, actor: int
) -> None:
    found = stage("tree_search", policy="actor", **PLAYED, **given).bounds(TASKS, {"actor": VLLM})
    assert (found.reads, found.episodes) == (10, 10 * episodes)
    assert found.sides["nodes"].n == 10 * nodes
    assert found.asked["actor"].calls == 10 * actor


@pytest.mark.parametrize(
    ("given", "branches", "calls"),
    [
        ({"k": 2}, 2 * 8, 8),
        ({"turns": "last", "depth": 1}, 1, 1),
        ({"turns": "even", "n": 3}, 3, 8),
        ({"turns": "every", "n": 3}, 3, 8),
        ({"then": "recorded", "edits": ["replace", "insert"]}, 16, 8),
    ],
)
def test_branches_follow_from_the_turns_of_what_is_branched_from(
    given: dict[str, object], branches: int, calls: int
) -> None:
    rows = {**TASKS, "of": Rows(n=5, turns=8)}
    found = stage("branch", policy="actor", of="of", **PLAYED, **given).bounds(rows, {"actor": VLLM})
    assert found.episodes == 5 * branches
    assert found.asked["actor"].calls == 5 * branches * calls


def test_judges_may_be_asked_again() -> None:
    step = stage("judge", of="of", judges=["a", "b"], criteria="good", rounds=2, swap=True, checks=1)
    found = step.bounds({"of": Rows(n=4, turns=8)}, {"judge1": VLLM, "judge2": VLLM})
    assert {role: each.calls for role, each in found.asked.items()} == dict.fromkeys(
        ["judge1", "judge2"], 4 * 3 * 2 * (3 + 1)
    )
    assert found.rows.n == 4
    steps = stage("step_judge", of="of", judges="a").bounds({"of": Rows(n=4, turns=8)}, {"judge1": VLLM})
    assert (steps.asked["judge1"].calls, steps.rows.n) == (4 * 8 * 3, None)


def test_a_writer_of_environments_is_asked_for_repairs() -> None:
    llm = stage("spec_env", backend="llm", policy="writer", n=6, held_out=0.5, repairs=2)
    found = llm.bounds({}, {"generator": VLLM})
    assert found.asked["generator"].calls == 18
    assert found.rows.splits == {"train": 3, "held_out": 3}


def test_harder_variants_are_longer() -> None:
    tasks = {"of": TASKS["tasks"], "environments": Rows(n=2)}
    step = {"of": "of", "environments": "environments", "n": 2}
    easier = stage("evolve", **step, directions=["easier"]).bounds(tasks, {})
    assert (easier.rows.n, easier.rows.turns, easier.rows.splits) == (20, 8, {"train": 12, "other": 8})
    harder = stage("evolve", **step).bounds(tasks, {})
    assert (harder.rows.n, harder.rows.plan, harder.rows.turns) == (40, 13, 32)
    inject = stage("evolve", **step, directions=["fuzz", "inject"]).bounds(tasks, {})
    assert inject.rows == harder.rows
    other = stage("evolve", **step, directions=["other", "fuzz"]).bounds(tasks, {})
    assert (other.rows.n, other.rows.plan, other.rows.turns) == (40, 3, 8)


@pytest.mark.parametrize(
    ("best_of", "models", "calls"),
    [
        (1, {"user": "u"}, {"actor": 30, "user": 30}),
        (4, {"user": "u"}, {"actor": 30, "user": 150}),
        (4, {}, {"actor": 150}),
    ],
)
def test_drafts_and_the_choice_among_them_count_for_each_message(
    best_of: int, models: dict[str, str], calls: dict[str, int]
) -> None:
    user = {"name": "user", "person": True, "stop": "BYE", "best_of": best_of}
    given = {"policy": "a", "models": models, "roles": [user, {"name": "agent", "acts": True}], "max_messages": 10}
    rows = {"tasks": Rows(n=2, turns=5), "environments": Rows(n=1)}
    found = stage("multi_agent", **PLAYED, **given).bounds(rows, dict.fromkeys(["actor", *models], VLLM))
    assert {role: each.calls for role, each in found.asked.items()} == calls


def test_every_operator_declares_bounds_or_keeps_a_row_for_a_row() -> None:
    """Those that keep the default write at most one row for each of their input."""
    default = {name for name in OPERATORS if OPERATORS.load(name).bounds.__qualname__.partition(".")[0] == "Operator"}
    selectors = {
        "decontaminate",
        "dedup",
        "diagnose",
        "difficulty_band",
        "filter",
        "pick",
        "replay",
        "select_diverse",
        "split",
    }
    assert default <= {*selectors, "admit", "check_tokens", "combine", "first_error", "quality", "redact"}


def test_generators_keep_to_what_they_are_planned_with() -> None:
    from agentmill.synthesis.generators.codegym_tasks import generator as codegym
    from agentmill.synthesis.generators.generator import MOST_LONGER, MOST_SPARE_TURNS
    from agentmill.synthesis.generators.interpreter_tasks import written
    from agentmill.synthesis.generators.pddl_tasks import evolution, planning_environment
    from agentmill.synthesis.generators.toolbox_tasks import generator as toolbox

    assert max(evolution.REACH, toolbox.REACH, codegym.REACH) <= MOST_LONGER
    spare = (planning_environment.SPARE_TURNS, toolbox.SPARE_TURNS, written.SPARE_TURNS)
    assert max(spare) <= MOST_SPARE_TURNS
