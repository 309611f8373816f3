"""Fields of TRL's configurations that ``trl`` of a training does not take: what decides them, or why they are fixed."""

from __future__ import annotations

from collections.abc import Mapping

SET_BY: Mapping[str, str] = {
    "output_dir": "output",
    "per_device_train_batch_size": "batch_size",
    "gradient_accumulation_steps": "gradient_accumulation",
    "num_train_epochs": "epochs",
    "lr_scheduler_type": "scheduler",
    "warmup_steps": "warmup",
    "bf16": "precision",
    "fp16": "precision",
    "use_cpu": "precision",
    "disable_dropout": "lora.dropout",
    "save_strategy": "save_steps",
    "logging_steps": "log_steps",
    "logging_strategy": "log_steps",
    "eval_strategy": "validation",
    "eval_steps": "validation",
    "load_best_model_at_end": "validation",
    "metric_for_best_model": "validation",
    "greater_is_better": "validation",
    "project": "report_to",
    "run_name": "report_to",
    "resume_from_checkpoint": "resume",
    "data_seed": "seed",
    "train_sampling_strategy": "seed",
    "chat_template_path": "chat_template",
    "truncation_mode": "max_length",
    "optim": "optimizer",
    "use_liger_kernel": "liger",
    "loss_type": "objective",
    "precompute_ref_log_probs": "precompute_reference",
}
"""Fields of TRL's configurations that a setting of another name decides."""

_AS_TOKENS = "rows reach TRL as tokens, and are padded here"
_VALIDATION = "the setting `validation` measures the loss; play held-out tasks with `agentmill evaluate`"
_ORDER = "the order of the rows is fixed before the training, so that it can be resumed"
_LOSS = "the loss is computed here, and does not use it"
_MODEL = "the model is loaded before TRL sees it"
_REFERENCE = "the reference scores the batches of the training as they are"
_LAUNCH = "the file that `launch.config` names sets it"
_TRACKIO = "the environment variables of Trackio set where its runs go, such as TRACKIO_SPACE_ID"
_HUB = "publish the finished model with `agentmill publish`"

NOT_SETTABLE: Mapping[str, str] = {
    **dict.fromkeys(["remove_unused_columns", "dataset_kwargs", "dataset_text_field", "dataset_num_proc"], _AS_TOKENS),
    **dict.fromkeys(["eos_token", "pad_token", "pad_to_multiple_of", "padding_free", "shuffle_dataset"], _AS_TOKENS),
    **dict.fromkeys(["packing_strategy", "eval_packing", "label_names"], _AS_TOKENS),
    **dict.fromkeys(["completion_only_loss", "assistant_only_loss"], "the view of the rows decides what carries loss"),
    **dict.fromkeys(["label_smoothing_factor", "router_aux_loss_coef", "average_tokens_across_devices"], _LOSS),
    **dict.fromkeys(["length_column_name", "ignore_data_skip", "auto_find_batch_size"], _ORDER),
    **dict.fromkeys(["accelerator_config", "dataloader_in_order", "dataloader_drop_last"], _ORDER),
    "enable_jit_checkpoint": "a training that is interrupted goes on from its last checkpoint (`save_steps`)",
    "logging_nan_inf_filter": "a loss that is no number ends the training",
    "precompute_ref_batch_size": _REFERENCE,
    **dict.fromkeys(["model_init_kwargs", "liger_kernel_config"], _MODEL),
    **dict.fromkeys(["do_train", "do_eval", "do_predict", "eval_delay"], _VALIDATION),
    **dict.fromkeys(["eval_on_start", "eval_accumulation_steps", "eval_do_concat_batches"], _VALIDATION),
    **dict.fromkeys(["eval_use_gather_object", "per_device_eval_batch_size", "batch_eval_metrics"], _VALIDATION),
    **dict.fromkeys(["include_for_metrics", "prediction_loss_only"], _VALIDATION),
    **dict.fromkeys(["bf16_full_eval", "fp16_full_eval"], _VALIDATION),
    **dict.fromkeys(["push_to_hub", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy"], _HUB),
    **dict.fromkeys(["hub_always_push", "hub_revision"], _HUB),
    **dict.fromkeys(["save_total_limit", "save_only_model"], "checkpoints are kept as resuming needs them"),
    **dict.fromkeys(["disable_tqdm", "log_level", "log_level_replica"], "progress is printed by agentmill"),
    **dict.fromkeys(["parallelism_config", "local_rank", "fsdp", "fsdp_config", "deepspeed"], _LAUNCH),
    **dict.fromkeys(["trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"], _TRACKIO),
    "dataloader_pin_memory": "it is on exactly where there is a GPU",
}
"""Fields of TRL's configurations that would have no effect here or break what a training promises, and why."""

NEEDED: Mapping[str, str] = {
    "discopop_tau": "loss_type: discopop",
    "f_alpha_divergence_coef": "f_divergence_type: alpha_divergence",
    "gradient_checkpointing_kwargs": "gradient_checkpointing",
    "ref_model_mixup_alpha": "sync_ref_model",
    "ref_model_sync_steps": "sync_ref_model",
}
"""Fields that have no effect without another one, or a setting of that name; some need a certain value of it."""
