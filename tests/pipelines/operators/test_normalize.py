"""``normalize``: every record of the files becomes a trajectory or a dead letter, the same for any division of work."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentmill.pipelines.engine.runner import RunnerConfig
from agentmill.pipelines.sources import reading as rows
from agentmill.pipelines.tables.inspection import inspect_table
from agentmill.schemas.errors import UserError
from agentmill.schemas.profiles.fields import Kept, field_report
from agentmill.schemas.profiles.profile import OutcomeField
from agentmill.schemas.records.trajectory import Outcome, Trajectory
from agentmill.schemas.records.verdict import Dropped
from agentmill.schemas.tables import Table, read_shard
from tests.errors import user_error
from tests.pipelines.operators.steps import job, run, stage


def record(number: int, **fields: Any) -> dict[str, Any]:
    content = [
        {"class_": "text_observation", "content": f"Do thing {number}.", "source": "user"},
        {"class_": "message_action", "content": "done", "description": None},
    ]
    return {"id": f"r{number}", "content": content, "details": {}, **fields}


TALK = {"of": "talk", "content": ["text"]}


def write(path: Path, *records: Any) -> str:
    lines = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in records]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return str(path)


def runs_of(folder: Path) -> list[Trajectory]:
    return list(Table.open(folder).rows())


def dropped_of(folder: Path) -> list[Dropped]:
    return [letter for shard in Table.open(folder).dropped_shards() for letter in read_shard(shard, Dropped)]


def normalize(folder: Path, name: str, *data: str, **parameters: Any) -> Any:
    return run(folder, "normalize", name, data=list(data), dataset="d", format="adp", **parameters)


def test_nothing_is_lost_and_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", record(0), b"", b'{"id": "r', record(1, schema_version="9"), b"\xff\xfe", b"[1]")
    manifest = normalize(tmp_path, "t", data)
    counts = manifest.counts
    assert (counts.read, counts.used, counts.dropped, counts.written) == (6, 1, 5, 1)
    assert manifest.reasons == {"blank": 1, "invalid_json": 2, "not_an_object": 1, "unknown_version": 1}
    letters = dropped_of(tmp_path / "t")
    assert [letter.input["row"] for letter in letters] == [1, 2, 3, 4, 5]
    assert letters[1].input == {"files": ["d.jsonl"], "row": 2, "raw": '{"id": "r'}
    assert {letter.blamed for letter in letters} == {"format"}


def test_a_record_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    depths = range(900, 1010)
    arguments = [f'{{"a": {"[" * depth}{"]" * depth}}}' for depth in depths]
    calls = [
        [{"type": "text", "value": "x"}, {"type": "tool_call", "value": f'{{"name": "f", "arguments": {each}}}'}]
        for each in arguments
    ]
    data = write(tmp_path / "d.jsonl", *({"messages": [{"role": "assistant", "content": each}]} for each in calls))
    counts = run(tmp_path, "normalize", "t", data=[data], dataset="d", format="llamafactory").counts
    assert (counts.read, counts.used + counts.dropped) == (len(depths), len(depths))


@pytest.mark.parametrize("name", ["d.jsonl", "d.json"])
def test_numbers_that_are_not_finite_are_read_as_null_and_counted(tmp_path: Path, name: str) -> None:
    lines = [json.dumps(record(0)), json.dumps(record(1, score=float("nan"), more=[-float("inf"), "NaN, Infinity"]))]
    path = tmp_path / name
    path.write_text("\n".join(lines) if name == "d.jsonl" else f"[{', '.join(lines)}]")
    manifest = normalize(tmp_path, "t", str(path))
    assert (manifest.counts.read, manifest.counts.used) == (2, 2)
    assert manifest.metrics["remark.not_finite"] == 2
    assert runs_of(tmp_path / "t")[1].extra["adp"] == {"id": "r1", "score": None, "more": [None, "NaN, Infinity"]}


def test_not_finite_words_in_broken_json_are_no_numbers(tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", record(0), b'{"a": NaNs}', b'{"a": "NaN}', b'{"a": NaN, "b"}')
    assert normalize(tmp_path, "t", data).reasons == {"invalid_json": 3}


@pytest.mark.parametrize("digits", [5_000, 100_000])
@pytest.mark.parametrize("name", ["d.jsonl", "d.json"])
def test_a_record_with_a_huge_number_is_dropped_and_its_bytes_are_kept(tmp_path: Path, digits: int, name: str) -> None:
    huge = f'{{"id": "r1", "n": {"7" * digits}}}'
    text = f"{json.dumps(record(0))}\n{huge}\n" if name == "d.jsonl" else f"[{json.dumps(record(0))}, {huge}]"
    (tmp_path / name).write_text(text)
    manifest = normalize(tmp_path, "t", str(tmp_path / name))
    assert (manifest.counts.used, manifest.reasons) == (1, {"number_out_of_range": 1})
    (letter,) = dropped_of(tmp_path / "t")
    assert letter.input == {"files": [name], "row": 1, "raw": huge}


def test_a_dropped_record_beyond_a_megabyte_is_kept_as_a_reference(tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", record(0), b'{"n": ' + b"7" * 2**20 + b"}")
    normalize(tmp_path, "t", data)
    (letter,) = dropped_of(tmp_path / "t")
    assert letter.input == {"files": ["d.jsonl"], "row": 1, "bytes": 2**20 + 7}


def test_an_element_of_a_list_that_is_nested_too_deeply_is_dropped_alone(tmp_path: Path) -> None:
    deep = "[" * 5_000 + "]" * 5_000
    path = tmp_path / "d.json"
    path.write_text(f'[{json.dumps(record(0))}, {{"id": "r1", "a": {deep}}}, {json.dumps(record(2))}]')
    manifest = normalize(tmp_path, "t", str(path))
    assert (manifest.counts.used, manifest.reasons) == (2, {"too_deep": 1})


def test_a_value_that_no_table_can_be_read_with_is_dropped(tmp_path: Path) -> None:
    deep: Any = []
    for _ in range(899):
        deep = [deep]
    data = write(tmp_path / "d.jsonl", record(0), record(1, deep=deep))
    manifest = normalize(tmp_path, "t", data)
    assert (manifest.counts.used, manifest.reasons) == (1, {"unrepresentable": 1})
    (letter,) = dropped_of(tmp_path / "t")
    assert "nested too deeply (more than 200 levels)" in letter.detail
    assert letter.input == {"shard": letter.input["shard"], "rows": [0, 1], "source": letter.input["source"]}
    assert letter.input["source"]["row"] == 1
    inspect_table(Table.open(tmp_path / "t"), rows=2, dropped=True)


def test_a_parquet_row_that_cannot_be_read_is_dropped_with_its_other_columns(tmp_path: Path) -> None:
    rows = [record(number) for number in range(3)]
    when = pa.array([0, 2**62, 1], pa.timestamp("us"))
    path = tmp_path / "d.parquet"
    table = pa.table({name: pa.array([json.dumps(row[name]) for row in rows]) for name in ("id", "content")})
    pq.write_table(table.append_column("when", when), path)
    manifest = run(tmp_path, "normalize", "t", data=[str(path)], dataset="d", format="adp")
    assert manifest.reasons["unreadable_column"] == 1
    letter = next(each for each in dropped_of(tmp_path / "t") if each.reason == "unreadable_column")
    assert (letter.input["row"], json.loads(letter.input["raw"]).keys()) == (1, {"id", "content"})
    assert letter.detail.startswith("column 'when' cannot be read (OverflowError: ")


@pytest.mark.parametrize("part_mb", [0.0001, 0.001, 16])
@pytest.mark.parametrize("workers", [1, 2])
def test_rows_are_the_same_for_any_division_of_work(tmp_path: Path, part_mb: float, workers: int) -> None:
    data = write(tmp_path / "d.jsonl", *(record(number % 20) for number in range(25)))
    order = job(tmp_path, "normalize", "t", data=[data], dataset="d", format="adp", part_mb=part_mb)
    runner = RunnerConfig(name="multi_processing", workers=2) if workers == 2 else RunnerConfig()
    type(order)(**{**{name: getattr(order, name) for name in order.__struct_fields__}, "runner": runner}).run()
    runs = runs_of(tmp_path / "t")
    assert [each.source.row for each in runs if each.source] == list(range(25))
    assert len({each.trajectory_id for each in runs}) == 25
    normalize(tmp_path, "whole", data)
    assert runs == runs_of(tmp_path / "whole")


class Worn(io.BytesIO):
    """A file of which only the first three lines can be read."""

    def __init__(self, path: str, error: Exception) -> None:
        super().__init__(Path(path).read_bytes())
        self._error = error
        self._left = 3

    def readline(self, size: int | None = -1, /) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise self._error
        return super().readline(size)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "bad sector"), httpx2.ReadTimeout("slow"), ValueError("closed")])
def test_a_file_that_cannot_be_read_ends_the_stage_and_the_next_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    data = write(tmp_path / "d.jsonl", *map(record, range(10)))
    order = job(tmp_path, "normalize", "t", data=[data], dataset="d", format="adp")
    order.parameters.seeds(order.context)  # the plan is made, and held
    with monkeypatch.context() as patch:
        patch.setattr(rows, "opened", lambda path: Worn(path, error))
        with user_error("not-readable", "d.jsonl", type(error).__name__):
            order.run()
    assert not (tmp_path / "t/manifest.json").exists()
    counts = order.run().counts
    assert (counts.read, counts.used, counts.written) == (10, 10, 10)


def test_the_profile_says_task_outcome_split_and_licence(tmp_path: Path) -> None:
    records = [{"instance": "a", "passed": value, "score": 0.5} for value in (True, False, None, 1)]
    data = write(tmp_path / "d.jsonl", *(record(number, **each) for number, each in enumerate(records)))
    outcome = {"field": "passed", "reward": "score"}
    normalize(tmp_path, "t", data, task_id="instance", outcome=outcome, split="dev", licence="MIT")
    runs = runs_of(tmp_path / "t")
    assert [each.outcome.status for each in runs if each.outcome] == ["success", "failure", "unknown", "unknown"]
    assert {each.outcome.reward for each in runs if each.outcome} == {0.5}
    assert {each.task_id for each in runs} == {"a"}
    assert {(each.source.split, each.source.licence) for each in runs if each.source} == {("dev", "MIT")}


@pytest.mark.parametrize(
    ("given", "reward"), [(0.5, 0.5), (1, 1.0), (True, 1.0), ("0.5", 0.5), ("nan", 0.25), ("", 0.25), (10**400, 0.25)]
)
def test_a_reward_that_is_no_number_of_ours_leaves_the_one_of_the_format(given: object, reward: float) -> None:
    read = OutcomeField(field="passed", reward="score").read([{"score": given}], Outcome(reward=0.25))
    assert read == Outcome(reward=reward)


def test_private_fields_are_stored_nowhere(tmp_path: Path) -> None:
    secret = {"email": "ann@example.org", "meta": {"token": "hunter2", "kept": 1}}
    data = write(tmp_path / "d.jsonl", record(0, **secret), {"id": "broken", **secret})
    manifest = normalize(tmp_path, "t", data, private=["email", "meta.token"])
    assert manifest.counts.dropped == 1
    files = [path.read_bytes() for path in (tmp_path / "t").rglob("*") if path.is_file()]
    (kept,) = runs_of(tmp_path / "t")
    assert kept.extra["adp"]["meta"] == {"kept": 1}
    rows = str([*Table.open(tmp_path / "t").rows(), *dropped_of(tmp_path / "t")])
    assert not any(word in rows or word.encode() in b"".join(files) for word in ("ann@example.org", "hunter2"))


@pytest.mark.parametrize(
    ("score", "status"),
    [
        ("0.8", "success"),
        ("0.79", "failure"),
        ("1", "success"),
        (1, "success"),
        ("good", "unknown"),
        ("inf", "unknown"),
    ],
)
def test_a_score_may_be_the_text_of_a_number(score: object, status: str) -> None:
    assert OutcomeField(field="score", success_from=0.8).read([{"score": score}], None).status == status


def test_the_outcome_of_a_record_is_that_of_its_first_trajectory(tmp_path: Path) -> None:
    sides = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
    pair = {side: [{"role": role, "content": side}] for side, role in sides.items()}
    data = write(tmp_path / "d.jsonl", {**pair, "passed": True})
    given = {"data": [data], "dataset": "d", "format": "trl", "task_id": "passed", "outcome": {"field": "passed"}}
    run(tmp_path, "normalize", "t", **given)
    better, worse = runs_of(tmp_path / "t")
    assert [better.outcome.status, worse.outcome.status] == ["success", "unknown"]
    assert [better.task_id, worse.task_id] == ["true", "true"]


@pytest.mark.parametrize("group", [None, {"by": ["n"], "join": "conversations"}])
def test_records_that_differ_in_private_fields_alone_have_ids_of_their_own(tmp_path: Path, group: Any) -> None:
    turns = {"conversations": [{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Hello."}]}
    rows = [{**turns, "user": user} for user in ("ann", "bob", "ann")]
    spaced = json.dumps(rows[1], separators=(" , ", " : ")).encode()
    data = write(tmp_path / "d.jsonl", {**turns, "n": 1}, *rows, spaced)
    given = {"data": [data], "dataset": "d", "format": "sharegpt", "part_mb": 1e-6, "group": group}
    run(tmp_path, "normalize", "t", **given, private=["user"])
    assert len({each.trajectory_id for each in runs_of(tmp_path / "t")}) == 5


def test_rows_are_grouped_by_a_field_that_is_not_stored(tmp_path: Path) -> None:
    rows = [
        {"conversations": [{"from": "human", "value": f"{n}"}, {"from": "gpt", "value": "Hello."}], "user": user}
        for n, user in enumerate(("ann", "bob", "ann"))
    ]
    data = write(tmp_path / "d.jsonl", *rows)
    given = {"data": [data], "dataset": "d", "format": "sharegpt", "private": ["user"]}
    group = {"by": ["user"], "join": "conversations"}
    assert run(tmp_path, "normalize", "t", **given, group=group).counts.written == 2
    assert "ann" not in str(runs_of(tmp_path / "t"))
    with user_error("rule-broken", "`task_id: user`", "`private` names it"):
        stage("normalize", **given, task_id="user")


def test_a_blank_row_between_grouped_ones_is_blank(tmp_path: Path) -> None:
    turns = {"conversations": [{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Hello."}], "n": 1}
    data = write(tmp_path / "d.jsonl", turns, turns, b"")
    given = {"data": [data], "dataset": "d", "format": "sharegpt"}
    manifest = run(tmp_path, "normalize", "t", **given, group={"by": ["n"], "join": "conversations"})
    assert (manifest.counts.written, manifest.reasons) == (1, {"blank": 1})


def test_a_dropped_record_of_a_format_with_personal_fields_is_not_stored(tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", {"trajectory": [1], "email": "ann@example.org", "token": "hunter2"})
    run(tmp_path, "normalize", "t", data=[data], dataset="d", format="openhands")
    (letter,) = dropped_of(tmp_path / "t")
    assert letter.input == {"files": ["d.jsonl"], "row": 0}
    assert not any(word in letter.detail for word in ("ann@example.org", "hunter2"))


def test_private_paths_reach_into_lists_objects_and_json_text(tmp_path: Path) -> None:
    events = [
        {"source": "user", "action": "message", "args": {"content": "Hi.", "api": {"token": "hunter2"}}},
        {"action": "initialize", "args": {"token": "hunter2", "kept": 1}},
        {"action": "finish", "args": {"note": '{"user": {"email": "ann@example.org"}, "kept": 2}'}},
    ]
    data = write(tmp_path / "d.jsonl", {"trajectory": events, "token": "hunter2"})
    private = ["token", "trajectory.args.note.user.email"]
    manifest = run(tmp_path, "normalize", "t", data=[data], dataset="d", format="openhands", private=private)
    rows = str(runs_of(tmp_path / "t"))
    assert not any(word in rows for word in ("hunter2", "ann@example.org"))
    assert "'kept': 1" in rows
    assert '{"user": {}, "kept": 2}' in rows
    metrics = manifest.metrics
    assert [metrics[f"private.{path}"] for path in private] == [3, 1]


def test_a_private_path_that_matches_nothing_is_reported(tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", record(0, email="a"), record(1, note='log: {"email": "b"}'))
    step = stage("normalize", data=[data], dataset="d", format="adp", private=["emial", "email"])
    manifest = normalize(tmp_path, "t", data, private=["emial", "email"])
    assert manifest.metrics["private.emial"] == 0
    assert step.notes(manifest)[-2:] == [
        "warning: private 'emial' matches nothing in 2 records. Did you mean 'email'?",
        "warning: 1 texts name 'email' but are no JSON, so they are stored as they are; if they hold it, make the"
        " field of the text private",
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"outcome": {"field": "resolvd"}},
            "outcome.field 'resolvd' is in none of 2 records. Did you mean 'resolved'?",
        ),
        (
            {"outcome": {"field": "resolved", "reward": "info.scor"}},
            "outcome.reward 'info.scor' is in none of 2 records.",
        ),
        ({"outcome": {"field": "resolved", "reward": "info.scor"}}, "Did you mean 'info.score'?"),
        ({"task_id": "instance"}, "task_id 'instance' is in none of 2 records. Did you mean 'instance_id'?"),
        ({"environment_id": "zzz"}, "environment_id 'zzz' is in none of 2 records\n"),
        ({"rename": {"contnet": "content"}}, "rename 'contnet' is in none of 2 records. Did you mean 'content'?"),
    ],
)
def test_a_field_that_no_record_has_is_refused(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    fields = {"resolved": True, "info": {"score": 1}, "instance_id": "a"}
    data = write(tmp_path / "d.jsonl", record(0, **fields), {"no content": 1, **fields})
    for _ in range(2):
        with pytest.raises(UserError) as error:
            normalize(tmp_path, "t", data, **given)
        assert words in str(error.value)
        assert len(str(error.value).splitlines()) == 2
        assert not (tmp_path / "t/manifest.json").exists()
        assert not (tmp_path / "t/data").exists()


def test_a_key_of_groups_that_no_row_has_is_refused(tmp_path: Path) -> None:
    rows = [{"run": {"id": 1}, "step": {"nr": place}} for place in range(3)]
    given = {"data": [write(tmp_path / "d.jsonl", *rows)], "dataset": "d", "format": "steps"}
    with pytest.raises(UserError) as error:
        run(tmp_path, "normalize", "t", **given, group={"by": ["run.idd"], "order": "stepp.nr"})
    message = "group.by 'run.idd' is in none of 3 records. Did you mean 'run.id'?; group.order 'stepp.nr' is in none of"
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "orders",
    [
        ["9", "10", "11"],
        [9, 10.5, "11"],
        ["2026-01-31T23:00:00Z", "2026-02-01T00:30:00+01:00", "2026-02-01"],
        [1, 2, None],
    ],
)
def test_rows_of_a_group_are_ordered_by_numbers_and_times_also_in_texts(tmp_path: Path, orders: list[Any]) -> None:
    rows = [{"run": 1, "at": at, "action": f"turn {place}"} for place, at in enumerate(orders)]
    given = {"dataset": "d", "format": "steps", "group": {"by": ["run"], "order": "at"}}
    data = [write(tmp_path / "d.jsonl", rows[2], rows[1], rows[0])]
    manifest = run(tmp_path, "normalize", "t", data=data, **given)
    (read,) = runs_of(tmp_path / "t")
    assert [getattr(item, "content", None) for item in read.content] == ["turn 0", "turn 1", "turn 2"]
    warning = "warning: group.order 'at' is missing in rows of 1 runs: these rows come last"
    assert (warning in stage("normalize", data=data, **given).notes(manifest)) == (None in orders)


@pytest.mark.parametrize("order", ["step_10", True, [1], "nan"])
def test_an_order_that_is_no_number_and_no_time_is_refused(tmp_path: Path, order: Any) -> None:
    data = write(tmp_path / "d.jsonl", {"run": 1, "at": 1, "action": "a"}, {"run": 1, "at": order, "action": "b"})
    group = {"by": ["run"], "order": "at"}
    with pytest.raises(UserError) as error:
        run(tmp_path, "normalize", "t", data=[data], dataset="d", format="steps", group=group)
    message, advice = str(error.value).splitlines()
    assert message.startswith(f"group.order 'at' is {order!r} in {data}, row 1; expected a number or a time")
    assert "leave `order` out" in advice


def test_the_last_row_of_a_group_tells_the_outcome(tmp_path: Path) -> None:
    rows = [
        {"run": 1, "action": "a", "won": won, "task": task} for won, task in ((False, "x"), (None, "x"), (True, "y"))
    ]
    given = {
        "dataset": "d",
        "format": "steps",
        "group": {"by": ["run"]},
        "outcome": {"field": "won"},
        "task_id": "task",
        "rename": {"action": "deed"},
        "options": {"action": {"text": "deed"}},
    }
    data = [write(tmp_path / "d.jsonl", *rows)]
    manifest = run(tmp_path, "normalize", "t", data=data, **given)
    (read,) = runs_of(tmp_path / "t")
    assert (read.outcome.status, read.task_id, len(read.content)) == ("success", "x", 3)
    assert stage("normalize", data=data, **given).notes(manifest)[2:] == [
        "warning: task_id 'task' differs between the rows of 1 of 1 runs: the first row counts",
        "warning: outcome.field 'won' differs between the rows of 1 of 1 runs: the last value counts",
    ]


def test_whether_a_message_is_trained_on_may_be_a_number(tmp_path: Path) -> None:
    masks: list[Any] = [0, 1, 0.0, 0.5, False, True, None, "no"]
    row = {"talk": [{"role": "assistant", "text": "Ho.", "mask": mask} for mask in masks]}
    data = [write(tmp_path / "d.jsonl", row)]
    given = {"data": data, "dataset": "d", "format": "openai", "messages": {**TALK, "train": "mask"}}
    manifest = run(tmp_path, "normalize", "t", **given)
    (read,) = runs_of(tmp_path / "t")
    assert [each.train for each in read.content] == [False, True, False, True, False, True, None, None]
    assert read.extra["openai"]["content"] == {"3": {"weight": 0.5}, "7": {"mask": "no"}}
    assert stage("normalize", **given).notes(manifest)[-1] == (
        "warning: messages.train 'mask' is neither a boolean nor a number in 1 of 1 records: it is kept in extra, and"
        " says nothing of what is trained on"
    )


def test_a_field_of_a_message_that_is_called_as_one_of_ours_is_kept_under_another_name(tmp_path: Path) -> None:
    both = {"from": "user", "text": "a", "content": "b", "content_": "c", "role": "d", "weight": 7, "mask": 1}
    row = {"talk": [both, {"role": "assistant", "text": None, "content": "e"}]}
    messages = {**TALK, "role": "from", "train": "mask"}
    given = {"data": [write(tmp_path / "d.jsonl", row)], "dataset": "d", "format": "openai", "messages": messages}
    run(tmp_path, "normalize", "t", **given)
    (read,) = runs_of(tmp_path / "t")
    assert [each.content for each in read.content] == ["a", "e"]
    assert read.extra["openai"]["content"] == {"0": {"content__": "b", "content_": "c", "role_": "d", "weight_": 7}}


def test_a_part_of_a_message_that_no_message_has_is_refused(tmp_path: Path) -> None:
    row = {"chat": [{"role": "user", "txt": "Hi."}, {"role": "assistant", "txt": "Ho."}]}
    given = {"data": [write(tmp_path / "d.jsonl", row)], "dataset": "d", "format": "openai", "rename": {"chat": "talk"}}
    messages = {"of": "talk", "content": ["text"], "train": "mask"}
    with pytest.raises(UserError) as error:
        run(tmp_path, "normalize", "t", **given, messages=messages)
    assert str(error.value).partition("\n")[0] == (
        "messages.content 'text' is in none of 1 records. Did you mean 'txt'?; messages.train 'mask' is in none of"
        " 1 records"
    )


def test_a_field_that_some_records_lack_and_values_that_mean_nothing_are_reported(tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", record(0, task=1, solved="yes"), record(1, solved="no"))
    given = {"task_id": "task", "outcome": {"field": "solved"}}
    manifest = normalize(tmp_path, "t", data, **given)
    assert stage("normalize", data=[data], dataset="d", format="adp", **given).notes(manifest)[2:] == [
        "task_id 'task' is missing in 1 of 2 records",
        "warning: outcome.field 'solved' says of no run whether it succeeded; its values are none of those that mean"
        " so: set outcome.success, outcome.failure or outcome.success_from",
    ]
    read = normalize(tmp_path, "read", data, outcome={"field": "solved", "success": ["yes"]})
    assert not any(name.startswith(("missing.", "near.")) for name in read.metrics)
    assert read.metrics["unread.outcome.field 'solved'"] == 1
    settings = {"outcome": {"field": "solved", "success": ["yes"]}}
    assert stage("normalize", data=[data], dataset="d", format="adp", **settings).notes(read)[2:] == [
        "outcome.field 'solved' says neither success nor failure in 1 of 2 records"
    ]


def test_typed_actions_and_guessed_sources_are_in_the_manifest_and_the_notes(tmp_path: Path) -> None:
    act = [{"role": "assistant", "content": "Action: look[box]"}, {"role": "user", "content": "A ball."}]
    rows = [{"messages": [{"role": "user", "content": "Look."}, *act * n]} for n in (0, 1, 2)]
    given = {"data": [write(tmp_path / "d.jsonl", *rows)], "dataset": "d", "format": "openai"}
    options = {"dialect": "react"}
    manifest = run(tmp_path, "normalize", "t", **given, options=options)
    figures = {name: manifest.metrics[name] for name in ("typed_actions", "remark.guessed_source")}
    assert figures == {"typed_actions": 3, "remark.guessed_source": 3}
    assert manifest.metrics["typed_actions_per_trajectory"] == 1.0
    found = "3 typed actions (calls and code) in 3 trajectories, 1.0 each; 1 have none; "
    assert stage("normalize", **given).notes(manifest) == [f"{found}the source of 3 turns was guessed"]
    before = msgspec.structs.replace(manifest, metrics={"items": 7})
    assert stage("normalize", **given, private=["x"]).notes(before) == []
    untyped = run(tmp_path, "normalize", "untyped", **given)
    assert untyped.metrics["remark.guessed_source"] == untyped.metrics["typed_actions"] == 0
    assert "warning: no action was read as a call or code" in stage("normalize", **given).notes(untyped)[1]


def test_what_a_folder_has_besides_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder / "d.jsonl", record(0))
    parameters = {"data": [str(folder)], "dataset": "d", "format": "adp"}
    manifest = run(tmp_path, "normalize", "t", **parameters)
    assert not [note for note in stage("normalize", **parameters).notes(manifest) if note.startswith("not read")]
    (folder / "older").mkdir()
    for name in ("labels.csv", "README.md", ".hidden"):
        (folder / name).write_text("a,b")
    found = stage("normalize", **parameters).notes(manifest)[-1]
    assert found.startswith(f"not read in {folder}: README.md, labels.csv, older/; ")
    for place in range(4):
        (folder / f"x{place}.txt").write_text("")
    assert ", x0.txt, x1.txt and 2 more; " in stage("normalize", **parameters).notes(manifest)[-1]
    named = {**parameters, "data": [f"{folder}/*.jsonl"]}
    assert not [note for note in stage("normalize", **named).notes(manifest) if note.startswith("not read")]


def test_what_became_of_each_field_is_counted(tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", record(0, note="x"), record(1))
    report = field_report(normalize(tmp_path, "t", data).metrics)
    assert Kept("note", 1, 1, 0) in report
    assert Kept("[].class_", 4, 0, 0) in report


def test_another_file_makes_another_table(tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", record(0))
    first = normalize(tmp_path, "t", data)
    assert normalize(tmp_path, "t", data) == first
    write(tmp_path / "d.jsonl", record(1))
    with user_error("made-differently", "seeds"):
        normalize(tmp_path, "t", data)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"format": "adb"}, "Did you mean 'adp'"),
        ({"options": {"versoin": "1"}}, "Did you mean 'version'"),
        ({"private": ["user."]}, "expected names joined by dots"),
        ({"outcome": {"fiel": "x"}}, "Did you mean 'field'?"),
        ({"data": ["nowhere/*.jsonl"]}, "no file matches"),
    ],
)
def test_mistakes_in_a_profile_are_told(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    data = write(tmp_path / "d.jsonl", record(0))
    parameters = {"data": [data], "dataset": "d", "format": "adp", **given}
    with pytest.raises(UserError) as error:
        run(tmp_path, "normalize", "t", **parameters)
    assert words in str(error.value)


def test_an_empty_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_bytes(b"")
    with user_error("no-records"):
        normalize(tmp_path, "t", str(tmp_path / "d.jsonl"))


def test_a_record_that_says_nothing_is_dropped(tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", {"messages": []}, {"messages": [{"role": "user", "content": "Hi."}]})
    manifest = run(tmp_path, "normalize", "t", data=[data], dataset="d", format="openai")
    assert (manifest.counts.written, manifest.reasons) == (1, {"empty": 1})
