"""The chat template of a transformers tokenizer: how it renders, what ends a turn, which its control tokens are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jinja2

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.templates.piece_tokenizer import PieceTokenizer, puts_space
from agentmill.schemas.templates.renderer import TemplateOf, render_template, template_renderer
from agentmill.schemas.templates.rendering import ChatTemplate, Render, TemplateError
from agentmill.schemas.templates.shielding import control_texts, spelled_ids

GENERATION = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")


def training_template(tokenizer: Any) -> str:
    """TRL's version of the tokenizer's chat template, which shows earlier turns as they were generated.

    It is without the marks of what the model generates, which not every server can read. Raises ``UserError`` where
    TRL has none for the template.
    """
    from trl.chat_template_utils import get_training_chat_template

    bounded: Any = _Bounded(tokenizer)  # all of a tokenizer that TRL uses here
    try:
        # TRL gives nothing where the template shows earlier turns as they were generated already.
        template = get_training_chat_template(bounded) or tokenizer.chat_template
    except (ValueError, jinja2.TemplateError) as error:
        raise UserError(
            "chat_template: TRL has no training version of the model's chat template\n"
            "Leave the setting out (a conversation then becomes several sequences), or name a file with a template.",
            ErrorCode.NO_TRAINING_TEMPLATE,
        ) from error
    return GENERATION.sub(_without_mark, str(template))


class _Bounded:
    """A tokenizer as TRL looks at its chat template, which is rendered as by ``renderer``."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.chat_template = tokenizer.chat_template

    def apply_chat_template(
        self, messages: list[JsonObject], tokenize: bool = True, add_generation_prompt: bool = False, **_: Any
    ) -> Any:
        """The text or its tokens. Raises ``jinja2.TemplateError`` as TRL expects it, and ``TypeError``."""
        try:
            source = _template_of(self._tokenizer)(None)
            text = render_template(source, messages, None, add_generation_prompt, self._tokenizer.special_tokens_map)
        except TemplateError as error:
            raise jinja2.TemplateError(str(error)) from error
        return self._tokenizer(text, add_special_tokens=False)["input_ids"] if tokenize else text


def _without_mark(mark: re.Match[str]) -> str:
    """What trims the same white space as a mark that is taken out."""
    left, right = mark[0].startswith("{%-"), mark[0].endswith("-%}")
    return (
        # A mark that was simply removed would take its white space control with it, and the text would differ.
        f"{{%{'-' if left else ''} if true {'-' if right else ''}%}}"
        if "end" not in mark[0]
        else (f"{{%{'-' if left else ''} endif {'-' if right else ''}%}}")
    )


def chat_template(tokenizer: Any) -> ChatTemplate:
    """The tokenizer's chat template."""
    return _chat_template(tokenizer, str(tokenizer.chat_template))


@lru_cache(maxsize=8)
def control_tokens(tokenizer: Any) -> tuple[str, ...]:
    """As ``control_texts``, of the tokenizer."""
    added = [(token.content, token.special) for token in tokenizer.added_tokens_decoder.values()]
    return control_texts(added, tokenizer.all_special_tokens)


@lru_cache(maxsize=8)
def piece_tokenizer(tokenizer: Any) -> PieceTokenizer | None:
    """What tokenises the pieces of a text where the tokenizer puts a space before each text; others need none.

    Raises ``UserError`` as ``PieceTokenizer``.
    """
    backend = tokenizer.backend_tokenizer
    return PieceTokenizer(backend) if puts_space(backend) else None


@lru_cache(maxsize=8)
# The source is part of the key: a tokenizer's template can be set anew.
def _chat_template(tokenizer: Any, source: str) -> ChatTemplate:
    stops = control_tokens(tokenizer)
    render = renderer(tokenizer)
    return ChatTemplate(
        render=render,
        end_of_turn=_end_of_turn(render, stops),
        stops=stops,
        thinking={
            thinking: renderer(tokenizer, enable_thinking=thinking)
            for thinking in ((True, False) if "enable_thinking" in source else ())
        },
    )


def _end_of_turn(render: Render, stops: Sequence[str]) -> str | None:
    """The first special token after an answer where a template adds more of them, as Phi-3 at the end of all."""
    special = "|".join(map(re.escape, stops))
    found = re.fullmatch(rf"\s*({special})\s*(?:(?:{special})\s*)+", _behind_answer(render)) if stops else None
    return found[1] if found else None


def _behind_answer(render: Render) -> str:
    """What a template writes behind an answer at the end; nothing where it refuses one."""
    conversation: list[JsonObject] = [
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": "the answer"},
    ]
    try:
        return render(conversation, None, False).rpartition("the answer")[2]
    except TemplateError:
        return ""


def last_token(tokenizer: Any) -> int | None:
    """The id of the last token of a conversation that ends with an answer; ``None`` where nothing is behind it."""
    ids = tokenizer(_behind_answer(renderer(tokenizer)), add_special_tokens=False)["input_ids"]
    return ids[-1] if ids else None


WILL_STOP = "the model will stop at {token}, which ends turns in its chat template, too"


def stop_behind_turns(model: Any, tokenizer: Any) -> str | None:
    """Have ``model`` stop at the special token behind an answer; the token, if the model did not know to.

    The end token of a base model is that of a document, and what is trained by a chat template ends turns otherwise:
    ``generation_config.json`` then names both.
    """
    stops = control_tokens(tokenizer)
    found = re.match(rf"\s*({'|'.join(map(re.escape, stops))})", _behind_answer(renderer(tokenizer))) if stops else None
    generation = getattr(model, "generation_config", None)
    if found is None or generation is None:
        return None
    token, known = tokenizer.convert_tokens_to_ids(found[1]), end_tokens(model)
    if token in known:
        return None
    generation.eos_token_id = [token, *known]
    return found[1]


def end_tokens(model: Any) -> list[int]:
    """The ids at which ``model`` stops."""
    found = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return [found] if isinstance(found, int) else list(found or ())


def renderer(tokenizer: Any, **options: Any) -> Render:
    """The tokenizer's chat template as a function to text, the same as ``tokenizer.apply_chat_template`` gives.

    It raises as that of ``template_renderer``.
    """
    return template_renderer(_template_of(tokenizer), lambda: {**tokenizer.special_tokens_map, **options})


def _template_of(tokenizer: Any) -> TemplateOf:
    return lambda tools: str(tokenizer.get_chat_template(None, tools))


def text_ids(text: str, tokenizer: Any) -> list[int] | None:
    """As ``spelled_ids``, of the tokenizer."""
    return _text_ids(text, tokenizer)


@lru_cache(maxsize=256)
def _text_ids(text: str, tokenizer: Any) -> list[int] | None:
    controls = {tokenizer.convert_tokens_to_ids(token) for token in control_tokens(tokenizer)}
    pieces = piece_tokenizer(tokenizer)
    if pieces is not None:
        return spelled_ids(text, pieces.split, controls)

    def split(part: str) -> list[int]:
        ids: list[int] = tokenizer(part, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return ids

    return spelled_ids(text, split, controls)
