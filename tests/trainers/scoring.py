"""Rows that a reward model learns from, and what a saved one says of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from agentmill.schemas.chat import to_template
from agentmill.schemas.records.rows import Message, ScorerRow
from tests.trainers.tables import TOOLS, side, system, user


def scored(row_id: str, value: float | None, word: str = "box", turns: int = 1, **fields: Any) -> ScorerRow:
    """A search for a key that is worth ``value``."""
    given = {"messages": [system(), user(f"Where is the key {row_id}?"), *side(turns, word)], "tools": TOOLS}
    return ScorerRow(
        row_id=row_id,
        trajectory_id="t1",
        view="scorer_rows",
        view_parameters={"rows": "trajectory"},
        value=value,
        **(given | fields),
    )


def scored_rows(number: int = 16) -> list[ScorerRow]:
    """Searches in three places, of which each has its value."""
    worth = [("box", 1.0), ("door", 0.0), ("shelf", 0.5)]
    return [
        scored(f"s{index:03d}", value, word, index % 2)
        for index, (word, value) in zip(range(number), worth * number, strict=False)
    ]


def asked(folder: Path, conversations: Sequence[Sequence[Message]], tools: list[Any] | None) -> list[float]:
    """What the model in ``folder`` says of each conversation, loaded and asked as its users would."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    texts = [tokenizer.apply_chat_template(to_template(each), tools=tools, tokenize=False) for each in conversations]
    batch = tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt")
    with torch.no_grad():
        said = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    assert said.shape == (len(texts), 1)
    values: list[float] = said[:, 0].tolist()
    return values
