"""Ctrl-C in the middle of each kind of stage: exit code 130, what resumes, nothing half-written, nobody left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentmill.pipelines.processes.children import run_module
from agentmill.schemas.tables import Table
from tests.fake_openai import MODEL, FakeOpenAi, text
from tests.model import tiny_model
from tests.pipelines.cli.tables import (
    CHECK,
    COMPARE,
    DEMONSTRATE,
    EXPORT,
    MODELS,
    agentmill,
    places,
    started,
    write_environments,
    write_many,
    write_recipe,
)
from tests.pipelines.engine.stages import ended_in

pytestmark = pytest.mark.slow

MANY = 4_000
SPEC_ENV = {"operator": "spec_env", "n": MANY, "as": "environments2"}
PROPOSE = {"operator": "propose", "of": "environments", "n": MANY, "as": "tasks2"}
EVOLVE = {"operator": "evolve", "of": "tasks", "environments": "environments", "n": MANY, "as": "tasks3"}
ADMIT = {"operator": "admit", "of": "tasks", "environments": "environments", "as": "tasks4"}
KEEP = {"operator": "filter", "of": "demonstrations", "where": [{"field": "split", "equals": "train"}], "as": "kept"}
ROWS = {"operator": "sft", "from": "demonstrations", "as": "rows"}
TRAIN = {"operator": "train_sft", "rows": "rows", "model": "actor", "batch_size": 1, "save_steps": 2, "as": "tuned"}


def interrupted(
    process: subprocess.Popen[str],
    stage: str,
    ready: Callable[[], bool] = lambda: True,
    number: signal.Signals = signal.SIGINT,
    group: bool = False,
) -> tuple[int, str]:
    """Send a signal when ``stage`` has started and is ``ready``; returns exit code and what stood on stderr.

    It goes to the process, or to its whole ``group``.
    """
    lines = read_until_started(process, stage)
    wait_for(ready)
    children = psutil.Process(process.pid).children(recursive=True)
    if group:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, rest = process.communicate(timeout=120)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    return process.returncode, lines + rest


def read_until_started(process: subprocess.Popen[str], stage: str) -> str:
    """What stands on stderr until ``stage`` has started."""
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith((f"{stage}: started", f"{stage}: training starts")):
            return "".join(lines)
    pytest.fail("".join(lines))


@pytest.mark.parametrize("step", [SPEC_ENV, PROPOSE, EVOLVE, ADMIT, {**DEMONSTRATE, "k": 40}], ids=itemgetter("as"))
def test_a_stage_is_interrupted(tmp_path: Path, step: dict[str, Any]) -> None:
    write_environments(tmp_path, copies=100)
    recipe = write_recipe(tmp_path, step)
    code, said = interrupted(started("run", recipe), step["as"])
    last = f"agentmill: interrupted; what was finished is kept. Go on with: agentmill run {recipe}"
    assert (code, said.splitlines()[-1]) == (130, last)
    assert "Traceback" not in said
    assert not (tmp_path / "run" / step["as"] / "manifest.json").exists()


@pytest.mark.parametrize("step", [CHECK, KEEP, ROWS], ids=itemgetter("as"))
def test_a_stage_over_trajectories_is_interrupted(tmp_path: Path, step: dict[str, Any]) -> None:
    write_environments(tmp_path)
    assert agentmill("run", write_recipe(tmp_path, DEMONSTRATE)) == 0
    many = write_many(tmp_path / "run/demonstrations", tmp_path / "demonstrations", 50_000)
    recipe = write_recipe(tmp_path, step, data={**places(tmp_path), "demonstrations": str(many)})
    code, said = interrupted(started("run", recipe), step["as"])
    assert code == 130, said
    assert "Traceback" not in said
    assert not (tmp_path / "run" / step["as"] / "manifest.json").exists()


def test_an_evaluation_is_interrupted_and_goes_on(tmp_path: Path) -> None:
    write_environments(tmp_path, copies=150)
    recipe = write_recipe(tmp_path, COMPARE)
    code, said = interrupted(started("run", recipe), "evaluation/held_out_tasks/base/trajectories")
    assert code == 130, said
    assert "Traceback" not in said
    assert not (tmp_path / "run/summary.json").exists()
    assert agentmill("run", recipe) == 0


def test_a_training_is_interrupted_between_steps_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write_environments(tmp_path)
    models = {**MODELS, "actor": {"policy": "vllm", "model": str(tiny_model())}}
    train = {**TRAIN, "max_steps": 150}
    recipe = write_recipe(tmp_path, DEMONSTRATE, CHECK, EXPORT, train, models=models)
    work = tmp_path / "run/.tuned.work"
    code, said = interrupted(started("run", recipe), "tuned", lambda: any(work.glob("checkpoint-*/complete")))
    last = f"agentmill: interrupted; what was finished is kept. Go on with: agentmill run {recipe}"
    assert (code, said.splitlines()[-1]) == (130, last), said
    assert "Traceback" not in said
    assert not (tmp_path / "run/tuned").exists()
    assert agentmill("run", recipe) == 0
    curve = json.loads((tmp_path / "run/tuned/training.json").read_bytes())["loss_curve"]
    assert [point["step"] for point in curve] == list(range(1, 151))


def test_a_training_in_two_processes_is_killed_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agentmill.trainers.sft import main

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write_environments(tmp_path)
    models = {**MODELS, "actor": {"policy": "vllm", "model": str(tiny_model())}}
    launch = {"processes": 2, "config": "fsdp_cpu"}
    # Bf16 would round a step of two processes otherwise than one of a single process.
    train = {**TRAIN, "max_steps": 24, "save_steps": 4, "launch": launch, "precision": "fp32"}
    recipe = write_recipe(tmp_path, DEMONSTRATE, CHECK, EXPORT, train, models=models)
    checkpoint = tmp_path / "run/.tuned.work/checkpoint-4/complete"
    code, said = interrupted(started("run", recipe), "tuned", checkpoint.exists, signal.SIGKILL)
    assert (code, (tmp_path / "run/tuned").exists()) == (-signal.SIGKILL, False), said
    assert agentmill("run", recipe) == 0
    config = str(tmp_path / "run/trainings/tuned/config.yaml")
    alone = ["launch={processes: 1}", "batch_size=2", "save_steps=null", f"output={tmp_path / 'alone'}"]
    assert main(["--config", config, *alone]) == 0
    two, one = (json.loads((tmp_path / each / "training.json").read_bytes()) for each in ("run/tuned", "alone"))
    assert (two["processes"], two["rows_per_step"], one["processes"], one["rows_per_step"]) == (2, 2, 1, 2)
    for key in ("step", "loss", "grad_norm", "tokens"):
        both = [[point[key] for point in each["loss_curve"]] for each in (two, one)]
        assert both[0] == pytest.approx(both[1], rel=1e-3), key
    assert two["settings"]["launch"] == launch


def test_sigterm_stops_a_stage_in_the_same_way(tmp_path: Path) -> None:
    write_environments(tmp_path, copies=100)
    process = started("run", write_recipe(tmp_path, {**DEMONSTRATE, "k": 40}))
    code, said = interrupted(process, "demonstrations", number=signal.SIGTERM)
    assert (code, "Traceback" in said) == (143, False)


def test_a_thread_that_hangs_does_not_keep_an_interrupted_command() -> None:
    code = """
import threading
from agentmill.pipelines.cli import main
main.EXIT_S = 0.5
main.invoke = lambda arguments: main.INTERRUPTED
threading.Thread(target=threading.Event().wait).start()
main.main()
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 130


@pytest.mark.parametrize(
    "work",
    ["main.agentmill.main = lambda *_, **__: work()", "main.main = lambda: command.exit_code_of(work, '')"],
    ids=["command", "training"],
)
def test_an_interrupt_within_a_destructor_ends_a_command(work: str) -> None:
    code = f"""
import os, signal, sys, time
from agentmill.pipelines.cli import main
from agentmill.trainers import command

class Held:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

def work():
    held = Held()
    del held
    time.sleep(30)
    return 0

{work}
sys.exit(main.main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, "Exception ignored" in done.stderr) == (130, False), done.stderr


TWO = {"runner": {"name": "multi_processing", "workers": 2}}


def worker_processes(process: subprocess.Popen[str]) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children(recursive=True)
    return [each for each in children if "agentmill.pipelines.engine.worker_process" in " ".join(each.cmdline())]


def test_sigterm_to_the_process_group_ends_all_of_it(tmp_path: Path) -> None:
    write_environments(tmp_path, copies=100)
    process = started("run", write_recipe(tmp_path, {**DEMONSTRATE, "k": 40}, **TWO))
    code, said = interrupted(
        process, "demonstrations", lambda: bool(worker_processes(process)), signal.SIGTERM, group=True
    )
    assert (code, "Traceback" in said, "Worker subprocess" in said) == (143, False, False)


def test_a_command_in_the_background_survives_a_lost_worker_and_can_be_interrupted(tmp_path: Path) -> None:
    write_environments(tmp_path, copies=100)
    step = {**DEMONSTRATE, "k": 40}
    process = started("run", write_recipe(tmp_path, step, **TWO), in_background=True)
    told = read_until_started(process, "demonstrations")
    wait_for(lambda: bool(worker_processes(process)))
    worker_processes(process)[0].kill()
    code, said = interrupted(process, "demonstrations")
    assert code == 130, told + said
    assert "demonstrations: Worker subprocess exited with return code -9; attempt 2" in said
    assert "Traceback" not in said


def test_the_command_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    write_environments(tmp_path, copies=100)
    recipe = write_recipe(tmp_path, {**DEMONSTRATE, "k": 3}, CHECK)
    code, said = interrupted(
        started("run", recipe), "demonstrations", lambda: ended_in(tmp_path / "run/demonstrations") > 3
    )
    assert code == 130, said
    again = started("run", recipe)
    printed, said = again.communicate(timeout=120)
    assert again.returncode == 0, said
    assert "done before" in said
    ids = [row.trajectory_id for row in Table.open(tmp_path / "run/demonstrations").rows()]
    assert len(ids) == len(set(ids)) == 300
    assert "300" in printed


def test_a_rollout_that_waits_for_a_model_is_interrupted(tmp_path: Path) -> None:
    write_environments(tmp_path)
    with FakeOpenAi([text("look", hang_s=90)]) as server:
        models = {"actor": {"policy": "openai", "model": MODEL, "endpoints": [server.url]}}
        step = {**DEMONSTRATE, "operator": "sample", "policy": "actor"}
        begun = time.monotonic()
        code, said = interrupted(started("run", write_recipe(tmp_path, step, models=models)), "demonstrations")
        assert (code, time.monotonic() - begun < 60) == (130, True), said


def test_a_server_that_starts_is_interrupted(tmp_path: Path) -> None:
    write_environments(tmp_path)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
    (model / "chat_template.jinja").write_text("{{ messages }} {{ tools }}")
    for name in ("tokenizer.json", "model.safetensors"):
        (model / name).write_text("{}")
    models = {"actor": {"policy": "vllm", "model": str(model)}}
    step = {**DEMONSTRATE, "operator": "sample", "policy": "actor"}
    process = started("run", write_recipe(tmp_path, step, models=models))
    servers = tmp_path / "run/servers.json"
    wait_for(lambda: servers.exists() and len(json.loads(servers.read_bytes())) == 1)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    assert json.loads(servers.read_bytes()) == []


def wait_for(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    """Until ``condition()`` is true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_child_process_is_stopped_with_us() -> None:
    others = psutil.Process().children(recursive=True)  # warm sandboxes
    threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        run_module("http.server", ["--bind", "127.0.0.1", "0"])
    assert set(psutil.Process().children(recursive=True)) <= set(others)
