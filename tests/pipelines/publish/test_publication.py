"""What the publisher adds to a data set is checked as its rows are."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentmill.pipelines.publish.publication import Order, dataset
from agentmill.schemas.records.task import Task
from tests.builders import task
from tests.errors import user_error
from tests.pipelines.engine.stages import write_table

TOKEN = "hf_" + "aBcD" * 9


@pytest.mark.parametrize("option", ["title", "description", "author"])
def test_a_secret_in_what_the_publisher_adds_to_the_card_refuses_the_publication(tmp_path: Path, option: str) -> None:
    write_table(tmp_path / "tables/tasks", [[task("t0")]], Task)
    order = Order(path=tmp_path / "tables", repo="org/data", licence="mit", **{option: f"made with {TOKEN}"})
    publication = dataset(order, tmp_path / ".scratch")
    with user_error("check-failed", option) as error:
        publication.check()
    assert TOKEN not in str(error.value)
