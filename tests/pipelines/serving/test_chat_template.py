"""Which parser reads the tool calls of a model, and which models cannot be served."""

from __future__ import annotations

import ast
import importlib.util
import json
import logging
from pathlib import Path

import pytest

from agentmill.pipelines.serving.chat_template import BY_MARK, BY_MODEL_TYPE, check_template, tool_parser
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.server_config import ServerConfig
from agentmill.pipelines.serving.servers import plans_of
from agentmill.pipelines.serving.vllm_command import vllm_command
from tests.errors import user_error


def model(folder: Path, template: str | list[dict[str, str]] | None = None, **configuration: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(configuration))
    if template is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


@pytest.mark.parametrize(
    ("template", "parser"),
    [
        ("{{ '<tool_call>' }}", "hermes"),
        ("<tool_call><function=", "qwen3_coder"),
        ("<tool_call>{{ name }}<arg_key>", "glm45"),
        ("<|python_tag|>", "llama3_json"),
        ("{{- 'Environment: ipython' }}", "llama3_json"),
        ("[TOOL_CALLS]", "mistral"),
        ("{{ '<｜tool▁call▁begin｜>'+ tool['function']['name'] + '<｜tool▁sep｜>' }}", "deepseek_v31"),
        ("<|im_start|>", "hermes"),
        (None, "hermes"),
    ],
)
def test_the_tool_parser_follows_the_chat_template(tmp_path: Path, template: str | None, parser: str) -> None:
    folder = model(tmp_path / "m", template)
    assert tool_parser(folder) == parser
    (folder / "chat_template.jinja").write_text("[TOOL_CALLS]")
    assert tool_parser(folder) == "mistral"


@pytest.mark.parametrize(
    ("published", "parser"),
    [
        ("deepseekv3", "deepseek_v3"),
        ("gemma4", "gemma4"),
        ("muse_glimmer", "muse_glimmer"),
        ("deepseek_r1_distill", "deepseek_v3"),
        ("glm4moe", "glm45"),
        ("gptoss", "openai"),
        ("llama3_1", "llama3_json"),
        ("qwen2_5", "hermes"),
        ("qwen3", "hermes"),
        ("qwen3_5_think", "qwen3_coder"),
    ],
)
def test_the_parsers_of_published_templates(tmp_path: Path, published: str, parser: str) -> None:
    """Those that TRL ships; found without importing it."""
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    template = Path(spec.origin).parent / f"chat_templates/{published}.jinja"
    assert tool_parser(model(tmp_path / "m", template.read_text(encoding="utf-8"))) == parser


def test_tool_calls_of_an_unknown_form_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert tool_parser(model(tmp_path / "m", "{{ tools }} <call>{{ name }}</call>")) == "hermes"
    assert "server.tool_call_parser" in caplog.text


def test_a_given_template_takes_the_place_of_the_models_own(tmp_path: Path) -> None:
    folder, given = model(tmp_path / "m", "<tool_call>"), tmp_path / "t.jinja"
    given.write_text("[TOOL_CALLS]")
    command = vllm_command(folder, "m", ServerConfig(chat_template=str(given)), 1)
    assert command[command.index("--tool-call-parser") + 1] == "mistral"


def test_a_family_that_shares_its_marks_is_known_by_its_type(tmp_path: Path) -> None:
    assert tool_parser(model(tmp_path / "m", "<tool_call>", model_type="granitemoehybrid")) == "granite4"
    assert tool_parser(model(tmp_path / "m", "<tool_call>", model_type="qwen2")) == "hermes"


def test_the_option_goes_before_the_family(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", "[TOOL_CALLS]")
    for given, used in ((None, "mistral"), ("xlam", "xlam")):
        command = vllm_command(folder, "m", ServerConfig(tool_call_parser=given), 1)
        assert command[command.index("--tool-call-parser") + 1] == used


def test_vllm_has_all_these_parsers() -> None:
    """Read from its source: importing it takes half a minute."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    tree = ast.parse((Path(spec.origin).parent / "tool_parsers/__init__.py").read_text(encoding="utf-8"))
    [table] = [node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)]
    known = {key.value for key in table.keys if isinstance(key, ast.Constant)}
    assert len(known) > 20
    assert {*BY_MODEL_TYPE.values(), *(parser for _, parser in BY_MARK)} <= known


def test_a_model_that_cannot_be_asked_is_refused_before_it_is_served(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    with user_error("model-without-template", "server.chat_template"):
        plans_of(ModelConfig(policy="vllm", model=str(folder)), tmp_path / "run")
    (tmp_path / "t.jinja").write_text("{{ tools }}")
    given = ServerConfig(chat_template=str(tmp_path / "t.jinja"))
    assert plans_of(ModelConfig(policy="vllm", model=str(folder), server=given), tmp_path / "run")


def test_a_reward_model_without_a_template_is_not_told_to_set_what_it_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = model(tmp_path / "m")
    (folder / "config.json").write_text('{"architectures": ["LlamaForSequenceClassification"]}')
    with user_error("model-without-template", "chat_template.jinja") as caught:
        check_template(folder)
    assert "server.chat_template" not in str(caught.value)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    check_template(folder)
    assert "so it scores without seeing them" in caplog.messages[0]


def test_a_template_without_tools_is_remarked_upon(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check_template(model(tmp_path / "m", "{{ messages }} {{ tools }}"))
        assert caplog.messages == []
        check_template(model(tmp_path / "m", "{{ messages }}"))
    assert "has no word for tools" in caplog.messages[0]


BOMB = "{{ tools }}{{ 'a' * 10 ** 10 }}"


def test_a_template_that_takes_too_much_is_not_served(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", BOMB)
    with user_error("template-too-costly", "1,024 MiB"):
        check_template(folder)
    given = tmp_path / "given.jinja"
    given.write_text(BOMB)
    folder = model(tmp_path / "m", "{{ tools }}")
    check_template(folder)
    config = ModelConfig(policy="vllm", model=str(folder), server=ServerConfig(chat_template=str(given)))
    with user_error("template-too-costly", "1,024 MiB"):
        plans_of(config, tmp_path)


def test_a_template_that_refuses_a_conversation_is_served(tmp_path: Path) -> None:
    check_template(model(tmp_path / "m", "{{ raise_exception('a system message is missing') }}{{ tools }}"))
