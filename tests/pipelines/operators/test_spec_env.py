"""Inspirations from files and from ourselves, shares, and worlds written by a model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import polars
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmill.pipelines.operators.spec_env import Proposals, SpecEnv
from agentmill.pipelines.operators.splits import falls_in
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.served_model import ServedModel
from agentmill.schemas.errors import UserError
from agentmill.schemas.registry import Registry
from agentmill.synthesis.environments.search.sources import read_source
from agentmill.synthesis.generators.inspirations import BUILT_IN, read_inspirations
from agentmill.synthesis.prompts import prompt
from agentmill.synthesis.sandbox import pool
from tests.errors import user_error
from tests.pipelines.engine.stages import dropped_of, rows_of
from tests.pipelines.operators.steps import job, model, run, stage
from tests.synthesis.environments.search.corpora import CRANES, OTTERS, invented, write_jsonl


@given(st.integers(0, 300), st.sampled_from([0.0, 0.1, 0.2, 0.25, 1 / 3, 0.5, 0.9]))
def test_a_share_is_spread_evenly(n: int, share: float) -> None:
    assert abs(sum(falls_in(number, share) for number in range(n)) - n * share) <= 1


def test_a_quarter_is_every_fourth() -> None:
    assert [number for number in range(9) if falls_in(number, 0.25)] == [3, 7]


def test_a_share_that_sets_nothing_aside_is_refused() -> None:
    with user_error("share-sets-none-aside", "0.167"):
        stage("spec_env", n=6, held_out=0.1)
    with user_error("share-sets-none-aside", "0.9", "1"):
        stage("spec_env", n=1, held_out=0.9)
    stage("spec_env", n=6, held_out=0.167)


def test_proposals_of_many_inspirations_are_found_at_once() -> None:
    compared = 0

    class Id(str):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return super().__eq__(other)

        __hash__ = str.__hash__

    ids = [Id(number) for number in range(500)]
    proposals = Proposals(places={name: place for place, name in enumerate(ids)}, n=1200, held_out=0.0, seed=0)
    assert sorted(number for name in ids for number in proposals.of(Id(name))) == list(range(1200))
    assert compared < 10 * len(ids)


def test_inspirations_take_turns_when_more_worlds_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("A ferry carries\ncars.\n\n\nA locked library.\n\nA ferry carries\ncars.\n")
    manifest = run(tmp_path, "spec_env", "worlds", inspiration=str(tmp_path / "texts.txt"), n=5)
    specs = rows_of(tmp_path / "worlds")
    assert manifest.counts.read == 5
    assert sorted(
        [
            sum(spec.lineage.inspiration == i.inspiration_id for spec in specs)
            for i in read_inspirations(tmp_path / "texts.txt")
        ]
    ) == [2, 3]
    assert len({spec.environment_id for spec in specs}) == 5
    assert not (tmp_path / "worlds" / ".seeds").exists()


def test_another_text_is_another_configuration(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text('"A ferry."\n\n{"text": "A library.", "id": 7}\n')
    run(tmp_path, "spec_env", "worlds", inspiration=str(file), n=2)
    assert job(tmp_path, "spec_env", "worlds", inspiration=str(file), n=2).finished() is not None
    moved = file.rename(tmp_path / "moved.jsonl")
    assert job(tmp_path, "spec_env", "worlds", inspiration=str(moved), n=2).finished() is not None
    moved.write_text('"A ferry."\n"An orchard."\n')
    with user_error("made-differently", "seeds"):
        job(tmp_path, "spec_env", "worlds", inspiration=str(moved), n=2).finished()


def test_lines_of_json_have_two_suffixes_and_columns_hold_texts(tmp_path: Path) -> None:
    lines = tmp_path / "texts.ndjson"
    lines.write_text('{"text": "A ferry."}\n"An orchard."\n')
    assert [each.text for each in read_inspirations(lines)] == ["A ferry.", "An orchard."]
    for content in ('{"text": "half \\ud800"}', "[" * 100_000, "9" * 5_000):
        lines.write_text(content)
        with user_error("line-malformed", "line 1"):
            read_inspirations(lines)
    column = tmp_path / "texts.parquet"
    polars.DataFrame({"text": [b"abc"]}).write_parquet(column)
    with user_error("line-malformed", "binary"):
        read_inspirations(column)


def test_a_line_of_json_may_hold_other_line_breaks(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('"A ferry.\u2028Two ports."\r\n\n"An orchard.\x85"\n')
    assert [each.text for each in read_inspirations(path)] == ["A ferry.\u2028Two ports.", "An orchard."]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("texts.jsonl", b'{"title": "x"}\n', "line 1: expected a text, or an object with a `text`"),
        ("texts.jsonl", b'"fine"\n{"text": \n', "line 2: no JSON"),
        ("texts.txt", b"\n \n", "holds no text"),
        ("texts.txt", b"\xff\xfe\xff", "is no UTF-8 text"),
    ],
)
def test_an_unreadable_inspiration_file(name: str, content: bytes, expected: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        run(tmp_path, "spec_env", "worlds", inspiration=str(tmp_path / name))
    assert expected in str(caught.value)
    assert not (tmp_path / "worlds").exists()


def test_a_missing_inspiration_file(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("A ferry.")
    with user_error("no-such-file", "text.txt", "texts.txt"):
        run(tmp_path, "spec_env", "worlds", inspiration=str(tmp_path / "text.txt"))
    (tmp_path / "folder.txt").mkdir()
    with user_error("not-readable"):
        run(tmp_path, "spec_env", "worlds", inspiration=str(tmp_path / "folder.txt"))


def test_our_own_texts_differ() -> None:
    assert len(set(BUILT_IN)) == len(BUILT_IN) >= 24


def test_a_model_writes_the_world(tmp_path: Path) -> None:
    writer = {"generator": model("scripted", turns=["no PDDL", prompt("pddl_world_seed")])}
    run(tmp_path, "spec_env", "worlds", writer, backend="llm", policy="writer", n=2, held_out=0.5)
    assert [spec.name for spec in rows_of(tmp_path / "worlds")] == ["ferry", "ferry"]
    assert {spec.split for spec in rows_of(tmp_path / "worlds")} == {"train", "held_out"}


def test_two_writers_with_one_model_name_write_worlds_with_other_ids(tmp_path: Path) -> None:
    config = ModelConfig(policy="scripted", model="llama", turns=[prompt("pddl_world_seed")])
    for name in ("one", "two"):
        writer = {"generator": ServedModel.of(config.named(name))}
        run(tmp_path, "spec_env", name, writer, backend="llm", policy="writer", n=2, seed=3)
    assert len({spec.environment_id for name in ("one", "two") for spec in rows_of(tmp_path / name)}) == 4


def test_what_a_model_cannot_repair_is_kept_with_its_history(tmp_path: Path) -> None:
    writer = {"generator": model("scripted", turns=["no PDDL", "still none"])}
    manifest = run(tmp_path, "spec_env", "worlds", writer, backend="llm", policy="writer", n=1, repairs=1)
    assert manifest.reasons == {"unrepaired": 1}
    (letter,) = dropped_of(tmp_path / "worlds")
    assert letter.blamed == "generator"
    assert [version["text"] for version in letter.input["history"]] == ["no PDDL", "still none"]
    assert letter.input["text"] == BUILT_IN[0]


@pytest.mark.parametrize("parameters", [{"backend": "llm"}, {"backend": "procedural", "policy": "writer"}])
def test_backend_and_model_belong_together(parameters: dict[str, str], tmp_path: Path) -> None:
    with user_error("rule-broken", "backend: llm", "policy"):
        job(tmp_path, "spec_env", "worlds", **parameters)


def test_repairs_of_a_procedural_backend_are_refused(tmp_path: Path) -> None:
    for repairs in (5, SpecEnv.model_fields["repairs"].default):
        with user_error("rule-broken", "repairs", "backend: llm"):
            job(tmp_path, "spec_env", "worlds", backend="procedural", repairs=repairs)


def test_a_family_without_that_backend_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only = Registry("environment generator", {"interpreter_procedural": "somewhere:Generator"})
    monkeypatch.setattr("agentmill.pipelines.operators.spec_env.ENVIRONMENT_GENERATORS", only)
    with user_error("rule-broken", "backend: llm"):
        job(tmp_path, "spec_env", "worlds", family="interpreter", backend="llm", policy="writer")


def test_interpreter_worlds_get_tasks_that_are_admitted(tmp_path: Path) -> None:
    with pool().session():
        """Says so where there can be none."""
    run(tmp_path, "spec_env", "worlds", family="interpreter", n=2)
    run(tmp_path, "propose", "tasks", of="worlds", n=2, plan_length=[2, 4])
    manifest = run(tmp_path, "admit", "admitted", of="tasks", environments="worlds")
    assert (manifest.counts.read, manifest.counts.written, manifest.reasons) == (4, 4, {})


def test_coding_problems_get_tasks_that_are_admitted_and_solved_by_the_expert(tmp_path: Path) -> None:
    with pool().session():
        """Says so where there can be none."""
    run(tmp_path, "spec_env", "proposed", family="codegym", n=4)
    run(tmp_path, "admit", "worlds", of="proposed")
    run(tmp_path, "propose", "proposed_tasks", of="worlds", n=3, plan_length=[3, 40])
    manifest = run(tmp_path, "admit", "tasks", of="proposed_tasks", environments="worlds")
    assert manifest.reasons == {}
    assert manifest.counts.read == manifest.counts.written >= 9
    both = {"tasks": "tasks", "environments": "worlds"}
    run(tmp_path, "expert", "runs", {"actor": model("expert")}, policy="planner", scaffold="tools", **both)
    run(tmp_path, "check_outcome", "verdicts", of="runs", **both)
    assert [verdict.passed for verdict in rows_of(tmp_path / "verdicts")] == [True] * manifest.counts.written


def test_a_corpus_makes_one_environment_that_admission_takes_once(tmp_path: Path) -> None:
    paths = [str(invented(tmp_path, 40)), str(invented(tmp_path, 40, 1))]
    manifest = run(tmp_path, "spec_env", "worlds", family="search", corpus=paths, held_out=0.5)
    specs = rows_of(tmp_path / "worlds")
    assert manifest.counts.written == 2
    assert {(spec.family, spec.split, spec.lineage.notes["documents"]) for spec in specs} == {
        ("search", "train", 40),
        ("search", "held_out", 40),
    }
    assert {read_source(spec).path for spec in specs} == set(paths)
    run(tmp_path, "admit", "admitted", of=["worlds"])
    assert {spec.environment_id for spec in rows_of(tmp_path / "admitted")} == {s.environment_id for s in specs}


def test_invented_articles_are_as_many_corpora_as_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTMILL_CACHE", str(tmp_path / "cache"))
    given = {"family": "search", "corpus": "invented:40", "n": 4, "held_out": 0.25}
    run(tmp_path, "spec_env", "environments", **given)
    specs = rows_of(tmp_path / "environments")
    named = [msgspec.json.decode(spec.source)["path"] for spec in specs]
    assert sorted(named) == [f"invented:40/{number}" for number in (1, 2, 3, 4)], "they are found on any machine"
    assert {spec.lineage.notes["documents"] for spec in specs} == {40}
    assert Counter(spec.split for spec in specs) == {"train": 3, "held_out": 1}
    assert len({read_source(spec).digest for spec in specs}) == 4
    assert run(tmp_path, "admit", "admitted", of="environments").counts.written == 4
    assert job(tmp_path, "spec_env", "environments", **given).finished() is not None


def test_a_changed_corpus_is_another_configuration(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "corpus.jsonl", [OTTERS])
    run(tmp_path, "spec_env", "worlds", family="search", corpus=str(path))
    assert job(tmp_path, "spec_env", "worlds", family="search", corpus=str(path)).finished() is not None
    write_jsonl(path, [OTTERS, CRANES])
    with user_error("made-differently", "seeds"):
        job(tmp_path, "spec_env", "worlds", family="search", corpus=str(path)).finished()


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"family": "search"}, "needs `corpus`"),
        ({"family": "search", "corpus": []}, "needs `corpus`"),
        ({"family": "pddl", "corpus": "x.jsonl"}, "goes with `family: search`"),
        ({"corpus": "x.jsonl"}, "goes with `family: search`"),
        ({"family": "search", "corpus": "x.jsonl", "n": 2}, "`n` is 2"),
        ({"family": "search", "corpus": "x.jsonl", "inspiration": "y.txt"}, "`inspiration`"),
        ({"family": "search", "corpus": "invented:19"}, "from 20 to 10,000"),
        ({"family": "search", "corpus": "invented:many", "n": 2}, "invented:many"),
    ],
)
def test_corpus_goes_with_family_search(parameters: dict[str, Any], words: str) -> None:
    with user_error("rule-broken", words):
        stage("spec_env", **parameters)


def test_a_corpus_that_cannot_be_read_ends_the_run_while_it_is_planned(tmp_path: Path) -> None:
    with user_error("no-such-file", "no corpus"):
        run(tmp_path, "spec_env", "worlds", family="search", corpus=str(tmp_path / "missing"))
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    with user_error("no-records", "empty"):
        run(tmp_path, "spec_env", "worlds", family="search", corpus=str(empty))


def test_a_corpus_with_an_id_twice_is_dropped_with_the_id(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "corpus.jsonl", [OTTERS, CRANES, OTTERS])
    run(tmp_path, "spec_env", "worlds", family="search", corpus=str(path))
    (letter,) = dropped_of(tmp_path / "worlds")
    assert letter.reason == "broken_corpus"
    assert "'otters'" in letter.detail


def test_corpora_that_hold_the_same_are_refused(tmp_path: Path) -> None:
    paths = [str(write_jsonl(tmp_path / name, [OTTERS])) for name in ("one.jsonl", "two.jsonl")]
    with user_error("given-twice", "one.jsonl and two.jsonl"):
        run(tmp_path, "spec_env", "worlds", family="search", corpus=paths)
