"""The shipped recipes of published methods: each data half runs without a model, and is what makes it that method.

An expert that errs stands in for the model, and environments and tasks are made once for all.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.recipes.estimate import estimate
from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.plan import make_plan
from agentmill.pipelines.recipes.shipped import recipe_files
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.rows import PreferenceRow, SftRow
from agentmill.schemas.records.trajectory import Action
from agentmill.synthesis.environments.search.examples import ARTICLES
from agentmill.synthesis.environments.search.index import open_index
from agentmill.synthesis.generators.search_tasks.checks import shows_answer
from tests.pipelines.cli.tables import agentmill
from tests.recipes.data_half import STAND_IN, rows, run

FAMILIES = {
    **{family: family for family in ("babyai", "pddl", "toolbox", "codegym", "interpreter", "search")},
    "tools": "toolbox",
}
"""The files of environments, and the family that each makes."""
BOUND = {
    "agent_flan": ("toolbox",),
    "agentgen": ("babyai", "pddl", "toolbox", "codegym", "interpreter"),
    "agentrefine": ("pddl", "toolbox"),
    "agentscaler": ("toolbox",),
    "apigen_mt": ("toolbox",),
    "goat": ("toolbox",),
    "masksearch": ("search",),
    "taskcraft": ("search",),
    "webrl": ("pddl", "toolbox"),
}
"""Recipes whose method some families alone allow: with twins to be declined, tasks of rules, other names, chains of
calls, a corpus, or tasks that models write."""


def done(content: Sequence[Any]) -> list[str]:
    """The commands of an agent, in their order."""
    return [item.content for item in content if isinstance(item, Action)]


@pytest.mark.parametrize("name", recipe_files())
def test_every_recipe_is_short_names_its_paper_and_can_be_planned(name: str, tmp_path: Path) -> None:
    file = recipe_files()[name]
    recipe = read_recipe(file, [f"run_dir={tmp_path}"])
    assert recipe.paper is not None
    assert recipe.paper.arxiv or recipe.paper.url
    assert recipe.paper.differs
    assert len(file.read_text().splitlines()) <= 40
    assert make_plan(recipe).steps


def test_most_recipes_are_very_short() -> None:
    lengths = [len(file.read_text().splitlines()) for file in recipe_files().values()]
    assert statistics.median(lengths) <= 20


OTHER_KEYS = {"agentgen": "steps.proposed_environments.family={family}"}
"""The override that moves a recipe to another family, where it is not that of the included environments."""
MOVES = [(name, file) for name in recipe_files() for file in FAMILIES if (name, file) != ("agentgen", "search")]
"""All but one: ``agentgen`` proposes tasks, and those of ``search`` are made from a corpus."""


@pytest.mark.parametrize(("name", "file"), MOVES)
def test_another_family_of_environments_is_one_override(name: str, file: str, tmp_path: Path) -> None:
    family = FAMILIES[file]
    override = OTHER_KEYS.get(name, "include.0=environments/{file}").format(family=family, file=file)
    recipe = read_recipe(recipe_files()[name], [override, f"run_dir={tmp_path}"])
    if family not in BOUND.get(name, (family,)):
        # Which key is wrong depends on the method; a family that needs a corpus is refused for that.
        with pytest.raises(UserError, match=rf"famil\w+:? [\w, ]*{family}"):
            make_plan(recipe)
        return
    plan = make_plan(recipe)
    assert plan.steps[0].parameters.families(None) == {family}
    assert estimate(plan).episodes


def test_eto_pairs_share_the_task_and_the_winner_scored_higher(anywhere: Path, tmp_path: Path) -> None:
    folder = run(anywhere, tmp_path, "eto", "steps.loop.rounds=1")
    pairs: list[PreferenceRow] = rows(folder / "loop/round-01/pairs")
    assert pairs
    assert all((row.chosen_score or 0) > (row.rejected_score or 0) for row in pairs)
    played = [*rows(folder / "demonstrations"), *rows(folder / "loop/round-01/explored")]
    tasks = {each.trajectory_id: each.task_id for each in played}
    assert all(tasks[row.chosen_id] == tasks[row.rejected_id] for row in pairs)


def test_agentevol_trains_on_all_seeds_and_on_the_first_success_of_each_task(anywhere: Path, tmp_path: Path) -> None:
    folder = run(anywhere, tmp_path, "agentevol", "steps.evolution.rounds=2")
    seeds = {each.trajectory_id for each in rows(folder / "seeds")}
    for number in (1, 2):
        place = folder / f"evolution/round-0{number}"
        used = [row.trajectory_id for row in rows(place / "rows")]
        assert seeds <= set(used)
        explored = {each.trajectory_id: each for each in rows(place / "explored")}
        found = [explored[each] for each in used if each in explored]
        assert found
        assert max(Counter(each.task_id for each in found).values()) == 1
        assert all(each.outcome.status == "success" for each in found)


def test_ipr_step_pairs_share_what_came_before_and_differ_by_the_gap(made: Path, tmp_path: Path) -> None:
    folder = run(made, tmp_path, "ipr", "steps.loop.rounds=1", "steps.steps.min_gap=0.2", "models.actor.mistakes=0.7")
    pairs: list[PreferenceRow] = rows(folder / "loop/round-01/steps")
    assert pairs
    assert all(row.chosen_score - row.rejected_score >= 0.2 for row in pairs)
    alternatives = rows(folder / "loop/round-01/alternatives")
    played = {each.trajectory_id: each for each in [*rows(folder / "demonstrations"), *alternatives]}
    for row in pairs:
        chosen, rejected = played[row.chosen_id].content, played[row.rejected_id].content
        assert done(chosen[: row.chosen_item]) == done(rejected[: row.rejected_item])
        assert done(chosen[: row.chosen_item + 1]) != done(rejected[: row.rejected_item + 1])
    branched = {each.parent_id for each in rows(folder / "loop/round-01/after_agent")}
    assert branched <= {each.trajectory_id for each in alternatives}


def test_eef_beneficial_steps_of_failures_carry_loss(made: Path, tmp_path: Path) -> None:
    folder = run(made, tmp_path, "eef", "models.teacher.mistakes=0.5", "steps.taught.max_turns=6")
    branches = {each.trajectory_id: each for each in rows(folder / "continued")}
    labels = defaultdict(set)
    for label in rows(folder / "effects/labels"):
        if label.value == "beneficial":
            labels[label.trajectory_id].add(label.item)
    made_of: list[SftRow] = rows(folder / "beneficial_rows")
    assert made_of
    for row in made_of:
        branch = branches[str(row.trajectory_id)]
        copied = [
            n
            for n, item in enumerate(branch.content)
            if isinstance(item, Action) and item.context_operation == "copied"
        ]
        own = len([item for item in branch.content if isinstance(item, Action) and item.context_operation != "copied"])
        beneficial = len(set(copied) & labels[branch.parent_id])
        assert sum(message.train for message in row.messages) == own + beneficial


def test_agent_q_pairs_differ_in_the_value_of_the_tree(made: Path, tmp_path: Path) -> None:
    folder = run(made, tmp_path, "agent_q", "steps.loop.rounds=1")
    values = {(each.trajectory_id, each.item): each.value for each in rows(folder / "loop/round-01/values")}
    pairs: list[PreferenceRow] = rows(folder / "loop/round-01/pairs")
    assert pairs
    for row in pairs:
        assert row.chosen_score - row.rejected_score >= 0.2
        assert row.chosen_score in values.values()


def test_early_experience_learns_what_follows_from_other_actions(made: Path, tmp_path: Path) -> None:
    folder = run(made, tmp_path, "early_experience")
    alternatives = rows(folder / "alternatives")
    assert alternatives
    assert all(each.outcome.reason == "depth" for each in alternatives)
    experts = {each.trajectory_id: done(each.content) for each in rows(folder / "demonstrations")}
    for each in alternatives:
        assert done(each.content)[:-1] == experts[each.parent_id][: each.branch_turn - 1]
        assert done(each.content)[-1] != experts[each.parent_id][each.branch_turn - 1]
    repeated = Counter((each.parent_id, *done(each.content)) for each in alternatives)
    assert set(repeated.values()) == {1}
    futures = {row.trajectory_id for row in rows(folder / "futures")}
    assert futures & {each.trajectory_id for each in alternatives}
    assert {row.trajectory_id for row in rows(folder / "rows")} == {
        each.trajectory_id for each in rows(folder / "demonstrations")
    }


def test_limi_takes_exactly_as_many_and_so_does_its_control(made: Path, tmp_path: Path) -> None:
    folder = run(made, tmp_path, "limi", "steps.chosen.size=5")
    assert [len(rows(folder / name)) for name in ("rows", "control_rows")] == [5, 5]


def test_codegym_learns_from_what_is_hard(tmp_path: Path) -> None:
    given = [STAND_IN, "steps.proposed_environments.n=3", "steps.proposed_environments.held_out=0.34"]
    small = ["steps.proposed_tasks.n=3", "models.actor.mistakes=0.8", f"run_dir={tmp_path / 'run'}"]
    assert agentmill("run", "codegym", "--only", "data", *given, *small) == 0
    rates = defaultdict(list)
    for each in rows(tmp_path / "run/tried"):
        rates[each.task_id].append(each.outcome.status == "success")
    played = {each.task_id for each in rows(tmp_path / "run/explored")}
    assert played
    assert all(statistics.mean(rates[task]) <= 0.25 for task in played)


def test_fireact_keeps_successes_alone(anywhere: Path, tmp_path: Path) -> None:
    folder = run(anywhere, tmp_path, "fireact")
    won = {
        each.trajectory_id
        for name in ("by_commands", "by_calls", "reflected")
        for each in rows(folder / name)
        if each.outcome.status == "success"
    }
    used = {row.trajectory_id for row in rows(folder / "rows")}
    assert used
    assert used <= won


def test_agentgen_evolves_tasks_and_a_planner_solves_all_that_are_admitted(tmp_path: Path) -> None:
    small = ["steps.proposed_environments.n=3", "steps.proposed_environments.held_out=0.34", "steps.proposed_tasks.n=3"]
    assert agentmill("run", "agentgen", "--only", "data", STAND_IN, *small, f"run_dir={tmp_path / 'run'}") == 0
    tasks = rows(tmp_path / "run/tasks")
    evolved = {each.task_id for each in rows(tmp_path / "run/evolved_tasks")}
    assert evolved & {each.task_id for each in tasks}
    shown = rows(tmp_path / "run/demonstrations")
    assert all(each.outcome.status == "success" for each in shown)
    assert {each.task_id for each in shown} == {each.task_id for each in tasks if each.split == "train"}
    assert {row.task_id for row in rows(tmp_path / "run/rows")} == {each.task_id for each in shown}


def test_taskcraft_extends_what_no_memory_answers_in_depth_and_width(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTMILL_CACHE", str(tmp_path / "cache"))
    open_index.cache_clear()
    one = ["n=1", "held_out=0", f"corpus={ARTICLES}"]
    small = [f"steps.proposed_environments.{each}" for each in one]
    small += [
        "steps.proposed_tasks.n=70",
        "steps.proposed_tasks.depth=[1, 2]",
        "steps.proposed_compositions.n=12",
        "steps.explored.k=1",
    ]
    knows = "models.actor={policy: scripted, turns: ['Gardawick in 1820 or Istlilva in 1931']}"
    folder = tmp_path / "run"
    assert agentmill("run", "taskcraft", "--only", "data", knows, *small, f"run_dir={folder}") == 0
    tasks = {each.task_id: each for each in rows(folder / "tasks")}
    unknown = {each.task_id for each in rows(folder / "unknown") if each.kept}
    composed = {each.task_id: each for each in rows(folder / "compositions")}
    assert 0 < len(unknown) < len(tasks)
    assert {each for task in composed.values() for each in task.lineage.parents} <= unknown
    assert {task.lineage.notes["how"] for task in composed.values()} == {"depth", "width"}
    for task in composed.values():
        parts = [tasks[each] for each in task.lineage.parents]
        assert task.split == parts[0].split
        opened = {action.kwargs["id"] for action in task.gold if action.function == "open"}
        assert {source for part in parts for source in part.lineage.notes["sources"]} <= opened
        if task.lineage.notes["how"] == "depth":
            for part, after in itertools.pairwise(parts):
                assert shows_answer(after.instruction, [part.goal["answer"]])
                assert not shows_answer(task.instruction, [part.goal["answer"]])
    explored = {each.trajectory_id: each for each in rows(folder / "explored")}
    used = {row.trajectory_id for row in rows(folder / "rows")}
    assert {each.task_id for each in explored.values()} <= unknown | set(composed)
    assert used == {name for name, each in explored.items() if each.outcome.status == "success"}
    assert {explored[name].task_id for name in used} & set(composed)
