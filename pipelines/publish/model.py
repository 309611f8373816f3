"""The publication of a tuned model: its folder as the trainer left it, and its card with what the Hub wants to know.

The trainer's card tells the base, the digest of the data, the view and how the training went; here the licence, the
base's id on the Hub and the evaluation of the run come to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from pipelines.line import RECIPE
from pipelines.publish.card import in_json
from pipelines.publish.checks import Check, in_files, local_paths, personal, secrets
from pipelines.publish.difference import Branch, LocalFile
from pipelines.publish.licences import declared_or_common
from pipelines.publish.publication import Order, Publication
from pipelines.publish.runs import run_of, summary_of
from pipelines.publish.table_text import cell, code, markdown
from pipelines.stages.evaluate import DIFFERENCE
from pipelines.stages.training import RECORD
from pipelines.summary import MEASURE_COLUMNS, Summary, difference_lines, measure_rows
from schemas.config import read_yaml
from schemas.errors import UserError
from schemas.ids import file_sha256
from schemas.record import JsonObject

CARD, ADAPTER = "README.md", "adapter_config.json"
TEXTS = (".json", ".md", ".jinja", ".txt", ".yaml")
VOCABULARY = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt")
"""Files of words, in which nothing is said."""
LOADED = ("*.safetensors", "*.safetensors.index.json", ADAPTER)
"""What would be loaded if it stayed from an earlier publication: shards of other numbers, an adapter since merged."""
TRAINING = "train_"


def is_model(path: Path) -> bool:
    """Whether ``path`` is the folder of a tuned model."""
    return (path / RECORD).is_file()


def model(order: Order) -> Publication:
    """The publication of the model at ``order.path``. Raises ``UserError``."""
    unfit = {
        "--table": order.tables,
        "--copy": order.copies,
        "--source-licence": order.source_licences,
        "--title": order.title,
        "--author": order.author,
        "--allow-leaks": order.allowed.leaks,
    }
    for option, given in unfit.items():
        if given:
            raise UserError(f"{order.path} is a tuned model; {option} is for tables")
    licence = declared_or_common(order.licence, [])
    paths = sorted(each for each in order.path.iterdir() if each.is_file() and not each.name.startswith("."))
    files = {each.name: LocalFile.of(each, file_sha256(each)) for each in paths}
    texts = {
        each.name: each.read_text(encoding="utf-8", errors="replace")
        for each in paths
        if each.suffix in TEXTS and each.name not in VOCABULARY
    }
    if ADAPTER in files:
        texts[ADAPTER] = adapter_config(order)
        files[ADAPTER] = LocalFile.of(texts[ADAPTER].encode())
    findings = in_files(texts)
    checks = [
        complete(order.path, paths),
        secrets(findings, order.allowed),
        personal(findings, order.allowed),
        local_paths(findings),
    ]
    files[CARD] = LocalFile.of(model_card(order, licence, run_summary(order.path)).encode())
    return Publication(
        branch=Branch(order.repo, "model", order.revision),
        checks=checks,
        files=files,
        owned=frozenset(files),
        tables=[],
        left=LOADED,
    )


def complete(folder: Path, paths: list[Path]) -> Check:
    """Whether the folder holds weights and what is needed to load them."""
    names = {each.name for each in paths}
    weights = [each for each in paths if each.suffix == ".safetensors"]
    if not weights or not names & {"config.json", "adapter_config.json"} or CARD not in names:
        raise UserError(f"{folder} is no complete model: it has {', '.join(sorted(names))}; run its training again")
    size = sum(each.stat().st_size for each in weights) / 1e6
    return Check("files", "passed", f"{len(paths)} files, {size:,.1f} MB of weights in safetensors")


def adapter_config(order: Order) -> str:
    """The configuration of an adapter, which names its base: as it was trained a folder here, published one on the Hub.

    Raises ``UserError`` where nobody says which.
    """
    path = order.path / ADAPTER
    if order.base_model is None:
        raise UserError(f"{order.path} is an adapter; say what it adapts on the Hub with --base-model ORG/NAME")
    held = msgspec.json.decode(path.read_bytes())
    told = msgspec.json.encode({**held, "base_model_name_or_path": order.base_model})
    return msgspec.json.format(told, indent=2).decode() + "\n"


def run_summary(folder: Path) -> Summary | None:
    """The summary of the run that trained the model, if it trained this one only, so that its results are the model's.

    Figures of a run with several trainings are not told of one of them.
    """
    run = run_of(folder)
    summary = None if run is None else summary_of(run)
    if run is None or summary is None or not summary.evaluation:
        return None
    trained = [name for name, stage in summary.stages.items() if stage.operator.startswith(TRAINING)]
    return summary if trained == [folder.resolve().relative_to(run).as_posix()] else None


def model_card(order: Order, licence: str, summary: Summary | None) -> str:
    """The trainer's card with more metadata, and more sections."""
    from huggingface_hub import ModelCard, ModelCardData

    card = ModelCard((order.path / CARD).read_text(encoding="utf-8"))
    results = {} if summary is None else {"eval_results": eval_results(summary), "model_name": order.repo}
    base = {} if order.base_model is None else {"base_model": order.base_model}
    held: JsonObject = card.data.to_dict()  # type: ignore[no-untyped-call]
    card.data = ModelCardData(**{**held, "license": licence, **base, **results})
    parts = [order.description or "", card.text.strip(), evaluation_section(summary), loading_section(order, card.data)]
    card.text = "\n" + "\n\n".join(part for part in parts if part) + "\n"
    return str(card)


def eval_results(summary: Summary) -> list[Any]:
    """Success of the tuned model by split, as the Hub's model index has it."""
    from huggingface_hub import EvalResult

    found = []
    for split, measured in summary.evaluation.items():
        label = measured.get(DIFFERENCE, {}).get("model")
        if label in measured and measured[label]["success"] is not None:
            found.append(
                EvalResult(
                    task_type="text-generation",
                    task_name="agent tasks",
                    dataset_type=summary.name,
                    dataset_name=f"tasks of {summary.name}",
                    dataset_split=split,
                    metric_type="success_rate",
                    metric_name="success",
                    metric_value=round(measured[label]["success"], 4),
                )
            )
    return found


def evaluation_section(summary: Summary | None) -> str:
    """Base and tuned model side by side."""
    if summary is None:
        return ""
    table = markdown(MEASURE_COLUMNS, measure_rows(summary))
    return "\n\n".join(["## Evaluation", table, *map(cell, difference_lines(summary))])


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
