"""The tokenizer of a model folder without transformers: conversations as the token ids that its trainer made of them.

A reward model scores tokens. They are made here as in training, under the same chat template and with the same control
tokens kept as text, and not by a server, which would take a control token in a message for one.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agentmill.schemas.chat import to_template
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.model_hub import cached_model, hub_model
from agentmill.schemas.models import TOKENIZER_FILE, chat_template, read_json
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.rows import Message
from agentmill.schemas.templates.piece_tokenizer import PieceTokenizer, puts_space
from agentmill.schemas.templates.process import read_template
from agentmill.schemas.templates.renderer import template_renderer
from agentmill.schemas.templates.rendering import TemplateError
from agentmill.schemas.templates.shielding import control_texts, shield_control_tokens, spelled_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The special tokens that templates know by name."""

FOR_TOOLS = Path("additional_chat_templates") / "tool_use.jinja"
"""Where transformers keeps a template for conversations with tools, apart from the default one."""


def tokenizer_folder(named: str) -> Path:
    """The folder of a tokenizer, which may be that of a model on the Hub, whose weights it needs not.

    Raises ``UserError`` where that is not in the cache.
    """
    hub = hub_model(named)
    if hub is None:
        return Path(named)
    folder = cached_model(hub, weights=False)
    if folder is None:
        raise UserError(
            f"tokenizer: {hub} is not in the cache of the Hub; get it with: hf download {hub.repo}"
            f" --revision {hub.revision or 'main'} --include '*.json'",
            ErrorCode.TOKENIZER_MISSING,
        )
    return folder


def load_tokenizer(folder: str) -> Tokenizer:
    """The tokenizer of a model. Raises ``UserError`` if there is none in ``folder``."""
    from tokenizers import Tokenizer

    path = tokenizer_folder(folder) / TOKENIZER_FILE
    if not path.is_file():
        raise UserError(
            f"tokenizer: there is no {path}; expected the folder of a transformers model or tokenizer",
            ErrorCode.TOKENIZER_MISSING,
        )
    tokenizer = Tokenizer.from_file(str(path))
    # The file may set a truncation, and every count would end there.
    tokenizer.no_truncation()
    return tokenizer


class ConversationTokenizer:
    """Token ids of conversations, equal to those of ``trainers.tokenization.encode_messages``.

    Raises ``UserError`` for a folder without a tokenizer or a chat template, and as ``PieceTokenizer``.
    """

    def __init__(self, folder: Path) -> None:
        # It may name a model on the Hub.
        folder = tokenizer_folder(str(folder))
        self._tokenizer = load_tokenizer(str(folder))
        # Another object: the setting holds for a tokenizer, and threads share it.
        self._splitting = load_tokenizer(str(folder))
        self._splitting.encode_special_tokens = True
        self._pieces = PieceTokenizer(self._tokenizer) if puts_space(self._tokenizer) else None
        template = chat_template(folder)
        if not template:
            raise UserError(
                f"the tokenizer in {folder} has no chat template, so no conversation can be scored\n"
                "name the folder of the model as train_reward wrote it",
                ErrorCode.MODEL_WITHOUT_TEMPLATE,
            )
        for_tools = read_template(folder / FOR_TOOLS) if (folder / FOR_TOOLS).is_file() else template
        known = _special_tokens(folder)
        self._render = template_renderer(lambda tools: for_tools if tools else template, lambda: dict(known))
        added = [(token.content, token.special) for token in self._tokenizer.get_added_tokens_decoder().values()]
        self._controls = control_texts(added, known.values())
        ids = (self._tokenizer.token_to_id(text) for text in self._controls)
        self._control_ids = frozenset(number for number in ids if number is not None)
        self._spelled = lru_cache(maxsize=256)(self._spelled_out)

    def encode(self, messages: Sequence[Message], functions: str | None) -> list[int]:
        """The tokens of a conversation under the chat template; ``functions`` is JSON text, as in a row.

        Raises ``TemplateError`` where the template cannot show it, or a message spells a control token that the
        tokenizer cannot write as text.
        """
        tools = msgspec.json.decode(functions) if functions else None
        shield = shield_control_tokens(messages, tools, self._controls)
        text = self._render(to_template(shield.messages), shield.tools, False)
        ids: list[int] = []
        before = ""
        # A piece at a time: tokens across the border of a control token would not be those of its text.
        for piece in shield.pieces(text):
            control = shield.texts.get(piece)
            ids += self._ids(piece, before) if control is None else self._spelled(control)
            before = piece
        return ids

    def _ids(self, piece: str, before: str) -> list[int]:
        if self._pieces is not None:
            return self._pieces.encode(piece, before)[0]
        return list(self._tokenizer.encode(piece, add_special_tokens=False).ids)

    def _spelled_out(self, control: str) -> list[int]:
        def split(text: str) -> list[int]:
            return list(self._splitting.encode(text, add_special_tokens=False).ids)

        ids = spelled_ids(control, self._pieces.split if self._pieces else split, self._control_ids)
        if ids is None:
            raise TemplateError(f"a message spells {control!r}, which the tokenizer cannot write as text")
        return ids


def _special_tokens(folder: Path) -> JsonObject:
    """The special tokens by name, as text."""
    config = read_json(folder / "tokenizer_config.json")
    given = {name: config.get(name) for name in NAMED}
    # Older files hold a token as an object.
    texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in given.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}
