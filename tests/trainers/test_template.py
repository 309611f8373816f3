"""A model's own chat template cannot hold up or fill the training."""

from __future__ import annotations

from typing import Any

import pytest

from agentmill.schemas.templates.rendering import TemplateError
from agentmill.trainers.template import renderer, training_template
from tests.errors import user_error
from tests.model import TEMPLATE

BOMB = "{% generation %}{{ 'a' * 10 ** 10 }}{% endgeneration %}"
REFUSED = "takes more than 1,024 MiB of memory, so it is not used\ngive another one as `chat_template`, a file"
QUESTION = [{"role": "user", "content": "question"}]


def test_a_template_that_takes_too_much_ends_the_training(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", BOMB)
    with user_error("template-too-costly"):
        renderer(tokenizer)(QUESTION, None, False)


def test_trl_looks_at_a_template_under_the_same_bounds(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", BOMB)
    with user_error("template-too-costly"):
        training_template(tokenizer)


def test_a_template_that_trl_does_not_know_has_no_training_version(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for source in (TEMPLATE, "{{ raise_exception('no') }}"):
        monkeypatch.setattr(tokenizer, "chat_template", source)
        with user_error("no-training-template"):
            training_template(tokenizer)


def test_a_template_that_fails_or_shows_nothing_drops_the_row(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", "{{ messages[0].content + 1 }}")
    with pytest.raises(TemplateError, match="fails on the conversation: TypeError: can only concatenate str"):
        renderer(tokenizer)(QUESTION, None, False)
    with pytest.raises(TemplateError, match="no message"):
        renderer(tokenizer)([], None, False)
