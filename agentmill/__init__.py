"""An agent training data pipeline: environments, tasks, trajectories, training rows and tuned models."""
