"""Training scripts, each ``python -m trainers.NAME``: ``sft``, ``dpo``, ``kto``, ``reward``."""
