"""Chat templates of the model families that are fine-tuned most, each with a tokenizer that has it.

Most are files that TRL ships. ``WRITTEN`` are those of families that it has none of: short versions, after the
templates that the models publish.
"""

from __future__ import annotations

import re
from typing import Any

from tokenizers import Tokenizer

from tests.model import TEMPLATE
from tests.trainers.template_families import shipped

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HERMES = (
    "{% for message in messages %}{% if message.role == 'tool' %}"
    "{{ '<|im_start|>tool\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}{% else %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content }}{% for call in message.tool_calls or [] %}"
    "{{ '\n<tool_call>\n' + call.function | tojson + '\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MISTRAL = (
    "{{ '<s>' }}{% for message in messages %}{% if message.role == 'assistant' %}"
    "{% if message.tool_calls %}{{ '[TOOL_CALLS] ' + (message.tool_calls | map(attribute='function') | list | tojson)"
    " + '</s>' }}{% else %}{{ ' ' + message.content + '</s>' }}{% endif %}"
    "{% elif message.role == 'tool' %}{{ '[TOOL_RESULTS] ' + message.content + '[/TOOL_RESULTS]' }}"
    "{% elif message.role == 'system' %}{{ '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}"
    "{% else %}{{ '[INST]' + message.content + '[/INST]' }}{% endif %}{% endfor %}"
)
GRANITE = (
    "{% for message in messages %}{{ '<|start_of_role|>' + message.role + '<|end_of_role|>' + message.content }}"
    "{% if message.tool_calls %}{{ '<|tool_call|>' + message.tool_calls | tojson }}{% endif %}{{ '<|end_of_text|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}"
)
ZEPHYR = (
    "{% for message in messages %}{{ '<|' + message.role + '|>\n' + message.content + '</s>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
WRITTEN = {
    "tiny": TEMPLATE,
    "smollm2": CHATML,
    "hermes": HERMES,
    "mistral": MISTRAL,
    "granite": GRANITE,
    "zephyr": ZEPHYR,
}
CONTROL = re.compile(r"<[|｜][^<>'\" {}]+[|｜]>|<(?:start|end)_of_turn>|<\|?turn\|?>|<\|tool_\w+>|\[/?[A-Z_]+\]|</?s>")


def tokenizer_of(name: str, plain: Any) -> Any:
    """A copy of the tokenizer ``plain`` with the template of that name and its control tokens."""
    template = WRITTEN.get(name) or shipped(name)
    own = Tokenizer.from_str(plain.backend_tokenizer.to_str())
    copy = type(plain)(tokenizer_object=own, bos_token="<s>", eos_token="</s>", pad_token="<|endoftext|>")
    copy.add_special_tokens({"additional_special_tokens": sorted(set(CONTROL.findall(template)))})
    copy.chat_template = template
    return copy
