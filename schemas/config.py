"""Configuration: YAML 1.2 in, validated models out, and every mistake reported in a line or two.

Secrets are never in a configuration; they come from the environment.
"""

from __future__ import annotations

import io
import math
import re
import types
import typing
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, DuplicateKeyError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode

from agentmill.schemas.arrow.check import MOST_LEVELS
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import JsonObject

_CODES = {
    "extra_forbidden": ErrorCode.UNKNOWN_KEY,
    "missing": ErrorCode.MISSING_KEY,
    "value_error": ErrorCode.RULE_BROKEN,
    "assertion_error": ErrorCode.RULE_BROKEN,
}


UNION_PART = re.compile(r"(literal|list|dict|function-\w+|constrained-\w+)\[")
"""What pydantic calls a branch of a union in the place of a mistake."""


def mistake_code(error: ValidationError) -> ErrorCode:
    """The code of the first mistake, which is the one that ``explain`` shows."""
    mistake = first_mistake(error)
    # A validator can raise only ValueError, so a UserError with its own code is the cause of one.
    cause = getattr(mistake.get("ctx", {}).get("error"), "__cause__", None)
    return cause.code if isinstance(cause, UserError) else _CODES.get(mistake["type"], ErrorCode.INVALID_VALUE)


def explain(error: ValidationError, config_type: type[BaseModel]) -> str:
    """The first mistake with the nearest match, and how many more there are."""
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return _mistake(first_mistake(error), config_type, missing_keys(error)) + more


def missing_keys(error: ValidationError) -> list[str]:
    """The keys that are missing in the place of the mistake that is shown first."""
    place = first_mistake(error)["loc"][:-1]
    missing = (each["loc"] for each in error.errors(include_url=False) if each["type"] == "missing")
    return [str(loc[-1]) for loc in missing if loc[:-1] == place]


def first_mistake(error: ValidationError) -> ErrorDetails:
    """The mistake to show first. A key that is not known goes before one that is missing: it may be the same key."""
    mistakes = error.errors(include_url=False, include_context=True)
    unknown = (each for each in mistakes if each["type"] == "extra_forbidden")
    return next(unknown, mistakes[0]) if mistakes[0]["type"] == "missing" else mistakes[0]


def _mistake(mistake: ErrorDetails, config_type: type[BaseModel], missing: Sequence[str] = ()) -> str:
    # The branches of a union are no keys.
    location = tuple(part for part in mistake["loc"] if not UNION_PART.match(str(part)))
    path = ".".join(map(str, location)) or "the configuration"
    given = mistake["input"]
    if mistake["type"] == "extra_forbidden":
        key = str(location[-1])
        known = _keys(config_type, location[:-1])
        where = f" in {'.'.join(map(str, location[:-1]))}" if location[:-1] else ""
        # Where one key alone is missing, the unknown one is likely to stand for it, however it is spelled.
        instead = f" Did you mean {missing[0]!r}, which is missing?" if len(missing) == 1 else ""
        return f"unknown key {key!r}{where}; known: {', '.join(known)}.{near_match(key, known) or instead}"
    if mistake["type"] == "missing":
        where = f" in {'.'.join(map(str, location[:-1]))}" if location[:-1] else ""
        return f"the key {str(location[-1])!r}{where} is missing"
    if mistake["type"] in ("value_error", "assertion_error"):
        # pydantic puts "Value error, " before what a validator says.
        return f"{path}: {mistake['msg'].partition(', ')[2]}"
    choices = str(mistake.get("ctx", {}).get("expected", "")) if mistake["type"] == "literal_error" else ""
    expected = choices or mistake["msg"].removeprefix("Input should be ").partition(", ")[0]
    if expected.startswith("a valid dictionary"):
        expected = "a mapping"
    if mistake["type"] in ("too_long", "too_short"):
        end, least = ("max_length", "most") if mistake["type"] == "too_long" else ("min_length", "least")
        n = mistake["ctx"][end]
        expected = f"at {least} {n} {'entry' if n == 1 else 'entries'}"
    options = [choice.strip().strip("'") for choice in choices.replace(" or ", ",").split(",")]
    return (
        f"{path}: expected {expected}, got {_shown_value(given)}.{near_match(str(given), options) if choices else ''}"
    )


def _shown_value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _keys(annotation: Any, location: tuple[int | str, ...]) -> list[str]:
    """The keys that the model at ``location`` knows; those of all models that may be there."""
    models = list(_models(annotation))
    if not location:
        return sorted({field.alias or name for model in models for name, field in model.model_fields.items()})
    head, rest = location[0], location[1:]
    found: list[str] = []
    for model in models:
        if head in model.model_fields:
            found += _keys(model.model_fields[str(head)].annotation, rest)
    if found:
        return sorted(set(found))
    # The step is a list index, a mapping key or the tag of a union: it stays within the annotation.
    return _keys(annotation, rest)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and not typing.get_args(annotation):
        yield annotation
    elif isinstance(annotation, types.GenericAlias | types.UnionType) or typing.get_origin(annotation) is not None:
        for argument in typing.get_args(annotation):
            yield from _models(argument)


MOST_VALUES = 1_000_000
"""Of a configuration, with its aliases replaced by what they name."""
MOST_BITS = 4_096
"""Of a number; Python writes none of more than 4,300 digits."""
_TOO_DEEP = f"values are nested deeper than {MOST_LEVELS} levels"


class Config(BaseModel):
    """Base of every configuration: unknown keys forbidden, immutable, no NaN or infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


C = TypeVar("C", bound=Config)


def at_home(path: str) -> str:
    """``path`` with the home of the user in place of ``~``. Raises ``ValueError`` for a user without one."""
    if not path.startswith("~"):
        return path
    try:
        return str(Path(path).expanduser())
    except RuntimeError as error:
        raise ValueError(f"{path}: this user has no home folder; write the path out, or ./{path}") from error


UserPath = Annotated[str, AfterValidator(at_home)]
"""A path as a user writes it, read with the home of the user in place of ``~``."""


class _Constructor(SafeConstructor):
    """JSON values only: dates stay text."""


# YAML reads 2024-01-01 as a date, which JSON does not have and no digest takes.
_Constructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)


class _TextKeys(_Constructor):
    """Keys are text as they are written, also ``200`` and ``true``."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        for key, _ in node.value:
            if isinstance(key, ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep=deep)


def packaged(path: Path) -> Path:
    """``path``; where nothing is at one below ``configs/``, the file of that name that the package ships, if any."""
    if not path.exists() and path.parts[:1] == ("configs",):
        shipped = Path(__file__).parents[1] / path
        return shipped if shipped.is_file() else path
    return path


def read_yaml(path: Path | str) -> JsonObject:
    """The mapping in a YAML file. Raises ``UserError`` naming the line, for duplicate keys too."""
    file = packaged(Path(path))
    try:
        # Editors on Windows put a byte order mark before the text.
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        siblings = [entry.name for entry in file.parent.glob("*.y*ml")]
        raise UserError(
            f"there is no configuration {file}.{near_match(file.name, siblings)}", ErrorCode.NO_SUCH_FILE
        ) from None
    except IsADirectoryError:
        raise UserError(f"{file} is a folder, expected a YAML file", ErrorCode.NOT_A_FILE) from None
    except OSError as error:
        reason = str(error.strerror).lower()
        raise UserError(f"{file} cannot be read: {reason}", ErrorCode.NOT_READABLE) from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"{file} is no UTF-8 text (byte {error.start}), expected a YAML file", ErrorCode.NOT_UTF8
        ) from None
    return parse_yaml(text, str(file))


def parse_yaml(text: str, origin: str) -> JsonObject:
    """The mapping in a YAML text. Raises ``UserError`` naming ``origin`` and the line, for duplicate keys too."""
    data = _parse(text, origin)
    if not isinstance(data, dict):
        raise UserError(
            f"{origin}: expected keys and values, got {'nothing' if data is None else _kind(data)}",
            ErrorCode.NOT_A_MAPPING,
        )
    return data


def parse_document(text: str, origin: str) -> Any:
    """The value in a YAML text that is no configuration; keys are text as they are written. Raises ``UserError``."""
    return _parse(text, origin, _TextKeys)


def dump_yaml(data: JsonObject) -> str:
    """YAML text that ``read_yaml`` reads back as ``data``."""
    return _dump(data, flow=False)


def _dump(data: Any, flow: bool) -> str:
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = flow
    # Keys keep the order in which they were given.
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.allow_unicode = True
    # The default folds long texts at 80 columns.
    yaml.width = 2**16
    stream = io.StringIO()
    yaml.dump(data, stream)
    return stream.getvalue()


def override(data: JsonObject, assignments: Sequence[str]) -> JsonObject:
    """A copy of ``data`` with each ``path=value`` applied; ``path`` is dotted, with indices for lists, ``value`` YAML.

    Everything but the last part of a path must exist. Raises ``UserError`` with the nearest match otherwise.
    """
    copy: JsonObject = _copy(data)
    for assignment in assignments:
        path, separator, text = assignment.partition("=")
        if not separator or not path:
            raise UserError(f"override {assignment!r} is not of the form key=value", ErrorCode.OVERRIDE_MALFORMED)
        _assign(copy, path.split("."), _parse(text, f"override {assignment!r}"), assignment)
    return copy


def validate(config_type: type[C], data: Any, origin: str) -> C:
    """``data`` as a ``config_type``. Raises ``UserError`` naming ``origin``, key, what was given and expected."""
    try:
        return config_type.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{origin}: {explain(error, config_type)}", mistake_code(error)) from None


def config_digest(data: Any) -> str:
    """Digest of a configuration; key order and the spelling of numbers do not matter."""
    return digest("config", data)


def differences(old: Any, new: Any) -> list[str]:
    """What changed between two configurations, as ``"steps.3.n: 8 -> 12"``, in the order of ``old``, then ``new``."""
    return list(_differences(old, new, ""))


_ABSENT = object()


def _differences(old: Any, new: Any, path: str) -> Iterator[str]:
    prefix = f"{path}." if path else ""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from _differences(old.get(key, _ABSENT), new.get(key, _ABSENT), f"{prefix}{key}")
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            one = old[index] if index < len(old) else _ABSENT
            other = new[index] if index < len(new) else _ABSENT
            yield from _differences(one, other, f"{prefix}{index}")
    # By digest: Python takes true for 1, and the digest does not.
    elif old is _ABSENT or new is _ABSENT or config_digest(old) != config_digest(new):
        yield f"{path}: {_shown(old)} -> {_shown(new)}"


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "(absent)"
    # In a mapping, which is cut off again: a scalar alone would be dumped with a mark of the document's end.
    text = re.sub(r"\s+", " ", _dump({"v": value}, flow=True).strip()[4:-1])
    return text if len(text) <= 80 else text[:77] + "..."


def _parse(text: str, origin: str, constructor: type[SafeConstructor] = _Constructor) -> Any:
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = constructor
    try:
        root = yaml.compose(text)
        # Between the two steps: in the tree of nodes an alias is one node however often it is used.
        _check_size(root, origin)
        data = yaml.constructor.construct_document(root) if root is not None else None
    except RecursionError:
        raise UserError(f"{origin}: {_TOO_DEEP}", ErrorCode.YAML_TOO_LARGE) from None
    # Before MarkedYAMLError, of which it is a subclass.
    except DuplicateKeyError as error:
        key = re.search(r'duplicate key "([^"]*)"', str(error.problem))
        raise UserError(
            f"{origin}, {_place(error)}: the key {key.group(1) if key else '?'!r} is given twice",
            ErrorCode.DUPLICATE_KEY,
        ) from None
    except ConstructorError as error:
        raise UserError(f"{origin}, {_place(error)}: {error.problem}", ErrorCode.NOT_YAML) from None
    except MarkedYAMLError as error:
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        raise UserError(f"{origin}, {_place(error)}: {reason}", ErrorCode.NOT_YAML) from None
    except (YAMLError, ValueError) as error:
        raise UserError(f"{origin} is no YAML: {str(error).splitlines()[0]}", ErrorCode.NOT_YAML) from None
    # YAML also has keys that are no text, infinities and numbers of any length, which JSON and digests do not take.
    _check_values(data, origin, "")
    return data


def _check_size(root: Node | None, origin: str) -> None:
    """Raises ``UserError`` if the values, with each alias replaced by what it names, are too many or too deep.

    Every node is looked at once, so that nine lines of aliases that stand for a billion values cost nothing.
    """
    sizes: dict[int, int] = {}
    above: set[int] = set()

    def size(node: Node) -> int:
        known = sizes.get(id(node))
        if known is not None:
            return known
        if id(node) in above:
            raise UserError(
                f"{origin}, line {node.start_mark.line + 1}: an alias is inside of what it names",
                ErrorCode.NOT_YAML,
            )
        if len(above) == MOST_LEVELS and isinstance(node, CollectionNode):
            raise UserError(f"{origin}, line {node.start_mark.line + 1}: {_TOO_DEEP}", ErrorCode.YAML_TOO_LARGE)
        above.add(id(node))
        parts = node.value if isinstance(node, CollectionNode) else []
        flat = chain.from_iterable(parts) if isinstance(node, MappingNode) else parts
        sizes[id(node)] = 1 + sum(map(size, flat))
        above.remove(id(node))
        return sizes[id(node)]

    if root is not None and size(root) > MOST_VALUES:
        raise UserError(
            f"{origin}: its aliases expand to more than {MOST_VALUES:,} values; write fewer of them",
            ErrorCode.YAML_TOO_LARGE,
        )


def _place(error: MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return f"line {mark.line + 1}" if mark else "somewhere"


def _check_values(data: Any, origin: str, path: str) -> None:
    if isinstance(data, dict):
        for key, value in data.items():
            if not isinstance(key, str):
                raise UserError(
                    f"{origin}: the key {key!r}{path and f' in {path}'} is no text; put it in quotes",
                    ErrorCode.KEY_NOT_TEXT,
                )
            _check_values(value, origin, f"{path}.{key}" if path else key)
    elif isinstance(data, list):
        for index, value in enumerate(data):
            _check_values(value, origin, f"{path}.{index}" if path else str(index))
    elif isinstance(data, float) and not math.isfinite(data):
        raise UserError(
            f"{origin}: {path or 'the value'} is {data}, expected a finite number", ErrorCode.NUMBER_OUT_OF_RANGE
        )
    elif isinstance(data, int) and data.bit_length() > MOST_BITS:
        raise UserError(
            f"{origin}: {path or 'the value'} has {data.bit_length():,} bits, expected {MOST_BITS:,} at most",
            ErrorCode.NUMBER_OUT_OF_RANGE,
        )


def _copy(data: Any) -> Any:
    # Written out: copy.deepcopy keeps what aliases share, and an override of one place would change the others.
    if isinstance(data, dict):
        return {key: _copy(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_copy(value) for value in data]
    return data


def _assign(data: Any, parts: list[str], value: Any, assignment: str) -> None:
    for depth, part in enumerate(parts):
        where = ".".join(parts[:depth]) or "the configuration"
        last = depth == len(parts) - 1
        key: Any = part
        if isinstance(data, list):
            # Overrides change what is there; a list does not grow by them.
            if not part.isdecimal() or int(part) >= len(data):
                raise UserError(
                    f"override {assignment!r}: {where} is a list of {len(data)}; expected an index below it",
                    ErrorCode.UNKNOWN_KEY,
                )
            key = int(part)
        elif not isinstance(data, dict):
            raise UserError(f"override {assignment!r}: {where} is {_kind(data)}, it has no keys", ErrorCode.UNKNOWN_KEY)
        elif not last and part not in data:
            raise UserError(
                f"override {assignment!r}: {where} has no key {part!r}.{near_match(part, data)}", ErrorCode.UNKNOWN_KEY
            )
        if last:
            data[key] = value
        else:
            data = data[key]


def _kind(value: Any) -> str:
    names = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
