"""GGUF to a transformers model folder."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging


def convert(gguf: Path, folder: Path, chat_template: str) -> None:
    """Write the model and tokenizer in ``gguf`` to ``folder`` as bfloat16 safetensors.

    Quantized weights are expanded first: transformers refuses to save them as they are. ``chat_template`` is the name
    of a template that TRL ships; it replaces the one in the file.
    """
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
        trust_remote_code=False,
    )
    model.bfloat16().save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, trust_remote_code=False)
    tokenizer.chat_template = (files("trl") / "chat_templates" / chat_template).read_text(encoding="utf-8")
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)
