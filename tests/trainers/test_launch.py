"""Trainings in several processes: what accelerate is given, what the processes end with, and how they die."""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from agentmill.pipelines.processes.children import run_module
from agentmill.schemas.config import dump_yaml
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.launch import Launch, LaunchConfig, planned_launch, shipped_configurations
from agentmill.trainers import launch as launching
from agentmill.trainers.command import SftSettings, exit_code_of
from agentmill.trainers.launch import (
    LAUNCHER,
    accelerate_arguments,
    announcement,
    check_attention,
    check_environment,
    context_parallel_size,
    exit_code,
    launch_processes,
    pieces_of_sequence,
    prepare_launcher,
    sharding,
    sole_training,
)
from agentmill.trainers.sft import SftCollator, main
from tests.errors import shows, user_error

pytestmark = pytest.mark.slow

GPUS = 4


@pytest.fixture(autouse=True)
def launched_by_nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No trace of a launch in the environment, and none left."""
    names = ("ACCELERATE_", "FSDP_", "PARALLELISM_", LAUNCHER, "WORLD_SIZE")
    for name in [name for name in os.environ if name.startswith(names)]:
        monkeypatch.delenv(name)
    yield
    logging.disable(logging.NOTSET)


def launch_of(monkeypatch: pytest.MonkeyPatch, **given: Any) -> Launch:
    monkeypatch.setattr("agentmill.schemas.launch.find_spec", lambda name: object())
    found = planned_launch(LaunchConfig(**given), GPUS)
    assert found is not None
    return found


def given_to_accelerate(launch: Launch) -> argparse.Namespace:
    """What accelerate makes of our arguments and the file."""
    words = accelerate_arguments(launch, "sft", ["--config", "train.yaml", "max_steps=3"])
    arguments: argparse.Namespace = _validate_launch_command(launch_command_parser().parse_args(words))[0]
    return arguments


@pytest.mark.parametrize("name", shipped_configurations())
def test_accelerate_takes_the_configurations_that_ship(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = launch_of(monkeypatch, config=name)
    load_config_from_file(str(launch.file))  # refuses keys that it does not know
    arguments = given_to_accelerate(launch)
    assert (arguments.module, arguments.training_script) == (True, "agentmill.trainers.sft")
    assert arguments.training_script_args == ["--config", "train.yaml", "max_steps=3"]
    assert arguments.num_processes == (2 if name.endswith("cpu") else GPUS)
    assert arguments.mixed_precision == "no"


ENVIRONMENTS: dict[str, dict[str, str]] = {
    "fsdp2": {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_RESHARD_AFTER_FORWARD": "true",
        "FSDP_OFFLOAD_PARAMS": "false",
    },
    "fsdp2_offload": {"FSDP_VERSION": "2", "FSDP_OFFLOAD_PARAMS": "true"},
    "fsdp2_cp": {"PARALLELISM_CONFIG_CP_SIZE": "2", "PARALLELISM_CONFIG_DP_SHARD_SIZE": "2", "FSDP_VERSION": "2"},
    "zero2": {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"},
    "zero3": {
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
        "ACCELERATE_DEEPSPEED_ZERO3_INIT": "true",
        "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true",
    },
}
SHARDINGS = {
    "fsdp2": "fsdp2",
    "fsdp2_offload": "fsdp2",
    "fsdp2_cp": "fsdp2 cp2",
    "zero2": "deepspeed zero2",
    "zero3": "deepspeed zero3",
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_processes_are_set_up_as_the_configuration_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = given_to_accelerate(launch_of(monkeypatch, config=name))
    if arguments.use_deepspeed:
        arguments.deepspeed_fields_from_accelerate_config = ""
        _, environment = prepare_deepspeed_cmd_env(arguments)
    else:
        environment = prepare_multi_gpu_env(arguments)
    expected = ENVIRONMENTS[name] | {"ACCELERATE_MIXED_PRECISION": "no"}
    assert {key: environment.get(key) for key in expected} == expected
    assert arguments.nproc_per_node == str(GPUS)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    # It decides what a checkpoint holds, so a training does not continue by another one.
    assert sharding() == SHARDINGS[name]


def test_several_machines_meet_where_the_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = {"num_machines": 2, "machine_rank": 1, "main_process_ip": "10.0.0.7", "main_process_port": 29777}
    file = tmp_path / "two.yaml"
    file.write_text(dump_yaml({"distributed_type": "MULTI_GPU", "rdzv_backend": "static", **content}))
    arguments = given_to_accelerate(launch_of(monkeypatch, config=str(file)))
    prepare_multi_gpu_env(arguments)
    assert (arguments.nnodes, arguments.node_rank, arguments.nproc_per_node) == ("2", 1, str(GPUS))
    assert arguments.rdzv_endpoint == "10.0.0.7:29777"


def test_one_line_says_in_how_many_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = announcement(launch_of(monkeypatch), automatic=True)
    assert alone.startswith("training in 4 process(es) by the accelerate configuration ddp; ")
    assert "x 4 rows" in alone
    assert "launch: {processes: 1}" in alone
    asked = announcement(launch_of(monkeypatch, config="fsdp2_cp", processes=4), automatic=False)
    assert "x 2 rows" in asked
    assert "launch: {processes: 1}" not in asked


def test_a_configuration_for_the_cpu_hides_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "0,1"}
    prepare_launcher(environment, launch_of(monkeypatch, config="fsdp2"))
    assert environment == {"CUDA_VISIBLE_DEVICES": "0,1", LAUNCHER: str(os.getpid())}
    prepare_launcher(environment, launch_of(monkeypatch, config="fsdp_cpu"))
    assert environment["CUDA_VISIBLE_DEVICES"] == ""


def test_a_build_of_pytorch_without_gpus_starts_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert launching.gpus() == 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert (launching.gpus(), launching.gpus(ask=True)) == (1, 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert launching.gpus() == 2


def settings(**given: Any) -> SftSettings:
    return SftSettings(rows="rows", model="m", output="o", **given)


def test_several_gpus_are_all_used_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    monkeypatch.setattr(launching, "gpus", lambda **_: 3)
    monkeypatch.setattr(launching, "run_accelerate", lambda launch, trainer, argv: started.append(launch.processes))
    launch_processes(settings(), "sft", [])
    launch_processes(settings(launch={"processes": 1}), "sft", [])
    launch_processes(settings(launch={"processes": 2}), "sft", [])
    assert started == [3, 2]


def test_another_launcher_goes_before_the_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    launch_processes(settings(), "sft", [])
    assert capsys.readouterr().err == ""
    launch_processes(settings(launch={"processes": 3}), "sft", [])
    assert "launch has no effect: another launcher started 2 process(es)" in capsys.readouterr().err


def test_a_process_that_a_signal_ended_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(0, SimpleNamespace(exitcode=2, message="printed by the first process"), 4) == 2
    assert exit_code(1, SimpleNamespace(exitcode=1, message="a traceback"), 4) == 1
    assert capsys.readouterr().err == ""
    assert exit_code(1, SimpleNamespace(exitcode=-9), 4) == 1
    assert "process 1 of 4 was ended by SIGKILL" in capsys.readouterr().err


def test_a_mistake_that_another_process_found_is_printed_by_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "error.json"
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))

    def fail() -> None:
        raise UserError("the rows are not there", ErrorCode.TABLE_MISSING)

    assert exit_code_of(fail, "interrupted") == 2
    assert capsys.readouterr().err == ""
    monkeypatch.delenv("RANK")
    assert exit_code(3, ProcessFailure(local_rank=3, pid=1, exitcode=2, error_file=str(file)), 4) == 2
    assert capsys.readouterr().err == "the rows are not there [table-missing]\n"


def test_precision_of_another_launcher_must_not_contradict(monkeypatch: pytest.MonkeyPatch) -> None:
    check_environment("fp32", divides_sequences=False)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    check_environment("bf16", divides_sequences=False)
    with user_error("rule-broken", "mixed_precision bf16", "fp32"):
        check_environment("fp32", divides_sequences=False)


@pytest.fixture
def divided_by_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_PARALLELISM_CONFIG", "true")
    monkeypatch.setenv("PARALLELISM_CONFIG_CP_SIZE", "2")


def test_sequences_are_whole_by_default() -> None:
    assert (context_parallel_size(), pieces_of_sequence()) == (1, 1)


@pytest.mark.usefixtures("divided_by_two")
def test_sequences_are_padded_so_that_they_divide() -> None:
    assert (context_parallel_size(), pieces_of_sequence()) == (2, 4)
    row = {"input_ids": [5, 6, 7, 8, 9], "labels": [-100, 6, 7, 8, 9], "weights": [0.0, 1.0, 1.0, 1.0, 2.0]}
    batch = SftCollator(3, multiple=pieces_of_sequence())([row])
    assert {name: values.tolist() for name, values in batch.items()} == {
        "input_ids": [[5, 6, 7, 8, 9, 3, 3, 3]],
        "labels": [[-100, 6, 7, 8, 9, -100, -100, -100]],
        "weights": [[0.0, 1.0, 1.0, 1.0, 2.0, 0.0, 0.0, 0.0]],
        "attention_mask": [[1, 1, 1, 1, 1, 0, 0, 0]],
    }


class Configuration(SimpleNamespace):
    def get_text_config(self) -> Configuration:
        return self


@pytest.mark.usefixtures("divided_by_two")
def test_attention_that_cannot_be_divided_is_refused() -> None:
    check_attention(Configuration(_attn_implementation="sdpa"))
    check_attention(Configuration(_attn_implementation="sdpa", layer_types=["full_attention"]))
    for given in (
        {"_attn_implementation": "eager"},
        {"_attn_implementation": "sdpa", "sliding_window": 8},
        {"_attn_implementation": "sdpa", "layer_types": ["full_attention", "sliding_attention"]},
    ):
        with user_error("rule-broken", "cp_size", "full attention", given["_attn_implementation"]):
            check_attention(Configuration(**given))
    with user_error("rule-broken", "without packing, share_prefixes and validation only"):
        check_environment("fp32", divides_sequences=False)


TWO = "launch={processes: 2, config: ddp_cpu}"


def test_a_mistake_that_the_processes_find_keeps_its_code(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with user_error("unknown-name", "python -m agentmill.trainers.sft"):
        run_module("agentmill.trainers.sft", ["--config", str(config), TWO, "lora={target_modules: [no_such]}"])


def test_processes_die_with_their_launcher(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "agentmill.trainers.sft", "--config", str(config), TWO, "max_steps=500"]
    launcher = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 500
        while not list((tmp_path / ".tuned.work").glob("checkpoint-*/complete")):
            assert launcher.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        processes = psutil.Process(launcher.pid).children(recursive=True)
        assert sum("agentmill.trainers.sft" in " ".join(each.cmdline()) for each in processes) == 2
    finally:
        launcher.kill()
        launcher.wait()
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert not alive
    # The number is part of the training, and one process would meet other rows.
    assert main(["--config", str(config), "max_steps=500"]) == 2
    assert shows(capsys.readouterr().err, "made-differently", "processes: 2 -> 1", "launch: {processes: 2}")


def test_an_output_has_one_training_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "models" / "tuned"
    with sole_training(output):
        with user_error("run-in-use", f"process {os.getpid()} trains {output} now"), sole_training(output):
            raise AssertionError("two trainings write to one folder")
        with sole_training(tmp_path / "models" / "other"):
            pass
        # Other processes of the same training.
        monkeypatch.setenv("RANK", "1")
        with sole_training(output):
            pass
        monkeypatch.delenv("RANK")
    assert list((tmp_path / "models").iterdir()) == []
    with sole_training(output):
        pass


def test_a_lock_that_was_removed_before_it_was_held_holds_nobody_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training that held it may end between the opening of its file and the lock on it."""
    output, flock, removed = tmp_path / "tuned", fcntl.flock, [tmp_path / ".tuned.lock"]

    def end_then_lock(handle: Any, operation: int) -> None:
        if removed:
            removed.pop().unlink()
        flock(handle, operation)

    monkeypatch.setattr("agentmill.schemas.file_lock.fcntl.flock", end_then_lock)
    with sole_training(output), user_error("run-in-use"), sole_training(output):
        raise AssertionError("two trainings write to one folder")
    assert list(tmp_path.iterdir()) == []


def test_a_command_is_refused_while_another_trains(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with sole_training(tmp_path / "tuned"):
        assert main(["--config", str(config)]) == 2
    assert f"process {os.getpid()} trains {tmp_path / 'tuned'} now" in capsys.readouterr().err
    assert not (tmp_path / ".tuned.work").exists()


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}, "SHARDED_STATE_DICT"),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT"}, "SHARDED_STATE_DICT"),
        ({"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}, "zero3_save_16bit_model"),
        ({"ACCELERATE_USE_FSDP": "true"}, None),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_STATE_DICT_TYPE": "full_state_dict"}, None),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_STATE_DICT_TYPE": "1"}, None),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_STATE_DICT_TYPE": "3"}, "fsdp_state_dict_type is 3"),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT"}, None),
        ({"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"}, None),
    ],
)
def test_a_launcher_that_would_save_parts_of_the_model_is_refused(
    environment: dict[str, str], named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of others: what decides is the environment that accelerate leaves to the processes."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if named is None:
        check_environment("fp32", divides_sequences=True)
    else:
        with user_error("rule-broken", named, "a whole model is saved"):
            check_environment("fp32", divides_sequences=True)
