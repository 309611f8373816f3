"""Models as declared in a recipe, and what becomes of them: settings, revisions, command lines."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.serving import server_config, vllm_command
from agentmill.pipelines.serving.endpoints import Endpoint
from agentmill.pipelines.serving.model_folders import model_folder
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.served_model import ServedModel
from agentmill.pipelines.serving.server_config import SamplingConfig, ServerConfig
from agentmill.pipelines.serving.servers import plans_of
from agentmill.pipelines.serving.vllm_command import (
    cpu_dtype,
    served_length,
    server_gpus,
    vllm_environment,
)
from agentmill.schemas.config import validate
from agentmill.schemas.models import model_revision
from agentmill.synthesis.policies.policy import PolicySettings
from tests.errors import user_error

ENDPOINTS = [
    Endpoint(base_url="http://127.0.0.1:1/v1", model="served"),
    Endpoint(base_url="http://b/v1", model="served"),
]


def folder_with(tmp_path: Path, **files: str) -> Path:
    """A model folder; ``name__json`` becomes ``name.json``."""
    for name, content in {"config__json": "{}", **files}.items():
        (tmp_path / name.replace("__", ".")).write_text(content)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"policy": "vlm", "model": "x"}, ("rule-broken", "vlm", "vllm")),
        ({"policy": "vllm"}, ("rule-broken", "vllm", "model")),
        ({"policy": "openai", "model": "x"}, ("rule-broken", "openai", "endpoints")),
        ({"policy": "vllm", "model": "x", "endpoints": ["localhost:8000"]}, ("rule-broken", "localhost:8000")),
        (
            {"policy": "openai", "model": "x", "endpoints": ["http://a/v1/chat/completions/"]},
            ("rule-broken", "give that of the API, http://a/v1"),
        ),
        ({"policy": "vllm", "model": "x", "adapter": "a"}, ("rule-broken", "'a'", "server.lora")),
        ({"policy": "expert", "sampling": {"temprature": 1}}, ("unknown-key", "temprature", "temperature")),
        ({"policy": "expert", "sampling": {"temperature": -1}}, ("invalid-value", "sampling.temperature", "0")),
        ({"policy": "expert", "server": {"port": 70000}}, ("invalid-value", "server.port")),
        (
            {"policy": "vllm", "model": "x", "server": {"chat_template": "/no/t.jinja"}},
            ("rule-broken", "server.chat_template", "/no/t.jinja"),
        ),
    ],
)
def test_mistakes_are_explained(given: dict[str, Any], message: tuple[str, ...]) -> None:
    with user_error(*message):
        validate(ModelConfig, given, "models.actor")


def test_settings_hold_what_a_worker_needs() -> None:
    config = ModelConfig(
        policy="vllm",
        model="bundled:smollm2-135m-instruct",
        api_key_variable="KEY",
        sampling=SamplingConfig(max_tokens=32),
    )
    settings = config.settings(ENDPOINTS, "abc", {"temperature": 0.7})
    assert settings == PolicySettings(
        policy="vllm",
        name="smollm2-135m-instruct",
        revision="abc",
        model="served",
        endpoints=["http://127.0.0.1:1/v1", "http://b/v1"],
        api_key_variable="KEY",
        sampling={"temperature": 0.7, "max_tokens": 32},
        patience_s=900.0,
    )
    assert ModelConfig(policy="expert").settings() == PolicySettings(policy="expert")


def test_names_leave_out_folders() -> None:
    assert ModelConfig(policy="vllm", model="/home/me/runs/tuned/").display_name == "tuned"
    remote = ModelConfig(policy="openai", model="org/name", endpoints=["https://api/v1/"])
    assert (remote.display_name, remote.endpoints, remote.managed) == ("org/name", ["https://api/v1"], False)


def test_a_revision_is_that_of_the_files(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, model__safetensors="weights")
    before = model_revision(folder)
    (folder / "README.md").write_text("a card")
    (folder / "training.json").write_text('{"seconds": 1.5}')
    assert model_revision(folder) == before
    (folder / "model.safetensors").write_text("Weights")
    assert model_revision(folder) != before


def test_an_adapter_has_a_part_in_the_revision(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, adapter_config__json='{"r": 4}')
    server = ServerConfig(lora={"polite": str(folder)})
    config = ModelConfig(policy="vllm", model="x", adapter="polite", server=server)
    assert config.settings(ENDPOINTS, "abc").revision == f"abc+{model_revision(folder)}"
    assert config.display_name == "x+polite"


def test_an_adapter_with_the_name_of_its_base_does_not_answer_for_it(tmp_path: Path) -> None:
    server = ServerConfig(lora={"tuned": str(tmp_path), "tuned@base": str(tmp_path)})
    base = ModelConfig(policy="vllm", model="runs/one/tuned", server=server)
    adapter = ModelConfig(policy="vllm", model="runs/one/tuned", server=server, adapter="tuned")
    assert adapter.acting_name == "tuned"
    assert base.acting_name not in server.lora
    assert base.display_name == "tuned"


@pytest.mark.parametrize("text", ["{", "{}", '{"r": null}', "[]"])
def test_a_damaged_adapter_is_named(tmp_path: Path, text: str) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(text)
    (adapter / "adapter_model.safetensors").touch()
    with user_error("damaged-file", "adapter_config.json"):
        vllm_command.vllm_command(
            folder_with(tmp_path), "name", ServerConfig(lora={"polite": str(adapter)}, tool_call_parser="hermes"), 2345
        )


def test_an_adapter_without_weights_is_named(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"r": 8}')
    with user_error("model-incomplete", adapter, "holds no weights"):
        vllm_command.vllm_command(folder_with(tmp_path), "name", ServerConfig(lora={"polite": str(adapter)}), 2345)


@pytest.mark.parametrize(
    ("known", "refused"),
    [('"use_dora": true', "use_dora"), ('"modules_to_save": ["embed_tokens"]', "modules_to_save")],
)
def test_an_adapter_that_vllm_does_not_serve_is_refused(tmp_path: Path, known: str, refused: str) -> None:
    folder = folder_with(tmp_path, adapter_config__json=f'{{"r": 4, {known}}}')
    (folder / "adapter_model.safetensors").touch()
    config = ServerConfig(lora={"polite": str(folder)}, tool_call_parser="hermes")
    with user_error("model-of-wrong-kind", refused, "agentmill merge"):
        vllm_command.vllm_command(folder, "name", config, 2345)


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with user_error("model-missing", "/no/such"):
        model_folder("/no/such")
    with user_error("model-missing", "config.json"):
        model_folder(str(tmp_path))
    with user_error("unknown-name", "smollm"):
        model_folder("bundled:smollm")


def test_files_in_the_home_of_a_user_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    adapter, template = tmp_path / "ad", tmp_path / "t.jinja"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"r": 8}')
    (adapter / "adapter_model.safetensors").touch()
    template.write_text("{{ tools }}")
    config = ServerConfig(chat_template="~/t.jinja", lora={"x": "~/ad"})
    options = dict(itertools.pairwise(vllm_command.vllm_command(folder_with(tmp_path), "name", config, 2345)))
    assert options["--chat-template"] == str(template)
    assert options["--lora-modules"] == f"x={adapter}"
    assert config.identity() == ServerConfig(chat_template=str(template)).identity()


def test_the_command_serves_the_folder_as_configured(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"r": 12}')
    (adapter / "adapter_model.safetensors").touch()
    template = tmp_path / "t.jinja"
    template.write_text("[TOOL_CALLS]")
    config = ServerConfig(
        max_model_len=512,
        max_num_seqs=24,
        chat_template=str(template),
        lora={"polite": str(adapter)},
        arguments=["--x", "1"],
    )
    command = vllm_command.vllm_command(folder_with(tmp_path), "name", config, 2345)
    assert command[:3] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    options = dict(itertools.pairwise(command))
    assert options["--model"] == str(tmp_path)
    assert (options["--served-model-name"], options["--port"], options["--host"]) == ("name", "2345", "127.0.0.1")
    assert (options["--max-model-len"], options["--max-num-seqs"]) == ("512", "24")
    assert (options["--chat-template"], options["--tool-call-parser"]) == (str(template), "mistral")
    assert (options["--max-lora-rank"], options["--lora-modules"]) == ("16", f"polite={adapter}")
    assert options["--max-loras"] == "1"
    assert "--enable-prefix-caching" in command
    assert command[-2:] == ["--x", "1"]


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ('{"max_position_embeddings": 1024}', 1024),
        ('{"max_position_embeddings": 131072}', 4096),
        ('{"text_config": {"max_position_embeddings": 2048}}', 2048),
        ("{}", 4096),
    ],
)
def test_the_context_is_the_models_own_within_reason(tmp_path: Path, config: str, length: int) -> None:
    assert served_length(folder_with(tmp_path, config__json=config)) == length


@pytest.mark.parametrize(("on_cpu", "dtype"), [(True, "float32"), (False, None)])
def test_a_reward_model_is_served_to_score(
    on_cpu: bool, dtype: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_command, "on_cpu", lambda: on_cpu)
    folder = folder_with(tmp_path, config__json='{"architectures": ["Qwen3ForSequenceClassification"]}')
    command = vllm_command.vllm_command(folder, "rm", ServerConfig(arguments=["--x", "1"]), 2345)
    options = dict(itertools.pairwise(command))
    assert (options["--runner"], options.get("--dtype"), options["--served-model-name"]) == ("pooling", dtype, "rm")
    assert {"--tool-call-parser", "--enable-auto-tool-choice", "--generation-config"}.isdisjoint(command)
    assert ("--enforce-eager" in command) is on_cpu
    assert command[-2:] == ["--x", "1"]


@pytest.mark.parametrize(("on_cpu", "sequences"), [(True, 32), (False, 256)])
def test_a_gpu_works_on_more_at_once(on_cpu: bool, sequences: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_config, "on_cpu", lambda: on_cpu)
    assert ServerConfig().sequences == sequences
    assert ServerConfig(max_num_seqs=8).sequences == 8
    endpoints = [Endpoint(base_url=f"http://127.0.0.1:{port}/v1", model="m") for port in (1, 2)]
    served = ServedModel(config=ModelConfig(policy="vllm", model="m"), endpoints=endpoints)
    assert served.window == 2 * 2 * sequences


def test_each_group_of_gpus_has_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_command, "on_cpu", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    folder = folder_with(tmp_path, chat_template__jinja="{{ tools }} <tool_call>")
    server = ServerConfig(tensor_parallel_size=2, arguments=["--x"])
    plans = plans_of(ModelConfig(policy="vllm", model=str(folder), server=server), tmp_path / "run")
    assert [plan.environment["CUDA_VISIBLE_DEVICES"] for plan in plans] == ["0,1", "2,3"]
    assert len({plan.port for plan in plans}) == len({plan.log for plan in plans}) == 2
    for plan in plans:
        options = dict(itertools.pairwise(plan.command))
        assert (options["--tensor-parallel-size"], options["--port"]) == ("2", str(plan.port))
        assert plan.endpoint.base_url == f"http://127.0.0.1:{plan.port}/v1"
        assert "--enforce-eager" not in plan.command


def test_a_cpu_build_has_one_server_and_a_bounded_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_command, "on_cpu", lambda: True)
    assert server_gpus({"m": ModelConfig(policy="vllm", model="m")}) == {"m": [[]]}
    environment = vllm_environment(ServerConfig(kv_cache_gib=2), [])
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert (environment["PYTHONSAFEPATH"], environment["HF_HUB_OFFLINE"]) == ("1", "1")


@pytest.mark.parametrize(
    ("dtype", "cores", "given", "reserved"),
    [
        ("float32", 2, None, "0"),
        ("float32", 2, "1", "1"),
        ("float32", 3, None, None),
        ("bfloat16", 2, None, None),
    ],
)
def test_two_slow_cores_both_compute(
    dtype: str, cores: int, given: str | None, reserved: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_command, "on_cpu", lambda: True)
    monkeypatch.setattr(vllm_command, "cpu_dtype", lambda: dtype)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.delenv("VLLM_CPU_NUM_OF_RESERVED_CPU", raising=False)
    if given is not None:
        monkeypatch.setenv("VLLM_CPU_NUM_OF_RESERVED_CPU", given)
    assert vllm_environment(ServerConfig(), []).get("VLLM_CPU_NUM_OF_RESERVED_CPU") == reserved


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [("fpu avx512f", "float32"), ("avx512f avx512_bf16 vaes", "bfloat16"), ("asimd bf16 i8mm", "bfloat16")],
)
def test_a_cpu_without_bfloat16_serves_in_float32(tmp_path: Path, flags: str, dtype: str) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"flags : {flags}\n")
    assert cpu_dtype(cpuinfo) == dtype


def test_the_mistakes_of_an_expert_are_part_of_what_it_is() -> None:
    plain, erring = (ServedModel.of(ModelConfig(policy="expert", mistakes=each)) for each in (None, 0.3))
    assert plain.identity({"temperature": 0.5})["sampling"] == {}
    assert erring.identity({"temperature": 0.5})["sampling"] == {"mistakes": 0.3}
    thinking = ServedModel.of(ModelConfig(policy="expert", thoughts="plan"))
    assert thinking.identity({})["sampling"] == {"thoughts": "plan"}


@pytest.mark.parametrize(
    ("given", "code", "named"),
    [
        ({"policy": "openai", "model": "m", "endpoints": ["http://b/v1"], "mistakes": 0.3}, "rule-broken", "mistakes"),
        ({"policy": "scripted", "mistakes": 0.3}, "rule-broken", "'expert'"),
        ({"policy": "expert", "mistakes": 1.5}, "invalid-value", "1.5"),
        ({"policy": "scripted", "thoughts": "plan"}, "rule-broken", "'expert'"),
        ({"policy": "expert", "thoughts": "plan", "mistakes": 0.3}, "rule-broken", "thoughts"),
        ({"policy": "vllm", "model": "m", "context_window": 4096}, "rule-broken", "server.max_model_len"),
    ],
)
def test_mistakes_and_context_windows_go_with_some_policies(given: dict[str, Any], code: str, named: str) -> None:
    with user_error(code, named):
        validate(ModelConfig, given, "models.actor")
