"""The record of a training, ``training.json``, and the model card that is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import Any

import msgspec

from agentmill.schemas.config import dump_yaml
from agentmill.schemas.model_hub import hub_model
from agentmill.schemas.records.manifest import Counts, Manifest
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.training import BASES
from agentmill.trainers.monitors import FAR, curve_warnings, drift, mean_of
from agentmill.trainers.run_dir import RECORD

PACKAGES = ("agentmill", "torch", "transformers", "trl", "peft", "accelerate", "datasets")

METHODS = {
    "sft": ("Supervised fine-tuning", "sequences", "accuracy on tokens with loss"),
    "dpo": ("Direct preference optimization", "pairs", "pairs in the right order"),
    "kto": ("Kahneman-Tversky optimization", "rows", "rows on the right side"),
    "reward": ("Training as a reward model", "rows", "pairs in the right order"),
}
"""What the card calls a way of training, what it trains on, and what its accuracy measures."""

SHOWN_APART = ("rows", "validation_rows", "output", "recipe", *BASES, *BASES.values())
"""Settings that the card has in sentences."""


def shown_settings(settings: JsonObject) -> JsonObject:
    """The settings that have no sentence, with the names of files and not the folders of this machine."""
    shown = {name: value for name, value in settings.items() if name not in SHOWN_APART}
    if shown.get("chat_template"):
        shown["chat_template"] = PurePath(shown["chat_template"]).name
    if shown.get("launch", {}).get("config"):
        shown["launch"] = {**shown["launch"], "config": PurePath(shown["launch"]["config"]).name}
    return shown


class ValidationRecord(Record):
    """The part of ``training.json`` on rows that were not trained on.

    ``counts`` and ``reasons`` are of these rows; ``shared_tasks`` of their tasks have rows that were trained on.
    ``curve`` has the points that were measured, ``best_step`` and ``best_loss`` the lowest loss, and ``kept_step`` is
    the step whose model was written.
    """

    counts: Counts
    reasons: dict[str, int]
    rows_digest: str
    shared_tasks: int
    best_step: int
    best_loss: float
    last_loss: float
    kept_step: int
    curve: list[dict[str, Any]]


class TrainingRecord(Record):
    """``training.json`` of a model folder: what was trained, on what, and how it went.

    ``identity`` is what decides the result; ``loss_curve`` has the points that TRL logged; ``lost_tokens`` would
    carry loss but are in turns too long for a window or in rows dropped for their length; ``cut_contexts`` counts the
    windows whose context is cut within a message, ``control_rows`` the rows in which messages spell control tokens;
    ``roles`` are tokens and tokens with loss by role over all ``counts.written`` examples (sequences, pairs or rows);
    ``tokens_from`` counts the conversations whose tokens are ``stored`` as they were sampled, and those made of
    ``text``; ``tokens`` and ``loss_tokens`` are those trained on over all steps, without padding;
    ``tokens_per_second`` counts the former; memory is the peak of the first process in GiB (of the GPU, where there is
    one). ``packs`` is into how many packs the sequences were put, where they were; ``rows_per_step`` then counts packs.
    ``drift`` is how far the model went from the reference at the end (a reward model: how far its scores are apart, or
    from the values), and ``warnings`` what was warned of (``agentmill.trainers.monitors``).
    ``stopped`` is why the training ended early; ``attention`` is what the model computed with, by transformers' name.
    ``estimate`` has the seconds and the memory of so many steps, with what is written, as they were estimated before
    the first of them and as they were. ``base_model`` is the model of the adapter that was trained on; ``revisions``
    are the commits of models on the Hub, by what the command called them. ``trees`` counts the sequences that share
    prefixes, the trees made of them, and the tokens of both. There is ``validation`` if rows were set aside.
    """

    identity: JsonObject
    settings: JsonObject
    base_revision: str
    rows_digest: str
    rows_table: str
    rows_operator: str
    views: list[tuple[str, JsonObject]]
    counts: Counts
    reasons: dict[str, int]
    lost_tokens: int
    roles: dict[str, dict[str, int]]
    tokens_from: dict[str, int]
    steps: int
    rows_per_step: int
    tokens: int
    loss_tokens: int
    seconds: float
    tokens_per_second: float
    padding: float
    peak_memory_gib: float
    first_loss: float
    last_loss: float
    last_accuracy: float | None
    device: str
    precision: str
    processes: int
    parameters: int
    trained_parameters: int
    versions: dict[str, str]
    loss_curve: list[dict[str, Any]]
    drift: dict[str, float] = {}
    warnings: list[str] = []
    packs: int | None = None
    cut_contexts: int = 0
    control_rows: int = 0
    base_model: str | None = None
    revisions: dict[str, str] = {}
    stopped: str | None = None
    estimate: dict[str, float] = {}
    attention: str | None = None
    trees: dict[str, int] = {}
    validation: ValidationRecord | None = None

    @property
    def method(self) -> tuple[str, str, str]:
        """Its entry of ``METHODS``."""
        name, examples, accuracy = METHODS[self.identity["trainer"]]
        return name, f"trees of {examples}" if self.trees else examples, accuracy

    @property
    def scores(self) -> bool:
        """Whether the model scores conversations, in the place of going on with them."""
        return bool(self.identity["trainer"] == "reward")


def versions() -> dict[str, str]:
    """Of the packages that a training depends on, those that are installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def summarize(curve: list[dict[str, Any]]) -> JsonObject:
    """The fields of a record that follow from the loss curve; the last values are means over its last tenth."""
    tail = curve[-max(1, len(curve) // 10) :]
    tokens, seconds = sum(point["tokens"] for point in curve), sum(point["seconds"] for point in curve)
    # The curve has shares of padding, which cannot be averaged: batches differ in size.
    places = sum(point["tokens"] / (1 - point["padding"]) for point in curve)
    return {
        "tokens": tokens,
        "loss_tokens": sum(point["loss_tokens"] for point in curve),
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "padding": 1 - tokens / places,
        "first_loss": curve[0]["loss"],
        "last_loss": sum(point["loss"] for point in tail) / len(tail),
        "last_accuracy": mean_of(tail, "accuracy"),
        "loss_curve": curve,
        "drift": drift(curve),
        "warnings": curve_warnings(curve),
    }


def model_card(record: TrainingRecord, manifest: Manifest) -> str:
    """``README.md`` of the model folder."""
    settings = record.settings
    lora = settings["lora"]
    header = {
        "library_name": "peft" if lora and not lora["merge"] else "transformers",
        "pipeline_tag": "text-classification" if record.scores else "text-generation",
        "tags": ["agentmill", "trl", record.identity["trainer"], "agent"],
    }
    recipe = f", a step of the recipe `{settings['recipe']}`" if settings["recipe"] else ""
    return f"""\
---
{dump_yaml(header)}---

# {PurePath(settings["output"]).name}

{record.method[0]} of {start_name(record)},
{reference_name(record)}with TRL, made by agentmill{recipe}.

{data_section(record, manifest)}
{training_section(record)}
Made with {", ".join(f"{package} {number}" for package, number in record.versions.items())}.
The loss curve is in `training.json`.
"""


def start_name(record: TrainingRecord) -> str:
    """What was trained: a model, or an adapter of one."""
    name = shown_name(record.settings["model"])
    if record.base_model is None:
        return f"`{name}`, revision `{record.base_revision}`"
    adapter = f"the adapter `{name}`, revision `{record.identity['adapter_revision']}`"
    return f"{adapter}, of `{shown_name(record.base_model)}`, revision `{record.base_revision}`"


def shown_name(model: str) -> str:
    """A model without the folders it lies in; one on the Hub with its commit."""
    return PurePath(model).name if hub_model(model) is None else model


def reference_name(record: TrainingRecord) -> str:
    """What the model was kept close to, where it was."""
    revision = record.identity.get("reference_revision")
    if revision is None:
        return ""
    name = record.settings["reference"] or record.settings["model"]
    return f"against the reference `{shown_name(name)}`, revision `{revision}`,\n"


def data_section(record: TrainingRecord, manifest: Manifest) -> str:
    """Which rows were trained on, and where the loss was."""
    counts = record.counts
    views = "\n".join(f"- `{view}` {msgspec.json.encode(parameters).decode()}" for view, parameters in record.views)
    examples = record.method[1]
    scored = "Conversations are scored whole at their last token; no message carries loss"
    loss = scored if record.scores else "Only assistant messages carry loss"
    dropped = "".join(f", {number} {reason}" for reason, number in record.reasons.items())
    roles = "\n".join(f"| {role} | {count['tokens']:,} | {count['loss']:,} |" for role, count in record.roles.items())
    return f"""\
## Data

Table `{record.rows_table}`, digest `{record.rows_digest}`, written by `{record.rows_operator}` with configuration
`{manifest.config_digest}`. Views and their parameters:

{views}

{counts.read} rows read = {counts.used} used + {counts.dropped} dropped{dropped}, in {counts.written} {examples}.
Tokens: {record.tokens_from["stored"]} conversations as sampled, {record.tokens_from["text"]} from their text.
{validation_sentence(record.validation)}{loss}:

| role | tokens | with loss |
| --- | ---: | ---: |
{roles}
"""


def validation_sentence(validation: ValidationRecord | None) -> str:
    """Which rows were set aside, on a line of its own; nothing if none were."""
    if validation is None:
        return ""
    counts = validation.counts
    dropped = "".join(f", {number} {reason}" for reason, number in validation.reasons.items())
    shared = (
        f"; {validation.shared_tasks} of their tasks or trajectories were trained on too"
        if validation.shared_tasks
        else ""
    )
    return (
        f"Validation: {counts.read} rows that were not trained on = {counts.used} used + {counts.dropped}"
        f" dropped{dropped}{shared}.\n"
    )


def validation_rows(validation: ValidationRecord | None) -> str:
    """The validation loss as rows of the table."""
    if validation is None:
        return ""
    lines = [
        f"| validation loss, step {validation.curve[-1]['step']} | {validation.last_loss:.4f} |",
        f"| validation loss, lowest, step {validation.best_step} | {validation.best_loss:.4f} |",
        f"| step of this model | {validation.kept_step} |",
    ]
    return "".join(f"{line}\n" for line in lines)


def training_section(record: TrainingRecord) -> str:
    """How the training went, and its settings."""
    shown = shown_settings(record.settings)
    taken = f"packs of {record.method[1]}, {record.packs} in all" if record.packs else record.method[1]
    # Records from before there was a choice do not name the attention.
    computed = ", ".join(filter(None, [record.precision, record.attention]))
    return f"""\
## Training

{record.steps} steps of {record.rows_per_step} {taken},
{record.tokens:,} tokens ({record.loss_tokens:,} with loss) in
{record.seconds:,.0f} s, {record.tokens_per_second:,.0f} tokens/s on {record.processes} × {record.device},
{computed}, {record.peak_memory_gib:.1f} GiB; {record.trained_parameters:,} of {record.parameters:,} parameters.
{estimate_sentence(record.estimate)}
| | |
| --- | ---: |
| loss, first step | {record.first_loss:.4f} |
| loss, last tenth | {record.last_loss:.4f} |
| {record.method[2]}, last tenth | {"–" if record.last_accuracy is None else f"{record.last_accuracy:.4f}"} |
{validation_rows(record.validation)}{drift_rows(record)}
```yaml
{dump_yaml(shown)}```
"""


def estimate_sentence(estimate: Mapping[str, float]) -> str:
    """How good the estimate was, where there was one."""
    if not estimate:
        return ""
    return (
        f"Estimated before the first of {estimate['steps']:,.0f} steps: {estimate['estimated_seconds']:,.0f} s and"
        f" {estimate['estimated_memory_gib']:.1f} GiB;\nit took {estimate['seconds']:,.0f} s and"
        f" {estimate['memory_gib']:.1f} GiB.\n"
    )


def drift_rows(record: TrainingRecord) -> str:
    """The measures of the end of the training besides the loss and the accuracy, and the warnings."""
    names = {
        "chosen_change": "chosen side against the reference, nats per token, last tenth",
        "rejected_change": "rejected side against the reference, nats per token, last tenth",
        "margin": "margin between the rewards of chosen and rejected, last tenth",
        "error": "scores against the values (root mean square), last tenth",
        "entropy": "entropy of the model, nats per token with loss, last tenth",
        "kl": "distance to the reference (KL estimate, nats per completion), last tenth",
    }
    lines = [f"| {names[name]} | {value:.4f} |\n" for name, value in record.drift.items()]
    # The absence of a warning means something only where the change was measured.
    if "chosen_change" in record.drift and not record.warnings:
        lines.append(
            f"\nThe chosen side never fell by {FAR} nats per token below the reference (mean of ten points).\n"
        )
    if record.stopped is not None:
        lines.append(f"\nThe training ended early {record.stopped}.\n")
    return "".join([*lines, *(f"\n**Warning:** {warning}.\n" for warning in record.warnings)])


def write_record(folder: Path, record: TrainingRecord, manifest: Manifest) -> None:
    """Add ``training.json`` and ``README.md``."""
    (folder / RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    (folder / "README.md").write_text(model_card(record, manifest), encoding="utf-8")
