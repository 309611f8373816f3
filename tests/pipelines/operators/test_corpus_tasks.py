from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.operators.bounds import Rows
from agentmill.pipelines.operators.corpus_tasks import CorpusTasks
from agentmill.schemas.records.task import Task
from agentmill.synthesis.environments.search.corpus import Document
from agentmill.synthesis.environments.search.index import open_index
from agentmill.synthesis.policies.scripted import ScriptedPolicy
from tests.errors import user_error
from tests.pipelines.engine.stages import dropped_of, rows_of
from tests.pipelines.operators.steps import SEED, job, model, run, stage
from tests.synthesis.environments.examples import WAREHOUSE_SPEC
from tests.synthesis.environments.search.corpora import invented, spec_of, write_jsonl


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMILL_CACHE", str(tmp_path / "cache"))
    open_index.cache_clear()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = invented(tmp_path)
    run(tmp_path, "spec_env", "environments", family="search", corpus=str(path))
    return path


def tasks_of(folder: Path) -> list[Task]:
    return [row for row in rows_of(folder) if isinstance(row, Task)]


def test_tasks_are_made_admitted_and_solved_by_the_expert(tmp_path: Path, corpus: Path) -> None:
    manifest = run(tmp_path, "corpus_tasks", "tasks", of="environments", n=9, held_out=0.34)
    assert (manifest.counts.read, manifest.counts.written) == (9, 9)
    assert manifest.metrics["documents"] == 120
    assert sorted(str(task.split) for task in tasks_of(tmp_path / "tasks")) == ["held_out_tasks"] * 3 + ["train"] * 6
    assert run(tmp_path, "admit", "admitted", of="tasks", environments="environments").counts.written == 9
    run(tmp_path, "expert", "played", {"actor": model()}, policy="p", tasks="admitted", environments="environments")
    run(
        tmp_path,
        "answer_match",
        "verdicts",
        of="played",
        tasks="admitted",
        every=True,
        method="contains",
        extract='text="(.*)"',
    )
    verdicts = rows_of(tmp_path / "verdicts")
    assert [verdict.evidence for verdict in verdicts if not verdict.passed] == []


def test_method_depth_see_and_seed_have_their_effect(tmp_path: Path, corpus: Path) -> None:
    run(tmp_path, "corpus_tasks", "walks", of="environments", n=4, method="walk", depth=[3, 3], see=True)
    tasks = tasks_of(tmp_path / "walks")
    assert {(len(task.gold or ()), len(task.goal["seen"]), *task.skills) for task in tasks} == {(7, 3, "walk")}
    run(
        tmp_path, "corpus_tasks", "others", of="environments", n=4, method="walk", depth=[3, 3], see=True, seed=SEED + 1
    )
    assert {task.instruction for task in tasks_of(tmp_path / "others")}.isdisjoint(task.instruction for task in tasks)


def test_a_model_words_the_questions_anew(tmp_path: Path, corpus: Path) -> None:
    writer = {"generator": model("scripted", turns=["Which detail is wanted of them?"])}
    manifest = run(tmp_path, "corpus_tasks", "tasks", writer, of="environments", n=4, policy="writer")
    assert manifest.metrics["reworded"] == 4
    assert "rewordings_refused" not in manifest.metrics
    tasks = tasks_of(tmp_path / "tasks")
    assert {task.instruction for task in tasks} == {"Which detail is wanted of them?"}
    assert all("[MASK" in task.lineage.notes["wording"] for task in tasks if task.lineage is not None)
    run(tmp_path, "corpus_tasks", "plain", of="environments", n=4)
    assert {task.task_id for task in tasks_of(tmp_path / "plain")}.isdisjoint(task.task_id for task in tasks)


def test_a_wording_that_tells_the_answer_is_not_taken(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "corpus.jsonl", [Document("ada", "Ada Vries", "Ada Vries went home in 1931.")])
    run(tmp_path, "spec_env", "environments", family="search", corpus=str(path))
    writer = {"generator": model("scripted", turns=["Was it in 1931?"])}
    step = job(
        tmp_path, "corpus_tasks", "tasks", writer, of="environments", n=1, method="mask", depth=[1, 1], policy="writer"
    )
    manifest = step.run()
    assert manifest.metrics["rewordings_refused"] == 1
    (task,) = tasks_of(tmp_path / "tasks")
    assert "“Ada Vries went home in [MASK].”" in task.instruction
    assert "1 tasks keep their wording" in " ".join(step.parameters.notes(manifest))


@pytest.mark.parametrize(
    ("words", "reason"),
    [("Consider a town on a river that was", "length"), ("I'm sorry, but I can't help with that.", "")],
)
def test_a_wording_that_is_cut_off_or_a_refusal_is_not_taken(
    words: str, reason: str, tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = {"generator": model("scripted", turns=[words])}
    act = ScriptedPolicy.act

    async def ended(self: Any, conversation: Any) -> Any:
        turn = await act(self, conversation)
        return msgspec.structs.replace(turn, finish_reason=reason or turn.finish_reason)

    monkeypatch.setattr(ScriptedPolicy, "act", ended)
    manifest = run(tmp_path, "corpus_tasks", "tasks", writer, of="environments", n=3, policy="writer")
    assert manifest.metrics["rewordings_refused"] == 3
    assert all("[MASK" in task.instruction for task in tasks_of(tmp_path / "tasks"))


def test_what_cannot_be_made_is_dropped_and_noted(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "corpus.jsonl", [Document("ada", "Ada Vries", "Ada Vries went home in 1931.")])
    run(tmp_path, "spec_env", "environments", family="search", corpus=str(path))
    step = job(tmp_path, "corpus_tasks", "tasks", of="environments", n=5, method="mask", depth=[1, 1])
    manifest = step.run()
    assert (manifest.counts.written, manifest.counts.dropped) == (1, 4)
    assert {letter.reason for letter in dropped_of(tmp_path / "tasks")} == {"too_few_tasks"}
    assert "4 tasks cannot be made" in " ".join(step.parameters.notes(manifest))


def test_a_corpus_without_names_is_dropped_with_the_reason(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "corpus.jsonl", [Document("a", "otters", "otters swim in the water all day long.")])
    run(tmp_path, "spec_env", "environments", family="search", corpus=str(path))
    run(tmp_path, "corpus_tasks", "tasks", of="environments", n=2)
    assert [letter.reason for letter in dropped_of(tmp_path / "tasks")] == ["nothing_to_mask"] * 2


def test_the_share_of_walks_that_the_first_hit_answers_is_noted(tmp_path: Path, corpus: Path) -> None:
    step = job(tmp_path, "corpus_tasks", "walks", of="environments", n=6, method="walk")
    (note,) = step.parameters.notes(step.run())
    assert note.startswith("0 of 6 drawn walks (0%) were left out")


def test_corpora_and_families_are_looked_at_before_the_step(tmp_path: Path, corpus: Path) -> None:
    checked = job(tmp_path, "corpus_tasks", "tasks", of="environments")
    checked.parameters.check_inputs(checked.inputs)
    corpus.write_bytes(corpus.read_bytes() + b"\n")
    with user_error("file-changed", "has changed"):
        checked.parameters.check_inputs(checked.inputs)
    corpus.unlink()
    with user_error("no-such-file", "no corpus"):
        checked.parameters.check_inputs(checked.inputs)
    seed_table(tmp_path / "planning", [WAREHOUSE_SPEC])
    other = job(tmp_path, "corpus_tasks", "tasks", of="planning")
    with user_error("key-not-for-this", "family pddl", "`propose`"):
        other.parameters.check_inputs(other.inputs)
    with user_error("key-not-for-this", "family pddl", "`propose`"):
        other.parameters.families(frozenset({"pddl", "search"}))
    assert other.parameters.families(frozenset({"search"})) == {"search"}
    assert other.parameters.families(None) is None
    seed_table(tmp_path / "broken", [spec_of(invented(tmp_path), "x").__class__("x", "search", "x", "no JSON")])
    broken = job(tmp_path, "corpus_tasks", "tasks", of="broken")
    with user_error("damaged-file", "names no corpus"):
        broken.parameters.check_inputs(broken.inputs)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"depth": [0, 2]}, "within 1 and 8"),
        ({"depth": [3, 2]}, "within 1 and 8"),
        ({"depth": [1, 9]}, "within 1 and 8"),
        ({"depth": [1, 1]}, "`method: walk` needs a depth of 2"),
        ({"method": ["mask", "mask"]}, "names one twice"),
    ],
)
def test_parameters_that_do_not_go_together(parameters: dict[str, Any], words: str) -> None:
    with user_error("rule-broken", words):
        stage("corpus_tasks", of="environments", **parameters)


def test_bounds_hold_the_tasks_in_their_splits() -> None:
    step = stage("corpus_tasks", of="environments", n=10, depth=[1, 3], held_out=0.1)
    assert isinstance(step, CorpusTasks)
    rows = step.bounds({"of": Rows(n=2, splits={"train": 1, "held_out": 1})}, {}).rows
    assert (rows.n, rows.plan) == (20, 7)
    assert rows.splits == {"train": 9, "held_out_tasks": 1, "held_out_environments": 10}
