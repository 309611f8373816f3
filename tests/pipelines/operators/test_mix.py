"""``mix``: rows and selections by weights and quotas, and the messages where there are too few."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.operators.operator import StepContext
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.rows import Message, SftRow, TextRow
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Dropped, Selection
from agentmill.schemas.tables import Counts, Manifest, Table, read_shard
from tests.builders import run_of_source, spec, task, trajectory
from tests.errors import user_error
from tests.model import tiny_model
from tests.pipelines.engine.stages import rows_of, write_table
from tests.pipelines.operators.steps import StepRun, job, run, stage

AGENT_TUNING = {"agent": 0.2, "chat": 0.8}


def row(row_id: str, text: str = "Hello.", **fields: Any) -> SftRow:
    messages = [Message(role="user", content=text), Message(role="assistant", content="Yes.", train=True)]
    made = {"trajectory_id": f"t-{row_id}", "view": "sft", "view_parameters": {}, "environment_id": "e0"}
    return SftRow(row_id=row_id, messages=messages, **{**made, **fields})


def write(folder: Path, agent: int = 10, chat: int = 100) -> None:
    """Rows of two tables, those of agents in two environments."""
    write_table(folder / "agent", [[row(f"a{n:03}", environment_id=f"e{n % 2}") for n in range(agent)]], SftRow)
    write_table(folder / "chat", [[row(f"c{n:03}", environment_id=None) for n in range(chat)]], SftRow)


def mix(folder: Path, name: str = "mixed", **parameters: Any) -> Manifest:
    return run(folder, "mix", name, **{"from": ["agent", "chat"], **parameters})


def ids(folder: Path, name: str = "mixed") -> list[str]:
    return sorted(each.row_id for each in rows_of(folder / name))


def by_table(folder: Path, name: str = "mixed") -> dict[str, int]:
    return dict(Counter(each[0] for each in ids(folder, name)))


def dropped(folder: Path, name: str = "mixed") -> Counter[str]:
    paths = Table.open(folder / name).dropped_shards()
    return Counter(f"{each.reason}: {each.detail}" for path in paths for each in read_shard(path, Dropped))


def test_agent_rows_and_general_chat(tmp_path: Path) -> None:
    write(tmp_path)
    manifest = mix(tmp_path, weights=AGENT_TUNING, size=40)
    assert by_table(tmp_path) == {"a": 8, "c": 32}
    assert manifest.counts == Counts(read=110, used=40, dropped=70, written=40)
    assert manifest.reasons == {"not_sampled": 70}
    assert manifest.metrics == {"mixed.agent": 8, "mixed.chat": 32}
    step = stage("mix", **{"from": ["agent", "chat"], "weights": AGENT_TUNING, "size": 40})
    assert step.notes(manifest) == ["40 rows: agent 8 (20.0%), chat 32 (80.0%)"]
    whole = {each.row_id: each for name in ("agent", "chat") for each in rows_of(tmp_path / name)}
    assert all(whole[each.row_id] == each for each in rows_of(tmp_path / "mixed"))


def test_without_a_size_the_mixture_is_as_large_as_its_weights_allow(tmp_path: Path) -> None:
    write(tmp_path)
    mix(tmp_path, weights=AGENT_TUNING)
    assert by_table(tmp_path) == {"a": 10, "c": 40}
    mix(tmp_path, "twice", weights=AGENT_TUNING, repeat=2)
    assert by_table(tmp_path, "twice") == {"a": 20, "c": 80}
    mix(tmp_path, "all")
    assert by_table(tmp_path, "all") == {"a": 10, "c": 100}
    mix(tmp_path, "some", size=11)
    assert len(ids(tmp_path, "some")) == 11


def test_repeats_have_ids_of_their_own_and_are_counted(tmp_path: Path) -> None:
    write(tmp_path, agent=3)
    manifest = mix(tmp_path, weights={"agent": 0.5, "chat": 0.5}, size=14, repeat=3)
    third = [each for each in ids(tmp_path) if each.endswith("~3")]
    assert len(third) == 1
    agent = [each for each in ids(tmp_path) if each[0] == "a"]
    assert sorted({*agent} - {*third}) == ["a000", "a000~2", "a001", "a001~2", "a002", "a002~2"]
    assert manifest.metrics == {"mixed.agent": 7, "mixed.chat": 7, "repeats": 4}
    assert manifest.counts == Counts(read=103, used=10, dropped=93, written=14)
    made = {each.row_id: each for each in rows_of(tmp_path / "mixed")}
    assert made["a000~2"].messages == made["a000"].messages


def test_copies_in_a_mixture_of_mixtures_have_ids_of_their_own(tmp_path: Path) -> None:
    write_table(tmp_path / "agent", [[row("a"), row("b")]], SftRow)
    run(tmp_path, "mix", "once", **{"from": "agent", "size": 4, "repeat": 2})
    run(tmp_path, "mix", "again", **{"from": "once", "size": 8, "repeat": 2})
    assert ids(tmp_path, "again") == ["a", "a~2", "a~2~2", "a~3", "b", "b~2", "b~2~2", "b~3"]


def test_quotas(tmp_path: Path) -> None:
    write(tmp_path)
    manifest = mix(tmp_path, quotas=[{"by": "environment_id", "at_most": 3}])
    assert by_table(tmp_path) == {"a": 6, "c": 100}
    assert dropped(tmp_path) == {"quota: environment_id=e0": 2, "quota: environment_id=e1": 2}
    assert manifest.metrics["without.environment_id"] == 100
    mix(tmp_path, "share", size=104, quotas=[{"by": "environment_id", "share": 0.02}])
    assert by_table(tmp_path, "share") == {"a": 4, "c": 100}


def test_quotas_by_fields_of_other_tables(tmp_path: Path) -> None:
    write_table(tmp_path / "tasks", [[task("x", skills=["look", "move"]), task("y", skills=["move"])]], Task)
    specs = [spec("e0"), spec("e1", family="toolbox")]
    write_table(tmp_path / "environments", [specs], EnvironmentSpec)
    rows = [row(f"a{n}", task_id="xy"[n % 2], environment_id=f"e{n % 2}", trajectory_id="t1") for n in range(8)]
    write_table(tmp_path / "agent", [rows], SftRow)
    write_table(tmp_path / "runs", [[run_of_source("d", "mit")]], Trajectory)
    given = {"from": "agent", "tasks": "tasks"}
    run(tmp_path, "mix", "skills", **given, quotas=[{"by": "task.skills", "at_most": 5}])
    assert len(ids(tmp_path, "skills")) == 5
    given = {"from": "agent", "environments": "environments"}
    run(tmp_path, "mix", "families", **given, quotas=[{"by": "environment.family", "at_most": 1}])
    assert dropped(tmp_path, "families") == {
        "quota: environment.family=pddl": 3,
        "quota: environment.family=toolbox": 3,
    }
    given = {"from": "agent", "trajectories": "runs"}
    run(tmp_path, "mix", "sources", **given, quotas=[{"by": "trajectory.source.dataset", "at_most": 2}])
    assert dropped(tmp_path, "sources") == {"quota: trajectory.source.dataset=d": 6}


def test_a_value_that_a_list_holds_twice_counts_once(tmp_path: Path) -> None:
    write_table(tmp_path / "tasks", [[task("x", skills=["move", "move"])]], Task)
    write_table(tmp_path / "agent", [[row(f"a{n}", task_id="x") for n in range(4)]], SftRow)
    run(tmp_path, "mix", "few", **{"from": "agent"}, tasks="tasks", quotas=[{"by": "task.skills", "at_most": 2}])
    assert len(ids(tmp_path, "few")) == 2


def test_a_text_within_an_open_field_has_no_fields(tmp_path: Path) -> None:
    topics = ["sports", {"sub": "chess"}, '{"sub": "chess"}', {"sub": "chess"}]
    rows = [row(f"a{n}", trajectory_id=f"t{n}") for n in range(len(topics))]
    write_table(tmp_path / "agent", [rows], SftRow)
    runs = [trajectory(f"t{n}", extra={"topic": topic}) for n, topic in enumerate(topics)]
    write_table(tmp_path / "runs", [runs], Trajectory)
    quotas = [{"by": "trajectory.extra.topic.sub", "at_most": 1}]
    manifest = run(tmp_path, "mix", "few", **{"from": "agent"}, trajectories="runs", quotas=quotas)
    assert manifest.metrics["without.trajectory.extra.topic.sub"] == 2
    assert {"a0", "a2"} < set(ids(tmp_path, "few"))
    assert len(ids(tmp_path, "few")) == 3


def test_tables_that_disagree_on_the_value_of_a_quota(tmp_path: Path) -> None:
    write_table(tmp_path / "agent", [[row(f"a{n}", task_id="x") for n in range(2)]], SftRow)
    for name, skills in (("one", ["look"]), ("same", ["look"]), ("other", ["move"])):
        write_table(tmp_path / name, [[task("x", skills=skills)]], Task)
    given = {"from": "agent", "quotas": [{"by": "task.skills", "at_most": 1}]}
    run(tmp_path, "mix", "few", **given, tasks=["one", "same"])
    assert len(ids(tmp_path, "few")) == 1
    with user_error("records-conflict", "task.skills", tmp_path / "one", tmp_path / "other"):
        run(tmp_path, "mix", "none", **given, tasks=["one", "other"])


def test_sizes_in_tokens(tmp_path: Path) -> None:
    texts = {"agent": "box " * 50, "chat": "box"}
    for name, text in texts.items():
        write_table(tmp_path / name, [[row(f"{name[0]}{n}", text) for n in range(40)]], SftRow)
    parameters = {"weights": {"agent": 0.5, "chat": 0.5}, "size": 400, "tokenizer": str(tiny_model())}
    manifest = mix(tmp_path, **parameters)
    tokens = {name: manifest.metrics[f"mixed_tokens.{name}"] for name in texts}
    largest = {name: tokens[name] / manifest.metrics[f"mixed.{name}"] for name in texts}
    assert all(200 <= tokens[name] < 200 + largest[name] for name in texts)
    assert by_table(tmp_path)["c"] > 5 * by_table(tmp_path)["a"]
    step = stage("mix", **{"from": ["agent", "chat"], **parameters})
    assert " tokens: agent 2" in step.notes(manifest)[0]
    with user_error("rows-too-few", "tokens of agent"):
        mix(tmp_path, "more", **{**parameters, "size": 10**6})


def test_a_selection_of_trajectories(tmp_path: Path) -> None:
    sources = {"ours": "x", "chat": "y"}
    for name, dataset in sources.items():
        runs = [run_of_source(dataset, "mit", f"{name}{n}") for n in range(10)]
        write_table(tmp_path / name, [runs], Trajectory)
    chosen = [Selection(trajectory_id=f"ours{n}", name="f", kept=n > 3, reason=None) for n in range(10)]
    write_table(tmp_path / "chosen", [chosen], Selection)
    given = {"from": ["ours", "chat"], "weights": {"ours": 0.5, "chat": 0.5}, "selections": "chosen"}
    manifest = run(tmp_path, "mix", "mixed", **given, size=8)
    found = rows_of(tmp_path / "mixed")
    kept = Counter(each.trajectory_id[:4] for each in found if each.kept)
    assert kept == {"ours": 4, "chat": 4}
    assert Counter(each.reason for each in found) == {None: 8, "not_sampled": 8, "not_selected": 4}
    assert manifest.counts == Counts(read=20, used=20, dropped=0, written=20)
    assert (manifest.metrics["kept"], manifest.metrics["not_in_selections"]) == (8, 10)
    assert (manifest.metrics["left_out.not_sampled"], manifest.metrics["left_out.not_selected"]) == (8, 4)
    quotas = [{"by": "source.dataset", "at_most": 3}]
    run(tmp_path, "mix", "few", **{**given, "quotas": quotas})
    few = rows_of(tmp_path / "few")
    assert Counter(each.trajectory_id[:4] for each in few if each.kept) == {"ours": 3, "chat": 3}
    reasons = Counter(each.reason for each in few if not each.kept)
    assert reasons == {"not_selected": 4, "quota: source.dataset=x": 3, "quota: source.dataset=y": 7} or (
        reasons["not_sampled"] == 10
    )


def test_shards_and_the_order_of_tables_do_not_matter(tmp_path: Path) -> None:
    rows = {name: [row(f"{name[0]}{n}", environment_id=f"e{n % 3}") for n in range(30)] for name in AGENT_TUNING}
    found = []
    for number in range(3):
        folder, chance = tmp_path / str(number), random.Random(number)
        for name, own in rows.items():
            shuffled = chance.sample(own, len(own))
            write_table(folder / name, [shuffled[:11], shuffled[11:]], SftRow)
        order = chance.sample(sorted(rows), 2)
        quotas = [{"by": "environment_id", "at_most": 9}]
        given = {"weights": {"agent": 0.5, "chat": 0.5}, "size": 21, "repeat": 2, "quotas": quotas}
        mix(folder, **{"from": order, **given})
        found.append(ids(folder))
    assert found[0] == found[1] == found[2]
    mix(folder, "other", **{"from": order, **given}, seed=1)
    assert ids(folder, "other") != found[0]


def test_running_again_does_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    given = {"from": ["agent", "chat"], "weights": AGENT_TUNING}
    made = mix(tmp_path, **given)
    assert job(tmp_path, "mix", "mixed", **given).finished() == made
    other_order = {"from": ["chat", "agent"], "weights": AGENT_TUNING}
    assert job(tmp_path, "mix", "mixed", **other_order).finished() == made
    with user_error("made-differently", "weights"):
        job(tmp_path, "mix", "mixed", **{**given, "weights": {"agent": 0.8, "chat": 0.2}}).finished()


def test_crossing_quotas_may_let_more_rows_in_under_another_seed(tmp_path: Path) -> None:
    rows = [row("a", environment_id="x", task_id="a"), row("b", environment_id="x", task_id="b")]
    write_table(tmp_path / "agent", [[*rows, row("c", environment_id="y", task_id="a")]], SftRow)
    quotas = [{"by": each, "at_most": 1} for each in ("environment_id", "task_id")]
    errors = []
    for seed in range(12):
        try:
            mix(tmp_path, f"m{seed}", size=2, seed=seed, **{"from": "agent"}, quotas=quotas)
        except UserError as error:
            errors.append(str(error))
    assert 0 < len(errors) < 12
    assert all("1 were found under the quotas with this `seed`" in each for each in errors)


def test_more_rows_than_there_are(tmp_path: Path) -> None:
    write(tmp_path)
    with user_error("rows-too-few", "200 rows of agent, and 10 are there", "short: allow"):
        mix(tmp_path, weights=AGENT_TUNING, size=1000)
    with user_error("rows-too-few", "111 rows of all tables, and 110 are there"):
        mix(tmp_path, size=111)
    with user_error("rows-too-few", "10 rows of all tables, and 2 are there"):
        mix(tmp_path, size=10, **{"from": "agent"}, quotas=[{"by": "environment_id", "at_most": 1}])
    given = {"from": ["agent", "chat"], "weights": AGENT_TUNING, "size": 100, "short": "allow"}
    step = job(tmp_path, "mix", "mixed", **given)
    assert step.parameters.notes(step.run()) == [
        "90 rows: agent 10 (11.1%), chat 80 (88.9%)",
        "warning: `size: 100` asks for 20 rows of agent, and 10 are there; shares differ",
    ]


def test_an_empty_table(tmp_path: Path) -> None:
    write(tmp_path, chat=0)
    with user_error("no-records", "chat holds no rows"):
        mix(tmp_path, weights=AGENT_TUNING, size=10)
    mix(tmp_path, weights=AGENT_TUNING, size=10, short="allow")
    assert by_table(tmp_path) == {"a": 2}


def test_tables_of_different_kinds(tmp_path: Path) -> None:
    write(tmp_path)
    text = TextRow(row_id="x", trajectory_id="t", view="text", view_parameters={}, text="x")
    write_table(tmp_path / "text", [[text]], TextRow)
    with user_error("wrong-record-type", "SftRow and TextRow"):
        mix(tmp_path, **{"from": ["agent", "text"]})


@pytest.mark.parametrize(
    ("parameters", "code", "words"),
    [
        ({"weights": {"agent": 0.2, "chat": 0.7}}, "rule-broken", "sum to 0.9"),
        ({"weights": {"agent": 0.2, "chats": 0.8}}, "rule-broken", "Did you mean 'chat'?"),
        ({"weights": {"agent": 1.0}}, "rule-broken", "no 'chat'"),
        ({"weights": {"agent": 1.0, "chat": 0.0}}, "rule-broken", "0 or less"),
        ({"size": 0}, "invalid-value", "size"),
        ({"repeat": 2}, "rule-broken", "`repeat`"),
        ({"short": "allow"}, "rule-broken", "`size`"),
        ({"quotas": [{"by": "split"}]}, "rule-broken", "at_most"),
        ({"quotas": [{"by": "split", "share": 0.5}]}, "rule-broken", "`size`"),
        ({"quotas": [{"by": "split", "share": 0.01}], "size": 20}, "rule-broken", "less than 1"),
    ],
)
def test_mistakes(parameters: dict[str, Any], code: str, words: str) -> None:
    with user_error(code, words):
        stage("mix", **{"from": ["agent", "chat"], **parameters})


@pytest.mark.parametrize(
    ("parameters", "reads", "code", "words"),
    [
        ({"quotas": [{"by": "source.dataset", "at_most": 1}]}, "SftRow", "field-missing", "trajectory.FIELD"),
        ({"quotas": [{"by": "environment_ids", "at_most": 1}]}, "SftRow", "field-missing", "environment_id"),
        ({"quotas": [{"by": "task.skills", "at_most": 1}]}, "SftRow", "needs-another-key", "`tasks`"),
        ({"quotas": [{"by": "trajectory.split", "at_most": 1}]}, "Trajectory", "key-not-for-this", "by: split"),
        ({"tasks": "tasks"}, "SftRow", "key-not-for-this", "no quota asks `tasks`"),
        ({"selections": "s"}, "SftRow", "key-not-for-this", "`selections` goes with trajectories"),
        ({"weights": {"x": 1.0}, "repeat": 2}, "Trajectory", "key-not-for-this", "`repeat`"),
    ],
)
def test_what_does_not_go_with_the_tables(parameters: dict[str, Any], reads: str, code: str, words: str) -> None:
    step = stage("mix", **{"from": "x", **parameters})
    read = {"from": [reads], "tasks": ["Task"], "selections": ["Selection"]}
    with user_error(code, words):
        step.writes({role: read[role] for role in step.tables()})


def test_a_quota_on_a_field_that_no_row_has(tmp_path: Path) -> None:
    write(tmp_path)
    with user_error("field-missing", "mix: `quotas`", "none of 110 rows has a value of task_id"):
        mix(tmp_path, quotas=[{"by": "task_id", "at_most": 1}])


def test_names_of_tables_are_part_of_what_a_step_is_compared_by() -> None:
    step = stage("mix", **{"from": ["agent", "chat"], "weights": AGENT_TUNING})
    assert step.provenance_config(StepContext())["weights"] == AGENT_TUNING


def test_weights_follow_the_tables_that_their_names_mean(tmp_path: Path) -> None:
    write(tmp_path)
    weights = {"a": 0.2, "b": 0.8}

    def mixture(**data: str) -> StepRun:
        given = job(tmp_path, "mix", "mixed", **{"from": list(data.values())})
        return msgspec.structs.replace(given, parameters=stage("mix", **{"from": [*data], "weights": weights}))

    made = mixture(a="agent", b="chat").run()
    assert mixture(b="chat", a="agent").finished() == made
    with user_error("made-differently", "folders.a: agent -> chat"):
        mixture(a="chat", b="agent").finished()


def test_tables_of_a_run_are_named_by_their_folders(tmp_path: Path) -> None:
    write(tmp_path / "round-01")
    inputs = {"from": [Table.open(tmp_path / "round-01" / name) for name in ("agent", "chat")]}
    step = stage("mix", **{"from": ["agent@1", "wide/chat"], "weights": {"agent@1": 0.2, "wide/chat": 0.8}})
    assert step.tables_config(inputs) == {}


def test_other_names_are_another_mixture(tmp_path: Path) -> None:
    write(tmp_path)
    given = job(tmp_path, "mix", "mixed", **{"from": ["agent", "chat"]})

    def mixture(*names: str) -> StepRun:
        return msgspec.structs.replace(given, parameters=stage("mix", **{"from": list(names)}))

    mixture("agent", "chat").run()
    with user_error("made-differently", "folders"):
        mixture("chat", "agent").finished()


@pytest.mark.slow
def test_a_mixture_is_trained_on(tmp_path: Path) -> None:
    from agentmill.schemas.config import dump_yaml
    from agentmill.trainers.sft import main

    write(tmp_path, agent=2, chat=12)
    mix(tmp_path, weights={"agent": 0.5, "chat": 0.5}, size=8, repeat=2)
    given = {"rows": str(tmp_path / "mixed"), "model": str(tiny_model()), "output": str(tmp_path / "tuned")}
    (tmp_path / "train.yaml").write_text(dump_yaml({**given, "max_steps": 2, "batch_size": 4}))
    assert main(["--config", str(tmp_path / "train.yaml")]) == 0
    record = json.loads((tmp_path / "tuned/training.json").read_bytes())
    assert record["counts"] == {"read": 8, "used": 8, "dropped": 0, "written": 8}


def test_rows_are_of_any_kind(tmp_path: Path) -> None:
    rows: list[Record] = [
        TextRow(row_id=f"x{n}", trajectory_id="t", view="text", view_parameters={}, text="x") for n in range(5)
    ]
    write_table(tmp_path / "text", [rows], TextRow)
    run(tmp_path, "mix", "mixed", **{"from": "text", "size": 3})
    assert len(rows_of(tmp_path / "mixed")) == 3


def test_an_open_field_of_a_trajectory(tmp_path: Path) -> None:
    runs = [trajectory(f"t{n}", extra={"topic": {"name": "ab"[n % 2]}}) for n in range(6)]
    write_table(tmp_path / "runs", [runs], Trajectory)
    run(tmp_path, "mix", "mixed", **{"from": "runs", "quotas": [{"by": "extra.topic.name", "at_most": 2}]})
    assert sum(each.kept for each in rows_of(tmp_path / "mixed")) == 4


def test_tables_that_differ_in_the_field_of_a_quota(tmp_path: Path) -> None:
    rows = [row("a", task_id="x"), row("b", task_id="y")]
    write_table(tmp_path / "agent", [rows], SftRow)
    for name, split in (("one", "train"), ("two", "test"), ("three", "train")):
        write_table(tmp_path / name, [[task("x", split=split), task("y", split="train")]], Task)
    quotas = [{"by": "task.split", "at_most": 1}]
    run(tmp_path, "mix", "equal", **{"from": "agent"}, tasks=["one", "three"], quotas=quotas)
    assert len(ids(tmp_path, "equal")) == 1
    with user_error("records-conflict", "hold different values of task.split", tmp_path / "one", tmp_path / "two"):
        run(tmp_path, "mix", "mixed", **{"from": "agent"}, tasks=["one", "two"], quotas=quotas)


def test_a_value_counts_once_for_a_row_and_a_text_has_no_fields(tmp_path: Path) -> None:
    topics = [{"sub": ["a", "a"]}, {"sub": ["a"]}, "plain", '{"sub": "a"}']
    runs = [trajectory(f"t{n}", extra={"topic": topic}) for n, topic in enumerate(topics)]
    write_table(tmp_path / "runs", [runs], Trajectory)
    manifest = run(tmp_path, "mix", "mixed", **{"from": "runs", "quotas": [{"by": "extra.topic.sub", "at_most": 2}]})
    assert sum(each.kept for each in rows_of(tmp_path / "mixed")) == 4
    assert manifest.metrics["without.extra.topic.sub"] == 2
