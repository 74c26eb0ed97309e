"""Sweeps: which cells an experiment has, running them on Ray Tune, and the ledger of what happened."""
