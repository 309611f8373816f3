"""``check_tokens`` as a stage, with the file of a real tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from agentmill.schemas.records.trajectory import Trajectory, TurnTokens
from agentmill.schemas.tables import Counts
from tests.builders import agent_message, instruction, trajectory
from tests.errors import user_error
from tests.pipelines.engine.stages import rows_of, write_table
from tests.pipelines.operators.steps import run

END = "<|im_end|>"


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    """A byte-level tokenizer that knows the word ``open`` whole."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(["open"] * 9, trainers.BpeTrainer(special_tokens=[END], initial_alphabet=alphabet))
    made.save(str(tmp_path / "tokenizer.json"))
    return made


def test_drift_is_told_from_tokens_of_another_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    whole = tokenizer.encode(f"open{END}").ids
    letters = [*(tokenizer.token_to_id(letter) for letter in "open"), tokenizer.token_to_id(END)]
    assert len(whole) == 2
    sampled = {"whole": ("open", whole), "letters": ("open", letters), "other": ("shut", whole)}
    rows = [
        trajectory(name, content=[instruction(), agent_message(text, 1, tokens=TurnTokens([], ids, [], True))])
        for name, (text, ids) in sampled.items()
    ]
    write_table(tmp_path / "runs", [[*rows, trajectory("none", content=[instruction()])]], Trajectory)
    manifest = run(tmp_path, "check_tokens", "verdicts", of="runs", tokenizer=str(tmp_path))
    assert manifest.counts == Counts(read=4, used=4, dropped=0, written=4)
    assert {
        row.trajectory_id: (row.status, row.score, row.passed, row.reason) for row in rows_of(tmp_path / "verdicts")
    } == {
        "whole": ("scored", 1.0, True, None),
        "letters": ("scored", 0.0, True, "drifted"),
        "other": ("scored", 1.0, False, "other_text"),
        "none": ("unscored", None, None, "no_tokens"),
    }
    assert manifest.metrics == {
        "scored": 3,
        "unscored": 1,
        "passed": 2,
        "turns": 3,
        "drifted": 1,
        "tokens": 9,
        "segments": 3,
        "breaks": 0,
    }


@pytest.mark.parametrize("scheme", ["always", "first"])
def test_a_tokenizer_that_puts_a_space_before_each_text_puts_none_behind_a_prompt(scheme: str, tmp_path: Path) -> None:
    pieces = ["<unk>", "▁", "\n", *"aenopuy:", "op", "en", "open"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    merges = [("o", "p"), ("e", "n"), ("op", "en")]
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    made.save(str(tmp_path / "tokenizer.json"))
    prompt = made.encode("you:\n").ids
    texts = {"plain": ["open"], "spaced": ["▁", "open"], "letters": [*"open"]}
    sampled = {name: [vocabulary[piece] for piece in found] for name, found in texts.items()}
    rows = [
        trajectory(name, content=[instruction(), agent_message("open", 1, tokens=TurnTokens(prompt, ids, [], True))])
        for name, ids in sampled.items()
    ]
    write_table(tmp_path / "runs", [rows], Trajectory)
    run(tmp_path, "check_tokens", "verdicts", of="runs", tokenizer=str(tmp_path))
    found = {row.trajectory_id: (row.passed, row.reason) for row in rows_of(tmp_path / "verdicts")}
    assert found == {"plain": (True, None), "spaced": (True, None), "letters": (True, "drifted")}


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    write_table(tmp_path / "runs", [[trajectory()]], Trajectory)
    with user_error("tokenizer-missing", "nowhere/tokenizer.json"):
        run(tmp_path, "check_tokens", "verdicts", of="runs", tokenizer=str(tmp_path / "nowhere"))
