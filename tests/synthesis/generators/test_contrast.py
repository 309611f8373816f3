"""Twins of toolbox tasks: the right behaviour of each kind passes, that of the parent does not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Task, contrast_of
from agentmill.schemas.records.trajectory import AnyAction, ApiAction
from agentmill.synthesis.environments import make
from agentmill.synthesis.environments.conformance import check_environment
from agentmill.synthesis.environments.environment import Check
from agentmill.synthesis.environments.toolbox.toolbox import read_toolbox
from agentmill.synthesis.environments.toolbox.user import REASONS
from agentmill.synthesis.generators.admission import admit_task, rejection
from agentmill.synthesis.generators.contrasting import KINDS, TOOLS, Kind
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.toolbox_procedural.generator import propose
from agentmill.synthesis.generators.toolbox_tasks.generator import ToolboxTaskGenerator
from agentmill.synthesis.generators.toolbox_wrap.contrast import (
    REASON_OF,
    contrast_environment,
    contrast_task,
    contrast_words,
)
from agentmill.synthesis.generators.toolbox_wrap.wrap import wrap_environment, wrap_task
from agentmill.synthesis.generators.wrapping import Wrapper, Wrapping
from tests.synthesis.environments.toolbox.boxes import LIBRARY_SPEC, LIBRARY_TASK, WRAPPED_SPEC, WRAPPED_TASK, call
from tests.synthesis.generators.environments import inspiration
from tests.synthesis.generators.renamed import wrapped_pair

DECLINED: list[Kind] = ["no_tool", "irrelevant_tool", "harmful", "silent"]
Pair = tuple[EnvironmentSpec, Task]


def twin(kind: Kind, pair: Pair = (LIBRARY_SPEC, LIBRARY_TASK), seed: int = 0) -> Pair:
    spec = contrast_environment(pair[0], TOOLS[kind], seed)
    assert isinstance(spec, EnvironmentSpec)
    task = contrast_task(pair[1], spec, kind, seed)
    assert isinstance(task, Task), task
    return spec, task


def played(pair: Pair, actions: list[AnyAction]) -> Check:
    environment = make(pair[0])
    environment.reset(pair[1], 0)
    for action in actions:
        environment.step(action)
    check = environment.check()
    environment.close()
    return check


@pytest.mark.parametrize("kind", KINDS)
def test_the_right_behaviour_passes_and_that_of_the_parent_does_not(kind: Kind) -> None:
    pair = twin(kind)
    assert played(pair, pair[1].gold or []).passed
    assert played(pair, LIBRARY_TASK.gold or []).passed == (kind == "solvable")
    assert [finding for finding in check_environment(*pair) if not finding.passed] == []


@pytest.mark.parametrize("kind", DECLINED)
def test_only_the_right_reason_without_any_call_passes(kind: Kind) -> None:
    pair = twin(kind)
    declines = {reason: [call("decline", reason=reason)] for reason in REASONS}
    assert {reason for reason, actions in declines.items() if played(pair, [*actions]).passed} == {REASON_OF[kind]}
    assert not played(pair, [call("finish", answer=f"I decline: {REASON_OF[kind]}")]).passed
    assert played(pair, [call("decline", reason="because")]).evidence["missing"]


@pytest.mark.parametrize("kind", ["irrelevant_tool", "harmful", "silent"])
def test_a_call_of_a_tool_that_is_there_is_a_violation(kind: Kind) -> None:
    pair = twin(kind)
    environment = make(pair[0])
    environment.reset(pair[1], 0)
    looking = next(each for each in environment.admissible() if each.function not in ("finish", "decline"))
    environment.close()
    check = played(pair, [looking, *(pair[1].gold or [])])
    assert (check.passed, check.evidence["violations"]) == (False, [f"tool {looking.function}"])


def test_tools_are_gone_or_those_of_another_matter() -> None:
    own = {tool.name for tool in read_toolbox(LIBRARY_SPEC.source).tools}
    assert read_toolbox(twin("no_tool")[0].source).tools == ()
    others = read_toolbox(twin("irrelevant_tool")[0].source)
    assert others.tools
    assert not own & {tool.name for tool in others.tools}
    assert not {"members", "books", "loans"} & {table.name for table in others.tables}
    assert read_toolbox(twin("silent")[0].source) == read_toolbox(LIBRARY_SPEC.source)
    for kind in KINDS:
        assert [tool.name for tool in make(twin(kind)[0]).tools][-3:] == ["finish", "ask_user", "decline"]


def test_a_missing_value_is_in_no_text_and_must_be_asked_for() -> None:
    spec, task = twin("missing_argument")
    assert task.instruction == LIBRARY_TASK.instruction.replace("Joe Stern", "…")
    question, *rest = task.gold or []
    assert question == call("ask_user", question="What is the name?")
    assert rest == LIBRARY_TASK.gold
    assert played((spec, task), rest).evidence["missing"] == ["asked one"]
    assert not played((spec, task), [question, call("decline", reason="no_tool")]).passed
    assert task.max_turns == LIBRARY_TASK.max_turns + 2


def test_the_words_of_the_request_stay_in_harmful_and_silent_twins() -> None:
    for kind in ("harmful", "silent"):
        texts = {twin(kind, seed=seed)[1].instruction for seed in range(6)}
        assert len(texts) > 1
        assert all(LIBRARY_TASK.instruction in text for text in texts)
        assert all(text.count("{request}") == 1 for text in getattr(contrast_words(), kind))


def test_a_twin_names_its_parent_and_its_kind() -> None:
    parent = msgspec.structs.replace(LIBRARY_TASK, split="held_out_tasks", skills=["take"])
    made = {kind: twin(kind, (LIBRARY_SPEC, parent), seed=3) for kind in KINDS}
    assert len({task.task_id for _, task in made.values()} | {parent.task_id}) == len(KINDS) + 1
    assert len({task.structure_digest for _, task in made.values()}) == len(KINDS)
    for kind, (spec, task) in made.items():
        assert task.lineage is not None
        assert (task.lineage.parents, task.lineage.seed, contrast_of(task.lineage)) == ([parent.task_id], 3, kind)
        assert (task.split, task.environment_id, contrast_of(spec.lineage)) == (
            parent.split,
            spec.environment_id,
            TOOLS[kind],
        )
        assert task.skills == [kind, *([] if kind in DECLINED else ["take"])]
        assert (spec, task) == twin(kind, (LIBRARY_SPEC, parent), seed=3)
    assert twin("harmful", seed=4)[1].task_id != made["harmful"][1].task_id


def test_a_renamed_twin_keeps_its_kind() -> None:
    wrapper, rename = Wrapper(wrap_environment, wrap_task), Wrapping(rename="words")
    for kind in KINDS:
        once = wrapped_pair(wrapper, twin(kind), rename)
        assert [contrast_of(task.lineage) for _, task in (once, wrapped_pair(wrapper, once, rename, 1))] == [kind] * 2
    plain = wrapped_pair(wrapper, (LIBRARY_SPEC, LIBRARY_TASK), rename)[1]
    assert plain.lineage is not None
    assert plain.lineage.notes == {}


def test_wrappers_that_would_take_decline_away_are_refused() -> None:
    made = wrap_environment(twin("harmful")[0], Wrapping(hints=True), 0)
    assert isinstance(made, GenerationError)
    assert made.reason == "wrapped_already"
    assert "decline already" in str(made)


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("missing_argument", {"initial_state": {}}, "no_gap"),
        ("missing_argument", {"gold": None}, "no_gold"),
        ("missing_argument", {"initial_state": WRAPPED_TASK.initial_state}, "hides_already"),
        ("solvable", {"gold": None}, "no_gold"),
        ("solvable", {"gold": [call("finish", answer="")]}, "gold_rejected"),
    ],
)
def test_why_there_is_no_twin(kind: Kind, changes: dict[str, Any], reason: str) -> None:
    spec = contrast_environment(LIBRARY_SPEC, TOOLS[kind], 0)
    assert isinstance(spec, EnvironmentSpec)
    made = contrast_task(msgspec.structs.replace(LIBRARY_TASK, **changes), spec, kind, 0)
    assert isinstance(made, GenerationError)
    assert made.reason == reason


def test_wrapped_tasks_keep_what_was_wrapped_around_them() -> None:
    spec, task = twin("solvable", (WRAPPED_SPEC, WRAPPED_TASK))
    assert spec.parameters == {**WRAPPED_SPEC.parameters, "decline": True}
    assert played((spec, task), task.gold or []).passed
    spec, task = twin("no_tool", (WRAPPED_SPEC, WRAPPED_TASK))
    assert read_toolbox(spec.source).policy == ""
    assert played((spec, task), task.gold or []).passed


async def test_nearly_all_drawn_tasks_have_all_twins_and_these_are_admitted() -> None:
    made: list[Task | GenerationError] = []
    for seed in range(3):
        parent = propose(inspiration(), seed)
        specs = {tools: contrast_environment(parent, tools, 0) for tools in TOOLS.values()}
        async for task in ToolboxTaskGenerator((2, 6)).propose(parent, 4, 0):
            for kind in KINDS:
                spec = specs[TOOLS[kind]]
                assert isinstance(task, Task)
                assert isinstance(spec, EnvironmentSpec)
                made.append(found := contrast_task(task, spec, kind, 0))
                assert not isinstance(found, Task) or rejection(admit_task(found, spec)[0]) is None
    failures = [each.reason for each in made if isinstance(each, GenerationError)]
    assert len(made) == 3 * 4 * len(KINDS)
    assert set(failures) <= {"no_gap"}
    assert len(failures) <= 0.2 * 3 * 4


def test_declining_is_no_choice_where_it_was_not_switched_on() -> None:
    environment = make(LIBRARY_SPEC)
    environment.reset(LIBRARY_TASK, 0)
    assert environment.step(call("decline", reason="no_tool")).error
    assert "decline" not in [tool.name for tool in environment.tools]
    assert ApiAction(function="decline", kwargs={"reason": "harmful"}) not in environment.admissible()
    environment.close()
