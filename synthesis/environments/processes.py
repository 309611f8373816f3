"""Digests of the same run in other processes, to see whether hash seeds or memory addresses leak into a state."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import msgspec

from agentmill.schemas.records.record import Record
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction
from agentmill.synthesis.environments.environment import Environment

TIMEOUT_S = 120.0


class Run(Record):
    """Actions in an environment. ``maker`` is ``"package.module:callable"``, so that other processes can make it."""

    spec: EnvironmentSpec
    task: Task
    seed: int
    maker: str
    actions: list[AnyAction]

    def digests(self) -> list[str]:
        """The digests after reset and after each action."""
        environment = made_by(self.maker, self.spec)
        environment.reset(self.task, self.seed)
        digests = [environment.state_digest()]
        for action in self.actions:
            environment.step(action)
            digests.append(environment.state_digest())
        return digests


def made_by(maker: str, spec: EnvironmentSpec) -> Environment:
    """A new environment, not yet reset."""
    module, _, attribute = maker.partition(":")
    environment: Environment = getattr(importlib.import_module(module), attribute)(spec)
    return environment


def digests_elsewhere(run: Run, hash_seed: int) -> list[str]:
    """``run.digests()`` of a new process with that ``PYTHONHASHSEED``.

    Raises ``RuntimeError`` with what the process wrote where it fails, ``subprocess.TimeoutExpired`` where it hangs.
    """
    environment = {
        **os.environ,
        "PYTHONHASHSEED": str(hash_seed),
        # The maker may be a module that only this process can find, such as one of a plug-in's tests.
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "agentmill.synthesis.environments.processes"],
        input=msgspec.json.encode(run),
        capture_output=True,
        env=environment,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the process ended with {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}")
    # An environment may print something before.
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=list[str])


def main() -> None:
    """The other process: a ``Run`` in, its digests as a JSON list on the last line out."""
    run = msgspec.json.decode(sys.stdin.buffer.read(), type=Run)
    print(msgspec.json.encode(run.digests()).decode())


if __name__ == "__main__":
    main()
