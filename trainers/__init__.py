"""Training scripts, each ``python -m agentmill.trainers.NAME``: ``sft``, ``dpo``, ``kto``, ``reward``."""
