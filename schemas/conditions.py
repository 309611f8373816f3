"""What a row must fulfil to be chosen: small conditions on verdicts, labels and fields, never code.

- {verdict: check_outcome, passed: true}
- {verdict: check_rules, at_least: 0.5}
- {label: language, equals: en}
- {value: mc, at_least: 0.5}
- {quality: calls_misfit, at_most: 0}
- {field: outcome.truncated, equals: false}
- {field: usage.completion_tokens, at_most: 2000}

The score of a verdict is progress (``check_outcome``: the share of the goal that is met); ``passed`` is success.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import msgspec
from pydantic import Field, model_validator
from pydantic.fields import FieldInfo

from agentmill.schemas.annotation_names import Asks
from agentmill.schemas.arrow.layout import FieldType, field_type, kind_of
from agentmill.schemas.config import Config
from agentmill.schemas.errors import near_match
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Quality
from agentmill.schemas.views.annotations import KINDS, Annotations

ANNOTATIONS = ("verdict", "label", "value", "quality")
SUBJECTS = (*ANNOTATIONS, "field")

ROUNDING = 1e-9
"""By so much a score may miss a threshold: scores are sums, means and shares, and 0.8 may be 0.7999999999999999.

All thresholds on scores allow for it, so that what passes where a verdict is made also passes where it is read.
"""

COMPARED = {
    "verdict": FieldType(frozenset({"number"})),
    "label": FieldType(frozenset({"text"})),
    "value": FieldType(frozenset({"number"})),
}
"""What each kind of annotation is compared by: the score of a verdict, the text of a label, the number of a value."""


class Condition(Config):
    """One thing that must hold. What is unknown (no verdict, an unscored one, a null field) fulfils nothing.

    A condition that no trajectory could fulfil is refused: on a field that trajectories do not have, or on a value of
    another type than the field, the score or the label has.
    """

    verdict: str | None = Field(
        default=None, description="name of a verdict, compared by its score (progress), or asked by passed (success)"
    )
    label: str | None = Field(default=None, description="name of a label, compared by its value")
    value: str | None = Field(default=None, description="name of a value, an estimate of what is to come")
    quality: str | None = Field(default=None, description="a count of the step `quality`, as turns or calls_misfit")
    field: str | None = Field(default=None, description="a field of the row, with dots")
    passed: bool | None = Field(default=None, description="the success or failure of the verdict")
    equals: Any = Field(default=None, description="the value must be this")
    one_of: list[Any] | None = Field(default=None, description="the value must be among these")
    at_least: float | None = Field(default=None, description="the value must be this or more")
    at_most: float | None = Field(default=None, description="the value must be this or less")

    @model_validator(mode="after")
    def _one_subject_one_test(self) -> Condition:
        subjects = [name for name in SUBJECTS if getattr(self, name) is not None]
        if len(subjects) != 1:
            raise ValueError("a condition names one of `verdict`, `label`, `value`, `quality` or `field`")
        # By what was given and not by value: `equals: null` is a test, and asks for null.
        tests = self.model_fields_set & {"passed", "equals", "one_of", "at_least", "at_most"}
        if not tests:
            raise ValueError("a condition has one of `passed`, `equals`, `one_of`, `at_least`, `at_most`")
        unset = next(
            (
                name
                for name in ("passed", "one_of", "at_least", "at_most")
                if name in tests and getattr(self, name) is None
            ),
            None,
        )
        if unset is not None:
            raise ValueError(
                f"`{unset}: null` asks nothing, so everything would fulfil it; give a value, or leave it out"
            )
        if "passed" in tests and self.verdict is None:
            raise ValueError("`passed` is asked of a `verdict`")
        return self

    @model_validator(mode="after")
    def _can_hold(self) -> Condition:
        (subject,) = (name for name in SUBJECTS if getattr(self, name) is not None)
        annotation_needs = f"`{subject}: {getattr(self, subject)}`"
        held = self._held(subject)
        for bound in ("at_least", "at_most"):
            if getattr(self, bound) is not None and held.kinds and "number" not in held.kinds:
                raise ValueError(
                    f"`{bound}` compares numbers, {annotation_needs} is {_kinds(held)}; expected `equals` or `one_of`"
                )
        for value in self._values():
            _check_value(value, held, annotation_needs, subject)
        if self.one_of is not None and len({kind_of(each) for each in self.one_of if each is not None}) > 1:
            raise ValueError(f"`one_of` mixes types: {self.one_of}; expected texts, or numbers")
        if self.one_of == []:
            raise ValueError("`one_of` is empty, so nothing fulfils it; expected a list of values")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"no number is at least {self.at_least:g} and at most {self.at_most:g}")
        return self

    def _held(self, subject: str) -> FieldType:
        if self.field is not None:
            return field_type(Trajectory, self.field)
        return COMPARED[subject] if self.quality is None else field_type(Quality, self.quality, "quality")

    def annotations(self) -> Iterator[tuple[str, str]]:
        """The annotation that it asks for, as (one of ``ANNOTATIONS``, its name); none for a field."""
        return ((kind, getattr(self, kind)) for kind in ANNOTATIONS if getattr(self, kind) is not None)

    def _values(self) -> list[Any]:
        """The values that something is compared with."""
        return [*([self.equals] if "equals" in self.model_fields_set else []), *(self.one_of or [])]

    def holds(self, row: Record, annotations: Annotations, item: int | None = None) -> bool:
        """Whether it is fulfilled, by ``row`` and its annotations, or those of its ``item``."""
        if self.passed is not None:
            stored = annotations.verdict(str(self.verdict), item)
            if stored is None or stored.passed is not self.passed:
                return False
            if self.model_fields_set <= {"verdict", "passed"}:
                return True
        return self._compares(self._found(row, annotations, item))

    def __str__(self) -> str:
        """Short, for the reason of a row that was left out."""
        return ".".join(str(value) for value in map(self.__getattribute__, SUBJECTS) if value is not None)

    def _found(self, row: Record, annotations: Annotations, item: int | None) -> Any:
        """What is compared; ``None`` where nothing is known."""
        if self.verdict is not None:
            verdict = annotations.verdict(self.verdict, item)
            return verdict and verdict.score
        if self.label is not None:
            label = annotations.label(self.label, item)
            return label and label.value
        if self.value is not None:
            value = annotations.value(self.value, item)
            return value and value.value
        if self.quality is not None:
            return getattr(annotations.quality, self.quality, None)
        return value_at(row, str(self.field))

    def _compares(self, value: Any) -> bool:
        given = self.model_fields_set
        if "equals" in given and not _same(value, self.equals):
            return False
        if self.one_of is not None and not any(_same(value, each) for each in self.one_of):
            return False
        if self.at_least is None and self.at_most is None:
            return True
        # A bool is an int in Python, and would count as 0 or 1.
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        low = self.at_least is None or reaches(value, self.at_least)
        return low and (self.at_most is None or not exceeds(value, self.at_most))


def reaches(score: float, at_least: float) -> bool:
    """Whether ``score`` is at least this, but for ``ROUNDING``."""
    return score >= at_least - ROUNDING


def exceeds(score: float, at_most: float) -> bool:
    """Whether ``score`` is more than this, and by more than ``ROUNDING``."""
    return score > at_most + ROUNDING


def value_at(row: Record, path: str) -> Any:
    """The value of a field, with dots; ``None`` where it is null, or an open mapping lacks it."""
    found: Any = row
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else getattr(found, part, None)
    return found


def _same(value: Any, wanted: Any) -> bool:
    # True equals 1 in Python, and does not in JSON.
    return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)


def _kinds(held: FieldType) -> str:
    return " or ".join(sorted(held.kinds))


def _check_value(value: Any, held: FieldType, annotation_needs: str, subject: str) -> None:
    """Raises ``ValueError`` for a value that what is ``held`` never equals."""
    if value is None and not held.nullable:
        raise ValueError(f"{annotation_needs} is never null; expected {_kinds(held)}")
    if value is None or not held.kinds:
        return
    if kind_of(value) not in held.kinds:
        hint = ""
        if isinstance(value, bool) and "text" in held.kinds:
            hint = f"; for the text write '{str(value).lower()}', in quotes"
        elif isinstance(value, bool) and subject == "verdict":
            hint = f"; whether it passed is asked by `passed: {str(value).lower()}`"
        raise ValueError(
            f"{annotation_needs} is {_kinds(held)}, which never equals {value!r} ({type(value).__name__}){hint}"
        )
    if held.choices and isinstance(value, str) and value not in held.choices:
        known = ", ".join(held.choices)
        raise ValueError(
            f"{annotation_needs} is never {value!r}; it is one of {known}.{near_match(value, held.choices)}"
        )


class AnnotationNeed(msgspec.Struct, frozen=True):
    """``parameter``, as the recipe has it, asks for the annotation ``name`` of ``kind``, one of ``ANNOTATIONS``."""

    parameter: str
    kind: str
    name: str

    @property
    def role(self) -> str:
        """The role of the tables that may hold it."""
        return self.kind if self.kind == "quality" else f"{self.kind}s"


def annotation_needs(config: Config) -> Iterator[AnnotationNeed]:
    """What all conditions, scores and names in ``config`` ask for. A name that is only a default asks for nothing."""
    for name, field in type(config).model_fields.items():
        mark = _mark(field) if name in config.model_fields_set else None
        yield from _needs_of(field.alias or name, getattr(config, name), mark)


def _needs_of(parameter: str, value: Any, mark: Asks | None) -> Iterator[AnnotationNeed]:
    if isinstance(value, Condition):
        for kind, name in value.annotations():
            yield AnnotationNeed(f"{parameter}: {{{kind}: {name}}}", kind, name)
    elif isinstance(value, Config):
        for each in annotation_needs(value):
            yield msgspec.structs.replace(each, parameter=f"{parameter}.{each.parameter}")
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _needs_of(parameter, each, mark)
    elif isinstance(value, str) and mark is not None:
        kind, _, name = value.partition(":") if mark.kind == "criterion" else (mark.kind, "", value)
        if kind in KINDS or mark.kind != "criterion":
            yield AnnotationNeed(f"{parameter}: {value}", KINDS.get(kind, kind), name)


def _mark(field: FieldInfo) -> Asks | None:
    """The mark of a parameter, also of one that may be null."""
    inner = (mark for each in get_args(field.annotation) for mark in getattr(each, "__metadata__", ()))
    return next((each for each in (*field.metadata, *inner) if isinstance(each, Asks)), None)
