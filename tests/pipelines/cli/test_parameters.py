"""Parameters of requests: what an entry of ``models`` names reaches the server, and the manifest without secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.server_config import SamplingConfig
from agentmill.schemas.config import validate
from agentmill.schemas.records.manifest import read_manifest
from tests.errors import user_error
from tests.fake_openai import MODEL, FakeOpenAi, Reply, status, text
from tests.pipelines.cli.tables import DEMONSTRATE, agentmill, write_environments, write_recipe

SAMPLE = {**DEMONSTRATE, "operator": "sample", "policy": "actor", "max_turns": 2, "window": 2, "as": "explored"}
NOTES = {**SAMPLE, "context": "notes", "summarizer": "actor"}
SEARCH = {
    **SAMPLE,
    "operator": "tree_search",
    "iterations": 1,
    "branching": 2,
    "value": "critic",
    "critic": "actor",
    "as": "trees",
}
WRITE = {"operator": "spec_env", "backend": "llm", "n": 1, "policy": "actor", "repairs": 0, "as": "written"}
FORMAT = {"type": "json_object"}


def endpoint(server: FakeOpenAi, **fields: Any) -> dict[str, Any]:
    return {"policy": "openai", "model": MODEL, "endpoints": [server.url], **fields}


@pytest.mark.parametrize("step", [NOTES, SEARCH, WRITE], ids=["sample", "tree_search", "spec_env"])
def test_every_caller_sends_the_parameters_of_the_model(
    tmp_path: Path, step: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_SECRET", "hidden-value")
    write_environments(tmp_path, copies=1)
    with FakeOpenAi([text("look")]) as server:
        model = endpoint(
            server,
            sampling={"temperature": None, "max_completion_tokens": 77, "response_format": FORMAT},
            extra_body={"thinking": {"budget": 3}},
            headers={"api-key": "env:GATEWAY_SECRET", "X-Title": "mill"},
        )
        recipe = write_recipe(tmp_path, step, models={"actor": model})
        agentmill("run", recipe)
    assert server.requests
    for body, headers in zip(server.requests, server.headers, strict=True):
        sent = {name: body.get(name) for name in ("max_completion_tokens", "response_format", "thinking")}
        assert sent == {"max_completion_tokens": 77, "response_format": FORMAT, "thinking": {"budget": 3}}
        assert not {"temperature", "max_tokens"} & body.keys()
        assert (headers["api-key"], headers["x-title"]) == ("hidden-value", "mill")
    written = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not [path for path in written if b"hidden-value" in path.read_bytes()]


def test_parameters_decide_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_SECRET", "hidden-value")
    write_environments(tmp_path, copies=1)
    with FakeOpenAi([text("look")]) as server:
        given = {"extra_body": {"min_words": 3}, "headers": {"api-key": "env:GATEWAY_SECRET"}}
        recipe = write_recipe(tmp_path, SAMPLE, models={"actor": endpoint(server, **given)})
        assert agentmill("run", recipe) == 0
        for change in ("models.actor.extra_body.min_words=4", "models.actor.headers.X-Title=mill"):
            assert agentmill("run", recipe, change) == 2, "the table was made with other parameters"
    actor = read_manifest(tmp_path / "run/explored").config["models"]["actor"]
    assert actor["sampling"]["min_words"] == 3
    assert actor["headers"] == {"api-key": "env:GATEWAY_SECRET"}


def test_settings_of_a_server_that_is_not_started_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_environments(tmp_path, copies=1)
    with FakeOpenAi([text("look")]) as server:
        unused = {"replicas": 4, "tool_call_parser": "hermes", "max_model_len": 512}
        actor = {**endpoint(server), "policy": "vllm", "server": unused}
        recipe = write_recipe(tmp_path, SAMPLE, models={"actor": actor})
        assert agentmill("run", recipe) == 0
    assert "explored: `server.replicas`, `server.tool_call_parser` of actor: no effect" in capsys.readouterr().err


def test_temperature_that_a_step_gives_and_the_model_does_not_take_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_environments(tmp_path, copies=1)
    with FakeOpenAi([text("look")]) as server:
        models = {"actor": endpoint(server, sampling={"temperature": None})}
        recipe = write_recipe(tmp_path, {**SAMPLE, "temperature": 0.5}, models=models)
        assert agentmill("run", recipe) == 0
    assert all("temperature" not in body for body in server.requests)
    assert (
        "explored: `temperature` is not sent to actor, whose `sampling.temperature` is null" in capsys.readouterr().err
    )


def test_limit_of_a_step_goes_by_the_name_that_the_model_wants() -> None:
    sampling = SamplingConfig(max_completion_tokens=500)
    assert sampling.sent({"max_tokens": 9}) == {"temperature": 1.0, "max_completion_tokens": 9}
    assert sampling.sent({}) == {"temperature": 1.0, "max_completion_tokens": 500}
    assert SamplingConfig(temperature=None, max_tokens=None).sent({}) == {}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"headers": {"api-key": "sk-123"}}, ("rule-broken", "headers", "api-key")),
        ({"headers": {"a b": "c"}}, ("rule-broken", "headers", "a b")),
        ({"extra_body": {"top_p": 1}}, ("rule-broken", "top_p", "sampling")),
        ({"extra_body": {"stream": True}}, ("rule-broken", "stream")),
        ({"policy": "vllm", "extra_body": {"seed": 1}}, ("rule-broken", "extra_body.seed", "vllm")),
        ({"policy": "expert", "headers": {"X-Title": "a"}}, ("rule-broken", "headers")),
        ({"policy": "expert", "sampling": {"temperature": 0}}, ("rule-broken", "sampling")),
        ({"policy": "expert"}, ("rule-broken", "endpoints")),
        ({"turns": ["go"]}, ("rule-broken", "turns", "scripted", "openai")),
        ({"server": {"max_model_len": 99}}, ("rule-broken", "server", "vllm", "openai")),
        ({"policy": "vllm", "endpoints": [], "revision": "r1"}, ("rule-broken", "revision", "endpoints")),
        ({"sampling": {"max_tokens": 5, "max_completion_tokens": 6}}, ("rule-broken", "sampling", "max_tokens")),
    ],
)
def test_mistakes_are_explained(fields: dict[str, Any], message: tuple[str, ...]) -> None:
    given = {"policy": "openai", "model": MODEL, "endpoints": ["http://127.0.0.1:9/v1"], **fields}
    with user_error(*message):
        validate(ModelConfig, given, "models.actor")


def test_header_whose_variable_is_missing_is_named_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_environments(tmp_path, copies=1)
    with FakeOpenAi([text("look")]) as server:
        models = {"actor": endpoint(server, headers={"api-key": "env:NOT_EXPORTED"})}
        assert agentmill("run", write_recipe(tmp_path, SAMPLE, models=models)) == 2
    assert (
        "'NOT_EXPORTED', named by the header 'api-key', is not set; run: export NOT_EXPORTED="
        in capsys.readouterr().err
    )
    assert not server.requests


def test_provider_that_refuses_every_request_ends_the_run_in_its_own_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is dropped, and the run goes on once the parameter is right."""
    write_environments(tmp_path, copies=4)

    def strict(body: dict[str, Any]) -> Reply:
        return status(400, message="use 'max_completion_tokens'") if "max_tokens" in body else text("look")

    with FakeOpenAi(strict) as server:
        recipe = write_recipe(tmp_path, SAMPLE, models={"actor": endpoint(server, sampling={})})
        assert agentmill("run", recipe) == 1
        said = capsys.readouterr().err
        assert "refuses every request: HTTP 400" in said
        assert "use 'max_completion_tokens'" in said
        assert "correct the model's `sampling`, `extra_body` or `headers`, and go on with: agentmill run" in said
        assert not (tmp_path / "run/explored/manifest.json").exists()
        assert agentmill("run", recipe, "models.actor.sampling.max_completion_tokens=256") == 0
    counts = read_manifest(tmp_path / "run/explored").counts
    assert (counts.read, counts.dropped) == (4, 0)
