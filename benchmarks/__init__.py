"""Benchmarks: ratios from one interleaved run, never a timed test. `python -m benchmarks.NAME [--quick]`."""
