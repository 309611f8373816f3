"""ADP both ways for anything: documents come back as they are, records but for what is reported."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentmill.schemas.format import FormatError, Origin, Read
from agentmill.schemas.formats.adp.format import Adp
from agentmill.schemas.formats.adp.items import LANGUAGES
from agentmill.schemas.formats.differences import differences
from agentmill.schemas.records.trajectory import Trajectory
from tests.schemas.formats.adp_rules import broken
from tests.schemas.formats.leaves import held, leaves
from tests.schemas.records import floats, json_objects, records, texts

maybe = st.none() | texts
sources = st.sampled_from(["user", "agent", "environment"])
box = st.fixed_dictionaries(dict.fromkeys(("x", "y", "width", "height"), floats))
annotations = st.lists(st.fixed_dictionaries({"text": texts, "element_type": texts, "bounding_box": box}), max_size=2)
CLASSES: dict[str, dict[str, Any]] = {
    "message_action": {"content": texts, "description": maybe},
    "api_action": {"function": texts, "kwargs": json_objects, "description": maybe},
    "code_action": {"language": st.sampled_from(sorted(LANGUAGES)), "content": texts, "description": maybe},
    "text_observation": {"content": texts, "name": maybe, "source": sources},
    "image_observation": {"content": texts, "source": sources, "annotations": st.none() | annotations},
}
images = st.fixed_dictionaries({"class_": st.just("image_observation"), **CLASSES["image_observation"]})
CLASSES["web_observation"] = {
    "html": maybe,
    "axtree": maybe,
    "url": maybe,
    "image_observation": st.none() | images,
    "viewport_size": st.none() | st.lists(st.integers(0, 9999), min_size=2, max_size=2),
}
items = st.one_of(
    st.fixed_dictionaries({"class_": st.just(name), **fields}) for name, fields in sorted(CLASSES.items())
)
details = st.dictionaries(texts.filter(lambda key: key != "agentmill"), texts, max_size=2)
documents = st.fixed_dictionaries({"id": texts, "content": st.lists(items, max_size=6), "details": details})


def read(document: Any) -> Read:
    return Adp().read(msgspec.json.encode(document), Origin("demo"))


def lost_fields(item: Any, other: Any, path: str) -> set[str]:
    found = set()
    for name in item.__struct_fields__:
        one, two = getattr(item, name), getattr(other, name)
        if name == "image_observation" and one is not None and two is not None:
            found |= lost_fields(one, two, f"{path}.{name}")
        elif one != two:
            found.add(f"{path}.{name}")
    return found


@given(document=documents)
def test_documents_of_the_paper_s_version_come_back(document: dict[str, Any]) -> None:
    found = read(document)
    written = Adp(version="1").write(found.trajectory)
    assert written.document == document
    assert not written.losses
    assert leaves(document) <= held([found.trajectory])


@given(document=documents, rewards=st.lists(st.none() | floats, min_size=6, max_size=6), thought=maybe)
def test_documents_of_1_5_come_back(document: dict[str, Any], rewards: list[Any], thought: str | None) -> None:
    try:
        document = Adp().write(read(document).trajectory).document
    except FormatError as error:
        assume(error.reason != "unanswered_call")
        raise
    for item, reward in zip(document["content"], rewards, strict=False):
        item |= {"reward": reward} if reward is not None else {}
        item |= {"reasoning_content": thought} if thought is not None and item["class_"].endswith("action") else {}
    assert broken(document, "1.5") == []
    found = read(document)
    assert not found.remarks.keys() - {"missing_image_path", "unsafe_image_path"}
    written = Adp().write(found.trajectory)
    assert written.document == document
    assert not written.losses


@pytest.mark.parametrize("version", ["1", "1.5"])
@given(run=records(Trajectory))
def test_records_lose_only_what_is_reported(version: str, run: Trajectory) -> None:
    run = msgspec.structs.replace(run, extra={key: value for key, value in run.extra.items() if key != "adp"})
    try:
        document, losses = Adp.model_validate({"version": version}).write(run)
    except FormatError as error:
        assume(error.reason != "unanswered_call")
        raise
    back = read(document).trajectory
    for item, other in zip(run.content, back.content, strict=True):
        assert type(item) is type(other)
        assert lost_fields(item, other, "content") <= losses.keys()
    for name in set(Trajectory.__struct_fields__) - {"trajectory_id", "content", "source", "extra"}:
        assert getattr(back, name) == getattr(run, name)
    assert not {name for name in differences(run, back, "adp") if not name.startswith("content.")}
