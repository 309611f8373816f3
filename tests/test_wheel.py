"""The wheel works outside of the checkout, beside a folder that is called like one of our packages, compiled or not."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from pipelines.engine.seeds import seed_table
from tests.builders import trajectory

CHECKOUT = Path(__file__).resolve().parents[1]
COMPILED: tuple[str, ...] = runpy.run_path(str(CHECKOUT / "hatch_build.py"))["COMPILED"]
IS_COMPILED = """import schemas.formats.conversation as conversation
import schemas.formats.message_reading as reading
def test_it_is_the_compiled_one():
    assert reading.__file__.endswith(".so")
def test_its_c_types_are_used():
    assert not hasattr(conversation.Conversation(), "__dict__")
"""


@pytest.fixture(scope="module", params=["0", "1"], ids=["python", "compiled"])
def installed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder into which the wheel, and nothing else, is installed."""
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if request.param == "1" and not (shutil.which("cc") and headers.is_file()):
        pytest.skip(f"there is no C compiler, or no {headers}")
    folder = tmp_path_factory.mktemp("wheel")
    python = [sys.executable, "-m"]
    environment = {**os.environ, "AGENTMILL_COMPILE": request.param}
    quiet = {"check": True, "capture_output": True, "cwd": CHECKOUT, "env": environment}
    build = [*python, "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run(build, **quiet)  # type: ignore[call-overload]
    (wheel,) = folder.glob("agentmill-*.whl")
    target = folder / "target"
    pip = [*python, "pip", "install", "--no-deps", "--no-compile", "--no-index", "--target", str(target), str(wheel)]
    subprocess.run(pip, **quiet)  # type: ignore[call-overload]
    return target


def run(installed: Path, folder: Path, *arguments: str) -> str:
    """What an installed command prints that is started in ``folder``. The checkout is not on its path."""
    code = f"import sys; sys.path.insert(0, {str(installed)!r}); import pipelines.cli.main as m; "
    code += f"assert m.__file__.startswith({str(installed)!r}), m.__file__; sys.exit(m.invoke(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder with a foreign package of the same name."""
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas/__init__.py").write_text("raise ImportError('a foreign package')\n")
    return tmp_path


def test_help(installed: Path, elsewhere: Path) -> None:
    assert "Usage: agentmill" in run(installed, elsewhere, "--help")


def test_inspect_a_table(installed: Path, elsewhere: Path) -> None:
    seed_table(elsewhere / "runs", [trajectory()])
    assert "runs: Trajectory 1.0" in run(installed, elsewhere, "inspect", "runs")


def test_a_view_has_its_pages(installed: Path, elsewhere: Path) -> None:
    seed_table(elsewhere / "runs", [trajectory()])
    assert run(installed, elsewhere, "view", "runs", "--no-serve") == "runs-view/index.html\n"
    checkout = CHECKOUT / "pipelines/view/static"
    pages = {path.relative_to(checkout) for path in checkout.rglob("*") if path.is_file()}
    assert pages < {path.relative_to(elsewhere / "runs-view") for path in (elsewhere / "runs-view").rglob("*")}


def test_the_quickstart_comes_with_it(installed: Path, elsewhere: Path) -> None:
    assert (installed / "pipelines/configs/quickstart.yaml").is_file()
    assert "quickstart: " in run(installed, elsewhere, "run", "configs/quickstart.yaml", "--dry-run")


def test_the_wheel_holds_the_four_packages_and_no_tests(installed: Path) -> None:
    packages = {path.name for path in installed.iterdir() if path.is_dir() and not path.name.endswith(".dist-info")}
    assert packages - {"bin"} == {"schemas", "synthesis", "pipelines", "trainers"}
    scripts = (installed / "bin/agentmill").read_text()
    assert "pipelines.cli.main" in scripts


def test_the_readers_are_compiled_where_it_was_asked_for_and_their_tests_pass(
    installed: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    modules = {str(path.relative_to(installed)).partition(".")[0] for path in (installed / "schemas").rglob("*.so")}
    assert modules == (
        {path.removesuffix(".py") for path in COMPILED} if request.node.callspec.id == "compiled" else set()
    )
    if not modules:
        return
    for folder in ("tests", "configs"):
        shutil.copytree(CHECKOUT / folder, tmp_path / folder)
    shutil.copytree(installed, tmp_path, dirs_exist_ok=True)
    shutil.copy(CHECKOUT / "pyproject.toml", tmp_path)
    (tmp_path / "tests/schemas/test_compiled.py").write_text(IS_COMPILED)
    tests = ["tests/schemas", "tests/pipelines/stages/test_datasets.py", "tests/pipelines/stages/test_normalize.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *tests], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
