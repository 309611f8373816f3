"""The grammar of a recipe: one YAML file that says which operators run on which tables, and with which models.

    name: demo                        # letters, digits, - and _
    seed: 0                           # every step without a seed of its own derives one from it
    run_dir: runs/demo
    runner: {name: embedded}
    models: {actor: {policy: vllm, model: …}}
    data: {tasks: runs/other/tasks}   # tables made elsewhere
    steps:
      - {operator: sample, policy: actor, tasks: tasks, …, as: explored}
      - {operator: iterate, rounds: 2, steps: […]}

A step names its output with ``as`` (by default: its operator). ``of``, ``from``, ``tasks``, ``environments``,
``verdicts`` and ``rows`` name outputs of earlier steps or entries of ``data``; ``NAME/nodes`` is what the step NAME
writes besides its table. ``ROLE`` and ``ROLE@base`` are a model as declared, ``ROLE@last`` the newest one trained from
it; the output of a training is a model by its own name, too. ``iterate`` repeats its steps; round k writes into
``round-0k/`` and a name means its newest output. ``fork`` runs routes that all start from what is there before it:
``{operator: fork, routes: {long: […], short: […]}}``; route ``long`` writes into ``long/``, and after the fork
``long/NAME`` is its output and ``ROLE@long`` its model. All of it is checked here, before anything starts.

In and after an ``iterate``, ``NAME@2`` is the output of its second round, ``NAME@previous`` that of the round before
and ``NAME@all`` the outputs of all rounds so far; ``ROLE@round-02`` is the model that round 2 trained from it, and
``ROLE@best`` that of the best round by ``until``. Short forms are in ``agentmill.pipelines.recipes.short_forms``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard

from pydantic import Field, PrivateAttr, field_validator

from agentmill.pipelines.engine.runner import RunnerConfig
from agentmill.pipelines.operators.operator import Name
from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.pipelines.recipes.shipped import recipe_file
from agentmill.pipelines.recipes.short_forms import inner_steps, long_steps, own_word, written_out
from agentmill.pipelines.recipes.stopping import Until
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.config import Config, at_home, override, read_yaml, validate
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match

ROUND_NAME = re.compile(r"round-\d+")
"""What the folders of rounds are called."""
OF_A_STEP = ("operator", "as", "min_used")
"""What a step has besides the parameters of its operator."""

TEXTS = ("name", "run_dir")
"""Keys whose value in an override is text, also where YAML reads ``2024`` as a number and ``exp #1`` as ``exp``."""

MAPPINGS = ("runner", "models", "data", "defaults")
"""Keys that a recipe may lack. An override of something in one, such as ``runner.name=…``, then makes it."""

ALL, PREVIOUS, BEST = "all", "previous", "best"
"""After the name of a table: all rounds so far, the round before. After that of a model: the best round."""
Steps = Annotated[list[dict[str, Any]], Field(min_length=1)]


class Paper(Config):
    """The publication that a recipe follows."""

    title: str = Field(description="the title")
    arxiv: str | None = Field(
        default=None, pattern=r"^\d{4}\.\d{4,5}$", description="the number at arXiv, such as 2403.02502; null: none"
    )
    url: str | None = Field(default=None, description="the address; null: none")
    differs: list[str] = Field(default=[], description="in what the recipe differs from the publication")
    outcome: str | None = Field(default=None, description="what was measured with the recipe; null: nothing was")


class Recipe(Config):
    """A recipe as written, with ``run_dir`` filled in and its short forms written out.

    ``include`` and ``defaults`` are short forms, so nothing is left of them here.
    """

    name: Name = Field(description="the name of the recipe: letters, digits, - and _")
    paper: Paper | None = Field(default=None, description="the publication that the recipe follows; null: none")
    run_dir: str = Field(min_length=1, description="the folder of the run; by default runs/NAME")
    seed: int = Field(
        default=0, description="every step without a seed of its own derives one from it; `mix` and `split` have one"
    )
    runner: RunnerConfig = Field(default=RunnerConfig(), description="where Beam runs the steps")
    models: dict[Name, ModelConfig] = Field(default={}, description="the models, by the names that steps use")
    data: dict[Name, str] = Field(
        default={}, description="tables made elsewhere, by the names that steps use: folders, or hf://… addresses"
    )
    include: list[str] = Field(default=[], description="files whose steps go before those of the recipe")
    defaults: dict[str, Any] = Field(
        default={}, description="values for each step whose operator has that key and that does not give it"
    )
    steps: Steps = Field(description="the steps, in the order in which they are run")
    # No field: the order of the keys in the file, in which a run keeps them.
    _order: list[str] = PrivateAttr([])

    # Kept as written, since a published run has its recipe with it.
    @field_validator("run_dir")
    @classmethod
    def _known_run_dir(cls, run_dir: str) -> str:
        at_home(run_dir)
        return run_dir

    @field_validator("data")
    @classmethod
    def _known_data(cls, data: dict[str, str]) -> dict[str, str]:
        for place in data.values():
            at_home(place)
        return data

    @property
    def folder(self) -> Path:
        """The folder of the run, with the home of the user in place of ``~``."""
        return Path(at_home(self.run_dir))

    @property
    def places(self) -> dict[str, str]:
        """The folders and addresses of ``data``, with the home of the user in place of ``~``."""
        return {name: at_home(place) for name, place in self.data.items()}

    @property
    def order(self) -> list[str]:
        """The keys in the order in which they were written."""
        return self._order

    def ordered(self, keys: Sequence[str]) -> Recipe:
        """The same, whose keys were written in this order."""
        self._order = list(keys)
        return self


class Iterate(Config):
    """The control step that repeats steps."""

    operator: Literal["iterate"] = Field(description="always iterate")
    as_: Name | None = Field(
        None, alias="as", description="the name of the loop, and the folder of its rounds; null: that of the run"
    )
    rounds: int = Field(ge=1, le=99, description="how often the steps are run, with `until` at most")
    until: Until | None = Field(default=None, description="when the loop ends early; null: after the last round")
    steps: Steps = Field(description="the steps of each round")

    @property
    def prefix(self) -> str:
        """What is before the names of its rounds."""
        return "" if self.as_ is None else f"{self.as_}/"

    @property
    def certain(self) -> int:
        """How many rounds are run whatever is measured: the first, and as many as `until` has patience for."""
        return self.rounds if self.until is None else min(self.rounds, 1 + self.until.patience)


class Fork(Config):
    """The control step that runs routes side by side: none knows of what another makes."""

    operator: Literal["fork"] = Field(description="always fork")
    as_: Name | None = Field(None, alias="as", description="its name in KEY=VALUE, as in steps.NAME.routes; null: fork")
    routes: dict[Name, Steps] = Field(
        min_length=2, description="lists of steps by name, which all start from what is there before the fork"
    )


def read_recipe(path: Path, overrides: Sequence[str]) -> Recipe:
    """Read, override, write out and check the outer part of a recipe: a file, or the name of a shipped one.

    ``agentmill.pipelines.recipes.plan`` resolves its steps. Overrides of steps come last, so that they change those of
    included files and what defaults gave.
    """
    path = recipe_file(path)
    overrides = [as_text(each) for each in overrides]
    try:
        data = read_yaml(path)
    except UserError as error:
        raise with_long_form(error) from None
    of_steps = [each for each in overrides if each.partition("=")[0].partition(".")[0] == "steps"]
    lacking = [key for key in MAPPINGS if key not in data and any(each.startswith(f"{key}.") for each in overrides)]
    data = override({**data, **{key: {} for key in lacking}}, [each for each in overrides if each not in of_steps])
    data = written_out(data, path.parent)
    data = override(data, [by_position(each, data) for each in of_steps])
    # A step may be given in short form there, too. Two names where a training takes one table are rather a mistake.
    if of_steps and isinstance(data.get("steps"), list):
        data = {**data, "steps": long_steps(data["steps"], weighted=True)}
    if "run_dir" not in data and isinstance(data.get("name"), str):
        data = {**data, "run_dir": f"runs/{data['name']}"}
    return validate(Recipe, data, str(path)).ordered([*data])


def as_text(assignment: str) -> str:
    """An override; one of a key of ``TEXTS`` so that all of its value is read as text, unless it is quoted already."""
    key, separator, value = assignment.partition("=")
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return f"{key}={json.dumps(value)}" if key in TEXTS and separator and not is_quoted else assignment


def with_long_form(error: UserError) -> UserError:
    """``error`` as it is; of a key given twice that is an operator and a key of it, with the form to write instead."""
    key = re.search(r"the key '(\w+)' is given twice", str(error))
    if key is None or key[1] not in OPERATORS or key[1] not in OPERATORS.load(key[1]).model_fields:
        return error
    hint = f"the operator {key[1]} has a key of its own name; write {{operator: {key[1]}, as: NAME, {key[1]}: …}}"
    return UserError(f"{error}\n{hint}", error.code)


def by_position(assignment: str, data: dict[str, Any]) -> str:
    """``steps.NAME.key=value`` as ``steps.POSITION.key=value``, where NAME is what a step's output is called.

    A step within an ``iterate`` or a ``fork`` may be named directly, if no other has its name. Raises ``UserError``.
    """
    path, equals, value = assignment.partition("=")
    parts, node = ["steps"], data.get("steps")
    for part in path.split(".")[1:]:
        if is_steps(node) and not part.isdecimal():
            places = places_of(part, node)
            if len(places) != 1:
                names = sorted(name for _, name in named_steps(node))
                what = "no step is called" if not places else "several steps are called"
                raise UserError(
                    f"{assignment}: {what} {part!r}; steps: {', '.join(names)}.{near_match(part, names)}",
                    ErrorCode.UNKNOWN_NAME,
                )
            found = places[0]
        else:
            found = [own_word(node, part) if isinstance(node, dict) else part]
        for each in found:
            parts.append(each)
            node = child(node, each)
    return f"{'.'.join(parts)}{equals}{value}"


def is_steps(node: Any) -> TypeGuard[list[Any]]:
    """Whether something is a list of steps."""
    return isinstance(node, list) and any(isinstance(each, dict) and "operator" in each for each in node)


def child(node: Any, part: str) -> Any:
    """What is at a key or an index; ``None`` where there is nothing."""
    if isinstance(node, dict):
        return node.get(part)
    if isinstance(node, list) and part.isdecimal() and int(part) < len(node):
        return node[int(part)]
    return None


def places_of(name: str, steps: list[Any]) -> list[list[str]]:
    """The paths of the steps of this name in a list of steps; those in the list itself go before those inside."""
    found = [path for path, each in named_steps(steps) if each == name]
    outer = [path for path in found if len(path) == 1]
    return outer or found


def named_steps(steps: list[Any]) -> Iterator[tuple[list[str], str]]:
    """The path and the name of each step in a list, and of those within control steps."""
    for position, step in enumerate(steps):
        if not isinstance(step, dict):
            continue
        yield [str(position)], output_name(step)
        for path, inner in inner_steps(step):
            yield from (([str(position), *path, *rest], name) for rest, name in named_steps(inner))


def output_name(step: dict[str, Any]) -> str:
    """What a step's output is called: ``as``, or else its operator."""
    return str(step.get("as") or step.get("operator"))


def parameters_of(step: dict[str, Any]) -> dict[str, Any]:
    """What a step gives its operator, without what belongs to the step itself."""
    return {key: value for key, value in step.items() if key not in OF_A_STEP}


def round_name(number: int) -> str:
    """The folder of a round, and the version of the models that it trains."""
    return f"round-{number:02d}"


def one_of(given: str, known: Iterable[str], what: str, where: str) -> str:
    """``given`` if it is among ``known``; otherwise a ``UserError`` that names the nearest."""
    names = sorted(known)
    if given not in names:
        raise UserError(
            f"{where}: unknown {what} {given!r}; known: {', '.join(names) or 'none'}.{near_match(given, names)}",
            ErrorCode.UNKNOWN_NAME,
        )
    return given
