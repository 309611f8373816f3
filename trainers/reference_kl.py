"""What DPO and KTO share: the reference model, how far the model went from it, and TRL's losses over our masks."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, cast

import msgspec
import torch
from trl.trainer.utils import FusedCausalLMOutput

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.models import TOKENIZER_FILE, vocabulary_size
from agentmill.trainers.adapters import ModelFiles, model_files
from agentmill.trainers.base_trainer import BaseTrainer
from agentmill.trainers.batching import attention_mask, pad
from agentmill.trainers.command import DpoSettings, KtoSettings, PreferenceSettings, TrainSettings, say
from agentmill.trainers.model_io import load_errors
from agentmill.trainers.monitors import with_eta
from agentmill.trainers.reference_scores import ReferenceScores, ScoredRows
from agentmill.trainers.run_dir import TrainingSetup
from agentmill.trainers.tokenization import IGNORED

SIDES = ("chosen", "rejected")

TRL_REFERENCE = "ref"
"""What TRL calls its copy of an adapter that is trained on, which is the reference."""

MEASURED = (
    "accuracy",
    "margin",
    "entropy",
    *(f"{side}_{what}" for side in SIDES for what in ("reward", "logp", "change")),
)
"""The values of a point of the loss curve besides the loss.

``logp`` is the mean log-probability of the tokens with loss of a side, in nats per sequence; ``change`` is its
difference to that under the reference, in nats per token; ``reward`` is beta times that difference per sequence, and
``margin`` is the difference of the rewards. ``entropy`` is that of the model where there is loss, in nats per token.
``None`` where there was no row of the side.
"""


class RecordedOutputs:
    """Takes the place of a model in TRL's loss and returns, in this order, outputs that the model gave before."""

    def __init__(self, outputs: Sequence[Any]) -> None:
        self._outputs: Iterator[Any] = iter(outputs)

    def __call__(self, **_: Any) -> Any:
        """The next output, whatever the arguments are."""
        return next(self._outputs)


@contextmanager
def copied_whole(model: Any) -> Iterator[None]:
    """Have TRL's copy of the adapter of ``model``, which is the reference, be like it in all.

    PEFT would initialise the copy as it did the adapter, which changes the weights below it for some ways (PiSSA,
    OLoRA), and TRL leaves out the tensors of embeddings and of single tokens. Raises ``UserError`` for an adapter with
    biases, of which a model has one at most.
    """
    config = getattr(model, "peft_config", {}).get("default")
    if config is None:
        yield
        return
    if getattr(config, "bias", "none") != "none":
        raise UserError(
            f"the adapter has biases (bias: {config.bias}), and a reference next to it cannot have them, too\n"
            "make it a whole model first: agentmill merge ADAPTER --out MODEL",
            ErrorCode.LORA_DIFFERS,
        )
    way, config.init_lora_weights = config.init_lora_weights, True
    try:
        yield
    finally:
        config.init_lora_weights = way
    parameters = dict(model.named_parameters())
    for name, each in parameters.items():
        copy = parameters.get(f"{name.removesuffix('default')}{TRL_REFERENCE}") if name.endswith(".default") else None
        if copy is not None:
            copy.data.copy_(each.data)


class ReferenceTrainer(BaseTrainer):
    """What DPO and KTO share: one run of the model for each batch, and sums over its sequences by side.

    With ``scores`` the reference scores the rows once, before the first step, and is then dropped unless ``kept``: it
    is the model under its adapter.
    """

    beta: float
    ref_model: Any
    counted: ClassVar[tuple[str, ...]] = (
        "right",
        "compared",
        "entropy",
        *(f"{side}_{what}" for side in SIDES for what in ("rows", "tokens", "logp", "moved")),
    )

    def __init__(self, *args: Any, scores: ReferenceScores | None = None, kept: bool = True, **kwargs: Any) -> None:
        with copied_whole(kwargs.get("model")) if kwargs.get("ref_model") is None else nullcontext():
            super().__init__(*args, **kwargs)
        self._scores, self._kept, self._gone = scores, kept, False
        # TRL then takes the log-probabilities of the reference from the batch, where compute_loss puts them.
        self.precompute_ref_logps = True
        if scores is not None:
            rows: Any = self.train_dataset
            self.train_dataset = ScoredRows(rows, scores)
            if scores.finished:
                self._use_scores(scores)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Also load the adapter that learns: where there is TRL's copy of it, transformers loads that one alone."""
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        loaded = self.accelerator.unwrap_model(self.model if model is None else model)
        if TRL_REFERENCE in getattr(loaded, "peft_config", {}):
            loaded.load_adapter(resume_from_checkpoint, loaded.active_adapter, is_trainable=True)

    def reference_values(self, batch: dict[str, torch.Tensor], names: Sequence[str]) -> dict[str, torch.Tensor]:
        """The values of ``names`` under the reference, each of shape (rows)."""
        raise NotImplementedError

    def value_names(self) -> Sequence[str]:
        """What the loss of a batch needs of the reference."""
        raise NotImplementedError

    def with_references(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """``batch`` with the log-probabilities under the reference that it lacks."""
        missing = [name for name in self.value_names() if name not in batch]
        if missing and self._gone:
            raise RuntimeError(f"a batch has no {missing[0]}, and the reference is no longer in memory")
        if not missing:
            return batch
        # The reference may be the model that is trained, without its adapter, and must not vary by dropout.
        model = cast(torch.nn.Module, self.model)
        training = model.training
        model.eval()
        try:
            return {**batch, **self.reference_values(batch, missing)}
        finally:
            model.train(training)

    def pending_batches(self) -> list[int]:
        """Those that are not scored yet, where that is done once."""
        return self._scores.batches[self._scores.done() :] if self._scores is not None else []

    def prepare_rows(self) -> None:
        """Score the rows under the reference, or go on with it after a stop."""
        scores = self._scores
        if scores is None:
            return
        if self.accelerator.is_main_process:
            scores.begin()
        self.accelerator.wait_for_everyone()
        if not scores.finished:
            self._score_rows(scores)
            self.accelerator.wait_for_everyone()
        self._use_scores(scores)
        # What is left of a second model is freed, for the activations of the first step.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _use_scores(self, scores: ReferenceScores) -> None:
        scores.open()
        self.ref_model, self._gone = None, not self._kept

    def _score_rows(self, scores: ReferenceScores) -> None:
        begun, done = time.monotonic(), scores.done()
        left = scores.batches[done:]
        model: Any = self.model
        model.eval()
        for number in with_eta(left, len(left), "batches scored by the reference"):
            names = scores.names(number)
            found = self.reference_values(self.batch_at(number), names)
            values = self.accelerator.gather(torch.stack([found[name].float() for name in names], 1)).cpu().numpy()
            done += 1
            if self.accelerator.is_main_process:
                scores.write(done, number, dict(zip(names, values.T, strict=True)))
        model.train()
        say(f"reference: {len(left)} batches scored in {timedelta(seconds=round(time.monotonic() - begun))}")

    @staticmethod
    def _precompute_ref_logps(dataset: Any, *_: Any) -> Any:
        # TRL would do it in the constructor, before FSDP shards the model, and start over after a stop.
        return dataset

    def forward_masked(self, model: Any, batch: dict[str, torch.Tensor]) -> Any:
        """The outputs of ``model`` for the tokens with loss, in the form of TRL's fused head."""
        labels = batch["input_ids"].masked_fill(batch["completion_mask"] == 0, IGNORED)
        return model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            labels=labels,
            # A cache of keys and values is of use for generation only and takes memory.
            use_cache=False,
            fused_lm_head=True,
        )

    def count_sides(
        self, batch: dict[str, torch.Tensor], chosen: torch.Tensor, logps: tuple[torch.Tensor, torch.Tensor]
    ) -> dict[str, float]:
        """The sums of a batch; ``logps`` of its sequences are those of the model and of the reference."""
        own, reference = logps
        tokens = batch["completion_mask"].sum(1)
        sums: dict[str, float] = {}
        for side, rows in zip(SIDES, (chosen, ~chosen), strict=True):
            sums[f"{side}_rows"] = int(rows.sum())
            sums[f"{side}_tokens"] = int(tokens[rows].sum())
            sums[f"{side}_logp"] = own[rows].sum().item()
            sums[f"{side}_moved"] = (own - reference)[rows].sum().item()
        return sums

    def measured(self, sums: dict[str, float]) -> dict[str, Any]:
        """See ``MEASURED``."""
        found: dict[str, Any] = {"accuracy": sums["right"] / sums["compared"], "margin": None}
        found["entropy"] = sums["entropy"] / sums["loss_tokens"] if sums["loss_tokens"] else None
        rewards = []
        for side in SIDES:
            rows, tokens, moved = (sums[f"{side}_{what}"] for what in ("rows", "tokens", "moved"))
            reward = self.beta * moved / rows if rows else None
            found |= {
                f"{side}_reward": reward,
                f"{side}_logp": sums[f"{side}_logp"] / rows if rows else None,
                f"{side}_change": moved / tokens if rows else None,
            }
            rewards.append(reward)
        if rewards[0] is not None and rewards[1] is not None:
            found["margin"] = rewards[0] - rewards[1]
        return found


def select_rows(outputs: FusedCausalLMOutput, rows: Sequence[int]) -> FusedCausalLMOutput:
    """The outputs for some rows of a batch."""
    # The loss, a scalar, has no rows to select.
    return type(outputs)(**{name: value[list(rows)] if value.dim() else value for name, value in outputs.items()})


def weighted_pair_loss(
    trl_loss: Callable[..., torch.Tensor],
    outputs_of: Callable[[list[int]], Any],
    batch: dict[str, torch.Tensor],
    weights: torch.Tensor,
) -> torch.Tensor:
    """The mean over the pairs of a batch of TRL's loss, computed for each pair alone and scaled by its weight.

    TRL has no weights of pairs. ``outputs_of`` gives the model's outputs for two rows: chosen ones come first in a
    batch, then the rejected ones.
    """
    number = len(weights)
    losses = []
    for one in range(number):
        sides = [one, one + number]
        # Tensors of the batch have one entry per pair, or one per side.
        alone = {name: value[[one] if len(value) == number else sides] for name, value in batch.items()}
        losses.append(trl_loss(RecordedOutputs([outputs_of(sides)]), alone))
    return torch.stack(losses) @ weights / number


def reference_tensors(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, torch.Tensor]:
    """What ``rows`` know of the reference already, of shape (rows)."""
    return {name: torch.tensor([row[name] for row in rows]) for name in names if name in rows[0]}


def scores_once(settings: DpoSettings | KtoSettings, adapter_off: bool, rows: int) -> bool:
    """Whether the reference scores ``rows`` before the first step; ``adapter_off``: it is the model under its adapter.

    By default it does where that saves memory (a second model) or time (rows that come more than once).
    """
    if settings.precompute_reference is not None:
        return settings.precompute_reference
    # Rows to validate on are scored as they come, so the reference is kept for them.
    if settings.trl.get("sync_ref_model") or settings.validates is not None:
        return False
    step = settings.batch_size * settings.gradient_accumulation * int(os.environ.get("WORLD_SIZE", "1"))
    taken = settings.epochs * rows if settings.max_steps is None else settings.max_steps * step
    return not adapter_off or taken > rows


def preference_batch(
    ids: Sequence[Sequence[int]], masks: Sequence[Sequence[int]], pad_token_id: int
) -> dict[str, torch.Tensor]:
    """Padded sequences under the names of TRL's preference trainers; ``masks`` are 1 where there is loss."""
    return {
        "input_ids": pad(ids, pad_token_id),
        "attention_mask": attention_mask(ids),
        "completion_mask": pad(masks, 0).long(),
    }


def reference_files(settings: PreferenceSettings, start: ModelFiles) -> ModelFiles:
    """The folders of the reference model, by default what the training starts from, adapter included.

    Raises ``UserError`` where it cannot score the tokens of that.
    """
    reference = settings.reference
    if reference is None and settings.reference_base is not None:
        raise UserError(
            f"reference_base: {settings.reference_base} is given, and no `reference`, whose adapter it would be the"
            " model of; leave it out, or name the reference",
            ErrorCode.KEY_NOT_FOR_THIS,
        )
    files = start if reference is None else model_files(reference, settings, settings.reference_base)
    # With another tokenizer the ids would mean other texts, and the log-probabilities could not be compared.
    if files.base != start.base and vocabulary(files.base) != vocabulary(start.base):
        raise UserError(
            f"the reference {reference} has another tokenizer than the model {start.base};"
            " expected the model itself, or one that comes from it or that it comes from",
            ErrorCode.TOKENIZERS_DIFFER,
        )
    return files


def is_within(setup: TrainingSetup, settings: TrainSettings) -> bool:
    """Whether the trained model holds its reference, which is then not loaded as well.

    With a new adapter that is the model with the adapter off; where an adapter is trained on, TRL keeps a copy of it.
    """
    identity = setup.work.identity
    start = "+".join(identity[name] for name in ("base_revision", "adapter_revision") if name in identity)
    return settings.lora is not None and identity["reference_revision"] == start


def vocabulary(folder: Path) -> list[Any]:
    """What the numbers of a model's tokens mean: how many there are, and their texts, where its files say so."""
    with load_errors(folder):
        tokenizer = folder / TOKENIZER_FILE
        texts = msgspec.json.decode(tokenizer.read_bytes())["model"]["vocab"] if tokenizer.is_file() else None
        return [vocabulary_size(folder), texts]
