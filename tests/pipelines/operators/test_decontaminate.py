"""``decontaminate``: what is found by each test and why, what is not, and that nothing else decides."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.operators.decontaminate import THRESHOLDS
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Selection, TaskSelection
from agentmill.schemas.tables import Counts, Manifest
from tests.builders import agent_message, called, instruction, seen, task, trajectory
from tests.errors import user_error
from tests.pipelines.engine.stages import rows_of, write_table
from tests.pipelines.operators.steps import job, run

ASKED = "Book the cheapest flight from Oslo to Rome on Friday for Ada Lovelace and pay it with her company card."
GOLD = [
    called("find_flights", origin="Oslo", to="Rome", day="friday"),
    called("book", flight="XY12", passenger="Ada Lovelace"),
    called("pay", booking=7, card="company"),
]
ANSWER = "The flight leaves at nine in the morning and lands at noon, and it costs ninety euros with one bag."


def solved(trajectory_id: str, asked: str, gold: list[Any], **fields: Any) -> Trajectory:
    """A trajectory with these actions, each of which is answered."""
    content: list[Any] = [instruction(asked)]
    for turn, call in enumerate(gold, 1):
        content += [called(call.function, turn, f"{turn}", **call.kwargs), seen(f"done {turn}", turn)]
    return trajectory(trajectory_id, content=content, task_id=trajectory_id, system_prompt=None, **fields)


def other(number: int) -> Trajectory:
    """A task that is like no other."""
    chance = random.Random(number)
    words = ["".join(chance.choices("abcdefghijklmnop", k=6)) for _ in range(30)]
    gold = [called(words[place], x=words[place + 1], y=number) for place in range(3)]
    return solved(f"other{number}", " ".join(words), gold)


def write(folder: Path, *rows: Trajectory, against: Any = None) -> None:
    write_table(folder / "runs", [[*rows, *map(other, range(5))]], Trajectory)
    bench = [task("b1", instruction=ASKED, gold=GOLD)] if against is None else against
    write_table(folder / "bench", [bench], type(bench[0]) if bench else Task)


def found(folder: Path, name: str = "clean", **parameters: Any) -> dict[str, str]:
    """The reasons of what is not kept."""
    manifest = run(folder, "decontaminate", name, **{"of": "runs", "against": "bench", **parameters})
    rows, metrics = rows_of(folder / name), manifest.metrics
    assert manifest.counts == Counts(read=len(rows), used=len(rows), dropped=0, written=len(rows))
    contaminated = sum(n for metric, n in metrics.items() if metric.startswith("contaminated."))
    assert metrics.get("left_out.contaminated", 0) == contaminated
    assert metrics["compared"] == metrics.get("kept", 0) + contaminated
    assert len(rows) == metrics["compared"] + metrics.get("left_out.not_selected", 0)
    assert all(row.kept is (row.reason is None) is (row.score is None) for row in rows if row.reason != "not_selected")
    return {row.trajectory_id: row.reason for row in rows if not row.kept}


def evidence(folder: Path, trajectory_id: str, name: str = "clean") -> list[dict[str, Any]]:
    """The matches in the verdict on a trajectory."""
    (row,) = [each for each in rows_of(folder / name / "verdicts") if each.trajectory_id == trajectory_id]
    assert row.passed is not bool(row.evidence)
    return list(row.evidence.get("matches", []))


def test_verbatim_instruction_in_a_longer_prompt(tmp_path: Path) -> None:
    half = " ".join(ASKED.split()[:15])  # three of the eight runs of 13 words
    write(
        tmp_path,
        solved("a", f"You are a clerk. {ASKED.upper()} Thank you!", []),
        solved("b", half, []),
        solved("c", "Something else.", []),
    )
    assert found(tmp_path) == {"a": "contaminated: bench/b1, instruction 1.00"}
    assert evidence(tmp_path, "a") == [
        {
            "test": "instruction",
            "benchmark": "bench",
            "entry": "b1",
            "share": 1.0,
            "words": ASKED.lower().rstrip("."),
        }
    ]
    assert evidence(tmp_path, "c") == []
    assert found(tmp_path, "lower", instruction=0.3)["b"] == "contaminated: bench/b1, instruction 0.38"
    assert found(tmp_path, "off", instruction=None) == {}


def test_short_instructions_are_compared_whole(tmp_path: Path) -> None:
    bench = [task("b1", instruction="Reverse the list."), task("b2", instruction="Go on.")]
    rows = [
        solved("a", "Some context.\nreverse THE list", []),
        solved("b", "Please reverse the list of names.", []),
        solved("c", "Go on.", []),
    ]
    write(tmp_path, *rows, against=bench)
    assert found(tmp_path) == {"a": "contaminated: bench/b1, instruction 1.00"}


def test_answers_in_what_agent_and_environment_say(tmp_path: Path) -> None:
    gold = [agent_message(ANSWER), agent_message("Yes, it does.")]
    rows = [
        trajectory("a", task_id=None, content=[instruction("Hm."), agent_message(f"I think: {ANSWER.lower()}")]),
        trajectory("b", task_id=None, content=[instruction("Hm."), seen(f"A page. {ANSWER}", 1)]),
        trajectory("c", task_id=None, content=[instruction(ANSWER), agent_message("Yes, it does.")]),
    ]
    write(tmp_path, *rows, against=[task("b1", instruction="What about the flight?", gold=gold)])
    assert found(tmp_path) == dict.fromkeys("ab", "contaminated: bench/b1, answer 1.00")
    assert evidence(tmp_path, "b")[0]["words"] == ANSWER.lower().replace(",", "").rstrip(".")
    assert found(tmp_path, "off", answer=None) == {}


def test_paraphrase_with_the_same_actions(tmp_path: Path) -> None:
    detour = [GOLD[0], called("look", at="nothing"), *GOLD[1:]]
    write(
        tmp_path,
        solved("a", "My boss wants to fly to Italy.", GOLD),
        solved("b", "A journey, please.", detour),
        solved("c", "My boss wants to fly.", GOLD[:2]),
        solved("d", "Backwards.", GOLD[::-1]),
        solved("e", "Long.", [*GOLD, *(called("step", n=number, m=2) for number in range(9))]),
    )
    assert found(tmp_path) == dict.fromkeys("ab", "contaminated: bench/b1, actions 1.00")
    (match,) = [each for each in evidence(tmp_path, "a") if each["test"] == "actions"]
    assert match["actions"] == "find_flights(friday, oslo, rome); book(xy12, ada lovelace); pay(7, company)"
    assert found(tmp_path, "lower", actions=0.6)["c"] == "contaminated: bench/b1, actions 0.67"
    assert found(tmp_path, "off", actions=None) == {}


def test_few_actions_in_the_same_place(tmp_path: Path) -> None:
    scene = "The key is in the hall, the lamp is in the attic, and the door between them is shut."
    gold = [called("go", to="hall"), called("take", what="key")]

    def placed(name: str, asked: str, shown: str) -> Trajectory:
        row = solved(name, asked, gold)
        return trajectory(name, task_id=name, content=[row.content[0], seen(shown), *row.content[1:]])

    labels = "Fetch 'key' for 'Ann', 'Bo' and 'Cy'."
    rows = [
        placed("a", "Get me what opens it.", scene),
        placed("b", "Get me what opens it.", scene.replace("lamp", "coat")),
        placed("c", "'Ann', 'Bo' and 'Cy' need the 'key'", "Hello."),
        placed("d", "'Ann' and 'Bo' need the 'key'", "Hello."),
    ]
    bench = [placed("held", "Fetch the key.", scene), placed("other", labels, "Hi.")]
    write(tmp_path, *rows, against=bench)
    assert found(tmp_path) == {
        "a": "contaminated: bench/held, actions 1.00",
        "c": "contaminated: bench/other, actions 1.00",
    }
    assert found(tmp_path, "common", common=1) == {}


def test_actions_that_many_tasks_share_are_no_evidence(tmp_path: Path) -> None:
    rows = [solved(f"t{number}", f"Do number {number} of them.", GOLD) for number in range(6)]
    write(tmp_path, *rows)
    assert len(found(tmp_path)) == 6
    assert found(tmp_path, "common", common=5) == {}
    # Many attempts at one task are no sign of a common sequence.
    again = [solved(f"t{number}", "Do it.", GOLD) for number in range(6)]
    write(tmp_path / "two", *again)
    assert len(found(tmp_path / "two", common=5)) == 6


def test_renamed_entities(tmp_path: Path) -> None:
    renamed = [
        called("find_flights", origin="Lima", to="Quito", day="sunday"),
        called("book", flight="AB99", passenger="Grace Hopper"),
        called("pay", booking=31, card="private"),
    ]
    asked = "Book the cheapest flight from Lima to Quito on Sunday for Grace Hopper and pay it with her private card."
    mixed = [renamed[0], called("book", flight="AB99", passenger="Lima"), called("pay", booking="Quito", card="Lima")]
    write(tmp_path, solved("a", asked, renamed), solved("b", asked, mixed), solved("c", "Else.", renamed))
    assert found(tmp_path) == {"a": "contaminated: bench/b1, renamed 1.00"}
    (match,) = evidence(tmp_path, "a")
    assert match["form"] == "book the cheapest flight from _ to _ on _ for _ and pay it with her _ card"
    assert found(tmp_path, "off", renamed=None) == {}


def test_renamed_tasks_with_the_same_initial_state(tmp_path: Path) -> None:
    def posed(name: str, where: str, what: str, state: list[list[str]]) -> Task:
        gold = [called("go", to=where), called("take", what=what)]
        return task(
            name, instruction=f"Please fetch the {what} from the {where}.", gold=gold, initial_state={"is_in": state}
        )

    bench = [posed("b", "hall", "key", [["key", "hall"], ["lamp", "attic"], ["hall", "house"]])]
    rows = [
        posed("a", "barn", "axe", [["barn", "farm"], ["axe", "barn"], ["rope", "shed"]]),
        posed("c", "barn", "axe", [["barn", "farm"], ["rope", "barn"], ["axe", "shed"]]),
    ]
    write_table(tmp_path / "tasks", [rows], Task)
    write_table(tmp_path / "bench", [bench], Task)
    run(tmp_path, "decontaminate", "clean", of="tasks", against="bench")
    reasons = {row.task_id: row.reason for row in rows_of(tmp_path / "clean")}
    assert reasons == {"a": "contaminated: bench/b, renamed 1.00", "c": None}


def test_instances_of_a_template_are_different_tasks(tmp_path: Path) -> None:
    names = ["Ann", "Bo", "Cy", "Di", "Eve", "Fay", "Gus", "Hal", "Ivy", "Jon", "Kim", "Lou"]
    gold = {name: [called("find_user", name=name), called("add_points", id=ord(name[0]), n=3)] for name in names}
    rows = [
        solved(name, f"Please add some points to the loyalty account of user {name} today.", gold[name])
        for name in names
    ]
    write(tmp_path, *rows[1:], against=[task("b1", instruction=rows[0].content[0].content, gold=gold["Ann"])])  # type: ignore[union-attr]
    assert found(tmp_path) == {}
    assert len(found(tmp_path, "rare", common=20)) == 11
    # So short a form is equal by chance.
    short = [solved(name, f"Add points to {name}.", gold[name]) for name in names[:2]]
    bench = [task("b1", instruction="Add points to Ann.", gold=gold["Ann"])]
    write(tmp_path / "short", short[1], against=bench)
    assert found(tmp_path / "short") == {}


def test_the_id_of_a_task(tmp_path: Path) -> None:
    write(tmp_path, solved("b1", "Nothing in common.", []))
    assert found(tmp_path) == {"b1": "contaminated: bench/b1, task 1.00"}
    assert found(tmp_path, "off", same_task=False) == {}


def test_benchmark_of_trajectories(tmp_path: Path) -> None:
    write(tmp_path, solved("a", "My boss wants to fly.", GOLD), against=[solved("held", ASKED, GOLD)])
    assert found(tmp_path) == {"a": "contaminated: bench/held, actions 1.00"}


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv"])
def test_benchmark_files(kind: str, tmp_path: Path) -> None:
    calls: Any = [{"name": each.function, "arguments": each.kwargs} for each in GOLD]
    rows = [{"question": ASKED, "gold": calls, "key": "q1"}, {"question": "Why?", "gold": [], "key": "q2"}]
    path = tmp_path / f"suite.{kind}"
    if kind == "csv":
        cells = [[row["question"], json.dumps(row["gold"]).replace('"', '""'), row["key"]] for row in rows]
        path.write_text("question,gold,key\n" + "".join(f'"{q}","{gold}",{key}\n' for q, gold, key in cells))
    else:
        path.write_text(json.dumps(rows) if kind == "json" else "\n".join(map(json.dumps, rows)))
    write(tmp_path, solved("a", "My boss wants to fly.", GOLD), solved("b", ASKED, []))
    fields = {"instruction": "question", "actions": "gold", "id": "key"}
    parameters = {"against": None, "benchmarks": [str(path)], "fields": fields}
    assert found(tmp_path, **parameters) == {
        "a": f"contaminated: suite.{kind}/q1, actions 1.00",
        "b": f"contaminated: suite.{kind}/q1, instruction 1.00",
    }


def test_selections_of_tasks(tmp_path: Path) -> None:
    rows = [task("t1", instruction=ASKED), task("t2", instruction="Open the door.", gold=[called("open", door=1)])]
    write_table(tmp_path / "tasks", [[*rows, task("t3", instruction=ASKED)]], Task)
    write_table(tmp_path / "chosen", [[TaskSelection(task_id="t3", name="f", kept=False)]], TaskSelection)
    write(tmp_path)
    run(tmp_path, "decontaminate", "clean", of="tasks", against="bench", selections="chosen")
    assert {row.task_id: (row.kept, row.reason, row.score) for row in rows_of(tmp_path / "clean")} == {
        "t1": (False, "contaminated: bench/b1, instruction 1.00", 1.0),
        "t2": (True, None, None),
        "t3": (False, "not_selected", None),
    }


def test_selections_of_trajectories_choose_no_tasks(tmp_path: Path) -> None:
    write_table(tmp_path / "tasks", [[task("t1", instruction=ASKED)]], Task)
    write_table(tmp_path / "chosen", [[Selection(trajectory_id="r1", name="f", kept=False)]], Selection)
    write(tmp_path)
    with user_error("wrong-record-type", "selections", "Selection", "TaskSelection"):
        run(tmp_path, "decontaminate", "clean", of="tasks", against="bench", selections="chosen")


def test_selections_decide_first_and_change_nothing_else(tmp_path: Path) -> None:
    rows = [solved(f"t{number}", f"Do number {number}.", GOLD) for number in range(6)]
    write(tmp_path, *rows)
    chosen = [Selection(trajectory_id=row.trajectory_id, name="f", kept=row is rows[0]) for row in rows]
    write_table(tmp_path / "chosen", [chosen], Selection)
    reasons = found(tmp_path, selections="chosen")
    assert reasons.pop("t0") == "contaminated: bench/b1, actions 1.00"
    assert set(reasons.values()) == {"not_selected"}
    assert "t0" not in found(tmp_path, "common", selections="chosen", common=5)


def test_shards_and_the_order_of_tables_do_not_matter(tmp_path: Path) -> None:
    rows = [solved("a", "My boss.", GOLD), solved("b", ASKED, []), *map(other, range(6))]
    bench = [task(name, instruction=ASKED, gold=GOLD) for name in ("b2", "b1")]
    results = []
    for number in range(3):
        folder, mixed = tmp_path / str(number), random.Random(number).sample(rows, len(rows))
        write_table(folder / "runs", [mixed[: number + 1], mixed[number + 1 :]], Trajectory)
        for name, held in zip(("bench", "more"), bench if number else bench[::-1], strict=True):
            write_table(folder / name, [[held]], Task)
        results.append(found(folder, against=["bench", "more"] if number else ["more", "bench"]))
    assert results[0].keys() == {"a", "b"}
    assert results[1] == results[2]
    again = job(tmp_path / "1", "decontaminate", "clean", of="runs", against=["bench", "more"])
    assert again.finished() is not None


def notes(folder: Path, **parameters: Any) -> str:
    step = job(folder, "decontaminate", "noted", **{"of": "runs", "against": "bench", **parameters})
    manifest: Manifest = step.run()
    return "\n".join(step.parameters.notes(manifest))


def test_warnings(tmp_path: Path) -> None:
    rows = [solved(f"t{number}", ASKED, GOLD) for number in range(9)]
    write(tmp_path, *rows)
    noted = notes(tmp_path)
    assert "9 of 14 rows are in the benchmarks" in noted
    assert "answer: the benchmarks, or all of 14 rows, have nothing" in noted
    assert "actions" not in noted
    write(tmp_path / "words", *rows[:1], against=[task("b1", instruction=ASKED)])
    assert "answer, actions: the benchmarks" in notes(tmp_path / "words", same_task=False)


def test_a_benchmark_that_is_the_table_itself(tmp_path: Path) -> None:
    write(tmp_path)
    step = job(tmp_path, "decontaminate", "clean", of="runs", against=["bench", "runs"])
    with user_error("given-twice", "`of` and in `against`"):
        step.parameters.check_inputs(step.inputs)


def test_a_benchmark_without_rows(tmp_path: Path) -> None:
    write(tmp_path, against=[])
    step = job(tmp_path, "decontaminate", "clean", of="runs", against="bench")
    with user_error("no-records", "bench holds no rows"):
        step.parameters.check_inputs(step.inputs)


@pytest.mark.parametrize(
    ("name", "text", "code", "words"),
    [
        ("a.jsonl", "", "no-records", "holds no rows"),
        ("a.jsonl", "\n\n", "no-records", "holds no rows"),
        ("a.json", "[]", "no-records", "holds no rows"),
        ("a.csv", "instruction\n", "no-records", "holds no rows"),
        ("a.jsonl", '{"instruction": "x"}\nno JSON\n', "line-malformed", "row 2"),
        ("a.csv", "instruction,id\nx\n", "line-malformed", "1 cells under a header of 2"),
        ("a.jsonl", '{"instructions": "x"}\n', "field-missing", "Did you mean 'instructions'?"),
        ("a.jsonl", '{"instruction": {"a": 1}}\n', "value-malformed", "expected a text"),
        ("a.txt", "x", "file-kind-unknown", ".csv"),
    ],
)
def test_files_that_are_no_benchmark(name: str, text: str, code: str, words: str, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / name).write_text(text)
    with user_error(code, words):
        job(tmp_path, "decontaminate", "clean", of="runs", benchmarks=[str(tmp_path / name)])


@pytest.mark.parametrize("actions", ['"go"', "[1]", '[{"tool": "x"}]', '[{"name": "x", "arguments": 3}]'])
def test_actions_of_a_file_that_are_none(actions: str, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "a.jsonl").write_text(f'{{"instruction": "x", "gold": {actions}}}\n')
    with user_error("value-malformed", "row 1: 'gold'"):
        files = {"benchmarks": [str(tmp_path / "a.jsonl")], "fields": {"actions": "gold"}}
        job(tmp_path, "decontaminate", "clean", of="runs", **files)


@pytest.mark.parametrize(
    ("parameters", "code", "words"),
    [
        ({"against": None}, "rule-broken", "`benchmarks`"),
        ({"instruction": 0}, "invalid-value", "instruction"),
        ({"actions": 1.5}, "invalid-value", "actions"),
        ({"fields": {"id": "key"}}, "rule-broken", "`benchmarks`"),
        ({"same_task": False, **dict.fromkeys(THRESHOLDS)}, "rule-broken", "switched off"),
        ({"of": "bench", "where": "all", "against": "runs"}, "key-not-for-this", "`where`"),
    ],
)
def test_parameters_that_do_not_go_together(parameters: dict[str, Any], code: str, words: str, tmp_path: Path) -> None:
    write(tmp_path)
    with user_error(code, words):
        job(tmp_path, "decontaminate", "clean", **{"of": "runs", "against": "bench", **parameters})


def test_a_changed_file_is_another_benchmark(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"instruction": ASKED}))
    found(tmp_path, against=None, benchmarks=[str(path)])
    path.write_text(json.dumps({"instruction": "Another one."}))
    with user_error("made-differently"):
        job(tmp_path, "decontaminate", "clean", of="runs", benchmarks=[str(path)]).finished()


def test_selections_of_trajectories_are_refused_for_tasks(tmp_path: Path) -> None:
    write(tmp_path)
    write_table(tmp_path / "tasks", [[task("t1")]], Task)
    write_table(tmp_path / "chosen", [[Selection(trajectory_id="t1", name="chosen", kept=False)]], Selection)
    with user_error("wrong-record-type", "TaskSelection"):
        found(tmp_path, of="tasks", selections="chosen")
