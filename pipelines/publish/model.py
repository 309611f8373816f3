"""The publication of a tuned model: its folder as the trainer left it, and its card with what the Hub wants to know.

The trainer's card tells the base, the digest of the data, the view and how the training went; here the licence, the
base's id on the Hub and the evaluation of the run come to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from agentmill.pipelines.operators.evaluate import ACTOR, CONSTRAINED, DIFFERENCE
from agentmill.pipelines.operators.train import RECORD
from agentmill.pipelines.publish.card import in_json
from agentmill.pipelines.publish.checks import Check, few, in_files, licences, local_paths, personal, secrets
from agentmill.pipelines.publish.difference import Branch, LocalFile
from agentmill.pipelines.publish.facts import RowSources, sources
from agentmill.pipelines.publish.licences import SourceCount, declared_or_common, known, with_stated
from agentmill.pipelines.publish.publication import Order, Publication
from agentmill.pipelines.publish.scan import Finding
from agentmill.pipelines.publish.text_columns import cell, code, markdown
from agentmill.pipelines.recipes.run_folder import RECIPE
from agentmill.pipelines.recipes.summary import MEASURE_COLUMNS, Summary, evaluation_lines, measure_rows
from agentmill.pipelines.runs.tables import run_of, summary_of
from agentmill.pipelines.view.sources import is_table
from agentmill.schemas.config import read_yaml
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import file_sha256
from agentmill.schemas.models import adapter_base, model_revision, read_json
from agentmill.schemas.records.manifest import read_manifest
from agentmill.schemas.records.record import JsonObject

CARD, ADAPTER = "README.md", "adapter_config.json"
WEIGHTS = "*.safetensors"
INDEX = ".safetensors.index.json"
VOCABULARY = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt", "*.tiktoken")
"""Files of words, among which are parts of paths; no more than secrets are looked for in them."""
BINARY = (WEIGHTS, "*.model")
SENT = (
    *(CARD, RECORD, ADAPTER, "LICENSE*", "NOTICE*", "USE_POLICY*"),
    *("config.json", "generation_config.json", "*processor_config.json", "*.safetensors.index.json"),
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.json", "*.jinja"),
    *VOCABULARY,
    *BINARY,
)
"""What a model consists of. Nothing else goes up: logs, programs, pickles and checkpoints are of the machine."""
LOADED = ("*.safetensors", "*.safetensors.index.json", ADAPTER)
"""What would be loaded if it stayed from an earlier publication: shards of other numbers, an adapter since merged."""
TRAINING = "train_"
TRAIN_REWARD, EVALUATE = "train_reward", "evaluate"
"""Names of operators, as a summary has them."""


def is_model(path: Path) -> bool:
    """Whether ``path`` is the folder of a tuned model."""
    return (path / RECORD).is_file()


def model(order: Order) -> Publication:
    """The publication of the model at ``order.path``. Raises ``UserError``."""
    check_options(order)
    check_base(order.base_model, "--base-model")
    given_licences = {name: known(licence) for name, licence in order.source_licences.items()}
    made_from = sources(order.path)
    found = with_stated(made_from.found, given_licences)
    licence = declared_or_common(order.licence, found)
    seen = sorted(each for each in order.path.iterdir() if not each.name.startswith("."))
    paths = [each for each in seen if each.is_file() and matches(each.name, SENT)]
    files = {each.name: LocalFile.of(each, file_sha256(each)) for each in paths}
    texts = {each.name: text_of(each) for each in paths if not matches(each.name, BINARY)}
    whole = complete(order.path, paths, [each.name for each in seen if each not in paths])
    if ADAPTER in files:
        texts |= {ADAPTER: adapter_config(order), RECORD: training_record(order)}
        files |= {name: LocalFile.of(texts[name].encode()) for name in (ADAPTER, RECORD)}
    evaluated = evaluation_of(order.path)
    # Made twice: this one is looked through, and the one that goes up tells what was found.
    texts[CARD] = model_card(order, licence, evaluated, [])
    findings = findings_in(texts)
    checks = [
        whole,
        secrets(findings, order.allowed),
        personal(findings, order.allowed),
        local_paths(findings),
        rows_licences(licence, found, made_from),
        Check("licence of the base", "note", "not checked: what the licence of the base model asks for"),
    ]
    files[CARD] = LocalFile.of(model_card(order, licence, evaluated, checks).encode())
    return Publication(
        branch=Branch(order.repo, "model", order.revision),
        checks=checks,
        files=files,
        owned=frozenset(files),
        tables=[],
        left=LOADED,
    )


def check_options(order: Order) -> None:
    """Raises ``UserError`` if something was asked for that a model has not."""
    unfit = {
        "--table": order.tables,
        "--copy": order.copies,
        "--title": order.title,
        "--author": order.author,
        "--allow-leaks": order.allowed.leaks,
    }
    for option, given in unfit.items():
        if given:
            raise UserError(f"{order.path} is a tuned model; {option} is for tables", ErrorCode.OPTION_NOT_FOR_THIS)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a file is called as one of ``patterns`` says."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def text_of(path: Path) -> str:
    """The text of a file; what is none in UTF-8 is looked through as far as it is."""
    return path.read_text(encoding="utf-8", errors="replace")


def findings_in(texts: Mapping[str, str]) -> list[Finding]:
    """What is sensitive in the texts of a model, by name."""
    return [each for each in in_files(texts) if each.sort == "secret" or not matches(each.table, VOCABULARY)]


def complete(folder: Path, paths: list[Path], rest: list[str]) -> Check:
    """Whether the folder holds weights and what is needed to load them; ``rest`` is what stays here."""
    names = {each.name for each in paths}
    weights = [each for each in paths if matches(each.name, [WEIGHTS])]
    if not weights or not names & {"config.json", ADAPTER} or CARD not in names:
        raise UserError(
            f"{folder} is no complete model: it has {', '.join(sorted(names))}; run its training again",
            ErrorCode.MODEL_INCOMPLETE,
        )
    for index in (each for each in paths if each.name.endswith(INDEX)):
        held = read_json(index).get("weight_map")
        missing = sorted({*map(str, held.values())} - names) if isinstance(held, dict) else []
        if missing:
            raise UserError(
                f"{folder} lacks {few(missing)}, which {index.name} names; copy the model folder again, or run its"
                " training again",
                ErrorCode.MODEL_INCOMPLETE,
            )
    size = sum(each.stat().st_size for each in weights) / 1e6
    summary = f"{len(paths)} files, {size:,.1f} MB of weights in safetensors"
    if rest:
        return Check("files", "note", f"{summary}; not sent, for they are no part of a model: {few(rest)}", rest)
    return Check("files", "passed", summary)


def rows_licences(licence: str, found: Sequence[SourceCount], made_from: RowSources) -> Check:
    """The declared licence against those of the rows, as far as these are here."""
    check = licences(licence, found)
    not_checked = []
    if made_from.missing:
        rows = f"the rows of {made_from.missing} training(s) that made it are not here, nor what they were made of"
        not_checked.append(rows)
    if made_from.base_missing:
        not_checked.append("the model that it started from is not here, nor what that was trained on")
    if not not_checked or check.level == "refused":
        return check
    summary = f"not checked: {'; '.join(not_checked)}"
    return Check("licences", "note", f"{summary}; {check.detail}" if found else summary, check.items)


def check_base(name: str | list[str] | None, where: str) -> None:
    """Raises ``UserError`` unless ``name``, if there is one, is that of a model on the Hub."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    for each in name if isinstance(name, list) else [name]:
        try:
            validate_repo_id(each or "org/name")
            fits = each is None or each.count("/") == 1
        except HFValidationError:
            fits = False
        if not fits:
            raise UserError(
                f"{where} {each}: expected a model on the Hub; say --base-model ORG/NAME", ErrorCode.BASE_MODEL_UNKNOWN
            )


def adapter_config(order: Order) -> str:
    """The configuration of an adapter, which names its base: as it was trained a folder here, published one on the Hub.

    Raises ``UserError`` where nobody says which.
    """
    path = order.path / ADAPTER
    if order.base_model is None:
        raise UserError(
            f"{order.path} is an adapter; say what it adapts on the Hub with --base-model ORG/NAME",
            ErrorCode.BASE_MODEL_UNKNOWN,
        )
    return with_base(path, "base_model_name_or_path", order.base_model)


def training_record(order: Order) -> str:
    """The record of an adapter's training with its base on the Hub, which readers look for before any other.

    The base stays at the commit that was trained on, if that is known. ``base_revision`` stays, too: it tells whether
    what is on the Hub is what was trained on.
    """
    trained_on = adapter_base(order.path) or ""
    base = trained_on if trained_on.startswith(f"{order.base_model}@") else str(order.base_model)
    return with_base(order.path / RECORD, "base_model", base)


def with_base(path: Path, key: str, base: str) -> str:
    """A JSON file of an adapter that has its ``base`` as ``key``. Raises ``UserError`` if it is damaged."""
    try:
        held = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}); run its training again", ErrorCode.DAMAGED_FILE) from None
    return msgspec.json.format(msgspec.json.encode({**held, key: base}), indent=2).decode() + "\n"


class Evaluated(NamedTuple):
    """The run that trained a model and evaluated it; ``success`` is that of this model, by split."""

    summary: Summary
    success: dict[str, float]


def evaluation_of(folder: Path) -> Evaluated | None:
    """The evaluation of the run that trained the model, if it trained this one only, and no reward model.

    Figures of a run with several trainings are not given for one of them, nor those of who acted for a reward model.
    Raises ``UserError`` if a file of the run is damaged.
    """
    run = run_of(folder)
    summary = None if run is None else summary_of(run)
    if run is None or summary is None or not summary.evaluation:
        return None
    trained = {name: stage.operator for name, stage in summary.stages.items() if stage.operator.startswith(TRAINING)}
    if list(trained) != [folder.resolve().relative_to(run).as_posix()] or TRAIN_REWARD in trained.values():
        return None
    return Evaluated(summary, success_of(model_revision(folder), run, summary))


def success_of(revision: str, run: Path, summary: Summary) -> dict[str, float]:
    """The success of the model of that revision by split, where it acted freely; the names of results are anybody's."""
    found: dict[str, float] = {}
    for split, measured in summary.evaluation.items():
        free = [label for label in measured if label != DIFFERENCE and not label.endswith(CONSTRAINED)]
        same = (label for label in free if acting_revision(run, summary, f"{split}/{label}") == revision)
        success = next((measured[label]["success"] for label in same), None)
        if success is not None:
            found[split] = success
    return found


def acting_revision(run: Path, summary: Summary, result: str) -> str | None:
    """The revision of the model or adapter that acted for ``SPLIT/MODEL``; ``None`` where no table states it."""
    steps = [name for name, stage in summary.stages.items() if stage.operator == EVALUATE]
    # With several evaluating steps, the split is named with its own.
    tables = [folder / result / "trajectories" for folder in (run, *(run / step for step in steps))]
    table = next(filter(is_table, tables), None)
    models: Any = {} if table is None else read_manifest(table).config.get("models") or {}
    revision = models.get(ACTOR, {}).get("revision")
    # That of an adapter comes after that of its model.
    return None if revision is None else str(revision).rpartition("+")[2]


def model_card(order: Order, licence: str, evaluated: Evaluated | None, checks: Sequence[Check]) -> str:
    """The trainer's card with more metadata, and more sections. Raises ``UserError`` if it is damaged."""
    from huggingface_hub import ModelCard, ModelCardData
    from yaml import YAMLError  # type: ignore[import-untyped]

    path = order.path / CARD
    known = [] if evaluated is None else eval_results(evaluated)
    results = {"eval_results": known, "model_name": order.repo} if known else {}
    base = {} if order.base_model is None else {"base_model": order.base_model}
    try:
        card = ModelCard(path.read_text(encoding="utf-8"))
        held: JsonObject = card.data.to_dict()  # type: ignore[no-untyped-call]
        card.data = ModelCardData(**{**held, "license": licence, **base, **results})
    except (YAMLError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path} is damaged ({reason}); correct it, or run its training again", ErrorCode.DAMAGED_FILE
        ) from None
    check_base(card.data.base_model, f"{path}: base_model")
    summary = None if evaluated is None else evaluated.summary
    sections = [evaluation_section(summary), checks_section(checks), loading_section(order, card.data)]
    parts = [order.description or "", card.text.strip(), *sections]
    card.text = "\n" + "\n\n".join(part for part in parts if part) + "\n"
    return str(card)


def checks_section(checks: Sequence[Check]) -> str:
    """What was looked at, and what came of it."""
    rows = [[each.name, each.level, each.detail] for each in checks]
    return "\n\n".join(["## Checks before publication", markdown(["check", "result", "what was found"], rows)])


def eval_results(evaluated: Evaluated) -> list[Any]:
    """Success of the tuned model by split, as the Hub's model index has it."""
    from huggingface_hub import EvalResult

    return [
        EvalResult(
            task_type="text-generation",
            task_name="agent tasks",
            dataset_type=evaluated.summary.name,
            dataset_name=f"tasks of {evaluated.summary.name}",
            dataset_split=split,
            metric_type="success_rate",
            metric_name="success",
            metric_value=round(success, 4),
        )
        for split, success in evaluated.success.items()
    ]


def evaluation_section(summary: Summary | None) -> str:
    """Base and tuned model side by side."""
    if summary is None:
        return ""
    table = markdown(MEASURE_COLUMNS, measure_rows(summary))
    return "\n\n".join(["## Evaluation", table, *map(cell, evaluation_lines(summary))])


def loading_section(order: Order, data: Any) -> str:
    """How to load it."""
    adapter = data.library_name == "peft"
    kind = (
        "AutoModelForSequenceClassification" if data.pipeline_tag == "text-classification" else "AutoModelForCausalLM"
    )
    name = kind.replace("AutoModelFor", "AutoPeftModelFor") if adapter else kind
    package = "peft" if adapter else "transformers"
    run = run_of(order.path)
    recipe = "" if run is None else f"\n\nThe recipe that made it is {code(read_yaml(run / RECIPE).get('name'))}."
    return f"""\
## How to load it

```python
from {package} import {name}

model = {name}.from_pretrained({in_json(order.repo)}, revision={in_json(order.revision)})
```

Published under `{data.license}`.{recipe}"""
