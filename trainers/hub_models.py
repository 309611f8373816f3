"""Models on the Hugging Face Hub for a training: at one commit until it is finished, and downloaded before it begins.

``python -m agentmill.trainers.hub_models ORG/NAME[@REVISION]`` downloads a model into the local cache of the Hub and
prints its folder as the last line. Trainers do that in such a process, because they work offline themselves. Nothing
heavy is imported.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, parse_labelled
from agentmill.schemas.model_hub import HubModel, cached_model, fetch_model, hub_model, pinned_model
from agentmill.schemas.models import TRAINING_RECORD, adapter_base, is_adapter
from agentmill.schemas.records.manifest import write_atomically
from agentmill.schemas.training import BASES
from agentmill.trainers.command import GIVEN_OFFLINE, OFFLINE, TrainSettings, output_of, say

S = TypeVar("S", bound=TrainSettings)
R = TypeVar("R")


def hub_folder(model: HubModel) -> Path:
    """The folder of ``model`` in the cache, downloaded first if need be. Raises ``UserError``."""
    folder = cached_model(model) if model.is_pinned else None
    if folder is not None:
        return folder
    environment = {**{name: value for name, value in os.environ.items() if name != OFFLINE}, "PYTHONSAFEPATH": "1"}
    # In this process the Hub is off, unless the user asked for that.
    environment |= {OFFLINE: GIVEN_OFFLINE} if GIVEN_OFFLINE is not None else {}
    command = [sys.executable, "-m", __name__, str(model)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise parse_labelled(done.stdout.strip() or f"exit code {done.returncode}", ErrorCode.DOWNLOAD_FAILED)
    return Path(done.stdout.strip().splitlines()[-1])


def with_pinned_models(settings: S) -> S:
    """``settings`` with the models that are on the Hub at a commit, and downloaded; also those of adapters.

    That is the commit with which the training in ``settings.output`` began, unless it starts over. Raises
    ``UserError``.
    """
    given = {role: getattr(settings, role, None) for role in (*BASES, *BASES.values())}
    named: dict[str, str] = {role: text for role, text in given.items() if text is not None}
    if not any(_may_need_hub(text) for text in named.values()):
        return settings
    output = output_of(settings)
    output.parent.mkdir(parents=True, exist_ok=True)
    # The processes of one training must not see a branch at two commits.
    with _lock_file(output).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        revisions = dict(revisions_of(output, settings.resume))
        pinned = {
            role: _fetched(text, role, revisions, has_base=BASES.get(role) in named) for role, text in named.items()
        }
        if revisions:
            write_atomically(revisions_file(output), json.dumps(revisions).encode(), output.parent)
    if (output / TRAINING_RECORD).is_file():
        remove_revisions(output)
    return settings.model_copy(update=pinned)


def _may_need_hub(text: str) -> bool:
    return hub_model(text) is not None or is_adapter(Path(text).expanduser())


def _fetched(text: str, role: str, revisions: dict[str, str], has_base: bool = False) -> str:
    """``text`` at a commit, if it is a model on the Hub. It is downloaded, and the commit noted in ``revisions``.

    So is the model that the files of an adapter name, unless the settings have it (``has_base``).
    """
    model, folder = hub_model(pinned_model(text, revisions)), Path(text).expanduser()
    if model is not None:
        folder = hub_folder(model)
        # The folder of a snapshot is called as its commit.
        model = model._replace(revision=folder.name)
        if str(model) != text:
            revisions[text] = folder.name
        say(f"{role}: {text} on the Hub, commit {folder.name}")
    base = adapter_base(folder) if is_adapter(folder) and not has_base else None
    if base is not None and hub_model(base) is not None:
        _fetched(base, f"{role}, the model of the adapter", revisions)
    return text if model is None else str(model)


def remove_revisions(output: Path) -> None:
    """Remove what ``with_pinned_models`` has left next to the output of a training."""
    for file in (revisions_file(output), _lock_file(output)):
        file.unlink(missing_ok=True)


def _lock_file(output: Path) -> Path:
    return revisions_file(output).with_suffix(".lock")


def revisions_file(output: Path) -> Path:
    """Where the commits of an unfinished training are kept, by what its settings call the models."""
    return output.with_name(f".{output.name}.revisions.json")


def revisions_of(output: Path, resume: bool = True) -> dict[str, str]:
    """The commits with which the training in ``output`` began; empty for a new one. Raises ``UserError``."""
    record, file = output / TRAINING_RECORD, revisions_file(output)
    if record.is_file():
        return _read(record, _Record).revisions
    return _read(file, dict[str, str]) if resume and file.is_file() else {}


class _Record(msgspec.Struct):
    """What is read of the record of a training."""

    revisions: dict[str, str] = {}


def _read(path: Path, wanted: type[R]) -> R:
    try:
        return msgspec.json.decode(path.read_bytes(), type=wanted)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} is damaged ({error}); delete it, and run the same command again", ErrorCode.DAMAGED_FILE
        ) from error


def main(argv: Sequence[str]) -> int:
    """Print the folder of the model named in ``argv``, or what is wrong."""
    model = hub_model(argv[0]) if len(argv) == 1 else None
    if model is None:
        print("usage: python -m agentmill.trainers.hub_models ORG/NAME[@REVISION]", file=sys.stderr)
        return 2
    try:
        print(fetch_model(model, say))
    except UserError as error:
        print(error.labelled())
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
