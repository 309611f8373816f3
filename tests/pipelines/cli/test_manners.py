"""Manners that all commands share: one JSON document, no control characters in pipes, tables that fit, quiet ends."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from agentmill.pipelines.cli import check, merge, train
from agentmill.pipelines.cli.main import PrintableFormatter, invoke
from agentmill.pipelines.cli.main import agentmill as root
from agentmill.pipelines.terminal.console import RESULTS, say, table
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UNPRINTABLE, UserError, printable
from agentmill.synthesis.environments.conformance import Finding
from agentmill.trainers.command import exit_code_of as outcome_of
from tests.fake_hub import direct
from tests.pipelines.cli.tables import (
    CHECK,
    COMPARE,
    DEMONSTRATE,
    PROGRAM,
    agentmill,
    places,
    write_environments,
    write_recipe,
)
from tests.pipelines.cli.terminal import CTRL_C, lines_of, on_terminal
from tests.test_docs import parsed
from tests.writing_hub import WRITER, WritingHub

# How huggingface_hub 2.4 hands large files to httpx2.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

Arguments = list[str | Path]
SPEC_ENV = {"operator": "spec_env", "n": 2, "as": "environments2"}
KEEP = {"operator": "filter", "of": "demonstrations", "where": [{"field": "split", "equals": "train"}], "as": "kept"}
TRAINED = {
    "counts": {"read": 3, "used": 2, "dropped": 1, "written": 2},
    "reasons": {"too_long": 1},
    "steps": 2,
    "seconds": 1.5,
    "first_loss": 2.0,
    "last_loss": 1.0,
    "last_accuracy": None,
    "loss_curve": [],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with environments, tasks, demonstrations and their verdicts, files to normalize and to train by."""
    folder = tmp_path_factory.mktemp("made")
    write_environments(folder)
    (folder / "raw.jsonl").write_text('{"messages": [{"role": "user", "content": "go"}]}\n', encoding="utf-8")
    (folder / "train.yaml").write_text(f"rows: x\nmodel: y\noutput: {folder / 'model'}\n", encoding="utf-8")
    recipe = write_recipe(folder, DEMONSTRATE, CHECK, run_dir=str(folder)).rename(folder / "small.yaml")
    assert agentmill("run", recipe) == 0
    return folder


def stage(*steps: dict[str, Any]) -> Callable[[Path, Path], Arguments]:
    """The configuration of a stage command, on what was made."""

    def written(made: Path, folder: Path) -> Arguments:
        data = {**places(made), "demonstrations": str(made / "demonstrations")}
        return ["--config", write_recipe(folder, *steps, data=data)]

    return written


def normalize(made: Path, folder: Path) -> Arguments:
    step = {"operator": "normalize", "dataset": "d", "format": "openai", "data": [str(made / "raw.jsonl")]}
    return ["--config", write_recipe(folder, step, data={}, models={})]


def training(made: Path, _: Path) -> Arguments:
    return ["--config", made / "train.yaml"]


def chaos_of(made: Path, folder: Path) -> Arguments:
    """A fault in a step that is long enough to be hit."""
    step = {**DEMONSTRATE, "k": 40, "as": "shown"}
    recipe = write_recipe(folder, step, data=places(made))
    return [recipe, "--faults", "1", "--fault", "kill_launcher", "--out", folder / "chaos"]


CASES: dict[str, Callable[[Path, Path], Arguments]] = {
    "run": lambda made, folder: [made / "recipe.yaml"],
    "run --dry-run": lambda made, folder: [made / "recipe.yaml"],
    "synthesize": stage(SPEC_ENV),
    "rollout": stage({**DEMONSTRATE, "as": "shown"}),
    "verify": stage(CHECK),
    "normalize": normalize,
    "curate": stage(KEEP),
    "evaluate": stage({**COMPARE, "splits": ["held_out_tasks"], "constrained": []}),
    "export --to adp": lambda made, folder: [made / "demonstrations", "--out", folder / "adp"],
    "export --to sft": lambda made, folder: [made / "demonstrations", "--out", folder / "rows"],
    "train sft": training,
    "train dpo": training,
    "train kto": training,
    "train reward": training,
    "merge": lambda made, folder: [made / "adapter", "--out", folder / "whole"],
    "inspect": lambda made, folder: [made / "demonstrations"],
    "view --no-serve": lambda made, folder: [made / "demonstrations"],
    "report": lambda made, folder: [made, "--out", folder / "report.html"],
    "publish --dry-run": lambda made, folder: [made / "demonstrations", "--repo", "org/name", "--licence", "mit"],
    "publish": lambda made, folder: [made / "demonstrations", "--repo", f"org/{folder.name}", "--licence", "mit"],
    "plan": lambda made, folder: [made / "recipe.yaml"],
    "show": lambda made, folder: ["recipe", made / "recipe.yaml"],
    "diff": lambda made, folder: [made / "recipe.yaml", "eto"],
    "new": lambda made, folder: [folder.name],
    "list": lambda made, folder: [],
    "list views": lambda made, folder: [],
    "check tables": lambda made, folder: [made / "demonstrations"],
    "check environments": lambda made, folder: ["pddl"],
    "chaos": chaos_of,
    "doctor": lambda made, folder: ["--runs", folder],
}
"""A call of every command that ends well, and quickly."""


def leaves(command: click.Command = root, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that is no group, with its name."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from leaves(below, f"{path} {name}".strip())


def checked(passed: bool) -> Callable[[str], list[check.Checked]]:
    """A check of a family that is over at once."""
    finding = Finding(name="closes_twice", passed=passed, detail="" if passed else "it closed once")
    return lambda family: [check.Checked(family=family, environment="blocks", findings=[finding])]


@pytest.fixture
def quick(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings, merges and checks are over at once; what they leave is there."""

    def done(module: str, arguments: Sequence[str]) -> None:
        (made / "model").mkdir(exist_ok=True)
        (made / "model/training.json").write_text(json.dumps(TRAINED))

    monkeypatch.setattr(train, "run_module", done)
    monkeypatch.setattr(merge, "run_module", done)
    monkeypatch.setattr(check, "check_family", checked(passed=True))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Hub of this machine to publish on."""
    with WritingHub().served() as address:
        direct(monkeypatch, address, tmp_path / "cache")
        monkeypatch.setenv("HF_TOKEN", WRITER)
        yield


@pytest.mark.usefixtures("quick", "hub")
@pytest.mark.parametrize("case", CASES)
def test_a_command_in_a_pipe_is_plain_and_with_json_prints_one_document(
    made: Path, tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where `new` writes.
    monkeypatch.chdir(tmp_path)
    name = case.partition(" --")[0].removesuffix(" views")
    results = getattr(dict(leaves())[name].callback, RESULTS)
    (tmp_path / "people").mkdir()
    (tmp_path / "programs").mkdir()
    assert agentmill(*case.split(), *CASES[case](made, tmp_path / "people")) == 0
    told = capsys.readouterr()
    assert told.out.endswith("\n")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", told.out + told.err)
    assert agentmill(*case.split(), *CASES[case](made, tmp_path / "programs"), "--json") == 0
    told = capsys.readouterr()
    document = json.loads(told.out)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", told.err)
    assert document in [read(told.out, result) for result in results], "keys that are not in the reference"


def read(text: str, result: Any) -> Any:
    """What is left of a document after it was read as ``result``: keys that this does not have are gone."""
    try:
        return json.loads(msgspec.json.encode(msgspec.json.decode(text, type=result)))
    except msgspec.ValidationError:
        return None


def test_every_command_has_a_case_an_example_and_documented_keys() -> None:
    named = {case.partition(" --")[0].removesuffix(" views") for case in CASES}
    known = dict(leaves())
    assert named == set(known)
    for name, command in known.items():
        assert getattr(command.callback, RESULTS), name
        examples = re.findall(r"^  agentmill (.*)$", command.epilog or "", re.MULTILINE)
        assert examples, name
        for example in examples:
            assert example.startswith(name.removesuffix(" tables"))
            parsed(example.split())


def test_what_fails_prints_no_document(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["inspect", made / "nowhere"], ["list", "operator"], ["run", made / "none.yaml"]):
        assert agentmill(*arguments, "--json") == 2
        told = capsys.readouterr()
        assert (told.out, len(told.err.splitlines()) <= 2) == ("", True)


def test_a_broken_check_prints_its_findings_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "check_family", checked(passed=False))
    assert agentmill("check", "environments", "pddl", "--json") == 1
    assert [each["findings"][0]["passed"] for each in json.loads(capsys.readouterr().out)] == [False]
    assert agentmill("check", "environments", "pddl") == 1
    assert "pddl blocks: closes_twice: it closed once" in capsys.readouterr().out


@pytest.mark.parametrize("width", [40, 60, 80])
def test_tables_fit_a_terminal(
    made: Path, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for arguments in (["list"], ["inspect", made / "demonstrations", "--rows", "0"], ["run", made / "recipe.yaml"]):
        assert agentmill(*arguments) == 0
        printed = capsys.readouterr().out
        rows = [line for line in printed.splitlines() if line.startswith("  ") and not line.startswith("  agentmill ")]
        assert len(rows) >= 4
        assert max(map(len, rows)) <= width


def test_names_in_brackets_are_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    table("extras", ["what"], [["agentmill[train]"], [":smile:"]])
    assert capsys.readouterr().out == "extras\n  what\n  ----------------\n  agentmill[train]\n  :smile:\n"


def test_data_cannot_act_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say("a\x1b[31mb\x9b2J\u202ec\td")
    table("t", ["n"], [["two\nlines\x1b[2J"]])
    assert capsys.readouterr().out == "a\\x1b[31mb\\x9b2J\\u202ec\td\nt\n  n\n  " + "-" * 16 + "\n  two lines\\x1b[2J\n"
    assert printable("größer → 大") == "größer → 大"


def test_a_terminal_shows_a_bar_that_goes_away_in_colours_that_can_be_refused(made: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, {**DEMONSTRATE, "k": 40}, data=places(made))
    code, written = on_terminal(["run", recipe], 60, environment={"NO_COLOR": "1"})
    assert code == 0, written
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l") > -1, "the cursor is not there again"
    assert "/80 " in written
    assert not re.search(r"\x1b\[[0-9;]*m", written)
    lines = lines_of(written)
    assert max(len(line) for line in lines if line.startswith("  ") and "agentmill " not in line) <= 60


def test_a_dumb_terminal_gets_plain_lines(made: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, DEMONSTRATE, data=places(made))
    _, written = on_terminal(["run", recipe], 80, environment={"TERM": "dumb"})
    assert "\x1b" not in written
    assert "demonstrations: started, 2 inputs" in written


def test_ctrl_c_on_a_terminal_is_no_traceback(made: Path, tmp_path: Path) -> None:
    """It comes as early as can be, while the bar is being drawn."""
    recipe = write_recipe(tmp_path, {**DEMONSTRATE, "k": 4_000}, data=places(made))
    code, written = on_terminal(["run", recipe], 80, "/8000", CTRL_C)
    last = lines_of(written)[-2]
    assert (code, last.partition(":")[0], "Traceback" in written) == (130, "agentmill", False), written
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l") > -1


def test_a_reader_that_goes_away_ends_a_command_quietly() -> None:
    for command in ("list --json | true", "list | head -1", "list 2>&1 >/dev/null | true"):
        done = subprocess.run(
            ["bash", "-c", f"{PROGRAM} {command}; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True, check=False
        )
        assert (done.stderr, done.returncode in (0, 1)) == ("", True)


@pytest.mark.parametrize(
    ("command", "code"), [("list dialects >&-", 0), ("list nothing 2>&-", 2), ("list >&- 2>&-", 0)]
)
def test_closed_streams_are_no_failure(command: str, code: int) -> None:
    done = subprocess.run(["bash", "-c", f"{PROGRAM} {command}"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_a_text_that_a_terminal_cannot_show_is_no_failure() -> None:
    environment = {"PYTHONIOENCODING": "latin-1", "PYTHONSAFEPATH": "1", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([PROGRAM, "train", "--help"], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u2026" in done.stdout


def test_without_a_command_the_commands_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "Commands:" in told.err
    assert "Exit codes:" in told.err


HOSTILE = "a\x1b[2J\x1b]0;title\x07\u202eb"
"""A file name that clears the screen, sets the title of the terminal and turns the direction of writing."""


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", f"{HOSTILE}.yaml"],
        ["inspect", HOSTILE],
        ["view", HOSTILE],
        ["report", HOSTILE],
        ["export", HOSTILE, "--to", "adp", "--out", "x"],
        ["list", HOSTILE],
        [HOSTILE],
        ["inspect", "x", f"--{HOSTILE}"],
        ["--debug", "inspect", HOSTILE],
        ["normalize", "--config", f"{HOSTILE}.yaml"],
    ],
    ids=lambda arguments: " ".join(printable(each) for each in arguments),
)
def test_names_of_files_cannot_act_on_a_terminal(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(arguments) == 2
    told = capsys.readouterr()
    assert UNPRINTABLE.search(told.out + told.err) is None
    assert "a\\x1b[2J" in told.err


def test_names_of_raw_files_cannot_act_on_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = tmp_path / f"{HOSTILE}.jsonl"
    raw.write_text("{\n")
    step = {"operator": "normalize", "dataset": "d", "format": "adp", "data": [str(raw)], "as": "runs"}
    assert invoke(["normalize", "--config", str(write_recipe(tmp_path, step, data={}, models={}))]) == 1
    told = capsys.readouterr()
    assert UNPRINTABLE.search(told.out + told.err) is None


def test_errors_and_warnings_cannot_act_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        logging.getLogger("x").warning(HOSTILE)
        raise RuntimeError(HOSTILE)

    monkeypatch.setattr(root, "main", fail)
    for arguments in (["list"], ["list", "--debug"]):
        assert invoke(arguments) == 1
    assert printable(HOSTILE) in (said := capsys.readouterr().err)
    assert UNPRINTABLE.search(said) is None
    record = logging.LogRecord("x", logging.WARNING, "x.py", 1, HOSTILE, None, None)
    assert PrintableFormatter().format(record) == printable(HOSTILE)


def test_messages_of_a_training_cannot_act_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def train() -> None:
        raise UserError(HOSTILE, ErrorCode.UNKNOWN_NAME)

    assert outcome_of(train, "") == 2
    assert UNPRINTABLE.search(capsys.readouterr().err) is None
