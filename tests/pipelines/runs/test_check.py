"""``agentmill check RUN`` finds what is not as the manifests tell, and no step starts from a damaged table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from agentmill.pipelines.cli.main import invoke
from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.engine.provenance import Verified
from agentmill.pipelines.runs.check import check_tables
from agentmill.schemas.tables import Table
from tests.builders import task
from tests.errors import user_error
from tests.pipelines.cli.tables import CHECK, DEMONSTRATE, EXPORT, agentmill, write_environments, write_recipe


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checked")
    write_environments(folder)
    assert agentmill("run", write_recipe(folder, DEMONSTRATE, CHECK)) == 0
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    write_recipe(tmp_path, DEMONSTRATE, CHECK)
    (tmp_path / "run/recipe.yaml").write_text((tmp_path / "recipe.yaml").read_text())
    return tmp_path / "run"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def recount(run: Path) -> None:
    manifest = run / "demonstrations/manifest.json"
    content = json.loads(manifest.read_bytes())
    content["counts"]["written"] += 1
    manifest.write_text(json.dumps(content))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "bit": (lambda run: flip(run / "demonstrations/data/part-00000.parquet"), "is not what the manifest lists"),
    "gone": (lambda run: (run / "demonstrations/data/part-00000.parquet").unlink(), "part-00000.parquet is missing"),
    "count": (recount, "rows in its files"),
    "more": (
        lambda run: shutil.copy(run / "demonstrations/manifest.json", run / "demonstrations/data/part-00009.parquet"),
        "is named by no manifest",
    ),
}


def test_a_whole_run_has_nothing_wrong(run: Path) -> None:
    checked = check_tables(run)
    assert [Path(each.path).name for each in checked] == ["demonstrations", "verdicts"]
    assert [each.wrong for each in checked] == [[], []]
    assert [each.rows for each in checked] == [len(list(Table.open(each.path).rows())) for each in checked]
    assert invoke(["check", str(run)]) == 0


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found(run: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    harm, told = DAMAGES[damage]
    harm(run)
    assert invoke(["check", str(run), "--json"]) == 1
    (demonstrations, verdicts) = json.loads(capsys.readouterr().out)
    assert any(told in line for line in demonstrations["wrong"])
    assert not verdicts["wrong"]
    assert invoke(["check", str(run / "verdicts")]) == 0
    assert invoke(["check", str(run / "demonstrations")]) == 1


def test_a_table_deep_in_a_run_is_made_of_tables_of_that_run(run: Path) -> None:
    (run / "evaluation/test").mkdir(parents=True)
    shutil.move(run / "verdicts", run / "evaluation/test/verdicts")
    assert [each.wrong for each in check_tables(run / "evaluation/test/verdicts")] == [[]]
    assert invoke(["check", str(run / "evaluation")]) == 0


def test_a_table_whose_inputs_vanished_or_changed_says_so(run: Path) -> None:
    shutil.rmtree(run / "demonstrations")
    verdicts, _ = check_tables(run)
    assert verdicts.wrong == [f"its input of/demonstrations is gone: no table of {run.resolve()} has its rows"]
    shutil.copytree(run.parent / "tasks", run / "demonstrations")
    wrong = [line for each in check_tables(run) for line in each.wrong if "input" in line]
    assert wrong == ["its input of/demonstrations is another one now"]


def test_a_run_is_compared_with_its_own_tables_where_several_are_checked(run: Path, tmp_path: Path) -> None:
    several = tmp_path / "several"
    for name in ("whole", "damaged"):
        shutil.copytree(run, several / name)
    assert [each.wrong for each in check_tables(several)] == [[]] * 4
    shutil.rmtree(several / "damaged/demonstrations")
    wrong = {each.path: each.wrong for each in check_tables(several) if each.wrong}
    assert list(wrong) == [str(several / "damaged" / name) for name in ("verdicts", "demonstrations")]
    assert "is gone: no table of" in wrong[str(several / "damaged/verdicts")][0]


def test_a_table_of_a_finished_run_without_its_manifest_is_wrong(run: Path) -> None:
    (run / "demonstrations/manifest.json").unlink()
    found = {Path(each.path).name: each.wrong for each in check_tables(run)}
    assert "has no manifest.json" in found["demonstrations"][0]
    (run / "summary.json").unlink()
    assert [Path(each.path).name for each in check_tables(run)] == ["verdicts"]


def test_a_table_that_the_run_was_given_is_named_where_it_is_gone(run: Path) -> None:
    shutil.move(run.parent / "tasks", run.parent / "moved")
    wrong = [line for each in check_tables(run) for line in each.wrong]
    assert wrong
    assert all(str(run.parent / "tasks") in line for line in wrong if "tasks" in line)


def test_a_name_that_is_neither_path_nor_kind_gets_a_near_match(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["check", "environmentz"]) == 2
    assert "Did you mean 'environments'?" in capsys.readouterr().err


def test_the_inputs_of_a_table_outside_of_a_run_may_lie_anywhere(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "out/rows"
    assert agentmill("export", run / "demonstrations", "--to", "sft", "--out", rows) == 0
    capsys.readouterr()
    assert invoke(["check", str(rows)]) == 0
    assert "in no run, and its folder has no inputs from/demonstrations: not compared" in capsys.readouterr().err
    seed_table(tmp_path / "out/demonstrations", [task()])
    (checked,) = check_tables(rows)
    assert checked.wrong == ["its input from/demonstrations is another one now"]


def test_relative_data_are_found_from_any_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_environments(tmp_path / "world")
    monkeypatch.chdir(tmp_path)
    data = {name: f"world/{name}" for name in ("environments", "tasks")}
    assert agentmill("run", write_recipe(tmp_path, DEMONSTRATE, run_dir="runs/small", data=data)) == 0
    monkeypatch.chdir(tmp_path / "world")
    for run in (Path("../runs/small").resolve(), Path("../runs/small")):
        assert [each.wrong for each in check_tables(run)] == [[]]


def test_a_step_does_not_start_from_a_damaged_table(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(run / "demonstrations/data/part-00000.parquet")
    recipe = write_recipe(run.parent, DEMONSTRATE, CHECK, EXPORT)
    assert agentmill("run", recipe) == 2
    told = capsys.readouterr().err.splitlines()[-2:]
    assert "part-00000.parquet is not what the manifest lists" in told[0]
    assert told[1].startswith("put the file back, or delete ")
    shutil.rmtree(run / "demonstrations")
    assert agentmill("run", recipe) == 0


def test_a_file_is_read_once_as_long_as_it_does_not_change(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, verified = Table.open(run / "demonstrations"), Verified()
    reads: list[Path] = []
    check = type(table.manifest.files[0]).check

    def counted(self: object, path: Path) -> None:
        reads.append(path)
        check(self, path)  # type: ignore[arg-type]

    monkeypatch.setattr(type(table.manifest.files[0]), "check", counted)
    verified.check(table)
    n = len(reads)
    assert n == len(table.manifest.files)
    verified.check(table)
    assert len(reads) == n
    flip(table.shards()[0])
    with user_error("manifest-mismatch"):
        verified.check(table)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with user_error("table-missing"):
            check_tables(path)
    assert invoke(["check"]) == 2


def test_a_manifest_that_cannot_be_read_is_one_line(run: Path) -> None:
    (run / "verdicts/manifest.json").write_bytes(msgspec.json.encode({"table": 1}))
    checked = check_tables(run)
    assert [len(each.wrong) for each in checked] == [0, 1]


def test_a_damaged_side_table_is_listed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    side = run / "demonstrations/nodes"
    side.mkdir()
    (side / "manifest.json").write_text("{")
    assert invoke(["check", str(run), "--json"]) == 1
    (demonstrations, _) = json.loads(capsys.readouterr().out)
    assert any("nodes" in line for line in demonstrations["wrong"])
