"""What the documents say can be typed: links, recipes, commands; and the reference names all that there is."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from pydantic import BaseModel
from ruamel.yaml import YAML

from agentmill.pipelines.cli.main import COMMANDS, agentmill
from agentmill.pipelines.engine.runner import RunnerConfig
from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.pipelines.recipes.grammar import Fork, Iterate, Recipe
from agentmill.pipelines.recipes.short_forms import CONTROLS, ITERATE, every_step, long_form, written_out
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.config import validate
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.records.trajectory import Trajectory
from tests.pages import BLOCK, PAGES, ROOT

COMMAND = re.compile(r"^ {4}(?:\.venv/bin/)?(agentmill (?:.*\\\n)*.*)$", re.MULTILINE)
TARGET = re.compile(r"(?:^ {4}|`)make (\w+)", re.MULTILINE)


def blocks(language: str) -> list[Any]:
    found = [(page, number, block) for page in PAGES for number, block in enumerate(BLOCK.findall(page.read_text()))]
    return [
        pytest.param(text, id=f"{page.name}-{number}")
        for page, number, (kind, text) in found
        if kind == language and (page.name, kind) != ("plugins.md", "yaml")  # of plug-ins that are not there
    ]


def commands() -> list[Any]:
    found = [(page, number, line) for page in PAGES for number, line in enumerate(COMMAND.findall(page.read_text()))]
    return [pytest.param(line, id=f"{page.name}-{number}") for page, number, line in found]


def parsed(arguments: list[str]) -> None:
    """Fails unless the commands and options exist; their values may be of another machine."""
    context = click.Context(agentmill, info_name="agentmill")
    known: click.Command | None = agentmill
    while isinstance(known, click.Group):
        name, known, arguments = known.resolve_command(context, arguments)
        assert known is not None, name
        context = click.Context(known, parent=context, info_name=name)
    known.make_parser(context).parse_args(args=arguments)


def steps_of(given: Any) -> Iterator[dict[str, Any]]:
    """The steps of a recipe, of a list, or of a loop, in long form; loops and forks are checked themselves."""
    alone = isinstance(given, dict) and given.get("operator") in CONTROLS
    steps = [given] if alone else given.get("steps", []) if isinstance(given, dict) else given
    for step in every_step([long_form(step) for step in steps]):
        if step["operator"] in CONTROLS:
            validate(Iterate if step["operator"] == ITERATE else Fork, step, step["operator"])
        else:
            yield dict(step)


@pytest.mark.parametrize("text", blocks("yaml"))
def test_the_recipes_of_the_documents_are_valid(text: str) -> None:
    given = YAML(typ="safe").load(text)
    if isinstance(given, dict) and set(given) == {"runner"}:
        validate(RunnerConfig, given["runner"], "runner").beam_options()
        return
    if isinstance(given, dict) and "name" in given and "steps" in given:
        given = written_out(given, ROOT)
    if isinstance(given, dict) and "name" in given:
        validate(Recipe, {"run_dir": "runs/x", **given}, "recipe")
    if isinstance(given, dict) and "operator" not in given and "steps" not in given and "models" not in given:
        given = [{"operator": "normalize", "dataset": "d", "format": "openai", **given}]  # a part of a step
    for name, model in given.get("models", {}).items() if isinstance(given, dict) else ():
        validate(ModelConfig, model, name)
    for step in steps_of(given):
        operator = OPERATORS.load(step.pop("operator"))
        step.pop("as", None)
        step.pop("min_used", None)
        validate(operator, step, operator.__name__)


@pytest.mark.parametrize("line", commands())
def test_the_commands_of_the_documents_exist(line: str) -> None:
    words = shlex.split(line.replace("\\\n", " "), comments=True)
    parsed(words[1:])
    for word in words:
        if word.startswith("configs/"):
            assert (ROOT / word).is_file(), word


def test_an_option_that_does_not_exist_is_found() -> None:
    with pytest.raises(click.NoSuchOption):
        parsed(["export", "runs/x", "--too", "adp"])


@pytest.mark.parametrize("text", blocks("python"))
def test_the_programs_of_the_documents_can_be_read(text: str) -> None:
    ast.parse(text)


def test_the_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in PAGES for name in TARGET.findall(page.read_text())}
    assert named
    assert named <= targets


@pytest.mark.parametrize("config", [Recipe, Iterate, Fork])
def test_every_key_of_a_recipe_is_described(config: type[BaseModel]) -> None:
    schema = config.model_json_schema()
    parts = {config.__name__: schema, **schema.get("$defs", {})}
    keys = {f"{name}.{key}": given for name, part in parts.items() for key, given in part.get("properties", {}).items()}
    assert keys
    assert [key for key, given in keys.items() if not given.get("description")] == []


@pytest.mark.filterwarnings("default")  # those of MkDocs and its themes are theirs
def test_the_documents_can_be_built_and_the_reference_is_whole(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT))
    try:
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True))
    finally:
        sys.path.remove(str(ROOT))
    pages = {page.parent.name: page.read_text() for page in (tmp_path / "reference").glob("*/index.html")}
    assert all(f'id="agentmill-{name}"' in pages["commands"] for name in COMMANDS)
    for name in OPERATORS:
        assert f'id="{name}"' in pages["operators"]
        for parameter in OPERATORS.load(name).model_json_schema()["properties"]:
            assert f"<code>{parameter}</code>" in pages["operators"]
    assert all(f"<code>{code}</code>" in pages["errors"] for code in ErrorCode)
    assert 'id="trajectory"' in pages["records"]
    assert all(f"<code>{name}</code>" in pages["records"] for name in Trajectory.__struct_encode_fields__)
