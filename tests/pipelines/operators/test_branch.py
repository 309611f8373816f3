"""``branch`` and ``revise`` as stages: chains of steps over a world whose values are known, and how they go on."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.operators.pick import turns
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Action, Trajectory
from agentmill.schemas.records.verdict import Label
from agentmill.schemas.tables import Counts
from agentmill.synthesis.environments import ENVIRONMENTS
from agentmill.synthesis.policies.policy import ContextOverflow, Conversation, Turn, Unreachable
from tests.builders import trajectory
from tests.errors import user_error
from tests.pipelines.engine.stages import bytes_of, dropped_of, rows_of, write_table
from tests.pipelines.operators.steps import job, model, run, stage
from tests.ruin_environment import SPEC, Gambler, registered, ruin_task, win_probability

ON = {"tasks": "tasks", "environments": "environments"}
P = 0.6


def actor(*turns: str, policy: str = "gambler", **others: Any) -> dict[str, Any]:
    return {"actor": model(policy, turns=list(turns), revision=" ".join(turns)), **others}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Path]:
    """Four tasks of gambler's ruin, and on each a run that goes left until it loses."""
    write_table(tmp_path / "tasks", [[ruin_task(start, 5) for start in (1, 2, 3, 4)]], Task)
    write_table(tmp_path / "environments", [[SPEC]], EnvironmentSpec)
    with registered():
        run(tmp_path, "sample", "lost", actor("0.0"), policy="p", **ON)
        yield tmp_path


def test_monte_carlo_values_of_all_states_of_failed_runs(world: Path) -> None:
    """The chain of IPR and EEF: sample, verify, branch from the failures; 99.9 % intervals around the known values."""
    run(world, "check_outcome", "verdicts", of="lost", **ON)
    manifest = run(
        world, "branch", "tried", actor(str(P)), policy="p", of="lost", verdicts="verdicts", where="failure", k=60, **ON
    )
    assert manifest.counts == Counts(read=600, used=600, dropped=0, written=600)
    outcomes = defaultdict(list)
    starts = {row.trajectory_id: row for row in rows_of(world / "lost")}
    for row in rows_of(world / "tried"):
        start = int(starts[row.parent_id].task_id.split("-")[1])
        outcomes[start - row.branch_turn + 1].append(row.outcome.status == "success")
    assert {number: len(found) for number, found in outcomes.items()} == {1: 240, 2: 180, 3: 120, 4: 60}
    for number, found in outcomes.items():
        value, n = win_probability(number, 5, P), len(found)
        assert abs(sum(found) / n - value) < 3.29 * math.sqrt(value * (1 - value) / n), number
    judged = run(world, "check_outcome", "judged", of="tried", **ON)
    assert judged.metrics == {"scored": 600.0, "passed": manifest.metrics["success"]}


def test_what_cannot_be_branched_from_is_dropped_with_its_reason(world: Path) -> None:
    won = run(world, "sample", "won", actor("1.0"), policy="p", **ON)
    assert won.metrics["success"] == 4
    run(world, "check_outcome", "verdicts", of=["lost", "won"], **ON)
    foreign = trajectory("foreign", task_id="ruin-2-5", generation=None)
    homeless = msgspec.structs.replace(rows_of(world / "lost")[0], trajectory_id="homeless", task_id="nowhere")
    write_table(world / "strange", [[foreign, homeless]], Trajectory)
    parameters = {"policy": "p", "k": 2, "turns": "last", "depth": 1, **ON}
    manifest = run(
        world, "branch", "b", actor("1.0"), of=["lost", "won"], verdicts="verdicts", where="failure", **parameters
    )
    assert (manifest.counts, manifest.reasons) == (Counts(read=12, used=8, dropped=4, written=8), {"not_failure": 4})
    strange = run(world, "branch", "s", actor("1.0"), of="strange", **parameters)
    assert (strange.counts.used, strange.reasons) == (0, {"not_generated": 1, "no_task": 1})
    errors = run(world, "branch", "e", actor("1.0"), of="lost", **{**parameters, "turns": "first_error"})
    assert (errors.counts, errors.reasons) == (Counts(read=4, used=0, dropped=4, written=0), {"no_turn": 4})


def test_a_run_without_a_turn_that_can_be_removed_is_dropped(world: Path) -> None:
    removed = {"policy": "p", "of": "lost", "then": "recorded", "edits": ["remove"], **ON}
    manifest = run(world, "branch", "b", actor("1.0"), **removed)
    # Of runs of 1 to 4 turns all but the last one can be removed.
    assert (manifest.counts.read, manifest.reasons["no_turn"]) == (1 + 2 + 3 + 1, 1)
    assert [letter.reason for letter in dropped_of(world / "b")].count("no_turn") == 1


def test_no_branch_starts_from_a_state_that_a_model_made_up(world: Path) -> None:
    imagined = json.dumps(
        {"turns": [{"action": "right", "observation": "One more."}] * 3, "ending": {"status": "unfinished"}}
    )
    run(world, "imagine", "imagined", actor(imagined, policy="sayer"), policy="p", **ON)
    manifest = run(world, "branch", "b", actor("1.0"), policy="p", of=["lost", "imagined"], turns="last", **ON)
    assert (manifest.counts, manifest.reasons) == (Counts(read=8, used=4, dropped=4, written=4), {"imagined": 4})


def test_no_branch_starts_from_an_answer_without_tools(world: Path) -> None:
    run(world, "sample", "answers", actor("5", policy="sayer"), policy="p", tools="none", **ON)
    manifest = run(world, "branch", "b", actor("1.0"), policy="p", of=["lost", "answers"], turns="last", **ON)
    assert (manifest.counts, manifest.reasons) == (Counts(read=8, used=4, dropped=4, written=4), {"closed_book": 4})


def test_a_world_that_changed_since_drops_each_branch(world: Path) -> None:
    write_table(world / "shifted", [[ruin_task(start, 5, drift=1) for start in (1, 2)]], Task)
    manifest = run(
        world,
        "branch",
        "b",
        actor("1.0"),
        policy="p",
        of="lost",
        turns="last",
        tasks="shifted",
        environments=ON["environments"],
    )
    assert manifest.reasons == {"replay_diverged": 2, "no_task": 2}
    assert {letter.blamed for letter in dropped_of(world / "b")} == {"environment", "input"}


def test_a_teacher_corrects_the_last_turn_of_failures(world: Path) -> None:
    others = {"teacher": model("gambler", turns=["1.0"])}
    manifest = run(world, "branch", "c", actor("0.0", **others), policy="p", teacher="t", of="lost", turns="last", **ON)
    assert manifest.counts.written == 4
    for row in rows_of(world / "c"):
        own = [item for item in row.content if item.context_operation is None]
        assert [item.agent for item in own if hasattr(item, "tokens")] == ["teacher", None, None]
    settled = job(world, "branch", "c", actor("0.0", **others), policy="p", teacher="t", of="lost", turns="last", **ON)
    assert settled.finished()


def test_labels_say_where_to_branch_and_what_to_do(world: Path) -> None:
    """Counterfactuals from a table: the fix of one turn of one run, and the first step that a judge called wrong."""
    [run_of_four] = [row for row in rows_of(world / "lost") if row.task_id == "ruin-4-5"]
    [*_, third] = [
        place for place, item in enumerate(run_of_four.content) if item.turn == 3 and hasattr(item, "tokens")
    ]
    name = run_of_four.trajectory_id
    said = [
        Label(trajectory_id=name, name="fix", value="right", labeller="judge", item=third),
        Label(trajectory_id=name, name="step", value="wrong", labeller="judge", item=third),
    ]
    write_table(world / "labels", [said], Label)
    parameters = {"policy": "p", "of": "lost", "labels": "labels", **ON}
    fixed = run(world, "branch", "fixed", actor("0.0"), given="fix", **parameters)
    assert (fixed.counts, fixed.reasons) == (Counts(read=4, used=1, dropped=3, written=1), {"no_turn": 3})
    [row] = rows_of(world / "fixed")
    assert [item.content for item in row.content if hasattr(item, "tokens")] == ["left", "left", "right", *["left"] * 3]
    wrong = {"label": "step", "equals": "wrong"}
    error = run(world, "branch", "error", actor("1.0"), turns="first_error", error=wrong, k=2, **parameters)
    assert error.counts == Counts(read=5, used=2, dropped=3, written=2)
    assert [row.branch_turn for row in rows_of(world / "error")] == [3, 3]


def test_branches_make_step_pairs_and_spliced_rows(world: Path) -> None:
    """Each turn of each lost run against the turn that wins from there; each lost run with a good way on."""
    run(world, "branch", "won", actor("1.0"), policy="p", of="lost", turns="all", **ON)
    both = {"from": ["lost", "won"]}
    pairs = run(world, "step_pairs", "pairs", **both)
    assert pairs.counts.written == 1 + 2 + 3 + 4
    sides = {(row.chosen[0].content, row.rejected[0].content) for row in rows_of(world / "pairs")}
    assert sides == {("right", "left")}
    assert run(world, "spliced", "rows", **both).counts.written == 4


@pytest.mark.parametrize("family", sorted(ENVIRONMENTS))
def test_every_turn_of_every_world_can_be_branched_from(family: str, tmp_path: Path) -> None:
    """The recorded states are reached in worlds of chance, too; the expert goes on from them as it did."""
    examples = ENVIRONMENTS.load(family).examples()
    write_table(
        tmp_path / "environments", [list({spec.environment_id: spec for spec, _ in examples}.values())], EnvironmentSpec
    )
    write_table(tmp_path / "tasks", [[task for _, task in examples]], Task)
    run(tmp_path, "expert", "shown", {"actor": model("expert")}, policy="p", **ON)
    manifest = run(tmp_path, "branch", "again", {"actor": model("expert")}, policy="p", of="shown", **ON)
    assert (manifest.counts.dropped, manifest.counts.used) == (
        0,
        sum(turns(row) for row in rows_of(tmp_path / "shown")),
    )
    shown = {row.trajectory_id: row for row in rows_of(tmp_path / "shown")}
    for row in rows_of(tmp_path / "again"):
        parent = shown[row.parent_id]
        assert [msgspec.structs.replace(item, context_operation=None) for item in row.content] == parent.content
        assert row.outcome == parent.outcome


def test_a_context_that_gets_too_long_is_folded_by_a_model(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    act = Gambler.act

    async def narrow(policy: Gambler, conversation: Conversation) -> Turn:
        if len(conversation.content) > 7:
            raise ContextOverflow("more than seven items")
        return await act(policy, conversation)

    monkeypatch.setattr(Gambler, "act", narrow)
    write_table(world / "long", [[ruin_task(1, 9)]], Task)
    on = {"policy": "p", "tasks": "long", "environments": "environments"}
    cut = run(world, "sample", "cut", actor("1.0"), **on)
    assert (cut.metrics["truncated"], cut.metrics["success"]) == (1, 0)
    others = {"summarizer": model("sayer", turns=["All well so far."])}
    fold = {"context": "fold", "summarizer": "s", "keep_turns": 1}
    folded = run(world, "sample", "folded", actor("1.0", **others), **fold, **on)
    assert (folded.metrics["truncated"], folded.metrics["success"], folded.metrics["turns"]) == (0, 1, 8)
    [row] = rows_of(world / "folded")
    marks = [item for item in row.content if item.context_operation == "fold"]
    assert [mark.turn for mark in marks] == [2, 4, 6]
    assert "All well so far." in marks[0].content
    assert run(world, "check_outcome", "verdicts", of="folded", **{**ON, "tasks": "long"}).metrics["passed"] == 1


def test_reflexion_solves_what_a_reflection_can_solve(world: Path) -> None:
    """The actor goes right only if the advice is in its prompt, which the critic gives from its second word on."""
    critic = {"critic": model("sayer", turns=["Try harder.", "Go right at once."])}
    needs = actor("1.0", "Go right at once.", **critic)
    parameters = {"policy": "p", "critic": "c", "feedback": "critic", "attempts": 3, "window": 1, **ON}
    manifest = run(world, "revise", "revised", needs, of="lost", **parameters)
    assert manifest.counts == Counts(read=4, used=4, dropped=0, written=5)
    assert manifest.metrics["success"] == 4
    rows = {row.trajectory_id: row for row in rows_of(world / "revised")}
    lost = {row.trajectory_id for row in rows_of(world / "lost")}
    assert all(row.parent_id in lost or rows[row.parent_id].outcome.status == "failure" for row in rows.values())
    again = run(world, "revise", "again", needs, of=["lost", "revised"], **parameters)
    assert (again.counts, again.reasons) == (Counts(read=4, used=0, dropped=4, written=0), {"solved": 4})


def test_from_scratch_and_only_what_was_tried(world: Path) -> None:
    fresh = run(world, "revise", "fresh", actor("0.0"), policy="p", attempts=2, **ON)
    assert fresh.counts == Counts(read=4, used=4, dropped=0, written=8)
    assert sorted(row.attempt for row in rows_of(world / "fresh")) == [0] * 4 + [1] * 4
    write_table(world / "more", [[*rows_of(world / "tasks"), ruin_task(2, 7)]], Task)
    some = run(world, "revise", "some", actor("0.0"), policy="p", of="lost", tasks="more", environments="environments")
    assert (some.counts, some.reasons) == (Counts(read=5, used=4, dropped=1, written=4), {"no_attempt": 1})


def test_runs_with_tools_are_not_branched_from_by_commands(world: Path) -> None:
    caller = actor("1.0")
    run(world, "sample", "called", caller, policy="p", scaffold="tools", max_turns=1, **ON)
    write_table(world / "both", [[*rows_of(world / "called"), *rows_of(world / "lost")]], Trajectory)
    constrained = run(
        world, "branch", "constrained", caller, policy="p", of="both", turns="last", constrain="admissible", **ON
    )
    assert (constrained.counts, constrained.reasons) == (Counts(read=8, used=4, dropped=4, written=4), {"not_text": 4})


@pytest.mark.parametrize("rest", [{"depth": 1}, {"then": "recorded"}])
def test_several_branches_of_turns_that_nobody_draws_are_refused(rest: dict[str, Any]) -> None:
    models = {"actor": ModelConfig(policy="openai", model="m", endpoints=["http://localhost:1"])}
    given: dict[str, Any] = {"policy": "p", "of": "x", "given": "fix", **ON, **rest}
    with user_error("draws-equal", "k: 3", "given"):
        stage("branch", k=3, **given).check_models(models)
    stage("branch", k=1, **given).check_models(models)
    stage("branch", k=3, distinct=True, **given).check_models(models)
    stage("branch", k=3, **{**given, "then": "actor", "depth": "end"}).check_models(models)


def test_several_branches_of_an_expert_that_never_errs_are_refused() -> None:
    expert = {"actor": ModelConfig(policy="expert")}
    with user_error("draws-equal", "k: 2", "an expert keeps to its plan"):
        stage("branch", k=2, policy="p", of="x", **ON).check_models(expert)
    stage("branch", k=2, policy="p", of="x", distinct=True, **ON).check_models(expert)
    stage("branch", k=2, policy="p", of="x", **ON).check_models({"actor": ModelConfig(policy="expert", mistakes=0.2)})
    drawn = {**expert, "teacher": ModelConfig(policy="openai", model="m", endpoints=["http://localhost:1"])}
    stage("branch", k=2, policy="p", teacher="t", of="x", **ON).check_models(drawn)


def test_an_expert_with_thoughts_branches_from_what_has_room_for_them(world: Path) -> None:
    run(world, "sample", "called", actor("1.0"), policy="p", scaffold="tools", max_turns=1, **ON)
    write_table(world / "both", [[*rows_of(world / "called"), *rows_of(world / "lost")]], Trajectory)
    thinker = {"actor": model("expert", thoughts="plan")}
    for step in (stage("branch", policy="p", of="x", **ON), stage("inject", policy="p", of="x", then="actor", **ON)):
        step.check_models({"actor": thinker["actor"].config})
    planned = run(world, "branch", "planned", thinker, policy="p", of="both", turns="last", **ON)
    assert (planned.counts.written, planned.reasons) == (4, {"commands_alone": 4})
    thoughts = [
        item.description for row in rows_of(world / "planned") for item in row.content if isinstance(item, Action)
    ]
    assert all(thought.startswith("Plan: right") for thought in thoughts)


def test_invalid_actions_are_marked_and_the_rows_learn_the_corrections(world: Path) -> None:
    stutterer = actor("jump", "right", "right", "right", "right", "right", policy="scripted")
    run(world, "revise", "steps", stutterer, policy="p", level="step", **ON)
    manifest = run(world, "reflection", "rows", **{"from": "steps"})
    assert manifest.counts == Counts(read=4, used=4, dropped=0, written=4)
    assert [[m.content for m in row.messages if m.train] for row in rows_of(world / "rows")] == [["right"]] * 4


@pytest.mark.parametrize(
    ("operator", "parameters"),
    [("branch", {"k": 3}), ("revise", {"attempts": 2}), ("revise", {"level": "step", "attempts": 4})],
)
def test_what_broke_off_goes_on_and_ends_the_same(
    operator: str, parameters: dict[str, Any], world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's server is gone after twelve turns; what has ended by then is not done again."""
    step = {"policy": "p", "window": 1, **({} if "level" in parameters else {"of": "lost"}), **parameters, **ON}
    turns = Turns(monkeypatch)
    run(world, operator, "whole", actor(str(P)), **step)
    needed, turns.taken, turns.left = turns.taken, 0, 12
    with user_error("endpoint-unreachable"):
        run(world, operator, "broken", actor(str(P)), **step)
    assert not (world / "broken" / "manifest.json").exists()
    turns.left = None
    run(world, operator, "broken", actor(str(P)), **step)
    assert bytes_of(world / "broken") == bytes_of(world / "whole")
    together = parameters["attempts"] if parameters.get("attempts") == 2 else 1
    longest = max(len(row.content) for row in rows_of(world / "whole")) // 2 * together
    assert turns.taken <= needed + longest, "only what was in flight is repeated"


class Turns:
    """Counts the turns of gamblers, and lets their server vanish when none are ``left``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken = 0
        self.left: int | None = None
        act = Gambler.act

        async def counted(policy: Gambler, conversation: Conversation) -> Turn:
            if self.left is not None and self.taken >= self.left:
                raise Unreachable("nobody is there")
            self.taken += 1
            return await act(policy, conversation)

        monkeypatch.setattr(Gambler, "act", counted)


@pytest.mark.parametrize(
    ("operator", "parameters", "message"),
    [
        ("branch", {"of": "x", "n": 2}, ("rule-broken", "turns: even")),
        ("branch", {"of": "x", "where": "failure"}, ("rule-broken", "where: failure", "verdicts")),
        ("branch", {"of": "x", "context": "fold"}, ("rule-broken", "context: fold", "summarizer")),
        ("branch", {"of": "x", "given": "fix", "teacher": "t"}, ("rule-broken", "branch", "given")),
        (
            "branch",
            {"of": "x", "then": "recorded", "edits": ["remove"], "teacher": "t"},
            ("rule-broken", "edits: [remove]", "teacher"),
        ),
        (
            "branch",
            {"of": "x", "then": "recorded", "edits": ["remove"], "turns": "last"},
            ("rule-broken", "edits: [remove]", "turns"),
        ),
        ("revise", {"feedback": "critic"}, ("rule-broken", "feedback: critic")),
        ("branch", {"of": "x", "scaffold": "tools"}, ("rule-broken", "scaffold")),
        ("revise", {}, ("rule-broken", "attempts: 2")),
        ("revise", {"level": "step", "pool": "best", "pool_size": 3}, ("rule-broken", "`pool`", "level: episode")),
        ("revise", {"of": "x", "level": "step"}, ("rule-broken", "of", "level: episode")),
        ("sample", {"constrain": "admissible", "scaffold": "tools"}, ("rule-broken", "scaffold: text")),
    ],
)
def test_mistakes_are_found_before_anything_runs(
    operator: str, parameters: dict[str, Any], message: tuple[str, ...]
) -> None:
    with user_error(*message):
        stage(operator, policy="p", **ON, **parameters)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"given": "fix"}, ("needs-another-key", "given: fix", "labels")),
        (
            {"turns": "first_error", "error": {"value": "q", "at_most": 0.1}},
            ("needs-another-key", "error: {value: q}", "values"),
        ),
    ],
)
def test_what_is_asked_of_a_table_needs_the_table(
    parameters: dict[str, Any], message: tuple[str, ...], world: Path
) -> None:
    with user_error(*message):
        job(world, "branch", "b", actor("1.0"), policy="p", of="lost", **parameters, **ON)
