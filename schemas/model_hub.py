"""Models on the Hugging Face Hub: ``ORG/NAME`` or ``ORG/NAME@REVISION``, wherever a model folder is accepted.

A path that exists is never taken for one. The revision, by default ``main``, is a branch, a tag or a commit, and is
resolved once: ``ORG/NAME@COMMIT`` is pinned. The files of a pinned model that is in the local cache of the Hub
(``HF_HOME``) are used without the network. Only files that a model consists of are downloaded, and never pickles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.hub import COMMIT, hub_errors, keep_pipes_plain
from agentmill.schemas.models import ADAPTER_CONFIG, read_json
from agentmill.schemas.records.manifest import disk_errors

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
_ID = re.compile(rf"(?P<repo>{_NAME}/{_NAME})(?:@(?P<revision>[A-Za-z0-9_.][A-Za-z0-9_./-]{{0,199}}))?")

TOKENIZER_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
"""The tokenizer with its chat templates, and configurations."""

# Code is downloaded and does not run: that takes `trust_remote_code`.
MODEL_FILES = (*TOKENIZER_FILES, "*.safetensors", "*.py")

LEFT_OUT = (*(f"*/{pattern}" for pattern in MODEL_FILES if pattern != "*.jinja"), "consolidated*.safetensors")
"""Other versions of a model, which repositories have in folders or, of Mistral's, in a format of its own."""

PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class HubModel(NamedTuple):
    """A model or an adapter on the Hub; without a ``revision`` that of its main branch."""

    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.repo if self.revision is None else f"{self.repo}@{self.revision}"

    @property
    def is_pinned(self) -> bool:
        """Whether its revision is a commit, so that what it names never changes."""
        return self.revision is not None and COMMIT.fullmatch(self.revision) is not None


def hub_model(text: str) -> HubModel | None:
    """The model on the Hub that ``text`` names; ``None`` for a path that exists, or that cannot be an id."""
    match = _ID.fullmatch(text)
    if match is None or Path(text).exists():
        return None
    return HubModel(match["repo"], match["revision"])


def pinned_model(text: str, revisions: Mapping[str, str]) -> str:
    """``text``, at the commit that ``revisions`` have for it if it names a model on the Hub."""
    model = hub_model(text)
    return text if model is None or text not in revisions else str(model._replace(revision=revisions[text]))


def pin_model(model: HubModel, print_line: Callable[[str], None]) -> HubModel:
    """``model`` at the commit that its revision is now.

    Where the Hub cannot be reached it is the commit that was downloaded last, which ``print_line`` reports. Raises
    ``UserError``.
    """
    if model.is_pinned:
        return model
    from huggingface_hub import HfApi

    try:
        with _model_errors(model):
            # Asked first, since resolving alone would not say that it took the commit from the cache.
            HfApi().model_info(model.repo, revision=model.revision)
            commit = HfApi().resolve_revision(model.repo, revision=model.revision).resolved
    except UserError as error:
        cached = _cached_commit(model)
        if error.code != ErrorCode.HUB_UNREACHABLE or cached is None:
            raise
        print_line(f"the Hub cannot be asked for the newest {model}; taking the one in the cache, commit {cached}")
        commit = cached
    return model._replace(revision=commit)


def cached_model(model: HubModel, weights: bool = True) -> Path | None:
    """The folder of ``model`` in the cache, if all its files are there; the Hub is not asked.

    Without ``weights`` the files of the tokenizer are enough.
    """
    from huggingface_hub import errors, snapshot_download

    with hub_errors(str(model), "model"):
        try:
            found = snapshot_download(
                model.repo,
                revision=model.revision,
                local_files_only=True,
                allow_patterns=_wanted(weights),
                ignore_patterns=list(LEFT_OUT),
            )
        except (errors.LocalEntryNotFoundError, errors.HFValidationError):
            return None
    folder = Path(found)
    # A cache that another program filled may hold a part of the files, and no list of all.
    return folder if not weights or _has_weights(folder) else None


def fetch_model(model: HubModel, print_line: Callable[[str], None], weights: bool = True) -> Path:
    """The folder of ``model`` in the cache, downloaded if need be; a download that broke off is continued.

    ``print_line`` reports the size first. Without ``weights`` the files of the tokenizer are fetched alone. Raises
    ``UserError`` for a model that cannot be had, or has its weights in pickles only.
    """
    folder = cached_model(model, weights) if model.is_pinned else None
    if folder is not None:
        return folder
    from huggingface_hub import constants, snapshot_download

    model = pin_model(model, print_line)
    folder = cached_model(model, weights)
    if folder is not None:
        return folder
    sizes = missing_files(model, weights)
    cache = Path(constants.HF_HUB_CACHE)
    size = sum(sizes.values())
    print_line(f"downloading {model} from the Hub: {len(sizes)} files, {size / 1e6:,.1f} MB, into {cache}")
    keep_pipes_plain()
    with disk_errors(cache), _model_errors(model):
        return Path(
            snapshot_download(
                model.repo, revision=model.revision, allow_patterns=_wanted(weights), ignore_patterns=list(LEFT_OUT)
            )
        )


def missing_files(model: HubModel, weights: bool = True) -> dict[str, int]:
    """The files of ``model`` that are not in the cache, with their sizes in bytes.

    Raises ``UserError`` for a model that is not on the Hub, or that has no weights in safetensors.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache

    with _model_errors(model):
        info = HfApi().model_info(model.repo, revision=model.revision, files_metadata=True)
        files = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        wanted = {name: size for name, size in files.items() if _is_wanted(name, weights)}
        _check_files(model, set(files), set(wanted), weights)
        commit = str(info.sha)
        return {
            name: size
            for name, size in wanted.items()
            if not isinstance(try_to_load_from_cache(model.repo, name, revision=commit), str)
        }


def _wanted(weights: bool) -> list[str]:
    return list(MODEL_FILES if weights else TOKENIZER_FILES)


def _is_wanted(name: str, weights: bool) -> bool:
    return _matches(name, _wanted(weights)) and not _matches(name, LEFT_OUT)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _check_files(model: HubModel, held: set[str], wanted: set[str], weights: bool) -> None:
    if not weights:
        return
    if not wanted & {"config.json", ADAPTER_CONFIG}:
        raise UserError(
            f"{model} on the Hub holds neither config.json nor {ADAPTER_CONFIG}; expected a transformers model",
            ErrorCode.MODEL_INCOMPLETE,
        )
    if any(name.endswith(".safetensors") for name in wanted):
        return
    pickled = sorted(name for name in held if PurePosixPath(name).suffix in PICKLED)
    if pickled:
        raise UserError(
            f"{model} on the Hub has its weights in pickles only ({pickled[0]}), which may run code when they are"
            f" loaded\ntake a revision with safetensors, such as a conversion: {model.repo}@refs/pr/NUMBER; or, if you"
            " trust it, load it with transformers, and name the folder that save_pretrained writes",
            ErrorCode.MAY_RUN_CODE,
        )
    raise UserError(f"{model} on the Hub holds no weights; expected .safetensors files", ErrorCode.MODEL_INCOMPLETE)


def _has_weights(folder: Path) -> bool:
    index = read_json(folder / "model.safetensors.index.json").get("weight_map")
    if isinstance(index, dict):
        return all((folder / str(name)).is_file() for name in index.values())
    return any(folder.glob("*.safetensors"))


def _cached_commit(model: HubModel) -> str | None:
    """The commit that the revision was when it was downloaded last."""
    from huggingface_hub import constants

    reference = _cache_folder(model) / "refs" / (model.revision or constants.DEFAULT_REVISION)
    return reference.read_text(encoding="utf-8").strip() if reference.is_file() else None


def _cache_folder(model: HubModel) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=model.repo, repo_type="model")


@contextmanager
def _model_errors(model: HubModel) -> Iterator[None]:
    """As ``hub_errors``, with what to do about it."""
    try:
        with hub_errors(str(model), "model"):
            yield
    except UserError as error:
        revision = "" if model.revision is None else f" --revision {model.revision}"
        advice = {
            ErrorCode.HUB_REPO_MISSING: f"no folder is called {model}, either; expected ORG/NAME[@REVISION] or a path",
            ErrorCode.HUB_GATED: f"then check it with: hf download {model.repo}{revision} config.json",
            ErrorCode.HUB_UNREACHABLE: (
                f"no folder here is called {model}; to get it elsewhere: hf download {model.repo}{revision}, then copy"
                " the folder"
                f" {_cache_folder(model).name} of that cache (HF_HOME) to {_cache_folder(model).parent}"
            ),
        }
        raise UserError(
            "\n".join([str(error), *([advice[error.code]] if error.code in advice else [])]), error.code
        ) from error
