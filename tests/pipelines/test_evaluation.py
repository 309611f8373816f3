"""Known answers of the statistics, and what they do at the edges."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import numpy as np
import pytest
from scipy import stats

from agentmill.pipelines.evaluation import (
    Episode,
    bootstrap_mean,
    effective_tasks,
    episode_of,
    episodes_of,
    loops,
    measure,
    paired_difference,
    sign_test,
    student_interval,
    wilson,
)
from agentmill.schemas.records.trajectory import AnyItem, Outcome, TextObservation
from tests.builders import agent_message, instruction, seen, trajectory, verdict


def episode(task: str, success: bool, **changes: object) -> Episode:
    values = {"attempt": 0, "actions": 4, "invalid": 0, "turns": 4, "looped": False, "truncated": False}
    values["environment_id"] = task  # an environment of its own, unless given
    return Episode(task_id=task, success=success, **{**values, **changes})  # type: ignore[arg-type]


def alone(values: Iterable[float]) -> list[list[float]]:
    """Each value as an environment of its own."""
    return [[value] for value in values]


def outcomes(*successes: bool) -> list[Episode]:
    return [episode(f"task-{i}", success) for i, success in enumerate(successes)]


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(0, 20, 0.0, 0.1611), (20, 20, 0.8389, 1.0), (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605)],
)
def test_wilson_agrees_with_published_intervals(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


def test_wilson_agrees_with_scipy() -> None:
    expected = stats.binomtest(7, 31).proportion_ci(0.95, method="wilson")
    assert wilson(7, 31) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(("better", "worse"), [(0, 0), (5, 0), (8, 3), (3, 8), (6, 6)])
def test_sign_test_is_the_exact_binomial_test(better: int, worse: int) -> None:
    expected = stats.binomtest(better, better + worse, 0.5).pvalue if better + worse else 1.0
    assert sign_test(better, worse) == pytest.approx(expected)


def test_sign_test_of_many_environments_takes_no_time() -> None:
    began = time.process_time()
    assert sign_test(15_000, 15_200) == pytest.approx(stats.binomtest(15_000, 30_200, 0.5).pvalue)
    assert time.process_time() - began < 10


def test_shares_that_differ_in_the_last_bits_are_equal() -> None:
    assert student_interval([4 / 9, 4 / 9, math.nextafter(4 / 9, 1)]) is None
    assert student_interval([0.4, 0.5, 0.6]) == pytest.approx(stats.t.interval(0.95, 2, 0.5, 0.1 / 3**0.5))


def test_bootstrap_agrees_with_scipy_and_repeats_exactly() -> None:
    differences = [1.0] * 11 + [0.0] * 17 + [-1.0] * 4
    ours = bootstrap_mean(alone(differences))
    reference = stats.bootstrap(
        (np.array(differences),), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(1)
    ).confidence_interval
    assert ours == pytest.approx((reference.low, reference.high), abs=0.035)
    assert ours == bootstrap_mean(alone(reversed(differences)))


def test_equal_differences_leave_room_for_unseen_tasks() -> None:
    unseen = 1 - 0.025 ** (1 / 20)
    assert bootstrap_mean(alone([0.0] * 20)) == pytest.approx((-unseen, unseen))
    assert bootstrap_mean(alone([1.0] * 20)) == pytest.approx((1 - 2 * unseen, 1.0))


def test_bootstrap_covers_the_true_difference_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(7)
    draws = generator.choice([-1.0, 0.0, 1.0], p=[0.1, 0.6, 0.3], size=(400, 40))
    covered = sum(low <= 0.2 <= high for low, high in map(bootstrap_mean, map(alone, draws.tolist())))
    assert 0.91 <= covered / 400 <= 0.98


def test_paired_difference_uses_shared_tasks_only() -> None:
    base = [*outcomes(False, False, True, False), episode("only-base", True)]
    tuned = [*outcomes(True, True, False, True), episode("only-tuned", True)]
    difference = paired_difference(base, tuned)
    assert difference is not None
    assert (difference.value, difference.n, difference.better, difference.worse) == (0.5, 4, 3, 1)
    assert difference.p_value == pytest.approx(0.625)
    assert difference.ci95[0] < 0.5 < difference.ci95[1]


def test_paired_difference_pairs_by_task_and_not_by_order() -> None:
    base = outcomes(True, False, True, False)
    assert paired_difference(base, list(reversed(base))).value == 0.0  # type: ignore[union-attr]
    assert paired_difference(outcomes(True), [episode("other", True)]) is None


def test_tasks_of_one_environment_count_as_one_where_they_are_alike() -> None:
    alike = [episode(f"{env}-{i}", env < 3, environment_id=str(env)) for env in range(6) for i in range(20)]
    measures = measure(alike)
    assert (measures.n, measures.environments, measures.success) == (120, 6, 0.5)
    low, high = measures.ci95  # type: ignore[misc]
    # Five, one less than environments, times the squared ratio of Student's 1.980 and 2.571 at 119 and 5.
    effective = effective_tasks([[float(env < 3)] * 20 for env in range(6)])
    assert effective == pytest.approx(5 * (1.980 / 2.571) ** 2, rel=0.02)
    assert (low, high) == pytest.approx(wilson(effective / 2, effective))


def test_tasks_with_an_environment_each_count_as_independent() -> None:
    assert effective_tasks(alone([1.0, 0.0, 0.0, 1.0, 1.0])) == pytest.approx(5)
    assert measure(outcomes(True, False, True)).ci95 == pytest.approx(wilson(2, 3))


def test_equal_outcomes_and_one_environment_tell_nothing_of_the_spread() -> None:
    assert effective_tasks([[1.0] * 8, [1.0] * 8, [1.0]]) == 3
    assert effective_tasks([[1.0, 0.0, 1.0, 0.0]]) == 1
    one = [episode(f"t{i}", True, environment_id="e") for i in range(50)]
    assert measure(one).ci95 == pytest.approx(wilson(1, 1))


def test_environments_that_balance_out_do_not_make_more_of_the_tasks() -> None:
    assert effective_tasks([[1.0, 0.0]] * 400) == pytest.approx(800, rel=0.01)
    assert effective_tasks([[1.0, 0.0]] * 2) == pytest.approx(1), "two environments may balance out by chance"


@pytest.mark.parametrize("environments", [5, 9, 30])
def test_the_interval_of_a_model_covers_new_environments_as_often_as_it_says(environments: int) -> None:
    chance = np.random.default_rng(3)
    rates = chance.beta(1.2, 1.2, size=(300, environments))  # mean 0.5: some environments are easy, some are hard
    drawn = [[(chance.random(12) < rate).astype(float).tolist() for rate in row] for row in rates]

    def covered(effective: float, groups: list[list[float]]) -> bool:
        share = sum(map(sum, groups)) / (12 * environments)
        low, high = wilson(share * effective, effective)
        return low <= 0.5 <= high

    assert 0.92 <= sum(covered(effective_tasks(groups), groups) for groups in drawn) / 300 <= 0.99
    assert sum(covered(12 * environments, groups) for groups in drawn) / 300 < 0.8, "as if tasks were independent"


def test_the_interval_of_a_difference_covers_new_environments_about_as_often_as_it_says() -> None:
    chance = np.random.default_rng(4)
    shifts = chance.normal(0.1, 0.3, size=(200, 30)).clip(-1, 1)
    groups = [[(chance.random(8) < abs(shift)).astype(float) * np.sign(shift) for shift in row] for row in shifts]
    true = float(chance.normal(0.1, 0.3, 200_000).clip(-1, 1).mean())
    covered = sum(low <= true <= high for low, high in (bootstrap_mean([g.tolist() for g in row]) for row in groups))
    assert 0.9 <= covered / 200 <= 0.98


def test_a_paired_difference_is_as_sure_as_its_environments_allow() -> None:
    base = [episode(f"{env}-{i}", False, environment_id=str(env)) for env in range(4) for i in range(25)]
    tuned = [episode(f"{env}-{i}", env > 0, environment_id=str(env)) for env in range(4) for i in range(25)]
    difference = paired_difference(base, tuned)
    assert difference is not None
    assert (difference.value, difference.n, difference.better, difference.worse) == (0.75, 100, 75, 0)
    assert (difference.environments, difference.environments_better, difference.environments_worse) == (4, 3, 0)
    assert difference.p_value == 0.25
    assert difference.ci95[0] <= 0.25


def test_equal_differences_of_few_environments_are_not_sure() -> None:
    unseen = 1 - 0.025 ** (1 / 2)
    assert bootstrap_mean([[1.0] * 30, [1.0] * 30]) == pytest.approx((1 - 2 * unseen, 1.0))


def test_the_interval_of_few_environments_is_students() -> None:
    values = [0.4, 0.1, 0.25]
    assert bootstrap_mean(alone(values)) == pytest.approx(stats.t.interval(0.95, 2, 0.25, stats.sem(values)))
    assert bootstrap_mean([[0.4], [0.41]]) == pytest.approx(stats.t.interval(0.95, 1, 0.405, 0.005))
    # Mean 0.5; residuals sum to 1 and -1 by environment, so the variance is 2 / 1 * (1 + 1) / 4**2.
    assert bootstrap_mean([[1.0, 1.0], [0.0, 0.0]], confidence=0.5) == pytest.approx((0.0, 1.0))
    assert bootstrap_mean([[1.0], [-1.0]]) == (-1.0, 1.0), "no more than is possible"


def test_from_ten_environments_on_the_interval_is_that_of_the_bootstrap() -> None:
    values = [0.0] * 8 + [1.0]
    assert bootstrap_mean(alone(values))[0] < 0, "Student's, which is symmetric"
    assert bootstrap_mean(alone([*values, 0.0]))[0] == 0, "no resample has a mean below 0"


@pytest.mark.parametrize("environments", [2, 3, 5, 9])
def test_the_interval_of_few_environments_covers_as_often_as_it_says(environments: int) -> None:
    chance = np.random.default_rng(5)
    effects = chance.normal(0.1, 0.2, size=(400, environments, 1))
    drawn = (effects + chance.normal(0, 0.2, size=(400, environments, 6))).tolist()
    assert 0.92 <= sum(low <= 0.1 <= high for low, high in map(bootstrap_mean, drawn)) / 400 <= 0.98


def test_a_task_tried_often_counts_once() -> None:
    base = [episode("a", False, attempt=i) for i in range(8)] + [episode("b", True)]
    measures = measure(base)
    assert (measures.n, measures.episodes, measures.success) == (2, 9, 0.5)
    assert measures.ci95 == pytest.approx(wilson(1, 2))
    assert measures.pass_at_k == {"1": 0.5, "2": 0.0, "4": 0.0, "8": 0.0}
    assert measures.pass_at_k_tasks == {"1": 2, "2": 1, "4": 1, "8": 1}


def test_measures_of_episodes() -> None:
    episodes = [
        episode("a", True, actions=3, turns=3, completion_tokens=30, attempt=0),
        episode("a", False, actions=5, invalid=4, turns=5, looped=True, completion_tokens=50, attempt=1),
        episode("b", False, actions=2, invalid=1, turns=2, truncated=True, completion_tokens=20, attempt=0),
        episode("b", True, actions=2, turns=2, completion_tokens=20, attempt=1),
    ]
    measures = measure(episodes)
    assert measures.success == 0.5
    assert measures.pass_at_k == {"1": 0.5, "2": 1.0}
    assert measures.invalid_action_rate == pytest.approx(5 / 12)
    assert (measures.loop_rate, measures.truncation_rate) == (0.25, 0.25)
    assert measures.turns_per_success == 6.0
    assert measures.completion_tokens_per_success == 60.0


def test_nothing_to_divide_by_is_none_and_never_nan() -> None:
    nothing = measure([])
    assert (nothing.n, nothing.success, nothing.ci95, nothing.invalid_action_rate) == (0, None, None, None)
    failed = measure(outcomes(False, False))
    assert failed.success == 0.0
    assert failed.turns_per_success is None
    assert failed.completion_tokens_per_success is None
    assert not any(isinstance(value, float) and math.isnan(value) for value in vars_of(failed))


def vars_of(record: object) -> list[object]:
    return [getattr(record, name) for name in record.__struct_fields__]  # type: ignore[attr-defined]


def test_a_loop_is_the_same_action_from_the_same_state_three_times() -> None:
    assert not loops([("s", "a"), ("s", "a"), ("t", "a")])
    assert loops([("s", "a"), ("t", "b"), ("s", "a"), ("u", "c"), ("s", "a")])


def test_an_episode_that_ran_out_of_time_is_unscored_unless_it_passed() -> None:
    late = Outcome(truncated=True, reason="episode_timeout")
    runs = [trajectory("a"), trajectory("b", outcome=late), trajectory("c", outcome=late)]
    verdicts = [verdict(name, passed=name != "b") for name in "abc"]
    assert [each.success for each in episodes_of(runs, verdicts)] == [True, True]
    limited = trajectory("b", outcome=Outcome(truncated=True, reason="max_turns"))
    assert [each.success for each in episodes_of([limited], verdicts)] == [False]


def test_words_of_other_agents_are_no_actions_and_an_objection_is_no_refusal() -> None:
    content = [
        instruction(),
        seen("You are at home."),
        agent_message("Put the ball into the box.", 1, role="planner"),
        agent_message("fly to box", 2, role="actor"),
        TextObservation(content="Not like this.", source="agent", name="critic", turn=2, error=True),
        agent_message("fly to box", 3, role="actor"),
        agent_message("OK", 3, role="critic"),
        seen("You cannot fly.", 3, error=True),
        agent_message("OK", 4, role="critic"),
        agent_message("put ball into box", 4, role="actor"),
        seen("Done.", 4),
    ]
    found = episode_of(trajectory(content=content), True)
    assert (found.actions, found.invalid, found.turns, found.looped) == (3, 1, 3, False)


def test_summaries_of_earlier_turns_hide_no_loop() -> None:
    """Each summary has other words; the state is what the environment showed last."""
    content: list[AnyItem] = [instruction(), seen("A wall.")]
    for turn in range(1, 5):
        content += [agent_message("push", turn), seen("A wall.", turn)]
        content.append(
            TextObservation(content=f"So far {turn}.", source="environment", turn=turn, context_operation="condense")
        )
    assert episode_of(trajectory(content=content), False).looped
