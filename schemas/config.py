"""Configuration: YAML 1.2 in, validated models out, and every mistake reported in a line or two.

Secrets are never in a configuration; they come from the environment.
"""

from __future__ import annotations

import io
import math
import re
import types
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError
from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, DuplicateKeyError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode

from agentmill.schemas.arrow.check import MOST_LEVELS
from agentmill.schemas.config_mistakes import explain, mistake_code
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import JsonObject

MOST_VALUES = 1_000_000
"""Of a configuration, with its aliases replaced by what they name."""
MOST_BITS = 4_096
"""Of a number; Python writes none of more than 4,300 digits."""
_TOO_DEEP = f"values are nested deeper than {MOST_LEVELS} levels"


class Config(BaseModel):
    """Base of every configuration: unknown keys forbidden, immutable, no NaN or infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: object, info: ValidationInfo) -> object:
        # pydantic takes it for 1.
        if isinstance(value, bool):
            kinds = set(_kinds(cls.model_fields[str(info.field_name)].annotation))
            if kinds & {int, float} and bool not in kinds:
                raise PydanticCustomError("number_type", "Input should be a valid number")
        return value


def _kinds(annotation: Any) -> Iterator[Any]:
    """The types that a field may have, those of its unions one by one."""
    if get_origin(annotation) in (Union, types.UnionType, Annotated):
        yield from (kind for part in get_args(annotation) for kind in _kinds(part))
    else:
        yield annotation


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
    """JSON values only: dates stay text. Keys that are merged (``<<``) come after a mapping's own."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        own = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        merges = len(own) < len(node.value)
        found = super().construct_mapping(node, deep=deep)
        return {**{key: found[key] for key in own if key in found}, **found} if merges else found


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
