"""Where TRL puts the loss on tool conversations, and where we do: tokens with loss by role, for SFT, DPO and KTO.

TRL's column is read from the batches that its unmodified trainers make of the same rows: all of a conversation for
SFT, all that follows the prompt for DPO and KTO. Ours is what ``trainers`` trains on. The role of a token follows from
where each message ends in the rendered conversation. The rows are generated: calls of a tool, what it answers, a last
word. The model is the tiny one of the tests; only its tokenizer and chat template matter here.
"""

from __future__ import annotations

import os
import random
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from datasets import Dataset
from machine import describe

from agentmill.schemas.chat import to_template
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.rows import Message, MessageCall, PreferenceRow, SftRow, UnpairedRow
from agentmill.schemas.templates.prefix_texts import PrefixTexts
from agentmill.trainers.chat_template import renderer
from agentmill.trainers.mask_test import ROLES, count_by_role
from agentmill.trainers.model_io import load_tokenizer
from agentmill.trainers.preference_data import encode_labelled, encode_pair
from agentmill.trainers.tokenization import Encoded, encode, message_ends
from tests.model import tiny_model

ROWS = 64
TOOLS: list[JsonObject] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Say what is in a place.",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
        },
    }
]
VIEW: dict[str, Any] = {"view": "generated", "view_parameters": {}, "tools": msgspec.json.encode(TOOLS).decode()}
PLACES = ["box", "shelf", "cart", "room", "door"]
SEEN = ["a ball", "a ring", "a number", "dust", "an empty cart"]
Conversation = Sequence[Message]


def search(chance: random.Random, n_calls: int, answer: str) -> list[Message]:
    """Calls, what came back, and an answer; loss on what the assistant says."""
    messages = []
    for number in range(n_calls):
        call = MessageCall(name="look", arguments=f'{{"place":"{chance.choice(PLACES)}"}}', id=f"call{number}")
        seen = f"You see {', '.join(chance.choices(SEEN, k=8))}."
        messages.append(Message(role="assistant", tool_calls=[call], train=True))
        messages.append(Message(role="tool", content=seen, tool_call_id=f"call{number}", name="look"))
    return [*messages, Message(role="assistant", content=answer, train=True)]


def pairs(number: int) -> list[PreferenceRow]:
    """Searches that found the key, each with one that did not."""
    chance = random.Random(0)
    rows = []
    for index in range(number):
        system = Message(role="system", content="Use tools to find things.")
        user = Message(role="user", content=f"Where is the key? Begin at the {chance.choice(PLACES)}.")
        chosen = search(chance, 1 + index % 4, "The key is in the box.")
        rejected = search(chance, 2 + index % 4, "I cannot find the key.")
        sides: dict[str, Any] = {"chosen": chosen, "rejected": rejected, "chosen_id": "t", "rejected_id": "u"}
        rows.append(PreferenceRow(row_id=f"row{index}", prompt=[system, user], **sides, **VIEW))
    return rows


def loss_by_role(
    conversation: Conversation, tools: list[JsonObject] | None, ids: Sequence[int], mask: Sequence[int], tokenizer: Any
) -> Counter[str]:
    """Tokens with loss under TRL's mask. Raises ``AssertionError`` where its tokens are not those of the rendering."""
    plain = to_template(conversation)
    prefixes = PrefixTexts(plain, tools, renderer(tokenizer))
    text = prefixes.text(len(plain), False)
    whole = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    assert list(ids) == whole["input_ids"]
    ends = prefixes.retried(lambda: message_ends(prefixes, text, len(plain)))
    loss: Counter[str] = Counter()
    for (start, _), kept in zip(whole["offset_mapping"], mask, strict=True):
        loss[conversation[min(bisect_right(ends, start), len(ends) - 1)].role] += int(kept)
    return loss


def trl_loss(
    trainer_type: Any, config_type: Any, rows: list[dict[str, Any]], conversations: list[Conversation], tokenizer: Any
) -> Counter[str]:
    """Tokens with loss by role in the batches of TRL's own trainer; ``conversations`` are the sequences of a batch."""
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_type(
            model=AutoModelForCausalLM.from_pretrained(tiny_model()),
            args=config_type(output_dir=folder, use_cpu=True, bf16=False, report_to="none", max_length=None),
            train_dataset=Dataset.from_list(rows, on_mixed_types="use_json"),
            processing_class=tokenizer,
        )
    return batch_loss(trainer, conversations, TOOLS, tokenizer)


def batch_loss(
    trainer: Any, conversations: Sequence[Conversation], tools: list[JsonObject] | None, tokenizer: Any
) -> Counter[str]:
    """Tokens with loss by role where a trainer of TRL makes one batch of all its rows."""
    batch = trainer.data_collator(list(trainer.train_dataset))
    masks = batch["completion_mask"] if "completion_mask" in batch else batch["labels"] != -100
    loss: Counter[str] = Counter()
    for conversation, ids, mask, attended in zip(
        conversations, batch["input_ids"], masks, batch["attention_mask"], strict=True
    ):
        size = int(attended.sum())
        loss += loss_by_role(conversation, tools, ids[:size].tolist(), mask[:size].tolist(), tokenizer)
    return loss


def show(kind: str, theirs: Counter[str], ours: Sequence[Encoded]) -> None:
    counts = count_by_role(ours)
    for role in ROLES:
        print(f"{kind:4} {role:10} {counts[role]['tokens']:8,} {theirs[role]:10,} {counts[role]['loss']:10,}")


def main() -> None:
    """Print the table."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, SFTConfig, SFTTrainer

    print(describe("trl", "transformers", "torch"))
    tokenizer = load_tokenizer(tiny_model())
    rows = pairs(ROWS)
    tools = {"tools": VIEW["tools"]}
    good: list[Conversation] = [[*row.prompt, *row.chosen] for row in rows]
    bad: list[Conversation] = [[*row.prompt, *row.rejected] for row in rows]
    print(f"{ROWS} rows of each kind\n\n     {'role':10} {'tokens':>8} {'loss, TRL':>10} {'loss, ours':>10}")

    plain = [{"messages": to_template(each), **tools} for each in good]
    sft = [SftRow(row_id="row", trajectory_id="t", messages=list(each), **VIEW) for each in good]
    show("SFT", trl_loss(SFTTrainer, SFTConfig, plain, good, tokenizer), [encode(each, tokenizer) for each in sft])

    sides = ("prompt", "chosen", "rejected")
    plain = [{**{side: to_template(getattr(row, side)) for side in sides}, **tools} for row in rows]
    ours = [each for row in rows for each in encode_pair(row, tokenizer, 4096).sequences]
    show("DPO", trl_loss(DPOTrainer, DPOConfig, plain, good + bad, tokenizer), ours)

    unpaired = [
        UnpairedRow(row_id=row.row_id, trajectory_id="t", prompt=row.prompt, completion=row.chosen, label=True, **VIEW)
        for row in rows
    ]
    plain = [
        {"prompt": to_template(row.prompt), "completion": to_template(row.completion), "label": row.label, **tools}
        for row in unpaired
    ]
    ours = [each for row in unpaired for each in encode_labelled(row, tokenizer, 4096).sequences]
    show("KTO", trl_loss(KTOTrainer, KTOConfig, plain, good, tokenizer), ours)


if __name__ == "__main__":
    main()
