"""Stored tokens are trained on as they were sampled, wherever they are the row's own; else its text is tokenised."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentmill.schemas.records.rows import RowTokens, SampledTurn, SftRow
from agentmill.schemas.records.trajectory import Action, Trajectory, TurnTokens
from agentmill.trainers.mask_test import check_roles, check_texts, count_by_role
from agentmill.trainers.sampled_tokens import encode_row
from agentmill.trainers.sft import main, sequences
from agentmill.trainers.tokenization import Encoded, RowError, encode
from tests.builders import agent_message, called, instruction, seen, tool, trajectory
from tests.trainers.sampled_runs import families, ids_of, played, rows_of
from tests.trainers.tables import write_table
from tests.trainers.template_families import TEMPLATE_CASES

CASES: list[tuple[str, dict[str, Any]]] = [
    ("sft", {}),
    ("sft", {"rows": "step"}),
    ("sft", {"loss": "not_error"}),
    ("sft", {"copied": "all"}),
    ("reflection", {}),
    ("reflection", {"rows": "trajectory"}),
]
"""Views of runs as they were lived."""

ELSEWISE: list[tuple[str, dict[str, Any]]] = [
    ("sft", {"tool_format": "xml"}),
    ("sft", {"system_prompts": ["Be brief."]}),
    ("sft", {"prefix": {"success": "Solve it.", "failure": "Fail."}}),
    ("sft", {"role": "scout"}),
    ("reflection", {"tool_format": "json"}),
    ("world_model", {}),
    ("search_trace", {}),
    ("spliced", {}),
]
"""Views that tell a run otherwise than it was lived."""

RUN = trajectory(
    content=[
        instruction(),
        seen("You are at home."),
        agent_message("look at the box", 1, agent="scout"),
        seen("A box. 🙂", 1),
        called("look", 2, "call00200", where="the door"),
        seen("It is open.", 2, tool_call_id="call00200", error=True),
        agent_message("move the box to the door.", 3),
        seen("Done.", 3),
    ],
    tools=[tool("look")],
)


def only(run: Trajectory, **parameters: Any) -> SftRow:
    """The one row of the run."""
    [row] = rows_of("sft", parameters, [run])
    assert isinstance(row, SftRow)
    return row


def turns_of(run: Trajectory) -> list[TurnTokens]:
    return [item.tokens for item in run.content if isinstance(item, Action) and item.tokens is not None]


def losses(whole: Sequence[tuple[Any, Encoded]]) -> dict[int, list[int]]:
    """The ids with loss, by message. Fails where one has loss twice."""
    found: dict[int, list[int]] = {}
    for _, each in whole:
        for place in sorted(set(each.messages[each.mask].tolist())):
            assert place not in found
            found[place] = each.input_ids[each.mask & (each.messages == place)].tolist()
    return found


def sampled_ids(row: SftRow) -> dict[int, list[int]]:
    """The stored ids of the messages with loss."""
    return {
        turn.message: segment.input_ids[turn.start : turn.end]
        for segment in row.tokens
        for turn in segment.turns
        if row.messages[turn.message].train
    }


def check_self_test(whole: list[tuple[Any, Encoded]], tokenizer: Any) -> None:
    check_roles(count_by_role([each for _, each in whole]))
    check_texts(whole, tokenizer)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", TEMPLATE_CASES)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_was_sampled_carries_loss_and_no_other_tokens(
    name: str, case: tuple[str, Any], speakers: Any, data: st.DataObject
) -> None:
    case_of_template, tokenizer = speakers[name]
    manners = data.draw(st.lists(st.sampled_from(["usual", "spelt", "cut"]), min_size=1, max_size=4))
    carried = not case_of_template.rewrites and data.draw(st.booleans())
    runs = [
        played(run, case_of_template, tokenizer, manners, carried)
        for run in data.draw(families(case_of_template, plain=True))
    ]
    known = [tokens.sampled_ids for run in runs for tokens in turns_of(run)]
    for row in rows_of(*case, runs):
        assert isinstance(row, SftRow)
        trained = [place for place, message in enumerate(row.messages) if message.train]
        whole = encode_row(row, tokenizer)
        assert all(each.stored for _, each in whole)
        assert losses(whole) == sampled_ids(row)
        assert sorted(losses(whole)) == trained
        assert all(ids in known for ids in losses(whole).values())
        check_self_test(whole, tokenizer)


@pytest.mark.parametrize("name", [name for name, make in TEMPLATE_CASES.items() if not make().rewrites])
def test_a_segment_is_what_the_model_saw_and_sampled(name: str, speakers: Any) -> None:
    case_of_template, tokenizer = speakers[name]
    run = played(RUN, case_of_template, tokenizer, ["spelt"], carried=True)
    row = only(run)
    [(messages, encoded)] = encode_row(row, tokenizer)
    every = [one for tokens in turns_of(run) for one in [*tokens.prompt_ids, *tokens.sampled_ids]]
    assert encoded.input_ids.tolist() == every
    assert messages == row.messages
    assert [len(ids) for ids in losses([(messages, encoded)]).values()] == [len(t.sampled_ids) for t in turns_of(run)]
    from_text = encode(row, tokenizer)
    assert encoded.loss_tokens > 2 * from_text.loss_tokens
    for place in range(len(messages)):
        mine, other = (tokenizer.decode(each.input_ids[each.messages == place]) for each in (encoded, from_text))
        assert mine == (other if place < len(messages) - 1 else other.rstrip())


def test_a_context_that_starts_anew_is_a_conversation_of_its_own(speakers: Any) -> None:
    """A server that makes prompts of text tells a spelt turn in its usual tokens, which the model never sampled."""
    case_of_template, tokenizer = speakers["qwen2_5"]
    run = played(RUN, case_of_template, tokenizer, ["usual", "spelt", "usual"])
    one, two, three = turns_of(run)
    assert [turn.segment_start for turn in (one, two, three)] == [True, False, True]
    row = only(run)
    whole = encode_row(row, tokenizer)
    assert [each.stored for _, each in whole] == [True, True]
    assert whole[0][1].input_ids.tolist() == [*one.prompt_ids, *one.sampled_ids, *two.prompt_ids, *two.sampled_ids]
    assert whole[1][1].input_ids.tolist() == [*three.prompt_ids, *three.sampled_ids]
    assert list(losses(whole).values()) == [one.sampled_ids, two.sampled_ids, three.sampled_ids]
    assert [[message.train for message in messages].count(True) for messages, _ in whole] == [2, 1]
    steps = [encode_row(each, tokenizer) for each in rows_of("sft", {"rows": "step"}, [run])]
    assert [list(losses(whole).values()) for whole in steps] == [[t.sampled_ids] for t in (one, two, three)]
    assert steps[2][0][1].input_ids.tolist() == [*three.prompt_ids, *three.sampled_ids]


def test_long_runs_decode_each_stored_token_a_few_times(speakers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case_of_template, tokenizer = speakers["qwen2_5"]
    texts = [f"look at box {number} " + "and think 🙂 " * 8 for number in range(1, 13)]
    turns = [[agent_message(text, place), seen("A box. " * 9, place)] for place, text in enumerate(texts, 1)]
    run = trajectory(content=[instruction(), *(item for each in turns for item in each)])
    row = only(played(run, case_of_template, tokenizer, ["usual", "spelt"] * 6))
    decoded, decode = [0], tokenizer.decode

    def counting(ids: Any, **options: Any) -> str:
        decoded[0] += len(ids)
        return str(decode(ids, **options))

    monkeypatch.setattr(tokenizer, "decode", counting)
    whole = encode_row(row, tokenizer)
    assert len(whole) == 6
    assert losses(whole) == sampled_ids(row)
    assert decoded[0] < 20 * sum(len(each) for _, each in whole)
    for messages, each in whole:
        for place, message in enumerate(messages):
            assert (message.content or "").strip() in decode(each.input_ids[each.messages == place])


def test_a_turn_that_was_cut_gets_no_end(speakers: Any) -> None:
    case_of_template, tokenizer = speakers["qwen2_5"]
    row = only(played(RUN, case_of_template, tokenizer, ["cut"]))
    whole = encode_row(row, tokenizer)
    [(_, encoded)] = whole
    told = [tokenizer.decode(ids) for ids in losses(whole).values()]
    assert told[0::2] == ["look at the box", "move the box to the door."]
    assert told[1].endswith('"the door"}}\n</tool_call>')
    ends = np.flatnonzero(encoded.input_ids == tokenizer.eos_token_id)
    assert len(ends) == 6
    assert not encoded.mask[ends].any()


def test_each_turn_has_the_weight_of_its_message(speakers: Any) -> None:
    case_of_template, tokenizer = speakers["qwen2_5"]
    row = only(played(RUN, case_of_template, tokenizer, ["spelt"], carried=True), loss="not_error")
    first, last = (place for place, message in enumerate(row.messages) if message.train)
    weights = {first: 0.25, last: 2.0}
    messages = [
        msgspec.structs.replace(message, weight=weights.get(place, 1.0)) for place, message in enumerate(row.messages)
    ]
    [(_, encoded)] = encode_row(msgspec.structs.replace(row, messages=messages), tokenizer)
    assert set(encoded.weights[encoded.messages == first]) == {0.0, 0.25}
    assert set(encoded.weights[encoded.messages == last]) == {0.0, 2.0}
    assert np.array_equal(encoded.weights > 0, encoded.mask)
    assert set(encoded.messages[encoded.mask]) == {first, last}


def test_a_turn_without_tokens_is_made_of_text_and_the_others_are_not(speakers: Any) -> None:
    case_of_template, tokenizer = speakers["qwen2_5"]
    run = played(RUN, case_of_template, tokenizer, ["spelt"])
    content = list(run.content)
    content[2] = msgspec.structs.replace(content[2], tokens=None)  # type: ignore[call-arg]
    row = only(msgspec.structs.replace(run, content=content))
    whole = encode_row(row, tokenizer)
    assert [each.stored for _, each in whole] == [True, True, False]
    first, second, third = (losses(whole)[place] for place in (2, 4, 6))
    assert first == ids_of("look at the box<|im_end|>", tokenizer)
    assert [second, third] == [tokens.sampled_ids for tokens in turns_of(run)[1:]]
    assert len(whole[2][0]) == 3
    check_self_test(whole, tokenizer)


@pytest.mark.parametrize("case", ELSEWISE, ids=str)
def test_a_run_told_otherwise_is_made_of_text(case: tuple[str, Any], speakers: Any) -> None:
    case_of_template, tokenizer = speakers["qwen2_5"]
    other = trajectory("t2", content=[*RUN.content[:2], agent_message("fly", 1), seen("No.", 1)], tools=RUN.tools)
    failed = msgspec.structs.replace(other, outcome=msgspec.structs.replace(other.outcome, status="failure"))
    rows = rows_of(*case, [played(run, case_of_template, tokenizer, ["usual"]) for run in (RUN, failed)])
    assert rows
    for row in rows:
        assert isinstance(row, SftRow)
        assert row.tokens == []
        [(messages, encoded)] = encode_row(row, tokenizer)
        assert not encoded.stored
        assert messages == row.messages
        assert encoded.input_ids.tolist() == encode(row, tokenizer).input_ids.tolist()


def swapped(plain: Any) -> Any:
    """A tokenizer in which two words have changed their numbers."""
    told = json.loads(plain.backend_tokenizer.to_str())
    words = told["model"]["vocab"]
    words["Ġbox"], words["Ġdoor"] = words["Ġdoor"], words["Ġbox"]
    copy = type(plain)(tokenizer_object=type(plain.backend_tokenizer).from_str(json.dumps(told)))
    copy.chat_template = plain.chat_template
    return copy


def test_tokens_that_the_model_reads_otherwise_are_made_of_text(tokenizer: Any, speakers: Any) -> None:
    case_of_template, mine = speakers["qwen2_5"]
    row = only(played(RUN, case_of_template, mine, ["usual"]))
    fewer = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer)
    fewer.chat_template = mine.chat_template
    for other in (swapped(mine), fewer, speakers["llama3_2"][1]):
        whole = encode_row(row, other)
        assert [each.stored for _, each in whole] == [False]
        assert whole[0][1].input_ids.tolist() == encode(row, other).input_ids.tolist()


def changed(row: SftRow, place: int, content: str) -> SftRow:
    messages = list(row.messages)
    messages[place] = msgspec.structs.replace(messages[place], content=content)
    return msgspec.structs.replace(row, messages=messages)


@pytest.mark.parametrize("place", range(7))
def test_rows_that_were_changed_are_made_of_text(place: int, speakers: Any) -> None:
    case_of_template, tokenizer = speakers["qwen2_5"]
    row = only(played(RUN, case_of_template, tokenizer, ["usual"]))
    assert [each.stored for _, each in encode_row(row, tokenizer)] == [True]
    whole = encode_row(changed(row, place, "something else"), tokenizer)
    assert [each.stored for _, each in whole] == [False]
    check_self_test(whole, tokenizer)


def test_the_date_and_the_list_of_tools_may_be_told_otherwise(speakers: Any) -> None:
    case_of_template, tokenizer = speakers["llama3_2"]
    run = played(RUN, case_of_template, tokenizer, ["usual"])
    row = only(run)
    assert "26 Jul 2024" in case_of_template.template
    later = speakers["llama3_1"][1].__class__(
        tokenizer_object=tokenizer.backend_tokenizer, bos_token="<|begin_of_text|>"
    )
    later.chat_template = case_of_template.template.replace("Today Date: ", "It is ").replace(
        "tojson(indent=4)", "tojson"
    )
    [(_, encoded)] = encode_row(row, later)
    assert encoded.stored
    every = [one for tokens in turns_of(run) for one in [*tokens.prompt_ids, *tokens.sampled_ids]]
    assert encoded.input_ids.tolist() == every
    assert encode(row, later).input_ids.tolist() != encode(row, tokenizer).input_ids.tolist()
    texts = [tokenizer.decode(encoded.input_ids[encoded.messages == place]) for place in range(len(row.messages))]
    expected = encode(row, tokenizer)
    assert texts[2:-1] == [tokenizer.decode(expected.input_ids[expected.messages == place]) for place in range(2, 6)]


@pytest.mark.parametrize("room", [0.5, 0.7, 0.9])
def test_windows_of_stored_tokens_train_each_turn_once(room: float, speakers: Any) -> None:
    case_of_template, tokenizer = speakers["qwen2_5"]
    talk = [
        item
        for turn in range(1, 9)
        for item in (agent_message(f"move the box {turn}", turn), seen(f"At {turn}.", turn))
    ]
    row = only(
        played(trajectory(content=[instruction(), *talk]), case_of_template, tokenizer, ["spelt", "cut"], carried=True)
    )
    [(_, whole)] = encode_row(row, tokenizer)
    made = sequences(row, tokenizer, "window", int(len(whole) * room))
    assert len(made.sequences) > 1
    assert all(len(each) <= int(len(whole) * room) for each in made.sequences)
    assert losses([(None, each) for each in made.sequences]) == sampled_ids(row)
    with pytest.raises(RowError, match="more than max_length") as caught:
        sequences(row, tokenizer, "drop", int(len(whole) * room))
    assert caught.value.reason == "too_long"


DAMAGES: dict[str, tuple[list[int], list[tuple[int, int, int]]]] = {
    "nothing": ([], []),
    "no turn": ([1, 2, 3], []),
    "past the end": ([1, 2, 3], [(2, 1, 4)]),
    "before the end": ([1, 2, 3], [(2, 1, 2)]),
    "below zero": ([1, 2, 3], [(2, -1, 3)]),
    "backwards": ([1, 2, 3], [(2, 3, 1)]),
    "empty": ([1, 2, 3], [(2, 3, 3)]),
    "overlapping": ([1, 2, 3, 4], [(2, 1, 3), (4, 2, 4)]),
    "unsorted": ([1, 2, 3, 4], [(4, 1, 2), (2, 3, 4)]),
    "twice": ([1, 2, 3, 4], [(2, 1, 2), (2, 3, 4)]),
    "no such message": ([1, 2, 3], [(7, 1, 3)]),
    "no message": ([1, 2, 3], [(-1, 1, 3)]),
    "another role": ([1, 2, 3], [(3, 1, 3)]),
    "no token": ([1, -2, 3], [(2, 1, 3)]),
}


def damaged(name: str) -> RowTokens:
    ids, turns = DAMAGES[name]
    told = [SampledTurn(message=message, start=start, end=end) for message, start, end in turns]
    return RowTokens(input_ids=ids, turns=told)


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_tokens_drop_the_row(name: str, speakers: Any) -> None:
    case_of_template, tokenizer = speakers["qwen2_5"]
    row = only(played(RUN, case_of_template, tokenizer, ["usual"]))
    with pytest.raises(RowError) as caught:
        encode_row(msgspec.structs.replace(row, tokens=[damaged(name)]), tokenizer)
    assert caught.value.reason == "damaged_tokens"


def test_a_message_in_two_segments_drops_the_row(speakers: Any) -> None:
    case_of_template, tokenizer = speakers["qwen2_5"]
    row = only(played(RUN, case_of_template, tokenizer, ["usual"]))
    with pytest.raises(RowError, match="out of order"):
        encode_row(msgspec.structs.replace(row, tokens=row.tokens * 2), tokenizer)


@pytest.mark.parametrize("id_", [10**6, 2**40])
def test_ids_outside_the_vocabulary_are_not_trained_on(id_: int, speakers: Any) -> None:
    case_of_template, tokenizer = speakers["qwen2_5"]
    row = only(played(RUN, case_of_template, tokenizer, ["usual"]))
    segment = msgspec.structs.replace(row.tokens[0], input_ids=[id_, *row.tokens[0].input_ids[1:]])
    [(_, encoded)] = encode_row(msgspec.structs.replace(row, tokens=[segment]), tokenizer)
    assert not encoded.stored


def test_training_tells_which_tokens_it_took(
    config: Path, tmp_path: Path, tokenizer: Any, speakers: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    case_of_template, _ = speakers["tiny"]
    row = only(played(RUN, case_of_template, tokenizer, ["usual", "spelt", "usual"]))
    broken = msgspec.structs.replace(row, tokens=row.tokens[:1] * 2)
    write_table(tmp_path / "stored", [row, msgspec.structs.replace(row, tokens=[]), broken])
    short = [f"rows={tmp_path / 'stored'}", "max_steps=1", "batch_size=1", "save_steps=null"]
    short.append("max_dropped=0.5")
    assert main(["--config", str(config), *short]) == 0
    agent_message = capsys.readouterr().err
    assert "read 3 = used 2 + dropped 1 (1 damaged_tokens)" in agent_message
    assert "tokens: 2 conversations as sampled, 1 from their text" in agent_message
    record = json.loads((tmp_path / "tuned" / "training.json").read_bytes())
    assert record["tokens_from"] == {"stored": 2, "text": 1}
    assert record["counts"] == {"read": 3, "used": 2, "dropped": 1, "written": 3}
    assert "2 conversations as sampled, 1 from their text" in (tmp_path / "tuned" / "README.md").read_text()
