"""Upper bounds against what runs then really used: never below, and for episodes of typical recipes close above."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.recipes.estimate import Estimate, StepBounds, estimate, without_round
from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.parts import Part
from agentmill.pipelines.recipes.plan import Plan, make_plan
from agentmill.pipelines.recipes.precheck import check_dry
from agentmill.pipelines.recipes.runner import run_plan
from agentmill.pipelines.terminal.progress import progress_for
from agentmill.schemas.config import dump_yaml
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Table
from agentmill.synthesis.policies.cost import LEDGER, read_ledger
from tests.errors import user_error
from tests.fake_openai import MODEL, FakeOpenAi, text
from tests.pipelines.cli.tables import DEMONSTRATE, write_environments, write_recipe
from tests.pipelines.engine.stages import write_table

STAND_IN = "models.actor={policy: expert, mistakes: 0.3}"
SMALL = ("steps.proposed_environments.n=4", "steps.proposed_environments.held_out=0.25", "steps.proposed_tasks.n=4")
PLAYED = {"tasks": "tasks", "environments": "environments"}


def lines_of(found: Estimate) -> dict[str, StepBounds]:
    return {line.name: line for line in found.steps}


def carried_out(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    run_plan(plan, progress_for(sys.stderr))
    capsys.readouterr()


def tables_in(plan: Plan) -> list[tuple[str, Table]]:
    """The tables that a run made, by the names of their steps in a plan; those of an evaluation, too."""
    found = []
    for file in sorted(plan.run_dir.rglob("manifest.json")):
        name = without_round(str(file.parent.relative_to(plan.run_dir)))
        found.append((name, Table.open(file.parent)))
    return found


def check_not_exceeded(plan: Plan, found: Estimate) -> int:
    """No table has more rows, inputs or episodes than its bounds; the episodes of all."""
    lines, used = lines_of(found), dict[str, list[int]]()
    for name, table in tables_in(plan):
        metrics, counts = table.manifest.metrics, table.manifest.counts
        step = name if name in lines else name.partition("/")[0]
        numbers = [counts.read, counts.written, int(metrics.get("episodes", 0))]
        if name not in lines:
            # Verdicts of an evaluation read what it has played; its trajectories are no table of the run.
            numbers = [0, 0, numbers[2]]
        sums = used.setdefault(step, [0, 0, 0])
        used[step] = [a + b for a, b in zip(sums, numbers, strict=True)]
    assert used
    for step, (read, written, episodes) in used.items():
        line = lines[step]
        for what, number, bound in (("read", read, line.inputs), ("written", written, line.rows)):
            assert bound is None or number <= bound, f"{step}: {number} {what}, at most {bound} planned"
        assert line.episodes is not None
        assert episodes <= line.episodes, step
    return sum(episodes for _, _, episodes in used.values())


@pytest.mark.parametrize(("recipe", "factor"), [("eto", 1.5), ("agentgen", 1.5), ("fireact", 2.0)])
def test_recipes_without_a_model_use_no_more_and_nearly_as_much(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recipe: str, factor: float
) -> None:
    overrides = [STAND_IN, f"run_dir={tmp_path / recipe}", *SMALL]
    plan = make_plan(read_recipe(Path(recipe), overrides), Part(only="data"))
    found = estimate(plan)
    assert not plan.run_dir.exists()
    carried_out(plan, capsys)
    episodes = check_not_exceeded(plan, found)
    assert found.episodes is not None
    # `revise` of fireact plays again what failed, of which nobody knows how much it is.
    assert episodes <= found.episodes <= factor * episodes
    assert found.models == {}
    assert "imitating" not in lines_of(found)


def asking(server: FakeOpenAi, **fields: Any) -> dict[str, Any]:
    return {
        "policy": "openai",
        "model": MODEL,
        "endpoints": [server.url],
        "prices": {"input": 2.0, "output": 10.0},
        "context_window": 3000,
        "sampling": {"max_tokens": 50},
        **fields,
    }


def test_what_models_are_asked_is_bounded_by_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_environments(tmp_path)
    roles = [
        {"name": "planner", "sees": "all", "told": True, "prompt": "You plan."},
        {"name": "actor", "acts": True, "prompt": "You act."},
    ]
    steps: list[dict[str, Any]] = [
        {"operator": "sample", "policy": "actor", **PLAYED, "k": 2, "max_turns": 3, "as": "explored"},
        {"operator": "revise", "policy": "actor", **PLAYED, "attempts": 2, "max_turns": 2, "feedback": "self"},
        {"operator": "revise", "policy": "actor", **PLAYED, "level": "step", "max_turns": 2, "feedback": "critic"}
        | {"critic": "other", "as": "corrected"},
        {"operator": "branch", "policy": "actor", **PLAYED, "of": "explored", "max_turns": 3, "teacher": "other"},
        {"operator": "tree_search", "policy": "actor", **PLAYED, "iterations": 3, "branching": 2, "max_turns": 3}
        | {"temperature": 0.5},
        {"operator": "tree_search", "policy": "actor", **PLAYED, "iterations": 2, "branching": 2, "max_turns": 3}
        | {"value": "critic", "critic": "other", "method": "best_first", "as": "scored"},
        {"operator": "multi_agent", "policy": "actor", **PLAYED, "roles": roles, "max_turns": 2, "max_messages": 3},
        {"operator": "judge", "of": "explored", "judges": "other", "criteria": "Is it good?", "swap": True},
        {"operator": "evaluate", "models": {"a": "actor", "b": "other"}, **PLAYED, "splits": ["held_out_tasks"]}
        | {"max_turns": 2},
    ]
    with FakeOpenAi([text("look")]) as server:
        models = {"actor": asking(server), "other": asking(server)}
        plan = make_plan(read_recipe(write_recipe(tmp_path, *steps, models=models), ()))
        found = estimate(plan)
        assert server.requests == []
        carried_out(plan, capsys)
    check_not_exceeded(plan, found)
    lines, spent = lines_of(found), read_ledger(plan.run_dir / LEDGER)
    assert {each.step.partition("/")[0] for each in spent} == set(lines)
    for name, line in lines.items():
        for model, asked in line.models.items():
            mine = [each for each in spent if each.step.partition("/")[0] == name and each.model == model]
            assert asked.calls is not None
            assert asked.prompt_tokens is not None
            assert asked.completion_tokens is not None
            assert sum(each.requests for each in mine) <= asked.calls, (name, model)
            assert sum(each.prompt_tokens for each in mine) <= asked.prompt_tokens, (name, model)
            assert sum(each.completion_tokens for each in mine) <= asked.completion_tokens, (name, model)
        assert {each.model for each in spent if each.step.partition("/")[0] == name} <= set(line.models), name
    assert lines["explored"].models["actor"].calls == 6 * 2 * 3
    assert sum(each.requests for each in spent if each.step == "explored") == 6 * 2 * 3
    assert lines["judge"].models["other"].calls == 12 * 2 * 3, "two orders, and three tries where nothing can be read"
    assert sum(each.requests for each in spent if each.step == "judge") == 12 * 2 * 3
    assert found.calls is not None
    assert found.prompt_tokens == 3000 * found.calls
    assert found.completion_tokens is not None
    usd = (found.prompt_tokens * 2.0 + found.completion_tokens * 10.0) / 1e6
    assert found.cost_usd == pytest.approx(usd)
    assert sum(each.cost_usd or 0.0 for each in spent) <= usd


def planned(folder: Path, steps: list[dict[str, Any]], *overrides: str, **changes: Any) -> Estimate:
    models = {"actor": {"policy": "openai", "model": "m", "endpoints": ["http://127.0.0.1:9/v1"]}}
    data = {"name": "test", "run_dir": str(folder / "run"), "models": models, "steps": steps, **changes}
    path = folder / "recipe.yaml"
    path.write_text(dump_yaml(data), encoding="utf-8")
    return estimate(make_plan(read_recipe(path, overrides)))


SAMPLE = {"operator": "sample", "policy": "actor", **PLAYED, "k": 2, "as": "explored"}
MAKE = [
    {"operator": "spec_env", "n": 5, "held_out": 0.2, "as": "environments"},
    {"operator": "propose", "of": "environments", "n": 10, "plan_length": [1, 4], "held_out": 0.25, "as": "tasks"},
]


def test_splits_are_followed_from_environments_to_episodes(tmp_path: Path) -> None:
    splits = {"train": 4 * 10 * 3 // 4, "held_out_tasks": 10, "held_out_environments": 10}
    for split, n in splits.items():
        lines = lines_of(planned(tmp_path, [*MAKE, {**SAMPLE, "split": split}]))
        assert (lines["tasks"].rows, lines["explored"].inputs) == (50, n * 2)
        assert lines["explored"].how == f"{n} tasks × 2 attempts × 14 turns"
        assert lines["explored"].models["actor"].calls == n * 2 * 14


def test_a_loop_multiplies_its_steps(tmp_path: Path) -> None:
    loop = {"operator": "iterate", "as": "loop", "rounds": 3, "steps": [SAMPLE]}
    found = planned(tmp_path, [*MAKE, SAMPLE, loop])
    assert lines_of(found)["loop/*/explored"].rounds == 3
    assert lines_of(found)["loop/*/explored"].episodes == 300
    assert found.episodes == 400
    assert "the loop 'loop' runs 1 steps up to 3 times: 300 of 400 episodes" in found.notes
    two = [
        {"operator": "iterate", "rounds": rounds, "steps": [{**SAMPLE, "as": name}]}
        for rounds, name in ((2, "a"), (3, "b"))
    ]
    notes = planned(tmp_path, [*MAKE, *two]).notes
    assert "the loop runs 1 steps up to 2 times: 200 of 500 episodes" in notes
    assert "the loop runs 1 steps up to 3 times: 300 of 500 episodes" in notes


def test_what_cannot_be_known_is_unknown_and_its_remedy_is_named(tmp_path: Path) -> None:
    found = planned(tmp_path, [*MAKE, SAMPLE])
    asked = found.models["actor"]
    assert (asked.calls, asked.prompt_tokens, asked.completion_tokens) == (1400, None, 1400 * 256)
    assert asked.cost_usd is found.cost_usd is None
    assert any("models.actor.context_window" in note for note in found.notes)
    raw = tmp_path / "raw.jsonl"
    raw.write_text("{}\n", encoding="utf-8")
    read = {"operator": "normalize", "format": "sharegpt", "dataset": "d", "data": [str(raw)], "as": "raw"}
    assert lines_of(planned(tmp_path, [read]))["raw"].rows is None


def test_a_budget_bounds_what_is_spent(tmp_path: Path) -> None:
    actor = {"policy": "openai", "model": "m", "endpoints": ["http://127.0.0.1:9/v1"], "context_window": 1000}
    prices = {"prices": {"input": 1.0, "output": 1.0}, "budget": {"usd": 0.5}}
    assert planned(tmp_path, [*MAKE, SAMPLE], models={"actor": {**actor, **prices}}).cost_usd == 0.5
    dear = {"prices": {"input": 1.0, "output": 1.0}, "budget": {"usd": 50}}
    found = planned(tmp_path, [*MAKE, SAMPLE], models={"actor": {**actor, **dear}})
    assert found.cost_usd == pytest.approx(1400 * (1000 + 256) / 1e6)


@pytest.mark.parametrize(
    ("step", "code", "words"),
    [
        ({"operator": "select_diverse", "size": 9, "of": "demonstrations"}, "rows-too-few", ["the 2 trajectories"]),
        ({"operator": "mix", "size": 9, "from": ["demonstrations"]}, "rows-too-few", ["9 rows, and at most 2"]),
        ({"operator": "select_diverse", "size": 1, "of": "nothing"}, "nothing-to-do", ["nothing holds no rows"]),
    ],
)
def test_what_cannot_be_done_with_so_few_rows_is_refused_before_the_run(
    tmp_path: Path, step: dict[str, Any], code: str, words: list[str]
) -> None:
    write_environments(tmp_path)
    write_table(tmp_path / "nothing", [[]], Trajectory)
    recipe = write_recipe(tmp_path, DEMONSTRATE, {**step, "as": "few"})
    plan = make_plan(read_recipe(recipe, [f"data.nothing={tmp_path / 'nothing'}"]))
    with user_error(code, "steps.1", *words):
        check_dry(plan)
    if "of" not in step or step["of"] != "nothing":
        allowed = make_plan(read_recipe(recipe, [f"data.nothing={tmp_path / 'nothing'}", "steps.few.short=allow"]))
        assert lines_of(estimate(allowed, enough=True))["few"].inputs == 2
