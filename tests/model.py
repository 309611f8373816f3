"""A tiny random Llama with a tokenizer of its own: real code paths of vLLM and TRL in seconds, without a download.

``tiny_model()`` gives its folder, made on the first call in a process of its own (torch and transformers are not
imported here). 1,024 tokens of byte-level BPE, two layers, four heads of 32, ChatML with tools. It says nothing of
sense, but the same for the same seed. ``tiny_adapter()`` is a LoRA adapter of it that changes what it says.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = 3
VOCABULARY = 1024
CONTEXT = 1024
TEMPLATE = """\
{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}
{%- else %}{% set system = '' %}{% set rest = messages %}{% endif -%}
<|im_start|>system
{{ system }}{% if tools %}

Tools, one a line; call with <tool_call>{"name": ..., "arguments": {...}}</tool_call>:
{% for tool in tools %}{{ tool.function | tojson }}
{% endfor %}{% endif %}<|im_end|>
{% for message in rest -%}
{% if message.role == 'tool' -%}
<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else -%}
<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif -%}
{% endfor -%}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def tiny_model() -> Path:
    """The folder of the model, kept between test runs and made by one of the processes that want it."""
    folder = Path(tempfile.gettempdir()) / f"agentmill-tests-{os.getuid()}" / f"tiny-llama-{VERSION}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
            subprocess.run([sys.executable, __file__, str(folder)], check=True, env=environment)
    return folder


def tiny_adapter() -> Path:
    """The folder of the adapter, in PEFT's form."""
    return tiny_model() / "adapter"


def corpus() -> list[str]:
    """Text enough for the tokenizer to learn its merges from."""
    nouns = ["box", "ball", "key", "door", "room", "robot", "shelf", "number", "ring", "cart"]
    verbs = ["move", "open", "pick up", "put down", "add", "stack", "push", "look at"]
    return [f"{verb} the {one} to the {other}. The {one} is at {other} {verb[0]}{len(other)}." for verb in verbs
            for one in nouns for other in nouns] + [TEMPLATE] * 20  # fmt: skip


def build(folder: Path) -> None:
    """Train the tokenizer, draw the weights, and put the folder in place in one step."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learner = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(corpus(), learner)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=CONTEXT
    )
    fast.chat_template = TEMPLATE
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=special.index("<|im_end|>"),
        pad_token_id=0,
    )
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(made)
        fast.save_pretrained(made)
        build_adapter(Path(made) / "adapter", config.hidden_size)
        Path(made).chmod(0o755)
        Path(made).rename(folder)
        Path(made).mkdir()  # for the temporary directory to remove


def build_adapter(folder: Path, width: int, rank: int = 8) -> None:
    """An adapter of the last projection in every layer, strong enough to be seen."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    weights = {}
    for layer in range(2):
        name = f"base_model.model.model.layers.{layer}.mlp.down_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(rank, 2 * width)
        weights[f"{name}.lora_B.weight"] = torch.randn(width, rank)
    save_file(weights, folder / "adapter_model.safetensors")
    adapter = {"peft_type": "LORA", "r": rank, "lora_alpha": 64, "target_modules": ["down_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))


if __name__ == "__main__":
    build(Path(sys.argv[1]))
