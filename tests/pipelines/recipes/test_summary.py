"""What a run says at its end."""

from __future__ import annotations

import msgspec
import pytest

from agentmill.pipelines.cli.run import show_finish, show_where
from agentmill.pipelines.evaluation import Episode, episode_of, episodes_of, measure, paired_difference
from agentmill.pipelines.recipes.runner import RunResult
from agentmill.pipelines.recipes.summary import (
    StageSummary,
    Summary,
    by_split,
    difference_lines,
    evaluation_lines,
    measure_rows,
    next_commands,
    note_lines,
    stage_rows,
)
from agentmill.schemas.records.trajectory import Outcome, Usage
from agentmill.schemas.tables import Counts
from tests.builders import agent_message, called, instruction, seen, trajectory, verdict


def episode(task: int, success: bool) -> Episode:
    values = {"attempt": 0, "actions": 4, "invalid": 1, "turns": 4, "looped": False, "truncated": False}
    ids = {"task_id": f"task-{task}", "environment_id": f"env-{task}"}
    return Episode(**ids, success=success, completion_tokens=10, **values)  # type: ignore[arg-type]


def summary(seed: int = 0, run_dir: str = "runs/x") -> Summary:
    base = [episode(i, i == 0) for i in range(10)]
    tuned = [episode(i, i < 6) for i in range(10)]
    difference = {**msgspec.to_builtins(paired_difference(base, tuned)), "model": "tuned", "reference": "base"}
    measures = {name: msgspec.to_builtins(measure(found)) for name, found in (("base", base), ("tuned", tuned))}
    counts = Counts(read=10, used=9, dropped=1, written=9)
    stage = StageSummary.of(counts, operator="sample", seconds=1.26, where=f"{run_dir}/explored", record="Trajectory")
    stages = {"explored": stage, "verdicts": msgspec.structs.replace(stage, record="Verdict")}
    evaluation = {"held_out_tasks": {**measures, "paired_difference": difference}}
    return Summary(name="x", seed=seed, run_dir=run_dir, stages=stages, evaluation=evaluation)


def test_the_table_of_stages() -> None:
    assert stage_rows(summary())[0] == ["explored", "sample", 10, 9, 1, 9, 1.3]


def test_notes_name_their_stage_and_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    made = summary()
    noted = msgspec.structs.replace(made.stages["explored"], notes=["warning: mind the gap"])
    made = msgspec.structs.replace(made, stages={**made.stages, "explored": noted})
    assert note_lines(made) == ["explored: warning: mind the gap"]
    show_finish(RunResult(made, made=1))
    assert "\nexplored: warning: mind the gap\n" in capsys.readouterr().out


def test_splits_of_several_evaluations_stay_apart() -> None:
    one, other = summary().evaluation, {"held_out_tasks": {"base": {"success": 0.5}}}
    assert by_split({"short": one}) == one
    both = by_split({"short": one, "long": other})
    assert both == {"short/held_out_tasks": one["held_out_tasks"], "long/held_out_tasks": other["held_out_tasks"]}


def test_the_table_of_models() -> None:
    rows = measure_rows(summary())
    assert rows == [
        ["held_out_tasks", "base", 10, 10, "10.0 %", "[1.8, 40.4]", "25.0 %", "0.0 %", 40.0, 100.0],
        ["held_out_tasks", "tuned", 10, 10, "60.0 %", "[31.3, 83.2]", "25.0 %", "0.0 %", 40 / 6, 100 / 6],
    ]


def test_the_difference_in_words() -> None:
    (line,) = difference_lines(summary())
    assert line.startswith("held_out_tasks: tuned minus base = +50.0 points, 95 % interval [+20.0, +80.0], ")
    assert line.endswith("5 tasks better and 0 worse of 10, 5 better and 0 worse of 10 environments, p = 0.062")


def test_few_environments_are_a_warning() -> None:
    assert evaluation_lines(summary()) == difference_lines(summary()), "ten are enough"
    nine = [episode(task, True) for task in range(9)]
    few = msgspec.structs.replace(summary(), evaluation={"s": {"base": msgspec.to_builtins(measure(nine))}})
    assert evaluation_lines(few) == [
        "s: warning: only 9 environments; intervals from fewer than 10 are wide, since "
        "their spread is hardly known, so evaluate on tasks of more environments"
    ]


def test_episodes_that_were_dropped_or_not_judged_are_a_warning() -> None:
    found = measure([episode(task, True) for task in range(10)])
    results = {"base": found, "tuned": msgspec.structs.replace(found, unscored=2)}
    lost = msgspec.structs.replace(summary(), evaluation={"s": msgspec.to_builtins(results)})
    (line,) = evaluation_lines(lost)
    assert line.startswith("s: warning: 2 of 12 episodes of tuned were dropped, ran out of time or have no ")


def test_tasks_that_pass_at_k_leaves_out_are_a_warning() -> None:
    whole = [msgspec.structs.replace(episode(task, True), attempt=k) for task in range(10) for k in range(4)]
    results = {"base": measure(whole), "tuned": measure(whole[:-1]), "short": measure(whole[1:-3])}
    lost = msgspec.structs.replace(summary(), evaluation={"s": msgspec.to_builtins(results)})
    why = "the others have fewer attempts"
    assert evaluation_lines(lost) == [
        f"s: warning: pass@4 of tuned is over 9 of 10 tasks; {why}",
        f"s: warning: pass@2 of short is over 9 of 10 tasks, pass@4 of short is over 8 of 10 tasks; {why}",
    ]


def test_intervals_of_an_earlier_version_are_a_warning() -> None:
    evaluation = summary().evaluation
    for results in evaluation["held_out_tasks"].values():
        for name in [name for name in results if name.startswith("environments")]:
            del results[name]
    old = msgspec.structs.replace(summary(), evaluation=evaluation)
    assert [row[3] for row in measure_rows(old)] == [None, None]
    warning, difference = evaluation_lines(old)
    assert "of an earlier version take tasks of one environment as independent" in warning
    assert difference.endswith("5 tasks better and 0 worse of 10, p = 0.062")


def test_the_next_commands_are_about_what_was_made() -> None:
    assert next_commands(summary()) == [
        "agentmill inspect runs/x/explored",
        "agentmill export runs/x/explored --to adp --out runs/x/adp",
        "agentmill run runs/x/recipe.yaml seed=1 run_dir=runs/x-seed1",
    ]
    again = summary(seed=1, run_dir="runs/x-seed1")
    assert next_commands(again)[-1] == "agentmill run runs/x-seed1/recipe.yaml seed=2 run_dir=runs/x-seed2"
    nothing = msgspec.structs.replace(summary(), stages={})
    assert len(next_commands(nothing)) == 1


@pytest.mark.parametrize(("stages", "headed"), [(True, True), (False, False)])
def test_there_is_a_heading_only_over_commands(stages: bool, headed: bool, capsys: pytest.CaptureFixture[str]) -> None:
    made = summary() if stages else msgspec.structs.replace(summary(), stages={})
    show_where(RunResult(made, 1, left_out={"tuned": "--until explored"}, rest="agentmill run r.yaml"))
    assert ("What to try next:" in capsys.readouterr().out) is headed


def test_a_summary_survives_json() -> None:
    text = msgspec.json.encode(summary())
    assert msgspec.json.encode(msgspec.json.decode(text, type=Summary)) == text


def test_an_episode_counts_what_the_agent_did_and_what_was_refused() -> None:
    run = trajectory("t1", usage=Usage(completion_tokens=12), outcome=Outcome(status="failure", truncated=True))
    found = episode_of(run, success=True)
    assert found == Episode(
        task_id="task1",
        environment_id="env1",
        attempt=0,
        success=True,
        actions=2,
        invalid=1,
        turns=2,
        looped=False,
        truncated=True,
        completion_tokens=12,
    )


def test_parallel_calls_are_one_turn_and_copied_items_are_not_ours() -> None:
    copied = [agent_message("x", 1, context_operation="copied"), seen("no", 1, error=True, context_operation="copied")]
    calls = [called("look", 2, "a"), called("look", 2, "b"), seen("1", 2, tool_call_id="a", error=True), seen("2", 2)]
    found = episode_of(trajectory("t", content=[instruction(), *copied, *calls]), success=False)
    assert (found.actions, found.invalid, found.turns) == (2, 1, 1)


def test_an_episode_loops_that_does_the_same_in_the_same_state() -> None:
    stuck = [each for turn in (1, 2, 3) for each in (agent_message("push", turn), seen("no", turn, state_digest="s"))]
    moving = [
        each for turn in (1, 2, 3) for each in (agent_message("push", turn), seen("ok", turn, state_digest=f"s{turn}"))
    ]
    start = [instruction(), seen("start", state_digest="s")]
    assert episode_of(trajectory("t", content=start + stuck), success=False).looped
    assert not episode_of(trajectory("t", content=start + moving), success=False).looped


def test_only_scored_trajectories_tell_of_the_model() -> None:
    runs = [trajectory(f"t{i}", task_id=f"k{i}") for i in range(3)]
    verdicts = [verdict("t0"), verdict("t1", False), verdict("t2", False, status="error")]
    assert [(each.task_id, each.success) for each in episodes_of(runs, verdicts)] == [("k0", True), ("k1", False)]
