"""The wheel works outside of the checkout, beside packages of a user that are called like our folders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.schemas.records.record import SCHEMA_VERSION
from tests.builders import trajectory

CHECKOUT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel, and nothing else, is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    python = [sys.executable, "-m"]
    quiet = {"check": True, "capture_output": True, "cwd": CHECKOUT}
    build = [*python, "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run(build, **quiet)  # type: ignore[call-overload]
    (wheel,) = folder.glob("agentmill-*.whl")
    target = folder / "target"
    pip = [*python, "pip", "install", "--no-deps", "--no-compile", "--no-index", "--target", str(target), str(wheel)]
    subprocess.run(pip, **quiet)  # type: ignore[call-overload]
    return target


def run(installed: Path, folder: Path, *arguments: str) -> str:
    """What an installed command prints that is started in ``folder``. The checkout is not on its path."""
    code = f"import sys; sys.path.insert(0, {str(installed)!r}); import agentmill.pipelines.cli.main as m; "
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
    """A project with packages of its own that are called ``schemas`` and ``pipelines``."""
    for name in ("schemas", "pipelines"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"OWN = 'the {name} of the project'\n")
    return tmp_path


def test_help(installed: Path, elsewhere: Path) -> None:
    assert "Usage: agentmill" in run(installed, elsewhere, "--help")


def test_inspect_a_table(installed: Path, elsewhere: Path) -> None:
    seed_table(elsewhere / "runs", [trajectory()])
    assert f"runs: Trajectory {SCHEMA_VERSION}" in run(installed, elsewhere, "inspect", "runs")


def test_a_view_has_its_pages(installed: Path, elsewhere: Path) -> None:
    seed_table(elsewhere / "runs", [trajectory()])
    assert run(installed, elsewhere, "view", "runs", "--no-serve") == "runs-view/index.html\n"
    checkout = CHECKOUT / "pipelines/view/static"
    pages = {path.relative_to(checkout) for path in checkout.rglob("*") if path.is_file()}
    assert pages < {path.relative_to(elsewhere / "runs-view") for path in (elsewhere / "runs-view").rglob("*")}


def test_the_quickstart_comes_with_it(installed: Path, elsewhere: Path) -> None:
    assert (installed / "agentmill/configs/quickstart.yaml").is_file()
    assert "quickstart: " in run(installed, elsewhere, "run", "configs/quickstart.yaml", "--dry-run")


def test_the_data_of_generators_comes_with_it(installed: Path) -> None:
    def files(root: Path) -> set[Path]:
        folder = root / "synthesis/generators"
        return {path.relative_to(folder) for path in folder.glob("*/data/**/*") if path.suffix in (".py", ".yaml")}

    assert len(files(CHECKOUT)) > 100
    assert files(installed / "agentmill") == files(CHECKOUT)


def test_the_wheel_holds_one_package_with_types_and_no_tests(installed: Path) -> None:
    packages = {path.name for path in installed.iterdir() if path.is_dir() and not path.name.endswith(".dist-info")}
    assert packages - {"bin"} == {"agentmill"}
    assert (installed / "agentmill/py.typed").is_file()
    folders = {path.name for path in (installed / "agentmill").iterdir() if path.is_dir()}
    assert folders == {"configs", "schemas", "synthesis", "pipelines", "trainers"}
    assert not [path for path in installed.rglob("*") if path.is_symlink()]
    scripts = (installed / "bin/agentmill").read_text()
    assert "agentmill.pipelines.cli.main" in scripts


def test_a_project_uses_its_own_packages_and_ours(installed: Path, elsewhere: Path) -> None:
    code = "import schemas, pipelines, agentmill.schemas, agentmill.pipelines; print(schemas.OWN, pipelines.OWN)"
    environment = {**os.environ, "PYTHONPATH": f"{elsewhere}{os.pathsep}{installed}"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=elsewhere, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "the schemas of the project the pipelines of the project\n"
