"""Several processes for one training: ``accelerate launch`` within this process, by the setting ``launch``.

The processes are children of this one and run the same command line. Exit codes are those of a training in one
process, and messages come from the first process only.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from agentmill.schemas.config import validate
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.file_lock import Locked, open_locked
from agentmill.schemas.launch import (
    NO_CONTEXT_PARALLEL,
    DeepSpeedPart,
    FsdpPart,
    Launch,
    Sharding,
    check_configuration,
    planned_launch,
    visible_gpus,
)
from agentmill.schemas.records.manifest import disk_errors
from agentmill.trainers.command import (
    INTERRUPTED,
    S,
    TrainSettings,
    exit_code_of,
    is_first_process,
    output_of,
    prepare_environment,
    read_settings,
    say,
)

LAUNCHER = "AGENTMILL_LAUNCHER"
"""The environment variable by which a process knows the pid of the launcher of ours that started it."""

PR_SET_PDEATHSIG = 1
USER_MISTAKE = 2

FULL = "full_attention"
"""What transformers calls a layer in which each token sees all tokens before it."""


def run_trainer(train: Callable[[S], None], settings_type: type[S], name: str, argv: Sequence[str] | None) -> int:
    """Call ``train`` with the settings that ``argv`` gives. Returns 0 done, 2 a mistake to correct, 130 interrupted.

    Where the settings ask for several processes, these train, and this one ends with their exit code (``SystemExit``).
    """

    def work() -> None:
        settings = start_processes(settings_type, name, argv)
        with sole_training(output_of(settings)):
            train(settings)

    return exit_code_of(work, INTERRUPTED)


@contextlib.contextmanager
def sole_training(output: Path) -> Iterator[None]:
    """Hold ``.NAME.lock`` next to the ``output`` ``NAME``; the first process of a training holds it for all.

    Raises ``UserError`` if another training holds it.
    """
    if not is_first_process():
        yield
        return
    path = output.with_name(f".{output.name}.lock")
    try:
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = open_locked(path)
    except Locked as owner:
        raise UserError(
            f"process {owner} trains {output} now\nwait for it, stop it, or choose another `output`",
            ErrorCode.RUN_IN_USE,
        ) from owner
    with handle:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def start_processes(settings_type: type[S], name: str, argv: Sequence[str] | None) -> S:
    """The settings of the command line, where this process trains; see ``launch_processes``."""
    settings = read_settings(settings_type, name, argv)
    launch_processes(settings, name, sys.argv[1:] if argv is None else argv)
    return settings


def check_command_line(settings_type: type[TrainSettings], name: str) -> None:
    """Prepare this process for torch, and end it with exit code 2 if the settings of its command line have a mistake.

    It also ends here, with their exit code, where several processes are started to train.

    A script calls it before it imports torch: some libraries read the environment when they are imported.
    """
    code = exit_code_of(lambda: start_processes(settings_type, name, None), INTERRUPTED)
    if code:
        sys.exit(code)
    # Only now: the processes of a launch share all GPUs.
    prepare_environment()


def launch_processes(settings: TrainSettings, trainer: str, argv: Sequence[str]) -> None:
    """Train in the processes that ``settings.launch`` asks for, and end with their exit code (``SystemExit``).

    Returns at once where this process trains: it was launched, or one process is enough. Raises ``UserError`` as
    ``planned_launch`` and ``check_configuration`` do.
    """
    if "WORLD_SIZE" in os.environ:
        if LAUNCHER in os.environ:
            end_with(int(os.environ[LAUNCHER]))
        elif "launch" in settings.model_fields_set:
            say_once(f"launch has no effect: another launcher started {os.environ['WORLD_SIZE']} process(es)")
        return
    if settings.launch.config is None and settings.launch.processes == 1:
        return
    if settings.launch.config is not None:
        check_configuration(settings.launch.config, trainer, settings)
    launch = planned_launch(settings.launch, gpus(ask=settings.launch.config is not None))
    if launch is not None:
        say(announcement(launch, settings.launch.processes == "auto"))
        run_accelerate(launch, trainer, argv)


@functools.cache
def say_once(text: str) -> None:
    """Print ``text``, unless it was: a script reads its settings before and after it imports torch."""
    say(text)


def gpus(ask: bool = False) -> int:
    """The GPUs that the processes could use; ``ask`` PyTorch where it is other processes that train in any case."""
    found = len(visible_gpus())
    if found > 1 or (found and ask):
        # A build of PyTorch for the CPU uses none, whatever the machine has. Else asked only for several: with one GPU
        # it is this process that trains, and CUDA must not start before it has chosen its GPU.
        found = importlib.import_module("torch").cuda.device_count()
    return found


def announcement(launch: Launch, automatic: bool) -> str:
    """The line on the number of processes; where nobody asked for it, also how to change it."""
    line = f"training in {launch.processes} process(es) by the accelerate configuration {launch.config}"
    data_parallel = launch.processes // launch.settings.context_parallel
    line += f"; a step trains batch_size x gradient_accumulation x {data_parallel} rows"
    if automatic and launch.settings.num_processes is None:
        line += "; launch: {processes: 1} uses one GPU, {config: fsdp2} divides the model between them"
    return line


def accelerate_arguments(launch: Launch, trainer: str, argv: Sequence[str]) -> list[str]:
    """The arguments of ``accelerate launch``; they go before what is in the file."""
    arguments = ["--config_file", str(launch.file), "--num_processes", str(launch.processes)]
    # Precision is a setting of the training; the environment that accelerate makes would go before it.
    arguments += ["--mixed_precision", "no"]
    parallelism = launch.settings.parallelism_config
    if parallelism is not None:
        arguments += ["--parallelism_config_dp_shard_size", str(parallelism.data_shards(launch.processes))]
    if launch.settings.num_machines == 1:
        # A free port; several machines have agreed on one in the file.
        arguments += ["--main_process_port", "0"]
    return [*arguments, "-m", f"agentmill.trainers.{trainer}", *argv]


def run_accelerate(launch: Launch, trainer: str, argv: Sequence[str]) -> NoReturn:
    """Start the processes, wait for them, and end with the exit code of the one that failed first, or 0."""
    commands = importlib.import_module("accelerate.commands.launch")
    errors = importlib.import_module("torch.distributed.elastic.multiprocessing.errors")
    signals = importlib.import_module("torch.distributed.elastic.multiprocessing.api")
    arguments = commands.launch_command_parser().parse_args(accelerate_arguments(launch, trainer, argv))
    # Without SIGINT, which is left to Python: the processes then end by SIGTERM, without a traceback each.
    arguments.signals_to_handle = "SIGTERM,SIGHUP,SIGQUIT"
    prepare_launcher(os.environ, launch)
    try:
        commands.launch_command(arguments)
    except errors.ChildFailedError as error:
        rank, failure = error.get_first_failure()
        raise SystemExit(exit_code(rank, failure, launch.processes)) from None
    except signals.SignalException as error:
        raise SystemExit(128 + error.sigval) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"accelerate refuses {launch.file} ({type(error).__name__}: {' '.join(str(error).split())[:300]})",
            ErrorCode.RULE_BROKEN,
        ) from error
    raise SystemExit(0)


def prepare_launcher(environment: MutableMapping[str, str], launch: Launch) -> None:
    """Set what the processes inherit, and silence the launcher's own messages: ours say what happened."""
    environment[LAUNCHER] = str(os.getpid())
    if launch.settings.use_cpu:
        # A trainer takes GPUs wherever it sees them.
        environment["CUDA_VISIBLE_DEVICES"] = ""
    logging.disable(logging.ERROR)


def exit_code(rank: int, failure: object, processes: int) -> int:
    """The exit code for the process that failed first; what it could not print itself is printed here."""
    code = int(getattr(failure, "exitcode", 1))
    if code == USER_MISTAKE and rank > 0:
        # Only the process of rank 0 prints; see ``leave_for_launcher``.
        say(str(getattr(failure, "message", "")))
    if code >= 0:
        return code
    name = signal.Signals(-code).name
    hint = " (often the kernel, when memory is full)" if name == "SIGKILL" else ""
    say(f"process {rank} of {processes} was ended by {name}{hint}; the same command continues from the last checkpoint")
    return 1


def end_with(parent: int) -> None:
    """Have this process killed when its ``parent`` dies, even by SIGKILL (see prctl(2)).

    Each process of a training leads a session of its own, so whoever ends the launcher's session does not reach it.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        # The parent was gone before the kernel was asked.
        os.kill(os.getpid(), signal.SIGKILL)


def context_parallel_size() -> int:
    """How many processes divide each sequence between them, by accelerate's environment."""
    if os.environ.get("ACCELERATE_USE_PARALLELISM_CONFIG", "false").lower() != "true":
        return 1
    return int(os.environ.get("PARALLELISM_CONFIG_CP_SIZE", "1"))


def uses(what: str) -> bool:
    """Whether accelerate's environment turns on ``FSDP`` or ``DEEPSPEED``."""
    return os.environ.get(f"ACCELERATE_USE_{what}", "false").lower() == "true"


def sharing_of_model() -> Sharding | None:
    """How the processes share the model; ``None``: each has all of it."""
    if uses("DEEPSPEED"):
        return "ZeRO stage 3" if os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE") == "3" else "DeepSpeed"
    return "FSDP" if uses("FSDP") else None


def sharding() -> str | None:
    """How the processes divide the model, which decides what a checkpoint holds; ``None``: each has all of it."""
    context = f" cp{size}" if (size := context_parallel_size()) > 1 else ""
    if uses("FSDP"):
        return f"fsdp{os.environ.get('FSDP_VERSION', '1')}{context}"
    if uses("DEEPSPEED"):
        return f"deepspeed zero{os.environ.get('ACCELERATE_DEEPSPEED_ZERO_STAGE', '')}"
    return None


def pieces_of_sequence() -> int:
    """Into how many pieces of equal length each sequence is divided; 1: it is not."""
    size = context_parallel_size()
    # Each process has an early piece and a late one, which sees more tokens: so all have the same work.
    return 2 * size if size > 1 else 1


def check_environment(precision: str, divides_sequences: bool) -> None:
    """Raises ``UserError`` where accelerate's environment contradicts the training, however the processes were started.

    ``divides_sequences``: whether the training can have parts of sequences in different processes.
    """
    mixed = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if mixed not in ("no", precision):
        raise UserError(
            f"accelerate was started with mixed_precision {mixed}, and the training computes in {precision}; leave"
            " --mixed_precision out, and set mixed_precision: 'no' in the configuration",
            ErrorCode.RULE_BROKEN,
        )
    if context_parallel_size() > 1 and not divides_sequences:
        raise UserError(NO_CONTEXT_PARALLEL, ErrorCode.RULE_BROKEN)
    check_whole_model_is_saved()


def check_whole_model_is_saved() -> None:
    """Raises ``UserError`` where accelerate's environment has each process save its part of the model."""
    if uses("FSDP"):
        names = {"fsdp_version": "FSDP_VERSION", "fsdp_state_dict_type": "FSDP_STATE_DICT_TYPE"}
        given = {key: os.environ[name] for key, name in names.items() if name in os.environ}
        version = int(given.pop("fsdp_version", 1))
        validate(FsdpPart, {**given, "fsdp_version": version}, "the FSDP configuration of accelerate")
    if uses("DEEPSPEED"):
        flag = os.environ.get("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "false").lower() == "true"
        file = os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE")
        stage = int(os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", 2))
        found = {"zero_stage": stage, "zero3_save_16bit_model": flag, "deepspeed_config_file": file}
        validate(DeepSpeedPart, found, "the DeepSpeed configuration of accelerate")


def check_attention(config: Any) -> None:
    """Raises ``UserError`` for a model whose attention cannot be divided; ``config`` is that of transformers."""
    if context_parallel_size() == 1:
        return
    text = config.get_text_config()
    # Models that do not list the kinds of their layers have a window in all of them, or in none.
    kinds = set(getattr(text, "layer_types", None) or ["sliding" if getattr(text, "sliding_window", None) else FULL])
    if config._attn_implementation != "sdpa" or kinds != {FULL}:
        raise UserError(
            f"context parallelism (cp_size) needs full attention computed by sdpa; this model has"
            f" {', '.join(sorted(kinds))} computed by {config._attn_implementation}; take the configuration fsdp2",
            ErrorCode.RULE_BROKEN,
        )
