"""The ``sft`` view: which rows a trajectory makes, which messages carry loss, and how much."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given

from agentmill.schemas.config import validate
from agentmill.schemas.ids import row_id
from agentmill.schemas.records.rows import SftRow
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Label, Value
from agentmill.schemas.views.annotations import NOTHING, Annotations
from agentmill.schemas.views.sft import Sft
from agentmill.schemas.views.view import Unused, parameters_of
from agentmill.schemas.views.view import rows_of as part_rows
from tests.builders import agent_message, called, instruction, outcome, seen, tool_trajectory, trajectory, verdict
from tests.errors import user_error
from tests.schemas.records import records

DEFAULTS = {
    "rows": "trajectory",
    "loss": "all",
    "steps": [],
    "weight": None,
    "prefix": None,
    "role": None,
    "tool_format": "native",
    "system_prompts": [],
}


def sft(**parameters: Any) -> Sft:
    return validate(Sft, parameters, "test")


def trained(row: SftRow) -> list[str | None]:
    return [message.content for message in row.messages if message.train]


def rows_of(view: Sft, run: Trajectory) -> list[SftRow]:
    try:
        return view.make_rows(run, NOTHING)
    except Unused:
        return []


def reason(view: Sft, run: Trajectory, evidence: Annotations = NOTHING) -> str:
    with pytest.raises(Unused) as caught:
        view.make_rows(run, evidence)
    return caught.value.reason


def test_a_trajectory_makes_one_row_with_all_its_turns() -> None:
    (row,) = Sft().make_rows(trajectory(), NOTHING)
    assert [message.role for message in row.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert trained(row) == ["fly to box", "put ball into box"]
    assert row.row_id == row_id("t1", "sft", DEFAULTS, 0)
    assert (row.trajectory_id, row.task_id, row.environment_id, row.split) == ("t1", "task1", "env1", "train")
    assert (row.view, row.view_parameters, row.tools) == ("sft", DEFAULTS, None)


def test_steps_make_one_row_each_that_ends_with_it() -> None:
    rows = sft(rows="step").make_rows(trajectory(), NOTHING)
    assert [trained(row) for row in rows] == [["fly to box"], ["put ball into box"]]
    assert [len(row.messages) for row in rows] == [3, 5]
    assert all(row.messages[-1].train for row in rows)
    assert [row.row_id for row in rows] == [row_id("t1", "sft", {**DEFAULTS, "rows": "step"}, n) for n in range(2)]


@given(run=records(Trajectory))
def test_steps_and_trajectory_train_the_same_messages(run: Trajectory) -> None:
    whole = [message for row in rows_of(Sft(), run) for message in row.messages if message.train]
    steps = [message for row in rows_of(sft(rows="step"), run) for message in row.messages if message.train]
    assert steps == whole


def test_turns_that_were_answered_by_an_error_lose_their_loss() -> None:
    (row,) = sft(loss="not_error").make_rows(trajectory(), NOTHING)
    assert trained(row) == ["put ball into box"]
    assert "fly to box" in [message.content for message in row.messages]


def test_one_failed_call_of_parallel_ones_takes_the_turn() -> None:
    content = [*tool_trajectory().content]
    content[4] = msgspec.structs.replace(content[4], error=True)
    (row,) = sft(loss="not_error").make_rows(tool_trajectory(content=content), NOTHING)
    assert trained(row) == ["On the floor."]


def test_an_error_of_one_turn_does_not_touch_the_next() -> None:
    content = [
        instruction(),
        agent_message("a", 1),
        agent_message("b", 2),
        seen("no", 2, error=True),
        agent_message("c", 3, error=True),
        agent_message("d", 4),
    ]
    (row,) = sft(loss="not_error").make_rows(trajectory(content=content), NOTHING)
    assert trained(row) == ["a", "d"]


def test_copied_items_never_carry_loss() -> None:
    content = [
        instruction(),
        agent_message("old", 1, context_operation="copied"),
        seen("x", 1),
        agent_message("new", 2),
    ]
    for loss in ("all", "not_error", "source"):
        assert all("old" not in trained(row) for row in rows_of(sft(loss=loss), trajectory(content=content)))
    assert trained(Sft().make_rows(trajectory(content=content), NOTHING)[0]) == ["new"]


def branch() -> Trajectory:
    """An expert's three steps, the second of them a mistake and the third refused, and two steps of the agent's own."""
    expert = [
        instruction(),
        agent_message("good", 1),
        seen("ok", 1),
        agent_message("bad", 2, train=False),
        seen("ok", 2),
        agent_message("refused", 3),
        seen("no", 3, error=True),
    ]
    copied = [msgspec.structs.replace(item, context_operation="copied") for item in expert]
    own = [agent_message("turn back", 4), seen("ok", 4), agent_message("win", 5), seen("won", 5)]
    return trajectory("branch", content=[*copied, *own], parent_id="expert", branch_turn=4)


def judged(**by_item: str) -> Annotations:
    labels = [
        Label(trajectory_id="branch", name="step", value=value, labeller="judge", item=int(item[1:]))
        for item, value in by_item.items()
    ]
    return Annotations(labels={(label.item, label.name): label for label in labels})


BENEFICIAL = [{"label": "step", "equals": "beneficial"}]


@pytest.mark.parametrize(
    ("parameters", "texts"),
    [
        ({}, ["turn back", "win"]),
        ({"copied": "none"}, ["turn back", "win"]),
        ({"copied": "all"}, ["good", "bad", "refused", "turn back", "win"]),
        ({"copied": "all", "loss": "not_error"}, ["good", "bad", "turn back", "win"]),
        ({"copied": BENEFICIAL}, ["good", "turn back", "win"]),
        ({"copied": BENEFICIAL, "steps": BENEFICIAL}, ["good", "win"]),
        ({"copied": "all", "steps": BENEFICIAL}, ["good", "bad", "refused", "win"]),
        ({"copied": [{"field": "outcome.status", "equals": "failure"}]}, ["turn back", "win"]),
    ],
)
def test_copied_steps_carry_loss_where_it_is_asked_for(parameters: dict[str, Any], texts: list[str]) -> None:
    """EEF: what an expert did well is trained on in the run of the agent that went on from there."""
    evidence = judged(i1="beneficial", i3="harmful", i5="harmful", i7="harmful", i9="beneficial")
    (row,) = sft(**parameters).make_rows(branch(), evidence)
    assert trained(row) == texts
    steps = sft(**parameters, rows="step").make_rows(branch(), evidence)
    assert [trained(each) for each in steps] == [[text] for text in texts]


def test_copied_steps_are_weighed_as_all_others() -> None:
    values = {
        (item, "mc"): Value(trajectory_id="branch", name="mc", value=value, estimator="mc", n=1, item=item)
        for item, value in ((1, 0.5), (7, 1.0), (9, 1.0))
    }
    view = sft(copied=[{"value": "mc", "at_least": 0.1}], weight="value:mc")
    (row,) = view.make_rows(branch(), Annotations(values=values))
    assert [(each.content, each.weight) for each in row.messages if each.train] == [
        ("good", 0.5),
        ("turn back", 1.0),
        ("win", 1.0),
    ]


def test_a_run_that_is_told_in_parts_trains_each_copied_step_once() -> None:
    run = branch()
    shortened = msgspec.structs.replace(run.content[0], context_operation="condense", turn=1, source="environment")
    run = msgspec.structs.replace(run, content=[*run.content[:9], shortened, *run.content[9:]])
    rows = part_rows(sft(copied="all"), run, NOTHING)
    assert [trained(row) for row in rows] == [["good", "bad", "refused", "turn back"], ["win"]]
    shown = [message.content for message in rows[1].messages if message.role == "assistant"]
    assert shown == ["bad", "refused", "turn back", "win"]


@pytest.mark.parametrize(("item", "other"), [(1, 5), (5, 1)])
@pytest.mark.parametrize(("weights", "expected"), [([], "unscored"), ([-1.0], "negative_weight")])
def test_an_unusable_weight_in_one_part_drops_the_whole_run(
    item: int, other: int, weights: list[float], expected: str
) -> None:
    summary = msgspec.structs.replace(seen("in short", 1), context_operation="fold")
    content = [instruction(), agent_message("a", 1), seen("ok", 1), summary, seen("go on", 1), agent_message("b", 2)]
    annotations = valued((other, 1.0), *((item, weight) for weight in weights))
    with pytest.raises(Unused, match=f"item {item}: ") as caught:
        part_rows(sft(weight="value:mc"), trajectory(content=content), annotations)
    assert caught.value.reason == expected


@pytest.mark.parametrize(
    ("copied", "agent_message"),
    [
        ("al", ("invalid-value", "copied.choice", "none", "all", "'al'")),
        ([], ("invalid-value", "copied.conditions")),
        ([{"lable": "step"}], ("unknown-key", "lable", "copied.conditions.0", "label")),
    ],
)
def test_mistakes_in_what_is_asked_of_copied_steps(copied: Any, agent_message: tuple[str, ...]) -> None:
    with user_error(*agent_message):
        sft(copied=copied)


def test_loss_on_copied_steps_makes_other_rows() -> None:
    ids = {sft(copied=each).make_rows(branch(), NOTHING)[0].row_id for each in ("none", "all")}
    assert len(ids) == 2
    assert "copied" not in parameters_of(sft(copied="none"))
    assert parameters_of(sft(copied=BENEFICIAL))["copied"] == BENEFICIAL


def test_the_source_may_decide() -> None:
    content = [
        instruction(),
        agent_message("a", 1, train=False),
        agent_message("b", 2, train=True),
        agent_message("c", 3),
    ]
    (row,) = sft(loss="source").make_rows(trajectory(content=content), NOTHING)
    assert trained(row) == ["b"]
    assert [message.content for message in row.messages][-1] == "b"


def test_where_the_source_marks_only_what_is_not_to_be_learnt_the_rest_is() -> None:
    content = [instruction(), agent_message("a", 1, train=False), agent_message("b", 2), agent_message("c", 3)]
    (row,) = sft(loss="source").make_rows(trajectory(content=content), NOTHING)
    assert trained(row) == ["b", "c"]


def test_what_carries_no_loss_makes_no_row() -> None:
    assert reason(Sft(), trajectory(content=[instruction(), seen("x")])) == "no_loss"
    assert reason(sft(loss="source"), trajectory()) == "no_loss"


def test_tools_travel_as_json_text() -> None:
    (row,) = Sft().make_rows(tool_trajectory(), NOTHING)
    assert row.tools is not None
    assert msgspec.json.decode(row.tools) == [
        {
            "type": "function",
            "function": {
                "name": "look",
                "description": "look something",
                "parameters": {"type": "object", "properties": {"where": {"type": "string"}}},
            },
        }
    ]


def test_unknown_parameters_are_refused_with_a_near_match() -> None:
    with user_error("unknown-key", "x.yaml", "lose", "loss"):
        validate(Sft, {"lose": "all"}, "x.yaml")
    with user_error("invalid-value", "trajectory", "'step'", "steps"):
        validate(Sft, {"rows": "steps"}, "x.yaml")


def test_loss_never_falls_on_observations_that_answer_calls() -> None:
    content = [instruction(), called("f", 1, "a"), seen("result", 1, tool_call_id="a"), agent_message("done", 2)]
    (row,) = Sft().make_rows(trajectory(content=content), NOTHING)
    assert [(message.role, message.train) for message in row.messages[2:]] == [
        ("assistant", True),
        ("tool", False),
        ("assistant", True),
    ]


def test_only_steps_that_fulfil_all_conditions_carry_loss() -> None:
    critical = {
        (item, "step_judge"): Label(trajectory_id="t1", name="step_judge", value=value, labeller="judge", item=item)
        for item, value in ((2, "idle"), (4, "critical"))
    }
    view = sft(steps=[{"label": "step_judge", "equals": "critical"}])
    (row,) = view.make_rows(trajectory(), Annotations(labels=critical))
    assert trained(row) == ["put ball into box"]
    assert row.view_parameters["steps"] == [{"label": "step_judge", "equals": "critical"}]
    assert reason(view, trajectory()) == "no_loss"
    both = sft(steps=[{"label": "step_judge", "equals": "critical"}, {"field": "split", "equals": "test"}])
    assert reason(both, trajectory(), Annotations(labels=critical)) == "no_loss"


def valued(*values: tuple[int | None, float]) -> Annotations:
    return Annotations(
        values={
            (item, "mc"): Value(trajectory_id="t1", name="mc", value=value, estimator="mc", n=5, item=item)
            for item, value in values
        }
    )


def test_loss_is_weighed_by_the_score_of_the_step_or_else_of_the_run() -> None:
    view = sft(weight="value:mc")
    (row,) = view.make_rows(trajectory(), valued((None, 0.5), (4, 2.0)))
    assert [(message.content, message.weight) for message in row.messages if message.train] == [
        ("fly to box", 0.5),
        ("put ball into box", 2.0),
    ]
    assert {message.weight for message in row.messages if not message.train} == {1.0}
    rows = sft(weight="value:mc", rows="step").make_rows(trajectory(), valued((None, 0.5), (4, 2.0)))
    assert [[message.weight for message in row.messages] for row in rows] == [[1, 1, 0.5], [1, 1, 1, 1, 2]]


def test_a_weight_of_zero_is_no_loss() -> None:
    (row,) = sft(weight="value:mc").make_rows(trajectory(), valued((2, 0.0), (4, 1.0)))
    assert trained(row) == ["put ball into box"]
    assert reason(sft(weight="outcome"), trajectory(outcome=outcome("failure"))) == "no_loss"


def test_an_unknown_or_negative_weight_makes_no_row() -> None:
    assert reason(sft(weight="value:mc"), trajectory()) == "unscored"
    assert reason(sft(weight="value:mc"), trajectory(), valued((None, 1.0), (2, -0.5))) == "negative_weight"
    assert trained(
        sft(weight="value:mc", loss="not_error").make_rows(trajectory(), valued((4, 1.0), (2, -1.0)))[0]
    ) == ["put ball into box"]


NAT = {"success": "Answer well.", "failure": "Answer badly."}


def test_the_system_prompt_may_tell_how_it_ends() -> None:
    for status, text in (("success", "Answer well."), ("failure", "Answer badly.")):
        (row,) = sft(prefix=NAT).make_rows(trajectory(outcome=outcome(status)), NOTHING)
        assert row.messages[0].content == f"Act by commands.\n\n{text}"
        assert row.view_parameters["prefix"] == NAT
        (bare,) = sft(prefix=NAT).make_rows(trajectory(outcome=outcome(status), system_prompt=None), NOTHING)
        assert (bare.messages[0].role, bare.messages[0].content) == ("system", text)


def test_the_verdict_tells_before_the_outcome_does() -> None:
    failed = Annotations(verdicts={(None, "judge"): verdict("t1", passed=False, name="judge")})
    (row,) = sft(prefix={**NAT, "verdict": "judge"}).make_rows(trajectory(), failed)
    assert row.messages[0].content == "Act by commands.\n\nAnswer badly."
    assert reason(sft(prefix=NAT), trajectory(outcome=outcome("unknown"))) == "unscored"


def test_system_prompts_are_spread_over_trajectories_by_their_ids() -> None:
    view = sft(system_prompts=["{system_prompt} Be brief.", "Think first."])
    told = [view.make_rows(trajectory(f"t{n}"), NOTHING)[0].messages[0].content for n in range(40)]
    assert set(told) == {"Act by commands. Be brief.", "Think first."}
    assert told == [view.make_rows(trajectory(f"t{n}"), NOTHING)[0].messages[0].content for n in range(40)]


def test_one_assistant_is_one_agent_or_several() -> None:
    with user_error("rule-broken", "role", "linearize"):
        validate(Sft, {"role": "a", "linearize": ["a", "b"]}, "x.yaml")


def test_a_parameter_that_is_new_changes_no_id_of_a_row() -> None:
    assert parameters_of(Sft()) == DEFAULTS
    assert parameters_of(sft(linearize=["a"])) == {**DEFAULTS, "linearize": ["a"]}


THOUGHTS = Annotations(
    labels={
        (2, "thought"): Label(trajectory_id="t1", name="thought", value="I fly.", labeller="w", item=2),
        (99, "thought"): Label(trajectory_id="t1", name="thought", value="beyond", labeller="w", item=99),
        (4, "other"): Label(trajectory_id="t1", name="other", value="no thought", labeller="w", item=4),
    }
)


def test_thoughts_are_put_in_before_their_actions_or_into_the_reasoning() -> None:
    (row,) = sft(thoughts="thought").make_rows(trajectory(), THOUGHTS)
    assert trained(row) == ["I fly.\nfly to box", "put ball into box"]
    (row,) = sft(thoughts="thought", thoughts_as="reasoning").make_rows(trajectory(), THOUGHTS)
    reasoning = [message.reasoning_content for message in row.messages if message.train]
    assert (reasoning, trained(row)) == (["I fly.", None], ["fly to box", "put ball into box"])


def test_thoughts_take_the_place_of_those_of_their_turn() -> None:
    content = [*trajectory().content]
    content[2] = msgspec.structs.replace(content[2], description="Old.", reasoning_content="Hidden.")
    (row,) = sft(thoughts="thought").make_rows(trajectory(content=content), THOUGHTS)
    assert trained(row)[0] == "I fly.\nfly to box"
    assert row.messages[2].reasoning_content is None


def test_values_of_arguments_are_marked_and_a_message_without_any_has_no_loss_of_its_own() -> None:
    content = [
        instruction(),
        *(agent_message("I look.", 1), seen("ok", 1)),
        *(called("look", 2, "call00200", where="box"), seen("a", 2, tool_call_id="call00200")),
        *(called("wait", 3, "call00300"), seen("b", 3, tool_call_id="call00300")),
    ]
    acted = trajectory(content=content)

    def marks(**parameters: Any) -> list[list[tuple[bool, str]]]:
        made = sft(**parameters).make_rows(acted, NOTHING)
        return [[(each.train, each.argument_loss) for each in row.messages if each.role == "assistant"] for row in made]

    assert marks() == [[(True, "trained")] * 3]
    assert marks(arguments="untrained") == [[(True, "trained"), (True, "untrained"), (True, "trained")]]
    assert marks(arguments="only") == [[(False, "trained"), (True, "only")]]
    assert marks(arguments="untrained", rows="step")[1] == [(False, "trained"), (True, "untrained")]
    assert reason(sft(arguments="only"), trajectory()) == "no_loss"
    assert parameters_of(sft(arguments="only")) == {**DEFAULTS, "arguments": "only"}
    with user_error("rule-broken", "needs `tool_format: native`"):
        sft(arguments="untrained", tool_format="xml")


def test_a_row_whose_messages_changed_has_no_sampled_tokens() -> None:
    (plain,) = sft().make_rows(trajectory(), NOTHING)
    (thoughtless,) = sft(thoughts="thought").make_rows(trajectory(), NOTHING)
    (changed,) = sft(thoughts="thought").make_rows(trajectory(), THOUGHTS)
    assert plain.tokens
    assert thoughtless.tokens == plain.tokens
    assert changed.tokens == []
