"""What a row must fulfil to be chosen: small conditions on verdicts, labels and fields, never code.

- {verdict: check_outcome, passed: true}
- {verdict: check_rules, at_least: 0.5}
- {label: language, equals: en}
- {field: outcome.truncated, equals: false}
- {field: usage.completion_tokens, at_most: 2000}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from schemas.config import Config
from schemas.record import Record
from schemas.verdict import Label, Verdict

Evidence = Mapping[str, Mapping[str, Verdict | Label]]
"""What is said of one trajectory as a whole: ``verdict`` and ``label``, each by name."""


class Condition(Config):
    """One thing that must hold. What is unknown (no verdict, an unscored one, a null field) fulfils nothing."""

    verdict: str | None = Field(default=None, description="name of a verdict, compared by its score")
    label: str | None = Field(default=None, description="name of a label, compared by its value")
    field: str | None = Field(default=None, description="a field of the row, with dots")
    passed: bool | None = Field(default=None, description="what the verdict says")
    equals: Any = Field(default=None, description="the value must be this")
    one_of: list[Any] | None = Field(default=None, description="the value must be among these")
    at_least: float | None = Field(default=None, description="the value must be this or more")
    at_most: float | None = Field(default=None, description="the value must be this or less")

    @model_validator(mode="after")
    def _one_subject_one_test(self) -> Condition:
        subjects = [name for name in ("verdict", "label", "field") if getattr(self, name) is not None]
        if len(subjects) != 1:
            raise ValueError("a condition names one of `verdict`, `label` or `field`")
        tests = self.model_fields_set & {"passed", "equals", "one_of", "at_least", "at_most"}
        if not tests:
            raise ValueError("a condition has one of `passed`, `equals`, `one_of`, `at_least`, `at_most`")
        if "passed" in tests and self.verdict is None:
            raise ValueError("`passed` is asked of a `verdict`")
        return self

    def holds(self, row: Record, evidence: Evidence) -> bool:
        """Whether it is fulfilled."""
        if self.passed is not None:
            said = evidence.get("verdict", {}).get(str(self.verdict))
            if not isinstance(said, Verdict) or said.passed is not self.passed:
                return False
            if self.model_fields_set <= {"verdict", "passed"}:
                return True
        return self._compares(self._value(row, evidence))

    def __str__(self) -> str:
        """Short, for the reason of a row that was left out."""
        return ".".join(str(value) for value in (self.verdict, self.label, self.field) if value is not None)

    def _value(self, row: Record, evidence: Evidence) -> Any:
        if self.field is not None:
            value: Any = row
            for part in self.field.split("."):
                value = value.get(part) if isinstance(value, dict) else getattr(value, part, None)
            return value
        kind = "label" if self.verdict is None else "verdict"
        said = evidence.get(kind, {}).get(str(getattr(self, kind)))
        return said.score if isinstance(said, Verdict) else said and said.value

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
