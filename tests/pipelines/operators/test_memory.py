"""``memory``, notes and ``recombine`` as stages: success follows from what is recalled; what broke off goes on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from math import comb
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.serving.endpoints import Endpoint
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.served_model import ServedModel
from agentmill.schemas.chat import to_messages, to_openai
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Verdict
from agentmill.schemas.tables import Counts
from agentmill.synthesis.policies.completion import token_sequence
from agentmill.synthesis.policies.policy import Conversation, Turn, Unreachable
from tests import ruin_environment, vault_environment
from tests.builders import agent_message, instruction, seen, trajectory, verdict
from tests.errors import user_error
from tests.fake_openai import FakeOpenAi, Reply, text
from tests.pipelines.engine.stages import bytes_of, dropped_of, rows_of, write_table
from tests.pipelines.operators.steps import job, model, run, stage
from tests.ruin_environment import Gambler, ruin_task
from tests.vault_environment import Cracker, vault_task

ON = {"tasks": "tasks", "environments": "environments"}
HINT = "go right at once"
RUNS, RIGHT, K = 10, 3, 60


def earlier(number: int) -> Trajectory:
    """A run of a task of its own; some hold the hint."""
    done = HINT if number < RIGHT else "nothing of use"
    content = [
        instruction(f"Do thing {number}."),
        seen("Here.", state_digest="s"),
        agent_message(done),
        seen("Done.", 1),
    ]
    return trajectory(f"run{number}", task_id=f"earlier-{number}", content=content)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Path]:
    """Four tasks of gambler's ruin, and ten runs to recall, of which the last failed."""
    write_table(tmp_path / "tasks", [[ruin_task(start, 5) for start in (1, 2, 3, 4)]], Task)
    write_table(tmp_path / "environments", [[ruin_environment.SPEC, vault_environment.SPEC]], EnvironmentSpec)
    write_table(
        tmp_path / "runs",
        [[earlier(number) for number in range(5)], [earlier(n) for n in range(5, RUNS + 1)]],
        Trajectory,
    )
    passed = [verdict(f"run{number}", passed=number < RUNS) for number in range(RUNS + 1)]
    write_table(tmp_path / "verdicts", [passed], Verdict)
    with ruin_environment.registered(), vault_environment.registered():
        yield tmp_path


def actor(*turns: str, policy: str = "gambler") -> dict[str, ServedModel]:
    return {"actor": model(policy, turns=list(turns), revision=" ".join(turns))}


RECALL: dict[str, Any] = {"policy": "p", "from": "runs", "verdicts": "verdicts", **ON}


def test_random_exemplars_solve_as_many_tasks_as_they_must(world: Path) -> None:
    """Success exactly with the hint; two of ten are shown, three hold it: 1 - C(7, 2) / C(10, 2), within 99.9 %."""
    manifest = run(world, "memory", "lived", actor("1.0", HINT), k=K, shots=2, by="random", **RECALL)
    assert manifest.counts == Counts(read=4 * K, used=4 * K, dropped=0, written=4 * K)
    rows: list[Trajectory] = rows_of(world / "lived")
    helpful = {f"run{number}" for number in range(RIGHT)}
    for row in rows:
        assert f"run{RUNS}" not in row.extra["recalls"], "a failure is no exemplar"
        assert (row.outcome.status == "success") == bool(helpful & set(row.extra["recalls"]))
    value, share = 1 - comb(RUNS - RIGHT, 2) / comb(RUNS, 2), manifest.metrics["success"] / (4 * K)
    assert abs(share - value) < 3.29 * math.sqrt(value * (1 - value) / (4 * K))
    assert run(world, "check_outcome", "judged", of="lived", **ON).metrics["passed"] == manifest.metrics["success"]


def test_a_task_for_which_nothing_is_recalled_is_dropped(world: Path) -> None:
    write_table(world / "own", [[earlier(0)]], Trajectory)
    write_table(world / "both", [[ruin_task(2, 5), ruin_task(2, 5, task_id="earlier-0")]], Task)
    given = {**RECALL, "from": "own", "where": "all", "tasks": "both", "verdicts": None}
    manifest = run(world, "memory", "lived", actor("1.0", HINT), k=2, **given)
    assert manifest.counts == Counts(read=3, used=2, dropped=1, written=2)
    assert manifest.reasons == {"nothing_recalled": 1}
    assert [letter.blamed for letter in dropped_of(world / "lived")] == ["input"]
    again = run(world, "memory", "again", actor("1.0", HINT), k=2, held_out=False, **given)
    assert (again.counts.dropped, again.metrics["success"]) == (0, 4)


def test_reflections_of_one_step_serve_the_next(world: Path) -> None:
    """Reflexion over two tables: the critic's word is recalled by tasks that no critic ever saw."""
    critic = {"critic": model("sayer", turns=["Go right at once."])}
    needs = actor("1.0", "Go right at once.")
    write_table(world / "one", [[ruin_task(2, 5)]], Task)
    tried = {"policy": "p", "critic": "c", "feedback": "critic", "attempts": 2, **ON, "tasks": "one"}
    assert run(world, "revise", "tried", {**needs, **critic}, **tried).metrics["success"] == 1
    given = {**RECALL, "from": "tried", "kind": "reflections", "where": "all", "verdicts": None}
    manifest = run(world, "memory", "lived", needs, **given)
    assert (manifest.counts.used, manifest.reasons, manifest.metrics["success"]) == (3, {"nothing_recalled": 1}, 3)


def test_tokens_of_a_run_with_memory_are_those_of_its_prompts(world: Path) -> None:
    """With the fake server a token is a character, so the token sequence of a run is its conversation."""

    def answer(body: dict[str, Any]) -> Reply:
        return text("right" if HINT in str(body["messages"]) else "left")

    with FakeOpenAi(answer, with_tokens=True) as server:
        config = ModelConfig(policy="vllm", model="m", endpoints=[server.url])
        models = {"actor": ServedModel(config=config, endpoints=[Endpoint(base_url=server.url, model="m")])}
        manifest = run(world, "memory", "lived", models, shots=RUNS, **RECALL)
    assert manifest.metrics["success"] == 4
    for row in rows_of(world / "lived"):
        lived = to_openai(to_messages(row.system_prompt, row.content[:-1]))
        told = "".join(f"<{message['role']}>{message['content']}</>" for message in lived)
        assert "".join(map(chr, token_sequence(row.content))) == told
        assert told.count(HINT) == RIGHT


def test_notes_carry_a_code_through_a_narrow_context(world: Path) -> None:
    write_table(world / "vaults", [[vault_task(code) for code in "klm"]], Task)
    on = {"policy": "p", **ON, "tasks": "vaults"}
    kept = run(world, "sample", "kept", actor(policy="keeper"), context="notes", keep_turns=3, **on)
    assert (kept.metrics["success"], kept.metrics["turns"]) == (3, 27)
    lost = run(
        world, "sample", "lost", actor(policy="keeper"), context="sliding_window", keep_turns=3, context_tokens=1, **on
    )
    assert (lost.metrics["success"], lost.metrics["turns"]) == (0, 27)
    assert run(world, "check_outcome", "judged", of="kept", **{**ON, "tasks": "vaults"}).metrics["passed"] == 3
    rows = run(world, "sft", "rows", **{"from": "kept", "rows": "step"})
    assert rows.counts.written == 27


def test_an_expert_has_no_words_for_notes(world: Path) -> None:
    on, expert = {"policy": "p", "context": "notes", "keep_turns": 1, **ON}, {"actor": model("expert")}
    with user_error("needs-another-key", "'p'", "summarizer"):
        run(world, "expert", "shown", expert, **on)
    words = {"summarizer": model("sayer", turns=["Go on."])}
    manifest = run(world, "expert", "shown", {**expert, **words}, summarizer="s", **on)
    assert (manifest.counts.used, manifest.metrics["success"]) == (4, 4)


def test_only_recombination_solves_what_two_attempts_hold_halves_of(world: Path) -> None:
    write_table(world / "vaults", [[vault_task(code) for code in ("ad", "ed", "af")]], Task)
    on = {"policy": "p", **ON, "tasks": "vaults"}
    for name, guess in (("one", "ab"), ("two", "cd")):
        assert run(world, "sample", name, actor(guess, policy="cracker"), **on).metrics["success"] == 0
    third = actor("ab", "xy", policy="cracker")
    best = {"of": ["one", "two"], "pool": "best", "pool_size": 2, **on}
    again = run(world, "revise", "again", third, **best)
    assert (again.counts.written, again.metrics["success"]) == (3, 0)
    joined = run(world, "revise", "joined", third, aim="recombine", **best)
    assert (joined.counts, joined.metrics["success"]) == (Counts(read=3, used=3, dropped=0, written=3), 1)
    [solved] = [row for row in rows_of(world / "joined") if row.outcome.status == "success"]
    assert solved.task_id == "vault-ad"
    halves = {
        row.trajectory_id for name in ("one", "two") for row in rows_of(world / name) if row.task_id == "vault-ad"
    }
    assert set(solved.extra["revises"]) == halves, "the parents are kept"
    refused = run(
        world, "revise", "refused", third, of=["one", "joined"], aim="recombine", pool="best", pool_size=2, **on
    )
    assert refused.reasons == {"solved": 1}
    refined = run(world, "revise", "refined", third, of=["one", "joined"], aim="refine", **on)
    assert refined.counts == Counts(read=3, used=3, dropped=0, written=3)


def test_memory_that_broke_off_goes_on_and_ends_the_same(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int | None] = [0, None]
    act = Gambler.act

    async def counted(policy: Gambler, conversation: Conversation) -> Turn:
        if taken[1] is not None and taken[0] >= taken[1]:  # type: ignore[operator]
            raise Unreachable("nobody is there")
        taken[0] += 1  # type: ignore[operator]
        return await act(policy, conversation)

    monkeypatch.setattr(Gambler, "act", counted)
    step = {"k": 3, "shots": 2, "by": "random", "window": 1, **RECALL}
    run(world, "memory", "whole", actor("0.6", HINT), **step)
    needed, taken[:] = taken[0], [0, 12]
    with user_error("endpoint-unreachable"):
        run(world, "memory", "broken", actor("0.6", HINT), **step)
    taken[1] = None
    run(world, "memory", "broken", actor("0.6", HINT), **step)
    assert bytes_of(world / "broken") == bytes_of(world / "whole")
    longest = max(len(row.content) for row in rows_of(world / "whole")) // 2
    assert taken[0] <= needed + longest, "only what was in flight is repeated"  # type: ignore[operator]


def test_recombination_that_broke_off_goes_on_and_ends_the_same(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(world / "vaults", [[vault_task(code) for code in ("ad", "ed", "af", "xy")]], Task)
    step = {"policy": "p", "aim": "recombine", "pool": "best", "pool_size": 2, "attempts": 4, "window": 1}
    on, guesser = {**ON, "tasks": "vaults"}, actor("ab", "cd", "ef", "gh", policy="cracker")
    run(world, "revise", "whole", guesser, **step, **on)
    monkeypatch.setattr(Cracker, "taken", 0)
    monkeypatch.setattr(Cracker, "left", 15)
    with user_error("endpoint-unreachable"):
        run(world, "revise", "broken", guesser, **step, **on)
    monkeypatch.setattr(Cracker, "left", None)
    run(world, "revise", "broken", guesser, **step, **on)
    assert bytes_of(world / "broken") == bytes_of(world / "whole")
    solved = {row.task_id: row.attempt for row in rows_of(world / "whole") if row.outcome.status == "success"}
    assert solved == {"vault-ad": 1, "vault-ed": 2, "vault-af": 2}


@pytest.mark.parametrize(
    ("operator", "parameters", "message"),
    [
        ("memory", {"from": "x"}, ("rule-broken", "where: success", "verdicts")),
        ("memory", {"where": "all"}, ("missing-key", "memory")),
        ("memory", {"from": "x", "where": "all", "shots": 0}, ("invalid-value", "memory", "shots")),
        ("memory", {"from": "x", "where": "all", "kind": "notes"}, ("invalid-value", "exemplars", "reflections")),
        ("memory", {"from": "x", "where": "all", "context": "fold"}, ("rule-broken", "context: fold", "summarizer")),
        ("sample", {"summarizer": "s"}, ("rule-broken", "context: fold", "summarizer")),
        ("sample", {"context": "notes", "context_tokens": 9}, ("rule-broken", "context: notes", "keep_turns")),
        ("revise", {"aim": "recombine", "of": "x"}, ("rule-broken", "aim: recombine", "pool: best")),
        ("revise", {"aim": "recombine", "pool": "best", "pool_size": 2, "attempts": 2}, ("rule-broken", "attempts: 3")),
    ],
)
def test_mistakes_are_found_before_anything_runs(
    operator: str, parameters: dict[str, Any], message: tuple[str, ...]
) -> None:
    with user_error(*message):
        stage(operator, policy="p", **ON, **parameters)


def test_what_is_recalled_from_must_be_trajectories(world: Path) -> None:
    with user_error("wrong-record-type", "Task", "Trajectory"):
        job(world, "memory", "m", actor("1.0"), **{**RECALL, "from": "tasks"})
