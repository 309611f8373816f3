"""Several trainings by one launch, whose imports take longer than they do.

    python -m tests.trainers.several_trainings FOLDER/TRAINER.yaml:PORT …

Each training gets processes of its own, forked after the imports, that meet at its port.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import trl.trainer.dpo_trainer
import trl.trainer.reward_trainer  # noqa: F401

from agentmill.trainers import trial
from agentmill.trainers.command import exit_process


def main() -> int:
    """Returns the exit code of the first training that fails, else 0."""
    # All processes take part in the trial, however short the training is.
    trial.SHARE = 100.0
    for given in sys.argv[1:]:
        config, _, port = given.rpartition(":")
        if (child := os.fork()) == 0:
            os.environ |= {"MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "False"}
            exit_process(importlib.import_module(f"agentmill.trainers.{Path(config).stem}").main(["--config", config]))
        if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
