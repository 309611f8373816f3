"""The share of conversations that can be trained on, and in how many sequences, under the templates of many models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from agentmill.schemas.chat import to_template
from agentmill.schemas.records.rows import Message, SftRow
from agentmill.trainers.chat_template import renderer
from agentmill.trainers.mask_test import check_roles, check_texts, count_by_role
from agentmill.trainers.sampled_tokens import encode_row
from agentmill.trainers.tokenization import Encoded, RowError
from tests.trainers.families import tokenizer_of
from tests.trainers.tables import TOOLS, answered, assistant, row, system, user

ROWS = 20


def thinks(message: Message, thought: str) -> Message:
    return msgspec.structs.replace(message, reasoning_content=thought)


def texts(number: int, reasoned: bool, opening: Sequence[Message]) -> SftRow:
    """Three answers in turn with a user."""
    messages = [*opening, user(f"task {number}")]
    for turn in range(3):
        said = assistant(f"go {turn}")
        messages += [thinks(said, f"because {turn}") if reasoned else said, user(f"at {turn}")]
    return row(messages[:-1], f"r{number}")


def calls(number: int, reasoned: bool) -> SftRow:
    """Two calls and an answer."""
    messages = [system(), user(f"task {number}")]
    for turn in range(2):
        said = assistant(call=f'{{"where":"box {turn}"}}')
        messages += [thinks(said, f"because {turn}") if reasoned else said, answered(f"at {turn}")]
    last = assistant("done")
    return row([*messages, thinks(last, "so") if reasoned else last], f"r{number}", TOOLS)


KINDS: dict[str, Callable[[int], SftRow]] = {
    "text": lambda number: texts(number, False, [system()]),
    "thought": lambda number: texts(number, True, [system()]),
    "calls": lambda number: calls(number, False),
    "thought and calls": lambda number: calls(number, True),
    "no system": lambda number: texts(number, False, []),
}

# The sequences that a conversation of each kind becomes (0: it is dropped), in the order of KINDS.
FAMILIES: dict[str, tuple[int, int, int, int, int]] = {
    # These show the past as it was generated.
    "tiny": (1, 0, 1, 0, 1),
    "smollm2": (1, 0, 0, 0, 1),
    "hermes": (1, 0, 1, 0, 1),
    "mistral": (1, 0, 1, 0, 1),
    "granite": (1, 0, 1, 0, 1),
    "zephyr": (1, 0, 0, 0, 1),
    "qwen2_5": (1, 0, 1, 0, 1),
    "qwen3_instruct_2507": (1, 0, 1, 0, 1),
    "llama3": (1, 0, 0, 0, 1),
    "llama3_1": (1, 0, 1, 0, 1),
    "llama3_2": (1, 0, 1, 0, 1),
    "cohere": (1, 0, 0, 0, 1),
    "cohere2": (1, 0, 0, 0, 1),
    "lfm2_v2": (1, 0, 1, 0, 1),
    "gemma": (0, 0, 0, 0, 1),  # knows no system prompt, and raises
    "gemma3": (1, 0, 0, 0, 1),
    "gemma4_v5": (1, 3, 1, 1, 1),
    # These add to the last turn or close it with nothing.
    "phi3": (1, 0, 0, 0, 1),
    "phi3_5": (1, 0, 0, 0, 1),
    "glm4moe": (1, 3, 1, 1, 1),
    # These rewrite the past.
    "qwen3": (3, 3, 3, 1, 3),
    "qwen3_5_think": (3, 3, 1, 1, 3),
    "qwen3_5_nothink": (3, 3, 1, 1, 3),
    "qwen3_6": (3, 3, 1, 1, 3),
    "gptoss": (3, 3, 1, 1, 3),
    "deepseekv3": (3, 3, 0, 0, 3),  # writes only the first of several calls as a turn
    "deepseek_r1_distill": (3, 3, 0, 0, 3),
    "nemotron_3_nano": (1, 3, 1, 1, 1),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_share_of_rows_kept(name: str, tokenizer: Any) -> None:
    own = tokenizer_of(name, tokenizer)
    found = {}
    for kind, make in KINDS.items():
        made = [kept(make(number), own) for number in range(ROWS)]
        assert len(set(made)) == 1
        found[kind] = made[0]
    assert found == dict(zip(KINDS, FAMILIES[name], strict=True))


def kept(row: SftRow, tokenizer: Any) -> int:
    """How many sequences the row becomes; 0 if it is dropped. Fails where a sequence is wrong."""
    try:
        whole = encode_row(row, tokenizer)
    except RowError:
        return 0
    check_roles(count_by_role([sequence for _, sequence in whole]))
    check_texts(whole, tokenizer)
    trained = [index for messages, _ in whole for index, message in enumerate(messages) if message.train]
    assert sorted(trained) == [index for index, message in enumerate(row.messages) if message.train]
    for messages, sequence in whole:
        for index in (index for index, message in enumerate(messages) if message.train):
            check_turn(row, index, sequence, tokenizer)
    return len(whole)


def check_turn(row: SftRow, index: int, sequence: Encoded, tokenizer: Any) -> None:
    """What comes before a trained turn is the prompt of its generation, with or without thinking."""
    here = np.flatnonzero(sequence.mask & (sequence.messages == index))
    assert list(here) == list(range(here[0], here[-1] + 1))
    before = tokenizer.decode(sequence.input_ids[: here[0]])
    tools = msgspec.json.decode(row.tools) if row.tools else None
    renders = [renderer(tokenizer), *(renderer(tokenizer, enable_thinking=each) for each in (True, False))]
    assert before in [render(to_template(row.messages[:index]), tools, True) for render in renders]
    end = tokenizer.convert_ids_to_tokens(int(sequence.labels[here[-1]]))
    assert end in tokenizer.all_special_tokens


def test_glm_stops_with_the_token_that_opens_the_next_message(tokenizer: Any) -> None:
    own = tokenizer_of("glm4moe", tokenizer)
    ends = {}
    for make in KINDS["text"], KINDS["calls"]:
        for messages, sequence in encode_row(make(0), own):
            for index, message in enumerate(messages):
                if message.train:
                    labels = sequence.labels[sequence.mask & (sequence.messages == index)]
                    ends[bool(message.tool_calls)] = own.decode(labels[-1:].tolist())
    assert ends == {True: "<|observation|>", False: "<|user|>"}


@pytest.mark.parametrize("name", FAMILIES)
def test_what_follows_the_last_turn_carries_no_loss(name: str, tokenizer: Any) -> None:
    own = tokenizer_of(name, tokenizer)
    assert kept(row([user("Go."), assistant("fly"), user("No."), assistant("walk"), user("Yes.")]), own) > 0


def test_phi_stops_with_the_end_of_its_turn_and_not_with_that_of_the_text(tokenizer: Any) -> None:
    own = tokenizer_of("phi3", tokenizer)
    [(_, sequence)] = encode_row(KINDS["text"](0), own)
    assert own.decode(sequence.labels[sequence.mask].tolist()) == "go 0<|end|>go 1<|end|>go 2<|end|>"


def test_templates_that_strip_reasoning_after_it_was_prompted_for_train_it(tokenizer: Any) -> None:
    own = tokenizer_of("deepseekv3", tokenizer)
    whole = encode_row(KINDS["thought"](0), own)
    told = [own.decode(sequence.labels[sequence.mask].tolist()) for _, sequence in whole]
    assert told == [f"because {turn}\n</think>\n\ngo {turn}<｜end▁of▁sentence｜>" for turn in range(3)]


def test_arguments_as_text_for_templates_that_join_them(tokenizer: Any) -> None:
    own = tokenizer_of("deepseekv3", tokenizer)
    messages = [user("Where?"), assistant(call='{"where":"box"}')]
    own.chat_template = own.chat_template.replace("<｜Assistant｜><think>\n", "<｜Assistant｜>")
    [(_, sequence)] = encode_row(row(messages, tools=TOOLS), own)
    assert '```json\n{"where":"box"}\n```' in own.decode(sequence.labels[sequence.mask].tolist())


INLINE = {"qwen3", "qwen3_5_think", "qwen3_6", "glm4moe", "nemotron_3_nano", "qwen2_5", "tiny", "smollm2"}


@pytest.mark.parametrize("name", sorted(INLINE))
def test_reasoning_that_is_written_into_the_content_is_trained_on(name: str, tokenizer: Any) -> None:
    own = tokenizer_of(name, tokenizer)
    said = "<think>\nbecause\n</think>\n\nwalk"
    example = row([system(), user("Go."), assistant(said), user("On."), assistant(said.replace("walk", "run"))])
    assert kept(example, own) > 0
    for messages, sequence in encode_row(example, own):
        for index in (index for index, message in enumerate(messages) if message.train):
            text = own.decode(sequence.labels[sequence.mask & (sequence.messages == index)].tolist())
            assert text.index("because") < text.index("</think>") < text.index("run" if index == 4 else "walk")


@pytest.mark.parametrize("name", FAMILIES)
def test_reasoning_in_the_content_is_trained_as_that_of_its_own_field(name: str, tokenizer: Any) -> None:
    own = tokenizer_of(name, tokenizer)

    def learned(message: Message) -> str | None:
        try:
            [(_, sequence)] = encode_row(row([user("Go."), message]), own)
        except RowError:
            return None
        # Some differ in white space.
        return "".join(str(own.decode(sequence.labels[sequence.mask].tolist())).split())

    apart = learned(thinks(assistant("walk"), "because"))
    inline = learned(assistant("<think>\nbecause\n</think>\n\nwalk"))
    assert apart is None or inline == apart


@pytest.mark.parametrize("fault", ["{{ 1 + 'x' }}", "{{ 1 / 0 }}", "{{ raise_exception('no') }}", "{{ x.y.z }}"])
def test_a_template_that_fails_drops_the_row(fault: str, tokenizer: Any) -> None:
    own = tokenizer_of("smollm2", tokenizer)
    own.chat_template = fault
    with pytest.raises(RowError, match="the chat template fails on the conversation") as caught:
        encode_row(KINDS["text"](0), own)
    assert caught.value.reason == "template"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_text_is_the_same_as_that_of_transformers(name: str, tokenizer: Any) -> None:
    own, tools = tokenizer_of(name, tokenizer), msgspec.json.decode(TOOLS)
    conversation = [{"role": "user", "content": "é <b>"}, {"role": "assistant", "content": "two\n"}]
    for messages, given, prompt in ((conversation, None, False), (conversation[:1], tools, True)):
        expected = own.apply_chat_template(messages, tools=given, add_generation_prompt=prompt, tokenize=False)
        assert renderer(own)(messages, given, prompt) == expected
