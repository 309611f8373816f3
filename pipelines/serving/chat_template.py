"""What a model's chat template tells of how it is to be served: which parser reads its tool calls, and what it lacks.

Parsers go by vLLM's names. A family that writes its calls with marks of its own is known by these; one that shares
them with others, by the ``model_type`` of its configuration.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.models import chat_template, is_reward_model, read_json
from agentmill.schemas.templates.process import read_template, shared
from agentmill.schemas.templates.rendering import TemplateError

logger = logging.getLogger(__name__)

BY_MODEL_TYPE = {
    "ernie4_5_moe": "ernie45",
    "granitemoehybrid": "granite4",
    "hunyuan_v1_moe": "hunyuan_a13b",
    "jamba": "jamba",
    "llama4": "llama4_pythonic",
    "phi3": "phi4_mini_json",
}

BY_MARK = (
    ("<|python_tag|>", "llama3_json"),
    ("Environment: ipython", "llama3_json"),
    ("[TOOL_CALLS]", "mistral"),
    ("<｜tool▁outputs▁begin｜>", "deepseek_v3"),
    ("<｜tool▁sep｜>", "deepseek_v31"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<seed:tool_call>", "seed_oss"),
    ("<|action_start|>", "internlm"),
    ("<|tool_call_start|>", "lfm2"),
    ("<start_function_call>", "functiongemma"),
    ("<|tools_prefix|>", "apertus"),
    ("<function_calls>", "olmo3"),
    ("<arg_key>", "glm45"),
    ("<function=", "qwen3_coder"),
    ("<|tool_call|>", "granite"),
    ("<|tool_call>call:", "gemma4"),
    ("Muse Glimmer ATEM", "muse_glimmer"),
    ("<|channel|>", "openai"),
    ("<tool_call>", "hermes"),
)
"""What a chat template must hold, the most telling first: several families wrap their own form in ``<tool_call>``.

DeepSeek's V3 and R1 gather the outputs of tools between marks, which V3.1 no longer does.
"""

DEFAULT = "hermes"


def tool_parser(folder: Path, given: str | None = None) -> str:
    """vLLM's parser for the way in which the model in ``folder`` writes tool calls; ``hermes`` if nothing tells.

    ``given`` is the file of a template that takes the place of the model's own.
    """
    by_type = BY_MODEL_TYPE.get(str(read_json(folder / "config.json").get("model_type")))
    template = chat_template(folder) if given is None else read_template(Path(given))
    found = by_type or next((parser for mark, parser in BY_MARK if mark in template), None)
    if found is None and "tools" in template:
        logger.warning(
            "how %s writes tool calls is not known from its chat template, so they are read as those of %s;"
            " name vLLM's parser as `server.tool_call_parser`",
            folder,
            DEFAULT,
        )
    return found or DEFAULT


def check_template(folder: Path) -> None:
    """Raises ``UserError`` for a model without a chat template, or with one that takes too much time or memory; warns
    of one that has no word for tools."""
    template, scores = chat_template(folder), is_reward_model(folder)
    if not template and scores:
        raise UserError(
            f"the reward model {folder} has no chat template, so it cannot be shown conversations\n"
            "put the one that it was trained with into that folder as chat_template.jinja",
            ErrorCode.MODEL_WITHOUT_TEMPLATE,
        )
    if not template:
        raise UserError(
            f"the model {folder} has no chat template, so it cannot be asked for turns\n"
            "give one as `server.chat_template`, a file; it is best the one that the model is trained with",
            ErrorCode.MODEL_WITHOUT_TEMPLATE,
        )
    check_rendering(template)
    if "tools" not in template and scores:
        logger.warning("the chat template of %s has no word for tools, so it scores without seeing them", folder)
    elif "tools" not in template:
        logger.warning(
            "the chat template of %s has no word for tools, so `scaffold: tools` does not tell the model of any;"
            " `scaffold: tools_hermes` writes them into the prompt, or give another template as `server.chat_template`",
            folder,
        )


def check_rendering(template: str) -> None:
    """Render a question. Raises ``UserError`` for a template that takes too much time or memory; it may refuse."""
    question = {"role": "user", "content": "question"}
    with contextlib.suppress(TemplateError, TypeError):
        shared.render(template, {"messages": [question], "tools": None, "add_generation_prompt": True})
