"""The outline of a recipe: what each step reads, also of steps with what belongs to any step."""

from __future__ import annotations

from agentmill.pipelines.recipes.outline import stage_of


def test_what_every_step_may_have_is_no_parameter_of_its_operator() -> None:
    given = {"operator": "quality", "of": "explored", "as": "counts", "min_used": 0.5}
    found = stage_of("quality", given)
    assert found is not None
    assert found.tables() == {"of": ["explored"]}
    assert stage_of("quality", {**given, "off": "x"}) is None
