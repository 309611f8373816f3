"""Sides of pairs and labelled rows that we generated are trained on as they were sampled, else as their text."""

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

from agentmill.schemas.chat import to_messages, to_template
from agentmill.schemas.records.rows import Message, PreferenceRow, RowTokens, UnpairedRow
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.trainers.chat_template import renderer
from agentmill.trainers.data import EncodedRow
from agentmill.trainers.dpo import main as dpo
from agentmill.trainers.kto import main as kto
from agentmill.trainers.preference_data import encode_labelled, encode_pair
from agentmill.trainers.tokenization import Encoded, RowError
from tests.builders import agent_message, called, instruction, outcome, seen, tool, trajectory
from tests.trainers.sampled_runs import families, played, rows_of
from tests.trainers.tables import write_table
from tests.trainers.template_families import TEMPLATE_CASES
from tests.trainers.test_sampled_tokens import DAMAGES, check_self_test, damaged, losses, turns_of

CASES: list[tuple[str, dict[str, Any]]] = [
    ("unpaired", {}),
    ("unpaired", {"rows": "step"}),
    ("trajectory_pairs", {}),
    ("trajectory_pairs", {"cut_rejected": "chosen+0"}),
    ("step_pairs", {}),
    ("step_pairs", {"unit": "suffix"}),
]
LONG = 10**9


def run(name: str, *words: str, **fields: Any) -> Trajectory:
    """A run that looks, says ``words`` and is answered; the good one is a success."""
    start = [
        instruction(),
        seen("You are at home."),
        called("look", 1, "call00100", where="the box"),
        seen("A box. 🙂", 1, tool_call_id="call00100"),
    ]
    talk = [
        item for turn, word in enumerate(words, 2) for item in (agent_message(word, turn), seen(f"{word}: done", turn))
    ]
    status = outcome("success" if name == "good" else "failure")
    return trajectory(name, content=[*start, *talk], tools=[tool("look")], outcome=status, **fields)


GOOD = run("good", "move the box", "open the door")
BAD = run("bad", "push the key", "sit down")


def preferred(good: Trajectory, bad: Trajectory, view: str = "trajectory_pairs", **parameters: Any) -> PreferenceRow:
    """The one pair of two runs."""
    [row] = rows_of(view, parameters, [good, bad])
    assert isinstance(row, PreferenceRow)
    return row


def judged(one: Trajectory) -> UnpairedRow:
    """The one labelled row of a run."""
    [row] = rows_of("unpaired", {}, [one])
    assert isinstance(row, UnpairedRow)
    return row


def made(row: Any, tokenizer: Any, limit: int = LONG) -> EncodedRow[Any]:
    return (encode_pair if isinstance(row, PreferenceRow) else encode_labelled)(row, tokenizer, limit)


def whole_or_reason(row: Any, tokenizer: Any) -> list[tuple[Sequence[Message], Encoded]] | str:
    try:
        return made(row, tokenizer).whole
    except RowError as error:
        return error.reason


def sides(row: Any) -> list[tuple[list[Message], list[RowTokens]]]:
    """The messages of each conversation of a row, and what is stored of it."""
    if isinstance(row, PreferenceRow):
        return [
            ([*row.prompt, *row.chosen], row.chosen_tokens),
            ([*row.prompt, *row.rejected], row.rejected_tokens),
        ]
    return [([*row.prompt, *row.completion], row.tokens)]


def own_prompts(row: Any, runs: Sequence[Trajectory], tokenizer: Any) -> list[bool]:
    """For each side whether the template shows its own run's prompt as that of the row, from which it may differ in
    white space and calls' ids."""
    names = [row.chosen_id, row.rejected_id] if isinstance(row, PreferenceRow) else [row.trajectory_id]
    by_name = {one.trajectory_id: to_messages(one.system_prompt, one.content)[: len(row.prompt)] for one in runs}
    tools = json.loads(row.tools) if row.tools else None
    given, *own = (
        tokenizer.apply_chat_template(to_template(prompt), tools=tools, tokenize=False)
        for prompt in (row.prompt, *(by_name[name] for name in names))
    )
    return [each == given for each in own]


def sampled(one: Trajectory) -> list[list[int]]:
    return [tokens.sampled_ids for tokens in turns_of(one)]


def played_ids(one: Trajectory) -> list[int]:
    """All tokens of a run in which no context started anew."""
    return [each for tokens in turns_of(one) for each in [*tokens.prompt_ids, *tokens.sampled_ids]]


def with_loss(sequence: Encoded) -> list[list[int]]:
    """The ids with loss, message by message."""
    return list(losses([(None, sequence)]).values())


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", TEMPLATE_CASES)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_side_in_one_segment_has_the_loss_that_was_sampled(
    name: str, case: tuple[str, Any], speakers: Any, data: st.DataObject
) -> None:
    case_of_template, tokenizer = speakers[name]
    carried = not case_of_template.rewrites and data.draw(st.booleans())
    manners = st.lists(st.sampled_from(["usual", "spelt", "cut"]), min_size=1, max_size=4)
    family = data.draw(families(case_of_template, plain=True))
    runs = [played(one, case_of_template, tokenizer, data.draw(manners), carried) for one in family]
    for row in rows_of(*case, runs):
        whole = whole_or_reason(row, tokenizer)
        if isinstance(whole, str):
            assert whole == "same" or (case_of_template.rewrites and whole == "template")
            continue
        check_self_test(whole, tokenizer)
        for (messages, tokens), (_, each), own in zip(
            sides(row), whole, own_prompts(row, runs, tokenizer), strict=True
        ):
            trained = [place for place, message in enumerate(messages) if message.train]
            assert sorted(losses([(None, each)])) == trained
            assert tokens
            assert each.stored == (len(tokens) == 1 and own)
            if each.stored:
                [segment] = tokens
                agent_message = {turn.message: segment.input_ids[turn.start : turn.end] for turn in segment.turns}
                assert losses([(None, each)]) == {place: agent_message[place] for place in trained}
                assert each.input_ids.tolist() == segment.input_ids


def test_other_spellings_are_kept_and_the_prompt_may_have_other_tokens_on_each_side(speakers: Any) -> None:
    case_of_template, tokenizer = speakers["qwen2_5"]
    good = played(GOOD, case_of_template, tokenizer, ["usual", "spelt"], carried=True)
    bad = played(BAD, case_of_template, tokenizer, ["spelt"], carried=True)
    row = preferred(good, bad, "step_pairs")
    [both] = made(row, tokenizer).examples
    assert with_loss(both.chosen) == sampled(good)[1:2]
    assert with_loss(both.rejected) == sampled(bad)[1:2]
    one, other = (each.input_ids[: np.flatnonzero(each.mask)[0]] for each in (both.chosen, both.rejected))
    assert len(one) < len(other)
    assert tokenizer.decode(one) == tokenizer.decode(other)
    text = msgspec.structs.replace(row, chosen_tokens=[], rejected_tokens=[])
    [plain] = made(text, tokenizer).examples
    assert plain.chosen.loss_tokens < both.chosen.loss_tokens
    assert not plain.chosen.stored


def test_one_side_may_be_made_of_text(speakers: Any) -> None:
    case_of_template, tokenizer = speakers["qwen2_5"]
    good = played(GOOD, case_of_template, tokenizer, ["spelt"], carried=True)
    [both] = made(preferred(good, BAD), tokenizer).examples
    assert (both.chosen.stored, both.rejected.stored) == (True, False)
    assert both.chosen.input_ids.tolist() == played_ids(good)
    [text] = made(preferred(GOOD, BAD), tokenizer).examples
    assert both.rejected.input_ids.tolist() == text.rejected.input_ids.tolist()


def test_a_side_in_several_segments_is_made_of_text(speakers: Any) -> None:
    """A server that makes prompts of text tells a spelt turn in its usual tokens: the context starts anew."""
    case_of_template, tokenizer = speakers["qwen2_5"]
    good = played(GOOD, case_of_template, tokenizer, ["usual", "spelt", "usual"])
    row = preferred(good, played(BAD, case_of_template, tokenizer, ["usual"]))
    assert [len(tokens) for _, tokens in sides(row)] == [2, 1]
    whole = made(row, tokenizer).whole
    assert [each.stored for _, each in whole] == [False, True]
    assert [[message.train for message in messages].count(True) for messages, _ in whole] == [3, 3]
    assert [each.stored for _, each in made(judged(good), tokenizer).whole] == [False]
    steps = rows_of("unpaired", {"rows": "step"}, [good])
    assert [with_loss(made(step, tokenizer).sequences[0]) for step in steps] == [[ids] for ids in sampled(good)]


def test_a_side_of_which_a_turn_has_no_tokens_is_made_of_text(speakers: Any) -> None:
    case_of_template, tokenizer = speakers["qwen2_5"]
    good = played(GOOD, case_of_template, tokenizer, ["usual"])
    content = list(good.content)
    content[4] = msgspec.structs.replace(content[4], tokens=None)  # type: ignore[call-arg]
    row = judged(msgspec.structs.replace(good, content=content))
    assert row.tokens
    [(messages, each)] = made(row, tokenizer).whole
    assert not each.stored
    assert len(with_loss(each)) == 3
    assert messages == [*row.prompt, *row.completion]


def test_prompts_that_tell_different_days_are_made_of_text(speakers: Any) -> None:
    case_of_template, tokenizer = speakers["llama3_2"]
    later = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer, bos_token="<|begin_of_text|>")
    later.chat_template = case_of_template.template.replace("Today Date: ", "It was ")
    good, bad = played(GOOD, case_of_template, tokenizer, ["usual"]), played(BAD, case_of_template, later, ["usual"])
    assert [each.stored for one in (good, bad) for each in made(judged(one), tokenizer).sequences] == [True, True]
    row = preferred(good, bad)
    [both] = made(row, tokenizer).examples
    assert (both.chosen.stored, both.rejected.stored) == (False, False)
    [text] = made(preferred(GOOD, BAD), tokenizer).examples
    assert both.rejected.input_ids.tolist() == text.rejected.input_ids.tolist()
    same = preferred(good, played(BAD, case_of_template, tokenizer, ["usual"]))
    assert [each.stored for each in made(same, tokenizer).sequences] == [True, True]


def test_another_tokenizer_makes_them_of_text(speakers: Any) -> None:
    case_of_template, tokenizer = speakers["qwen2_5"]
    runs = [played(one, case_of_template, tokenizer, ["usual"]) for one in (GOOD, BAD)]
    other = speakers["llama3_2"][1]
    for row in (preferred(runs[0], runs[1]), judged(runs[0])):
        assert all(each.stored for each in made(row, tokenizer).sequences)
        assert not any(each.stored for each in made(row, other).sequences)


@pytest.mark.parametrize("parameters", [{"tool_format": "xml"}, {"system_prompts": ["Be brief."]}], ids=str)
@pytest.mark.parametrize("view", ["unpaired", "trajectory_pairs", "step_pairs"])
def test_runs_told_otherwise_are_made_of_text(view: str, parameters: dict[str, Any], speakers: Any) -> None:
    case_of_template, tokenizer = speakers["qwen2_5"]
    rows = rows_of(view, parameters, [played(one, case_of_template, tokenizer, ["usual"]) for one in (GOOD, BAD)])
    assert rows
    for row in rows:
        assert [tokens for _, tokens in sides(row) if tokens] == []
        assert not any(each.stored for each in made(row, tokenizer).sequences)


def test_the_completion_begins_where_the_prompt_of_the_row_ends(speakers: Any) -> None:
    case_of_template, tokenizer = speakers["qwen2_5"]
    for manners in (["usual"], ["spelt"]):
        row = rows_of("unpaired", {"rows": "step"}, [played(GOOD, case_of_template, tokenizer, manners, carried=True)])[
            1
        ]
        assert isinstance(row, UnpairedRow)
        assert row.tools is not None
        [example] = made(row, tokenizer).examples
        ids = example.sequence.input_ids
        shown = renderer(tokenizer)(to_template(row.prompt), json.loads(row.tools), False)
        assert tokenizer.decode(ids[: example.prompt]) == shown
        assert tokenizer.decode(ids[example.prompt :]) == "<|im_start|>assistant\nmove the box<|im_end|>"
        assert not example.sequence.mask[: example.prompt].any()


def test_stored_tokens_count_for_max_length(speakers: Any) -> None:
    case_of_template, tokenizer = speakers["qwen2_5"]
    good, bad = (played(one, case_of_template, tokenizer, ["spelt"], carried=True) for one in (GOOD, BAD))
    for row in (preferred(good, bad), judged(good)):
        longest = max(len(each) for each in made(row, tokenizer).sequences)
        text = msgspec.structs.replace(row, **{name: [] for name in row.__struct_fields__ if "tokens" in name})
        assert max(len(each) for each in made(text, tokenizer).sequences) < longest - 1
        assert max(len(each) for each in made(row, tokenizer, longest).sequences) == longest
        with pytest.raises(RowError, match=f"{longest} tokens, more than max_length {longest - 1}") as caught:
            made(row, tokenizer, longest - 1)
        assert caught.value.reason == "too_long"


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_tokens_drop_the_row(name: str, speakers: Any) -> None:
    case_of_template, tokenizer = speakers["qwen2_5"]
    good, bad = (played(one, case_of_template, tokenizer, ["usual"]) for one in (GOOD, BAD))
    row, one = preferred(good, bad), judged(good)
    broken: Sequence[Any] = [
        msgspec.structs.replace(row, chosen_tokens=[damaged(name)]),
        msgspec.structs.replace(row, rejected_tokens=[damaged(name)]),
        msgspec.structs.replace(one, tokens=[damaged(name)]),
    ]
    for each in broken:
        with pytest.raises(RowError) as caught:
            made(each, tokenizer)
        assert caught.value.reason == "damaged_tokens"


def test_the_same_words_in_other_tokens_are_no_pair(speakers: Any) -> None:
    case_of_template, tokenizer = speakers["qwen2_5"]
    good, bad = (played(one, case_of_template, tokenizer, ["usual"]) for one in (GOOD, BAD))
    again = judged(played(GOOD, case_of_template, tokenizer, ["spelt"], carried=True))
    row = preferred(good, bad)
    row = msgspec.structs.replace(row, rejected=row.chosen, rejected_tokens=again.tokens)
    with pytest.raises(RowError) as caught:
        made(row, tokenizer)
    assert caught.value.reason == "same"


def trained(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, dict[str, Any], str]:
    """What a training said, its record, and the model card."""
    record: dict[str, Any] = json.loads((folder / "training.json").read_bytes())
    return capsys.readouterr().err, record, (folder / "README.md").read_text()


def test_dpo_trains_on_what_was_sampled(
    dpo_config: Path, tmp_path: Path, tokenizer: Any, speakers: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    case_of_template, _ = speakers["tiny"]
    good, bad = (played(one, case_of_template, tokenizer, ["spelt"], carried=True) for one in (GOOD, BAD))
    row = preferred(good, bad)
    broken = msgspec.structs.replace(row, rejected_tokens=row.rejected_tokens * 2)
    table = write_table(tmp_path / "stored", [row, preferred(good, BAD), broken], PreferenceRow)
    short = [f"rows={table}", "max_steps=2", "batch_size=2", "save_steps=null", "learning_rate=1e-3"]
    short.append("max_dropped=0.5")
    assert dpo(["--config", str(dpo_config), *short]) == 0
    told, record, card = trained(tmp_path / "tuned", capsys)
    assert "read 3 = used 2 + dropped 1 (1 damaged_tokens)" in told
    assert "tokens: 3 conversations as sampled, 1 from their text" in told
    assert record["tokens_from"] == {"stored": 3, "text": 1}
    assert "3 conversations as sampled, 1 from their text" in card
    losses_told = sum(len(ids) for one in (good, good, bad) for ids in sampled(one))
    text = made(row, tokenizer).whole[0][1].loss_tokens
    assert record["roles"]["assistant"]["loss"] > losses_told > text
    assert record["last_loss"] < record["first_loss"]


def test_kto_trains_on_what_was_sampled(
    kto_config: Path, tmp_path: Path, tokenizer: Any, speakers: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    case_of_template, _ = speakers["tiny"]
    runs = [played(one, case_of_template, tokenizer, ["spelt"], carried=True) for one in (GOOD, BAD)]
    rows = [*map(judged, runs), judged(BAD)]
    broken = msgspec.structs.replace(rows[0], tokens=[damaged("overlapping")])
    table = write_table(tmp_path / "stored", [*rows, broken], UnpairedRow)
    short = [f"rows={table}", "max_steps=2", "batch_size=2", "save_steps=null", "max_dropped=0.25"]
    assert kto(["--config", str(kto_config), *short]) == 0
    told, record, card = trained(tmp_path / "tuned", capsys)
    assert "read 4 = used 3 + dropped 1 (1 damaged_tokens)" in told
    assert "tokens: 2 conversations as sampled, 1 from their text" in told
    assert record["tokens_from"] == {"stored": 2, "text": 1}
    assert "2 conversations as sampled, 1 from their text" in card
    stored = sum(len(ids) for one in runs for ids in sampled(one))
    from_text = made(rows[2], tokenizer).sequences[0].loss_tokens
    assert record["roles"]["assistant"]["loss"] == stored + from_text
