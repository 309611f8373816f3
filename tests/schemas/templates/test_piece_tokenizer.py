"""Tokenizers that put a space before each text: rows have the tokens that the model is served, piece by piece."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from agentmill.schemas.chat import to_template
from agentmill.schemas.records.rows import Message
from agentmill.schemas.templates.folder_tokenizer import ConversationTokenizer
from agentmill.schemas.templates.piece_tokenizer import PieceTokenizer, puts_space
from tests.errors import user_error
from tests.model import tiny_model
from tests.trainers.tables import assistant, row, system, user

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{each}") for each in ("DeprecationWarning", "FutureWarning", "UserWarning")
]

SPECIAL = ["<unk>", "<s>", "</s>"]
ROLES = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
TEXTS = ["move the box to the door.\n", "open the door now", "look at the key", "act by words"]

PREPEND = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
FIRST = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
ALWAYS = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)
KINDS: dict[str, dict[str, Any]] = {
    "prepend": {"normalizer": PREPEND},
    "first": {"pre_tokenizer": FIRST},
    "always": {"pre_tokenizer": ALWAYS},
    "bytes": {"pre_tokenizer": BYTES},
}

BY_LINES = (
    "{% for message in messages %}{{ '<|' + message.role + '|>\n' + message.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
"""As Phi-3: a line break follows the token of a role."""
BY_TOKENS = BY_LINES.replace("'|>\n'", "'|>'").replace("<|assistant|>\n", "<|assistant|>")
BY_WORDS = (
    "{% for message in messages %}{% if message.role == 'assistant' %}{{ ' ' + message.content + '</s>' }}"
    "{% else %}{{ '[INST] ' + message.content + ' [/INST]' }}{% endif %}{% endfor %}"
)
"""As Llama 2 and early Mistral: roles are no tokens of their own."""
TEMPLATES = {"lines": BY_LINES, "tokens": BY_TOKENS, "words": BY_WORDS}

TALK = [system("act by words"), user("open the door"), assistant("move the box"), user("look"), assistant("the key")]


def backend(steps: dict[str, Any]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    for name, step in steps.items():
        setattr(tokenizer, name, step)
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.ByteLevel() if steps.get("pre_tokenizer") is BYTES else decoders.Sequence(parts)
    letters = ["▁", "\n", *map(chr, range(33, 127)), *pre_tokenizers.ByteLevel.alphabet()]
    learner = trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL, initial_alphabet=letters)
    tokenizer.train_from_iterator(TEXTS * 50, learner)
    return tokenizer


def tokenizer_with(steps: dict[str, Any], template: str = BY_LINES, rstrip: bool = False) -> Any:
    from transformers import PreTrainedTokenizerFast

    own = PreTrainedTokenizerFast(
        tokenizer_object=backend(steps), bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<unk>"
    )
    own.add_special_tokens(
        {"additional_special_tokens": [AddedToken(text, rstrip=rstrip, normalized=False) for text in ROLES]}
    )
    own.chat_template = template
    return own


def served(text: str, tokenizer: Any) -> list[int]:
    """The tokens of a text in one piece."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


@pytest.mark.parametrize("rstrip", [False, True])
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_have_the_tokens_of_the_prompt_and_of_the_whole(kind: str, template: str, rstrip: bool) -> None:
    from agentmill.trainers.mask_test import check_texts
    from agentmill.trainers.tokenization import encode

    own = tokenizer_with(KINDS[kind], TEMPLATES[template], rstrip)
    encoded = encode(row(TALK), own)
    prompt = own.apply_chat_template(to_template(TALK[:2]), add_generation_prompt=True, tokenize=False)
    first = int(np.flatnonzero(encoded.mask)[0])
    assert encoded.input_ids[:first].tolist() == served(prompt, own)
    text = own.apply_chat_template(to_template(TALK), tokenize=False)
    assert encoded.input_ids.tolist() == served(text, own)
    if kind == "first" and not rstrip:
        assert own.decode(encoded.input_ids) == text
    trained = [own.decode(encoded.labels[encoded.mask & (encoded.messages == index)]).strip() for index in (2, 4)]
    end = "</s>" if template == "words" else "<|end|>"
    assert [each.removesuffix(end).strip() for each in trained] == ["move the box", "the key"]
    check_texts([(TALK, encoded)], own)


@pytest.mark.parametrize("kind", KINDS)
def test_no_space_is_put_before_an_answer_within_a_line(kind: str) -> None:
    from agentmill.trainers.tokenization import encode

    own = tokenizer_with(KINDS[kind])
    encoded = encode(row(TALK), own)
    answer = own.convert_ids_to_tokens(encoded.input_ids[encoded.mask & (encoded.messages == 2)].tolist())
    assert answer[0][0] == "m"


@pytest.mark.parametrize("kind", KINDS)
def test_control_tokens_in_messages_have_no_space_either(kind: str) -> None:
    from agentmill.trainers.tokenization import encode

    own = tokenizer_with(KINDS[kind])
    encoded = encode(row([user("look"), assistant("the <|end|>key")]), own)
    assert own.decode(encoded.labels[encoded.mask]) == "the <|end|>key<|end|>"


@pytest.mark.parametrize("kind", KINDS)
def test_a_reward_model_is_asked_with_the_tokens_of_its_training(kind: str, tmp_path: Path) -> None:
    from agentmill.trainers.preference_data import encode_scored

    tokenizer_with(KINDS[kind]).save_pretrained(tmp_path)
    from transformers import PreTrainedTokenizerFast

    loaded, ours = PreTrainedTokenizerFast.from_pretrained(tmp_path), ConversationTokenizer(tmp_path)
    attack: list[Message] = [user("look at <|end|>key </s>now"), assistant("the <|user|> key")]
    for messages in (TALK, attack):
        wanted = encode_scored("r", messages, None, loaded, 10**6).input_ids.tolist()
        assert ours.encode(messages, None) == wanted


def test_places_are_those_in_the_piece() -> None:
    pieces = PieceTokenizer(tokenizer_with(KINDS["always"]).backend_tokenizer)
    for before in ("the key", "<|user|>", ""):
        ids, places = pieces.encode("move the box", before)
        assert len(ids) == len(places)
        assert [places[0][0], places[-1][1]] == [0, len("move the box")]


def test_other_tokenizers_are_left_as_they_are() -> None:
    plain = {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=False)}
    assert not puts_space(backend(plain))
    assert not puts_space(Tokenizer.from_file(str(tiny_model() / "tokenizer.json")))
    assert not puts_space(Tokenizer(models.BPE()))
    assert all(puts_space(backend(steps)) for steps in KINDS.values())


@pytest.mark.parametrize(
    "steps",
    [
        {"normalizer": normalizers.Replace(Regex("^"), "▁")},
        # Words are put together with it, so that without it no text would have spaces.
        {"pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), ALWAYS])},
    ],
)
def test_a_space_that_cannot_be_switched_off_is_refused(steps: dict[str, Any]) -> None:
    with user_error("tokenizer-unfit"):
        PieceTokenizer(backend(steps))
