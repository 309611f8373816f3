"""What a training says beforehand of its time and memory, and that measuring it changes nothing."""

from __future__ import annotations

import json
import re
import shutil
import time
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from agentmill.trainers import estimate, trial
from agentmill.trainers.dpo import main as dpo_main
from agentmill.trainers.estimate import BeforeFirstStep, Estimate, saved_bytes, validations, write_speed
from agentmill.trainers.model_card import estimate_sentence
from agentmill.trainers.peak_memory import PeakMemory, held_bytes, release_freed
from agentmill.trainers.run_dir import WorkFolder
from agentmill.trainers.sft import main
from agentmill.trainers.trial import SHARE, Trial, fit, optimizer_cost, plan_trial, predict

torch.set_num_threads(1)


def test_the_time_of_a_batch_has_a_share_for_attention() -> None:
    lengths = [100, 800, 4000]
    quadratic = fit(lengths, [0.5 + 1e-3 * n + 2e-6 * n * n for n in lengths])
    assert quadratic == pytest.approx([0.5, 1e-3, 2e-6])
    assert predict(quadratic, np.array([2000])) == pytest.approx([0.5 + 2 + 8])
    assert fit(lengths, [2e-3 * n for n in lengths]) == pytest.approx([0, 2e-3, 0])
    assert fit([512], [1.0]) == pytest.approx([0, 1 / 512, 0])
    # Longer batches that are faster for a token: nothing below 0, which short ones would be predicted to take.
    assert (fit(lengths, [1.0, 1.5, 2.0]) >= 0).all()


def test_a_trial_takes_a_small_share_of_the_training() -> None:
    assert plan_trial(np.array([], np.int64)) == (0, [])
    assert plan_trial(np.full(20, 100)) == (0, [19])
    assert plan_trial(np.full(19, 100)) == (0, [])
    lengths = np.tile([400, 100, 200], 200)
    rounds, numbers = plan_trial(lengths)
    assert (rounds, lengths[numbers].tolist()) == (3, [100, 200, 400])
    assert (rounds + 1) * lengths[numbers].sum() <= SHARE * lengths.sum()


def test_an_optimizer_is_timed_on_copies() -> None:
    weight, bias = torch.nn.Parameter(torch.ones(300, 100)), torch.nn.Parameter(torch.ones(100))
    adam = torch.optim.AdamW([{"params": [weight], "lr": 0.1}, {"params": [bias], "lr": 0.2}])
    seconds, held = optimizer_cost(adam)
    assert seconds > 0
    assert held == pytest.approx(8 * 30_100, rel=1e-3)
    assert (weight == 1).all()
    assert not adam.state
    assert optimizer_cost(torch.optim.SGD([weight], lr=0.1))[1] == 0
    weight.grad = torch.ones_like(weight)
    adam.step()
    assert optimizer_cost(adam)[1] == 0, "after a stop the state is loaded, and measured with the rest"


def test_what_is_slow_only_once_is_no_part_of_an_optimizer_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clip, calls = torch.nn.utils.clip_grad_norm_, 0

    def loads_kernels(*arguments: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        time.sleep(0.5 if calls == 1 else 0)
        return clip(*arguments)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", loads_kernels)
    seconds, _ = optimizer_cost(torch.optim.AdamW([torch.nn.Parameter(torch.ones(300, 100))]))
    assert calls > 1
    assert 0 < seconds < 0.25


def test_an_optimizer_that_cannot_be_made_again_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    class Own(torch.optim.SGD):
        def __init__(self, params: Any, teacher: str) -> None:
            super().__init__(params, lr=0.1)
            self.teacher = teacher

    assert optimizer_cost(Own([torch.nn.Parameter(torch.ones(4))], "it")) == (0.0, 0.0)
    assert "estimate: without optimizer steps, which cannot be measured (Own: " in capsys.readouterr().err


def test_the_peak_within_a_context_is_seen() -> None:
    with PeakMemory() as memory:
        held = torch.ones(1 << 26)
        for _ in range(20):
            held += 1
    assert 0.9 * 2**28 < memory.bytes - memory.before < 1.3 * 2**28


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU torch counts the memory that is held")
def test_freed_memory_is_returned_to_the_system() -> None:
    blocks = [bytearray(b"x" * 100_000) for _ in range(3000)]
    full = held_bytes()
    # The last block keeps glibc from returning what lies below it.
    del blocks[:-1]
    release_freed()
    assert full - held_bytes() > 2e8
    assert len(blocks) == 1


@pytest.mark.parametrize(("held", "expected"), [(89, []), (91, [0, 2]), (101, [0, 1, 2])])
def test_memory_is_returned_when_it_is_full_and_sooner_before_long_batches(
    held: int, expected: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each step has two batches; the estimate is of 100 bytes."""
    callback = BeforeFirstStep(SimpleNamespace(batch_lengths=np.array([9, 100, 70, 70, 80, 10])), {}, Path(), True)  # type: ignore[arg-type]
    args, released, step = SimpleNamespace(gradient_accumulation_steps=2), [], 0
    monkeypatch.setattr(estimate, "release_freed", lambda: released.append(step))
    monkeypatch.setattr(estimate, "held_bytes", lambda: held)
    callback.on_step_begin(args, SimpleNamespace(global_step=0), None)
    assert released == [], "without an estimate nothing is known"
    monkeypatch.setattr(callback, "_estimate", Estimate(3, 1.0, 0.1, 100))
    for step in range(3):
        callback.on_step_begin(args, SimpleNamespace(global_step=step), None)
    assert released == ([] if torch.cuda.is_available() else expected)
    # It is said once that more is held than was estimated.
    said = capsys.readouterr().err.count("GiB are held, more than estimated")
    assert said == (held > 100 and not torch.cuda.is_available())


def test_the_card_says_how_good_the_estimate_was() -> None:
    assert estimate_sentence({}) == ""
    known = {"steps": 8, "estimated_seconds": 12.0, "seconds": 11.0, "estimated_memory_gib": 3.1, "memory_gib": 3.0}
    printed = estimate_sentence(known)
    assert printed == "Estimated before the first of 8 steps: 12 s and 3.1 GiB;\nit took 11 s and 3.0 GiB.\n"


def weights(folder: Path) -> str:
    return sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def curve(folder: Path) -> list[dict[str, Any]]:
    points = json.loads((folder / "training.json").read_bytes())["loss_curve"]
    return [{key: value for key, value in point.items() if key != "seconds"} for point in points]


@pytest.mark.parametrize(
    ("done", "every", "strategy", "expected"),
    [(0, 4, "steps", 3), (8, 4, "steps", 1), (0, 5, "steps", 2), (0, 20, "steps", 1), (0, 4, "no", 0)],
)
def test_the_validations_that_are_left(done: int, every: int, strategy: str, expected: int) -> None:
    arguments = SimpleNamespace(eval_strategy=strategy, eval_steps=every)
    trainer: Any = SimpleNamespace(args=arguments, state=SimpleNamespace(max_steps=10))
    # Ten steps are validated at 4, 8 and 10.
    assert validations(trainer, 10 - done) == expected


@pytest.mark.slow
def test_a_training_is_the_same_with_an_estimate_and_without(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # With dropout, so that a difference in the random numbers would be seen.
    options = ["lora={rank: 4, dropout: 0.1}", "gradient_accumulation=2", "max_steps=4"]
    assert main(["--config", str(config), *options, f"output={tmp_path / 'short'}"]) == 0
    assert "estimate:" not in capsys.readouterr().err, "a trial would take more of four steps than it may"
    monkeypatch.setattr(trial, "SHARE", 10.0)
    for name in ("true", "false"):
        assert main(["--config", str(config), *options, f"estimate={name}", f"output={tmp_path / name}"]) == 0
        printed = capsys.readouterr().err
        assert bool(re.search(r"estimate: 4 steps of 8 × \d+ tokens on average, about \d:\d\d:\d\d \(±", printed)) == (
            name == "true"
        )
    assert weights(tmp_path / "true") == weights(tmp_path / "false") == weights(tmp_path / "short")
    assert curve(tmp_path / "true") == curve(tmp_path / "false") == curve(tmp_path / "short")
    found = json.loads((tmp_path / "true" / "training.json").read_bytes())["estimate"]
    assert found["steps"] == 4
    assert found["memory_gib"] * 0.8 < found["estimated_memory_gib"] < found["memory_gib"] * 1.25
    assert found["estimated_seconds"] > 0
    assert json.loads((tmp_path / "false" / "training.json").read_bytes())["estimate"] == {}
    assert "Estimated before the first of 4 steps" in (tmp_path / "true" / "README.md").read_text()


@pytest.mark.slow
def test_what_the_reference_takes_is_counted(
    dpo_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trial, "SHARE", 10.0)
    for name, value in (("measured", "true"), ("plain", "false")):
        assert dpo_main(["--config", str(dpo_config), f"estimate={value}", f"output={tmp_path / name}"]) == 0
    printed = capsys.readouterr().err
    assert printed.index("estimate: 8 steps of 4 ×") < printed.index("reference: 4 batches scored")
    assert weights(tmp_path / "measured") == weights(tmp_path / "plain")


@pytest.mark.slow
def test_a_training_that_goes_on_without_its_scores_counts_them_anew(
    dpo_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trial, "SHARE", 10.0)
    given = ["--config", str(dpo_config), "save_steps=6", f"output={tmp_path / 'stopped'}"]
    mark = WorkFolder.mark_complete

    def stop(self: WorkFolder, step: int) -> None:
        mark(self, step)
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(WorkFolder, "mark_complete", stop)
        assert dpo_main(given) == 130
    shutil.rmtree(tmp_path / ".stopped.tokens" / "reference")
    capsys.readouterr()
    assert dpo_main(given) == 0
    printed = capsys.readouterr().err
    # All four batches, though the last two steps have none that is new.
    assert printed.index("estimate: 2 steps of 4 ×") < printed.index("reference: 4 batches scored")
    assert dpo_main([*given[:3], f"output={tmp_path / 'unbroken'}"]) == 0
    assert curve(tmp_path / "stopped") == curve(tmp_path / "unbroken")


@pytest.mark.slow
def test_too_little_memory_ends_the_training_before_its_first_step(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trial, "SHARE", 10.0)
    monkeypatch.setattr(trial, "memory_limit", lambda: 2.0**27)
    assert main(["--config", str(config)]) == 2
    printed = capsys.readouterr().err
    assert re.search(r"the longest batch \(4 × \d+ tokens\) needs about \d\.\d GiB, more than the 0\.1 GiB", printed)
    assert "set batch_size=2 gradient_accumulation=2, or train a part of the weights (lora={rank: 16})" in printed
    assert "step 1 of" not in printed
    assert main(["--config", str(config), "estimate=false", "max_steps=1"]) == 0

    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(trial, "memory_limit", lambda: 2.0**40)
    monkeypatch.setattr(trial, "PeakMemory", full)
    assert main(["--config", str(config), f"output={tmp_path / 'other'}"]) == 2
    assert "needs more than the 1024.0 GiB that a process has" in capsys.readouterr().err


def test_the_first_run_of_a_batch_does_not_count_where_there_are_more() -> None:
    tried = object.__new__(Trial)
    tried._seconds = {100: [9.0], 200: [4.0, 2.0], 400: [8.0, 4.0, 4.4]}
    assert tried.points() == ([100, 200, 400], [9.0, 2.0, 4.2])
    assert tried.margin() == pytest.approx(0.1)
    tried._seconds = {100: [9.0], 200: [4.0]}
    assert tried.margin() == 0.25


def test_what_is_saved_are_checkpoints_best_models_and_the_last() -> None:
    arguments = SimpleNamespace(
        save_strategy="steps", save_steps=4, eval_strategy="steps", eval_steps=5, load_best_model_at_end=False
    )
    trainer: Any = SimpleNamespace(args=arguments, state=SimpleNamespace(global_step=0, max_steps=10))
    parameters = {"parameters": 100, "trained_parameters": 10}
    at_the_end = 4 * 10 + 8 * 100
    assert saved_bytes(trainer, parameters) == 3 * 120 + at_the_end
    arguments.load_best_model_at_end = True
    assert saved_bytes(trainer, parameters) == (3 + 2) * 120 + at_the_end
    arguments.save_strategy, arguments.load_best_model_at_end = "no", False
    assert saved_bytes(trainer, parameters) == at_the_end


def test_the_speed_of_writing_is_that_of_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate.os, "fsync", lambda _: time.sleep(0.5))
    assert write_speed(tmp_path) < estimate.WRITTEN_BYTES / 0.5
    assert list(tmp_path.iterdir()) == []
