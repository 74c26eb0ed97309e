"""Training: one optimizer step, the worker loop, checkpoints, step records, and launching it on Ray Train."""
