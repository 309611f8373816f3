"""The self-test compares trained messages with their tokens, also where a tokenizer normalizes text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentmill.schemas.records.rows import Message
from agentmill.trainers.mask_test import check_texts
from agentmill.trainers.preference_data import encode_pair
from agentmill.trainers.sampled_tokens import encode_row
from agentmill.trainers.tokenization import IGNORED
from tests.errors import user_error
from tests.trainers.tables import assistant, pair, row, user

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def with_template(backend: Tokenizer) -> Any:
    backend.add_special_tokens([AddedToken(text, special=True) for text in ("<|im_start|>", "<|im_end|>")])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|im_end|>")
    made.chat_template = TEMPLATE
    return made


def nfc_tokenizer() -> Any:
    """One that composes characters, as those of Qwen."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return with_template(backend)


def metaspace_tokenizer() -> Any:
    """One that writes spaces as ``▁``, as those of Gemma."""
    pieces = ["<unk>", "▁", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return with_template(backend)


CASES = [
    (nfc_tokenizer, "open cafe\u0301.txt", "open caf\u00e9.txt"),
    (nfc_tokenizer, "5 \u2126", "5 \u03a9"),
    (metaspace_tokenizer, "▁▂▃ load", "▂▃ load"),
    (metaspace_tokenizer, "load ▁▂▃", "load  ▂▃"),
]


@pytest.mark.parametrize(("make", "text", "decoded"), CASES)
def test_normalized_text_is_no_failure(make: Any, text: str, decoded: str) -> None:
    tokenizer = make()
    thought = Message(role="assistant", content=f"<think>\n{text}\n</think>\n\n{text}", train=True)
    found = check_texts(encode_row(row([user("Go."), thought]), tokenizer), tokenizer)
    assert all(decoded in each for each in found)
    encoded = encode_pair(pair(chosen=[assistant(text)], rejected=[assistant("tea")]), tokenizer, 1000)
    assert check_texts(encoded.whole, tokenizer)


def test_normalized_text_that_is_cut_short_is_a_failure() -> None:
    tokenizer = nfc_tokenizer()
    [(messages, encoded)] = encode_row(row([user("Go."), assistant("cafe\u0301")]), tokenizer)
    labels = encoded.labels.copy()
    labels[np.flatnonzero(labels != IGNORED)[:2]] = IGNORED
    with user_error("mask-wrong"):
        check_texts([(messages, replace(encoded, labels=labels))], tokenizer)
