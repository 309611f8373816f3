"""``replay``: earlier trajectories by band, age and cap; and phases of a curriculum."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.operators.replay import likelihood
from agentmill.schemas.records.trajectory import Outcome, Trajectory, TurnTokens
from agentmill.schemas.records.verdict import Verdict
from agentmill.schemas.tables import Manifest
from tests.builders import agent_message, generation, instruction, outcome, trajectory, verdict
from tests.errors import user_error
from tests.pipelines.engine.stages import rows_of, write_table
from tests.pipelines.operators.steps import run, stage


def sampled(name: str, round: int, probability: float | None = None, **fields: Any) -> Trajectory:
    """A trajectory of a round, each of whose tokens had this probability."""
    tokens = None
    if probability is not None:
        logprobs = [math.log(probability)] * 2
        tokens = TurnTokens(prompt_ids=[1], sampled_ids=[2, 3], logprobs=logprobs, segment_start=True)
    content = [instruction(), agent_message("go", 1, tokens=tokens)]
    return trajectory(name, **{"content": content, "generation": generation(round=round), **fields})


@pytest.fixture
def rounds(tmp_path: Path) -> Path:
    """Three new trajectories of round 3, and six of rounds 1 and 2."""
    write_table(tmp_path / "new", [[sampled(f"n{number}", 3) for number in range(3)]], Trajectory)
    old = [sampled(f"a{number}", 1, p) for number, p in enumerate((0.3, 0.5, 0.7))]
    old += [sampled(f"b{number}", 2, p) for number, p in enumerate((0.95, 0.99, None))]
    write_table(tmp_path / "old", [old[:3], old[3:]], Trajectory)
    return tmp_path


def replay(folder: Path, name: str = "replayed", **parameters: Any) -> Manifest:
    return run(folder, "replay", name, **{"of": "old", "new": "new", **parameters})


def kept(folder: Path, name: str = "replayed") -> list[str]:
    return sorted(each.trajectory_id for each in rows_of(folder / name) if each.kept)


def reasons(folder: Path, name: str = "replayed") -> dict[str, str]:
    return {each.trajectory_id: each.reason for each in rows_of(folder / name) if not each.kept}


def test_at_most_so_many_for_each_new_one_the_newest_first(rounds: Path) -> None:
    manifest = replay(rounds, cap=1)
    assert kept(rounds) == ["b0", "b1", "b2"]
    assert set(reasons(rounds).values()) == {"over_cap"}
    assert (manifest.metrics["new"], manifest.metrics["replayed"]) == (3, 3)
    assert "3 earlier trajectories for 3 new ones" in stage("replay", of="old", new="new").notes(manifest)
    replay(rounds, "more", cap=1.7)
    assert len(kept(rounds, "more")) == 5, "1.7 times 3, rounded down"


def test_new_trajectories_may_be_among_them_and_are_kept(rounds: Path) -> None:
    manifest = replay(rounds, of=["old", "new"], cap=0.4)
    assert [name for name in kept(rounds) if name[0] == "n"] == ["n0", "n1", "n2"]
    assert len(kept(rounds)) == 4
    assert (manifest.metrics["new"], manifest.metrics["replayed"]) == (3, 1)


def test_a_band_of_likelihood_has_both_ends(rounds: Path) -> None:
    replay(rounds, by="likelihood", at_least=0.5, at_most=0.95)
    assert kept(rounds) == ["a1", "a2", "b0"]
    assert reasons(rounds) == {"a0": "below_band", "b1": "above_band", "b2": "unscored"}
    found = {each.trajectory_id: each.score for each in rows_of(rounds / "replayed")}
    assert found["a2"] == pytest.approx(0.7)
    replay(rounds, "likely", by="likelihood", prefer="score", cap=0.7)
    assert kept(rounds, "likely") == ["b0", "b1"]


def test_age_counts_back_from_the_newest_earlier_round(rounds: Path) -> None:
    replay(rounds, rounds=1)
    assert kept(rounds) == ["b0", "b1", "b2"]
    assert reasons(rounds) == dict.fromkeys(("a0", "a1", "a2"), "too_old")


def test_a_round_without_a_chosen_trajectory_counts_as_one(rounds: Path) -> None:
    """No trajectory of round 2 is a success, and one of the new ones of round 3 is none."""
    names = ("a0", "a1", "a2", "n0", "n1")
    write_table(rounds / "verdicts", [[verdict(name, name="check_outcome") for name in names]], Verdict)
    replay(rounds, rounds=1, of=["old", "new"], verdicts="verdicts", where="success")
    assert kept(rounds) == ["n0", "n1"]
    assert {name: reasons(rounds)[name] for name in ("a0", "a1", "a2")} == dict.fromkeys(names[:3], "too_old")
    replay(rounds, "more", rounds=2, cap=2, of=["old", "new"], verdicts="verdicts", where="success")
    assert kept(rounds, "more") == ["a0", "a1", "a2", "n0", "n1"]


def test_where_and_selections_hold_for_new_ones_too(rounds: Path) -> None:
    verdicts = [verdict(name, passed=name in ("n0", "a0", "a1", "b0")) for name in ("n0", "n1", "n2", "a0", "a1", "b0")]
    write_table(rounds / "verdicts", [verdicts], Verdict)
    manifest = replay(rounds, verdicts="verdicts", where="success", cap=2)
    assert manifest.metrics["new"] == 1
    assert len(kept(rounds)) == 2
    assert "b0" in kept(rounds)
    run(rounds, "pick", "picked", of="new", by="first", k=1)
    assert replay(rounds, "selected", selections="picked", cap=1).metrics["new"] == 1


def test_scores_and_what_is_drawn(rounds: Path) -> None:
    lucky = [sampled("c0", 1, outcome=outcome("success")), sampled("c1", 2, outcome=outcome("failure"))]
    write_table(rounds / "old", [lucky], Trajectory)
    replay(rounds, at_least=0.5)
    assert (kept(rounds), reasons(rounds)) == (["c0"], {"c1": "below_band"})
    many = [sampled(f"d{number:02}", 1) for number in range(30)]
    write_table(rounds / "old", [many], Trajectory)
    draws = []
    for seed in range(3):
        replay(rounds, f"drawn{seed}", prefer="random", seed=seed)
        draws.append(tuple(kept(rounds, f"drawn{seed}")))
    assert len(set(draws)) == 3
    write_table(rounds / "old", [many[20:], many[:20]], Trajectory)
    replay(rounds, "again", prefer="random", seed=0)
    assert tuple(kept(rounds, "again")) == draws[0], "whatever the order of shards"


def test_the_band_of_scores_does_not_depend_on_rounding(rounds: Path) -> None:
    scores = {"c0": 0.1 + 0.7, "c1": 0.1 + 0.2, "c2": 0.79, "c3": 0.31}
    old = [sampled(name, 1, outcome=Outcome(reward=score)) for name, score in scores.items()]
    write_table(rounds / "old", [old], Trajectory)
    replay(rounds, "high", score="reward", at_least=0.8)
    replay(rounds, "low", score="reward", at_most=0.3)
    assert (kept(rounds, "high"), kept(rounds, "low")) == (["c0"], ["c1"])


def test_without_new_trajectories_nothing_is_replayed(rounds: Path) -> None:
    write_table(rounds / "new", [[]], Trajectory)
    manifest = replay(rounds)
    assert kept(rounds) == []
    assert "warning: there are no new trajectories" in str(stage("replay", of="old", new="new").notes(manifest))


def test_likelihood_is_of_own_tokens() -> None:
    assert likelihood(sampled("t", 1, 0.25)) == pytest.approx(0.25)
    assert likelihood(sampled("t", 1)) is None
    whole = sampled("t", 1, 0.25)
    copied = [*whole.content[:1], msgspec.structs.replace(whole.content[1], context_operation="copied")]
    assert likelihood(msgspec.structs.replace(whole, content=copied)) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"at_least": 1, "at_most": 0}, "no score is at least 1"),
        ({"by": "likelihood", "score": "reward", "at_least": 0}, "`score: reward` goes with"),
        ({"by": "likelihood"}, "`by: likelihood` decides nothing"),
        ({"score": "reward"}, "`score: reward` decides nothing"),
    ],
)
def test_mistakes(given: dict[str, Any], message: str) -> None:
    with user_error("rule-broken", message):
        stage("replay", of="old", new="new", **given)


def test_a_cap_is_bounded() -> None:
    with user_error("invalid-value", "cap", "1000000"):
        stage("replay", of="old", new="new", cap=1e308)


def test_a_trajectory_that_is_given_twice(rounds: Path) -> None:
    with user_error("record-twice", "a0"):
        write_table(rounds / "twice", [[sampled("a0", 1)]], Trajectory)
        replay(rounds, of=["old", "twice"])
