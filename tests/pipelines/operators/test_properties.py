"""Properties of trajectories: their values as texts, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from agentmill.pipelines.operators.properties import AbsenceCheck, FieldProperty, Properties, Property, field_values
from agentmill.schemas.records.task import EnvironmentSpec, Task
from tests.builders import run_of_source, spec, task, trajectory
from tests.errors import user_error
from tests.pipelines.engine.stages import write_table


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("task", ("task1",)),
        ("environment", ("env1",)),
        ("outcome", ("success",)),
        ("dataset", ()),
        ("outcome.truncated", ("false",)),
        ("attempt", ("0",)),
        ("extra.level", ("3",)),
        ("extra.tags", ("a", "b")),
        ("extra.tags.x", ()),
        ("extra.other", ()),
    ],
)
def test_values_are_texts(name: str, values: tuple[str, ...]) -> None:
    assert field_values(name, trajectory(extra={"level": 3, "tags": ["a", "b", "a"]})) == values


def test_data_set_family_and_skills(tmp_path: Path) -> None:
    assert field_values("dataset", run_of_source("d", None)) == ("d",)
    inputs = {
        "environments": [write_table(tmp_path / "specs", [[spec("env1", family="pddl")]], EnvironmentSpec)],
        "tasks": [write_table(tmp_path / "tasks", [[task("task1", skills=["b", "a", "b"])]], Task)],
    }
    properties = Properties(inputs)
    properties.load()
    known, unknown = trajectory(), trajectory(task_id=None, environment_id="env2")
    assert [properties.values(name, known) for name in ("family", "skill", "task")] == [
        ("pddl",),
        ("b", "a"),
        ("task1",),
    ]
    assert [properties.values(name, unknown) for name in ("family", "skill", "task")] == [(), (), ()]


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        (Property, "familly", "'family'"),
        (FieldProperty, "outcom", "'outcome'"),
        (Property, "outcome.stats", "'status'"),
        (Property, "content", "list"),
    ],
)
def test_unknown_properties_are_refused(kind: Any, name: str, hint: str) -> None:
    with pytest.raises(ValidationError, match=hint):
        TypeAdapter(kind).validate_python(name)


def test_family_is_no_field() -> None:
    assert TypeAdapter(Property).validate_python("family") == "family"
    with pytest.raises(ValidationError):
        TypeAdapter(FieldProperty).validate_python("family")


def test_a_property_that_no_trajectory_has() -> None:
    absence, row = AbsenceCheck("pick", "per"), trajectory(extra={"topic": "x"})
    absence.check()
    absence.note("extra.topci", row, ())
    with user_error("field-missing", "pick: `per: extra.topci`", "task, environment, outcome", "'extra.topic'"):
        absence.check()
    absence.note("extra.topci", row, ("y",))
    absence.check()
