"""The command line of a training script, ``python -m agentmill.trainers.NAME --config FILE [key=value …]``: settings,
messages and exit codes.

Imports nothing heavy, so that mistakes are reported at once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from pydantic import Field, field_validator

from agentmill.schemas.config import override, read_yaml, validate
from agentmill.schemas.errors import CODE_FILE, UserError, ignored_interrupts_repeated, is_interrupt, printable
from agentmill.schemas.monitoring import Positive
from agentmill.schemas.training import DpoConfig, KtoConfig, RewardConfig, SftConfig, TrainConfig

MODEL_NAMES = "a folder, `bundled:NAME`, or on the Hub `ORG/NAME[@REVISION]`"


class TrainSettings(TrainConfig):
    """Settings of every trainer: the tables and models that a recipe's step knows by name are folders here."""

    rows: str = Field(description="Folder of the table of training rows.")
    validation_rows: str | None = Field(
        None, description="Folder of a table of rows to validate on and not train on; `null`: see `validation`."
    )
    model: str = Field(description=f"The model to start from, or a LoRA adapter: {MODEL_NAMES}.")
    base: str | None = Field(
        None, description="The model of the adapter that `model` names; `null`: the one that its files name."
    )
    output: str = Field(description="Folder to write the tuned model to; it appears when training is complete.")
    recipe: str | None = Field(None, description="Name of the recipe this is a step of, for the model card.")
    resume: bool = Field(
        True,
        description="Continue from checkpoints of the same training; false: discard them.",
    )
    log_steps: Positive = Field(1, description="Steps between the points of the recorded loss curve.")

    @field_validator("output")
    @classmethod
    def _has_a_name(cls, output: str) -> str:
        if not Path(output).expanduser().absolute().name:
            raise ValueError(f"expected a folder that can be made, such as runs/tuned, got {output!r}")
        return output


class PreferenceSettings(TrainSettings):
    """Settings of trainers that keep a model close to a reference."""

    reference: str | None = Field(
        None, description=f"The model to stay close to: {MODEL_NAMES}; `null`: the one to start from."
    )
    reference_base: str | None = Field(
        None, description="The model of the adapter that `reference` names; `null`: the one that its files name."
    )


class SftSettings(SftConfig, TrainSettings):
    """Settings of supervised fine-tuning on a table of ``SftRow``."""


class DpoSettings(DpoConfig, PreferenceSettings):
    """Settings of direct preference optimization on a table of ``PreferenceRow``."""


class KtoSettings(KtoConfig, PreferenceSettings):
    """Settings of Kahneman-Tversky optimization on a table of ``UnpairedRow``."""


class RewardSettings(RewardConfig, TrainSettings):
    """Settings of a reward model on a table of ``PreferenceRow`` or ``ScorerRow``."""


S = TypeVar("S", bound=TrainSettings)


def output_of(settings: TrainSettings) -> Path:
    """Where the training writes its model."""
    return Path(settings.output).expanduser().absolute()


OFFLINE = "HF_HUB_OFFLINE"
GIVEN_OFFLINE = os.environ.get(OFFLINE)
GPUS = "CUDA_VISIBLE_DEVICES"
GIVEN_GPUS = os.environ.get(GPUS)
"""What the user has set, before ``prepare_environment`` does."""

INTERRUPTED = "interrupted; the same command continues from the last checkpoint"


def read_settings(settings_type: type[S], name: str, argv: Sequence[str] | None) -> S:
    """The settings of the command line ``argv``, by default this process's own. Raises ``UserError``."""
    description = (settings_type.__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog=f"python -m agentmill.trainers.{name}", description=description)
    parser.add_argument("--config", required=True, help="YAML file with the settings (see schemas/training.py)")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that go before those of the file")
    arguments = parser.parse_args(argv)
    return validate(settings_type, override(read_yaml(arguments.config), arguments.overrides), arguments.config)


def prepare_environment() -> None:
    """Work offline with one GPU for each process, as the libraries read it from the environment."""
    os.environ.setdefault(OFFLINE, "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # The tokenizers library warns when a process forks after its threads have run.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # oneDNN keeps 1024 kernels, some for each length of a batch; with so many, memory grew by 20 MB a step.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    use_one_gpu(os.environ)


def use_one_gpu(environment: MutableMapping[str, str]) -> None:
    """Let a process that no launcher started see the first of its GPUs alone: TRL refuses to begin on several.

    It has to come before anything asks PyTorch for its devices.
    """
    if "WORLD_SIZE" not in environment:
        # The first of those that are visible: a scheduler may have given this process other GPUs than 0.
        environment[GPUS] = environment.get(GPUS, "0").partition(",")[0]


def exit_code_of(work: Callable[[], object], interrupted: str) -> int:
    """Do ``work``, print what stopped it, and return the exit code."""
    try:
        with ignored_interrupts_repeated():
            work()
    except UserError as error:
        say(error.labelled())
        leave_for_launcher(error.labelled())
        if CODE_FILE in os.environ:
            # Added, not written anew: of several processes one may end another between emptying and writing.
            with Path(os.environ[CODE_FILE]).open("a") as codes:
                codes.write(f"{error.code}\n")
        return 2
    except (Exception, KeyboardInterrupt) as error:
        # An interrupt inside an import or a lock comes out as another exception.
        if not is_interrupt(error):
            raise
        say(interrupted)
        return 130
    return 0


def leave_for_launcher(message: str) -> None:
    """Leave what ended this process where torchrun and ``accelerate launch`` look for it.

    The first process alone prints, and another one may have been the first to fail, as on another machine.
    """
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if file:
        Path(file).write_text(json.dumps({"message": message, "timestamp": int(time.time())}), encoding="utf-8")


def exit_process(code: int) -> NoReturn:
    """End this process with ``code``. One of several goes without the interpreter's last steps.

    Threads of torch's process group may abort a process in these, when all it had to do is done.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # os._exit writes no buffers.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def is_first_process() -> bool:
    """Whether this is the only process of the training, or the first of several."""
    return os.environ.get("RANK", "0") == "0"


def say(text: str) -> None:
    """Print ``text`` to stderr, once for all processes."""
    if is_first_process():
        print(printable(text), file=sys.stderr, flush=True)
