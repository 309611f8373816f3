"""The profiles in ``configs/datasets``: each reads the real records of its data set, and loses nothing of them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.operators.normalize import Normalize, group_by
from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.sources.files import find
from agentmill.pipelines.sources.planning import plan_parts
from agentmill.pipelines.sources.reading import read_part
from agentmill.schemas.config import validate
from agentmill.schemas.format import Origin
from agentmill.schemas.formats import FORMATS
from agentmill.schemas.formats.adp.format import Adp
from agentmill.schemas.profiles.profile import ReadRecord
from agentmill.schemas.records.trajectory import Action, ApiAction, CodeAction, TextObservation, Trajectory
from tests.schemas.formats.leaves import leaves

DATASETS = Path(__file__).resolve().parents[3] / "configs/datasets"
PROFILES = sorted(DATASETS.glob("*.yaml"))
SAMPLES = {
    "agentinstruct_alfworld": "agenttuning_alfworld",
    "agentinstruct_db": "agenttuning_db",
    "agentinstruct_kg": "agenttuning_kg",
    "agentinstruct_mind2web": "agenttuning_mind2web",
    "agentinstruct_os": "agenttuning_os",
    "agentinstruct_webshop": "agenttuning_webshop",
    "code_feedback": "code_feedback",
    "codeactinstruct": "codeactinstruct",
    "nebius_swe_agent": "nebius_SWE-agent-trajectories",
    "nnetnav_live": "nnetnav-live",
    "nnetnav_wa": "nnetnav-wa",
    "orca_agentinstruct": "orca_agentinstruct",
    "swe_gym": "swe-gym_openhands_sampled_trajectories",
    "swe_smith": "swe-smith",
    "synatra": "synatra",
}
STRUCTURE = frozenset({"role", "type", "from"})
"""Keys whose texts say what kind of thing stands there."""

MARKUP = {
    *("Thought", "THOUGHT", "Think", "Action", "ACTION", "Act", "Input", "Final", "Answer"),
    *("function", "parameter", "execute", "tool_call"),
}
"""Words with which a dialect marks a call."""

SHORTENED = {("nnetnav_wa", 0)}
"""Runs of which the reference leaves out steps (scrolling, and actions in a wrong format)."""

WITH_OUTCOME = {"nebius_swe_agent", "swe_gym", "swe_smith"}
WITH_SYSTEM_PROMPT = {"codeactinstruct", "nebius_swe_agent", "nnetnav_live", "nnetnav_wa", "swe_gym", "swe_smith"}


def profile(path: Path) -> Normalize:
    (step,) = read_recipe(path, ()).steps
    given = {name: value for name, value in step.items() if name not in ("operator", "as")}
    made: Normalize = validate(Normalize, given, str(path))
    return made


def records(name: str) -> Iterator[tuple[list[Any], ReadRecord]]:
    """The raw rows of every sample record, and what was read."""
    samples = os.environ.get("AGENTMILL_SAMPLES")
    if not samples:
        pytest.skip("AGENTMILL_SAMPLES does not name the folder with real records")
    stage = profile(DATASETS / f"{name}.yaml")
    reader = stage.reader()
    files = find([f"{samples}/adp/{SAMPLES[name]}/raw.jsonl"])
    for part in plan_parts(tuple(files), 10**8, group_by(stage)):
        for record in read_part(part):
            document = msgspec.json.decode(record.data)
            rows = document if isinstance(document, list) else [document]
            yield rows, reader.read(record.data, record.row, record.occurrence)


def told(value: Any) -> Iterator[str]:
    """All names, numbers and texts in a value."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from told(each)
    elif value is not None:
        yield str(value)


def held(read: ReadRecord) -> Counter[str]:
    """The words of the runs; those of the wording that the turns of a run share, for each turn."""
    texts = Counter(told(msgspec.to_builtins(read.trajectories)))
    for run in read.trajectories:
        turns = len({item.turn for item in run.content if isinstance(item, Action)})
        for kept in run.extra.values():
            texts.update(dict.fromkeys(kept.get("spelling", {}).get("wording", ()), turns - 1))
    return words(texts)


def words(texts: Counter[str]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for text, n in texts.items():
        for word in re.findall(r"\w+", text):
            counted[word] += n
    return counted


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_profile_is_valid_and_names_its_licence(path: Path) -> None:
    stage = profile(path)
    assert stage.licence
    stage.reader()


def test_every_data_set_with_samples_has_a_profile() -> None:
    assert {path.stem for path in PROFILES} >= SAMPLES.keys()


@pytest.mark.parametrize("name", SAMPLES)
def test_no_word_of_a_record_is_lost(name: str) -> None:
    for rows, read in records(name):
        assert not {name for name in read.measures if name.startswith("dropped.")} - {"dropped.tools.null"}
        kept = held(read)
        lost = words(leaves(rows, STRUCTURE)) - kept
        if len(rows) > 1:
            # What all rows of a run repeat is said once.
            lost = Counter({word: n for word, n in lost.items() if word not in kept})
        assert lost.keys() <= MARKUP, lost


@pytest.mark.parametrize("name", SAMPLES)
def test_nothing_is_invented(name: str) -> None:
    for rows, read in records(name):
        said = words(leaves(rows))
        for run in read.trajectories:
            texts = [item.content for item in run.content if not isinstance(item, ApiAction)]
            texts += [item.description for item in run.content if isinstance(item, Action) and item.description]
            assert not words(Counter(texts)) - said


@pytest.mark.parametrize("name", SAMPLES)
def test_labels_system_prompts_ids_and_roles_are_kept(name: str) -> None:
    ids = []
    for _, read in records(name):
        run = read.trajectories[0]
        ids.append(run.trajectory_id)
        status = run.outcome.status if run.outcome else "unknown"
        assert (status != "unknown") == (name in WITH_OUTCOME)
        assert bool(run.system_prompt) == (name in WITH_SYSTEM_PROMPT)
        calls = [item for item in run.content if isinstance(item, ApiAction | CodeAction)]
        answered = {
            item.tool_call_id: item for item in run.content if item.tool_call_id and not isinstance(item, Action)
        }
        assert all(
            answered[each.tool_call_id].source == "environment" for each in calls if each.tool_call_id in answered
        )
    assert len(set(ids)) == len(ids)


def test_the_task_after_a_demonstration_comes_from_the_user() -> None:
    for _, read in records("agentinstruct_os"):
        tasks = [each for each in read.trajectories[0].content if "start a new problem" in getattr(each, "content", "")]
        assert [(each.source, each.tool_call_id) for each in tasks] == [("user", None)]  # type: ignore[union-attr]


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", sorted(SAMPLES.keys() - {"nebius_swe_agent", "nnetnav_live", "nnetnav_wa"}))
def test_a_record_is_written_as_it_was(name: str) -> None:
    """But for records that a profile puts together of rows, or of other names for the fields of messages."""
    stage = profile(DATASETS / f"{name}.yaml")
    format_ = validate(FORMATS.load(stage.format), stage.options, stage.format)
    for (row,), read in records(name):
        row = {stage.rename.get(field, field): value for field, value in row.items()}
        assert without_nulls(format_.write(read.trajectories[0]).document) == without_nulls(row)


TYPED = {
    "agentinstruct_alfworld": ["go", "take"],
    "agentinstruct_db": [],
    "agentinstruct_kg": ["get_relations", "get_neighbors"],
    "agentinstruct_mind2web": ["CLICK"],
    "agentinstruct_os": ["bash", "bash"],
    "agentinstruct_webshop": ["search", "click"],
    "code_feedback": ["python", "python"],
    "codeactinstruct": ["python", "python"],
    "nebius_swe_agent": ["bash", "bash"],
    "nnetnav_live": ["type", "stop"],
    "nnetnav_wa": ["type", "tab_focus"],
    "orca_agentinstruct": [],
    "swe_gym": ["str_replace_editor", "str_replace_editor"],
    "swe_smith": ["bash", "str_replace_editor"],
    "synatra": ["click"],
}
"""The first two calls or languages of code in the first record. The sample of ``agentinstruct_db`` has answers only."""


@pytest.mark.parametrize("name", SAMPLES)
def test_actions_are_typed(name: str) -> None:
    runs = [read.trajectories[0] for _, read in records(name)]
    calls = [[item for item in run.content if isinstance(item, ApiAction | CodeAction)] for run in runs]
    names = [[each.function if isinstance(each, ApiAction) else each.language for each in found] for found in calls]
    assert names[0][:2] == TYPED[name]
    assert all(all(found) for found in names)


def test_arguments_in_text_are_told_apart() -> None:
    runs = [read.trajectories[0] for _, read in records("agentinstruct_kg")]
    calls = [item for run in runs for item in run.content if isinstance(item, ApiAction)]
    several = [list(each.kwargs) for each in calls if each.function in ("get_neighbors", "intersection")]
    assert (len(several), sum(map(len, several))) == (21, 42)
    (run,) = [read.trajectories[0] for rows, read in records("nnetnav_wa") if "direction=down" in str(rows)]
    assert {"direction": "down"} in [item.kwargs for item in run.content if isinstance(item, ApiAction)]


@pytest.mark.parametrize(
    ("name", "opening"), [("code_feedback", "Execution result:"), ("codeactinstruct", "Observation:")]
)
def test_results_that_open_as_such_are_the_environments_and_others_the_users(name: str, opening: str) -> None:
    for _, read in records(name):
        seen = [item for item in read.trajectories[0].content if isinstance(item, TextObservation)]
        assert all((each.source == "environment") == each.content.startswith(opening) for each in seen)
        assert "guessed_source" not in read.remarks


def rhythm(run: Trajectory) -> str:
    """What was done (``a``) and seen (``o``), each result after its call.

    What is seen at once counts once, and so do actions of one turn that nothing answers.
    """
    results = {item.tool_call_id: item for item in run.content if item.tool_call_id and not isinstance(item, Action)}
    marks = ""
    turn = None
    for item in run.content:
        if isinstance(item, Action):
            marks = marks.removesuffix("a") if item.turn == turn else marks
            marks += "ao" if item.tool_call_id in results else "a"
            turn = item.turn
        elif item.tool_call_id is None:
            # The reference has some answers of the agent among what it saw.
            marks += "a" if getattr(item, "source", None) == "agent" else "o"
    return re.sub("o+", "o", marks)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_sequence_is_that_of_the_reference_but_for_the_endings_it_adds(name: str) -> None:
    ours = [rhythm(read.trajectories[0]) for _, read in records(name)]
    lines = Path(f"{os.environ['AGENTMILL_SAMPLES']}/adp/{SAMPLES[name]}/std.jsonl").read_bytes().splitlines()
    theirs = [rhythm(Adp().read(line, Origin("reference")).trajectory) for line in lines if line != b"null"]
    for number, (own, other) in enumerate(zip(ours, theirs, strict=False)):
        if (name, number) in SHORTENED:
            assert len(other) < len(own)
        else:
            assert own in (other, other.removesuffix("oa"), other.removesuffix("a"))
