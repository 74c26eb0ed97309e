"""What a measurement depends on: the weights, the task's version, the settings. Same key, same number.

Nothing heavy is imported here, so a sweep can tell at once which cells are already measured.
"""

import hashlib
from pathlib import Path
from typing import Any

from rcray.config import RunConfig, content_key, run_id
from rcray.config.benchmarks import PREFERENCE, SAMPLES, Benchmark
from rcray.config.evaluation import EvaluationConfig
from rcray.evaluate import embedded
from rcray.evaluate.harness import harness_version

PREFERENCE_VERSION = 3  # raised when the rows of held-out preference change
SAMPLES_VERSION = 1  # raised when the same models would give other samples
BENCHMARK_VERSION = 1  # raised when the rows of benchmarks change
_LENGTH = 24


def preference_key(config: RunConfig, weights: str) -> str:
    """Held-out preference of one run."""
    return content_key([PREFERENCE, PREFERENCE_VERSION, run_id(config), weights], _LENGTH)


def samples_key(config: RunConfig, settings: EvaluationConfig, weights: str) -> str:
    """Samples of one run."""
    asked = [settings.samples, settings.sample_tokens]
    return content_key([SAMPLES, SAMPLES_VERSION, asked, run_id(config), weights], _LENGTH)


def benchmark_key(benchmark: Benchmark, settings: EvaluationConfig, weights: str) -> str:
    """One benchmark of one model; batch size and resources are left out, as they decide nothing."""
    asked = [benchmark.name, benchmark.task, benchmark.shots, benchmark.chat_template]
    counted = [benchmark.metric, benchmark.filter, benchmark.aggregate]
    shared = [settings.limit, settings.data_dir, settings.backend, harness_version(), BENCHMARK_VERSION]
    return content_key(["benchmark", asked, counted, shared, _task_version(benchmark), weights], _LENGTH)


def _task_version(benchmark: Benchmark) -> Any:
    """Registered tasks change with lm-eval's version, embedded ones with their own, files with their content."""
    if benchmark.embedded:
        return embedded.version_key()
    return _folder_digest(Path(benchmark.task)) if benchmark.is_file else None


def _folder_digest(path: Path) -> str:
    """A task file, and what lies beside it: it may include, import and read that."""
    digest = hashlib.sha256()
    for file in sorted(path.parent.iterdir()) if path.is_file() else []:
        if file == path or file.suffix in (".yaml", ".yml", ".py", ".json", ".jsonl", ".csv", ".parquet"):
            digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
