"""Commands on tables and plug-ins: inspect, export, list, check, train."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.operators.registry import KINDS, OPERATORS, described
from agentmill.schemas.format import Origin
from agentmill.schemas.formats import FORMATS
from agentmill.schemas.formats.sharegpt.format import ShareGpt
from agentmill.schemas.records.verdict import Selection
from agentmill.schemas.tables import Table
from tests.builders import agent_message, called, instruction, outcome, seen, spec, trajectory, verdict
from tests.errors import codes, shows
from tests.pipelines.cli.tables import agentmill


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A table of four trajectories, one of them a failure."""
    rows = [
        trajectory("t1"),
        trajectory("t2", split="test"),
        trajectory("t3", outcome=outcome("failure")),
        trajectory("t4", content=[seen("x")] * 9),
    ]
    seed_table(tmp_path / "runs", rows)
    seed_table(tmp_path / "verdicts", [verdict(row.trajectory_id, row.outcome.status == "success") for row in rows])
    return tmp_path / "runs"


def test_inspect_as_json(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert agentmill("inspect", runs, "--json", "--rows", "2") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["record"], found["counts"]["written"], found["files"]) == ("Trajectory", 4, 1)
    assert found["categories"]["split"] == {"train": 3, "test": 1}
    assert found["categories"]["outcome.status"] == {"success": 3, "failure": 1}
    assert found["spreads"]["content"] == {"n": 4, "minimum": 6.0, "median": 6.0, "mean": 6.75, "maximum": 9.0}
    assert [row["trajectory_id"] for row in found["rows"]] == ["t1", "t2"]
    assert found["rows"][0]["content"][2]["content"] == "fly to box"
    assert {column["name"]: column["type"] for column in found["columns"]}["attempt"] == "int64"


def test_names_are_categories_and_prose_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [trajectory(name, split="Train", system_prompt="Reply with one command. " * 5) for name in "ab"]
    seed_table(tmp_path / "runs", rows)
    assert agentmill("inspect", tmp_path / "runs", "--json") == 0
    categories = json.loads(capsys.readouterr().out)["categories"]
    assert categories["split"] == {"Train": 2}
    assert "system_prompt" not in categories


def test_inspect_for_people(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert agentmill("inspect", runs) == 0
    printed = capsys.readouterr().out
    assert "read 4, used 4, dropped 0, written 4" in printed
    assert re.search(r"outcome.status +success +3\n", printed)
    assert f"{runs}/data/*.parquet" in printed


def test_inspect_an_empty_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = seed_table(tmp_path / "t", [spec()])
    manifest = json.loads((table.folder / "manifest.json").read_text())
    manifest.update(files=[], counts={"read": 0, "used": 0, "dropped": 0, "written": 0})
    (table.folder / "manifest.json").write_text(json.dumps(manifest))
    assert agentmill("inspect", table.folder) == 0
    assert "written 0; 0 files" in capsys.readouterr().out


def test_inspect_a_damaged_table(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard = runs / "data/part-00000.parquet"
    content = bytearray(shard.read_bytes())
    content[150:400] = bytes(250)
    shard.write_bytes(content)
    assert agentmill("inspect", runs) == 2
    assert len(capsys.readouterr().err.splitlines()) <= 2


def test_export_training_rows(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["export", runs, "--to", "sft", "--verdicts", tmp_path / "verdicts"]
    assert agentmill(*given, "--out", tmp_path / "rows", "where=success", "rows=step") == 0
    table = Table.open(tmp_path / "rows")
    assert sorted(row.trajectory_id for row in table.rows()) == ["t1", "t1", "t2", "t2"]
    assert table.manifest.reasons == {"no_loss": 1, "not_success": 1}
    assert "read 4, used 2, dropped 2" in capsys.readouterr().out


def test_an_export_of_rows_prints_what_there_is_to_know_of_them(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["export", runs, "--to", "sft", "--out", tmp_path / "rows", "arguments=untrained"]
    assert agentmill(*given) == 0
    warning = "rows have no arguments of calls, so `arguments` changes nothing in them"
    assert warning in capsys.readouterr().out
    assert agentmill(*given, "--json") == 0
    assert any(warning in note for note in json.loads(capsys.readouterr().out)["notes"])


def test_a_format_of_a_plug_in_that_is_only_read_is_not_written(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FORMATS, "load", lambda name: type("Logs", (), {"read": None}))
    assert agentmill("export", runs, "--to", "openai", "--out", tmp_path / "out") == 2
    assert "openai is a format that is only read" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "dropped"),
    [
        (["--selections", "a", "--selections", "b"], 2),
        (["selections={any: [a, b]}"], 0),
        (["selections={any: [a, b], strict: true}"], 2),
    ],
)
def test_export_of_what_selections_keep(
    given: list[str], dropped: int, runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, kept in (("a", (True, False)), ("b", (False, True))):
        rows = [Selection(trajectory_id=f"t{k}", name="f", kept=keep) for k, keep in enumerate(kept, start=1)]
        seed_table(runs.parent / name, rows)
    monkeypatch.chdir(runs.parent)
    assert agentmill("export", "runs", "--to", "text", "--out", "rows", *given) == 0
    assert f"read 4, used {4 - dropped}, dropped {dropped}" in capsys.readouterr().out


def test_a_table_that_is_given_as_option_and_as_parameter(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--to", "sft", "--out", runs.parent / "x", "--verdicts", runs.parent / "verdicts"]
    assert agentmill("export", runs, *arguments, f"verdicts={runs.parent}/verdicts") == 2
    assert shows(capsys.readouterr().err, "given-twice", "verdicts=")


def test_export_adp(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert agentmill("export", runs, "--to", "adp", "--out", tmp_path / "adp", "version=1") == 0
    lines = (tmp_path / "adp/trajectories.jsonl").read_text().splitlines()
    documents = [json.loads(line) for line in lines]
    assert [document["id"] for document in documents] == ["t1", "t2", "t3", "t4"]
    assert [item["class_"] for item in documents[0]["content"]][:3] == [*["text_observation"] * 2, "message_action"]
    assert not list(tmp_path.glob(".adp.*"))
    assert "read 4, used 4, dropped 0, written 4" in capsys.readouterr().out


def test_a_row_that_a_writer_fails_on_is_dropped_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed_table(tmp_path / "runs", [trajectory("a"), trajectory("b")])
    write = ShareGpt.write

    def failing(form: ShareGpt, run: Any) -> Any:
        if run.trajectory_id == "a":
            raise KeyError("label")
        return write(form, run)

    monkeypatch.setattr(ShareGpt, "write", failing)
    assert agentmill("export", tmp_path / "runs", "--to", "sharegpt", "--out", tmp_path / "out") == 0
    assert len((tmp_path / "out/trajectories.jsonl").read_text().splitlines()) == 1
    (dropped,) = map(json.loads, (tmp_path / "out/dropped.jsonl").read_text().splitlines())
    assert (dropped["trajectory_id"], dropped["reason"]) == ("a", "unexpected_error")
    assert dropped["detail"].startswith("KeyError: 'label' (in failing, test_tables.py:")


def test_export_takes_a_parameter_that_is_longer_than_a_file_name(runs: Path, tmp_path: Path) -> None:
    parameters = ", ".join(f"tool_{n}: text" for n in range(30))
    given = ["dialect=brackets", f"dialect_options.parameters={{{parameters}}}"]
    assert agentmill("export", runs, "--to", "openai", "--out", tmp_path / "out", *given) == 0


def test_export_of_preference_rows_writes_pairs(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = trajectory("good", content=[instruction(), agent_message("go")])
    bad = trajectory("bad", content=[instruction(), agent_message("sit")], outcome=outcome("failure"))
    seed_table(tmp_path / "both", [good, bad])
    out = tmp_path / "preferences"
    assert agentmill("export", tmp_path / "both", "--to", "trajectory_pairs", "--out", out) == 0
    capsys.readouterr()
    assert agentmill("export", tmp_path / "preferences", "--to", "sharegpt", "--out", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert f"{tmp_path / 'out/pairs.jsonl'}: read 1, used 1, dropped 0, written 1" in printed
    assert re.search(r"chosen_id +1\b", printed)
    written = [json.loads(line) for line in (tmp_path / "out/pairs.jsonl").read_text().splitlines()]
    assert [(each["chosen"]["value"], each["rejected"]["value"]) for each in written] == [("go", "sit")]
    assert agentmill("export", tmp_path / "preferences", "--to", "xlam", "--out", tmp_path / "x") == 2
    assert shows(capsys.readouterr().err, "format-without-pairs", "xlam", "llamafactory or trl or sh")
    assert agentmill("export", tmp_path / "preferences", runs, "--to", "trl", "--out", tmp_path / "x") == 2
    assert shows(capsys.readouterr().err, "kinds-mixed", runs)


def test_export_rejoins_runs_that_were_read_from_pairs(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {
            "conversations": [{"from": "human", "value": f"{number}?"}],
            "chosen": {"from": "gpt", "value": "yes"},
            "rejected": {"from": "gpt", "value": "no"},
        }
        for number in range(4)
    ]
    read = [ShareGpt().read(json.dumps(row).encode(), Origin("d")) for row in rows]
    both = [run for each in read for run in (each.trajectory, *each.others)]
    seed_table(tmp_path / "some", [both[1], both[4], *both[2:4], both[5], both[0], trajectory()])
    seed_table(tmp_path / "half", [read[3].trajectory])
    arguments = ["--to", "sharegpt", "--pairs", "--out", tmp_path / "out"]
    assert agentmill("export", tmp_path / "some", tmp_path / "half", *arguments) == 0
    assert "read 8, used 6, dropped 2, written 3" in capsys.readouterr().out
    written = [json.loads(line) for line in (tmp_path / "out/pairs.jsonl").read_text().splitlines()]
    assert written == [rows[1], rows[2], rows[0]]
    dropped = [json.loads(line) for line in (tmp_path / "out/dropped.jsonl").read_text().splitlines()]
    assert [each["reason"] for each in dropped] == ["no_pair"] * 2
    assert [each["trajectory_id"] for each in dropped] == ["t1", read[3].trajectory.trajectory_id]


def test_options_of_a_dialect_can_be_given(tmp_path: Path) -> None:
    content = [instruction(), called("search", text="ball"), seen("none", 1)]
    seed_table(tmp_path / "runs", [trajectory(content=content)])
    for number, options in enumerate(
        ["dialect_options.parameters={search: text}", "dialect_options={parameters: {search: text}}"]
    ):
        out = tmp_path / f"out{number}"
        assert agentmill("export", tmp_path / "runs", "--to", "openai", "--out", out, "dialect=brackets", options) == 0
        (document,) = map(json.loads, (out / "trajectories.jsonl").read_text().splitlines())
        assert [each["content"] for each in document["messages"]][2] == "search[ball]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "sft", "--pairs"], "--pairs is for foreign formats, not for sft"),
        (["--to", "adp", "--pairs"], "adp has no rows of pairs"),
        (["--to", "openai", "dialect=brakets"], "dialect: expected .*'brakets'"),
        (["--to", "openai", "dialect=fenced", "dialect_options={langages: [sh]}"], "Did you mean 'languages'?"),
        (["--to", "sfd"], "unknown target 'sfd'.*Did you mean 'sft'?"),
        (["--to", "sft", "where=succes"], "where: expected .*Did you mean 'success'?"),
        (["--to", "sft", "where=success"], "`where: success` needs `verdicts`"),
        (["--to", "adp", "version=2"], "version: expected '1' or '1.5', got '2'"),
        (["--to", "adp", "--verdicts", "x"], r"--verdicts can be given for training rows .*, not for adp"),
    ],
)
def test_mistakes_in_an_export(
    runs: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert agentmill("export", runs, "--out", tmp_path / "out", *arguments) == 2
    printed = capsys.readouterr().err
    assert re.search(message, printed), printed
    assert not (tmp_path / "out").exists()


def test_an_export_of_tables_that_share_trajectories_is_refused(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed_table(tmp_path / "again", [trajectory("t2", split="test")])
    for target in ("adp", "sft"):
        assert agentmill("export", runs, tmp_path / "again", "--to", target, "--out", tmp_path / "out") == 2
        assert shows(capsys.readouterr().err, "record-twice", runs, f"{tmp_path}/again", "Trajectory t2")
    assert not (tmp_path / "out").exists()


def test_an_export_overwrites_nothing(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "adp").mkdir()
    assert agentmill("export", runs, "--to", "adp", "--out", tmp_path / "adp") == 2
    assert shows(capsys.readouterr().err, "output-exists", tmp_path / "adp")
    assert agentmill("export", runs, "--to", "adp", "--out", tmp_path / "documents") == 0
    assert agentmill("inspect", tmp_path / "documents") == 2
    assert shows(capsys.readouterr().err, "table-missing", "it holds trajectories.jsonl", "agentmill normalize")
    (tmp_path / "file").touch()
    assert agentmill("export", runs, "--to", "adp", "--out", tmp_path / "file/adp") == 2
    assert shows(capsys.readouterr().err, "not-writable", "file/adp")
    assert agentmill("export", tmp_path / "verdicts", "--to", "adp", "--out", tmp_path / "x") == 2
    assert shows(capsys.readouterr().err, "wrong-record-type", "Verdict", "Trajectory")


@pytest.mark.parametrize(
    ("out", "code", "message"),
    [
        ("file", "not-a-folder", "/file is a file; expected the folder of a table: choose another folder with --out"),
        ("run", "output-not-ours", "/run is a run; choose another folder with --out ["),
        ("notes", "output-not-ours", "nothing was changed: choose another folder with --out, or move what is there"),
        ("rows", "made-differently", "choose another folder with --out, or remove it"),
        ("locked/rows", "not-writable", "/locked/rows cannot be written (Permission denied): choose another folder ["),
    ],
)
def test_rows_are_not_exported_to_a_place_of_others(
    runs: Path,
    out: str,
    code: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = runs.parent
    (folder / "file").touch()
    for name in ("run/recipe.yaml", "run/.lock", "notes/mine.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    assert agentmill("export", runs, "--to", "sft", "--out", folder / "rows") == 0
    make_folder = Path.mkdir

    def denied(path: Path, *given: Any, **options: Any) -> None:
        if "locked" in path.parts:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        make_folder(path, *given, **options)

    # Modes of folders do not hold for root, as whom tests may run.
    monkeypatch.setattr(Path, "mkdir", denied)
    capsys.readouterr()
    assert agentmill("export", runs, "--to", "sft", "--out", folder / out, "rows=step") == 2
    printed = capsys.readouterr().err
    assert shows(printed, code, message), printed
    assert "run_dir" not in printed
    assert "--replace" not in printed


def test_an_export_names_the_table_of_other_records(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert agentmill("export", tmp_path / "verdicts", "--to", "sft", "--out", tmp_path / "x") == 2
    expected = f"{tmp_path}/verdicts holds Verdict records, expected Trajectory ["
    assert shows(capsys.readouterr().err, "wrong-record-type", expected)
    assert agentmill("export", runs, "--to", "sft", "--out", tmp_path / "x", "--verdicts", runs) == 2
    assert shows(capsys.readouterr().err, "wrong-record-type", f"{runs} holds Trajectory records, expected Verdict")


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert agentmill("list", "operators", "--json") == 0
    assert {kind: sorted(found) for kind, found in json.loads(capsys.readouterr().out).items()} == {
        "operators": sorted(OPERATORS)
    }
    assert agentmill("list") == 0
    printed = capsys.readouterr().out
    assert all(kind in printed for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_plugin_says_what_it_is(kind: str) -> None:
    found = described(kind)
    assert found
    assert [name for name, text in found.items() if not text.endswith(".") or len(text) < 20] == []
    assert [name for name, text in found.items() if "``" in text or text.startswith("Family")] == []


def test_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert agentmill("check", "environments", "pddl", "--json") == 0
    checked = json.loads(capsys.readouterr().out)
    assert {each["family"] for each in checked} == {"pddl"}
    assert all(finding["passed"] for each in checked for finding in each["findings"])


def test_train_passes_on_what_the_trainer_says(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert agentmill("train", "sft", "--config", tmp_path / "none.yaml") == 2
    printed = capfd.readouterr()
    assert codes(printed.err) == ["no-such-file", "no-such-file"]  # of the child, and of the command
    assert "Traceback" not in printed.err


def test_inspect_a_table_with_a_value_nested_900_deep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deep: Any = ["x"]
    for _ in range(899):
        deep = [deep]
    monkeypatch.setattr(
        "agentmill.schemas.arrow.encode.is_too_deep", lambda value: False
    )  # as before there was a bound
    seed_table(tmp_path / "runs", [trajectory("t1", extra={"a": deep})])
    assert agentmill("inspect", tmp_path / "runs") == 0
    assert agentmill("inspect", tmp_path / "runs", "--json") == 0
    assert "… (nested deeper)" in capsys.readouterr().out
