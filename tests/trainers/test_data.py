"""A training does not start where too many rows would be dropped; it says how many, and why."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.schemas.errors import UserError
from agentmill.schemas.records.rows import SftRow
from agentmill.trainers.command import SftSettings
from agentmill.trainers.data import TrainingRows, read_rows
from agentmill.trainers.model_io import load_tokenizer
from agentmill.trainers.preference_data import encode_pair as pair_of
from agentmill.trainers.sft import sequences
from agentmill.trainers.tokenization import Encoded, RowError, encode_texts
from tests.errors import user_error
from tests.trainers.families import tokenizer_of
from tests.trainers.preference import started_on
from tests.trainers.tables import assistant, pair, row, turns, user, write_table


def load(
    folder: Path, rows: list[SftRow], tokenizer: Any, max_dropped: float = 1.0, longest: int = 10**6
) -> TrainingRows:
    start = started_on(folder, write_table(folder / "rows", rows), tokenizer, longest)
    settings = SftSettings(rows="r", model="m", output="o", max_dropped=max_dropped)
    encode = partial(sequences, tokenizer=tokenizer, long_rows="window", max_length=longest)
    return read_rows(start, settings, encode, Encoded)


def silent(row_id: str) -> SftRow:
    return row([user("Go."), assistant("fly", train=False)], row_id)


def test_too_many_dropped_rows_stop_the_training_with_counts(tmp_path: Path, tokenizer: Any) -> None:
    damaged = msgspec.structs.replace(turns(1, "bad"), messages=[msgspec.structs.replace(user("x"), train=True)])
    rows = [*(turns(2, f"r{number}") for number in range(17)), silent("s1"), silent("s2"), damaged]
    with pytest.raises(UserError) as caught:
        load(tmp_path, rows, tokenizer, 0.05)
    first, second = str(caught.value).splitlines()
    assert first.startswith("3 of 20 rows of ")
    assert first.endswith("would be dropped (2 no_loss, 1 loss_outside_assistant): 15.0%, more than max_dropped=5.0%")
    assert second == (
        "For example row s1: no assistant message of the row is trained; mend the rows, or set max_dropped=0.15"
    )


def test_as_many_as_the_limit_are_dropped_and_counted(tmp_path: Path, tokenizer: Any) -> None:
    made = load(tmp_path, [*(turns(2, f"r{number}") for number in range(19)), silent("s1")], tokenizer, 0.05)
    assert (made.counts.read, made.counts.used, made.counts.dropped) == (20, 19, 1)
    assert made.counted.reasons == {"no_loss": 1}


def test_the_share_that_the_message_advises_is_enough(tmp_path: Path, tokenizer: Any) -> None:
    rows = [*(turns(2, f"r{number}") for number in range(71)), *(silent(f"s{number}") for number in range(29))]
    with pytest.raises(UserError, match=r"set max_dropped=0.29$"):
        load(tmp_path, rows, tokenizer, 0.05)
    # As a product of floats it would be less than 29.
    assert load(tmp_path / "again", rows, tokenizer, 0.29).counts.used == 71


def test_tokens_of_turns_and_rows_that_are_too_long_are_counted(tmp_path: Path, tokenizer: Any) -> None:
    each = row([user("Go."), assistant("push " * 99), user("Well."), assistant("stop")])
    long = row([user("Go."), assistant("push " * 99)], "r2")
    made = load(tmp_path, [each, long], tokenizer, longest=60)
    wanted = sum(sequences(one, tokenizer, "window", 10**6).sequences[0].loss_tokens for one in (each, long))
    assert made.counted.lost_tokens == wanted - sum(map(sum, made.examples["mask"]))
    assert made.counted.reasons == {"too_long": 1}


def test_a_pair_that_is_too_long_loses_the_tokens_of_both_sides(tokenizer: Any) -> None:
    row = pair(turns=2)
    sides = pair_of(row, tokenizer, 10**6).sequences
    for longest in (max(map(len, sides)), min(map(len, sides))):
        with pytest.raises(RowError, match="more than max_length") as caught:
            pair_of(row, tokenizer, longest - 1)
        assert caught.value.lost_tokens == sum(each.loss_tokens for each in sides) > 0


def test_conversations_under_a_template_that_rewrites_the_past_are_all_trained_on(
    tmp_path: Path, tokenizer: Any
) -> None:
    own = tokenizer_of("qwen3", tokenizer)
    made = load(tmp_path, [turns(3, f"r{number}") for number in range(20)], own, 0.0)
    assert (made.counts.used, made.counts.dropped, made.counts.written) == (20, 0, 60)
    assert made.counted.lost_tokens == 0


def test_the_training_version_of_a_template_keeps_a_conversation_in_one_sequence(
    tmp_path: Path, model: Path, tokenizer: Any
) -> None:
    tokenizer_of("qwen3", tokenizer).save_pretrained(tmp_path / "model")
    each = turns(3)
    own = load_tokenizer(tmp_path / "model")
    assert len(encode_texts(each.row_id, each.messages, each.tools, own)) == 3
    trained = load_tokenizer(tmp_path / "model", "training")
    [(_, sequence)] = encode_texts(each.row_id, each.messages, each.tools, trained)
    text = trained.decode(sequence.labels[sequence.mask].tolist())
    assert text.count("<think>\n\n</think>\n\nmove the box") == 3
    assert "generation" not in trained.chat_template.replace("add_generation_prompt", "").partition("#}")[2]


def test_a_file_may_hold_the_chat_template(tmp_path: Path, model: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{{ 'own' }}")
    assert load_tokenizer(model, str(file)).chat_template == "{{ 'own' }}"
    with user_error("no-such-file", "training"):
        load_tokenizer(model, "nowhere")
    with user_error("no-training-template", "training"):
        load_tokenizer(model, "training")
