"""``dedup``: which trajectory of each group stays, why the others do not, and that nothing else decides."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.operators.dedup import Dedup, tokens_of
from agentmill.pipelines.operators.operator import order_config
from agentmill.schemas.records.trajectory import ApiAction, CodeAction, Trajectory
from agentmill.schemas.records.verdict import Selection, Verdict
from agentmill.schemas.tables import Counts, Manifest, Table
from tests.builders import agent_message, called, instruction, outcome, seen, trajectory, verdict
from tests.errors import user_error
from tests.pipelines.engine.stages import rows_of, write_table
from tests.pipelines.operators.steps import job, run, stage

WORDS = [f"word{number}" for number in range(200)]


def text(trajectory_id: str, changed: int = 0, **fields: Any) -> Trajectory:
    """A run of 200 words, the last ones changed: 196 shingles, of which ``changed`` are in this one alone."""
    words = [*WORDS[: 200 - changed], *(f"{trajectory_id}{number}" for number in range(changed))]
    content = [instruction(" ".join(words[:100])), agent_message(" ".join(words[100:]))]
    return trajectory(trajectory_id, **{"content": content, **fields})


def acted(trajectory_id: str, *places: int, **fields: Any) -> Trajectory:
    """A run of calls, with a thought of its own before each, and the digests of the states."""
    content: list[Any] = [instruction(f"For {trajectory_id}.")]
    for turn, place in enumerate(places, 1):
        thought, call_id = f"{trajectory_id} thinks {turn}", f"{trajectory_id}-{turn}"
        call = msgspec.structs.replace(called("go", turn, call_id, x=place, y=1), description=thought)
        content += [call, seen(f"{trajectory_id} sees {turn}", turn, state_digest=f"state{place}")]
    return trajectory(trajectory_id, content=content, **fields)


def write(folder: Path, *rows: Trajectory, name: str = "runs") -> None:
    write_table(folder / name, [rows], Trajectory)


def made(folder: Path, name: str = "unique", **parameters: Any) -> Manifest:
    return run(folder, "dedup", name, **{"of": "runs", **parameters})


def dropped(folder: Path, name: str = "unique", **parameters: Any) -> dict[str, str]:
    """The reasons of what is not kept."""
    manifest = made(folder, name, **parameters)
    rows = rows_of(folder / name)
    metrics = manifest.metrics
    assert manifest.counts == Counts(read=len(rows), used=len(rows), dropped=0, written=len(rows))
    assert all(row.kept is (row.reason is None) for row in rows)
    assert metrics["kept"] + sum(n for name, n in metrics.items() if name.startswith("left_out.")) == len(rows)
    return {row.trajectory_id: row.reason for row in rows if not row.kept}


def test_equal_texts(tmp_path: Path) -> None:
    write(tmp_path, text("c"), text("a"), text("b", 1), text("d", system_prompt="Another."), text("e", task_id="t2"))
    assert dropped(tmp_path) == {"c": "duplicate: equal to a", "e": "duplicate: equal to a"}
    assert {row.trajectory_id: row.score for row in rows_of(tmp_path / "unique")} == {
        "a": None,
        "b": None,
        "c": 1.0,
        "d": None,
        "e": 1.0,
    }


def test_near_duplicates_by_text(tmp_path: Path) -> None:
    # 196 shingles each: 176 / 216 for b, 171 / 221 for c, and nothing that b and c share that a lacks.
    write(tmp_path, text("a"), text("b", 20), text("c", 25), text("d", 200))
    assert dropped(tmp_path, near=0.8) == {"b": "near_duplicate: of a, Jaccard 0.81"}
    (row,) = [row for row in rows_of(tmp_path / "unique") if row.trajectory_id == "b"]
    assert row.score == pytest.approx(176 / 216)


def test_the_system_prompt_makes_no_near_duplicates(tmp_path: Path) -> None:
    prompt = " ".join(WORDS)
    write(tmp_path, *(trajectory(name, content=[instruction(f"{name} {name}")], system_prompt=prompt) for name in "ab"))
    assert dropped(tmp_path, near=0.5) == {}
    write(tmp_path / "two", text("a"), text("b", system_prompt="Another."))
    assert dropped(tmp_path / "two", near=0.5) == {"b": "near_duplicate: of a, Jaccard 1.00"}


def test_by_actions(tmp_path: Path) -> None:
    places = list(range(20))
    write(
        tmp_path,
        acted("a", *places),
        acted("b", *places),
        acted("c", *places[:19], 30),  # 18 / 20: 18 shingles shared, one of each alone
        acted("d", *reversed(places)),
    )
    assert dropped(tmp_path, "exact", on="actions") == {"b": "duplicate: equal to a"}
    assert dropped(tmp_path, on="actions", near=0.85) == {
        "b": "duplicate: equal to a",
        "c": "near_duplicate: of a, Jaccard 0.90",
    }
    assert set(dropped(tmp_path, "sets", on="actions", near=0.8, shingle=1)) == {"b", "c", "d"}


def test_by_states(tmp_path: Path) -> None:
    write(tmp_path, acted("a", 1, 2, 3), acted("b", 1, 2, 3), acted("c", 1, 3, 2), text("d"), text("e"))
    assert dropped(tmp_path, on="states") == {"b": "duplicate: equal to a"}


def test_by_tools(tmp_path: Path) -> None:
    def calls(trajectory_id: str, *names: str) -> Trajectory:
        content = [called(name, turn, f"{trajectory_id}{turn}", x=trajectory_id) for turn, name in enumerate(names, 1)]
        return trajectory(trajectory_id, content=[instruction(trajectory_id), *content])

    write(tmp_path, calls("a", *"xyxz"), calls("b", *"xyxz"), calls("c", *"xzxy"), calls("d", *"xyxzq"))
    assert dropped(tmp_path, on="tools") == {"b": "duplicate: equal to a"}
    # Bigrams xy yx xz, and zq.
    assert set(dropped(tmp_path, "near", on="tools", near=0.7)) == {"b", "d"}
    script = [CodeAction(language="sh", content="ls"), agent_message("Done."), called("x", 2)]
    assert tokens_of("tools", trajectory(content=script)) == [b"sh", b"x"]


def test_actions_are_compared_by_what_they_do() -> None:
    def tokens(*content: Any) -> list[bytes]:
        return tokens_of("actions", trajectory(content=list(content)))

    def call(kwargs: dict[str, Any], **fields: Any) -> ApiAction:
        return ApiAction(function="f", kwargs=kwargs, **fields)

    first = tokens(call({"a": 1, "b": {"c": 2.0}}))
    assert first == tokens(call({"b": {"c": 2}, "a": 1.0}, turn=3, tool_call_id="x", description="I think"))
    assert first != tokens(call({"a": 2, "b": {"c": 2}}))
    assert tokens(call({}, raw_arguments="{")) != tokens(call({}))
    assert tokens(CodeAction(language="sh", content="ls")) != tokens(CodeAction(language="python", content="ls"))
    critic = agent_message("No.", role="critic")
    assert tokens(critic, agent_message("go")) == tokens(agent_message("go", 4))
    assert tokens(critic, instruction()) == []


def test_another_order_of_the_tables_is_another_selection_where_the_first_is_kept(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path, text(f"of {name}"), name=name)

    def selection(*tables: str, **parameters: Any) -> Any:
        return job(tmp_path, "dedup", f"by {parameters.get('prefer', 'first')}", of=[*tables], **parameters)

    assert set(dropped(tmp_path, "by first", of=["one", "two"])) == {"of two"}
    assert selection("one", "two").finished() is not None
    with user_error("made-differently", "order"):
        selection("two", "one").finished()
    shortest = selection("one", "two", prefer="shortest").run()
    assert selection("two", "one", prefer="shortest").finished() == shortest
    assert selection("one").parameters.tables_config({"of": [Table.open(tmp_path / "one")]}) == {}


def test_tables_of_one_name_are_ordered_by_what_they_hold(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, text(f"of {name}"))
    tables = [Table.open(tmp_path / name / "runs") for name in ("a", "b")]
    turned = [order_config(each)["order"] for each in (tables, tables[::-1])]
    assert turned[0] == turned[1][::-1] == [table.digest for table in tables]


def test_within_a_task(tmp_path: Path) -> None:
    rows = [text("a", task_id="x"), text("b", task_id="y"), text("c", 5, task_id="y"), text("d", task_id=None)]
    write(tmp_path, *rows, text("e", task_id=None))
    assert set(dropped(tmp_path, "all", near=0.8)) == {"b", "c", "d", "e"}
    (reason,) = dropped(tmp_path, within="task", near=0.8).values()
    assert reason.startswith("near_duplicate: of b, Jaccard 0.9")
    scores = [row.score for row in rows_of(tmp_path / "unique") if row.score is not None]
    assert scores == [pytest.approx(191 / 201, abs=4 * 0.014)]  # an estimate, since it is far from the threshold
    write(tmp_path / "none", text("a", task_id=None), text("b", task_id=None))
    step = job(tmp_path / "none", "dedup", "unique", of="runs", within="task")
    assert "has a task" in step.parameters.notes(step.run())[-1]


@pytest.mark.parametrize(
    ("parameters", "kept"),
    [
        ({}, "a"),
        ({"prefer": "shortest"}, "b"),
        ({"prefer": "score"}, "d"),
        ({"prefer": "score", "score": "verdict:judge", "verdicts": "verdicts"}, "c"),
    ],
)
def test_which_is_kept(parameters: dict[str, Any], kept: str, tmp_path: Path) -> None:
    short = [instruction(" ".join(WORDS))]
    rows = [
        text("a", outcome=outcome("failure")),
        text("b", content=short, outcome=outcome("failure")),
        text("c", outcome=outcome("failure")),
        text("d", 2),
        text("e", 3),
    ]
    write(tmp_path, *rows)
    scores = {"a": 0.1, "c": 0.9, "d": 0.2}
    verdicts = [verdict(name, name="judge", score=score) for name, score in scores.items()]
    write_table(tmp_path / "verdicts", [verdicts], Verdict)
    found = dropped(tmp_path, near=0.8, **parameters)
    assert set(found) == {*"abcde"} - {kept}
    of_kept = (f"duplicate: equal to {kept}", f"near_duplicate: of {kept}, Jaccard ")
    assert all(reason.startswith(of_kept) for reason in found.values())


def test_a_chain_is_one_group(tmp_path: Path) -> None:
    def window(trajectory_id: str, start: int) -> Trajectory:
        return trajectory(trajectory_id, content=[instruction(" ".join(WORDS[start : start + 100]))])

    write(tmp_path, window("a", 0), window("b", 8), window("c", 16))  # 88 / 104, and 80 / 112 for the ends
    assert dropped(tmp_path, near=0.8) == {
        "b": "near_duplicate: of a, Jaccard 0.85",
        "c": "near_duplicate: of a through others, Jaccard 0.71",
    }


@pytest.mark.parametrize("on", ["text", "actions", "states"])
@pytest.mark.parametrize("near", [None, 0.8])
def test_what_is_empty_is_kept(on: str, near: float | None, tmp_path: Path) -> None:
    write(tmp_path, *(trajectory(name, content=[]) for name in "ab"), acted("c", 1), acted("d", 1))
    manifest = made(tmp_path, on=on, near=near)
    assert manifest.metrics["nothing_to_compare"] == 2
    assert {row.trajectory_id for row in rows_of(tmp_path / "unique") if row.kept} >= {"a", "b", "c"}


@pytest.mark.parametrize("near", [None, 0.8])
def test_texts_of_signs_alone_may_be_equal(near: float | None, tmp_path: Path) -> None:
    rows = [("a", "👍"), ("b", "👍"), ("c", "👎")]
    write(tmp_path, *(trajectory(name, content=[instruction("???"), agent_message(sign)]) for name, sign in rows))
    assert dropped(tmp_path, near=near) == {"b": "duplicate: equal to a"}


def test_nothing_to_compare_is_a_warning(tmp_path: Path) -> None:
    write(tmp_path, text("a"), text("b"))
    step = job(tmp_path, "dedup", "unique", of="runs", on="states")
    assert "nothing" not in str(step.parameters.notes(step.run())[:-1])
    assert "anything to compare by `on: states`" in step.parameters.notes(step.run())[-1]


def test_two_tables(tmp_path: Path) -> None:
    write(tmp_path, text("b"), text("c", 200))
    write(tmp_path, text("a"), text("d", 3), name="more")
    assert set(dropped(tmp_path, of=["runs", "more"], near=0.8)) == {"a", "d"}
    assert set(dropped(tmp_path, "other", of=["more", "runs"], near=0.8)) == {"b", "d"}
    shortest = {"near": 0.8, "prefer": "shortest"}
    one, two = (dropped(tmp_path, "-".join(of), of=of, **shortest) for of in (["runs", "more"], ["more", "runs"]))
    assert one == two
    assert set(one) == {"b", "d"}


def test_selections_decide_first(tmp_path: Path) -> None:
    write(tmp_path, text("a"), text("b"), text("c", 2))
    chosen = [Selection(trajectory_id=name, name="f", kept=name != "a", reason=None) for name in "abc"]
    write_table(tmp_path / "chosen", [chosen], Selection)
    assert dropped(tmp_path, near=0.8, selections="chosen") == {
        "a": "not_selected",
        "c": "near_duplicate: of b, Jaccard 0.98",
    }


@pytest.mark.parametrize("near", [None, 0.8])
def test_shards_and_their_order_do_not_matter(near: float | None, tmp_path: Path) -> None:
    chance = random.Random(2)
    rows = [
        text(f"{group}-{copy}", 0 if group == 0 else 50 * group, task_id=None) for group in range(3) for copy in "abc"
    ]
    rows += [text(f"x{number}", number) for number in range(0, 40, 4)]
    found = []
    for number in range(4):
        folder = tmp_path / str(number)
        shuffled = chance.sample(rows, len(rows))
        cut = chance.randrange(1, len(rows))
        write_table(folder / "runs", [shuffled[:cut], shuffled[cut:]], Trajectory)
        found.append(dropped(folder, near=near))
    assert all(each == found[0] for each in found)
    assert found[0]


def test_running_again_does_nothing(tmp_path: Path) -> None:
    write(tmp_path, text("a"), text("b"))
    first = made(tmp_path, near=0.8)
    assert job(tmp_path, "dedup", "unique", of="runs", near=0.8).finished() == first
    with user_error("made-differently"):
        job(tmp_path, "dedup", "unique", of="runs", near=0.9).finished()


def test_an_empty_table_is_no_fault() -> None:
    operation = stage("dedup", of="x", near=0.8).operation({}, None)  # type: ignore[arg-type]
    operation.open()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("parameters", "code", "words"),
    [
        ({"near": 0.2}, "invalid-value", "near"),
        ({"shingle": 3}, "rule-broken", "`shingle` needs `near`"),
        ({"seed": 0}, "rule-broken", "`seed` needs `near`"),
        ({"score": "reward"}, "rule-broken", "`prefer: score`"),
        ({"on": "words"}, "invalid-value", "on"),
        ({"prefer": "score", "score": "best"}, "rule-broken", "no score"),
    ],
)
def test_mistakes(parameters: dict[str, Any], code: str, words: str) -> None:
    with user_error(code, words):
        stage("dedup", of="x", **parameters)


def test_a_score_needs_its_table(tmp_path: Path) -> None:
    write(tmp_path, text("a"))
    with user_error("needs-another-key", "score: verdict:judge", "verdicts"):
        job(tmp_path, "dedup", "unique", of="runs", prefer="score", score="verdict:judge")


def test_it_is_a_curation() -> None:
    assert Dedup.verb == "curate"
