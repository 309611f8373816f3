"""What a row must fulfil to be chosen: small conditions on verdicts, labels and fields, never code.

- {verdict: check_outcome, passed: true}
- {verdict: check_rules, at_least: 0.5}
- {label: language, equals: en}
- {value: mc, at_least: 0.5}
- {field: outcome.truncated, equals: false}
- {field: usage.completion_tokens, at_most: 2000}
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from schemas.config import Config
from schemas.record import Record
from schemas.views.evidence import Evidence

SUBJECTS = ("verdict", "label", "value", "field")


class Condition(Config):
    """One thing that must hold. What is unknown (no verdict, an unscored one, a null field) fulfils nothing."""

    verdict: str | None = Field(default=None, description="name of a verdict, compared by its score")
    label: str | None = Field(default=None, description="name of a label, compared by its value")
    value: str | None = Field(default=None, description="name of a value, an estimate of what is to come")
    field: str | None = Field(default=None, description="a field of the row, with dots")
    passed: bool | None = Field(default=None, description="what the verdict says")
    equals: Any = Field(default=None, description="the value must be this")
    one_of: list[Any] | None = Field(default=None, description="the value must be among these")
    at_least: float | None = Field(default=None, description="the value must be this or more")
    at_most: float | None = Field(default=None, description="the value must be this or less")

    @model_validator(mode="after")
    def _one_subject_one_test(self) -> Condition:
        subjects = [name for name in SUBJECTS if getattr(self, name) is not None]
        if len(subjects) != 1:
            raise ValueError("a condition names one of `verdict`, `label`, `value` or `field`")
        tests = self.model_fields_set & {"passed", "equals", "one_of", "at_least", "at_most"}
        if not tests:
            raise ValueError("a condition has one of `passed`, `equals`, `one_of`, `at_least`, `at_most`")
        if "passed" in tests and self.verdict is None:
            raise ValueError("`passed` is asked of a `verdict`")
        return self

    def holds(self, row: Record, evidence: Evidence, item: int | None = None) -> bool:
        """Whether it is fulfilled, by ``row`` and what is said of it or of its ``item``."""
        if self.passed is not None:
            said = evidence.verdict(str(self.verdict), item)
            if said is None or said.passed is not self.passed:
                return False
            if self.model_fields_set <= {"verdict", "passed"}:
                return True
        return self._compares(self._found(row, evidence, item))

    def __str__(self) -> str:
        """Short, for the reason of a row that was left out."""
        return ".".join(str(value) for value in (self.verdict, self.label, self.value, self.field) if value is not None)

    def _found(self, row: Record, evidence: Evidence, item: int | None) -> Any:
        """What is compared; ``None`` where nothing is known."""
        if self.verdict is not None:
            verdict = evidence.verdict(self.verdict, item)
            return verdict and verdict.score
        if self.label is not None:
            label = evidence.label(self.label, item)
            return label and label.value
        if self.value is not None:
            value = evidence.value(self.value, item)
            return value and value.value
        found: Any = row
        for part in str(self.field).split("."):
            found = found.get(part) if isinstance(found, dict) else getattr(found, part, None)
        return found

    def _compares(self, value: Any) -> bool:
        given = self.model_fields_set
        if "equals" in given and (value != self.equals or isinstance(value, bool) != isinstance(self.equals, bool)):
            return False
        if self.one_of is not None and value not in self.one_of:
            return False
        if self.at_least is None and self.at_most is None:
            return True
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        low = self.at_least is None or value >= self.at_least
        return low and (self.at_most is None or value <= self.at_most)
