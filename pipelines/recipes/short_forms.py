"""Short forms of a recipe, written out: what the planner, the report and ``RUN/recipe.yaml`` read is the long form.

    include: [environments/pddl]                     # its steps go before those of the recipe
    defaults: {tasks: tasks, environments: environments, split: train}
    steps:
      - {sample: explored, policy: actor}            # {operator: sample, as: explored, policy: actor, tasks: tasks, …}
      - {iterate: loop, rounds: 3, steps: […]}
      - {filter: kept, from: explored, …}            # `of` and `from` are one word for the tables that a step works on
      - {train_sft: tuned, rows: [{table: agent_rows, weight: 1}, {table: chat_rows, weight: 4}], …}   # a `mix` first

A default holds for each step of the recipe whose operator has that key and that does not give it. One that names a
table holds for operators that need the table, from the step on that makes it. Included files have their own defaults.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentmill.pipelines.operators.operator import Operator
from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.schemas.config import Config, packaged, read_yaml, validate
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.records.record import JsonObject

ITERATE, FORK = "iterate", "fork"
CONTROLS = (ITERATE, FORK)
RECIPES = Path("configs/recipes")
"""Where included files are looked for that do not lie next to the recipe."""
SKETCHES = "sketches"
"""The folder there that holds recipes, not files to include."""
ONE_WORD = ("of", "from")
"""Two spellings of one key: the tables that a step works on."""


class StepFile(Config):
    """A file that recipes include: steps, with what they need."""

    models: dict[str, Any] = {}
    data: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    steps: list[dict[str, Any]]


def written_out(data: JsonObject, folder: Path) -> JsonObject:
    """``data``, the mapping in a recipe file of ``folder``, in long form.

    Raises ``UserError`` for an included file that is not there, and for a default that no step could take.
    """
    if not isinstance(data.get("steps"), list):
        return data
    found = {key: value for key, value in data.items() if key not in ("include", "defaults")}
    included = [included_file(name, folder) for name in names_in(data.get("include", []))]
    for key in ("models", "data"):
        merged = {name: value for each in included for name, value in getattr(each, key).items()}
        own = found.get(key) or {}
        # What is no mapping is left for the check of the whole recipe.
        if merged and isinstance(own, dict):
            found[key] = {**merged, **own}
    data_of = found.get("data")
    known = set(data_of) if isinstance(data_of, dict) else set()
    steps: list[Any] = []
    for each in included:
        steps += with_defaults(long_steps(each.steps), each.defaults, known)
    defaults = data.get("defaults", {})
    if not isinstance(defaults, dict):
        raise UserError(f"defaults: expected a mapping, got {defaults!r}", ErrorCode.NOT_A_MAPPING)
    steps += with_defaults(long_steps(data["steps"]), defaults, known)
    return {**found, "steps": steps}


def names_in(include: Any) -> list[str]:
    """The entries of ``include``; one alone need not be a list."""
    names = [include] if isinstance(include, str) else include
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(
            f"include: expected a list of files such as [environments/pddl], got {include!r}", ErrorCode.INVALID_VALUE
        )
    return names


def included_file(name: str, folder: Path) -> StepFile:
    """The file that ``include`` names: next to the recipe, or one that is shipped. Raises ``UserError``."""
    file = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    places = [folder / file, packaged(RECIPES / file)]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        known = sorted({str(each.relative_to(place)) for place in (folder, shipped()) for each in step_files(place)})
        known = [each.removesuffix(".yaml") for each in known]
        raise UserError(
            f"include: there is no {places[0]}; shipped are: {', '.join(known) or 'none'}.{near_match(name, known)}",
            ErrorCode.NO_SUCH_FILE,
        )
    return validate(StepFile, read_yaml(found), str(found))


def shipped() -> Path:
    """The folder of the recipes that the package ships."""
    return RECIPES if RECIPES.is_dir() else Path(__file__).parents[2] / RECIPES


def step_files(folder: Path) -> Iterator[Path]:
    """The files below ``folder`` that may be included: those in its folders, but for sketches."""
    return (each for each in folder.glob("*/*.yaml") if each.parent.name != SKETCHES)


def long_steps(steps: list[Any], weighted: bool = False) -> list[Any]:
    """A list of steps in long form; before a training on several tables of rows comes the ``mix`` of these.

    ``weighted``: only where they have weights; a list of names is left to validation.
    """
    return [each for step in steps for each in mixed_before(long_form(step, weighted), weighted)]


def mixed_before(step: Any, weighted: bool) -> list[Any]:
    """A training on several tables as a ``mix`` and a training on its rows; any other step as it is.

    Raises ``UserError`` for entries of ``rows`` that are no tables with weights.
    """
    rows = step.get("rows") if isinstance(step, dict) else None
    if not isinstance(rows, list) or (len(rows) == 1 and isinstance(rows[0], str)) or not is_training(step):
        return [step]
    if weighted and all(isinstance(each, str) for each in rows):
        return [step]
    name = f"{step.get('as') or step['operator']}_rows"
    weights = dict(map(weighted_table, rows))
    if len(weights) < len(rows):
        raise UserError(f"{step['operator']}: `rows` names a table twice; give it one weight", ErrorCode.GIVEN_TWICE)
    mix: JsonObject = {"operator": "mix", "as": name, "from": list(weights)}
    if any(weight is not None for weight in weights.values()):
        given = {table: 1.0 if weight is None else weight for table, weight in weights.items()}
        mix["weights"] = {table: weight / math.fsum(given.values()) for table, weight in given.items()}
    return [mix, {**step, "rows": name}]


def weighted_table(entry: Any) -> tuple[str, float | None]:
    """An entry of ``rows``: a table and its weight, ``None`` where none is given. Raises ``UserError``."""
    if isinstance(entry, str):
        return entry, None
    weight = entry.get("weight", 1.0) if isinstance(entry, dict) else None
    number = isinstance(weight, int | float) and not isinstance(weight, bool) and weight > 0
    if not number or not isinstance(entry.get("table"), str) or entry.keys() - {"table", "weight"}:
        raise UserError(
            f"rows: {entry!r} is no table of rows\n"
            "expected its name, or {table: NAME, weight: 2} with a weight above 0",
            ErrorCode.INVALID_VALUE,
        )
    return entry["table"], weight


def is_training(step: Mapping[str, Any]) -> bool:
    """Whether a step trains a model."""
    return hasattr(operator_type(step), "trainer")


def long_form(step: Any, weighted: bool = False) -> Any:
    """A step, and all steps in it, with ``operator`` and ``as``; what is no step is left to validation."""
    if not isinstance(step, dict) or not step:
        return step
    step = operator_named(step)
    # The `steps` of a view are conditions, in which the name of an operator means something else.
    if step.get("operator") == ITERATE and isinstance(step.get("steps"), list):
        step = {**step, "steps": long_steps(step["steps"], weighted)}
    if step.get("operator") == FORK and isinstance(step.get("routes"), dict):
        routes = {
            name: long_steps(steps, weighted) if isinstance(steps, list) else steps
            for name, steps in step["routes"].items()
        }
        step = {**step, "routes": routes}
    return in_one_word(step)


def operator_named(step: JsonObject) -> JsonObject:
    """``{OPERATOR: NAME, …}`` as ``{operator: OPERATOR, as: NAME, …}``. Raises ``UserError`` for a name given twice."""
    head, *_ = step
    if "operator" in step or head not in (*OPERATORS, *CONTROLS):
        return step
    name, rest = step[head], {key: value for key, value in step.items() if key != head}
    if name is not None and not isinstance(name, str):
        raise UserError(
            f"{head}: {name!r} is no name; write {{{head}: NAME, …}} or {{operator: {head}, …}}",
            ErrorCode.NAME_MALFORMED,
        )
    if name is not None and "as" in rest:
        raise UserError(
            f"{head}: {name!r} has another name in `as: {rest['as']}`; give one of them", ErrorCode.NAME_TAKEN
        )
    return {"operator": head, **({} if name is None else {"as": name}), **rest}


def in_one_word(step: JsonObject) -> JsonObject:
    """A step with its tables under the word that its operator has, ``of`` or ``from``."""
    given = [word for word in ONE_WORD if word in step]
    if len(given) != 1:
        return step
    return {own_word(step, key): value for key, value in step.items()}


def own_word(step: Mapping[str, Any], key: str) -> str:
    """``key`` of a step; where it is ``of`` or ``from``, the one of these that its operator has."""
    operator = operator_type(step) if key in ONE_WORD else None
    own = [] if operator is None else [word for word in ONE_WORD if word in keys_of(operator)]
    return own[0] if len(own) == 1 else key


def operator_type(step: Mapping[str, Any]) -> type[Operator] | None:
    """The operator of a step; ``None`` for a control step, and for one that is not known."""
    name = step.get("operator")
    return OPERATORS.load(name) if isinstance(name, str) and name in OPERATORS else None


def keys_of(operator: type[Operator]) -> set[str]:
    """The keys that a step of this operator may have."""
    return {field.alias or name for name, field in operator.model_fields.items()}


def with_defaults(steps: list[Any], defaults: Mapping[str, Any], known: set[str]) -> list[Any]:
    """``steps`` with ``defaults``; ``known`` are the tables that are there before them, and learns of theirs.

    Raises ``UserError`` for a default that no step has a key for.
    """
    unused = set(defaults)
    found = [taking(step, defaults, known, unused) for step in steps]
    if unused:
        name = min(unused)
        keys = {key for step in every_step(steps) if (operator := operator_type(step)) for key in keys_of(operator)}
        raise UserError(
            f"defaults: no step has a key {name!r}; leave it out.{near_match(name, keys)}", ErrorCode.UNKNOWN_KEY
        )
    return found


def taking(step: Any, defaults: Mapping[str, Any], known: set[str], unused: set[str]) -> Any:
    """A step, and all steps in it, with the defaults that they take."""
    if not isinstance(step, dict):
        return step
    if step.get("operator") == ITERATE and isinstance(step.get("steps"), list):
        return {**step, "steps": [taking(each, defaults, known, unused) for each in step["steps"]]}
    if step.get("operator") == FORK and isinstance(step.get("routes"), dict):
        return {**step, "routes": routes_taking(step["routes"], defaults, known, unused)}
    operator = operator_type(step)
    if operator is not None:
        own = {key: value for key, value in defaults.items() if key in operator.keys_with_defaults(step)}
        unused.difference_update(own)
        there = {key: value for key, value in own.items() if holds_for(key, value, operator, known)}
        step = {**step, **{key: value for key, value in there.items() if key not in step}}
    known.add(str(step.get("as") or step.get("operator")))
    return step


def holds_for(key: str, value: Any, operator: type[Operator], known: set[str]) -> bool:
    """Whether a default holds for an operator that has its key.

    One that names tables does where the operator needs them, and they are there; many use a table only together with
    another parameter, and refuse it without.
    """
    roles = {role.rstrip("_"): role for role in operator.table_roles}
    if key not in roles:
        return True
    needed = operator.model_fields[roles[key]].is_required() or key in operator.defaults_taken
    return needed and set(listed(value)) <= known


def routes_taking(routes: Mapping[str, Any], defaults: Mapping[str, Any], known: set[str], unused: set[str]) -> Any:
    """The routes of a fork; each knows what was there before the fork, and what it makes is known as ROUTE/NAME."""
    found: dict[str, Any] = {}
    made: set[str] = set()
    for name, steps in routes.items():
        inner = set(known)
        own = isinstance(steps, list)
        found[name] = [taking(each, defaults, inner, unused) for each in steps] if own else steps
        made |= {f"{name}/{each}" for each in inner - known}
    known |= made
    return found


def listed(value: Any) -> list[str]:
    """The tables that a value names, without the rounds that they are of."""
    names = value if isinstance(value, list) else [value]
    return [str(name).partition("@")[0] for name in names]


def every_step(steps: list[Any]) -> Iterator[JsonObject]:
    """All steps in a list, those in control steps too."""
    for step in steps:
        if isinstance(step, dict):
            yield step
            for _, inner in inner_steps(step):
                yield from every_step(inner)


def inner_steps(step: Mapping[str, Any]) -> Iterator[tuple[list[str], list[Any]]]:
    """The lists of steps in a control step, each with its path there; none in another step."""
    steps, routes = step.get("steps"), step.get("routes")
    if step.get("operator") == ITERATE and isinstance(steps, list):
        yield ["steps"], steps
    if step.get("operator") == FORK and isinstance(routes, dict):
        yield from ((["routes", name], each) for name, each in routes.items() if isinstance(each, list))
