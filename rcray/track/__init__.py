"""Tracking: step records become MLflow runs a person can compare."""
